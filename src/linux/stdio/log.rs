//! A log file, written by a thread that exists only while there is output.
//!
//! If the file's disk stalls, output waits in a queue. While the queue is full, the pump does not
//! read the process's pipe, so the process blocks and nothing is lost.

use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::offload;

/// Maximum number of bytes that wait for the disk: as many as a pipe holds.
const QUEUED_AT_MOST: usize = 64 * 1024;

/// Number of bytes that the shim's own messages may add to the queue. Unlike a process's output,
/// these cannot wait in a pipe.
const FOR_WORDS: usize = 4096;

/// Time after which an idle thread ends. Output comes in bursts, and starting a thread costs more
/// than writing a line.
const STAYS_FOR: Duration = Duration::from_millis(100);

/// Pause before the next attempt to start a thread after the kernel has refused one.
const ASKS_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// The pump's handle of a log file. When the handle is dropped, the thread writes what is queued,
/// and closes the file.
#[derive(Debug)]
pub(super) struct Log(Arc<Shared>);

/// The handle for the shim's own messages in a log file, between the process's lines.
#[derive(Debug)]
pub(super) struct LogMessageWriter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Wakes the thread.
    work: Condvar,
    /// Wakes the pump when the thread has written bytes, or has closed the file.
    progress: Notify,
}

#[derive(Debug)]
struct Queue {
    bytes: Vec<u8>,
    /// Number of bytes that the thread is writing.
    under_way: usize,
    /// The file; `None` while a thread has it.
    file: Option<File>,
    has_thread: bool,
    /// True while the thread waits for work. Only then the thread has to be woken, which costs a
    /// system call.
    is_waiting: bool,
    is_failing: bool,
    /// True if no more output will come.
    is_over: bool,
    is_closed: bool,
}

impl Log {
    pub fn new(file: File) -> Log {
        Log(Arc::new(Shared {
            queue: Mutex::new(Queue {
                bytes: Vec::new(),
                under_way: 0,
                file: Some(file),
                has_thread: false,
                is_waiting: false,
                is_failing: false,
                is_over: false,
                is_closed: false,
            }),
            work: Condvar::new(),
            progress: Notify::new(),
        }))
    }

    /// Queues as much of a piece as the queue has room for; returns the rest.
    pub fn write<'a>(&self, piece: &'a [u8]) -> &'a [u8] {
        let mut queue = self.0.lock();
        let taken = piece.len().min(queue.room());
        let (now, rest) = piece.split_at_checked(taken).unwrap_or((&[], piece));
        if now.is_empty() || !self.0.is_served(&mut queue) {
            return piece;
        }
        queue.bytes.extend_from_slice(now);
        self.0.wake(&queue);
        rest
    }

    /// Waits until there is room in the queue.
    pub async fn has_room(&self) {
        self.0.reach(|queue| queue.room() > 0).await;
    }

    /// Waits until the queue is written and the file is closed.
    pub async fn finish(self) {
        self.end();
        self.0.reach(|queue| queue.is_closed).await;
    }

    pub fn message_writer(&self) -> LogMessageWriter {
        LogMessageWriter(Arc::clone(&self.0))
    }

    fn end(&self) {
        let mut queue = self.0.lock();
        queue.is_over = true;
        // Closing a file may stall like a write, so the thread closes the file.
        if !queue.is_closed && !self.0.is_served(&mut queue) {
            tracing::warn!("a log file stays open: no thread can be started to close it");
        }
        self.0.wake(&queue);
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.end();
    }
}

impl LogMessageWriter {
    /// Queues a line as a whole.
    ///
    /// # Errors
    ///
    /// If there is no room, or the log has ended.
    pub fn write_line(&self, line: &[u8]) -> io::Result<()> {
        let mut queue = self.0.lock();
        let room = queue.room().saturating_add(FOR_WORDS);
        if queue.is_over || line.len() > room || !self.0.is_served(&mut queue) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        queue.bytes.extend_from_slice(line);
        self.0.wake(&queue);
        Ok(())
    }
}

impl Queue {
    fn room(&self) -> usize {
        let waiting = self.bytes.len().saturating_add(self.under_way);
        QUEUED_AT_MOST.saturating_sub(waiting)
    }

    /// Logs the first of several failed writes. Bytes that cannot be written are lost: a full disk
    /// must end neither the process nor the log.
    fn note(&mut self, appended: &io::Result<()>) {
        if let (Err(error), false) = (appended, self.is_failing) {
            tracing::warn!(%error, "output is lost: the log file cannot be written");
        }
        self.is_failing = appended.is_err();
    }

    /// True if there is no work for the thread.
    fn is_idle(&self) -> bool {
        self.bytes.is_empty() && !self.is_over
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self, queue: &Queue) {
        if queue.is_waiting {
            self.work.notify_one();
        }
    }

    /// Starts the thread if it does not run; false if it cannot be started.
    fn is_served(self: &Arc<Self>, queue: &mut Queue) -> bool {
        if !queue.has_thread && !queue.is_closed {
            let shared = Arc::clone(self);
            match offload::start(move || shared.serve()) {
                Ok(()) => queue.has_thread = true,
                Err(error) => tracing::debug!(%error, "a log file has to wait for a thread"),
            }
        }
        queue.has_thread
    }

