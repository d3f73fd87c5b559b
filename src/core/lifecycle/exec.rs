//! Execs of the caller in a container: handlers, probes, shells. Only handlers matter for the
//! container: a preStop handler begins the container's stop, and a postStart handler belongs to its
//! start.
//!
//! KEP-753, "Started condition": a sidecar is started when its postStart handler has succeeded. The
//! shim does not see the purpose of an Exec.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::PreStop;
use crate::process::ExitStatus;

use super::Pod;
use super::action::{ActionError, ContainerId, HeldCall, Refusal, SignalReason};
use super::container::Container;
use super::effects::ContainerContext;
use super::report::Report;
use super::request::StopRequest;
use super::rules::{Decision, Due, Subject};
use super::task::Call;
use super::time::Time;

/// An Exec without a deadline is taken for the postStart handler if it comes within this time after
/// the answer to Start. The process of the Exec then has to be started within the same time.
const POST_START_WITHIN: Duration = Duration::from_secs(1);

/// Longest time from a failed postStart handler until kubelet stops the container, apart from the
/// time of a preStop handler.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// An Exec of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exec<'a> {
    pub id: &'a str,
    pub argv: &'a [String],
    /// True if the Exec has a deadline. kubelet sets one for its probes, and none for its handlers
    /// and interactive sessions.
    pub has_deadline: bool,
    /// The Exec has a terminal or stdin; kubelet's handlers have neither.
    pub is_interactive: bool,
}

/// The state of the postStart handler of a container whose Start was answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) enum PostStart {
    /// The next Exec may be the postStart handler. Start was answered at `answered`, and no
    /// container was created since.
    Possible { answered: Time },
    /// The shim takes this Exec for the handler. If `may_be_pre_stop` is true, the Exec may also be
    /// the preStop handler, because both handlers have the same command.
    Running {
        exec_id: String,
        /// Time of the Exec.
        since: Time,
        may_be_pre_stop: bool,
    },
    /// The Exec that was taken for the handler failed at `at`. If it was the handler, kubelet stops
    /// the container.
    Failed { at: Time },
    /// The handler has succeeded. The shim runs it again after a restart in place.
    Over,
    /// After a restart in place, the shim runs the handler again. `failed` is the time at which
    /// kubelet's own run of the handler failed. kubelet stops the container after this failure,
    /// even if the run by the shim succeeds.
    Repeating { failed: Option<Time> },
    /// The shim assumes that the container has no handler, or has stopped waiting for the handler.
    Absent,
}

impl PostStart {
    /// True if the handler keeps the container from counting as started.
    pub fn is_in_the_way(&self) -> bool {
        matches!(
            self,
            PostStart::Running { .. } | PostStart::Failed { .. } | PostStart::Repeating { .. }
        )
    }

    /// True while the caller may be about to run the handler.
    pub fn is_possible(&self) -> bool {
        matches!(self, PostStart::Possible { .. })
    }

    /// Returns the state after the container exited at `now`: a handler that was running has
    /// failed.
    pub fn interrupted(&self, now: Time) -> PostStart {
        match self {
            PostStart::Running { .. } => PostStart::Failed { at: now },
            _ => self.clone(),
        }
    }

    /// Returns the state of the postStart handler after a restart in place. If the handler was run
    /// before, the shim runs it again.
    pub fn once_more(&self) -> PostStart {
        match self {
            PostStart::Failed { at } => PostStart::Repeating { failed: Some(*at) },
            PostStart::Over => PostStart::Repeating { failed: None },
            _ => self.clone(),
        }
    }

    /// True while the shim regards the Exec with this id as the running handler.
    fn is_run_by(&self, exec: &str) -> bool {
        matches!(self, PostStart::Running { exec_id, .. } if exec_id == exec)
    }

