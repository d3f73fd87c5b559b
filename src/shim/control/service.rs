//! The Control service. Each call asks the pod's actor and awaits the answer, as in
//! [the Task service](crate::task).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use ttrpc::r#async::{ServerStreamSender, TtrpcContext};
use ttrpc::{Code, get_status};

use crate::calls::{CallError, Kind};
use crate::pod::Pod;
use crate::task;
use usher_api::Control;
use usher_api::{
    Pod as PodMessage, ReleaseRequest, ReleaseResponse, StatusRequest, StatusResponse, StopRequest,
    StopResponse,
};

use super::Meter;
use super::kernel;

/// Maximum number of root's calls at a time. Watchers do not count. A further call is refused.
const MAX_CALLS: usize = 32;
/// Maximum number of read-only clients' calls at a time.
const MAX_READ_ONLY_CALLS: usize = 8;

/// Maximum number of root's watchers. Each watcher costs the pod an answer whenever something
/// happens.
const MAX_WATCHERS: usize = 8;
/// Maximum number of read-only watchers.
const MAX_READ_ONLY_WATCHERS: usize = 4;

/// Longest pause between two updates of a watcher. An update comes even if nothing has changed,
/// because the shim learns that a watcher is gone only if an update cannot be sent.
const UPDATE_INTERVAL: Duration = Duration::from_secs(5);

/// Shortest pause between two updates. Events that follow closely share one update.
const UPDATE_DELAY: Duration = Duration::from_millis(50);

/// The Control service of one pod, for root.
#[derive(Clone, Debug)]
pub struct Service {
    pod: Pod,
    calls: Arc<Semaphore>,
    watchers: Arc<Semaphore>,
    /// CPU meter that is charged for the answers to read-only clients. `None` in root's service.
    meter: Option<Meter>,
}

/// The Control service of one pod, for read-only clients. Their calls and watchers have limits of
/// their own.
#[derive(Clone, Debug)]
pub struct ReadOnlyService(Service);

impl Service {
    pub fn new(pod: Pod) -> Service {
        Service {
            pod,
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            watchers: Arc::new(Semaphore::new(MAX_WATCHERS)),
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
            meter.begin_work();
        }
        pod.map(|mut pod| {
            if req.kernel {
                kernel::add_values(&mut pod);
            }
            pod
        })
    }

    /// Waits until the meter allows the next update for a watcher. Root's watchers never wait.
    async fn wait(&self) {
        if let Some(meter) = &self.meter {
            meter.wait().await;
        }
    }
}

impl ReadOnlyService {
    /// Makes the service of `pod`. The CPU time of its answers is charged to `meter`.
    pub fn new(pod: Pod, meter: Meter) -> ReadOnlyService {
        ReadOnlyService(Service {
            pod,
            calls: Arc::new(Semaphore::new(MAX_READ_ONLY_CALLS)),
            watchers: Arc::new(Semaphore::new(MAX_READ_ONLY_WATCHERS)),
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
    let message = "too many requests about this pod at the same time; try again".to_owned();
    ttrpc::Error::RpcStatus(get_status(Code::RESOURCE_EXHAUSTED, message))
}

fn permission_denied() -> ttrpc::Error {
    let message = "a client whose group is not root may only look; expected group 0";
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
            self.wait().await;
            match self.pod(&req).await {
                Ok(pod) => watcher.send(&response(pod)).await?,
                // The pod has ended.
                Err(error) if error.kind == Kind::NotFound => return Ok(()),
                Err(error) => return Err(task::status(error)),
            }
            tokio::time::sleep(UPDATE_DELAY).await;
            if let Ok(Err(_gone)) = timeout(UPDATE_INTERVAL, changes.changed()).await {
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
        Err(permission_denied())
    }

    async fn release(&self, _: &TtrpcContext, _: ReleaseRequest) -> ttrpc::Result<ReleaseResponse> {
        Err(permission_denied())
    }
}
