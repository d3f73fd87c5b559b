//! A simulated node, which depends neither on the machine that runs the test nor on its clock.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

use crate::clock::Clock;
use crate::connections::Connections;
use crate::events::{Event, Publish};
use crate::node::Node;
use usher_api as api;
use usher_core::plan::Rules;
use usher_engine::sim::SimEngine;

/// Start of a simulated node's time, in seconds since the epoch.
const BEGINS_AT: u64 = 1_000_000_000;

/// A simulated node. Clones are the same node.
#[derive(Clone, Debug)]
pub struct SimNode {
    pub engine: SimEngine,
    pub events: Recorder<Box<dyn Event>>,
    pub archive: Recorder<api::Pod>,
    pub origin: Instant,
}

/// Records values, each with the time since the node began.
#[derive(Debug)]
pub struct Recorder<T> {
    origin: Instant,
    given: Arc<Mutex<Vec<(Duration, T)>>>,
}

/// A wall clock that follows tokio's time.
#[derive(Debug)]
struct SimClock {
    origin: Instant,
    /// Number of readings of the clock. Each reading costs the thread a microsecond of CPU time.
    looks: AtomicU64,
}

impl SimNode {
    /// Creates a node with this engine and no history.
    pub fn new(engine: SimEngine) -> SimNode {
        let origin = Instant::now();
        SimNode {
            engine,
            events: Recorder::new(origin),
            archive: Recorder::new(origin),
            origin,
        }
    }

    /// The dependencies of an actor on this node.
    pub fn node(&self) -> Node {
        Node {
            engine: Arc::new(self.engine.clone()),
            publisher: Arc::new(self.events.clone()),
            clock: Arc::new(SimClock {
                origin: self.origin,
                looks: AtomicU64::new(0),
            }),
            archive: Arc::new(self.archive.clone()),
            rules: Rules::default(),
            connections: Connections::default(),
        }
    }

    /// The topics of all published events, in order.
    pub fn topics(&self) -> Vec<String> {
        let events = self.events.lock();
        events.iter().map(|(_, event)| event.topic()).collect()
    }
}

impl<T> Recorder<T> {
    fn new(origin: Instant) -> Recorder<T> {
        Recorder {
            origin,
            given: Arc::default(),
        }
    }

    fn give(&self, what: T) {
        self.lock().push((self.origin.elapsed(), what));
    }

    /// All values, in order.
    pub fn lock(&self) -> MutexGuard<'_, Vec<(Duration, T)>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Clone for Recorder<T> {
    fn clone(&self) -> Recorder<T> {
        Recorder {
            origin: self.origin,
            given: Arc::clone(&self.given),
        }
    }
}

impl Publish for Recorder<Box<dyn Event>> {
    fn publish(&self, event: Box<dyn Event>) {
        self.give(event);
    }
}

impl api::Archive for Recorder<api::Pod> {
    fn keep(&self, pod: api::Pod) {
        self.give(pod);
    }
}

impl Clock for SimClock {
    fn wall(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(BEGINS_AT) + self.origin.elapsed()
    }

    fn cpu(&self) -> Duration {
        Duration::from_micros(self.looks.fetch_add(1, Ordering::Relaxed))
    }
}
