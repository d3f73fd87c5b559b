//! Init containers whose success the caller must not hear of yet.
//!
//! To the caller an init container of usher's is a container like any other. Under `Always` it
//! would restart one that has exited, and under `OnFailure` leave one that has succeeded out of the
//! pod's next sandbox. So it reads running until it is asked to stop, or the pod terminates.

use crate::process::ExitStatus;

use super::Pod;
use super::action::ContainerId;
use super::container::Container;
use super::time::Time;

impl Pod {
    /// Whether the end of a container's program is kept from the caller, if only for a moment.
    pub(super) fn is_to_be_withheld(&self, container: &Container, status: ExitStatus) -> bool {
        container.duty().is_withheld
            && status == ExitStatus::Code(0)
            && self.may_be_withheld(container)
    }

    /// Whether a container may read running to the caller when its process is gone: until it is
    /// removed no other process may have the number that the caller knows.
    pub fn may_outlive_its_process(&self, id: &ContainerId) -> bool {
        let may_be_withheld = self
            .known(id)
            .is_ok_and(|container| container.duty().is_withheld && self.may_be_withheld(container));
        may_be_withheld || self.may_restart_in_place(id)
    }

    /// True if the caller would draw a wrong conclusion from the success of an init container.
    fn may_be_withheld(&self, container: &Container) -> bool {
        let name = &container.name;
        self.restart_policy_of(name).restarts_failed() || self.caller_restarts(name, 0)
    }

    /// Whether the caller starts again what ends, as the pod's own policy has it.
    pub(super) fn is_restarted_by_its_caller(&self) -> bool {
        self.plan
            .as_ref()
            .is_some_and(|plan| plan.settings().restart_policy.restarts_failed())
    }

    /// Where no other container of the pod comes, there may be a person who waits for this one:
    /// `ctr run` of an init container, before anything else. So long its success is withheld.
    pub(super) fn withheld_until(&self, container: &Container) -> Option<Time> {
        let since = container.life.withheld_since()?;
        let is_alone = self.history.is_alone(&container.name);
        is_alone.then(|| since.after(self.startup_timeout()))
    }
}
