//! Counts output on its way from a process to the client that reads its FIFO.
//!
//! A client closes its FIFO when it learns of the exit, and loses output that it has not read. So
//! the shim reports an exit only after the client has read what the process had written. The kernel
//! does not report reads of a FIFO. So the shim counts the bytes that it moves into the FIFO, and
//! checks how many bytes are still in the FIFO. The difference is what the client has read. The
//! shim waits until the client has read as many bytes as the process has written.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use nix::libc;
use tokio::io::unix::AsyncFd;
use tokio::time::{Instant, sleep};

use crate::sys;
use usher_core::lifecycle::READ_WITHIN;

/// Longest time for which a reader may pause. After a longer pause, the shim reports the process's
/// exit even if output is unread.
const STILL_FOR: Duration = Duration::from_millis(200);

const FIRST_LOOK: Duration = Duration::from_millis(1);
const LAST_LOOK: Duration = Duration::from_millis(8);

/// Progress of a pump that moves one output stream of a process into a FIFO.
#[derive(Debug)]
pub(super) struct Passage {
    source: Source,
    /// Bytes moved into the FIFO.
    moved: AtomicU64,
    /// Bytes that the pump has read but does not pass on until the OCI runtime's command has
    /// exited.
    kept_back: AtomicU64,
    /// True if the pump has ended.
    is_over: AtomicBool,
    /// The shim's own reading end of the FIFO, while it is open.
    fifo: Mutex<Weak<File>>,
}

#[derive(Debug)]
pub(super) enum Source {
    Pipe(Weak<AsyncFd<OwnedFd>>),
    /// The pump ends soon after the process, once it has moved the last bytes.
    Terminal,
}

/// Output of an exited process that its clients have not read yet.
#[derive(Debug, Default)]
pub struct Unread {
    /// The streams of the process, each with the number of bytes that clients have to read in
    /// total.
    passages: Vec<(Arc<Passage>, u64)>,
    #[cfg(any(test, feature = "simulator"))]
    simulated: Option<Duration>,
}

impl Passage {
    pub fn new(source: Source, fifo: &Arc<File>) -> Passage {
        Passage {
            source,
            moved: AtomicU64::new(0),
            kept_back: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            fifo: Mutex::new(Arc::downgrade(fifo)),
        }
    }

    /// Counts bytes that the pump has moved into the FIFO.
    pub fn count(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or_default();
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets the number of bytes that the pump keeps back.
    pub fn keep_back(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or_default();
        self.kept_back.store(bytes, Ordering::Relaxed);
    }

    /// Notes that the pump has ended.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Opens a further reading end of the FIFO, by way of the writing end `to`. The caller may then
    /// close the writing end.
    ///
    /// # Errors
    ///
    /// If the reading end cannot be opened. In this case, the shim reports the exit of the process
    /// even if output of this stream is unread.
    pub fn reopen(&self, to: &impl AsFd) -> io::Result<Arc<File>> {
        let path = format!("/proc/self/fd/{}", to.as_fd().as_raw_fd());
        let mut options = OpenOptions::new();
        let fifo = options.read(true).custom_flags(libc::O_NONBLOCK);
        let fifo = Arc::new(fifo.open(path)?);
        *self.fifo.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&fifo);
        Ok(fifo)
    }

    /// Number of bytes that the process has written, as far as is known now.
    fn written(&self) -> u64 {
        let moved = self.moved.load(Ordering::Relaxed);
        match &self.source {
            _ if self.is_over.load(Ordering::Relaxed) => moved,
            Source::Terminal => u64::MAX,
            Source::Pipe(pipe) => {
                let pipe = pipe.upgrade();
                let left = pipe.and_then(|pipe| sys::unread(pipe.get_ref().as_fd()).ok());
                let kept_back = self.kept_back.load(Ordering::Relaxed);
                moved
                    .saturating_add(kept_back)
                    .saturating_add(left.unwrap_or_default())
            }
        }
    }

