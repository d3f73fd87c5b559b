//! Callers that wait for an operation, or for a decision of the core.

use std::collections::BTreeMap;

use tracing::{info, warn};

use usher_core::lifecycle::{ContainerId, RequestId, SignalOrder};
use usher_engine::CancelToken;

use super::{CallError, Reply};

/// A caller that awaits the answer of an operation.
pub(crate) struct Caller<R> {
    pub reply: Reply<R>,
    /// Token to cancel when the caller stops waiting. With `None`, the operation goes on.
    pub cancels: Option<CancelToken>,
}

impl<R> From<Reply<R>> for Caller<R> {
    /// Makes a caller that cancels nothing when it stops waiting.
    fn from(reply: Reply<R>) -> Caller<R> {
        Caller {
            reply,
            cancels: None,
        }
    }
}

/// Callers that wait for a decision of the core: for the answer to a Start or a Kill, or until the
/// core begins or refuses their Update.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    starts: BTreeMap<RequestId, Reply<i32>>,
    kills: BTreeMap<RequestId, Reply<()>>,
    updates: BTreeMap<RequestId, PendingUpdate>,
    requests: u64,
}

/// An Update that the core has neither begun nor refused yet.
#[derive(Debug)]
pub(crate) struct PendingUpdate {
    /// The OCI specification's `LinuxResources` as JSON.
    pub resources: Vec<u8>,
    pub reply: Reply<()>,
}

impl Callers {
    /// Returns a new request number. Stores no caller.
    pub fn next(&mut self) -> RequestId {
        self.requests = self.requests.wrapping_add(1);
        RequestId(self.requests)
    }

    /// Stores the caller of a Start, and returns a new request number. The call stays open until
    /// [`answer_start`](Callers::answer_start).
    pub fn add_start(&mut self, reply: Reply<i32>) -> RequestId {
        let request = self.next();
        self.starts.insert(request, reply);
        request
    }

    /// Answers a Start, and forgets its caller. Does nothing if the caller no longer waits.
    pub fn answer_start(&mut self, request: RequestId, answer: Result<i32, CallError>) {
        if let Some(reply) = self.starts.remove(&request) {
            let _ = reply.send(answer);
        }
    }

    /// Forgets the caller of a Start. Called when the caller has got its answer, or has stopped
    /// waiting.
    pub fn remove_start(&mut self, request: RequestId) {
        self.starts.remove(&request);
    }

    /// Stores the caller of a Kill, and returns a new request number. The call stays open until
    /// [`answer_kill`](Callers::answer_kill).
    pub fn add_kill(&mut self, reply: Reply<()>) -> RequestId {
        let request = self.next();
        self.kills.insert(request, reply);
        request
    }

    /// Answers a Kill, and forgets its caller. Does nothing if the caller no longer waits.
    pub fn answer_kill(&mut self, request: RequestId, answer: Result<(), CallError>) {
        if let Some(reply) = self.kills.remove(&request) {
            let _ = reply.send(answer);
        }
    }

    /// Reports the outcome of sending a signal: answers the Kill that caused the signal. If no Kill
    /// caused the signal, logs the outcome.
    pub fn answer_signal(
        &mut self,
        id: &ContainerId,
        order: SignalOrder,
        outcome: Result<(), CallError>,
    ) {
        let SignalOrder { signal, why, .. } = order;
        match (order.request, outcome) {
            (Some(request), outcome) => self.answer_kill(request, outcome),
            (None, Ok(())) => info!(container = %id, %signal, ?why, "signalled"),
            (None, Err(error)) => warn!(container = %id, %signal, ?why, %error, "not signalled"),
        }
    }

    /// Stores an Update until the core begins or refuses it.
    pub fn add_update(&mut self, request: RequestId, update: PendingUpdate) {
        self.updates.insert(request, update);
    }

    /// Takes an Update that the core begins or refuses now. `None` if the Update was dropped,
    /// because its caller no longer waits.
    pub fn take_update(&mut self, request: RequestId) -> Option<PendingUpdate> {
        self.updates.remove(&request)
    }

    /// Drops the Updates whose callers no longer wait, so that they are never carried out. Calls
    /// `abandoned` for each of them, to tell the core. Called when another Update comes.
    pub fn drop_abandoned_updates(&mut self, mut abandoned: impl FnMut(RequestId)) {
        self.updates.retain(|request, update| {
            let is_closed = update.reply.is_closed();
            if is_closed {
                abandoned(*request);
            }
            !is_closed
        });
    }
}
