//! The actor's surroundings.

use std::sync::Arc;

use crate::api::Archive;
use crate::clock::Clock;
use crate::engine::Engine;
use crate::events::{Event, Publish};
use crate::plan::Rules;

/// Everything outside that the actor uses. All faults enter here, and tests replace each part by a
/// simulated one.
#[derive(Clone, Debug)]
pub struct Node {
    pub engine: Arc<dyn Engine>,
    pub publisher: Arc<dyn Publish>,
    pub clock: Arc<dyn Clock>,
    pub archive: Arc<dyn Archive>,
    /// The administrator's rules, as read when the pod began.
    pub rules: Rules,
}

impl Node {
    pub(super) fn publish(&self, event: impl Event + 'static) {
        self.publisher.publish(Box::new(event));
    }
}
