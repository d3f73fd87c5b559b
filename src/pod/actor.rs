//! The actor's loop, and what it does for the core.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, error, info, warn};

use crate::caught::{Panicked, caught};
use crate::engine::{EngineError, Halt, Init, Killing, Namespaces, PodCgroup, Vantage};
use crate::lifecycle::{self, Action, ContainerId, HookKind, Phase, Report, RequestId, Time};
use crate::plan::{Hook, PodIdentity, Rules, Signal};
use crate::record::{Record, What};

use super::life::Remains;
use super::process::{SignalOrder, Task};
use super::sizes::Sizing;
use super::{CallError, MAILBOX, Message, Node, Pod, Reply};

/// How long a shim lives that has nothing to look after and that nobody talks to.
const ENDS_WHEN_EMPTY_FOR: Duration = Duration::from_secs(300);

/// How often such a shim looks whether the containerd that had it started is still there, whose Create
/// may come late. If it has died nothing will come.
const LOOKS_FOR_STARTER_EVERY: Duration = Duration::from_secs(10);

/// How soon a task comes after somebody was told of this shim: containerd's next call is its Create.
const COMES_WITHIN: Duration = Duration::from_secs(10);

/// How many such tasks are remembered.
const ANNOUNCED_AT_MOST: usize = 256;

/// When a shim that cannot end this moment looks again.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// How long a release has the machine to itself: what can wait waits.
pub(super) const RELEASES_WITHIN: Duration = Duration::from_millis(5);

/// The owner of a pod.
pub struct Actor {
    pub(super) core: lifecycle::Pod,
    pub(super) tasks: BTreeMap<ContainerId, Task>,
    pub(super) callers: Callers,
    pub(super) record: Record,
    /// Of the first container.
    pub(super) identity: PodIdentity,
    /// For whoever watches: how much has changed in the record.
    changes: watch::Sender<u64>,
    pub(super) namespace: String,
    pub(super) node: Node,
    /// Of the node, as they were when the pod began.
    pub(super) rules: Rules,
    pub(super) mailbox: mpsc::Sender<Message>,
    messages: mpsc::Receiver<Message>,
    /// The core counts its time from here.
    origin: Instant,
    pub(super) over: bool,
    /// The kernel has refused a score, and it was said.
    pub(super) refused_score: bool,
    /// The process of the pod's sandbox, which may have ended, and the namespaces that it was in.
    pub(super) sandbox: Option<(i32, Namespaces)>,
    bill: Bill,
    /// The same, if it is ours to size.
    pub(super) sizing: Option<Sizing>,
    /// The pod's cgroup, if it is the pod's alone: the shim's commands for the pod run there.
    pub(super) pod_cgroup: Option<Arc<dyn PodCgroup>>,
    /// The end was asked for, and only creations that are being undone, or are announced, stand
    /// against it.
    pub(super) leaving: bool,
    /// The tasks that will be created here, and until when that is believed.
    pub(super) announced: BTreeMap<ContainerId, Instant>,
    /// When to look again whether this is the end.
    look_again: Option<Instant>,
    /// Whether the containerd that had this shim started is still there.
    starter_is_there: Option<Box<dyn Fn() -> bool + Send>>,
}

/// Who waits for an answer that the core decides.
#[derive(Debug, Default)]
pub(super) struct Callers {
    pub starts: BTreeMap<RequestId, Reply<i32>>,
    pub kills: BTreeMap<RequestId, Reply<()>>,
    requests: u64,
}

/// What the pod's probes cost the shim.
#[derive(Debug, Default)]
struct Bill {
    /// The turn that the loop is in.
    turn: Turn,
    /// What was done for probes beside their attempts, in CPU time, and no attempt was charged with.
    unbilled: Duration,
}

/// One round of the actor's loop: an event and what follows from it.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    /// The CPU time that it has taken.
    taken: Duration,
    /// A probe was begun in it, or its result has come.
    is_for_a_probe: bool,
}

impl Callers {
    /// A number for one more.
    pub fn next(&mut self) -> RequestId {
        self.requests = self.requests.wrapping_add(1);
        RequestId(self.requests)
    }
}

impl Bill {
    fn turn_is_over(&mut self) {
        let turn = std::mem::take(&mut self.turn);
        if turn.is_for_a_probe {
            self.unbilled = self.unbilled.saturating_add(turn.taken);
        }
    }
}

