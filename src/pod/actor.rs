//! The actor's loop, and what it does for the core.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, error, info, warn};

use crate::caught::Panicked;
use crate::clock::Timebase;
use crate::engine::Coming;
use crate::lifecycle::{
    self, Action, ContainerId, Operations, RELEASES_WITHIN, Report, RequestId, Time, Wanted,
};
use crate::record::Record;

use super::alarm::Alarm;
use super::bill::Bill;
use super::process::Task;
use super::sandbox::SandboxEnd;
use super::scores::ScoreLog;
use super::shim_end::ShimEnd;
use super::signals::SignalOrder;
use super::sizes::OwnCgroup;
use super::status::Watchers;
use super::who::Who;
use super::{CallError, MAILBOX, Message, Node, Pod, Reply};

/// The owner of a pod.
pub struct Actor {
    pub(super) core: lifecycle::Pod,
    time: Timebase,
    pub(super) tasks: BTreeMap<ContainerId, Task>,
    pub(super) callers: Callers,
    pub(super) operations: Operations,
    pub(super) record: Record,
    pub(super) who: Who,
    pub(super) watchers: Watchers,
    pub(super) node: Node,
    pub(super) mailbox: mpsc::Sender<Message>,
    messages: mpsc::Receiver<Message>,
    pub(super) shim_end: ShimEnd,
    pub(super) sandbox_end: SandboxEnd,
    pub(super) score_log: ScoreLog,
    pub(super) bill: Bill,
    /// None if it is not the pod's alone, or not known yet.
    pub(super) pod_cgroup: Option<OwnCgroup>,
    alarm: Alarm,
}

/// Who waits for an answer that the core decides.
#[derive(Debug, Default)]
pub(super) struct Callers {
    pub starts: BTreeMap<RequestId, Reply<i32>>,
    pub kills: BTreeMap<RequestId, Reply<()>>,
    requests: u64,
}

impl Callers {
    /// A number for one more.
    pub fn next(&mut self) -> RequestId {
        self.requests = self.requests.wrapping_add(1);
        RequestId(self.requests)
    }
}

impl Actor {
    /// An actor for a pod of containerd's `namespace`, and the way to it.
    pub fn new(namespace: &str, node: Node) -> (Actor, Pod) {
        let (mailbox, messages) = mpsc::channel(MAILBOX);
        let actor = Actor {
            core: lifecycle::Pod::default(),
            time: Timebase::begin(),
            tasks: BTreeMap::new(),
            callers: Callers::default(),
            operations: Operations::default(),
            record: Record::default(),
            who: Who::new(namespace),
            watchers: Watchers::default(),
            node,
            mailbox: mailbox.clone(),
            messages,
            shim_end: ShimEnd::new(),
            sandbox_end: SandboxEnd::default(),
            score_log: ScoreLog::default(),
            bill: Bill::default(),
            pod_cgroup: None,
            alarm: Alarm::default(),
        };
        (actor, Pod { mailbox })
    }

    /// Works until [`shutdown`](Actor::shutdown) is granted, or nobody has wanted anything of it for
    /// long.
    pub async fn run(&mut self) {
        self.shim_end.begins();
        while !self.shim_end.is_now() {
            let timeout = match self.tasks.is_empty() {
                true => self.shim_end.looks_at(),
                false => self
                    .core
                    .poll_timeout()
                    .and_then(|at| self.time.instant(self.alarm.set(at))),
            };
            tokio::select! {
                // What is due is due before what comes after it; and callers that never rest must not
                // keep time from passing.
                biased;
                () = reach(timeout) => {
                    self.shim_end.time_passes(self.tasks.is_empty());
                    let now = self.now();
                    self.alarm.ring(now);
                    self.guarded(|actor| actor.core.handle_timeout(now));
                }
                message = self.messages.recv() => {
                    // The actor holds a mailbox itself, so there is always one more message.
                    let Some(message) = message else { return };
                    let was_empty = self.tasks.is_empty();
                    self.guarded(message);
                    self.shim_end.was_asked(was_empty && self.tasks.is_empty());
                }
            }
            self.guarded(Actor::carry_out);
            self.guarded(Actor::tell_watchers);
            self.bill.turn_is_over();
            if self.shim_end.is_now() {
                self.is_over();
            }
        }
    }

    /// Whether this is still the end. What has come before it was granted is not left unanswered; a
    /// Create takes it back.
    pub fn is_over(&mut self) -> bool {
        while let Ok(message) = self.messages.try_recv() {
            self.guarded(message);
            self.guarded(Actor::carry_out);
        }
        self.shim_end.confirm(self.tasks.is_empty())
    }

