//! Stops: signals of the caller, and their delivery.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::Signal;
use crate::process::ExitStatus;

use super::action::{Action, Cause, ContainerId, HeldCall, Refusal, RequestId, SignalReason};
use super::container::Container;
use super::effects::ContainerContext;
use super::grace::MIN_GRACE;
use super::history::End;
use super::request::StopRequest;
use super::rules::{Decision, Due, Subject};
use super::start::NOT_STARTED;
use super::state::Stop;
use super::task::SignalOrder;
use super::termination::Termination;
use super::time::Time;
use super::{DEFAULT_REQUEST_TIMEOUT, Pod};

/// The exit code reported for a container that is stopped before its program is executed. Also
/// reported in place of a 0 that the caller would misread ([`Pod::code_in_place_of_success`]).
pub(super) const STOPPED: u32 = 143;

/// The exit status assumed for a defer container or sidecar that is ended before its program is
/// executed: killed by SIGTERM. The settings for exit codes decide what the shim reports.
pub(super) const NEVER_EXECUTED: ExitStatus = ExitStatus::Signal(15);

/// The exit code reported for a container that got SIGKILL before its program was executed.
pub(super) const KILLED: u32 = 137;

/// Signals that are stop signals in a group of containers without a sandbox, for example under
/// Docker.
const STOP_SIGNALS: [Signal; 5] = [
    Signal::TERM,
    Signal::INT,
    Signal::QUIT,
    Signal::PWR,
    Signal::RTMIN_3,
];

/// Maximum number of SIGKILLs of the caller that are queued for one container. A further SIGKILL is
/// answered at once and not sent.
const KILLS_AT_MOST: usize = 16;

/// A signal of the caller for a container's init process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Kill {
    pub signal: Signal,
    /// True if the signal is for all processes of the container.
    pub all: bool,
    /// The timeout of the call, if it has one. The timeout of kubelet's call reveals the real grace
    /// period.
    pub call_timeout: Option<Duration>,
}

/// The way in which the shim handles a signal of the caller.
enum Wanted {
    /// The signal is delivered unchanged and at once. It may also be a stop request, from which the
    /// shim may infer a termination.
    PassedOn {
        why: SignalReason,
        request: Option<StopRequest>,
    },
    Kill(StopRequest),
    Stop {
        fresh: StopRequest,
        /// The stop signal was delivered before, and is delivered again at once.
        repeated: bool,
    },
}

impl Pod {
    /// Handles a Kill of the caller: passes the signal on at once, or records a stop request that
    /// the rules carry out. The answer comes as [`Action::AnswerKill`], or as the outcome of an
    /// [`Action::Signal`] with the request's number.
    pub fn handle_kill(&mut self, now: Time, id: &ContainerId, request: RequestId, kill: Kill) {
        self.now = now;
        let look = |pod: &Pod, it: &Container| pod.what_is_wanted(it, kill);
        match self.on_call(id, look, |context, wanted| {
            context.note(request, kill, wanted)
        }) {
            // The delay of the answer depends on the recorded request, which may begin a
            // termination.
            Ok(true) => self.answer_stop(id, request, kill.call_timeout),
            Ok(false) => {}
            Err(refusal) => self.out.push(Action::AnswerKill {
                request,
                answer: Err(refusal),
            }),
        }
        self.settle(now);
    }