impl Actor {
    /// An actor for a pod of containerd's `namespace`, and the way to it.
    pub fn new(namespace: &str, node: Node, rules: Rules) -> (Actor, Pod) {
        let (mailbox, messages) = mpsc::channel(MAILBOX);
        let actor = Actor {
            core: lifecycle::Pod::default(),
            tasks: BTreeMap::new(),
            callers: Callers::default(),
            record: Record::default(),
            identity: PodIdentity::default(),
            changes: watch::Sender::new(0),
            namespace: namespace.to_owned(),
            node,
            rules,
            mailbox: mailbox.clone(),
            messages,
            origin: Instant::now(),
            over: false,
            refused_score: false,
            sandbox: None,
            bill: Bill::default(),
            sizing: None,
            pod_cgroup: None,
            leaving: false,
            announced: BTreeMap::new(),
            look_again: None,
            starter_is_there: None,
        };
        (actor, Pod { mailbox })
    }

    /// Who had this shim started `is_there` or not: without it nobody will end an empty shim.
    pub fn started_by(&mut self, is_there: impl Fn() -> bool + Send + 'static) {
        self.starter_is_there = Some(Box::new(is_there));
    }

    /// Works until [`shutdown`](Actor::shutdown) is granted, or nobody has wanted anything of it for
    /// long: a containerd that died after it had started the shim will never say so.
    pub async fn run(&mut self) {
        let mut empty_since = Instant::now();
        let mut looked = empty_since;
        while !self.over {
            let timeout = match self.tasks.is_empty() {
                true if self.leaving => self.look_again,
                true => {
                    let ends = empty_since.checked_add(ENDS_WHEN_EMPTY_FOR);
                    let looks = self
                        .starter_is_there
                        .as_ref()
                        .and_then(|_| looked.max(empty_since).checked_add(LOOKS_FOR_STARTER_EVERY));
                    ends.into_iter().chain(looks).min()
                }
                false => self.core.poll_timeout().and_then(|at| self.instant(at)),
            };
            tokio::select! {
                // What is due is due before what comes after it; and callers that never rest must not
                // keep time from passing.
                biased;
                () = sleep_until(timeout.unwrap_or(self.origin)), if timeout.is_some() => {
                    looked = Instant::now();
                    let is_empty_for = looked.duration_since(empty_since);
                    self.over = self.is_idle()
                        && (self.leaving || is_empty_for >= ENDS_WHEN_EMPTY_FOR || self.is_orphan());
                    self.guarded(|actor| actor.core.handle_timeout(actor.now()));
                }
                message = self.messages.recv() => {
                    // The actor holds a mailbox itself, so there is always one more message.
                    let Some(message) = message else { return };
                    let was_empty = self.tasks.is_empty();
                    self.guarded(message);
                    // Who only looks keeps nobody here; who was announced does.
                    let now = Instant::now();
                    let is_awaited = self.announced.values().any(|until| *until > now);
                    if !was_empty || !self.tasks.is_empty() || is_awaited {
                        empty_since = now;
                    }
                }
            }
            self.guarded(Actor::carry_out);
            self.guarded(Actor::tell_watchers);
            self.bill.turn_is_over();
            if self.over {
                self.over = self.is_over();
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
        self.is_idle()
    }

    /// Not yet: the end is to be looked at again in a moment.
    pub fn stay(&mut self) {
        self.over = false;
        self.leaving = true;
        self.look_again = Instant::now().checked_add(LOOK_AGAIN_AFTER);
    }

    /// The shim is to end if it has nothing left to look after; containerd says so after every
    /// task, and other containers of the pod may live on. Task `id` will not come any more.
    pub fn shutdown(&mut self, id: &str, reply: Reply<()>) {
        self.announced.remove(&ContainerId::from(id));
        self.leaving = self.tasks.values().all(|task| !task.life.is_known());
        self.over = self.is_idle();
        let _ = reply.send(Ok(()));
    }

    /// A task that does not exist yet will be created here: somebody has been told of this shim.
    pub fn announce(&mut self, id: &str) {
        let id = ContainerId::from(id);
        let until = Instant::now().checked_add(COMES_WITHIN);
        if let Some(until) = until
            && self.announced.len() < ANNOUNCED_AT_MOST
            && !self.tasks.contains_key(&id)
        {
            self.announced.insert(id, until);
        }
    }

    /// Whether there is nothing to look after and nothing will come; else looks again later.
    pub(super) fn is_idle(&mut self) -> bool {
        let now = Instant::now();
        self.announced.retain(|_, until| *until > now);
        self.look_again = self.announced.values().max().copied();
        self.tasks.is_empty() && self.announced.is_empty()
    }

    fn is_orphan(&self) -> bool {
        let is_there = self.starter_is_there.as_ref();
        is_there.is_some_and(|is_there| !is_there())
    }

    /// A panic loses one message, never the pod.
    fn guarded(&mut self, work: impl FnOnce(&mut Actor)) {
        let before = self.node.clock.cpu();
        if catch_unwind(AssertUnwindSafe(|| work(self))).is_err() {
            error!("a message was lost in a panic");
        }
        let taken = self.node.clock.cpu().saturating_sub(before);
        self.bill.turn.taken = self.bill.turn.taken.saturating_add(taken);
    }

    pub(super) fn now(&self) -> Time {
        Time::from_origin(self.origin.elapsed())
    }

    fn instant(&self, at: Time) -> Option<Instant> {
        self.origin.checked_add(at.since_origin())
    }

    /// Something may have happened: who watches is told if it has.
    fn tell_watchers(&mut self) {
        let changes = self.record.changes();
        if *self.changes.borrow() == changes {
            return;
        }
        let now = self.now();
        let view = self.core.view(now);
        let is_ready = view.phase == Phase::Running && view.ready.0 == view.ready.1;
        let stages = view.stages.iter().map(|stage| stage.is_done);
        self.record.progress(now, stages, is_ready);
        self.changes.send_replace(changes);
    }

    /// What tells that something has happened.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Does `work` beside everything else, and `then` what follows from it, whatever comes of it.
    pub(super) fn job<T: Send + 'static, E: From<Panicked> + Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        then: impl FnOnce(&mut Actor, Result<T, E>) + Send + 'static,
    ) {
        let mailbox = self.mailbox.clone();
        tokio::spawn(async move {
            let outcome = caught(work).await;
            let message: Message = Box::new(move |actor| then(actor, outcome));
            // If the actor is gone there is no pod any more.
            let _ = mailbox.send(message).await;
        });
    }

    /// The same for somebody who waits for the answer: `halt`, which `work` is under, is called when
    /// nobody does any more.
    pub(super) fn job_for<T, E, R>(
        &self,
        mut reply: Reply<R>,
        halt: Halt,
        work: impl Future<Output = Result<T, E>> + Send + 'static,
        then: impl FnOnce(&mut Actor, Result<T, E>, Reply<R>) + Send + 'static,
    ) where
        T: Send + 'static,
        E: From<Panicked> + Send + 'static,
        R: Send + 'static,
    {
        let work = async move {
            let mut work = pin!(caught(work));
            let outcome = tokio::select! {
                biased;
                outcome = &mut work => outcome,
                () = reply.closed() => {
                    halt.call();
                    work.await
                }
            };
            Ok::<_, Panicked>((outcome, reply))
        };
        self.job(work, move |actor, done| {
            if let Ok((outcome, reply)) = done {
                then(actor, outcome, reply);
            }
        });
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
                Action::Restart { id } => self.restart(&id),
                Action::Halt { id } => self.halt(&id),
                Action::Probe { id, life } => self.probe(id, life),
                Action::Hook {
                    id,
                    kind,
                    hook,
                    limit,
                } => self.hook(id, kind, hook, limit),
                Action::ReportExit { id, code } => self.report_exit(&id, code),
                Action::Tell {
                    id,
                    message,
                    last_words,
                } => self.tell(&id, &message, last_words),
                Action::Report(report) => {
                    self.record.decided(self.now(), &report);
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

    fn release(&mut self, id: &ContainerId) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        if task.life.is_unborn() {
            return self.restore(id);
        }
        self.execute(id, |actor, id, outcome| {
            let now = actor.now();
            actor.core.handle_released(now, id, outcome);
        });
    }

    /// Has the program of a parked init process executed, and does then what follows from it.
    pub(super) fn execute(
        &mut self,
        id: &ContainerId,
        then: impl FnOnce(&mut Actor, &ContainerId, Result<(), String>) + Send + 'static,
    ) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        let Some(init) = task.handle.clone() else {
            return then(self, id, Err("it has no init process".to_owned()));
        };
        let (releasing, gone) = oneshot::channel();
        task.releasing = Some(releasing);
        let halt = task.halt.clone();
        let release = async move { init.release(gone, &halt).await };
        let id = id.clone();
        self.job(release, move |actor, outcome| {
            if let Some(task) = actor.tasks.get_mut(&id) {
                task.releasing = None;
            }
            if outcome.is_ok() {
                actor.record.note(actor.now(), &id, What::Executed);
            }
            then(actor, &id, outcome);
        });
    }

    fn probe(&mut self, id: ContainerId, life: u64) {
        let now = self.now();
        let target = self.target(&id);
        let (Some((init, from, halt)), Some(probe)) = (target, self.core.probe(now, &id)) else {
            return self
                .core
                .handle_probed(now, &id, life, false, Duration::ZERO);
        };
        self.bill.turn.is_for_a_probe = true;
        let attempt = async move { Ok::<_, Panicked>(init.probe(&probe, &from, &halt).await) };
        self.job(attempt, move |actor, attempted| {
            let (outcome, cost) = match attempted {
                Ok(attempted) => (attempted.outcome, attempted.cost),
                Err(panicked) => (Err(panicked.to_string()), Duration::ZERO),
            };
            actor.bill.turn.is_for_a_probe = true;
            let cost = cost.saturating_add(std::mem::take(&mut actor.bill.unbilled));
            debug!(container = %id, ?outcome, ?cost, "probed");
            let now = actor.now();
            let succeeded = outcome.is_ok();
            actor.core.handle_probed(now, &id, life, succeeded, cost);
        });
    }

    fn hook(&mut self, id: ContainerId, kind: HookKind, hook: Hook, limit: Duration) {
        let Some((init, from, halt)) = self.target(&id) else {
            let gone = Err("its container is gone".to_owned());
            return self.core.handle_hooked(self.now(), &id, kind, gone);
        };
        let run = async move { init.hook(&hook, limit, &from, &halt).await };
        self.job(run, move |actor, outcome| {
            let now = actor.now();
            actor.core.handle_hooked(now, &id, kind, outcome);
        });
    }

    /// Where a probe or a hook of a container goes, and comes from.
    fn target(&self, id: &ContainerId) -> Option<(Arc<dyn Init>, Vantage, Halt)> {
        let task = self.tasks.get(id)?;
        let from = Vantage {
            place: self.pod_cgroup.as_ref().and_then(|pod| pod.place()),
            ports: task.facts.ports.clone(),
        };
        Some((task.handle.clone()?, from, task.halt.clone()))
    }

    pub(super) fn signal(&mut self, id: &ContainerId, order: SignalOrder) {
        if self.signal_unborn(id, order) {
            return;
        }
        let SignalOrder { signal, all, .. } = order;
        let Some(task) = self.tasks.get(id) else {
            return self.signalled(id, order, Err(CallError::not_found(id.as_str(), "")));
        };
        // What is under way for a container that is to be killed is of no use any more, whoever delivers
        // the signal and whether its init is still there; but what it is written to is kept whole.
        if signal == Signal::KILL && task.life.remains() != Remains::Going {
            task.halt.call();
        }
        // With a PID namespace of its own everything in the container has died with its init.
        let is_gone = task.life.has_ended() && (!all || task.facts.has_own_pid_namespace);
        let Some(init) = task.handle.as_ref().filter(|_| !is_gone) else {
            return self.signalled(id, order, Err(CallError::finished(id.as_str())));
        };
        match init.kill(signal, all) {
            Killing::Done(killed) => self.signalled(id, order, named(killed, id.as_str())),
            Killing::UnderWay(work) => {
                let id = id.clone();
                self.job(work, move |actor, killed| {
                    actor.signalled(&id, order, named(killed, id.as_str()));
                });
            }
        }
    }

    pub(super) fn signalled(
        &mut self,
        id: &ContainerId,
        order: SignalOrder,
        outcome: Result<(), CallError>,
    ) {
        let SignalOrder { signal, why, .. } = order;
        if outcome.is_ok() {
            let now = self.now();
            self.record.delivered(now, id, signal, why);
        }
        match (order.request, outcome) {
            (Some(request), outcome) => self.answer_kill(request, outcome),
            (None, Ok(())) => info!(container = %id, %signal, ?why, "signalled"),
            (None, Err(error)) => warn!(container = %id, %signal, ?why, %error, "not signalled"),
        }
    }

    fn answer_kill(&mut self, request: RequestId, outcome: Result<(), CallError>) {
        if let Some(reply) = self.callers.kills.remove(&request) {
            let _ = reply.send(outcome);
        }
    }

    fn tell(&mut self, id: &ContainerId, message: &str, last_words: bool) {
        info!(container = %id, "{message}");
        if let Some(task) = self.tasks.get(id) {
            task.container.tell(message, last_words);
        }
    }

    /// Publishes an exit, or remembers to when the container's execs have ended.
    fn report_exit(&mut self, id: &ContainerId, code: u32) {
        let Some(task) = self.tasks.get_mut(id) else {
            return;
        };
        task.life.reported(code, self.node.clock.wall());
        self.publish_exit_if_due(id);
    }
}

/// What has become of a signal to the process that the caller knows by this name.
pub(super) fn named(killed: Result<(), EngineError>, name: &str) -> Result<(), CallError> {
    killed.map_err(|error| match error {
        EngineError::Gone(_) => CallError::finished(name),
        error => CallError::unknown(error),
    })
}

fn log(report: &Report) {
    match report {
        Report::OtherPlan { .. }
        | Report::GraceOver { .. }
        | Report::Stretched { .. }
        | Report::Misplaced { .. } => {
            warn!("{report}")
        }
        Report::ProbeFailed { .. } => debug!("{report}"),
        _ => info!("{report}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Publisher;
    use crate::reaper::Reaper;
    use crate::shim::serve::this_node;

    #[test]
    fn what_follows_from_a_job_is_done_though_the_job_panics() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let outcome = runtime.block_on(async {
            let publisher = Publisher::new("", "test");
            let node = this_node("test", publisher, Reaper::default());
            let (mut actor, pod) = Actor::new("test", node, Rules::default());
            tokio::spawn(async move { actor.run().await });
            pod.ask(|actor, reply| {
                let work = async {
                    tokio::task::yield_now().await;
                    if reply_is_wanted() {
                        panic!("a mistake");
                    }
                    Ok::<_, CallError>(())
                };
                actor.job(work, |_, outcome| drop(reply.send(outcome)));
            })
            .await
        });
        assert_eq!(outcome, Err(Panicked.into()));
    }

    fn reply_is_wanted() -> bool {
        true
    }

    #[test]
    fn a_shim_that_nobody_wants_anything_of_ends_by_itself() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let begun = Instant::now();
            let publisher = Publisher::new("/nowhere", "test");
            let node = this_node("test", publisher, Reaper::default());
            let (mut actor, pod) = Actor::new("test", node, Rules::default());
            let asked = Duration::from_secs(200);
            tokio::spawn(async move {
                tokio::time::sleep(asked).await;
                let pid = pod.ask(|actor, reply| actor.connect("web", reply)).await;
                assert_eq!(pid, Ok(0));
            });
            actor.run().await;
            assert_eq!(
                begun.elapsed().as_secs(),
                (asked + ENDS_WHEN_EMPTY_FOR).as_secs()
            );
        });
    }

    /// After how many seconds a shim ends that was started for a task which never comes, if the one
    /// who had it started dies after `dies`.
    fn ends_after(dies: u64, announced: impl Fn(&mut Actor)) -> u64 {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let begun = Instant::now();
            let publisher = Publisher::new("/nowhere", "test");
            let node = this_node("test", publisher, Reaper::default());
            let (mut actor, pod) = Actor::new("test", node, Rules::default());
            announced(&mut actor);
            actor.started_by(move || begun.elapsed() < Duration::from_secs(dies));
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(35)).await;
                // Who only looks changes nothing.
                let _ = pod
                    .ask(|actor, reply| drop(reply.send(Ok(actor.watch()))))
                    .await;
            });
            actor.run().await;
            begun.elapsed().as_secs()
        })
    }

    #[test]
    fn a_shim_without_a_task_ends_soon_after_the_containerd_that_had_it_started() {
        let for_one = |actor: &mut Actor| actor.announce("web");
        assert_eq!(ends_after(0, for_one), 10);
        assert_eq!(ends_after(12, for_one), 20);
        assert_eq!(ends_after(55, for_one), 60);
        assert_eq!(ends_after(1000, for_one), ENDS_WHEN_EMPTY_FOR.as_secs());
    }

    #[test]
    fn a_task_that_was_announced_is_awaited_though_the_first_containerd_has_died() {
        let late = |actor: &mut Actor| {
            let until = Instant::now() + Duration::from_secs(25);
            actor.announced.insert(ContainerId::from("web"), until);
        };
        assert_eq!(ends_after(0, late), 30);
    }
}
