//! Ends of containers that are the end of the pod: the run is complete, an essential container has
//! failed, an init container has failed for good, a sidecar has ended for good before it was started.
//! These are decided by the shim, and stay decided.

use std::time::Duration;

use crate::plan::RestartPolicy;
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

/// Longest wait for a listed defer container after the last Create of a new name.
const DEFERS_COME_WITHIN: Duration = Duration::from_secs(30);

/// Longest wait for listed defer containers after the failure or the completion.
const DEFERS_ARE_AWAITED_FOR: Duration = Duration::from_secs(60);

/// Longest wait for listed apps in a later sandbox, from which kubelet leaves out what has succeeded.
const LISTED_APPS_COME_WITHIN: Duration = Duration::from_secs(30);

/// An end that the shim has decided.
#[derive(Clone, Debug)]
struct DecidedEnd {
    cause: Cause,
    /// When the failure or the completion was known.
    known: Time,
    /// When the termination begins: later than `known` while listed defer containers are awaited.
    begins: Time,
}

/// The run is complete when both have come, and no container before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    /// From when on no more apps are expected.
    pub known: Time,
    /// When the end of the last one counts.
    pub counts: Time,
}

impl Pod {
    /// The termination that follows from what has ended, and when it begins.
    pub(super) fn completed(&self) -> Option<(Time, Termination)> {
        let end = self.decided_end()?;
        let since = end.begins.max(self.now);
        let somebody = self.containers.values().find(|it| it.is_ordered())?;
        let deadline = since.after(self.annotated_grace(somebody));
        let termination = Termination::new(end.cause, since, deadline, since);
        Some((end.begins, termination))
    }

    /// True while a decided end waits for listed defer containers that the caller has not created yet.
    /// Kubelet creates containers one after another: what fails early fails before they exist.
    pub(super) fn awaits_defers(&self) -> bool {
        self.termination.is_none()
            && self.has_orders()
            && self
                .decided_end()
                .is_some_and(|end| end.known <= self.now && self.now < end.begins)
    }

    /// The end that follows from what has ended, if there is anything to do in it.
    fn decided_end(&self) -> Option<DecidedEnd> {
        let fatal = self.history.fatal().map(|(at, cause)| (at, cause.clone()));
        let complete = self.complete_since().map(|at| (at, Cause::Completed));
        let ends = [fatal, complete].into_iter().flatten();
        let (known, cause) = ends.min_by_key(|(at, _)| *at)?;
        let is_alive = self.containers.values().any(|container| {
            let life = &container.life;
            // The caller may start a created container much later: that alone keeps no end up.
            container.is_ordered() && life.is_alive() && !life.is_created()
        });
        // The failure of an essential container also ends the sandbox.
        if !is_alive && !matches!(cause, Cause::EssentialFailed { .. }) {
            return None;
        }
        let awaited = self
            .last_new_name
            .after(DEFERS_COME_WITHIN)
            .min(known.after(DEFERS_ARE_AWAITED_FOR));
        let begins = match self.is_a_defer_missing() {
            true => known.max(awaited),
            false => known,
        };
        Some(DecidedEnd {
            cause,
            known,
            begins,
        })
    }

    /// Why the pod ends when this container exits with `code`, or `None`.
    pub(super) fn fatal_end(&self, container: &Container, code: u32) -> Option<Cause> {
        let settings = self.plan.as_ref()?.settings();
        if self.termination.is_some() {
            return None;
        }
        let name = container.name.clone();
        let for_good = !self.restart_policy_of(&name).restarts_failed();
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

    /// True if all apps have ended as their restart policies want it, as far as the caller knows: for the
    /// caller, a container that it has stopped counts at once.
    pub(super) fn is_complete(&self) -> bool {
        let is_decided = self
            .termination
            .as_ref()
            .is_some_and(|termination| *termination.cause() == Cause::Completed);
        let is_known = || self.completion().is_some_and(|it| it.known <= self.now);
        (is_decided || is_known()) && !self.is_wanted_elsewhere()
    }

    /// The restart policy by which the caller creates containers of this name again.
    pub(super) fn restart_policy_of(&self, name: &str) -> RestartPolicy {
        let plan = self.plan.as_ref();
        plan.map_or(RestartPolicy::Never, |plan| plan.restart_policy(name))
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
        let is_over = |name: &str, past: &Past| {
            let policy = self.restart_policy_of(name);
            past.code.is_some_and(|code| !policy.restarts(code))
        };
        if let Some(apps) = plan.apps() {
            // Kubelet leaves out of a pod's later sandboxes what has ended with 0 before.
            let left_out = self.is_later_sandbox && policy.leaves_out_succeeded();
            let is_missing = |name: &&String| self.history.of(name).is_none();
            let known = match left_out && apps.iter().any(|name| is_missing(&name)) {
                true => self.last_creation.after(LISTED_APPS_COME_WITHIN),
                false => Time::default(),
            };
            let created = apps.iter().filter(|name| !left_out || !is_missing(name));
            let pasts = created.map(|name| (name.as_str(), self.history.of(name)));
            let counts = last_end(pasts, is_over)?;
            return Some(Completion { known, counts });
        }
        let pasts = self.known_apps()?.map(|(name, past)| (name, Some(past)));
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

/// When the last of these ended, or `None` unless all have ended for good.
fn last_end<'a>(
    pasts: impl Iterator<Item = (&'a str, Option<&'a Past>)>,
    is_over: impl Fn(&str, &Past) -> bool,
) -> Option<Time> {
    let ends = pasts.map(|(name, past)| {
        past.filter(|past| is_over(name, past))
            .map(|past| past.counts)
    });
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}