    /// Classifies a signal of the caller as a stop request, a SIGKILL, or a signal to pass on.
    /// While the program is not executed yet, refuses every signal that does not stop the
    /// container.
    fn what_is_wanted(&self, container: &Container, kill: Kill) -> Result<Wanted, Refusal> {
        let state = &container.state;
        let grace = self.real_grace(container, kill.call_timeout);
        let is_stop = self.is_stop_signal(container, kill);
        let is_kill = kill.signal == Signal::KILL;
        let signal = self.delivered_signal(container, kill);
        let mut fresh = match is_kill {
            true => StopRequest::kill(self.now, grace),
            false => StopRequest::stop(self.now, grace, signal, kill.all),
        };
        // SIGKILL for a container that was never started only cleans the container up, and proves
        // nothing about the pod. The same holds if the caller has given up on a Start under way.
        if is_kill && (!state.was_started() || container.is_given_up) {
            fresh.disprove();
        }
        if !container.is_ordered()
            || !state.is_alive()
            || !is_stop && !is_kill && !state.is_unexecuted()
        {
            let is_request = is_kill || is_stop;
            return Ok(Wanted::PassedOn {
                why: match is_request {
                    true => SignalReason::PassedOn,
                    false => SignalReason::Other,
                },
                request: (is_request && state.is_alive()).then_some(fresh),
            });
        }
        if is_kill {
            return Ok(Wanted::Kill(fresh));
        }
        if !is_stop {
            return Err(Refusal::Held {
                name: container.name.clone(),
                call: HeldCall::Signal {
                    signal: kill.signal,
                },
                waits_for: self.describe(container, &self.awaited_names(container)),
            });
        }
        // If the caller repeats a signal, the signal is delivered again, because the program may
        // have missed the first one. This holds even if the first request no longer counts. If so
        // far only the shim has sent this signal, the shim does not send a second one: many
        // programs take a second signal for "quit now".
        let again = container.is_asked() || signal != self.stop_signal(container).0;
        let running = state.as_running();
        Ok(Wanted::Stop {
            fresh,
            repeated: again && running.is_some_and(|running| running.stop.is_delivered()),
        })
    }
}

impl ContainerContext<'_> {
    /// Records the stop request that `wanted` contains, if any. Delivers the signal at once, or
    /// leaves it to the rules. Returns true for [`Wanted::Stop`]: the caller of this method then
    /// has to arrange the answer. Otherwise the Kill is answered with the outcome of the delivery,
    /// or by a rule.
    fn note(&mut self, request: RequestId, kill: Kill, wanted: Wanted) -> bool {
        match wanted {
            Wanted::PassedOn {
                why,
                request: asked,
            } => {
                if let Some(fresh) = asked {
                    self.container.add_request(fresh);
                }
                self.deliver(SignalOrder {
                    signal: kill.signal,
                    all: kill.all,
                    request: Some(request),
                    why,
                });
            }
            Wanted::Kill(fresh) => {
                self.container.add_request(fresh);
                match self.container.kills.len() < KILLS_AT_MOST {
                    true => self.container.kills.push((request, kill)),
                    false => self.out.answer_kill(request),
                }
            }
            Wanted::Stop { fresh, repeated } => {
                self.container.add_request(fresh);
                if let Some((signal, all)) = fresh.signal().filter(|_| repeated) {
                    self.signal(signal, all, SignalReason::PassedOn);
                }
                return true;
            }
        }
        false
    }
}

impl Subject<'_> {
    /// Rule: the first open SIGKILL of the caller is handled at once: the shim passes it on, or
    /// ends a container whose program does not run. A sidecar whose turn to stop has not come may
    /// get its stop signal first. In a termination, the SIGKILL may also end the grace period.
    pub(super) fn sigkill_is_handled(&self) -> Option<Due<Decision>> {
        self.container.kills.first()?;
        let (pod, container) = (self.pod, self.container);
        let state = &container.state;
        let is_defer = container.defer_turn().is_some();
        let then = if state.is_parked() {
            let code = match is_defer {
                true => pod.code_of_defer(ExitStatus::Signal(9)),
                false => KILLED,
            };
            Some(Decision::End { code, words: None })
        } else if state.is_between_executions() {
            Some(self.pod.report_of_hidden_exit(self.container))
        } else if state.is_restarting() {
            Some(Decision::ScheduleKill { at: pod.now })
        } else if self.has_a_last_chance() {
            Some(self.last_chance(pod.now.after(MIN_GRACE)))
        } else {
            None
        };
        // If the caller kills a defer container whose program was executed, no other defer
        // container begins. A SIGKILL for any other container ends the grace period of the
        // termination, with two exceptions: a container that only the caller starts and stops, and
        // a container that was already stopped as a single one before the termination.
        let since = pod.termination.as_ref().map(Termination::since);
        let is_of_it = !container.role_policy().is_left_to_caller()
            && container
                .request
                .is_some_and(|request| request.is_of_end_since(since.unwrap_or_default()));
        Some(Due::Now(Decision::HandleKill {
            then: then.map(Box::new),
            ends_grace: !is_defer && container.is_asked() && is_of_it,
            ends_defers: is_defer && !state.is_unexecuted(),
        }))
    }

    /// Rule: the container gets SIGKILL at the time for which it is scheduled. If a restart in
    /// place is under way, the restart is canceled instead.
    pub(super) fn kill_is_due(&self) -> Option<Due<Decision>> {
        let at = self.container.state.stop().kill_at()?;
        Some(self.pod.due(at, || Decision::Kill))
    }

    /// True if a SIGKILL of the caller comes before a sidecar's turn to stop: the sidecar first
    /// gets its stop signal and two seconds. False outside of a termination, and under the grace
    /// policy `Strict`.
    fn has_a_last_chance(&self) -> bool {
        let stop = self.container.state.stop();
        let is_before_its_turn = matches!(
            stop,
            Stop::Undelivered
                | Stop::Preparing { .. }
                | Stop::KillScheduled { .. }
                | Stop::LastChance { .. }
        );
        let allows = self
            .pod_facts
            .budget
            .is_some_and(|budget| budget.gives_a_last_chance());
        let is_helper = self.container.role_policy().is_helper && !self.container.is_of_next_run;
        is_helper && is_before_its_turn && allows
    }
}