    /// True if the Exec that the shim regards as the postStart handler may be the preStop handler
    /// instead.
    pub fn may_be_pre_stop(&self) -> bool {
        matches!(self, PostStart::Running { may_be_pre_stop, .. } if *may_be_pre_stop)
    }

    /// True if an Exec at `now` may be the handler.
    fn may_be_run(&self, now: Time) -> bool {
        matches!(self, PostStart::Possible { answered } if now.since(*answered) <= POST_START_WITHIN)
    }
}

impl Pod {
    /// Registers an Exec of the caller, whose process is started later. An Exec of the container's
    /// preStop handler counts as a stop request.
    ///
    /// # Errors
    ///
    /// [`Refusal::NotFound`], [`Refusal::IllegalCall`], [`Refusal::NoProcess`] during a restart in
    /// place, [`Refusal::ExecExists`], and [`Refusal::Held`] for a probe or the preStop handler
    /// while the container's program has not been executed. A refused probe does no harm, because
    /// kubelet ignores a probe that could not be made.
    pub fn handle_exec(
        &mut self,
        now: Time,
        id: &ContainerId,
        exec: &Exec<'_>,
    ) -> Result<(), Refusal> {
        self.now = now;
        self.on_call(
            id,
            |pod, container| {
                container.check_exec(id, exec)?;
                pod.pre_stop_of(container, exec)
            },
            |context, pre_stop| context.executes(exec, pre_stop),
        )?;
        self.settle(now);
        Ok(())
    }

    /// The stop request that this Exec stands for, or `None` if the Exec is not the container's
    /// preStop handler, or usher does not order the container. The handler is recognized by its
    /// command. Refuses a preStop handler or a probe while the container's program has not been
    /// executed.
    fn pre_stop_of(
        &self,
        container: &Container,
        exec: &Exec<'_>,
    ) -> Result<Option<StopRequest>, Refusal> {
        let is_pre_stop = !exec.has_deadline
            && matches!(
                &container.facts.pre_stop,
                Some(PreStop::Exec { command }) if command.as_slice() == exec.argv
            );
        if !container.is_ordered() || !is_pre_stop && !exec.has_deadline {
            return Ok(None);
        }
        if container.state.is_unexecuted() {
            let waits_for = self.describe(container, &self.awaited_names(container));
            return Err(Refusal::Held {
                name: container.name.clone(),
                call: HeldCall::Exec {
                    exec_id: exec.id.to_owned(),
                },
                waits_for,
            });
        }
        let grace = self.annotated_grace(container);
        Ok(is_pre_stop.then(|| StopRequest::pre_stop(self.now, grace)))
    }

    /// True while the shim regards this Exec of a sidecar as the running postStart handler. The
    /// driver calls this method right after [`handle_exec`](Pod::handle_exec). If the result is
    /// true, the driver keeps the Exec for [`Action::PostStart`](super::Action::PostStart), which
    /// runs it again after a restart in place.
    pub fn is_post_start(&self, id: &ContainerId, exec_id: &str) -> bool {
        self.known(id).is_ok_and(|container| {
            let post_start = container.state.post_start();
            container.role_policy().is_helper
                && post_start.is_some_and(|known| known.is_run_by(exec_id))
        })
    }

    /// Records that the process of an Exec has exited with `status`; `None` if it could not be
    /// started.
    pub fn handle_exec_over(
        &mut self,
        now: Time,
        id: &ContainerId,
        exec_id: &str,
        status: Option<ExitStatus>,
    ) {
        self.now = now;
        self.with_container(id, |context| context.record_exec_end(exec_id, status));
        self.settle(now);
    }

    /// Drops assumed postStart handlers, because the caller creates another container. kubelet does
    /// so only when the postStart handler is over and, if it has failed, the container is stopped.
    /// So an Exec that still runs was no handler. An Exec that failed was no handler either, unless
    /// its container was stopped.
    pub(super) fn disprove_post_starts(&mut self) {
        let ids: Vec<_> = self.containers.keys().cloned().collect();
        for id in ids {
            self.with_container(&id, |context| context.disprove_post_start());
        }
    }

