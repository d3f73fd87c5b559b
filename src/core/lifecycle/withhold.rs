//! Init containers whose success the caller must not hear of yet.
//!
//! To the caller an init container of usher's is a container like any other. Under `Always` it
//! would restart one that has exited, and under `OnFailure` leave one that has succeeded out of the
//! pod's next sandbox. So it reads running until it is asked to stop, or the pod terminates.

use crate::plan::{RestartPolicy, Role};
use crate::process::ExitStatus;

use super::action::ContainerId;
use super::container::{Container, State};
use super::time::Time;
use super::{Pod, Timer};

impl Pod {
    /// Whether the end of a container's program is kept from the caller, if only for a moment.
    pub(super) fn is_to_be_withheld(&self, container: &Container, status: ExitStatus) -> bool {
        container.role == Role::Init
            && status == ExitStatus::Code(0)
            && self.is_restarted_by_its_caller()
    }

    /// Whether a container may read running to the caller when its process is gone: until it is
    /// removed no other process may have the number that the caller knows.
    pub fn may_outlive_its_process(&self, id: &ContainerId) -> bool {
        let may_be_withheld = self.containers.get(id).is_some_and(|container| {
            container.role == Role::Init && self.is_restarted_by_its_caller()
        });
        may_be_withheld || self.may_restart_in_place(id)
    }

    fn is_restarted_by_its_caller(&self) -> bool {
        self.plan
            .as_ref()
            .is_some_and(|plan| plan.settings().restart_policy != RestartPolicy::Never)
    }

    /// What is asked to stop, or ended by a termination, is dismissed there.
    pub(super) fn settle_withheld(&mut self, now: Time) {
        for id in self.ids() {
            let until = self
                .containers
                .get(&id)
                .and_then(|container| self.withheld_until(container));
            if until.is_some_and(|until| until <= now) {
                self.dismiss(&id, now);
            }
        }
    }

    /// Where no other container of the pod comes, there may be a person who waits for this one:
    /// `ctr run` of an init container, before anything else.
    fn withheld_until(&self, container: &Container) -> Option<Time> {
        let State::Withheld { since } = container.state else {
            return None;
        };
        let is_alone = self.history.is_alone(&container.name);
        is_alone.then(|| since.after(self.startup_timeout()))
    }

    /// Tells the caller of the end of a container whose process is long gone.
    pub(super) fn dismiss(&mut self, id: &ContainerId, now: Time) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let status = match container.state {
            State::BackingOff { status, .. } => status,
            State::Withheld { .. } => ExitStatus::Code(0),
            _ => return,
        };
        container.state = State::Exited;
        if let Some(container) = self.containers.get(id) {
            let code = self.code_of_one_told_to_go(container, status, now);
            self.report_exit(id, code);
        }
    }

    pub(super) fn withhold_timers(&self, timers: &mut Vec<(Time, Timer)>) {
        let untils = self
            .containers
            .values()
            .filter_map(|container| self.withheld_until(container));
        timers.extend(untils.map(|until| (until, Timer::Withheld)));
    }
}
