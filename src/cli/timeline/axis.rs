//! The time axis: maps times to places on a line, and shortens long times without events.

/// A time without events can be drawn shorter than it was. It then takes this share of the line.
/// The share grows if another such time is shortened afterwards.
const QUIET_AT_MOST: f64 = 0.2;

/// A time without events is shortened if it would otherwise take a larger share of the line than
/// this.
const CUT_FROM: f64 = 0.45;

/// Maximum number of ticks that are tried for one segment of the axis. No segment has room for that
/// many.
const STEPS_AT_MOST: u16 = 1000;

/// The time axis, as a line of length 1.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Axis {
    begin: f64,
    /// The segments in their order, without gaps between them.
    pieces: Vec<Piece>,
}

/// A segment of the axis. The scale within a segment is linear.
#[derive(Clone, Debug, PartialEq)]
struct Piece {
    from: f64,
    to: f64,
    /// The segment's beginning on the line.
    start: f64,
    end: f64,
    is_cut: bool,
}

/// A label of the axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    /// The place on the line, from 0 to 1.
    pub place: f64,
    pub text: String,
}

impl Axis {
    /// An axis from `begin` to `end`, in seconds, with events at `times`.
    pub(super) fn new(begin: f64, end: f64, mut times: Vec<f64>) -> Axis {
        let end = end.max(begin + 0.001);
        times.retain(|at| *at > begin && *at < end);
        times.push(begin);
        times.push(end);
        times.sort_by(f64::total_cmp);
        let gaps: Vec<(f64, f64)> = times
            .iter()
            .zip(times.iter().skip(1))
            .map(|(from, to)| (*from, *to))
            .collect();
        let mut widths: Vec<f64> = gaps.iter().map(|(from, to)| to - from).collect();
        let mut cut = vec![false; gaps.len()];
        // The widest gap is shortened first. This enlarges the shares of all other gaps, so that
        // the next one may have to be shortened as well.
        let mut order: Vec<usize> = (0..gaps.len()).collect();
        let width = |index: &usize| widths.get(*index).copied().unwrap_or_default();
        order.sort_by(|one, other| width(other).total_cmp(&width(one)));
        for index in order {
            let total: f64 = widths.iter().sum();
            let (Some(width), Some(is_cut)) = (widths.get_mut(index), cut.get_mut(index)) else {
                continue;
            };
            let rest = total - *width;
            if *width > CUT_FROM * total && rest > 0.0 && *width > 5.0 {
                *width = rest * QUIET_AT_MOST / (1.0 - QUIET_AT_MOST);
                *is_cut = true;
            }
        }
        let total: f64 = widths.iter().sum();
        let mut pieces: Vec<Piece> = Vec::new();
        let mut start = 0.0;
        for (((from, to), width), is_cut) in gaps.into_iter().zip(widths).zip(cut) {
            let end = start + width / total;
            match pieces.last_mut().filter(|last| !last.is_cut && !is_cut) {
                Some(last) => (last.to, last.end) = (to, end),
                None => pieces.push(Piece {
                    from,
                    to,
                    start,
                    end,
                    is_cut,
                }),
            }
            start = end;
        }
        Axis { begin, pieces }
    }

    /// The place of a time on the line, from 0 to 1.
    pub(super) fn place(&self, at: f64) -> f64 {
        let piece = self.pieces.iter().find(|piece| at <= piece.to);
        let Some(piece) = piece.or(self.pieces.last()) else {
            return 0.0;
        };
        let share = (at - piece.from) / (piece.to - piece.from).max(f64::MIN_POSITIVE);
        (piece.start + share * (piece.end - piece.start)).clamp(0.0, 1.0)
    }

    /// The places where the axis is shortened: the middle of each shortened segment.
    pub(super) fn cuts(&self) -> Vec<f64> {
        let cut = self.pieces.iter().filter(|piece| piece.is_cut);
        cut.map(|piece| (piece.start + piece.end) / 2.0).collect()
    }

    /// Labels at round times since the beginning, but none in a shortened segment. The distance
    /// between two labels on the line is at least 80 % of `apart`.
    pub(super) fn ticks(&self, apart: f64) -> Vec<Tick> {
        let mut ticks: Vec<Tick> = Vec::new();
        for piece in self.pieces.iter().filter(|piece| !piece.is_cut) {
            let per_second = (piece.end - piece.start) / (piece.to - piece.from);
            let step = round_up(apart / per_second);
            let first = ((piece.from - self.begin) / step).ceil();
            // If a time is so large that adding a step does not change it, only this limit ends the
            // loop.
            let steps = (0..STEPS_AT_MOST).map(|steps| (first + f64::from(steps)) * step);
            for at in steps.take_while(|at| self.begin + at <= piece.to) {
                let place = self.place(self.begin + at);
                let is_free = ticks
                    .last()
                    .is_none_or(|last| place - last.place >= apart * 0.8);
                if is_free {
                    ticks.push(Tick {
                        place,
                        text: text(at, step),
                    });
                }
            }
        }
        ticks
    }
}

