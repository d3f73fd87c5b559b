//! The actor's mailbox and loop, and the execution of the core's actions.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep_until};
use tracing::{debug, error, info};

use crate::calls::{CallError, Callers, Reply};
use crate::clock::Timebase;
use crate::clock::alarm::Alarm;
use crate::clock::probe_cpu::ProbeCpuMeter;
use crate::node::Node;
use crate::pod_meta::PodMeta;
use crate::record::Record;
use crate::report_log;
use crate::sandbox::SandboxEnd;
use crate::shim_end::ShimEnd;
use crate::sizing::OwnCgroup;
use crate::status::Watchers;
use crate::task_table::{ScoreLog, Task};
use usher_core::lifecycle::{self, Action, ContainerId, Operations, Time, Wanted};

use super::operations::infallible;

/// Maximum number of messages that wait for the actor. The actor handles each in microseconds;
/// senders wait while the mailbox is full.
const MAILBOX: usize = 64;

/// A request for the actor.
pub(super) type Message = Box<dyn FnOnce(&mut Actor) + Send>;

/// A handle to a pod's actor. Clones lead to the same actor.
#[derive(Clone, Debug)]
pub struct Pod {
    mailbox: mpsc::Sender<Message>,
}

impl Pod {
    /// Sends the actor a request, and awaits the answer.
    ///
    /// # Errors
    ///
    /// The actor's error, or [`CallError::unknown`] if the actor is gone, or lost the request in a
    /// panic.
    pub async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(&mut Actor, Reply<T>) + Send + 'static,
    ) -> Result<T, CallError> {
        let gone = || CallError::unknown("the pod's actor did not answer");
        let (reply, answer) = oneshot::channel();
        let message: Message = Box::new(move |actor| question(actor, reply));
        self.mailbox.send(message).await.map_err(|_| gone())?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// The actor that owns a pod.
pub struct Actor {
    pub(super) core: lifecycle::Pod,
    time: Timebase,
    pub(super) tasks: BTreeMap<ContainerId, Task>,
    pub(super) callers: Callers,
    pub(super) operations: Operations,
    pub(super) record: Record,
    pub(super) meta: PodMeta,
    pub(super) watchers: Watchers,
    pub(super) node: Node,
    pub(super) mailbox: mpsc::Sender<Message>,
    messages: mpsc::Receiver<Message>,
    pub(super) shim_end: ShimEnd,
    pub(super) sandbox_end: SandboxEnd,
    pub(super) score_log: ScoreLog,
    pub(super) probe_cpu: ProbeCpuMeter,
    /// The cgroup of the pod; `None` until it is found. Stays `None` if other pods share the
    /// cgroup, or if usher orders no container of the pod.
    pub(super) pod_cgroup: Option<OwnCgroup>,
    alarm: Alarm,
}

impl Actor {
    /// Creates the actor of a pod, and the handle that sends requests to this actor. `namespace` is
    /// the namespace in containerd, such as `k8s.io`.
    pub fn new(namespace: &str, node: Node) -> (Actor, Pod) {
        let (mailbox, messages) = mpsc::channel(MAILBOX);
        let actor = Actor {
            core: lifecycle::Pod::default(),
            time: Timebase::begin(),
            tasks: BTreeMap::new(),
            callers: Callers::default(),
            operations: Operations::default(),
            record: Record::default(),
            meta: PodMeta::new(namespace),
            watchers: Watchers::default(),
            node,
            mailbox: mailbox.clone(),
            messages,
            shim_end: ShimEnd::new(),
            sandbox_end: SandboxEnd::default(),
            score_log: ScoreLog::default(),
            probe_cpu: ProbeCpuMeter::default(),
            pod_cgroup: None,
            alarm: Alarm::default(),
        };
        (actor, Pod { mailbox })
    }

    /// Handles messages and timers until the shim should end: containerd has asked for it and no
    /// task is left, or no caller has needed the shim for a while.
    pub async fn run(&mut self) {
        self.shim_end.resume();
        while !self.shim_end.is_now() {
            let timeout = match self.tasks.is_empty() {
                true => self.shim_end.next_check(),
                false => self
                    .core
                    .poll_timeout()
                    .and_then(|at| self.time.instant(self.alarm.schedule(at))),
            };
            tokio::select! {
                // Timers come first: a timer that has expired precedes later messages, and a stream
                // of messages must not starve the timers.
                biased;
                () = reach(timeout) => {
                    self.shim_end.check_time(self.tasks.is_empty());
                    let now = self.now();
                    self.alarm.ring(now);
                    self.run_guarded(|actor| actor.core.handle_timeout(now));
                }
                message = self.messages.recv() => {
                    // The actor itself holds a sender, so the channel never closes.
                    let Some(message) = message else { return };
                    let was_empty = self.tasks.is_empty();
                    self.run_guarded(message);
                    self.shim_end.note_call(was_empty && self.tasks.is_empty());
                }
            }
            self.run_guarded(Actor::carry_out);
            self.run_guarded(Actor::tell_watchers);
            self.probe_cpu.end_iteration();
            if self.shim_end.is_now() {
                self.confirm_end();
            }
        }
    }

    /// Handles the messages that have arrived since the shim decided to end. Returns true if the
    /// shim still ends, and false if one of them keeps it alive, for example a Create.
    pub fn confirm_end(&mut self) -> bool {
        while let Ok(message) = self.messages.try_recv() {
            self.run_guarded(message);
            self.run_guarded(Actor::carry_out);
        }
        self.shim_end.confirm(self.tasks.is_empty())
    }

    /// Postpones the shim's end, after [`confirm_end`](Actor::confirm_end) has returned false. The
    /// caller then calls [`run`](Actor::run) again, which soon checks again if the shim can end.
    pub fn postpone_end(&mut self) {
        self.shim_end.postpone();
    }

    /// Sets the check for the containerd that started this shim: `is_there` returns true while that
    /// containerd runs. A shim without a task ends if the check returns false.
    pub fn started_by(&mut self, is_there: impl Fn() -> bool + Send + 'static) {
        self.shim_end.started_by(is_there);
    }

    /// Handles Shutdown, which containerd sends after the deletion or failed creation of each task.
    /// `id` is the deleted or failed task. Answers at once. The shim ignores Shutdown while a
    /// caller knows of a task. If no caller does, the shim ends as soon as no task is left, and no
    /// announced call is still to come.
    pub fn shutdown(&mut self, id: &str, reply: Reply<()>) {
        let nobody_is_known = !self.tasks.keys().any(|id| self.core.is_known(id));
        let id = ContainerId::from(id);
        self.shim_end
            .request(&id, nobody_is_known, self.tasks.is_empty());
        let _ = reply.send(Ok(()));
    }

    /// Notes that a Create of task `id` will come: `start` has given a caller the address of this
    /// shim. Until the Create comes, for ten seconds at most, the shim does not end.
    pub fn announce(&mut self, id: &str) {
        let id = ContainerId::from(id);
        if !self.tasks.contains_key(&id) {
            self.node.engine.prepare_for_container();
            self.shim_end.announce(id);
        }
    }

    /// Does a piece of the actor's work, for example handles a message, and meters its CPU time. If
    /// the work panics, the rest of it is lost, and the pod goes on.
    fn run_guarded(&mut self, work: impl FnOnce(&mut Actor)) {
        let before = self.node.clock.cpu();
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            error!("internal error: a message was lost in a panic");
        }
        let taken = self.node.clock.cpu().saturating_sub(before);
        self.probe_cpu.add(taken);
    }

    pub(super) fn now(&self) -> Time {
        self.time.now()
    }

    /// Carries out all actions that the core has decided on, without waiting for those that take
    /// time. Called after each message, and when a timer has expired.
    fn carry_out(&mut self) {
        // The pod's cgroup gets its size before any container is released.
        self.settle_size();
        self.settle_scores();
        let mut reports = Vec::new();
        while let Some(action) = self.core.poll_action() {
            debug!(?action);
            match action {
                Action::Release { id } => self.release(&id),
                Action::AnswerStart {
                    id,
                    request,
                    answer,
                } => {
                    self.answer_start(&id, request, answer.map_err(CallError::from));
                }
                Action::AnswerKill { request, answer } => {
                    let answer = answer.map_err(CallError::from);
                    self.callers.answer_kill(request, answer);
                }
                Action::Signal { id, order } => self.signal(&id, order),
                Action::CancelWork { id } => self.cancel_work(&id),
                Action::KillRest { id, status } => self.kill_rest(&id, status),
                Action::ExitUnrestored { id, status } => self.handle_init_exit(&id, status),
                Action::PostStart { id, execution } => self.post_start(id, execution),
                Action::Restart { id, is_cleaned_up } => self.restart(&id, is_cleaned_up),
                Action::CancelRestart { id } => self.cancel_restart(&id),
                Action::Probe { id, execution } => self.probe(id, execution),
                Action::Hook {
                    id,
                    kind,
                    hook,
                    limit,
                } => self.hook(id, kind, hook, limit),
                Action::EndOutput { id, code } => self.end_output(&id, code),
                Action::PublishExit { id, code } => self.publish_exit(&id, code),
                Action::PublishExecExit { id, exec_id, code } => {
                    self.publish_exec_exit(&id, &exec_id, code);
                }
                Action::Update {
                    id,
                    request,
                    for_next_process,
                } => self.begin_update(&id, request, for_next_process),
                Action::RefuseUpdate { request, refusal } => self.refuse_update(request, refusal),
                Action::CleanUp { id } => self.clean_up(&id),
                Action::KillParked { id } => self.kill_parked(&id),
                Action::Delete { id, how } => self.begin_deletion(&id, how),
                Action::WriteMessage {
                    id,
                    message,
                    last_words,
                } => self.write_message(&id, &message, last_words),
                Action::Report(report) => {
                    self.record.note_report(self.now(), &report);
                    self.node.archive.decided(&report);
                    reports.push(report);
                }
            }
        }
        report_log::log(reports);
    }

    fn write_message(&mut self, id: &ContainerId, message: &str, last_words: bool) {
        info!(container = %id, "{message}");
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let streams = Some(&task.init.streams);
        let written = task.container.write_message(streams, message, last_words);
        match written.filter(|_| last_words) {
            Some(written) => {
                let written = infallible(written);
                self.operate(id, Wanted::UntilDeleted, written, |actor, id, _| {
                    actor.core.handle_last_words_written(actor.now(), id);
                });
            }
            None if last_words => self.core.handle_last_words_written(self.now(), id),
            None => {}
        }
    }
}

/// Waits until `at`; forever if `at` is `None`.
async fn reach(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}
