//! A simulated containerd: while it is up, it calls the Task service and receives events.
//!
//! Like the real one it also sends a Wait after each Create, a Delete after a failed Create or
//! Start, and a Shutdown after each Delete. When it comes back, it sends a State for each task. If
//! a caller gives up, or containerd dies, the futures of the calls are dropped.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use containerd_shim_protos::api::{
    CreateTaskRequest, DeleteRequest, ExecProcessRequest, KillRequest, ShutdownRequest,
    StartRequest, StateRequest, Status, WaitRequest,
};
use containerd_shim_protos::events::task::{
    TaskCreate, TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit, TaskOOM, TaskPaused,
    TaskResumed, TaskStart,
};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::sandbox_api::{
    CreateSandboxRequest, ShutdownSandboxRequest, StartSandboxRequest, StopSandboxRequest,
    WaitSandboxRequest,
};
use containerd_shim_protos::sandbox_async::Sandbox;
use containerd_shim_protos::shim_async::Task;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use ttrpc::r#async::TtrpcContext;
use usher_core::simulator::Seen;

use crate::events::{Event, Publish};
use crate::pod::Pod;
use crate::sandbox::Sandboxes;
use crate::task::Service;

/// The time limit of a call whose caller sets none.
const USUAL: Duration = Duration::from_secs(120);

/// Time for which containerd waits for the deletion of a container that could not be created.
const CLEANS_UP_WITHIN: Duration = Duration::from_secs(5);

/// An event that containerd has received.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    Created {
        pid: u32,
    },
    Started {
        pid: u32,
    },
    Exited {
        exec_id: String,
        pid: u32,
        code: u32,
    },
    Deleted {
        code: u32,
    },
    OutOfMemory,
    ExecAdded {
        exec_id: String,
    },
    ExecStarted {
        exec_id: String,
        pid: u32,
    },
    Paused,
    Resumed,
}

/// A call that was answered, or that its caller has given up.
#[derive(Clone, Debug)]
pub struct Called {
    pub call: &'static str,
    pub id: String,
    pub exec_id: String,
    pub at: Duration,
    pub took: Duration,
    /// Time limit of the caller.
    pub limit: Option<Duration>,
    /// The exit code or process id in the answer, or an error.
    pub outcome: Result<u32, CallFailure>,
    /// True if the caller gave up or containerd died before the answer.
    pub is_cut: bool,
}

/// The simulated containerd.
#[derive(Clone)]
pub struct Containerd {
    shared: Arc<Shared>,
    origin: Instant,
}

struct Shared {
    inner: Mutex<Inner>,
    /// Wakes the simulated kubelet when there is an event for it.
    news: Notify,
    /// Wakes the receiver of events when the shim has published an event.
    came: Notify,
    is_back: Notify,
}

#[derive(Default)]
struct Inner {
    away_until: Option<Instant>,
    /// Cancels the connections of containerd to its shims.
    connections: CancellationToken,
    shims: Vec<Shim>,
    /// True if the shims make the sandboxes themselves. Then there is no pause container.
    is_pauseless: bool,
    tasks: BTreeMap<String, Known>,
    /// Published events that containerd has not received yet, with their times of arrival.
    queue: VecDeque<(Instant, Any)>,
    told: Vec<(Duration, String, Notice)>,
    called: Vec<Called>,
    /// The answers to State: for each the time, the task and its state.
    read: Vec<(Duration, String, Status)>,
    seen: Vec<Seen>,
    /// Calls that are not answered yet.
    open: BTreeMap<u64, String>,
    calls: u64,
    /// Delays of the next events.
    delays: VecDeque<Duration>,
}

/// The services of a shim.
#[derive(Clone)]
struct Shim {
    tasks: Arc<Service>,
    sandboxes: Sandboxes,
}

/// A task that containerd knows.
#[derive(Clone, Debug)]
struct Known {
    shim: usize,
    exited: Option<u32>,
    is_deleted: bool,
}

