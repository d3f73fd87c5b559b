//! Stopping: signals in, and how they are delivered.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::Signal;
use crate::process::ExitStatus;

use super::action::{Action, Cause, ContainerId, Refusal, RequestId, Why};
use super::container::Container;
use super::deeds::Hand;
use super::grace::LEAST;
use super::history::End;
use super::life::Stop;
use super::request::StopRequest;
use super::rules::{Deed, Due, Subject};
use super::start::NOT_STARTED;
use super::termination::Termination;
use super::time::Time;
use super::{DEFAULT_REQUEST_TIMEOUT, Pod};

/// The code of a container that was asked to stop before its program was executed.
pub(super) const STOPPED: u32 = 143;

/// The status of a container that was ended before its program was executed: that of a program that died
/// of SIGTERM.
pub(super) const NEVER_EXECUTED: ExitStatus = ExitStatus::Signal(15);

/// The code of a container that was killed before its program was executed.
pub(super) const KILLED: u32 = 137;

/// Signals that never mean anything but a stop, in any pod.
const STOP_SIGNALS: [Signal; 5] = [
    Signal::TERM,
    Signal::INT,
    Signal::QUIT,
    Signal::PWR,
    Signal::RTMIN_3,
];

/// How many SIGKILLs of one container can be open at once: they are seen to as they come.
const KILLS_AT_MOST: usize = 16;

/// A Kill of a container's init process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Kill {
    pub signal: Signal,
    /// It is meant for all processes of the container.
    pub all: bool,
    /// What the call is willing to wait: kubelet's tells the real grace period.
    pub patience: Option<Duration>,
}

/// What a signal of the caller means.
enum Wanted {
    /// Nothing to the shim, but that it may be a request which tells something of the pod.
    PassedOn {
        why: Why,
        request: Option<StopRequest>,
    },
    Kill(StopRequest),
    Stop {
        fresh: StopRequest,
        /// It has been told, and is told again.
        repeated: bool,
    },
}

// === what happened ===

impl Pod {
    /// The caller sends a signal. The answer comes as [`Action::AnswerKill`], or with what becomes
    /// of an [`Action::Signal`] that names the request.
    pub fn handle_kill(&mut self, now: Time, id: &ContainerId, request: RequestId, kill: Kill) {
        self.now = now;
        let look = |pod: &Pod, it: &Container| pod.what_is_wanted(it, kill);
        match self.called(id, look, |hand, wanted| hand.note(request, kill, wanted)) {
            // How long its answer waits depends on what it means, now that it is known.
            Ok(true) => self.answer_stop(id, request, kill.patience),
            Ok(false) => {}
            Err(refusal) => self.out.push(Action::AnswerKill {
                request,
                answer: Err(refusal),
            }),
        }
        self.settle(now);
    }

    /// What a signal of the caller means, or why it cannot be sent.
    fn what_is_wanted(&self, container: &Container, kill: Kill) -> Result<Wanted, Refusal> {
        let life = &container.life;
        let grace = self.real_grace(container, kill.patience);
        let is_stop = self.is_stop_signal(container, kill);
        let is_kill = kill.signal == Signal::KILL;
        let signal = self.delivered_signal(container, kill);
        let mut fresh = match is_kill {
            true => StopRequest::kill(self.now, grace),
            false => StopRequest::stop(self.now, grace, signal, kill.all),
        };
        // What was never started is no part of its caller's pod: this clears it away, also when the
        // caller has given up on a Start that is still under way.
        let was_started = life.reads_running() && life.open_start().is_none();
        if is_kill && (!was_started || container.is_given_up) {
            fresh.disprove();
        }
        if !container.is_ordered()
            || !life.is_alive()
            || !is_stop && !is_kill && !life.is_unexecuted()
        {
            let is_request = is_kill || is_stop;
            return Ok(Wanted::PassedOn {
                why: match is_request {
                    true => Why::PassedOn,
                    false => Why::Other,
                },
                request: (is_request && life.is_alive()).then_some(fresh),
            });
        }
        if is_kill {
            return Ok(Wanted::Kill(fresh));
        }
        if !is_stop {
            return Err(Refusal::Held {
                name: container.name.clone(),
                waits_for: self.describe(&self.missing(container)),
            });
        }
        // Whoever asks a second time means it: the first signal may have been overheard, also by a
        // request that is over by now, or proves nothing any more. What the shim has sent unasked is
        // not repeated: many programs take a second one for `now`.
        let again = container.is_asked() || signal != self.stop_signal(container).0;
        let running = life.as_running();
        Ok(Wanted::Stop {
            fresh,
            repeated: again && running.is_some_and(|running| running.stop.is_told()),
        })
    }
}