    /// Waits until `has_come` returns true for the queue.
    async fn reach(self: &Arc<Self>, has_come: impl Fn(&Queue) -> bool) {
        loop {
            let is_served = {
                let mut queue = self.lock();
                if has_come(&queue) {
                    return;
                }
                self.is_served(&mut queue)
            };
            match is_served {
                true => self.progress.notified().await,
                false => sleep(ASKS_AGAIN_AFTER).await,
            }
        }
    }

    /// Main function of the thread: writes the queue until it has been idle for [`STAYS_FOR`].
    fn serve(&self) {
        let mut queue = self.lock();
        let mut file = queue.file.take();
        let mut batch = Vec::new();
        loop {
            while queue.is_idle() {
                queue.is_waiting = true;
                let waited = self.work.wait_timeout(queue, STAYS_FOR);
                let (woken, waited) = waited.unwrap_or_else(PoisonError::into_inner);
                queue = woken;
                queue.is_waiting = false;
                if waited.timed_out() && queue.is_idle() {
                    queue.bytes = Vec::new();
                    queue.file = file;
                    queue.has_thread = false;
                    return;
                }
            }
            if queue.bytes.is_empty() {
                break;
            }
            mem::swap(&mut batch, &mut queue.bytes);
            queue.under_way = batch.len();
            drop(queue);
            let appended = file.as_mut().map_or(Ok(()), |file| file.write_all(&batch));
            batch.clear();
            queue = self.lock();
            queue.under_way = 0;
            queue.note(&appended);
            self.progress.notify_one();
        }
        drop(queue);
        drop(file);
        let mut queue = self.lock();
        queue.is_closed = true;
        queue.has_thread = false;
        drop(queue);
        self.progress.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::Instant;

    use tokio::time::timeout;

    use super::*;

    fn on_one_thread<F: Future>(test: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(test)
    }

    /// A log that writes to a pipe. A write stalls while the pipe is full.
    fn stalled() -> (std::io::PipeReader, Log) {
        let (disk, file) = std::io::pipe().unwrap();
        let file = std::os::fd::OwnedFd::from(file);
        (disk, Log::new(file.into()))
    }

    fn numbers() -> Vec<u8> {
        let lines = (0..100_000).map(|n| format!("{n}\n"));
        lines.collect::<String>().into_bytes()
    }

    async fn write_all(log: &Log, mut piece: &[u8]) {
        loop {
            piece = log.write(piece);
            if piece.is_empty() {
                return;
            }
            log.has_room().await;
        }
    }

    #[test]
    fn a_stalled_log_queues_a_bounded_amount_and_loses_nothing() {
        on_one_thread(async {
            let (mut disk, log) = stalled();
            let sent = numbers();
            let begun = Instant::now();
            // The log takes as many bytes as the pipe holds, plus twice the queue's limit: once for
            // the bytes that the thread is writing, and once for the bytes that wait.
            let written = timeout(Duration::from_millis(300), write_all(&log, &sent)).await;
            assert!(written.is_err() && begun.elapsed() < Duration::from_secs(20));
            let (queued, under_way) = {
                let queue = log.0.lock();
                (queue.bytes.len(), queue.under_way)
            };
            assert_eq!(queued + under_way, QUEUED_AT_MOST);
            let reader = std::thread::spawn(move || {
                let mut read = Vec::new();
                disk.read_to_end(&mut read).unwrap();
                read
            });
            log.finish().await;
            let read = reader.join().unwrap();
            assert!(read.len() > QUEUED_AT_MOST && sent.starts_with(&read));
        });
    }

    #[test]
    fn a_finished_log_has_everything_in_its_file() {
        on_one_thread(async {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("log");
            let log = Log::new(File::create(&path).unwrap());
            let (sent, messages) = (numbers(), log.message_writer());
            write_all(&log, &sent).await;
            messages.write_line(b"the last words\n").unwrap();
            log.finish().await;
            assert!(messages.write_line(b"too late\n").is_err());
            let read = std::fs::read(&path).unwrap();
            assert!(read == [&sent, &b"the last words\n"[..]].concat());
        });
    }

    #[test]
    fn a_dropped_log_is_still_written() {
        on_one_thread(async {
            let (mut disk, log) = stalled();
            assert!(log.write(b"words\n").is_empty());
            drop(log);
            let mut read = String::new();
            disk.read_to_string(&mut read).unwrap();
            assert_eq!(read, "words\n");
        });
    }

    #[test]
    fn an_idle_thread_ends_and_a_new_one_serves_later_output() {
        on_one_thread(async {
            let (mut disk, log) = stalled();
            for _ in 0..2 {
                assert!(log.write(b"words\n").is_empty());
                let mut read = [0; 6];
                disk.read_exact(&mut read).unwrap();
                while log.0.lock().has_thread {
                    sleep(Duration::from_millis(5)).await;
                }
            }
            log.finish().await;
        });
    }
}