    /// Records the outcome of [`Action::PostStart`](super::Action::PostStart) in execution number
    /// `execution` of the container's program. A container whose handler has failed is stopped, as
    /// kubelet does it. The outcome of an earlier execution is ignored.
    pub fn handle_post_started(
        &mut self,
        now: Time,
        id: &ContainerId,
        execution: u64,
        outcome: Result<(), ActionError>,
    ) {
        self.now = now;
        self.on_event(
            id,
            |pod, container| pod.failed(container, SignalReason::PostStartFailed),
            |context, failed| context.record_post_start(execution, outcome, failed),
        );
        self.settle(now);
    }
}

impl Container {
    /// Checks that the container's state allows an exec, that its program runs or will run without
    /// a restart in place, and that the exec's id is free. [`Pod::pre_stop_of`] checks if a probe
    /// or the preStop handler comes too early.
    fn check_exec(&self, id: &ContainerId, exec: &Exec<'_>) -> Result<(), Refusal> {
        let exec_id = exec.id.to_owned();
        self.allows(id, Call::Exec(exec_id.clone()))?;
        let id = id.clone();
        // During a restart in place the next init process may exist already, but its program does
        // not run yet.
        if self.is_without_program() {
            return Err(Refusal::NoProcess { id, exec_id });
        }
        match self.execs.contains(exec.id) {
            true => Err(Refusal::ExecExists { id, exec_id }),
            false => Ok(()),
        }
    }

    /// True if the caller sees the container as RUNNING although its program does not run: the
    /// program is to be restarted in place, is being restarted, or has exited with a success that
    /// the shim hides.
    fn is_without_program(&self) -> bool {
        self.state.is_alive() && !self.state.has_process()
    }
}

