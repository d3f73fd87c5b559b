//! The effects of rules. Nothing else changes a container after an event was recorded.
//!
//! The rule has decided every detail of the effect. The effect cannot reach any other container:
//! [`ContainerContext`] lists everything that it can reach.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::plan::{Hook, Plan, Signal};
use crate::sizing::Size;

use super::Pod;
use super::action::{Action, Cause, ContainerId, HookKind, Refusal, SignalReason};
use super::allowance::Allowance;
use super::container::{Container, HookState, TerminationWork};
use super::exec::PostStart;
use super::history::{End, History};
use super::outbox::Outbox;
use super::probe::Watch;
use super::report::Report;
use super::rules::{Decision, PodDecision};
use super::state::InvalidTransition;
use super::task::{LAST_WORDS_WITHIN, SignalOrder};
use super::termination::Termination;
use super::time::Time;

/// The data that an effect may read or change: one container, and common data of its pod.
pub(super) struct ContainerContext<'a> {
    pub id: &'a ContainerId,
    pub container: &'a mut Container,
    pub plan: Option<&'a Plan>,
    pub now: Time,
    pub termination: Option<&'a mut Termination>,
    pub history: &'a mut History,
    /// Sizes by container name. If a name had several containers, the size is that of the last one.
    pub sizes: &'a mut BTreeMap<String, Size>,
    pub allowance: &'a mut Allowance,
    /// Number of executions of programs in this pod so far.
    pub executions: &'a mut u64,
    /// True if the shim has executed, or tried to execute, the program of a container that usher
    /// orders.
    pub has_released: &'a mut bool,
    pub sandbox_is_gone: &'a mut bool,
    pub out: &'a mut Outbox,
}

impl Pod {
    pub(super) fn apply_to_pod(&mut self, decision: PodDecision) {
        match decision {
            PodDecision::Terminate(termination) => self.terminate(*termination),
            PodDecision::LearnDeadline { deadline, forced } => {
                self.learn_deadline(deadline, forced)
            }
            PodDecision::NoteGraceOver => self.note_grace_over(),
            PodDecision::NextStep => self.next_step(),
            PodDecision::StartOver { with } => self.start_over(with),
            PodDecision::NoteLateness { since } => self.note_lateness(since),
            PodDecision::NoteKept { since } => self.note_kept(since),
        }
    }
}

