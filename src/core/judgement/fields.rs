//! Conversion of container fields to annotations.

use serde_json::{Map, Value, json};

use crate::plan::{Amounts, Resources, Signal};
use crate::text::Shortened;

use super::sizes::{bytes, cpus};

/// The fields of Kubernetes' `Probe` that the shim's probes have as well.
const PROBE_FIELDS: [&str; 9] = [
    "exec",
    "httpGet",
    "tcpSocket",
    "grpc",
    "initialDelaySeconds",
    "periodSeconds",
    "timeoutSeconds",
    "successThreshold",
    "failureThreshold",
];

/// Fields of a probe whose value 0 stands for the default.
const NEVER_ZERO: [&str; 4] = [
    "periodSeconds",
    "timeoutSeconds",
    "successThreshold",
    "failureThreshold",
];

/// Maximum number of unknown fields of a probe that a message names.
const MAX_UNKNOWN: usize = 8;
/// Maximum number of characters shown of a text from the spec.
const MAX_KEY_CHARS: usize = 64;

/// Converts a probe to the shim's form. Also returns a sentence for each part of the probe that the
/// shim's form cannot express. `field` is the name of the probe's field in the spec.
pub fn probe(field: &str, probe: Value) -> (Value, Vec<String>) {
    let mut lost = Vec::new();
    let Value::Object(mut fields) = probe else {
        return (probe, lost);
    };
    // The API server replaces a 0 in these fields by the default.
    fields.retain(|key, value| !(NEVER_ZERO.contains(&key.as_str()) && *value == json!(0)));
    if fields
        .get("successThreshold")
        .is_some_and(|it| *it != json!(1))
    {
        fields.remove("successThreshold");
        lost.push(format!(
            "the successThreshold of its {field} is dropped: usher needs one success"
        ));
    }
    let mut unknown = 0_usize;
    fields.retain(|key, _| {
        let is_known = PROBE_FIELDS.contains(&key.as_str());
        if !is_known {
            unknown = unknown.saturating_add(1);
        }
        if !is_known && unknown <= MAX_UNKNOWN {
            let key = Shortened {
                text: key,
                chars: MAX_KEY_CHARS,
                quotes: false,
            };
            lost.push(format!(
                "{key} of its {field} is dropped: usher's probes do not have it"
            ));
        }
        is_known
    });
    if let more @ 1.. = unknown.saturating_sub(MAX_UNKNOWN) {
        lost.push(format!("{more} more fields of its {field} are dropped"));
    }
    (Value::Object(fields), lost)
}

/// A container's `lifecycle.stopSignal` that the shim cannot use. The message shortens the signal,
/// and says what the shim does instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "its stopSignal {signal} is only for kubelet: usher itself stops it with SIGTERM; expected a known signal \
     other than SIGKILL"
)]
pub struct UnusableStopSignal {
    signal: String,
}

/// Checks that the shim can use kubelet's `stopSignal`.
pub fn stop_signal(signal: &str) -> Result<(), UnusableStopSignal> {
    let shortened = Shortened {
        text: signal,
        chars: MAX_KEY_CHARS,
        quotes: false,
    };
    match signal.parse() {
        Ok(Signal::KILL) | Err(_) => Err(UnusableStopSignal {
            signal: shortened.to_string(),
        }),
        Ok(_) => Ok(()),
    }
}

/// The resources of a container as Kubernetes writes them, or `None` without requests.
pub(super) fn resources(resources: &Resources) -> Option<Value> {
    if resources.requests() == Amounts::default() {
        return None;
    }
    let list = |amounts: Amounts| {
        let cpu = amounts.cpu_millis.map(|millis| cpus(Some(millis)));
        let memory = amounts.memory_bytes.map(|amount| bytes(Some(amount)));
        let amounts = [("cpu", cpu), ("memory", memory)];
        let amounts = amounts.into_iter();
        let said = amounts.filter_map(|(name, amount)| Some((name.to_owned(), json!(amount?))));
        Value::Object(said.collect())
    };
    let mut fields = Map::new();
    fields.insert("requests".to_owned(), list(resources.requests()));
    if resources.limits() != Amounts::default() {
        fields.insert("limits".to_owned(), list(resources.limits()));
    }
    Some(Value::Object(fields))
}
