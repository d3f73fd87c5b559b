//! The dependencies of a pod's actor, such as the engine and the clock.

use std::sync::Arc;

use crate::clock::Clock;
use crate::connections::Connections;
use crate::events::{Event, Publish};
use usher_api::Archive;
use usher_core::plan::Rules;
use usher_engine::Engine;

/// Dependencies of a pod's actor. Tests replace each of them by a simulation, and only simulations
/// inject faults.
#[derive(Clone, Debug)]
pub struct Node {
    pub engine: Arc<dyn Engine>,
    pub publisher: Arc<dyn Publish>,
    pub clock: Arc<dyn Clock>,
    pub archive: Arc<dyn Archive>,
    /// The administrator's rules for the pods of this node, as read when the shim began.
    pub rules: Rules,
    /// The connections to the task service.
    pub connections: Connections,
}

impl Node {
    /// Publishes an event to containerd. Never blocks.
    pub(crate) fn publish(&self, event: impl Event + 'static) {
        self.publisher.publish(Box::new(event));
    }
}
