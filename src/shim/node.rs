//! The parts of the shim and the machine that an actor uses.

use std::sync::Arc;

use crate::clock::Clock;
use crate::events::{Event, Publish};
use usher_api::Archive;
use usher_core::plan::Rules;
use usher_engine::Engine;

/// Everything outside of the actor that the actor uses. Tests replace each part by a simulated
/// part, and only the simulated parts inject faults.
#[derive(Clone, Debug)]
pub struct Node {
    pub engine: Arc<dyn Engine>,
    pub publisher: Arc<dyn Publish>,
    pub clock: Arc<dyn Clock>,
    pub archive: Arc<dyn Archive>,
    /// The administrator's rules, as read when the shim began.
    pub rules: Rules,
}

impl Node {
    /// Publishes an event to containerd. Never blocks.
    pub(crate) fn publish(&self, event: impl Event + 'static) {
        self.publisher.publish(Box::new(event));
    }
}
