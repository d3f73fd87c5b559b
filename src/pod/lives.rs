//! What a task that may have several lives keeps of all of them.

use serde_json::Value;

use crate::engine::{Init, PidHold};

/// What outlives a life of a task.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// The first init process, the one that the caller was told of, if the task may read running
    /// without.
    first: Option<PidHold>,
    /// What was taken for its postStart handler: the process as its caller wants it.
    post_start: Option<Vec<u8>>,
    /// What the caller has changed of its resources.
    resources: Option<Value>,
}

impl Lives {
    /// One begins with this process. If the task may outlive it nobody else gets the number of the
    /// first.
    pub fn begins(&mut self, init: &dyn Init, may_outlive: bool) {
        if self.first.is_none() && may_outlive {
            self.first = Some(init.hold_pid());
        }
    }

    /// The exit of this process is told. If it was the first there was no other to be remembered for.
    pub fn are_over(&mut self, pid: i32) {
        drop(self.first.take_if(|first| first.pid() == pid));
    }

    /// The number of the first process.
    pub fn first_pid(&self) -> Option<i32> {
        self.first.as_ref().map(PidHold::pid)
    }

    /// This process was taken for its postStart handler.
    pub fn keep_post_start(&mut self, process: Vec<u8>) {
        self.post_start = Some(process);
    }

    /// What was taken for its postStart handler, if anything was.
    pub fn post_start(&self) -> Option<&[u8]> {
        self.post_start.as_deref()
    }

    /// The caller has changed resources. They are kept for the next life.
    pub fn keep_resources(&mut self, change: &[u8]) {
        merge(&mut self.resources, change);
    }

    /// What the caller has changed of its resources so far.
    pub fn resources(&self) -> Option<&Value> {
        self.resources.as_ref()
    }
}

/// Adds to what the caller has changed of a container's resources (`LinuxResources` of the OCI
/// specification) what it changes now. As deep as JSON is parsed, no deeper.
pub(super) fn merge(changed: &mut Option<Value>, change: &[u8]) {
    match serde_json::from_slice(change) {
        Ok(change) => merge_value(changed.get_or_insert(Value::Null), change),
        Err(error) => {
            tracing::warn!(%error, "resources that are no JSON will not be applied again")
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
    fn what_was_changed_last_counts_and_the_rest_stays() {
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