impl Containerd {
    pub fn new(is_pauseless: bool) -> Containerd {
        let inner = Inner {
            is_pauseless,
            ..Inner::default()
        };
        let shared = Shared {
            inner: Mutex::new(inner),
            news: Notify::new(),
            came: Notify::new(),
            is_back: Notify::new(),
        };
        Containerd {
            shared: Arc::new(shared),
            origin: Instant::now(),
        }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        let inner = self.shared.inner.lock();
        inner.unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a shim. All containers that are created from now on belong to this shim.
    pub fn adopt(&self, pod: Pod) {
        let shim = Shim {
            tasks: Arc::new(Service::new(pod.clone())),
            sandboxes: Sandboxes::new(pod),
        };
        self.inner().shims.push(shim);
    }

    /// True for a sandbox without a pause container, which has no task.
    pub fn is_sandbox(&self, id: &str) -> bool {
        self.inner().is_pauseless && id.starts_with("pause-")
    }

    /// Waits until there is an event for kubelet.
    pub async fn news(&self) {
        self.shared.news.notified().await;
    }

    /// Wakes kubelet for an event.
    pub fn has_news(&self) {
        self.shared.news.notify_one();
    }

    /// Takes the events that kubelet would learn from containerd.
    pub fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.inner().seen)
    }

    pub fn see(&self, seen: Seen) {
        self.inner().seen.push(seen);
        self.has_news();
    }

    pub fn read(&self) -> Vec<(Duration, String, Status)> {
        self.inner().read.clone()
    }

    pub fn told(&self) -> Vec<(Duration, String, Notice)> {
        self.inner().told.clone()
    }

    pub fn called(&self) -> Vec<Called> {
        self.inner().called.clone()
    }

    /// The calls that have not been answered.
    pub fn open(&self) -> Vec<String> {
        self.inner().open.values().cloned().collect()
    }

    /// The tasks that containerd knows and has not deleted.
    pub fn tasks(&self) -> Vec<String> {
        let inner = self.inner();
        let tasks = inner.tasks.iter().filter(|(_, task)| !task.is_deleted);
        tasks.map(|(id, _)| id.clone()).collect()
    }

    /// Sets the delays of the next events, one delay per event. The last delay applies to all
    /// further events.
    pub fn delay_events(&self, delays: impl IntoIterator<Item = Duration>) {
        self.inner().delays = delays.into_iter().collect();
    }

    /// Lets containerd die. After the time `away` it is up again.
    pub fn die(&self, away: Duration) {
        let until = Instant::now() + away;
        let mut inner = self.inner();
        inner.away_until = inner.away_until.max(Some(until));
        std::mem::take(&mut inner.connections).cancel();
        let containerd = self.clone();
        tokio::spawn(async move {
            sleep_until(until).await;
            containerd.come_back().await;
        });
    }

    async fn come_back(&self) {
        let tasks = {
            let mut inner = self.inner();
            if inner.away_until.is_some_and(|until| until > Instant::now()) {
                return;
            }
            inner.away_until = None;
            let tasks = inner.tasks.iter();
            let tasks = tasks.filter(|(_, task)| !task.is_deleted && task.exited.is_none());
            tasks.map(|(id, _)| id.clone()).collect::<Vec<_>>()
        };
        self.shared.is_back.notify_waiters();
        for id in tasks {
            let containerd = self.clone();
            tokio::spawn(async move {
                if containerd.is_sandbox(&id) {
                    return containerd.await_sandbox(&id).await;
                }
                if let Ok((Status::STOPPED, code)) = containerd.state(&id).await {
                    containerd.exited(&id, code);
                }
                let _ = containerd.wait(&id, "", None).await;
            });
        }
    }

    /// Waits until containerd is up again.
    async fn there(&self) {
        loop {
            let back = self.shared.is_back.notified();
            if self.inner().away_until.is_none() {
                return;
            }
            back.await;
        }
    }

    /// Receives the shim's events, one after another, while containerd is up.
    pub async fn listen(self) {
        loop {
            let came = self.shared.came.notified();
            let first = self.inner().queue.front().map(|(at, _)| *at);
            let Some(at) = first else {
                came.await;
                continue;
            };
            sleep_until(at).await;
            self.there().await;
            let event = self.inner().queue.pop_front();
            if let Some((_, event)) = event {
                self.take(&event);
            }
        }
    }

    fn take(&self, event: &Any) {
        let (id, notice) = notice(event);
        self.inner()
            .told
            .push((self.origin.elapsed(), id.clone(), notice.clone()));
        if let Notice::Exited { exec_id, code, .. } = &notice
            && exec_id.is_empty()
            && !self.is_sandbox(&id)
        {
            self.exited(&id, *code);
        }
        self.has_news();
    }

    fn exited(&self, id: &str, code: u32) {
        let is_news = {
            let mut inner = self.inner();
            let task = inner.tasks.get_mut(id);
            task.is_some_and(|task| task.exited.replace(code).is_none())
        };
        if is_news {
            self.see(Seen::ExitReported(id.to_owned(), code));
        }
    }
}

