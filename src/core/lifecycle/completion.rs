//! Container exits that end the pod. Either the run is complete, or one of these containers has
//! exited:
//!
//! - an essential container, with another code than 0,
//! - an init container that the caller does not create again, with another code than 0,
//! - a sidecar that had not started up and that the caller does not create again, with any code. A
//!   sidecar has started up when its startup probe and its postStart handler have succeeded
//!   (KEP-753).
//!
//! The shim itself decides these terminations, and a later Create does not end them. A termination
//! inferred from stop requests (`inference.rs`) is different: a Create shows that the inference was
//! a mistake.

use std::time::Duration;

use crate::plan::RestartPolicy;
use crate::process::ExitStatus;

use super::Pod;
use super::action::Cause;
use super::container::Container;
use super::history::NameRecord;
use super::role_policy::{ReadyWhen, RolePolicy};
use super::termination::Termination;
use super::time::Time;

/// Time from the last Create until the shim expects no more apps, in a pod whose annotations do not
/// list the apps.
pub const LAST_APP_AFTER: Duration = Duration::from_secs(30);

/// Longest wait for a defer container that the annotations list, counted from the last Create of a
/// container whose name is new in this run.
const DEFERS_COME_WITHIN: Duration = Duration::from_secs(30);

/// Longest wait for defer containers that the annotations list, counted from the failure or the
/// completion that ends the pod.
const DEFERS_ARE_AWAITED_FOR: Duration = Duration::from_secs(60);

/// Longest wait for listed apps in a later sandbox of the pod, in which kubelet does not create
/// apps again that have succeeded.
const LISTED_APPS_COME_WITHIN: Duration = Duration::from_secs(30);

/// A termination that the shim has decided.
#[derive(Clone, Debug)]
struct DecidedEnd {
    cause: Cause,
    /// Time of the failure or the completion that ends the pod.
    known: Time,
    /// Start of the termination. This is `known`, or a later time if the shim waits for listed
    /// defer containers that are missing.
    begins: Time,
}

/// The completion of the run. The run is complete at the later of these two times, if no container
/// is created before.
#[derive(Clone, Copy, Debug)]
pub(super) struct Completion {
    /// Time from which on no more apps are expected.
    pub known: Time,
    /// Time from which on the exit of the last app counts as final.
    pub counts: Time,
}

impl Pod {
    /// The termination caused by the exits so far, and the time at which it begins. Its cause is a
    /// failure that ends the pod, or the completion of the run. `None` if the exits do not end the
    /// pod. If every container that got its Start has exited, only the failure of an essential
    /// container causes a termination.
    pub(super) fn completed(&self) -> Option<(Time, Termination)> {
        let end = self.decided_end()?;
        let since = end.begins.max(self.now);
        let somebody = self.containers.values().find(|it| it.is_ordered())?;
        let deadline = since.after(self.annotated_grace(somebody));
        let termination = Termination::new(end.cause, since, deadline, since);
        Some((end.begins, termination))
    }

    /// True while the shim has decided to terminate the pod, but waits because the caller has not
    /// created or not started all listed defer containers. Kubelet creates containers one after
    /// another, so a container may fail before the defer containers exist. The wait is limited.
    pub(super) fn awaits_defers(&self) -> bool {
        self.defers_awaited_from()
            .is_some_and(|from| from <= self.now)
    }

    /// The time from which the pod [awaits defer containers](Pod::awaits_defers). This time may be
    /// in the future. `None` in these cases: the pod already terminates, the exits so far do not
    /// end the pod, no defer container is missing, or the wait is over.
    pub(super) fn defers_awaited_from(&self) -> Option<Time> {
        if self.termination.is_some() || !self.has_orders() {
            return None;
        }
        let end = self.decided_end()?;
        (self.now.max(end.known) < end.begins).then_some(end.known)
    }

    /// The termination that the shim decides because of the exits so far. `None` if these exits do
    /// not end the pod. If no started container is left to stop, only the failure of an essential
    /// container leads to a termination.
    fn decided_end(&self) -> Option<DecidedEnd> {
        let fatal = self.history.fatal().map(|(at, cause)| (at, cause.clone()));
        let complete = self.complete_since().map(|at| (at, Cause::Completed));
        let ends = [fatal, complete].into_iter().flatten();
        let (known, cause) = ends.min_by_key(|(at, _)| *at)?;
        let is_alive = self.containers.values().any(|container| {
            let state = &container.state;
            // A container that was created but not started needs no termination: its Start may come
            // much later.
            container.is_ordered() && state.is_alive() && !state.is_created()
        });
        // After the failure of an essential container the termination is needed in any case,
        // because it also ends the sandbox.
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

    /// The reason why the pod ends if this container exits with `code`. `None` if the pod goes on
    /// after this exit, or if a termination is under way already.
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
        // Under the restart policy `Never`, a sidecar that exits before it was ever started ends
        // the pod, whatever its exit code: the caller does not start it again.
        match container.role_policy().ready_when.filter(|_| for_good) {
            Some(ReadyWhen::Completed) if code != 0 => Some(Cause::InitFailed { name, code }),
            Some(ReadyWhen::Started) if !self.has_done_its_part(&name, container.number) => {
                Some(Cause::SidecarFailed { name, code })
            }
            _ => None,
        }
    }

