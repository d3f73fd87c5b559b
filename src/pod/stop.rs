//! Kill, and the end of a container's init process.

use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::caught::Panicked;
use crate::engine::{Killing, Process, Work};
use crate::lifecycle::{ContainerId, Kill, Wanted};
use crate::plan::Signal;
use crate::process::ExitStatus;
use crate::record::What;
use crate::stdio::TOLD_WITHIN;

use super::actor::RELEASES_WITHIN;
use super::exec::{exit_event, read};
use super::life::Call;
use super::process::LastWords;
use super::signals::named;
use super::{Actor, CallError, KillCall, Kind, Reply};

/// How long the exit of a container waits for its last words, should their disk stall.
pub(crate) const LAST_WORDS_WITHIN: Duration = Duration::from_secs(2);

impl Actor {
    /// Sends a signal to a container or one of its execs.
    pub fn kill(&mut self, call: KillCall, reply: Reply<()>) {
        if call.signal == 0 {
            return drop(reply.send(self.is_alive(&call)));
        }
        let Some(signal) = i32::try_from(call.signal).ok().and_then(Signal::new) else {
            let message = format!("signal {} is none, expected 0 to 64", call.signal);
            return drop(reply.send(Err(CallError::new(Kind::InvalidArgument, message))));
        };
        if !call.exec_id.is_empty() {
            return self.kill_exec(call, signal, reply);
        }
        if let Err(error) = self.task(&call.id) {
            return drop(reply.send(Err(error)));
        }
        let request = self.callers.next();
        self.callers.kills.insert(request, reply);
        let kill = Kill {
            signal,
            all: call.all,
            patience: call.patience,
        };
        let (now, id) = (self.now(), ContainerId::from(call.id.as_str()));
        let is_stop = self.core.is_stop(&id, kill);
        self.record.note(now, &id, What::Asked { signal, is_stop });
        self.core.handle_kill(now, &id, request, kill);
    }

    /// Signal 0 stops nothing: it asks whether the process is there (`kill(2)`).
    fn is_alive(&self, call: &KillCall) -> Result<(), CallError> {
        let (task, process) = self.process(&call.id, &call.exec_id)?;
        match call.exec_id.as_str() {
            "" => task.life.allows(Call::KillZero, &call.id),
            _ if process.has_ended() => Err(CallError::finished(&call.id)),
            _ => Ok(()),
        }
    }

    fn kill_exec(&mut self, call: KillCall, signal: Signal, reply: Reply<()>) {
        let process = match self.executed(&call) {
            Ok(process) => process,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let name = call.exec_id;
        match process.kill(signal) {
            Killing::Done(killed) => drop(reply.send(named(killed, &name))),
            Killing::UnderWay(work) => self.spawn(work, move |_, killed| {
                let _ = reply.send(named(killed, &name));
            }),
        }
    }

    fn executed(&self, call: &KillCall) -> Result<Arc<dyn Process>, CallError> {
        let exec = self.task(&call.id)?.execs.get(&call.exec_id);
        let exec = exec.ok_or_else(|| CallError::not_found(&call.id, &call.exec_id))?;
        if exec.process.has_ended() {
            return Err(CallError::finished(&call.exec_id));
        }
        exec.handle.clone().ok_or_else(|| {
            let message = format!(
                "process {} of task {} is not started",
                call.exec_id, call.id
            );
            CallError::new(Kind::FailedPrecondition, message)
        })
    }

    pub(super) fn init_ended(&mut self, id: &ContainerId, status: ExitStatus) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        self.operations.cancel_at_exit(id);
        let was_releasing = task.life.ended(self.node.clock.wall());
        let now = self.now();
        self.record.note(now, id, What::Exited(status.code()));
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if !task.facts.has_own_pid_namespace {
            task.life.keeps_figures();
            // Nobody but us will end what it leaves behind. Its exit is told afterwards: as soon as
            // it can be deleted another container of the same id may come, which must not be hit.
            let init = task.life.init().cloned();
            let kill_all = async move {
                if let Some(init) = init {
                    init.end_the_rest().await;
                }
                Ok::<_, Panicked>(())
            };
            self.operate(id, Wanted::UntilDeleted, kill_all, move |actor, id, _| {
                let now = actor.now();
                actor.core.handle_exit(now, id, status);
            });
            return;
        }
        let now = self.now();
        self.core.handle_exit(now, id, status);
        if self.core.is_about_to_go_on() && !self.core.lives_again(id) {
            return self.leave_cgroup_later(id, was_releasing);
        }
        if let Some(task) = self.tasks.get_mut(id) {
            task.life.keeps_figures();
        }
        if !was_releasing {
            self.clear_away(id);
        }
    }