    /// Number of bytes that no client has read yet, among the first `written` bytes; 0 if the
    /// number is unknown.
    fn left(&self, written: u64) -> u64 {
        let fifo = self.fifo.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(fifo) = fifo.upgrade() else {
            return 0;
        };
        let Ok(held) = sys::unread(fifo.as_fd()) else {
            return 0;
        };
        let moved = self.moved.load(Ordering::Relaxed);
        let written = match self.is_over.load(Ordering::Relaxed) {
            true => written.min(moved),
            false => written,
        };
        written.saturating_sub(moved.saturating_sub(held))
    }
}

impl Unread {
    /// Returns the output of these streams that clients have not read yet. `None` if clients have
    /// read everything.
    pub(super) fn of<'a>(passages: impl Iterator<Item = &'a Arc<Passage>>) -> Option<Unread> {
        let passages = passages.map(|passage| (Arc::clone(passage), passage.written()));
        let unread = Unread {
            passages: passages.collect(),
            #[cfg(any(test, feature = "simulator"))]
            simulated: None,
        };
        (unread.left() > 0).then_some(unread)
    }

    /// Waits until clients have read the output. Stops waiting if a reader pauses longer than
    /// `STILL_FOR`, or after [`READ_WITHIN`].
    pub async fn is_read(self) {
        #[cfg(any(test, feature = "simulator"))]
        if let Some(simulated) = self.simulated {
            return sleep(simulated.min(READ_WITHIN)).await;
        }
        let begun = Instant::now();
        let (mut left, mut moved_at) = (self.left(), begun);
        let mut pause = FIRST_LOOK;
        while left > 0 && moved_at.elapsed() < STILL_FOR && begun.elapsed() < READ_WITHIN {
            sleep(pause).await;
            pause = pause.saturating_mul(2).min(LAST_LOOK);
            let now_left = self.left();
            if now_left < left {
                (left, moved_at) = (now_left, Instant::now());
            }
        }
    }

    fn left(&self) -> u64 {
        let left = self.passages.iter();
        let left = left.map(|(passage, written)| passage.left(*written));
        left.fold(0, u64::saturating_add)
    }

    /// Output of a simulated process. The client takes the time `lasts` to read it.
    #[cfg(any(test, feature = "simulator"))]
    pub fn simulated(lasts: Duration) -> Unread {
        Unread {
            simulated: Some(lasts),
            ..Unread::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::path::PathBuf;

    use nix::fcntl::OFlag;
    use nix::sys::stat::Mode;
    use nix::unistd::{mkfifo, pipe2};
    use tokio::sync::{oneshot, watch};
    use tokio::task::{JoinHandle, yield_now};

    use super::*;
    use crate::offload::Threads;
    use crate::stdio::Phase;
    use crate::stdio::destination::Destination;
    use crate::stdio::pump::spawn_output;

    /// A process that writes to a FIFO through a pump.
    struct Stage {
        _directory: tempfile::TempDir,
        fifo: PathBuf,
        process: File,
        passage: Arc<Passage>,
        _pump: JoinHandle<()>,
        _phase: watch::Sender<Phase>,
    }

    impl Stage {
        async fn new() -> Stage {
            let directory = tempfile::tempdir().unwrap();
            let fifo = directory.path().join("stdout");
            mkfifo(&fifo, Mode::S_IRWXU).unwrap();
            let (destination, keep) =
                Destination::open("stdout", fifo.to_str().unwrap(), &Threads::default())
                    .await
                    .unwrap();
            let (read, write) = pipe2(OFlag::O_CLOEXEC).unwrap();
            let phase = watch::Sender::new(Phase::Alive);
            let (begin, begins) = oneshot::channel();
            begin.send(()).unwrap();
            let subscribed = phase.subscribe();
            let pumped = spawn_output(read, destination, keep, subscribed, begins).unwrap();
            Stage {
                _directory: directory,
                fifo,
                process: File::from(write),
                passage: pumped.passage.expect("it goes to a FIFO"),
                _pump: pumped.pump,
                _phase: phase,
            }
        }

        fn unread(&self) -> Option<Unread> {
            Unread::of(std::iter::once(&self.passage))
        }

        fn client(&self) -> File {
            let mut options = OpenOptions::new();
            let client = options.read(true).custom_flags(libc::O_NONBLOCK);
            client.open(&self.fifo).unwrap()
        }
    }

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Lets the pump run until it has to wait.
    async fn pumped() {
        for _ in 0..20 {
            yield_now().await;
        }
        sleep(ms(1)).await;
    }

    /// Reads `piece` bytes at a time, each time after the pause `apart`, until nothing is left.
    /// Returns the number of bytes.
    async fn reads(mut client: File, piece: usize, apart: Duration) -> usize {
        let mut read = 0;
        loop {
            sleep(apart).await;
            match client.read(&mut vec![0; piece]) {
                Ok(0) => return read,
                Ok(length) => read += length,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return read,
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_exit_waits_for_all_output_of_its_process() {
        let mut stage = Stage::new().await;
        let client = stage.client();
        // Write more than the FIFO holds. The rest stays in the pipe.
        for _ in 0..2 {
            stage.process.write_all(&[b'x'; 60_000]).unwrap();
            pumped().await;
        }
        let unread = stage.unread().expect("it is not read");
        let begun = Instant::now();
        let (read, took) = tokio::join!(reads(client, 20_000, ms(150)), async {
            unread.is_read().await;
            begun.elapsed()
        });
        assert_eq!(read, 120_000);
        assert!(took >= ms(900) && took < ms(950), "{took:?}");
        assert!(stage.unread().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn an_exit_does_not_wait_for_later_output() {
        let mut stage = Stage::new().await;
        let mut client = stage.client();
        stage.process.write_all(b"ten bytes.").unwrap();
        let unread = stage.unread().expect("it is not read");
        stage.process.write_all(b"later").unwrap();
        pumped().await;
        client.read_exact(&mut [0; 10]).unwrap();
        let begun = Instant::now();
        unread.is_read().await;
        assert!(begun.elapsed() < ms(50));
        assert!(stage.unread().is_some(), "the rest is there");
    }

    #[tokio::test(start_paused = true)]
    async fn an_exit_waits_for_output_that_ended_before_the_process() {
        let mut stage = Stage::new().await;
        let mut client = stage.client();
        stage.process.write_all(b"words").unwrap();
        stage.process = File::open("/dev/null").unwrap();
        pumped().await;
        let unread = stage.unread().expect("it is not read");
        let mut words = String::new();
        client.read_to_string(&mut words).unwrap();
        assert_eq!(words, "words", "and the FIFO has ended");
        let begun = Instant::now();
        unread.is_read().await;
        assert!(begun.elapsed() < ms(50));
    }

    /// open(2) for reading, as containerd uses it, waits until the FIFO has a writing end.
    #[tokio::test(start_paused = true)]
    async fn a_fifo_has_a_writing_end_until_its_first_reader_has_opened_it() {
        let mut stage = Stage::new().await;
        stage.process.write_all(b"words").unwrap();
        stage.process = File::open("/dev/null").unwrap();
        sleep(Duration::from_secs(600)).await;
        let mut client = stage.client();
        client.read_exact(&mut [0; 5]).unwrap();
        // If the FIFO had no writing end, this read would return the end of the file.
        let open = client.read(&mut [0]).unwrap_err();
        assert_eq!(open.kind(), io::ErrorKind::WouldBlock);
        sleep(Duration::from_secs(2)).await;
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn an_exit_does_not_wait_for_a_reader_that_pauses() {
        let mut stage = Stage::new().await;
        let _client = stage.client();
        stage.process.write_all(b"words").unwrap();
        pumped().await;
        let begun = Instant::now();
        stage.unread().expect("it is not read").is_read().await;
        let took = begun.elapsed();
        assert!(took >= STILL_FOR && took < STILL_FOR + ms(20), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_exit_waits_two_seconds_for_a_slow_reader() {
        let mut stage = Stage::new().await;
        let client = stage.client();
        stage.process.write_all(&[b'x'; 60_000]).unwrap();
        pumped().await;
        let slow = tokio::spawn(reads(client, 1_000, ms(100)));
        let begun = Instant::now();
        stage.unread().expect("it is not read").is_read().await;
        let took = begun.elapsed();
        assert!(
            took >= READ_WITHIN && took < READ_WITHIN + ms(20),
            "{took:?}"
        );
        slow.abort();
    }
}