/// The next round number of seconds: 1, 2 or 5 times a power of ten, or for long times round
/// minutes, hours or days.
fn round_up(seconds: f64) -> f64 {
    const LONG: [f64; 12] = [
        60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14_400.0, 21_600.0, 43_200.0,
        86_400.0,
    ];
    if seconds > 30.0 {
        let long = LONG.into_iter().find(|step| *step >= seconds);
        return long.unwrap_or((seconds / 86_400.0).ceil() * 86_400.0);
    }
    let power = 10_f64.powf(seconds.max(1e-3).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = steps.into_iter().find(|step| *step >= seconds * 0.9999);
    step.unwrap_or(10.0 * power).min(60.0)
}

/// The text of a time since the beginning, as precise as the step between two labels.
fn text(at: f64, step: f64) -> String {
    let whole = at.round() as u64;
    let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
    match (at, step) {
        _ if at < step / 2.0 => "0".to_owned(),
        (..60.0, ..0.0095) => format!("{:.0}ms", at * 1e3),
        (..60.0, ..0.095) => format!("{at:.2}s"),
        (..60.0, ..0.95) => format!("{at:.1}s"),
        (..60.0, _) => format!("{at:.0}s"),
        (_, ..0.95) => format!("{minutes}m{:.1}s", at - 60.0 * (at / 60.0).floor()),
        (..3600.0, _) if seconds == 0 => format!("{minutes}m"),
        (..3600.0, _) => format!("{minutes}m{seconds}s"),
        _ if minutes == 0 && seconds == 0 => format!("{hours}h"),
        _ if seconds == 0 => format!("{hours}h{minutes}m"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_keep_the_order_of_times() {
        let axis = Axis::new(100.0, 4000.0, vec![101.0, 103.0, 3990.0]);
        let times: Vec<f64> = (0..=390)
            .map(|tens| 100.0 + 10.0 * f64::from(tens))
            .collect();
        let places: Vec<_> = times.into_iter().map(|at| axis.place(at)).collect();
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!((places[0], places[390]), (0.0, 1.0));
    }

    #[test]
    fn a_long_time_without_events_is_shortened() {
        let axis = Axis::new(0.0, 3610.0, vec![1.0, 2.0, 3.0, 3603.0, 3605.0]);
        assert_eq!(axis.cuts().len(), 1);
        assert!(axis.place(3.0) > 0.15, "{axis:?}");
        assert!(axis.place(3603.0) - axis.place(3.0) < 0.25);
        // The labels of the axis show that an hour is left out.
        let texts: Vec<_> = axis.ticks(0.1).into_iter().map(|tick| tick.text).collect();
        assert_eq!(texts.first().unwrap(), "0");
        assert!(texts.iter().any(|text| text.starts_with("1h")), "{texts:?}");
    }

    #[test]
    fn an_axis_with_evenly_spread_events_is_not_shortened() {
        let axis = Axis::new(0.0, 100.0, (0..20).map(|at| f64::from(at) * 5.0).collect());
        assert!(axis.cuts().is_empty());
        assert!((axis.place(50.0) - 0.5).abs() < 1e-9);
    }

    #[test]
    fn labels_are_round_and_do_not_overlap() {
        let axis = Axis::new(
            7.0,
            16.1,
            (0..20).map(|at| 7.0 + f64::from(at) / 2.0).collect(),
        );
        let ticks = axis.ticks(0.15);
        let texts: Vec<_> = ticks.iter().map(|tick| tick.text.as_str()).collect();
        assert_eq!(texts, ["0", "2s", "4s", "6s", "8s"]);
        for pair in ticks.windows(2) {
            assert!(pair[1].place - pair[0].place >= 0.12);
        }
    }

    #[test]
    fn huge_times_have_few_labels() {
        let far = i64::MAX as f64;
        let axis = Axis::new(0.0, far, vec![far - 2048.0, far - 1024.0]);
        assert!(axis.ticks(0.1).len() < 20);
    }

    #[test]
    fn an_axis_of_no_length_is_valid() {
        let axis = Axis::new(5.0, 5.0, vec![5.0, 5.0]);
        assert_eq!(axis.place(5.0), 0.0);
        assert!(!axis.ticks(0.1).is_empty());
    }
}
