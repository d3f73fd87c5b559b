//! Gates: the names that a container still waits for before its program is executed.
//!
//! The order comes from the stages of the plan (KEP-753, "Proposal": init containers and sidecars
//! in their order, then the apps). The order applies only to the start and the end of a pod: a
//! sidecar that was started and exits later closes no gate again. A gate is not stored: after each
//! event its condition is evaluated, mostly from the history of the names.

use std::fmt;

use super::Pod;
use super::container::Container;
use super::exec::PostStart;
use super::role_policy::{ReadyWhen, RolePolicy, StartCondition};
use super::rules::Subject;
use super::state::StateSummary;
use super::time::Time;

/// The progress of a container that others wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// No container of this name exists, and no exit of an earlier one is known.
    NeverCreated,
    /// The last container of this name has ended with this code, and was removed.
    Ended(u32),
    /// The program does not run. The value says if it waits to be executed or has exited.
    NotExecuted(StateSummary),
    /// The program of a sidecar runs, but its startup probe or postStart handler has not succeeded
    /// yet, or such a handler may still come.
    NotStarted,
    /// The program of an init container runs, or is being executed.
    NotDone,
    /// The sidecar is started, but the history has no record of that in this run. So other
    /// containers still wait for it.
    Started,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::NeverCreated => f.write_str("never created"),
            Missing::Ended(code) => write!(f, "ended with {code}"),
            Missing::NotExecuted(state) => state.fmt(f),
            Missing::NotStarted => f.write_str("not started yet"),
            Missing::NotDone => f.write_str("not done yet"),
            Missing::Started => f.write_str("started"),
        }
    }
}

impl Pod {
    /// Returns the names that `container` waits for before its program is executed, in the order of
    /// the plan. They are init containers that have not exited with 0, and sidecars that are not
    /// started. An init container or a sidecar waits for the earlier stages, an app for all stages.
    /// An app whose earlier container has run waits only for init containers that the caller has
    /// created again.
    ///
    /// Empty for other roles: a defer container waits for the termination, the others for nothing.
    pub(super) fn awaited_names(&self, container: &Container) -> Vec<String> {
        let Some(plan) = &self.plan else {
            return Vec::new();
        };
        let before = match container.role_policy().start_condition {
            StartCondition::InItsStage => plan.position(&container.name).unwrap_or(usize::MAX),
            StartCondition::AfterAllStages => usize::MAX,
            StartCondition::AtOnce | StartCondition::AtTheEnd(_) => return Vec::new(),
        };
        let stages = plan.stages().iter().take(before);
        let names = stages.flat_map(|stage| stage.0.iter());
        names
            .filter(|name| self.is_waited_for(name, container))
            .cloned()
            .collect()
    }

    fn is_waited_for(&self, name: &str, container: &Container) -> bool {
        // If an earlier container of the app's name has run, the app waits only for init containers
        // that the caller has created again after their success.
        let has_had_its_turn = container.role_policy().start_condition
            == StartCondition::AfterAllStages
            && self
                .history
                .has_run_before(&container.name, container.number);
        let is_done =
            self.has_done_its_part(name, container.number) && !self.awaits_post_start(name);
        !is_done && (!has_had_its_turn || self.history.is_reopened(name))
    }

    /// True while the sidecar of this name, after its first start, may still get a postStart
    /// handler. Held containers wait for this handler. Without a sandbox container there is no
    /// kubelet, and so no handler.
    fn awaits_post_start(&self, name: &str) -> bool {
        let first = self.history.of(name).and_then(|past| past.started);
        let sidecar = self.current(name).filter(|it| Some(it.number) == first);
        let post_start = sidecar.and_then(|it| it.state.post_start());
        self.has_sandbox() && post_start.is_some_and(PostStart::is_possible)
    }

    /// True if `name` has done what later stages wait for: the init container has exited with 0, or
    /// the sidecar was started once, even if it has exited since. `number` is the creation number
    /// of the waiting container. If an init container is created again after its success,
    /// containers with a lower number do not wait for it again. Returns true for a role that no
    /// stage waits for.
    pub(super) fn has_done_its_part(&self, name: &str, number: u64) -> bool {
        let past = self.history.of(name);
        match self
            .plan
            .as_ref()
            .and_then(|plan| RolePolicy::of(plan.role(name)).ready_when)
        {
            Some(ReadyWhen::Completed) => past.is_some_and(|past| past.is_done_for(number)),
            Some(ReadyWhen::Started) => past.is_some_and(|past| past.started.is_some()),
            None => true,
        }
    }