impl Subject<'_> {
    /// The decision to stop the container now, for the reason `why`: it gets its stop signal. A
    /// container whose program is not executed yet, or has exited already, ends without a signal.
    pub(super) fn deliver_stop(&self, why: SignalReason) -> Decision {
        let (pod, container) = (self.pod, self.container);
        if container.state.is_parked() {
            return self.left_out();
        }
        if container.state.is_between_executions() {
            return self.pod.report_of_hidden_exit(self.container);
        }
        let (signal, all) = pod.stop_signal(container);
        // The time limit of a defer container is for its whole turn, not for its stop.
        let is_defer = container.defer_turn().is_some();
        let cap = pod.cap_of(container).filter(|_| !is_defer);
        let began = container.state.stop().since().unwrap_or(pod.now);
        Decision::DeliverStop {
            signal,
            all,
            why,
            kill_at: cap.map(|cap| began.after(cap)),
        }
    }

    /// The decision to end a container whose program is not executed yet. The reported exit code
    /// depends on the role and on the cause of the termination.
    fn left_out(&self) -> Decision {
        let (pod, container) = (self.pod, self.container);
        if container.defer_turn().is_some() {
            let code = pod.code_of_defer(NEVER_EXECUTED);
            return Decision::SkipDefer { code };
        }
        let cause = pod
            .termination
            .as_ref()
            .filter(|_| !container.is_asked())
            .map(Termination::cause);
        match cause {
            Some(cause @ (Cause::InitFailed { .. } | Cause::SidecarFailed { .. })) => {
                let name = &container.name;
                let message = format!("usher: {name} is not started: the pod terminates: {cause}");
                Decision::End {
                    code: NOT_STARTED,
                    words: Some(message),
                }
            }
            // The container ends because the run is complete: nothing has failed.
            Some(Cause::Completed) if !container.role_policy().is_work => Decision::End {
                code: pod.code_in_place_of_success(),
                words: None,
            },
            _ => Decision::End {
                code: match container.role_policy().is_helper && !container.is_asked() {
                    true => pod.masked_code(container, NEVER_EXECUTED),
                    false => STOPPED,
                },
                words: None,
            },
        }
    }

    /// The decision to deliver the stop signal, even if it was delivered before. SIGKILL follows at
    /// `kill_at`. If the shim does not know yet that the program was executed, the decision is only
    /// to schedule SIGKILL. Used when the grace period ends, or when a container is stopped out of
    /// turn.
    pub(super) fn last_chance(&self, kill_at: Time) -> Decision {
        let container = self.container;
        // The process may still be the OCI runtime's init, which would take the signal in place of
        // the program.
        if container.state.is_being_executed() {
            return Decision::ScheduleKill { at: kill_at };
        }
        let signal = self.pod.stop_signal(container).0;
        Decision::LastChance { signal, kill_at }
    }
}

