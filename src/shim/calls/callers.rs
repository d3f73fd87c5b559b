//! Callers that wait for an operation, or for a decision of the core.

use std::collections::BTreeMap;

use tracing::{info, warn};

use usher_core::lifecycle::{ContainerId, RequestId, SignalOrder};
use usher_engine::CancelToken;

use super::{CallError, Reply};

/// A caller that awaits the answer of an operation.
pub(crate) struct Caller<R> {
    pub reply: Reply<R>,
    /// Canceled when the caller stops waiting.
    pub cancels: Option<CancelToken>,
}

impl<R> From<Reply<R>> for Caller<R> {
    /// A caller that waits for the answer, but cancels nothing if it stops waiting.
    fn from(reply: Reply<R>) -> Caller<R> {
        Caller {
            reply,
            cancels: None,
        }
    }
}

/// Callers that wait for the core: it decides their answers, or when their calls are carried out.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    starts: BTreeMap<RequestId, Reply<i32>>,
    kills: BTreeMap<RequestId, Reply<()>>,
    updates: BTreeMap<RequestId, PendingUpdate>,
    requests: u64,
}

/// An Update that waits for its turn.
#[derive(Debug)]
pub(crate) struct PendingUpdate {
    /// The OCI specification's `LinuxResources` as JSON.
    pub resources: Vec<u8>,
    pub reply: Reply<()>,
}

impl Callers {
    /// Assigns the next request number.
    pub fn next(&mut self) -> RequestId {
        self.requests = self.requests.wrapping_add(1);
        RequestId(self.requests)
    }

    /// Adds the caller of a Start, and assigns its request number.
    pub fn add_start(&mut self, reply: Reply<i32>) -> RequestId {
        let request = self.next();
        self.starts.insert(request, reply);
        request
    }

    /// Answers a Start whose caller still waits.
    pub fn answer_start(&mut self, request: RequestId, answer: Result<i32, CallError>) {
        if let Some(reply) = self.starts.remove(&request) {
            let _ = reply.send(answer);
        }
    }

    /// Removes the caller of a Start, who no longer waits.
    pub fn remove_start(&mut self, request: RequestId) {
        self.starts.remove(&request);
    }

    /// Adds the caller of a Kill, and assigns its request number.
    pub fn add_kill(&mut self, reply: Reply<()>) -> RequestId {
        let request = self.next();
        self.kills.insert(request, reply);
        request
    }

    /// Answers a Kill whose caller still waits.
    pub fn answer_kill(&mut self, request: RequestId, answer: Result<(), CallError>) {
        if let Some(reply) = self.kills.remove(&request) {
            let _ = reply.send(answer);
        }
    }

    /// Answers the Kill that caused a signal. If no Kill caused the signal, logs the outcome.
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

    /// Adds an Update that waits for its turn.
    pub fn add_update(&mut self, request: RequestId, update: PendingUpdate) {
        self.updates.insert(request, update);
    }

    /// Takes an Update whose turn has come, or that is refused.
    pub fn take_update(&mut self, request: RequestId) -> Option<PendingUpdate> {
        self.updates.remove(&request)
    }

    /// Removes the Updates whose callers no longer wait, and calls `abandoned` for each of them.
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