    /// The earliest time from which one of `missing` counts as failed for good: its container has
    /// exited, and the restart policy does not start it again. The time may be in the future.
    /// `None` if all of them may still come.
    pub(super) fn waits_in_vain_from(&self, missing: &[String]) -> Option<Time> {
        let names = missing.iter();
        names.filter_map(|name| self.never_comes_from(name)).min()
    }

    fn never_comes_from(&self, name: &str) -> Option<Time> {
        let plan = self.plan.as_ref()?;
        let is_there = self
            .current(name)
            .is_some_and(|container| container.state.is_alive() || container.state.is_creating());
        let past = self.history.of(name).filter(|_| !is_there)?;
        let policy = self.restart_policy_of(name);
        let is_for_good = match RolePolicy::of(plan.role(name)).ready_when? {
            ReadyWhen::Started => !policy.restarts(past.code?),
            // Other containers still wait for this init container, although it has exited. So it
            // counts as failed, even with code 0.
            ReadyWhen::Completed => past.code.is_some() && !policy.restarts_failed(),
        };
        is_for_good.then_some(past.counts)
    }

    /// The index of the first stage that is not done. `None` if all stages are done, or without a
    /// plan.
    pub(super) fn closed_stage(&self) -> Option<usize> {
        let mut stages = self.plan.as_ref()?.stages().iter();
        stages.position(|stage| {
            stage
                .0
                .iter()
                .any(|name| !self.has_done_its_part(name, u64::MAX))
        })
    }

    /// True if each container that the waiting container waits for (`missing`) is alive or being
    /// created. Otherwise the caller must first create one of them. Kubelet does so only after the
    /// answer to Start.
    pub(super) fn can_come_by_itself(&self, missing: &[String]) -> bool {
        missing.iter().all(|name| {
            self.current(name)
                .is_some_and(|other| other.state.is_alive() || other.state.is_creating())
        })
    }

    /// Describes the wait of a container, for the caller and logs: the `names` that the container
    /// waits for, with their roles and states. If `names` is empty, the container waits for its own
    /// start or for the end of the pod. Defer containers always wait for the end of the pod. All
    /// other containers do so only if the pod terminates or is about to terminate. Returns an empty
    /// text for a pod without a plan.
    pub(super) fn describe(&self, container: &Container, names: &[String]) -> String {
        let Some(plan) = &self.plan else {
            return String::new();
        };
        if names.is_empty() {
            return match self.termination {
                None if self.awaits_defers() => {
                    "the end of its pod, which waits for defer containers that are not created yet"
                        .to_owned()
                }
                None if container.defer_turn().is_none() => "its start".to_owned(),
                _ => "the end of its pod".to_owned(),
            };
        }
        let words = names.iter().map(|name| {
            let missing = self.missing_of(name);
            format!("{} {name} ({missing})", plan.role(name))
        });
        words.collect::<Vec<_>>().join(", ")
    }

    /// The progress of a container that others wait for, looked up by name. Used in messages and in
    /// the status. If no container of this name exists, the exit code of the last one, or
    /// `NeverCreated`.
    pub(super) fn missing_of(&self, name: &str) -> Missing {
        let Some(container) = self.current(name) else {
            let code = self.history.of(name).and_then(|past| past.code);
            return code.map_or(Missing::NeverCreated, Missing::Ended);
        };
        let is_waited_to_end = container.role_policy().ready_when == Some(ReadyWhen::Completed);
        match container.state.is_executed() {
            true if is_waited_to_end => Missing::NotDone,
            true if container.state.is_started() && !self.awaits_post_start(name) => {
                Missing::Started
            }
            true => Missing::NotStarted,
            false => Missing::NotExecuted(container.state.summary()),
        }
    }
}

impl Subject<'_> {
    /// True while the shim puts off a termination that it has decided, because listed defer
    /// containers are not created or not started yet ([`Pod::awaits_defers`]).
    pub(super) fn awaits_defers(&self) -> bool {
        let from = self.pod_facts.defers_awaited_from;
        from.is_some_and(|from| from <= self.pod.now)
    }

    /// True if the shim may execute the program of a started container now. Always true for
    /// containers that the caller alone starts and stops: native init containers and containers
    /// outside the pod's plan. False for a defer container, which runs by the rule `defer_is_due`.
    pub(super) fn may_run(&self) -> bool {
        let (pod, policy) = (self.pod, self.container.role_policy());
        if !self.container.is_ordered() {
            return true;
        }
        match policy.start_condition {
            StartCondition::AtOnce => true,
            StartCondition::AtTheEnd(_) => false,
            // The pod terminates as soon as the awaited defer containers exist. In a termination
            // only sidecars are of use, so no other container is started.
            _ if self.awaits_defers() && !policy.is_helper => false,
            _ => pod.termination.is_none() && pod.awaited_names(self.container).is_empty(),
        }
    }
}
