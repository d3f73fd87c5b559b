//! Stops of containers. Kubelet runs the preStop handler, waits until a native sidecar may stop,
//! and calls StopContainer with at least 2 s. containerd sends the stop signal only once, and
//! SIGKILL when the time is over.

use std::time::Duration;

use crate::lifecycle::Exec;
use crate::plan::Signal;

use crate::simulator::case::{Part, PreStop};
use crate::simulator::{Call, ms, secs};

use super::{Ask, Kubelet, MIN_GRACE, REQUEST_TIMEOUT, Stage, Stop, Worker};

impl Kubelet<'_> {
    pub(super) fn grace(&self) -> Duration {
        secs(self.case.grace)
    }

    pub(super) fn advance_stops(&mut self) -> bool {
        let mut stops = std::mem::take(&mut self.stops);
        let mut advanced = false;
        for stop in &mut stops {
            while self.advance_stop(stop) {
                advanced = true;
            }
        }
        self.stops = stops;
        advanced
    }

    fn advance_stop(&mut self, stop: &mut Stop) -> bool {
        let now = self.world.now();
        let member = &self.case.members[stop.who];
        let lives = self.records[stop.who].id == Some(stop.id) && self.runs(stop.who);
        if stop.stage == Stage::Over {
            return false;
        }
        if !lives {
            match stop.stage {
                Stage::Handler { .. } => self.world.call(Call::PreStopOver(stop.id)),
                Stage::Asked {
                    at, answered: None, ..
                } => self.log.unanswered.push((at, stop.id, now.since(at))),
                _ => {}
            }
            stop.stage = Stage::Over;
            return true;
        }
        let is_wide = matches!(self.worker, Worker::StopsAll(_));
        match stop.stage {
            Stage::Waits(until) if until <= now => {
                let handler = member.pre_stop.filter(|_| !stop.left.is_zero());
                stop.stage = match handler {
                    Some((kind, takes)) => {
                        self.world
                            .did(format!("preStop of {}: {kind:?} of {takes} ms", stop.id));
                        let is_run = kind != PreStop::Exec || self.run_handler(stop, is_wide);
                        let takes = if is_run { ms(takes) } else { Duration::ZERO };
                        Stage::Handler {
                            began: now,
                            until: now.after(takes),
                        }
                    }
                    None => Stage::Turn(now),
                };
                true
            }
            Stage::Handler { began, until } if until.min(began.after(stop.left)) <= now => {
                if until <= now
                    && member
                        .pre_stop
                        .is_some_and(|(kind, _)| kind == PreStop::Exec)
                {
                    self.world.call(Call::PreStopOver(stop.id));
                }
                stop.left -= secs(now.since(began).as_secs()).min(stop.left);
                stop.stage = Stage::Turn(now);
                true
            }
            Stage::Turn(since) => {
                let waits = is_wide
                    && since.after(stop.left) > now
                    && !stop.left.is_zero()
                    && self.is_not_its_turn(stop.who);
                if !waits {
                    stop.left -= secs(now.since(since).as_secs()).min(stop.left);
                    self.ask(stop, is_wide);
                }
                !waits
            }
            Stage::Asked {
                request,
                at,
                answered,
                grace,
                killed,
            } => {
                let is_answered = |request| self.world.is_answered(request);
                let answer = answered.or_else(|| request.filter(|r| is_answered(*r)).map(|_| now));
                if answered.is_none() && answer.is_some() {
                    self.log.answers.push((at, stop.id, now.since(at)));
                }
                let is_over = !killed && answer.is_some_and(|at| at.after(grace) <= now);
                let next = Stage::Asked {
                    request,
                    at,
                    answered: answer,
                    grace,
                    killed: killed || is_over,
                };
                if is_over {
                    self.log.kills.push((now, stop.id));
                    self.world.did(format!("SIGKILL for {}", stop.id));
                    self.world
                        .call(Call::Kill(stop.id, Signal::KILL, Some(REQUEST_TIMEOUT)));
                }
                std::mem::replace(&mut stop.stage, next) != next
            }
            _ => false,
        }
    }

    /// Runs the preStop handler. Returns true if it could be executed.
    fn run_handler(&mut self, stop: &Stop, end: bool) -> bool {
        self.log.asks.push(Ask {
            at: self.world.now(),
            after: self.world.seen().len(),
            id: stop.id,
            end,
            grace: stop.left,
            is_handler: true,
            is_kill: false,
        });
        let argv = self.case.members[stop.who].pre_stop_argv();
        let exec = Exec {
            id: "pre-stop",
            argv: &argv,
            has_deadline: false,
            is_interactive: false,
        };
        let is_run = self.world.exec(stop.id, &exec);
        if !is_run {
            self.log.asks.pop();
        }
        is_run
    }

    /// True while other containers have to stop first: since Kubernetes 1.29, the native sidecars
    /// of a pod stop after all others, in reverse order.
    fn is_not_its_turn(&self, who: usize) -> bool {
        let is_sidecar = |who: usize| self.case.members[who].part == Part::NativeSidecar;
        let mut others = 0..self.records.len();
        is_sidecar(who)
            && others.any(|other| self.runs(other) && (!is_sidecar(other) || other > who))
    }

    fn ask(&mut self, stop: &mut Stop, end: bool) {
        let now = self.world.now();
        let grace = stop.exact.unwrap_or(stop.left.max(MIN_GRACE));
        let is_kill = grace.is_zero();
        let is_first = self.signalled.insert(stop.id);
        let (mut request, mut answered) = (None, None);
        if is_kill || is_first {
            self.log.asks.push(Ask {
                at: now,
                after: self.world.seen().len(),
                id: stop.id,
                end,
                grace,
                is_handler: false,
                is_kill,
            });
            let (signal, call_timeout) = match is_kill {
                true => (Signal::KILL, REQUEST_TIMEOUT),
                false => (Signal::TERM, REQUEST_TIMEOUT + grace),
            };
            let what = if is_kill { "SIGKILL" } else { "stop" };
            self.world
                .did(format!("{what} for {}, {}s", stop.id, grace.as_secs()));
            request = Some(self.world.kill(stop.id, signal, call_timeout));
        } else {
            answered = Some(now);
            self.log.asked_again.push(stop.id);
            self.world.did(format!(
                "stop for {}, {}s, without a second signal",
                stop.id,
                grace.as_secs()
            ));
        }
        stop.stage = Stage::Asked {
            request,
            at: now,
            answered,
            grace,
            killed: is_kill,
        };
    }
}
