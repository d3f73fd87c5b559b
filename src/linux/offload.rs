//! Runs work on further threads if a disk, a network file system or another process can stall the
//! work. The thread that serves a pod must never stall.
//!
//! Each piece of work gets its own thread, which ends with the work. So a shim without such work
//! has one thread. Each container may have a limited number of these threads, and its further work
//! waits. So a stalled disk delays only the containers that use the disk.

use std::io;
use std::sync::Arc;
use std::thread;

use tokio::sync::{Semaphore, oneshot};

/// Maximum number of threads that one container may have at a time.
const AT_ONCE: usize = 4;

/// Stack size of a thread in bytes, with room for paths, mount options and a few pages of text. The
/// kernel allocates only the pages that are used.
const STACK: usize = 256 * 1024;

/// The limit on the threads of one container. Clones share the limit.
#[derive(Clone, Debug)]
pub struct Threads(Arc<Semaphore>);

impl Threads {
    /// Allows one thread: pieces of work run one after another, in the order in which they were
    /// requested.
    pub fn one_at_a_time() -> Threads {
        Threads(Arc::new(Semaphore::new(1)))
    }

    /// Runs `work` on a new thread as soon as the container may have one more. If this future is
    /// dropped, work that has begun goes on, and counts against the limit until it ends.
    ///
    /// # Errors
    ///
    /// If no thread can be started, or if the work panics.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let place = Arc::clone(&self.0).acquire_owned().await;
        let place = place.map_err(io::Error::other)?;
        let (sender, receiver) = oneshot::channel();
        start(move || {
            let done = work();
            drop(place);
            // If the caller no longer waits, the outcome is dropped. Its destructor undoes what the
            // work has done.
            let _ = sender.send(done);
        })?;
        let panicked = |_| io::Error::other("internal error: the shim panicked; see its log");
        receiver.await.map_err(panicked)
    }
}

impl Default for Threads {
    fn default() -> Threads {
        Threads(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

/// Starts a thread that runs `work` and ends. The caller has to limit the number of threads.
///
/// # Errors
///
/// If the kernel refuses another thread.
pub fn start(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new()
        .name("offload".to_owned())
        .stack_size(STACK);
    thread.spawn(work).map(drop)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc as blocking;
    use std::time::Duration;

    use tokio::sync::mpsc;
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;

    fn on_one_thread<F: Future>(test: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(test)
    }

    /// Starts work that reports when it begins, and stalls until the returned value is dropped.
    fn stalled(
        threads: &Threads,
        begun: mpsc::UnboundedSender<()>,
    ) -> (blocking::Sender<()>, JoinHandle<()>) {
        let (thaw, frozen) = blocking::channel::<()>();
        let threads = threads.clone();
        let work = move || {
            begun.send(()).unwrap();
            let _ = frozen.recv();
        };
        let running = tokio::spawn(async move { threads.run(work).await.unwrap() });
        (thaw, running)
    }

    #[test]
    fn stalled_work_of_one_container_takes_no_thread_from_another() {
        on_one_thread(async {
            let (begun, mut beginnings) = mpsc::unbounded_channel();
            let (one, other) = (Threads::default(), Threads::default());
            let stalled: Vec<_> = (0..=AT_ONCE)
                .map(|_| stalled(&one, begun.clone()))
                .collect();
            for _ in 0..AT_ONCE {
                beginnings.recv().await.unwrap();
            }
            assert_eq!(other.run(|| 7).await.unwrap(), 7);
            // Stalled work counts against the limit even if no caller awaits it.
            stalled[0].1.abort();
            let one_more = timeout(Duration::from_millis(50), beginnings.recv()).await;
            assert!(one_more.is_err(), "a fifth thread");
            assert_eq!(other.run(|| 8).await.unwrap(), 8);
            for (thaw, running) in stalled {
                drop(thaw);
                let _ = running.await;
            }
            beginnings.recv().await.unwrap();
        });
    }

    #[test]
    fn work_that_panics_is_an_error() {
        on_one_thread(async {
            let threads = Threads::default();
            let failed: io::Result<()> = threads.run(|| panic!("a mistake")).await;
            let error = failed.unwrap_err().to_string();
            assert!(error.contains("internal error"), "{error}");
            assert_eq!(threads.run(|| 7).await.unwrap(), 7);
        });
    }
}
