//! What there is around a pod.

use std::sync::Arc;

use crate::api::Archive;
use crate::clock::Clock;
use crate::engine::Engine;
use crate::events::{Event, Publish};
use crate::plan::Rules;

/// All that the actor knows of the node that it is on. Faults come from here, and nowhere else: a test
/// has a model of each.
#[derive(Clone, Debug)]
pub struct Node {
    pub engine: Arc<dyn Engine>,
    pub publisher: Arc<dyn Publish>,
    pub clock: Arc<dyn Clock>,
    pub archive: Arc<dyn Archive>,
    /// What its administrator has said, as it was when the pod began.
    pub rules: Rules,
}

impl Node {
    pub(super) fn publish(&self, event: impl Event + 'static) {
        self.publisher.publish(Box::new(event));
    }
}