impl ContainerContext<'_> {
    fn executes(&mut self, exec: &Exec<'_>, pre_stop: Option<StopRequest>) {
        self.container.execs.add(exec.id);
        // The end of a postStart handler matters only for sidecars.
        let may_be_post_start =
            !exec.has_deadline && !exec.is_interactive && self.container.role_policy().is_helper;
        let post_start = self.container.state.post_start_mut();
        let post_start = post_start.filter(|known| may_be_post_start && known.may_be_run(self.now));
        // The postStart and the preStop handler may have the same command. The shim then takes this
        // Exec for both. A second stop request proves that it is the preStop handler
        // ([`Container::is_request_doubtful`]).
        if let Some(post_start) = post_start {
            *post_start = PostStart::Running {
                exec_id: exec.id.to_owned(),
                since: self.now,
                may_be_pre_stop: pre_stop.is_some(),
            };
            let (name, number) = (&self.container.name, self.container.number);
            self.history.withdraw_start(name, number);
        }
        if let Some(request) = pre_stop {
            self.container.add_pre_stop_request(request);
        }
    }

    pub(super) fn record_exec_end(&mut self, exec_id: &str, status: Option<ExitStatus>) {
        self.container.execs.exit(exec_id, status);
        let (now, is_request_doubtful) = (self.now, self.container.is_request_doubtful());
        let post_start = self.container.state.post_start_mut();
        let Some(post_start) = post_start.filter(|known| known.is_run_by(exec_id)) else {
            return;
        };
        let has_failed = status != Some(ExitStatus::Code(0));
        *post_start = match has_failed {
            true => PostStart::Failed { at: now },
            false => PostStart::Over,
        };
        if is_request_doubtful && self.termination.is_none() {
            self.container.request = None;
        }
        if has_failed {
            let name = self.container.name.clone();
            let reason = match status {
                Some(status) => format!("it ended with {}", status.code()),
                None => "it could not be executed".to_owned(),
            };
            self.out.report(Report::PostStartFailed { name, reason });
        }
        self.note_if_started();
    }

    /// Drops the assumption that the container has a postStart handler. A handler that has
    /// succeeded, or that the shim runs again, stays recorded. The failure of a handler stays
    /// recorded only if the container is being stopped.
    fn disprove_post_start(&mut self) {
        let is_stopped = self.container.request.is_some() || self.container.is_being_stopped();
        let Some(post_start) = self.container.state.post_start_mut() else {
            return;
        };
        match post_start {
            PostStart::Possible { .. } => *post_start = PostStart::Absent,
            PostStart::Failed { .. } if is_stopped => {}
            PostStart::Running { .. } | PostStart::Failed { .. } => {
                *post_start = PostStart::Absent;
                self.note_if_started();
            }
            PostStart::Repeating { failed } if !is_stopped => *failed = None,
            PostStart::Over | PostStart::Repeating { .. } | PostStart::Absent => {}
        }
    }

    /// Ends the wait for a postStart handler, or for the stop of the container after a failed
    /// handler.
    pub(super) fn forget_post_start(&mut self) {
        let post_start = self.container.state.post_start_mut();
        let before = post_start.map(|known| std::mem::replace(known, PostStart::Absent));
        // Only a handler that had begun has kept the sidecar from being recorded as started.
        if before.is_some_and(|before| before.is_in_the_way()) {
            self.note_if_started();
        }
    }

    fn record_post_start(
        &mut self,
        execution: u64,
        outcome: Result<(), ActionError>,
        failed: Decision,
    ) {
        let running = self.container.state.as_running_mut();
        let Some(running) = running.filter(|known| known.execution == execution) else {
            return;
        };
        running.post_start = match running.post_start {
            PostStart::Repeating { failed: Some(at) } => PostStart::Failed { at },
            PostStart::Repeating { failed: None } => PostStart::Over,
            _ => return,
        };
        let (name, has_failed) = (self.container.name.clone(), outcome.is_err());
        self.out.report(Report::PostStarted { name, outcome });
        match has_failed {
            true => self.carry_out(failed),
            false => self.note_if_started(),
        }
    }
}

impl Subject<'_> {
    /// Rule: other containers wait for the postStart handler of a sidecar. This wait has a limit in
    /// three cases:
    ///
    /// - The Exec of a possible handler has not come yet.
    /// - The Exec has come, but its process is not started yet.
    /// - The handler has failed, but the sidecar is not being stopped yet.
    ///
    /// The wait for a running handler has no limit.
    pub(super) fn post_start_wait_is_over(&self) -> Option<Due<Decision>> {
        let (pod, container) = (self.pod, self.container);
        if !container.role_policy().is_helper || pod.termination.is_some() {
            return None;
        }
        let at = match container.state.post_start()? {
            PostStart::Possible { answered } if pod.is_anything_parked() => {
                answered.after(POST_START_WITHIN)
            }
            // Kubelet starts the Exec of a handler at once. If an Exec is not started, its caller
            // is gone.
            PostStart::Running { exec_id, since, .. } if container.execs.is_unstarted(exec_id) => {
                since.after(POST_START_WITHIN)
            }
            PostStart::Failed { at } if !container.is_being_stopped() => {
                let request = container.request.as_ref();
                let since = request.map_or(*at, |request| request.closes().max(*at));
                let hidden = container.hides_a_stop_for(pod.annotated_grace(container));
                since.after(STOP_WITHIN).after(hidden)
            }
            _ => return None,
        };
        Some(pod.due(at, || Decision::ForgetPostStart))
    }
}

impl Pod {
    /// True if any container still waits for its Start or its turn, so that its program is not
    /// executed yet. Ignores defer containers, and containers that usher does not order.
    fn is_anything_parked(&self) -> bool {
        let mut containers = self.containers.values();
        containers.any(|it| it.is_ordered() && it.defer_turn().is_none() && it.state.is_parked())
    }
}