/// The container and the content of an event.
fn notice(event: &Any) -> (String, Notice) {
    fn read<E: Message>(event: &Any) -> E {
        E::parse_from_bytes(&event.value).expect("an event of its type")
    }
    match event.type_url.rsplit(['.', '/']).next().unwrap_or_default() {
        "TaskCreate" => {
            let event: TaskCreate = read(event);
            (event.container_id, Notice::Created { pid: event.pid })
        }
        "TaskStart" => {
            let event: TaskStart = read(event);
            (event.container_id, Notice::Started { pid: event.pid })
        }
        "TaskExit" => {
            let event: TaskExit = read(event);
            let is_init = event.id == event.container_id;
            let exec_id = if is_init { String::new() } else { event.id };
            let exited = Notice::Exited {
                exec_id,
                pid: event.pid,
                code: event.exit_status,
            };
            (event.container_id, exited)
        }
        "TaskDelete" => {
            let event: TaskDelete = read(event);
            let code = event.exit_status;
            (event.container_id, Notice::Deleted { code })
        }
        "TaskOOM" => {
            let event: TaskOOM = read(event);
            (event.container_id, Notice::OutOfMemory)
        }
        "TaskExecAdded" => {
            let event: TaskExecAdded = read(event);
            let exec_id = event.exec_id;
            (event.container_id, Notice::ExecAdded { exec_id })
        }
        "TaskExecStarted" => {
            let event: TaskExecStarted = read(event);
            let (exec_id, pid) = (event.exec_id, event.pid);
            (event.container_id, Notice::ExecStarted { exec_id, pid })
        }
        "TaskPaused" => {
            let event: TaskPaused = read(event);
            (event.container_id, Notice::Paused)
        }
        "TaskResumed" => {
            let event: TaskResumed = read(event);
            (event.container_id, Notice::Resumed)
        }
        other => panic!("an event of an unknown type: {other}"),
    }
}

impl Publish for Containerd {
    fn publish(&self, event: Box<dyn Event>) {
        let event = event.pack().expect("an event that can be encoded");
        let mut inner = self.inner();
        let delay = match inner.delays.len() {
            0 | 1 => inner.delays.front().copied(),
            _ => inner.delays.pop_front(),
        };
        // An event never overtakes the event before it.
        let after = inner.queue.back().map(|(at, _)| *at);
        let at = Instant::now() + delay.unwrap_or_default();
        inner
            .queue
            .push_back((after.map_or(at, |after| at.max(after)), event));
        drop(inner);
        self.shared.came.notify_one();
    }
}

/// A call that is not answered yet. Its `drop` records that the call is over, whether it was
/// answered or its future was dropped.
struct Open {
    containerd: Containerd,
    number: u64,
    called: Option<Called>,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut inner = self.containerd.inner();
        inner.open.remove(&self.number);
        if let Some(mut called) = self.called.take() {
            called.took = self.containerd.origin.elapsed() - called.at;
            inner.called.push(called);
        }
    }
}

/// The reason why a caller got no success.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CallFailure {
    /// The shim's error, as a client of the shim shows it.
    #[error("{0}")]
    Refused(String),
    #[error("no shim")]
    NoShim,
    /// The caller has dropped its call.
    #[error("dropped")]
    Dropped,
    #[error("ttrpc: closed")]
    Closed,
    #[error("deadline exceeded")]
    TooLate,
}

impl CallFailure {
    /// True if the shim's error contains these words.
    pub fn has_words(&self, words: &str) -> bool {
        matches!(self, CallFailure::Refused(text) if text.contains(words))
    }

    /// True if the caller did not get the answer of its call.
    pub fn is_lost(&self) -> bool {
        matches!(self, CallFailure::Closed | CallFailure::TooLate)
    }
}

impl From<ttrpc::Error> for CallFailure {
    fn from(error: ttrpc::Error) -> CallFailure {
        CallFailure::Refused(match error {
            ttrpc::Error::RpcStatus(status) => status.message,
            other => other.to_string(),
        })
    }
}

impl Containerd {
    /// Calls the Task service of the shim that has the container.
    pub async fn call<F: Future<Output = ttrpc::Result<u32>>>(
        &self,
        call: &'static str,
        ids: (&str, &str),
        limit: Option<Duration>,
        work: impl FnOnce(Arc<Service>, TtrpcContext) -> F,
    ) -> Result<u32, CallFailure> {
        let work = |shim: Shim, context| work(shim.tasks, context);
        self.call_shim(call, ids, limit, work).await
    }

