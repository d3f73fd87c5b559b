//! Reads FIFOs with the output of containers, as a client of containerd does.

use std::fs::File;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::{PATIENCE, eventually, poll};

/// Reads a FIFO to its end in a thread.
pub struct Reader {
    path: String,
    bytes: Arc<Mutex<Vec<u8>>>,
    is_open: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Reader {
    /// Starts to read the FIFO in a thread. The thread first waits until the FIFO has a writer.
    pub fn of(path: &str) -> Self {
        Self::with(path, |_| ())
    }

    /// Does the same as `of`, but calls `before` with the number of earlier reads before each read.
    pub fn with(path: &str, mut before: impl FnMut(usize) + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (to, path) = (Arc::clone(&bytes), path.to_owned());
        let name = path.clone();
        let is_open = Arc::new(AtomicBool::new(false));
        let opened = Arc::clone(&is_open);
        let thread = std::thread::spawn(move || {
            let mut fifo = File::open(&name).expect("the FIFO");
            opened.store(true, Ordering::Relaxed);
            let mut piece = [0; 4096];
            for number in 0.. {
                before(number);
                match fifo.read(&mut piece).expect("read the FIFO") {
                    0 => return,
                    length => to.lock().unwrap().extend_from_slice(&piece[..length]),
                }
            }
        });
        Self {
            path,
            bytes,
            is_open,
            thread,
        }
    }

    /// Waits until the reader has opened the FIFO. If the test deletes the process earlier, the
    /// output may be lost.
    #[track_caller]
    pub fn await_open(&self) {
        eventually("the FIFO has a writer", PATIENCE, || {
            self.is_open.load(Ordering::Relaxed)
        });
    }

    /// Everything read so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Waits for the end of the FIFO, and returns everything read.
    #[track_caller]
    pub fn finish(self) -> String {
        if poll(PATIENCE, || self.is_over().then_some(())).is_none() {
            panic!(
                "{} did not end; so far: {:?}",
                self.path,
                self.text().chars().take(500).collect::<String>()
            );
        }
        self.text()
    }
}
