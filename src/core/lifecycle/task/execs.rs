//! The execs of a container: further processes, which its exit waits for.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::lifecycle::Pod;
use crate::lifecycle::action::{Action, ContainerId};
use crate::lifecycle::time::Time;

/// The execs of a container by id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(in crate::lifecycle) struct Execs(BTreeMap<String, Exec>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
enum Exec {
    Added,
    Starting,
    Running,
    /// The process has exited; the exit is not published yet.
    Exiting,
    /// The exit is published, or the process never ran.
    Over,
}

impl Execs {
    /// True if an exec runs or is being started.
    pub fn has_live(&self) -> bool {
        let mut execs = self.0.values();
        execs.any(|exec| matches!(exec, Exec::Starting | Exec::Running))
    }

    /// True if an exec runs.
    pub fn has_running(&self) -> bool {
        self.0.values().any(|exec| *exec == Exec::Running)
    }

    /// True if the exit of an exec is still to be published.
    pub fn has_exiting(&self) -> bool {
        self.0.values().any(|exec| *exec == Exec::Exiting)
    }

    /// Adds an exec of the caller.
    pub fn add(&mut self, exec_id: &str) {
        self.0.insert(exec_id.to_owned(), Exec::Added);
    }

    /// Records that the process of an exec has exited, or never ran.
    pub fn exit(&mut self, exec_id: &str, has_run: bool) {
        self.set(exec_id, if has_run { Exec::Exiting } else { Exec::Over });
    }

    /// Marks all pending exits as published. Returns the ids of their execs.
    pub fn publish_all(&mut self) -> Vec<String> {
        let exiting = self
            .0
            .iter_mut()
            .filter(|(_, exec)| **exec == Exec::Exiting);
        let published = exiting.map(|(exec_id, exec)| {
            *exec = Exec::Over;
            exec_id.clone()
        });
        published.collect()
    }

    /// Marks an exit as published. Returns false if it was before.
    fn publish(&mut self, exec_id: &str) -> bool {
        let exec = self.0.get_mut(exec_id);
        let exiting = exec.filter(|exec| **exec == Exec::Exiting);
        exiting.is_some_and(|exec| {
            *exec = Exec::Over;
            true
        })
    }

    fn set(&mut self, exec_id: &str, to: Exec) {
        if let Some(exec) = self.0.get_mut(exec_id) {
            *exec = to;
        }
    }
}

impl Pod {
    /// Records that the process of an exec is being started.
    pub fn handle_exec_starting(&mut self, id: &ContainerId, exec_id: &str) {
        self.with_container(id, |context| {
            context.container.execs.set(exec_id, Exec::Starting);
        });
    }

    /// Records that the process of an exec runs.
    pub fn handle_exec_started(&mut self, id: &ContainerId, exec_id: &str) {
        self.with_container(id, |context| {
            context.container.execs.set(exec_id, Exec::Running);
        });
    }

    /// Records that the caller has read the output of an exec: its exit can be published.
    pub fn handle_exec_output_read(&mut self, now: Time, id: &ContainerId, exec_id: &str) {
        self.now = now;
        self.with_container(id, |context| {
            if context.container.execs.publish(exec_id) {
                context.out.push(Action::PublishExecExit {
                    id: id.clone(),
                    exec_id: exec_id.to_owned(),
                });
            }
        });
        self.settle(now);
    }

    /// Records that the caller has deleted an exec.
    pub fn handle_exec_deleted(&mut self, now: Time, id: &ContainerId, exec_id: &str) {
        self.now = now;
        self.with_container(id, |context| context.container.execs.0.remove(exec_id));
        self.settle(now);
    }
}
