//! Work whose panics are caught.

use std::future::poll_fn;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use crate::engine::EngineError;

/// A job has panicked, which is a mistake of ours; the log says where. Every job's failure can be
/// this one, so that what follows from a job is never lost with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shim has made a mistake: its log says where it panicked")]
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

impl From<Panicked> for String {
    fn from(panicked: Panicked) -> String {
        panicked.to_string()
    }
}

/// What comes of `work`, even if that is a panic.
pub(crate) async fn caught<T, E: From<Panicked>>(
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    let mut work = pin!(work);
    poll_fn(|context| {
        let polled = catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)));
        polled.unwrap_or_else(|_| Poll::Ready(Err(Panicked.into())))
    })
    .await
}
