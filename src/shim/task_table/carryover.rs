//! State of a task that a restart in place carries over to the next process.

use serde_json::Value;

use usher_engine::{Init, PidHold};

/// The part of a task that outlives each of its init processes.
#[derive(Debug, Default)]
pub struct RestartCarryover {
    /// The reserved process id of the first init process, which is the id that the caller knows.
    /// The id is reserved only if the caller may see the task as running while the task has no
    /// process.
    first: Option<PidHold>,
    /// The exec that the shim assumes to be the container's postStart handler, as the JSON of a
    /// process in the OCI specification.
    post_start: Option<Vec<u8>>,
    /// All changes that the caller made to the container's resources, merged.
    resources: Option<Value>,
}

impl RestartCarryover {
    /// Reserves the process id of `init` for the time after its exit, so that no other process gets
    /// this id. Does nothing if the task cannot outlive `init`, or if an id is already reserved.
    /// Called for each init process.
    pub fn reserve_pid(&mut self, init: &dyn Init, may_outlive: bool) {
        if self.first.is_none() && may_outlive {
            self.first = Some(init.hold_pid());
        }
    }

    /// Ends the reservation of `pid`, if `pid` is the reserved id. Then another process can get
    /// this id. Called when the exit is published, because no restart in place follows.
    pub fn release_pid(&mut self, pid: i32) {
        drop(self.first.take_if(|first| first.pid() == pid));
    }

    /// The process id of the first init process. `None` if the id is not reserved, because the task
    /// cannot outlive its process, or because the exit of this process is published.
    pub fn first_pid(&self) -> Option<i32> {
        self.first.as_ref().map(PidHold::pid)
    }

    /// Keeps the exec that the shim assumes to be the container's postStart handler.
    pub fn keep_post_start(&mut self, process: Vec<u8>) {
        self.post_start = Some(process);
    }

    pub fn post_start(&self) -> Option<&[u8]> {
        self.post_start.as_deref()
    }

    /// Keeps a change of resources that the caller made, so that a restart in place applies it to
    /// the next process.
    pub fn keep_resources(&mut self, change: &[u8]) {
        merge(&mut self.resources, change);
    }

    pub fn resources(&self) -> Option<&Value> {
        self.resources.as_ref()
    }
}

/// Merges a change of a container's resources (`LinuxResources` of the OCI specification) into the
/// earlier changes. A change that is not JSON is logged and ignored. The recursion is bounded by
/// the depth limit of the JSON parser.
pub fn merge(changed: &mut Option<Value>, change: &[u8]) {
    match serde_json::from_slice(change) {
        Ok(change) => merge_value(changed.get_or_insert(Value::Null), change),
        Err(error) => {
            tracing::warn!(%error, "changed resources are not JSON; a restart will not apply them")
        }
    }
}

fn merge_value(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                merge_value(into.entry(key).or_insert(Value::Null), value);
            }
        }
        (into, from) => *into = from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_change_of_resources_overrides_only_its_own_fields() {
        let mut changed = None;
        for change in [
            r#"{"cpu":{"shares":2,"quota":5},"memory":{"limit":1}}"#,
            "nonsense",
            r#"{"cpu":{"shares":9}}"#,
        ] {
            merge(&mut changed, change.as_bytes());
        }
        let expected = r#"{"cpu":{"quota":5,"shares":9},"memory":{"limit":1}}"#;
        assert_eq!(changed.unwrap().to_string(), expected);
    }
}