    /// Something else has waited for this end: until that is done it has the machine to itself.
    fn leave_cgroup_later(&mut self, id: &ContainerId, was_releasing: bool) {
        let pause = async {
            tokio::time::sleep(RELEASES_WITHIN).await;
            Ok::<_, Panicked>(())
        };
        // The next process of the container clears away what is in its way.
        self.operate(id, Wanted::UntilReplaced, pause, move |actor, id, _| {
            let task = actor.tasks.get_mut(id);
            if let Some(task) = task.filter(|task| !task.life.is_going()) {
                task.life.keeps_figures();
                if !was_releasing {
                    actor.clear_away(id);
                }
            }
        });
    }

    /// Publishes the exit of a container, or remembers to when its caller has read its output and the exits
    /// of its execs are published.
    pub(super) fn report_exit(&mut self, id: &ContainerId, code: u32) {
        let now = self.node.clock.wall();
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.life.reported(code, now);
        let unread = task.init.end_streams();
        let Some(exit) = task.life.unpublished().filter(|_| task.life.is_known()) else {
            return self.publish_exit(id);
        };
        // Before anybody is told: who asks after the death of this shim is to be told the same.
        let init = task.init.pid;
        task.container.record_exit(init, exit.code, exit.at);
        if let Some(unread) = unread {
            task.life.awaits_reader(true);
            self.operate(id, Wanted::UntilDeleted, read(unread), |actor, id, _| {
                if let Some(task) = actor.tasks.get_mut(id) {
                    task.life.awaits_reader(false);
                    actor.publish_exit_if_due(id);
                }
            });
        }
        self.publish_exit_if_due(id);
    }

    /// Publishes the exit of a container when it is known, its caller has read its output, and the exits of
    /// its execs are published.
    pub(super) fn publish_exit_if_due(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        // A caller that deletes it has read what it wanted, and need not wait for an exec that has no process
        // yet.
        let is_to_wait = match task.life.has_deleter() {
            true => task.has_running_execs(),
            false => {
                let has_untold = task.untold_execs().next().is_some();
                has_untold || task.has_live_execs() || task.life.is_awaiting_reader()
            }
        };
        if task.life.unpublished().is_none() || !is_to_wait {
            return self.publish_exit(id);
        }
        if task.life.begins_to_wait() {
            let patience = async {
                tokio::time::sleep(TOLD_WITHIN).await;
                Ok::<_, Panicked>(())
            };
            self.operate(id, Wanted::UntilDeleted, patience, |actor, id, _| {
                actor.publish_exit(id);
            });
        }
    }

    /// Has the exit of a container wait until its last words are `left`, but not for long: their disk may
    /// stall.
    pub(super) fn await_last_words(&mut self, id: &ContainerId, left: Work<()>) {
        let patience = async {
            // Those that are late are left all the same.
            let _ = tokio::time::timeout(LAST_WORDS_WITHIN, left).await;
            Ok::<_, Panicked>(())
        };
        self.operate(id, Wanted::UntilDeleted, patience, |actor, id, _| {
            let Some(task) = actor.tasks.get_mut(id) else {
                return;
            };
            if mem::take(&mut task.last_words) == LastWords::BeforeExit {
                actor.publish_exit(id);
            }
        });
    }

    fn publish_exit(&mut self, id: &ContainerId) {
        let task = self.tasks.get(id);
        let untold = task.filter(|task| task.life.unpublished().is_some());
        let untold = untold.map(|task| task.untold_execs().cloned().collect::<Vec<_>>());
        for exec_id in untold.unwrap_or_default() {
            self.tell_exec_exit(id, &exec_id);
        }
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if task.last_words != LastWords::Over && task.life.unpublished().is_some() {
            task.last_words = LastWords::BeforeExit;
            return;
        }
        let Some(exit) = task.life.publishes() else {
            return;
        };
        let code = exit.code;
        if !task.life.is_known() {
            // It is being undone: nobody has heard of it.
            return;
        }
        let pid = task.init.pid;
        let event = exit_event(id, id.as_str(), pid, exit);
        self.node.publish(event);
        task.init.ended(exit);
        task.lives.are_over(pid);
        tracing::info!(container = %id, code, "exited");
        let is_to_go = task.life.has_deleter();
        let now = self.now();
        self.record.note(now, id, What::Reported(code));
        match is_to_go {
            true => self.begin_delete(id),
            false => self.sandbox_ended(id, exit),
        }
    }
}

/// How a process ended that was waited for. One that cannot be waited for any more is ended: what nobody
/// would hear of must not run on.
pub(super) fn known_end<T>(outcome: io::Result<ExitStatus>, end: impl FnOnce() -> T) -> ExitStatus {
    outcome.unwrap_or_else(|error| {
        tracing::error!(%error, "a process cannot be waited for, and is ended");
        end();
        ExitStatus::Signal(Signal::KILL.number())
    })
}