impl ContainerContext<'_> {
    pub fn carry_out(&mut self, decision: Decision) {
        match decision {
            Decision::KillSandbox => self.kill_sandbox(),
            Decision::BeginUpdate => self.begin_update(),
            Decision::Probe { cost, stretched } => self.probe(cost, stretched),
            Decision::Extend { granted } => self.extend(granted),
            Decision::PutOff { granted, stretched } => self.put_off(granted, stretched),
            Decision::AskForMore { cost } => self.ask_for_more(cost),
            Decision::RefuseMore => self.refuse_more(),
            Decision::Hold { waits_for } => self.hold(waits_for),
            Decision::RefuseStart(refusal) => self.refuse_start(refusal),
            Decision::Release => self.release(),
            Decision::NoteWait { message } => self.note_wait(message),
            Decision::End { code, words } => self.end(code, words),
            Decision::RunDefer => self.run_defer(),
            Decision::SkipDefer { code } => self.skip_defer(code),
            Decision::RunHook { kind, hook, limit } => self.run_hook(kind, hook, limit),
            Decision::DeliverStop {
                signal,
                all,
                why,
                kill_at,
            } => self.deliver_stop(signal, all, why, kill_at),
            Decision::LastChance { signal, kill_at } => self.last_chance(signal, kill_at),
            Decision::ScheduleKill { at } => self.schedule_kill(at),
            Decision::Kill => self.kill(),
            Decision::HandleKill {
                then,
                ends_grace,
                ends_defers,
            } => {
                self.handle_kill_request(then.map(|decision| *decision), ends_grace, ends_defers);
            }
            Decision::GiveUp => self.give_up(),
            Decision::Restart => self.restart(),
            Decision::ReportHiddenExit { code, end } => {
                self.report_hidden_exit(code, end.map(|end| *end))
            }
            Decision::Fail {
                signal,
                why,
                kill_at,
            } => self.fail(signal, why, kill_at),
            Decision::AnswerStops { only_due } => self.answer_stops(only_due),
            Decision::ForgetPostStart => self.forget_post_start(),
            Decision::PublishExit => self.publish_exit(),
            Decision::CleanUp => self.clean_up(),
            Decision::Delete(how) => self.delete(how),
            Decision::KillParked => self.kill_parked(),
        }
    }

    /// Unwraps the outcome of a transition. An invalid transition is logged and changes nothing.
    pub fn ok_or_log<T>(&mut self, outcome: Result<T, InvalidTransition>) -> Option<T> {
        outcome
            .inspect_err(|invalid| {
                self.out.report(Report::InvalidTransition {
                    name: self.container.name.clone(),
                    what: invalid.to_string(),
                });
            })
            .ok()
    }

    /// Answers the container's Start before the container's turn has come. The program is not
    /// executed yet.
    fn hold(&mut self, waits_for: Vec<String>) {
        let post_start = self.possible_post_start();
        let outcome = self.container.state.hold(self.now, post_start);
        if let Some(request) = self.ok_or_log(outcome) {
            // The list is empty if the container waits for no other container. A defer container
            // never does.
            if !waits_for.is_empty() {
                let name = self.container.name.clone();
                self.out.report(Report::Held { name, waits_for });
            }
            self.out.answer_start(self.id, request, Ok(()));
        }
    }

    /// The state of the postStart handler if the Start is answered now: an Exec that comes soon
    /// after the answer may be the handler.
    pub fn possible_post_start(&self) -> PostStart {
        PostStart::Possible { answered: self.now }
    }

    fn refuse_start(&mut self, refusal: Refusal) {
        let outcome = self.container.state.take_back_start();
        if let Some(request) = self.ok_or_log(outcome) {
            self.out.answer_start(self.id, request, Err(refusal));
        }
    }

    pub fn release(&mut self) {
        let outcome = self.container.state.release();
        let Some(since) = self.ok_or_log(outcome) else {
            return;
        };
        if self.container.is_ordered() {
            *self.has_released = true;
            self.out.report(Report::Released {
                name: self.container.name.clone(),
                role: self.container.role,
                waited: self.now.since(since),
            });
        }
        let id = self.id.clone();
        self.out.push(Action::Release { id });
    }

    fn note_wait(&mut self, message: String) {
        let outcome = self.container.state.mark_wait_noted();
        if self.ok_or_log(outcome).is_some() {
            self.out.write_message(self.id, message, false);
        }
    }

    /// Ends a container whose program is not executed yet: kills the init process. When the process
    /// has exited, an open Start is refused, and the caller gets `code`. `last_words` goes to the
    /// container's stderr and termination message.
    pub fn end(&mut self, code: u32, last_words: Option<String>) {
        let is_explained = last_words.is_some();
        let written = is_explained.then(|| self.now.after(LAST_WORDS_WITHIN));
        let outcome = self.container.state.end(code, written);
        if self.ok_or_log(outcome).is_some() {
            if let Some(message) = last_words {
                self.out.write_message(self.id, message, true);
            }
            self.signal(Signal::KILL, false, SignalReason::Held);
        }
    }

    fn run_defer(&mut self) {
        if let Some(termination) = &mut self.termination {
            termination.extension.begin();
        }
        self.container.termination_work = TerminationWork::Turn(Some(self.now));
        self.history.record_defer_run(&self.container.name);
        self.release();
    }

    fn skip_defer(&mut self, code: u32) {
        let name = self.container.name.clone();
        self.out.report(Report::DeferSkipped { name });
        self.end(code, None);
    }

    fn run_hook(&mut self, kind: HookKind, hook: Hook, limit: Duration) {
        match (kind, self.container.state.stop_mut()) {
            (HookKind::Termination, _) => {
                self.container.termination_work = TerminationWork::Hook(HookState::Running);
            }
            (HookKind::PreStop, Some(stop)) => {
                *stop = stop.preparing(self.now);
            }
            (HookKind::PreStop, None) => return,
        }
        self.out.push(Action::Hook {
            id: self.id.clone(),
            kind,
            hook,
            limit,
        });
    }

    /// Delivers the stop signal. If `kill_at` is a time, also schedules SIGKILL for this time. Has
    /// an effect only if the program runs or is being executed.
    fn deliver_stop(
        &mut self,
        signal: Signal,
        all: bool,
        why: SignalReason,
        kill_at: Option<Time>,
    ) {
        if let Some(stop) = self.container.state.stop_mut() {
            *stop = stop.delivered(self.now, why, kill_at);
            if let Some(request) = &mut self.container.request
                && why == SignalReason::Alone
            {
                request.mark_delivered_alone();
            }
            self.signal(signal, all, why);
        }
    }

    /// Delivers the stop signal, even if it was delivered before, and schedules SIGKILL at
    /// `kill_at`, unless SIGKILL is due earlier. Does nothing if the container already has this
    /// last chance, or was killed. So when the caller repeats SIGKILL, the deadline stays, and no
    /// signal is sent again.
    fn last_chance(&mut self, signal: Signal, kill_at: Time) {
        let Some(stop) = self.container.state.stop_mut() else {
            return;
        };
        let before = std::mem::replace(stop, stop.last_chance(self.now, kill_at));
        if before != *stop {
            self.signal(signal, false, SignalReason::TimeShort);
        }
    }

    /// Schedules SIGKILL at `at` for a container that cannot be signaled now, because its program
    /// is being executed.
    fn schedule_kill(&mut self, at: Time) {
        if let Some(stop) = self.container.state.stop_mut() {
            *stop = stop.kill_scheduled(self.now, at);
        }
    }

    /// Sends SIGKILL to the container, or cancels the restart in place that is under way.
    fn kill(&mut self) {
        let is_restarting = self.container.state.is_restarting();
        if let Some(stop) = self.container.state.stop_mut() {
            // If the container was stopped for a failure, SIGKILL has the same reason.
            let why = stop.why().filter(|why| why.is_failure());
            *stop = stop.killed(self.now, SignalReason::GraceOver);
            match is_restarting {
                true => self.out.push(Action::CancelRestart {
                    id: self.id.clone(),
                }),
                false => self.signal(Signal::KILL, false, why.unwrap_or(SignalReason::GraceOver)),
            }
        }
    }

    /// Handles the caller's oldest unhandled SIGKILL. If `then` is a decision, the shim carries out
    /// this decision instead of sending SIGKILL, and the Kill succeeds. If `then` is `None`, the
    /// shim delivers SIGKILL, and answers the Kill with the outcome of the delivery. If
    /// `ends_grace`, the termination's grace period ends now. If `ends_defers`, no other defer
    /// container begins.
    fn handle_kill_request(&mut self, then: Option<Decision>, ends_grace: bool, ends_defers: bool) {
        if self.container.kills.is_empty() {
            return;
        }
        let (request, kill) = self.container.kills.remove(0);
        if let Some(termination) = &mut self.termination {
            if ends_grace {
                termination.end_grace(self.now);
            }
            if ends_defers {
                termination.note_defer_killed();
            }
        }
        if let Some(decision) = then {
            self.carry_out(decision);
            return self.out.answer_kill(request);
        }
        if let Some(stop) = self.container.state.stop_mut() {
            *stop = stop.killed(self.now, SignalReason::PassedOn);
        }
        self.deliver(SignalOrder {
            signal: kill.signal,
            all: kill.all,
            request: Some(request),
            why: SignalReason::PassedOn,
        });
    }

    /// Records that the termination no longer waits for the container's exit.
    fn give_up(&mut self) {
        if let Some(stop) = self.container.state.stop_mut() {
            *stop = stop.over();
        }
    }

    fn restart(&mut self) {
        let outcome = self.container.state.restart();
        if self.ok_or_log(outcome).is_some() {
            let id = self.id.clone();
            let is_cleaned_up = self.container.begin_next_process();
            self.out.push(Action::Restart { id, is_cleaned_up });
        }
    }

    /// Reports an exit that was hidden from the caller, because the program was to be restarted in
    /// place or its success was withheld. The caller gets `code`, and the time of the real exit.
    /// `end` is the entry for the history. `None` if the history has it already, or if the
    /// container belongs to the next run.
    fn report_hidden_exit(&mut self, code: u32, end: Option<(End, Option<Cause>)>) {
        let reason = self.container.exit_reason(self.termination.as_deref());
        let exit = self.final_exit(code);
        let outcome = self.container.state.report_hidden_exit(exit);
        if self.ok_or_log(outcome).is_some() {
            let (name, number) = (&self.container.name, self.container.number);
            if let Some((end, fatal)) = end {
                self.history.record_end(name, number, end, fatal);
            }
            self.history
                .record_exit((name, number), self.now, code, reason);
            self.out.end_output(self.id, code);
        }
    }

    /// Stops a failed container, and ends the attempts of its probe. The stop signal comes now, and
    /// SIGKILL at `kill_at`. If the stop signal was delivered before, the stop under way goes on
    /// unchanged.
    fn fail(&mut self, signal: Signal, why: SignalReason, kill_at: Time) {
        if let Some(running) = self.container.state.as_running_mut() {
            running.watch = match running.watch.is_startup() {
                true => Watch::NeverUp,
                false => Watch::Nothing,
            };
        }
        if !self.container.state.stop().is_delivered() {
            self.deliver_stop(signal, false, why, Some(kill_at));
        }
    }

    /// Sends the delayed answers to the container's stop requests: those whose delay has ended or,
    /// if `only_due` is false, all.
    fn answer_stops(&mut self, only_due: bool) {
        let now = self.now;
        let (kept, due): (Vec<_>, Vec<_>) = std::mem::take(&mut self.container.answers)
            .into_iter()
            .partition(|answer| only_due && now < answer.until);
        self.container.answers = kept;
        // The caller starts its timer when it gets the answer.
        if let Some(request) = &mut self.container.request
            && !due.is_empty()
        {
            request.mark_answered(now);
        }
        for answer in due {
            self.out.answer_kill(answer.request);
        }
    }

    /// Records and logs that a sidecar is started in the sense of KEP-753: its program runs, and
    /// its startup probe, if any, has succeeded. Does nothing before that, while a postStart
    /// handler runs, or after a failed handler. Does nothing for containers with other roles.
    pub fn note_if_started(&mut self) {
        if !self.container.is_started_sidecar() {
            return;
        }
        if let Some(running) = self.container.state.as_running() {
            let (name, took) = (self.container.name.clone(), self.now.since(running.since));
            self.history.record_start(&name, self.container.number);
            self.out.report(Report::Started { name, took });
        }
    }

    pub fn signal(&mut self, signal: Signal, all: bool, why: SignalReason) {
        self.deliver(SignalOrder {
            signal,
            all,
            request: None,
            why,
        });
    }
}
