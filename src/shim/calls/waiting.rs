//! Callers that all get the same answer.

use std::fmt;

use super::{CallError, Reply};

/// Callers that wait for the same answer.
pub(crate) struct Waiting<T>(Vec<Reply<T>>);

impl<T: Clone> Waiting<T> {
    /// Adds a caller. Drops the callers that no longer wait, so that their number does not grow
    /// until the answer comes.
    pub fn add(&mut self, caller: Reply<T>) {
        self.0.retain(|waiting| !waiting.is_closed());
        self.0.push(caller);
    }

    /// Answers all callers, and removes them.
    pub fn answer(&mut self, answer: &Result<T, CallError>) {
        for caller in self.0.drain(..) {
            // This fails if the caller no longer waits.
            let _ = caller.send(answer.clone());
        }
    }
}

impl<T> Default for Waiting<T> {
    fn default() -> Waiting<T> {
        Waiting(Vec::new())
    }
}

impl<T> fmt::Debug for Waiting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} waiting", self.0.len())
    }
}