impl Hand<'_> {
    /// True if it is still to be answered.
    fn note(&mut self, request: RequestId, kill: Kill, wanted: Wanted) -> bool {
        match wanted {
            Wanted::PassedOn {
                why,
                request: asked,
            } => {
                if let Some(fresh) = asked {
                    self.container.requested(fresh);
                }
                self.out.push(Action::Signal {
                    id: self.id.clone(),
                    signal: kill.signal,
                    all: kill.all,
                    request: Some(request),
                    why,
                });
            }
            Wanted::Kill(fresh) => {
                self.container.requested(fresh);
                match self.container.kills.len() < KILLS_AT_MOST {
                    true => self.container.kills.push((request, kill)),
                    false => self.out.answer_kill(request),
                }
            }
            Wanted::Stop { fresh, repeated } => {
                self.container.requested(fresh);
                if let Some((signal, all)) = fresh.signal().filter(|_| repeated) {
                    self.signal(signal, all, Why::PassedOn);
                }
                return true;
            }
        }
        false
    }
}

// === rules ===

impl Subject<'_> {
    /// Rule: a SIGKILL of the caller is seen to as soon as it is known what it means.
    pub(super) fn kill_is_heeded(&self) -> Option<Due<Deed>> {
        self.container.kills.first()?;
        let (pod, container) = (self.pod, self.container);
        let life = &container.life;
        let is_defer = container.defer_turn().is_some();
        let then = if life.is_parked() {
            let code = match is_defer {
                true => pod.code_of_defer(ExitStatus::Signal(9)),
                false => KILLED,
            };
            Some(Deed::End { code, words: None })
        } else if life.is_between_lives() {
            Some(self.pod.dismissed(self.container))
        } else if life.is_restarting() {
            Some(Deed::Condemn { at: pod.now })
        } else if self.has_a_last_chance() {
            Some(self.last_chance(pod.now.after(LEAST)))
        } else {
            None
        };
        // A SIGKILL for a defer container ends the time of the defers. One for a container that is the caller's
        // own, or that was asked to stop alone before, is about that container and nothing else.
        let since = pod.termination.as_ref().map(Termination::since);
        let is_of_it = !container.duty().is_callers()
            && container
                .request
                .is_some_and(|request| request.is_of_end_since(since.unwrap_or_default()));
        Some(Due::Now(Deed::HeedKill {
            then: then.map(Box::new),
            ends_grace: !is_defer && container.is_asked() && is_of_it,
            ends_defers: is_defer && !life.is_unexecuted(),
        }))
    }

    /// Rule: whose time is over is killed, or what is being executed for it is.
    pub(super) fn kill_is_due(&self) -> Option<Due<Deed>> {
        let at = self.container.life.stop().kill_at()?;
        Some(self.pod.due(at, || Deed::Kill))
    }

    /// Whether a sidecar that is killed before its turn gets its stop signal and a moment.
    fn has_a_last_chance(&self) -> bool {
        let stop = self.container.life.stop();
        let is_before_its_turn = matches!(
            stop,
            Stop::Untold
                | Stop::Preparing { .. }
                | Stop::Condemned { .. }
                | Stop::LastChance { .. }
        );
        let allows = self
            .round
            .budget
            .is_some_and(|budget| budget.gives_a_last_chance());
        let is_helper = self.container.duty().is_helper && !self.container.is_of_next_run;
        is_helper && is_before_its_turn && allows
    }
}

// === what is done to stop a container ===

impl Subject<'_> {
    /// What telling it to stop is: a signal. What waits for its turn, or is between two lives, ends
    /// without one.
    pub(super) fn told(&self, why: Why) -> Deed {
        let (pod, container) = (self.pod, self.container);
        if container.life.is_parked() {
            return self.left_out();
        }
        if container.life.is_between_lives() {
            return self.pod.dismissed(self.container);
        }
        let (signal, all) = pod.stop_signal(container);
        // That of a defer container is for its whole turn.
        let is_defer = container.defer_turn().is_some();
        let cap = pod.cap_of(container).filter(|_| !is_defer);
        let began = container.life.stop().since().unwrap_or(pod.now);
        Deed::Tell {
            signal,
            all,
            why,
            kill_at: cap.map(|cap| began.after(cap)),
        }
    }

    /// It is parked: its program is never executed.
    fn left_out(&self) -> Deed {
        let (pod, container) = (self.pod, self.container);
        if container.defer_turn().is_some() {
            let code = pod.code_of_defer(NEVER_EXECUTED);
            return Deed::SkipDefer { code };
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
                Deed::End {
                    code: NOT_STARTED,
                    words: Some(message),
                }
            }
            // It comes when the run is complete: nothing has failed.
            Some(Cause::Completed) if !container.duty().is_work => Deed::End {
                code: pod.code_of_no_failure(),
                words: None,
            },
            _ => Deed::End {
                code: match container.duty().is_helper && !container.is_asked() {
                    true => pod.code_of_one_told_to_go(container, NEVER_EXECUTED),
                    false => STOPPED,
                },
                words: None,
            },
        }
    }

    /// Delivers the stop signal, a second time if the container has had it; SIGKILL follows at `kill_at`.
    pub(super) fn last_chance(&self, kill_at: Time) -> Deed {
        let container = self.container;
        // The runtime's parked init would take the signal for its own.
        if container.life.is_being_executed() {
            return Deed::Condemn { at: kill_at };
        }
        let signal = self.pod.stop_signal(container).0;
        Deed::LastChance { signal, kill_at }
    }
}

