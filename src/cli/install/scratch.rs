//! The temporary directory of the trial, and the containerd that runs there. Before this command
//! exits, containerd is killed and the directory removed, even if a signal ends the command.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use tempfile::TempDir;

/// The trial's directory and containerd. As long as this value exists, a thread handles the signals
/// that would end this command.
pub(super) struct Scratch {
    path: PathBuf,
    content: Arc<Mutex<Content>>,
    watcher: Option<Watcher>,
}

#[derive(Default)]
struct Content {
    containerd: Option<Child>,
    directory: Option<TempDir>,
}

/// The thread that waits for signals until `pipe` closes.
struct Watcher {
    thread: JoinHandle<()>,
    pipe: OwnedFd,
    signals: SigSet,
}

impl Scratch {
    /// Makes a directory in `TMPDIR`.
    pub(super) fn new() -> io::Result<Scratch> {
        let content = Arc::new(Mutex::new(Content::default()));
        let watcher = Watcher::start(Arc::clone(&content))?;
        let directory = tempfile::Builder::new()
            .prefix("usher-install-")
            .tempdir()?;
        let path = directory.path().to_owned();
        lock(&content).directory = Some(directory);
        Ok(Scratch {
            path,
            content,
            watcher: Some(watcher),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of containerd's log.
    pub(super) fn log(&self) -> PathBuf {
        self.path.join("log")
    }

    /// Starts containerd while holding the lock. If a signal arrives meanwhile, its handler waits
    /// for the lock, and then finds the stored process to kill.
    pub(super) fn start(&self, start: impl FnOnce() -> io::Result<Child>) -> io::Result<()> {
        let mut content = lock(&self.content);
        content.containerd = Some(start()?);
        Ok(())
    }

    pub(super) fn has_ended(&self) -> bool {
        let mut content = lock(&self.content);
        let containerd = content.containerd.as_mut();
        containerd.is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    pub(super) fn end(&self) {
        lock(&self.content).end();
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        lock(&self.content).clear();
        if let Some(watcher) = self.watcher.take() {
            watcher.end();
        }
    }
}

pub(super) fn log(scratch: &Scratch) -> io::Result<File> {
    File::create(scratch.log())
}

fn lock(content: &Mutex<Content>) -> MutexGuard<'_, Content> {
    content.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Content {
    fn end(&mut self) {
        if let Some(mut containerd) = self.containerd.take() {
            let _ = containerd.kill();
            let _ = containerd.wait();
        }
    }

    fn clear(&mut self) {
        self.end();
        self.directory = None;
    }
}

impl Watcher {
    fn start(content: Arc<Mutex<Content>>) -> io::Result<Watcher> {
        let mut signals = SigSet::empty();
        for signal in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM] {
            signals.add(signal);
        }
        signals.thread_block()?;
        let arrived = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
        let (end, pipe) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let thread = thread::spawn(move || watch(&arrived, &end, &content));
        Ok(Watcher {
            thread,
            pipe,
            signals,
        })
    }

    /// Ends the thread and restores the default action of the signals. A pending signal then takes
    /// its default action.
    fn end(self) {
        drop(self.pipe);
        let _ = self.thread.join();
        let _ = self.signals.thread_unblock();
    }
}

/// Waits for a signal. After a signal, cleans up and ends this command. Returns when the other end
/// of the pipe is closed.
fn watch(arrived: &SignalFd, end: &OwnedFd, content: &Mutex<Content>) {
    loop {
        let mut both = [end.as_fd(), arrived.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        if poll(&mut both, PollTimeout::NONE).is_err() {
            continue;
        }
        let [end, signal] = both.map(|fd| fd.any().unwrap_or(false));
        if end {
            return;
        }
        if signal && let Ok(Some(signal)) = arrived.read_signal() {
            lock(content).clear();
            let number = i32::try_from(signal.ssi_signo).unwrap_or_default();
            // The exit status with which a shell reports that a signal ended a command.
            std::process::exit(number.saturating_add(128));
        }
    }
}