    /// Calls the Sandbox service of the shim that has the sandbox.
    async fn ask<F: Future<Output = ttrpc::Result<u32>>>(
        &self,
        call: &'static str,
        id: &str,
        limit: Option<Duration>,
        work: impl FnOnce(Sandboxes, TtrpcContext) -> F,
    ) -> Result<u32, CallFailure> {
        let work = |shim: Shim, context| work(shim.sandboxes, context);
        self.call_shim(call, (id, ""), limit, work).await
    }

    async fn call_shim<F: Future<Output = ttrpc::Result<u32>>>(
        &self,
        call: &'static str,
        (id, exec_id): (&str, &str),
        limit: Option<Duration>,
        work: impl FnOnce(Shim, TtrpcContext) -> F,
    ) -> Result<u32, CallFailure> {
        self.there().await;
        let (service, connections, number) = {
            let mut inner = self.inner();
            let newest = inner.shims.len().saturating_sub(1);
            let shim = inner.tasks.get(id).map_or(newest, |task| task.shim);
            let service = inner.shims.get(shim).cloned().ok_or(CallFailure::NoShim)?;
            inner.calls += 1;
            let number = inner.calls;
            inner
                .open
                .insert(number, format!("{call} of {id} {exec_id}"));
            (service, inner.connections.clone(), number)
        };
        let mut open = Open {
            containerd: self.clone(),
            number,
            called: Some(Called {
                call,
                id: id.to_owned(),
                exec_id: exec_id.to_owned(),
                at: self.origin.elapsed(),
                took: Duration::ZERO,
                limit,
                outcome: Err(CallFailure::Dropped),
                is_cut: true,
            }),
        };
        let nanos = limit.map_or(0, |limit| {
            i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX)
        });
        let context = TtrpcContext {
            timeout_nano: nanos,
            ..TtrpcContext::default()
        };
        let over = async {
            match limit {
                Some(limit) => sleep(limit).await,
                None => std::future::pending().await,
            }
        };
        let (outcome, is_cut) = tokio::select! {
            biased;
            () = connections.cancelled() => (Err(CallFailure::Closed), true),
            outcome = work(service, context) => (outcome.map_err(CallFailure::from), false),
            () = over => (Err(CallFailure::TooLate), true),
        };
        if let Some(called) = &mut open.called {
            (called.outcome, called.is_cut) = (outcome.clone(), is_cut);
        }
        outcome
    }

    pub async fn state(&self, id: &str) -> Result<(Status, u32), CallFailure> {
        let status = Mutex::new(Status::UNKNOWN);
        let code = self.call("State", (id, ""), Some(USUAL), |service, context| {
            let request = StateRequest {
                id: id.to_owned(),
                ..StateRequest::new()
            };
            let status = &status;
            async move {
                let answer = service.state(&context, request).await?;
                if let Ok(mut status) = status.lock() {
                    *status = answer.status.enum_value_or_default();
                }
                Ok(answer.exit_status)
            }
        });
        let code = code.await?;
        let status = status.into_inner().unwrap_or_default();
        let read = (self.origin.elapsed(), id.to_owned(), status);
        self.inner().read.push(read);
        Ok((status, code))
    }

    /// Starts a task, or a process in it.
    async fn start(
        &self,
        id: &str,
        exec_id: &str,
        limit: Option<Duration>,
    ) -> Result<u32, CallFailure> {
        if self.is_sandbox(id) {
            let request = StartSandboxRequest {
                sandbox_id: id.to_owned(),
                ..StartSandboxRequest::new()
            };
            let started = self.ask("Start", id, limit, |shim, context| async move {
                Ok(shim.start_sandbox(&context, request).await?.pid)
            });
            return started.await;
        }
        let request = StartRequest {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            ..StartRequest::new()
        };
        let started = self.call(
            "Start",
            (id, exec_id),
            limit,
            |service, context| async move { Ok(service.start(&context, request).await?.pid) },
        );
        started.await
    }

    /// Waits for the exit of a process. An invariant later compares the exit code in the answer
    /// with the code in the exit event.
    async fn wait(
        &self,
        id: &str,
        exec_id: &str,
        limit: Option<Duration>,
    ) -> Result<u32, CallFailure> {
        let request = WaitRequest {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            ..WaitRequest::new()
        };
        let waited = self.call("Wait", (id, exec_id), limit, |service, context| async move {
            Ok(service.wait(&context, request).await?.exit_status)
        });
        waited.await
    }

    pub async fn kill(
        &self,
        id: &str,
        exec_id: &str,
        (signal, all): (u32, bool),
        limit: Option<Duration>,
    ) -> Result<u32, CallFailure> {
        let request = KillRequest {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            signal,
            all,
            ..KillRequest::new()
        };
        let name = if signal == 0 { "Kill 0" } else { "Kill" };
        if signal == 9 && !all && exec_id.is_empty() && self.is_sandbox(id) {
            return self.stop_sandbox(id, limit).await;
        }
        let killed = self.call(name, (id, exec_id), limit, |service, context| async move {
            service.kill(&context, request).await?;
            Ok(0)
        });
        killed.await
    }

    pub async fn delete_once(
        &self,
        id: &str,
        exec_id: &str,
        limit: Duration,
    ) -> Result<u32, CallFailure> {
        let request = DeleteRequest {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            ..DeleteRequest::new()
        };
        let deleted =
            self.call(
                "Delete",
                (id, exec_id),
                Some(limit),
                |service, context| async move {
                    Ok(service.delete(&context, request).await?.exit_status)
                },
            );
        deleted.await
    }

    async fn shut_down(&self, id: &str) {
        let request = ShutdownRequest {
            id: id.to_owned(),
            ..ShutdownRequest::new()
        };
        let asked = self.call(
            "Shutdown",
            (id, ""),
            Some(USUAL),
            |service, context| async move {
                service.shutdown(&context, request).await?;
                Ok(0)
            },
        );
        let _ = asked.await;
    }

    /// Makes the calls Create, Wait and Start, and cleans up if one fails. `call_timeout` is the
    /// time limit of each.
    pub async fn run(&self, id: &str, call_timeout: Option<Duration>) {
        self.there().await;
        {
            let mut inner = self.inner();
            let shim = inner.shims.len().saturating_sub(1);
            let known = Known {
                shim,
                exited: None,
                is_deleted: false,
            };
            inner.tasks.insert(id.to_owned(), known);
        }
        if let Err(why) = self.create(id, call_timeout).await {
            // If the connection was lost, the outcome of the Create is unknown. When containerd
            // comes back, it finds the bundle and deletes the container.
            let containerd = self.clone();
            let id = id.to_owned();
            self.see(Seen::CreateRefused(id.clone(), why.to_string()));
            tokio::spawn(async move {
                let killed = (9, false);
                let _ = containerd
                    .kill(&id, "", killed, Some(CLEANS_UP_WITHIN))
                    .await;
                containerd.delete(&id, CLEANS_UP_WITHIN).await;
            });
            return;
        }
        let waits = self.clone();
        let waited = id.to_owned();
        tokio::spawn(async move {
            if waits.is_sandbox(&waited) {
                return waits.await_sandbox(&waited).await;
            }
            let _ = waits.wait(&waited, "", None).await;
        });
        self.see(match self.start(id, "", call_timeout).await {
            Ok(_) => Seen::StartAnswered(id.to_owned(), Ok(())),
            Err(why) => Seen::StartFailed(id.to_owned(), why.to_string()),
        });
    }

    async fn create(&self, id: &str, call_timeout: Option<Duration>) -> Result<u32, CallFailure> {
        let bundle = format!("/bundles/{id}");
        if self.is_sandbox(id) {
            let request = CreateSandboxRequest {
                sandbox_id: id.to_owned(),
                bundle_path: bundle,
                ..CreateSandboxRequest::new()
            };
            let created = self.ask("Create", id, call_timeout, |shim, context| async move {
                shim.create_sandbox(&context, request).await?;
                Ok(0)
            });
            return created.await;
        }
        let request = CreateTaskRequest {
            id: id.to_owned(),
            bundle,
            ..CreateTaskRequest::new()
        };
        let created = self.call(
            "Create",
            (id, ""),
            call_timeout,
            |service, context| async move { Ok(service.create(&context, request).await?.pid) },
        );
        created.await
    }

    /// Deletes a task. Tries again until the deletion succeeds, and then asks the task's shim to
    /// shut down.
    pub async fn delete(&self, id: &str, limit: Duration) {
        for tries in 0..100 {
            if self
                .inner()
                .tasks
                .get(id)
                .is_none_or(|task| task.is_deleted)
            {
                return;
            }
            // In every fourth case another caller deletes the same task at the same time.
            let calls = self.inner().calls;
            if !self.is_sandbox(id) && calls.is_multiple_of(4) {
                let (containerd, id) = (self.clone(), id.to_owned());
                tokio::spawn(async move {
                    sleep(Duration::from_millis(calls % 30)).await;
                    let _ = containerd.delete_once(&id, "", limit).await;
                });
            }
            let deleted = match self.is_sandbox(id) {
                true => self.shut_sandbox_down(id, limit).await,
                false => self.delete_once(id, "", limit).await,
            };
            match deleted {
                Ok(_) => break,
                Err(why) if why.has_words("not found") => break,
                // The shim has exited, so no shim can delete the task.
                Err(why) if why.has_words("did not answer") && tries > 3 => break,
                Err(_) => sleep(Duration::from_millis(200) * (tries + 1)).await,
            }
        }
        if let Some(task) = self.inner().tasks.get_mut(id) {
            task.is_deleted = true;
        }
        if !self.is_sandbox(id) {
            self.shut_down(id).await;
        }
        self.has_news();
    }

    /// Waits for the exit of a sandbox without a pause container, because no event announces that
    /// exit.
    async fn await_sandbox(&self, id: &str) {
        if let Ok(code) = self.wait_sandbox(id).await {
            self.exited(id, code);
        }
    }

    async fn wait_sandbox(&self, id: &str) -> Result<u32, CallFailure> {
        let request = WaitSandboxRequest {
            sandbox_id: id.to_owned(),
            ..WaitSandboxRequest::new()
        };
        let waited = self.ask("Wait", id, None, |shim, context| async move {
            Ok(shim.wait_sandbox(&context, request).await?.exit_status)
        });
        waited.await
    }

    async fn stop_sandbox(&self, id: &str, limit: Option<Duration>) -> Result<u32, CallFailure> {
        let request = StopSandboxRequest {
            sandbox_id: id.to_owned(),
            ..StopSandboxRequest::new()
        };
        let stopped = self.ask("StopSandbox", id, limit, |shim, context| async move {
            shim.stop_sandbox(&context, request).await?;
            Ok(0)
        });
        stopped.await
    }

    async fn shut_sandbox_down(&self, id: &str, limit: Duration) -> Result<u32, CallFailure> {
        let request = ShutdownSandboxRequest {
            sandbox_id: id.to_owned(),
            ..ShutdownSandboxRequest::new()
        };
        let work = |shim: Sandboxes, context| async move {
            shim.shutdown_sandbox(&context, request).await?;
            Ok(0)
        };
        self.ask("ShutdownSandbox", id, Some(limit), work).await
    }

    /// Adds a process to a container.
    pub async fn exec(
        &self,
        id: &str,
        exec_id: &str,
        argv: &[String],
        limit: Option<Duration>,
    ) -> Result<u32, CallFailure> {
        let process = serde_json::json!({ "args": argv, "cwd": "/", "user": {} });
        let spec = Any {
            value: process.to_string().into_bytes(),
            ..Any::new()
        };
        let request = ExecProcessRequest {
            id: id.to_owned(),
            exec_id: exec_id.to_owned(),
            spec: MessageField::some(spec),
            ..ExecProcessRequest::new()
        };
        let added = self.call(
            "Exec",
            (id, exec_id),
            limit,
            |service, context| async move {
                service.exec(&context, request).await?;
                Ok(0)
            },
        );
        added.await
    }

    /// Starts an exec that was added, waits for its exit, and deletes it. Returns the exit code, or
    /// why it is unknown.
    pub async fn run_exec(
        &self,
        id: &str,
        exec_id: &str,
        limit: Duration,
    ) -> Result<u32, CallFailure> {
        let mut code = self.start(id, exec_id, Some(USUAL)).await;
        if code.is_ok() {
            code = self.wait(id, exec_id, Some(limit)).await;
            if code.is_err() {
                let _ = self.kill(id, exec_id, (9, false), Some(USUAL)).await;
            }
        }
        for _ in 0..20 {
            match self.delete_once(id, exec_id, USUAL).await {
                Ok(_) => break,
                Err(why) if why.has_words("not found") => break,
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
        code
    }
}

impl fmt::Debug for Containerd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Containerd").finish_non_exhaustive()
    }
}
