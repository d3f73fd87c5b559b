//! Turns a panic of a future into an error.

use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use usher_core::lifecycle::ActionError;

use crate::{Attempted, EngineError};

/// A job panicked, which is a bug of the shim; the log says where. Each job's error type can be
/// made from this error. So the code that handles a job's outcome runs even if the job panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("internal error: the shim panicked; see its log")]
pub struct Panicked;

impl From<Panicked> for EngineError {
    fn from(panicked: Panicked) -> EngineError {
        EngineError::failed(panicked)
    }
}

impl From<Panicked> for io::Error {
    fn from(panicked: Panicked) -> io::Error {
        io::Error::other(panicked)
    }
}

impl From<Panicked> for ActionError {
    fn from(panicked: Panicked) -> ActionError {
        ActionError::reported(panicked)
    }
}

impl From<Panicked> for Attempted {
    fn from(panicked: Panicked) -> Attempted {
        Attempted {
            outcome: Err(panicked.into()),
            cost: Duration::ZERO,
        }
    }
}

/// Awaits `work`, and returns [`Panicked`] if it panics.
pub async fn catch_panic<T, E: From<Panicked>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|_| Poll::Ready(Err(Panicked.into())))
    })
    .await
}