    /// Not yet: the end is to be looked at again in a moment.
    pub fn stay(&mut self) {
        self.shim_end.delay();
    }

    /// Who had this shim started `is_there` or not.
    pub fn started_by(&mut self, is_there: impl Fn() -> bool + Send + 'static) {
        self.shim_end.started_by(is_there);
    }

    /// The shim is to end if it has nothing left to look after; containerd says so after every
    /// task, and other containers of the pod may live on. Task `id` will not come any more.
    pub fn shutdown(&mut self, id: &str, reply: Reply<()>) {
        let nobody_is_known = !self.tasks.keys().any(|id| self.core.is_known(id));
        let id = ContainerId::from(id);
        self.shim_end
            .ask(&id, nobody_is_known, self.tasks.is_empty());
        let _ = reply.send(Ok(()));
    }

    /// A task that does not exist yet will be created here: somebody has been told of this shim.
    pub fn announce(&mut self, id: &str) {
        let id = ContainerId::from(id);
        if !self.tasks.contains_key(&id) {
            self.node.engine.get_ready(Coming::Container);
            self.shim_end.announce(id);
        }
    }

    /// A panic loses one message, never the pod.
    fn guarded(&mut self, work: impl FnOnce(&mut Actor)) {
        let before = self.node.clock.cpu();
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            error!("a message was lost in a panic");
        }
        let taken = self.node.clock.cpu().saturating_sub(before);
        self.bill.took(taken);
    }

    pub(super) fn now(&self) -> Time {
        self.time.now()
    }

    /// Carries out all that the core wants done by now.
    fn carry_out(&mut self) {
        // Before anything is released.
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
                    self.answer_kill(request, answer.map_err(CallError::from));
                }
                Action::Signal {
                    id,
                    signal,
                    all,
                    request,
                    why,
                } => {
                    let order = SignalOrder {
                        signal,
                        all,
                        request,
                        why,
                    };
                    self.signal(&id, order);
                }
                Action::PostStart { id, life } => self.post_start(id, life),
                Action::Restart { id, is_cleaned_up } => self.restart(&id, is_cleaned_up),
                Action::Halt { id } => self.halt(&id),
                Action::Probe { id, life } => self.probe(id, life),
                Action::Hook {
                    id,
                    kind,
                    hook,
                    limit,
                } => self.hook(id, kind, hook, limit),
                Action::EndOutput { id, code } => self.end_output(&id, code),
                Action::PublishExit { id, code } => self.publish_exit(&id, code),
                Action::PublishExecExit { id, exec_id } => self.publish_exec_exit(&id, &exec_id),
                Action::CleanUp { id } => self.clean_up(&id),
                Action::KillParked { id } => self.kill_parked(&id),
                Action::Delete { id, how } => self.begin_deletion(&id, how),
                Action::Tell {
                    id,
                    message,
                    last_words,
                } => self.tell(&id, &message, last_words),
                Action::Report(report) => {
                    self.record.decided(self.now(), &report);
                    self.node.archive.decided(&report);
                    reports.push(report);
                }
            }
        }
        if !reports.is_empty() {
            // After the jobs that were just begun. A line wakes containerd, and on a small machine
            // that takes the very CPU which a program needs that was just released.
            let released = reports
                .iter()
                .any(|report| matches!(report, Report::Released { .. }));
            tokio::spawn(async move {
                if released {
                    sleep(RELEASES_WITHIN).await;
                }
                reports.iter().for_each(log);
            });
        }
    }

    fn tell(&mut self, id: &ContainerId, message: &str, last_words: bool) {
        info!(container = %id, "{message}");
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let streams = Some(&task.init.streams);
        let written = task.container.tell(streams, message, last_words);
        match written.filter(|_| last_words) {
            Some(written) => {
                let written = async {
                    written.await;
                    Ok::<_, Panicked>(())
                };
                self.operate(id, Wanted::UntilDeleted, written, |actor, id, _| {
                    let now = actor.now();
                    actor.core.handle_last_words_written(now, id);
                });
            }
            None if last_words => self.core.handle_last_words_written(self.now(), id),
            None => {}
        }
    }
}

/// Waits until then; none never comes.
async fn reach(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

fn log(report: &Report) {
    match report {
        Report::OtherPlan { .. }
        | Report::GraceOver { .. }
        | Report::Stretched { .. }
        | Report::Misplaced { .. } => {
            warn!("{report}")
        }
        Report::Circle { .. } => error!("{report}"),
        Report::ProbeFailed { .. } | Report::TooLate { .. } => debug!("{report}"),
        _ => info!("{report}"),
    }
}