    /// True if the container is essential and `status` is a failure (`fatalToPod` in the KEP-753
    /// draft). The pod then ends, and the shim does not restart the container.
    pub(super) fn is_essential_failure(&self, container: &Container, status: ExitStatus) -> bool {
        let is_essential = self
            .plan
            .as_ref()
            .is_some_and(|plan| plan.settings().essential.contains(&container.name));
        is_essential && status != ExitStatus::Code(0)
    }

    /// True if the run is complete: no more apps are expected, all apps have exited, and the caller
    /// will restart none of them under their restart policies. An app that the caller has stopped
    /// counts as exited at once, although the caller may create it again. False if an app is to run
    /// in the pod's next sandbox.
    pub(super) fn is_complete(&self) -> bool {
        let is_decided = self
            .termination
            .as_ref()
            .is_some_and(|termination| *termination.cause() == Cause::Completed);
        let is_known = || self.completion().is_some_and(|it| it.known <= self.now);
        (is_decided || is_known()) && !self.is_wanted_elsewhere()
    }

    /// The restart policy that tells if the caller creates an exited container of this name again.
    pub(super) fn restart_policy_of(&self, name: &str) -> RestartPolicy {
        let plan = self.plan.as_ref();
        plan.map_or(RestartPolicy::Never, |plan| plan.restart_policy(name))
    }

    /// True if the sandbox has died, and one of its apps was created for the next run. The caller
    /// will run this app in the pod's next sandbox.
    fn is_wanted_elsewhere(&self) -> bool {
        let mut containers = self.containers.values();
        self.sandbox_is_gone
            && containers
                .any(|container| container.role_policy().is_work && container.is_of_next_run)
    }

    /// The time at which the run became complete or will become complete, provided that no
    /// container is created before then.
    fn complete_since(&self) -> Option<Time> {
        self.completion().map(|it| it.known.max(it.counts))
    }

    /// The completion of the run. Its time may be in the future, because more apps may be created.
    /// `None` if no app is known, or if a known or expected app has not ended for good under its
    /// restart policy.
    pub(super) fn completion(&self) -> Option<Completion> {
        let plan = self.plan.as_ref()?;
        let lives = |container: &Container| {
            container.role_policy().is_work
                && !container.is_of_next_run
                && !container.state.is_exited()
        };
        if self.containers.values().any(lives) {
            return None;
        }
        let policy = plan.settings().restart_policy;
        let is_over = |name: &str, record: &NameRecord| {
            let policy = self.restart_policy_of(name);
            record.code.is_some_and(|code| !policy.restarts(code))
        };
        if let Some(apps) = plan.apps() {
            // In a later sandbox of a pod, kubelet does not create containers again that have
            // exited with 0.
            let left_out = self.is_later_sandbox && policy.leaves_out_succeeded();
            let is_missing = |name: &&String| self.history.of(name).is_none();
            let known = match left_out && apps.iter().any(|name| is_missing(&name)) {
                true => self.last_creation.after(LISTED_APPS_COME_WITHIN),
                false => Time::default(),
            };
            let created = apps.iter().filter(|name| !left_out || !is_missing(name));
            let records = created.map(|name| (name.as_str(), self.history.of(name)));
            let counts = last_end(records, is_over)?;
            return Some(Completion { known, counts });
        }
        let records = self
            .known_apps()?
            .map(|(name, record)| (name, Some(record)));
        let known = self.last_creation.after(LAST_APP_AFTER);
        let counts = last_end(records, is_over)?;
        Some(Completion { known, counts })
    }

    /// The names of all apps so far with their records, or `None` if not all names are remembered.
    pub(super) fn known_apps(&self) -> Option<impl Iterator<Item = (&str, &NameRecord)>> {
        let (plan, names) = (self.plan.as_ref()?, self.history.all()?);
        Some(names.filter(|(name, _)| RolePolicy::of(plan.role(name)).is_work))
    }
}

/// The time from which the exits of all these containers count as final. `None` if there are no
/// containers, or if some have not ended for good.
fn last_end<'a>(
    records: impl Iterator<Item = (&'a str, Option<&'a NameRecord>)>,
    is_over: impl Fn(&str, &NameRecord) -> bool,
) -> Option<Time> {
    let ends = records.map(|(name, record)| {
        record
            .filter(|record| is_over(name, record))
            .map(|record| record.counts)
    });
    ends.collect::<Option<Vec<_>>>()?.into_iter().max()
}
