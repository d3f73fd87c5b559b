//! Ends of containers that are the end of the pod: the run is complete, an essential container has
//! failed, an init container has failed for good, a sidecar has ended for good before it was started.
//! These are decided by the shim, and stay decided.

use std::time::Duration;

use crate::process::ExitStatus;

use super::Pod;
use super::action::Cause;
use super::container::Container;
use super::duty::{Duty, Part};
use super::history::Past;
use super::termination::Termination;
use super::time::Time;

/// Where the apps are not listed, no more are expected when none was created for so long.
pub const LAST_APP_AFTER: Duration = Duration::from_secs(30);

/// How long what is listed, and was never created, is waited for.
const MISSING_COUNTS_AFTER: Duration = Duration::from_secs(30);

/// The run is complete when both have come, and no container before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    /// From when on no more apps are expected.
    pub known: Time,
    /// When the end of the last one counts.
    pub counts: Time,
}

impl Pod {
    /// The termination that is decided by what has ended, and from when on it is.
    pub(super) fn completed(&self) -> Option<(Time, Termination)> {
        let (at, cause) = self.foreseen_end()?;
        let is_ordered = |container: &&Container| container.is_ordered();
        let mut ordered = self.containers.values().filter(is_ordered);
        let somebody = ordered.clone().next()?;
        // After the failure of an essential container there is something to be done in any case.
        let is_alive = ordered.any(|container| container.life.is_alive());
        if !is_alive && !matches!(cause, Cause::EssentialFailed { .. }) {
            return None;
        }
        let since = at.max(self.now);
        let deadline = since.after(self.annotated_grace(somebody));
        Some((at, Termination::new(cause, since, deadline, since)))
    }

    /// When the pod ends, and why, if nothing else happens.
    fn foreseen_end(&self) -> Option<(Time, Cause)> {
        let fatal = self.history.fatal().map(|(at, cause)| (at, cause.clone()));
        // What is to run at the end may still be on its way.
        let lag = match self.is_a_defer_missing() || self.is_a_start_missing() {
            true => MISSING_COUNTS_AFTER,
            false => Duration::ZERO,
        };
        let complete = self
            .complete_since()
            .map(|at| (at.max(self.last_new_run()).after(lag), Cause::Completed));
        let ends = [fatal, complete].into_iter().flatten();
        ends.min_by_key(|(at, _)| *at)
    }

    /// Whether a container is there whose Start is still to come: who has created it is not to be refused.
    fn is_a_start_missing(&self) -> bool {
        self.containers.values().any(|container| {
            container.is_ordered() && (container.life.is_creating() || container.life.is_created())
        })
    }

    /// When the pod last started over, if anything waits since then; the beginning of time otherwise.
    fn last_new_run(&self) -> Time {
        match self.is_a_start_missing() {
            true => self.last_creation,
            false => Time::default(),
        }
    }

    /// The end of the pod that it is when a container ends with `code`, if it is.
    pub(super) fn fatal_end(&self, container: &Container, code: u32) -> Option<Cause> {
        let settings = self.plan.as_ref()?.settings();
        let for_good = !settings.restart_policy.restarts_failed();
        if self.termination.is_some() {
            return None;
        }
        let name = container.name.clone();
        if code != 0 && settings.essential.contains(&name) {
            return Some(Cause::EssentialFailed { name, code });
        }
        // Whatever it ended with: nobody starts it again.
        match container.duty().part.filter(|_| for_good) {
            Some(Part::Succeed) if code != 0 => Some(Cause::InitFailed { name, code }),
            Some(Part::Start) if !self.has_done_its_part(&name, container.number) => {
                Some(Cause::SidecarFailed { name, code })
            }
            _ => None,
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

    /// Whether the pod has done what it is there for, as its caller sees it: there what was asked to
    /// stop counts at once.
    pub(super) fn is_complete(&self) -> bool {
        self.completion().is_some_and(|it| it.known <= self.now) && !self.is_wanted_elsewhere()
    }

    /// Whether an app was created again for what comes after the end, which its caller runs in the next
    /// sandbox: this one is gone.
    fn is_wanted_elsewhere(&self) -> bool {
        let mut containers = self.containers.values();
        self.sandbox_is_gone
            && containers.any(|container| container.duty().is_work && container.is_of_next_run)
    }

    /// When the run is complete, if no container comes before.
    fn complete_since(&self) -> Option<Time> {
        self.completion().map(|it| it.known.max(it.counts))
    }

    /// When the run is complete, if all apps that are known have ended as the restart policy wants it.
    pub(super) fn completion(&self) -> Option<Completion> {
        let plan = self.plan.as_ref()?;
        let lives = |container: &Container| {
            container.duty().is_work && !container.is_of_next_run && !container.life.is_exited()
        };
        if self.containers.values().any(lives) {
            return None;
        }
        let policy = plan.settings().restart_policy;
        let is_over = |past: &Past| past.code.is_some_and(|code| !policy.restarts(code));
        if let Some(apps) = plan.apps() {
            // Kubelet leaves out of a pod's later sandboxes what has ended with 0 before.
            let left_out = self.is_later_sandbox && policy.leaves_out_succeeded();
            let is_missing = |name: &&String| self.history.of(name).is_none();
            let known = match left_out && apps.iter().any(|name| is_missing(&name)) {
                true => self.last_creation.after(MISSING_COUNTS_AFTER),
                false => Time::default(),
            };
            let created = apps.iter().filter(|name| !left_out || !is_missing(name));
            let pasts = created.map(|name| self.history.of(name));
            let counts = last_end(pasts, is_over)?;
            return Some(Completion { known, counts });
        }
        let pasts = self.known_apps()?.map(|(_, past)| Some(past));
        let known = self.last_creation.after(LAST_APP_AFTER);
        let counts = last_end(pasts, is_over)?;
        Some(Completion { known, counts })
    }

    /// The names that there were of which each is an app's, with their pasts; none if not all are
    /// remembered.
    pub(super) fn known_apps(&self) -> Option<impl Iterator<Item = (&str, &Past)>> {
        let (plan, names) = (self.plan.as_ref()?, self.history.all()?);
        Some(names.filter(|(name, _)| Duty::of(plan.role(name)).is_work))
    }
}

/// When the last of all has ended, if all have, and there is one.
fn last_end<'a>(
    pasts: impl Iterator<Item = Option<&'a Past>>,
    is_over: impl Fn(&Past) -> bool,
) -> Option<Time> {
    let ends = pasts.map(|past| past.filter(|past| is_over(past)).map(|past| past.counts));
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}
