//! The part of an attempt's cost that is not charged to the pod: CPU time that the shim's own
//! thread uses for the attempt.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Awaits `work`; returns its output and the CPU time that this thread used for it.
pub(super) async fn timed<F: Future>(work: F) -> (F::Output, Duration) {
    let mut work = pin!(work);
    let mut taken = Duration::ZERO;
    let output = poll_fn(|context| {
        let before = thread_time();
        let polled = work.as_mut().poll(context);
        taken = taken.saturating_add(thread_time().saturating_sub(before));
        polled
    });
    (output.await, taken)
}

/// Returns the CPU time of this thread; zero if the kernel does not report it.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map(Duration::from).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_done_counts_and_what_is_waited_for_does_not() {
        let work = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let before = thread_time();
            while thread_time() - before < Duration::from_millis(20) {}
            7
        };
        let (output, taken) = timed(work).await;
        assert_eq!(output, 7);
        assert!(taken >= Duration::from_millis(20), "{taken:?}");
        assert!(taken < Duration::from_millis(45), "{taken:?}");
    }
}