impl Pod {
    /// The decision to report an exit that the shim has hidden from the caller. The shim hides an
    /// exit before a restart in place, or because the caller would misinterpret the success. The
    /// decision is used when the container is stopped or killed, when a restart is of no use, or
    /// when the exit was withheld long enough.
    pub(super) fn report_of_hidden_exit(&self, container: &Container) -> Decision {
        let last = container.state.last_status();
        // If the success of an init container was withheld, the history already has the end of the
        // container.
        let end = last.filter(|_| !container.is_of_next_run).map(|status| {
            let end = End {
                at: self.now,
                code: status.code(),
                has_run: true,
                asked: container.request.is_some(),
                was_signaled: false,
                caller_restarts: false,
            };
            Box::new((end, self.fatal_end(container, end.code)))
        });
        let status = last.unwrap_or(ExitStatus::Code(0));
        let backing_off = container.state.as_backing_off();
        let code = match backing_off.is_some_and(|it| it.is_asked) {
            // The program exited by itself, before its stop signal. So the shim reports its exit
            // code as for a container that was not stopped.
            true => self.reported_code(container, status, Stop::Undelivered),
            false => self.masked_code(container, status),
        };
        Decision::ReportHiddenExit { code, end }
    }

    /// The decision to stop a container after a failed probe or postStart handler, as kubelet does
    /// it: stop signal now, and SIGKILL after the grace period.
    pub(super) fn failed(&self, container: &Container, why: SignalReason) -> Decision {
        let (cap, grace) = (self.cap_of(container), self.annotated_grace(container));
        Decision::Fail {
            signal: self.stop_signal(container).0,
            why,
            kill_at: self.now.after(cap.map_or(grace, |cap| cap.min(grace))),
        }
    }
}

impl Pod {
    /// True if this Kill carries a stop signal for the container. In a pod with a sandbox, every
    /// signal of a call with a timeout is a stop signal, because an image can choose its own stop
    /// signal. If the call has no timeout, only TERM is a stop signal. In a pod without a sandbox,
    /// the stop signals are TERM, similar signals (`STOP_SIGNALS`), and the container's own stop
    /// signal. False for SIGKILL, and for an unknown container.
    pub fn is_stop(&self, id: &ContainerId, kill: Kill) -> bool {
        self.known(id)
            .is_ok_and(|container| self.is_stop_signal(container, kill))
    }

    fn is_stop_signal(&self, container: &Container, kill: Kill) -> bool {
        let own = self.own_stop_signal(container);
        let is_one = match self.has_sandbox() {
            true => kill.call_timeout.is_some() || kill.signal == Signal::TERM,
            false => STOP_SIGNALS.contains(&kill.signal) || own == Some(kill.signal),
        };
        is_one && kill.signal != Signal::KILL
    }

    /// The signal that is delivered for a stop request of the caller. The annotation `stop-signal`
    /// replaces every signal of CRI's StopContainer, and SIGTERM of any other caller.
    fn delivered_signal(&self, container: &Container, kill: Kill) -> Signal {
        // Only CRI's Kill carries a deadline: that of kubelet's call.
        let is_of_cri = self.has_sandbox() && kill.call_timeout.is_some();
        let own = self.own_stop_signal(container);
        own.filter(|_| is_of_cri || kill.signal == Signal::TERM)
            .unwrap_or(kill.signal)
    }

    fn own_stop_signal(&self, container: &Container) -> Option<Signal> {
        self.plan_of(container)?.stop_signal
    }

    /// The signal to stop a container with: the signal of its stop request, which the annotation
    /// `stop-signal` may have replaced already. Without such a request, the container's own stop
    /// signal, or else TERM. The flag is true if all processes of the container get the signal.
    pub(super) fn stop_signal(&self, container: &Container) -> (Signal, bool) {
        let asked = container.request.and_then(|request| request.signal());
        let own = || {
            (
                self.own_stop_signal(container).unwrap_or(Signal::TERM),
                false,
            )
        };
        asked.unwrap_or_else(own)
    }

    /// The grace period that the caller of a Kill gives, derived from the call's timeout: kubelet
    /// waits for the grace period plus a fixed time. The annotated grace period is the upper limit,
    /// and applies if the timeout tells nothing.
    fn real_grace(&self, container: &Container, call_timeout: Option<Duration>) -> Duration {
        let annotated = self.annotated_grace(container);
        let base = self.request_timeout.unwrap_or(DEFAULT_REQUEST_TIMEOUT);
        match call_timeout.and_then(|call_timeout| call_timeout.checked_sub(base)) {
            // Round up: kubelet counts whole seconds, and some time has passed since it sent the
            // call.
            Some(real) if !real.is_zero() => whole_seconds(real).min(annotated),
            _ => annotated,
        }
    }
}

fn whole_seconds(time: Duration) -> Duration {
    let part = u64::from(time.subsec_nanos() > 0);
    Duration::from_secs(time.as_secs().saturating_add(part))
}
