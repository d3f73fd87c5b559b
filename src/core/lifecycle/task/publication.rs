//! The publication of a container's exit: its event, and the answers to pending Waits.
//!
//! Clients close their ends of the output when they hear of the exit. So the publication waits
//! until they have read the output, and until the exits of the container's execs are published. If
//! usher has ended the container, the publication also waits until the reason is written to the
//! termination message. All three waits are bounded, because a client or a disk may stall.

use std::time::Duration;

use crate::lifecycle::Pod;
use crate::lifecycle::action::{Action, ContainerId};
use crate::lifecycle::effects::ContainerContext;
use crate::lifecycle::rules::{Decision, Due, Subject};
use crate::lifecycle::time::Time;

/// Longest time for which the publication of an exit waits for clients to read the output, and for
/// execs.
pub const READ_WITHIN: Duration = Duration::from_secs(2);

/// Longest time for which the publication of an exit waits until the shim has written down why it
/// ended the container.
pub const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);

impl Pod {
    /// Records that the wait for a reader of the init process's output is over
    /// ([`Action::EndOutput`]): clients have read all of it, or were too slow. Publishes the exit
    /// unless it waits for something else.
    pub fn handle_output_read(&mut self, now: Time, id: &ContainerId) {
        self.now = now;
        self.with_container(id, |context| context.container.state.mark_output_read());
        self.settle(now);
    }

    /// Records that the driver has written down why usher ended the container
    /// ([`Action::WriteMessage`]).
    pub fn handle_last_words_written(&mut self, now: Time, id: &ContainerId) {
        self.now = now;
        self.with_container(id, |context| {
            context.container.state.mark_last_words_written();
        });
        self.settle(now);
    }
}

impl Subject<'_> {
    /// Rule: an exit is published when the caller has got everything that should come before the
    /// exit, or when the time limit is over. `None` if the container has no unpublished exit.
    pub(in crate::lifecycle) fn exit_is_published(&self) -> Option<Due<Decision>> {
        let execs = &self.container.execs;
        let exiting = self.container.state.as_exiting()?;
        // A caller that deletes the container reads no more of its output. So the publication of
        // the exit does not wait for a reader, but still for running execs.
        let waits = match self.container.is_removal_wanted() {
            true => execs.has_running(),
            false => execs.has_exiting() || execs.has_live() || !exiting.is_output_read,
        };
        let read = waits.then_some(exiting.until);
        let at = read.max(exiting.reason_deadline).unwrap_or(self.pod.now);
        Some(self.pod.due(at, || Decision::PublishExit))
    }
}

impl ContainerContext<'_> {
    pub(in crate::lifecycle) fn publish_exit(&mut self) {
        for (exec_id, code) in self.container.execs.publish_all() {
            self.publish_exec_exit(exec_id, code);
        }
        let outcome = self.container.state.publish();
        if let Some(code) = self.ok_or_log(outcome) {
            let id = self.id.clone();
            self.out.push(Action::PublishExit { id, code });
        }
    }
}
