//! Ends of containers that are the end of the pod: the run is complete, an essential container has
//! failed, an init container has failed for good. These are decided by the shim, and stay decided.

use std::time::Duration;

use crate::plan::{RestartPolicy, Role};

use super::action::Cause;
use super::container::{Container, ExitStatus};
use super::history::Past;
use super::termination::Termination;
use super::time::Time;
use super::{Pod, Timer};

/// Where the apps are not listed, no more are expected when none was created for so long.
const LAST_APP_AFTER: Duration = Duration::from_secs(30);

impl Pod {
    /// The termination that is decided at `now` by what has ended.
    pub(super) fn completed(&mut self, now: Time) -> Option<Termination> {
        let due = self.complete_since().is_some_and(|since| since <= now);
        let cause = self.fatal.clone().or(due.then_some(Cause::Completed))?;
        let alive = self
            .containers
            .values()
            .find(|container| container.is_ordered() && container.is_alive())?;
        let deadline = now.after(self.annotated_grace(alive));
        Some(Termination::new(cause, now, deadline, now))
    }

    /// Remembers that the end of a container is the end of the pod.
    pub(super) fn judge_end(&mut self, container_ended: &str, role: Role, code: u32) {
        let Some(plan) = &self.plan else { return };
        let settings = plan.settings();
        if code == 0 || self.termination.is_some() {
            return;
        }
        let name = container_ended.to_owned();
        if settings.essential.contains(&name) {
            self.fatal
                .get_or_insert(Cause::EssentialFailed { name, code });
        } else if role == Role::Init && settings.restart_policy == RestartPolicy::Never {
            self.fatal.get_or_insert(Cause::InitFailed { name, code });
        }
    }

    /// Whether the end of a container with `status` is the end of the pod (`fatalToPod` in the
    /// KEP-753 draft).
    pub(super) fn ends_the_pod(&self, container: &Container, status: ExitStatus) -> bool {
        let is_essential = self
            .plan
            .as_ref()
            .is_some_and(|plan| plan.settings().essential.contains(&container.name));
        is_essential && status != ExitStatus::Code(0)
    }

    /// Whether the pod has done what it is there for.
    pub(super) fn is_complete(&self) -> bool {
        self.complete_since().is_some()
    }

    /// When the run is complete, if no container comes before.
    fn complete_since(&self) -> Option<Time> {
        let plan = self.plan.as_ref()?;
        let is_over: fn(&Past) -> bool = match plan.settings().restart_policy {
            RestartPolicy::Always => return None,
            RestartPolicy::OnFailure => |past| past.code == Some(0),
            RestartPolicy::Never => |past| past.code.is_some(),
        };
        if let Some(apps) = plan.apps() {
            let all_over = apps
                .iter()
                .all(|name| self.history.of(name).is_some_and(is_over));
            return all_over.then_some(Time::default());
        }
        let mut apps = self
            .history
            .all()?
            .filter(|(name, _)| plan.role(name) == Role::App)
            .map(|(_, past)| past)
            .peekable();
        let complete = apps.peek().is_some() && apps.all(is_over);
        complete.then(|| self.last_creation.after(LAST_APP_AFTER))
    }

    pub(super) fn completion_timers(&self, timers: &mut Vec<(Time, Timer)>) {
        let somebody_is_left = self
            .containers
            .values()
            .any(|container| container.is_ordered() && container.is_alive());
        if self.termination.is_none()
            && somebody_is_left
            && let Some(since) = self.complete_since()
        {
            timers.push((since, Timer::Completion));
        }
    }
}
