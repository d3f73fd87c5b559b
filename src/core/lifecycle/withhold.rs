//! Init containers whose success is withheld from the caller.
//!
//! To the caller, an init container of usher is a container like any other. Under the restart
//! policy `Always`, the caller would restart an init container that has exited. Under `OnFailure`,
//! the caller would leave a succeeded init container out of the pod's next sandbox. So the shim
//! reports the container as RUNNING until the caller asks it to stop or the pod terminates.

use crate::process::ExitStatus;

use super::Pod;
use super::action::ContainerId;
use super::container::Container;
use super::time::Time;

impl Pod {
    /// True if the caller must not see this exit of a container's program as a success: an init
    /// container has exited with 0, and the caller would misinterpret that. The shim then hides the
    /// exit or, if the container is being stopped, reports another code (`masked_code`).
    pub(super) fn is_to_be_withheld(&self, container: &Container, status: ExitStatus) -> bool {
        container.role_policy().is_withheld
            && status == ExitStatus::Code(0)
            && self.may_be_withheld(container)
    }

    /// True if the caller may still see the container as RUNNING when its process is gone. The
    /// caller knows the process's pid, so this pid must not be reused until the container is
    /// removed.
    pub fn may_outlive_its_process(&self, id: &ContainerId) -> bool {
        let may_be_withheld = self.known(id).is_ok_and(|container| {
            container.role_policy().is_withheld && self.may_be_withheld(container)
        });
        may_be_withheld || self.may_restart_in_place(id)
    }

    /// True if the caller would restart this init container after its success, or would leave it
    /// out of the pod's next sandbox.
    fn may_be_withheld(&self, container: &Container) -> bool {
        let name = &container.name;
        self.restart_policy_of(name).restarts_failed() || self.caller_restarts(name, 0)
    }

    /// True if the caller restarts the pod's failed containers, by the pod's restart policy. False
    /// without a plan.
    pub(super) fn caller_restarts_failed(&self) -> bool {
        self.plan
            .as_ref()
            .is_some_and(|plan| plan.settings().restart_policy.restarts_failed())
    }

    /// The time at which the shim stops hiding the exit of a container that is alone in its pod.
    /// For example, a person runs an init container with `ctr run`, and waits for its exit.
    /// `None` if the exit is not hidden, or if a container of another name was created since the
    /// pod last began anew.
    pub(super) fn withheld_until(&self, container: &Container) -> Option<Time> {
        let since = container.state.withheld_since()?;
        let is_alone = self.history.is_alone(&container.name);
        is_alone.then(|| since.after(self.startup_timeout()))
    }
}