impl Pod {
    /// Its process is long gone: its caller is told.
    pub(super) fn dismissed(&self, container: &Container) -> Deed {
        let last = container.life.last_status();
        // That of an init container whose success was withheld is remembered already.
        let end = last.filter(|_| !container.is_of_next_run).map(|status| {
            let end = End {
                at: self.now,
                code: status.code(),
                has_run: true,
                asked: container.request.is_some(),
                told: false,
                caller_restarts: false,
            };
            Box::new((end, self.fatal_end(container, end.code)))
        });
        let status = last.unwrap_or(ExitStatus::Code(0));
        Deed::Dismiss {
            code: self.code_of_one_told_to_go(container, status),
            end,
        }
    }

    /// It has failed, and is stopped as kubelet does it.
    pub(super) fn failed(&self, container: &Container, why: Why) -> Deed {
        let (cap, grace) = (self.cap_of(container), self.annotated_grace(container));
        Deed::Fail {
            signal: self.stop_signal(container).0,
            why,
            kill_at: self.now.after(cap.map_or(grace, |cap| cap.min(grace))),
        }
    }
}

// === what rules ask ===

impl Pod {
    /// True if this Kill of the caller is meant to stop the container.
    pub fn is_stop(&self, id: &ContainerId, kill: Kill) -> bool {
        self.known(id)
            .is_ok_and(|container| self.is_stop_signal(container, kill))
    }

    /// Under CRI images choose their own stop signals, so any signal of CRI's stop is one. Elsewhere those
    /// are that never mean anything else, and the container's own.
    fn is_stop_signal(&self, container: &Container, kill: Kill) -> bool {
        let own = self.own_stop_signal(container);
        let is_one = match self.has_sandbox() {
            true => kill.patience.is_some() || kill.signal == Signal::TERM,
            false => STOP_SIGNALS.contains(&kill.signal) || own == Some(kill.signal),
        };
        is_one && kill.signal != Signal::KILL
    }

    /// The signal that a stop request delivers: the container's own replaces that of CRI's stop, and TERM
    /// wherever that comes from.
    fn delivered_signal(&self, container: &Container, kill: Kill) -> Signal {
        // Only CRI's Kill carries a deadline: that of kubelet's call.
        let is_of_cri = self.has_sandbox() && kill.patience.is_some();
        let own = self.own_stop_signal(container);
        own.filter(|_| is_of_cri || kill.signal == Signal::TERM)
            .unwrap_or(kill.signal)
    }

    fn own_stop_signal(&self, container: &Container) -> Option<Signal> {
        self.plan_of(container)?.stop_signal
    }

    /// The signal to stop a container with: that of its stop request, else its own, else TERM. And true if
    /// all of its processes are to get it.
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

    /// The grace period that the caller of a Kill really gives: it waits that long and a fixed time
    /// more for the answer. What the annotation says is what the pod was made with.
    fn real_grace(&self, container: &Container, patience: Option<Duration>) -> Duration {
        let annotated = self.annotated_grace(container);
        let base = self.request_timeout.unwrap_or(DEFAULT_REQUEST_TIMEOUT);
        match patience.and_then(|patience| patience.checked_sub(base)) {
            // Kubelet counts whole seconds, and a moment has gone by since it sent the call.
            Some(real) if !real.is_zero() => whole_seconds(real).min(annotated),
            _ => annotated,
        }
    }
}

fn whole_seconds(time: Duration) -> Duration {
    let part = u64::from(time.subsec_nanos() > 0);
    Duration::from_secs(time.as_secs().saturating_add(part))
}
