//! The Control service: every call asks the pod's actor and awaits the answer, as in
//! [the Task service](crate::task).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use ttrpc::r#async::{ServerStreamSender, TtrpcContext};
use ttrpc::{Code, get_status};

use crate::api::Control;
use crate::api::{
    Pod as PodMessage, ReleaseRequest, ReleaseResponse, StatusRequest, StatusResponse, StopRequest,
    StopResponse,
};
use crate::pod::{CallError, Kind, Pod};
use crate::task;

use super::Meter;
use super::kernel;

/// How many calls of root, and of read-only clients, are answered at the same time.
const CALLS_AT_MOST: usize = 32;
const READ_ONLY_CALLS_AT_MOST: usize = 8;

/// How many of each watch; each costs the pod an answer whenever something happens.
const WATCHERS_AT_MOST: usize = 8;
const READ_ONLY_WATCHERS_AT_MOST: usize = 4;

/// A watcher hears at least this often, so that one that has gone away is noticed.
const TELL_EVERY: Duration = Duration::from_secs(5);

/// What happens at once is told at once.
const TELL_TOGETHER: Duration = Duration::from_millis(50);

/// The Control service of one pod, for root.
#[derive(Clone, Debug)]
pub struct Service {
    pod: Pod,
    calls: Arc<Semaphore>,
    watchers: Arc<Semaphore>,
    /// What is charged with its answers; none for root's.
    meter: Option<Meter>,
}

/// The same for read-only clients. No call and no watcher of theirs takes the place of one of root's.
#[derive(Clone, Debug)]
pub struct ReadOnlyService(Service);

impl Service {
    /// The service in front of `pod`.
    pub fn new(pod: Pod) -> Service {
        Service {
            pod,
            calls: Arc::new(Semaphore::new(CALLS_AT_MOST)),
            watchers: Arc::new(Semaphore::new(WATCHERS_AT_MOST)),
            meter: None,
        }
    }

    async fn pod(&self, req: &StatusRequest) -> Result<PodMessage, CallError> {
        let events = req.events;
        let pod = self
            .pod
            .ask(move |actor, reply| actor.status(events, reply))
            .await;
        if let Some(meter) = &self.meter {
            meter.begin();
        }
        pod.map(|mut pod| {
            if req.kernel {
                kernel::tell(&mut pod);
            }
            pod
        })
    }

    /// Waits until the pod may be told again.
    async fn turn(&self) {
        if let Some(meter) = &self.meter {
            meter.turn().await;
        }
    }
}

impl ReadOnlyService {
    /// The service in front of `pod`, whose answers are charged to `meter`.
    pub fn new(pod: Pod, meter: Meter) -> ReadOnlyService {
        ReadOnlyService(Service {
            pod,
            calls: Arc::new(Semaphore::new(READ_ONLY_CALLS_AT_MOST)),
            watchers: Arc::new(Semaphore::new(READ_ONLY_WATCHERS_AT_MOST)),
            meter: Some(meter),
        })
    }
}

fn response(pod: PodMessage) -> StatusResponse {
    StatusResponse {
        pod: Some(pod).into(),
        ..StatusResponse::new()
    }
}

fn too_many() -> ttrpc::Error {
    let message = "too many ask about this pod at the same time".to_owned();
    ttrpc::Error::RpcStatus(get_status(Code::RESOURCE_EXHAUSTED, message))
}

fn is_read_only() -> ttrpc::Error {
    let message = "a client with another group than root's may only look; expected group 0";
    ttrpc::Error::RpcStatus(get_status(Code::PERMISSION_DENIED, message.to_owned()))
}

#[async_trait]
impl Control for Service {
    async fn status(&self, _: &TtrpcContext, req: StatusRequest) -> ttrpc::Result<StatusResponse> {
        let _call = self.calls.try_acquire().map_err(|_| too_many())?;
        let pod = self.pod(&req).await.map_err(task::status)?;
        Ok(response(pod))
    }

    async fn watch(
        &self,
        _: &TtrpcContext,
        req: StatusRequest,
        watcher: ServerStreamSender<StatusResponse>,
    ) -> ttrpc::Result<()> {
        let _watcher = self.watchers.try_acquire().map_err(|_| too_many())?;
        let changes = self
            .pod
            .ask(|actor, reply| drop(reply.send(Ok(actor.watch()))))
            .await;
        let mut changes = changes.map_err(task::status)?;
        loop {
            self.turn().await;
            match self.pod(&req).await {
                Ok(pod) => watcher.send(&response(pod)).await?,
                // Of a pod that is over there is nothing more to be told.
                Err(error) if error.kind == Kind::NotFound => return Ok(()),
                Err(error) => return Err(task::status(error)),
            }
            tokio::time::sleep(TELL_TOGETHER).await;
            if let Ok(Err(_gone)) = timeout(TELL_EVERY, changes.changed()).await {
                return Ok(());
            }
        }
    }

    async fn stop(&self, _: &TtrpcContext, req: StopRequest) -> ttrpc::Result<StopResponse> {
        let _call = self.calls.try_acquire().map_err(|_| too_many())?;
        let grace = req.grace_period.as_ref().map(|grace| {
            let nanos = u32::try_from(grace.nanos).unwrap_or_default();
            Duration::new(u64::try_from(grace.seconds).unwrap_or_default(), nanos)
        });
        let stopped = self
            .pod
            .ask(move |actor, reply| actor.stop(grace, reply))
            .await;
        stopped.map_err(task::status)
    }

    async fn release(
        &self,
        _: &TtrpcContext,
        req: ReleaseRequest,
    ) -> ttrpc::Result<ReleaseResponse> {
        let _call = self.calls.try_acquire().map_err(|_| too_many())?;
        let released = self
            .pod
            .ask(move |actor, reply| actor.release_by_hand(&req.container, reply))
            .await;
        released.map_err(task::status)
    }
}

#[async_trait]
impl Control for ReadOnlyService {
    async fn status(
        &self,
        ctx: &TtrpcContext,
        req: StatusRequest,
    ) -> ttrpc::Result<StatusResponse> {
        self.0.status(ctx, req).await
    }

    async fn watch(
        &self,
        ctx: &TtrpcContext,
        req: StatusRequest,
        watcher: ServerStreamSender<StatusResponse>,
    ) -> ttrpc::Result<()> {
        self.0.watch(ctx, req, watcher).await
    }

    async fn stop(&self, _: &TtrpcContext, _: StopRequest) -> ttrpc::Result<StopResponse> {
        Err(is_read_only())
    }

    async fn release(&self, _: &TtrpcContext, _: ReleaseRequest) -> ttrpc::Result<ReleaseResponse> {
        Err(is_read_only())
    }
}
