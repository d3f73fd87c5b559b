//! Times in messages and in text output.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protobuf::MessageField;
use protobuf::well_known_types::duration::Duration as DurationMessage;
use protobuf::well_known_types::timestamp::Timestamp;

use usher_api as api;

/// A message's timestamp, in seconds since 1970.
pub(super) fn seconds(at: &MessageField<Timestamp>) -> Option<f64> {
    at.as_ref()
        .map(|at| at.seconds as f64 + f64::from(at.nanos) / 1e9)
}

/// The present time, in seconds since 1970.
pub(super) fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_secs_f64()
}

/// The time up to which a pod's ages are counted. For a running pod, this is the time of the shim's
/// answer, by the node's clock. For an ended pod, it is the present time.
pub(super) fn observed(pod: &api::Pod) -> f64 {
    let said = seconds(&pod.now).filter(|_| pod.ended.is_none());
    said.unwrap_or_else(now)
}

/// Converts a protobuf duration to seconds. None if the field is not set.
pub(super) fn duration(duration: &MessageField<DurationMessage>) -> Option<f64> {
    duration
        .as_ref()
        .map(|duration| duration.seconds as f64 + f64::from(duration.nanos) / 1e9)
}

pub(super) fn message(duration: Duration) -> DurationMessage {
    DurationMessage::from(duration)
}

/// An age in kubectl's format. Long ages are given in coarse units.
pub(super) fn age(seconds: f64) -> String {
    let total = seconds.max(0.0) as u64;
    let (minutes, hours) = (total / 60, total / 3600);
    let (rest_seconds, rest_minutes) = (total % 60, minutes % 60);
    match total {
        0..120 => format!("{total}s"),
        120..600 if rest_seconds == 0 => format!("{minutes}m"),
        120..600 => format!("{minutes}m{rest_seconds}s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 if rest_minutes == 0 => format!("{hours}h"),
        10_800..28_800 => format!("{hours}h{rest_minutes}m"),
        28_800..172_800 => format!("{hours}h"),
        _ => format!("{}d", total / 86_400),
    }
}

/// A span of time with up to three significant digits: 4.2ms, 310ms, 1.25s, 12.3s. A span of 100 s
/// or more is given like an age.
pub(super) fn span(seconds: f64) -> String {
    let seconds = seconds.max(0.0);
    match seconds {
        _ if seconds < 0.0095 => format!("{:.1}ms", seconds * 1e3),
        _ if seconds < 0.9995 => format!("{:.0}ms", seconds * 1e3),
        _ if seconds < 9.995 => format!("{seconds:.2}s"),
        _ if seconds < 99.95 => format!("{seconds:.1}s"),
        _ => age(seconds),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_kubectls_format() {
        let ages: Vec<_> = [
            0.4, 119.0, 120.0, 150.0, 599.0, 600.0, 11_100.0, 90_000.0, 2e6,
        ]
        .into_iter()
        .map(age)
        .collect();
        let expected = [
            "0s", "119s", "2m", "2m30s", "9m59s", "10m", "3h5m", "25h", "23d",
        ];
        assert_eq!(ages, expected);
    }

    #[test]
    fn spans_have_up_to_three_significant_digits() {
        let spans: Vec<_> = [-1.0, 0.0042, 0.31, 1.25, 12.34, 75.0, 3700.0]
            .into_iter()
            .map(span)
            .collect();
        assert_eq!(
            spans,
            ["0.0ms", "4.2ms", "310ms", "1.25s", "12.3s", "75.0s", "61m"]
        );
    }
}
