//! The shim's side of making a sandbox: starts the [maker](super::maker), the process that makes
//! the sandbox, and waits for this process.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use usher_core::plan::Signal;
use usher_engine::{CancelToken, EngineError};
use usher_linux::reaper::{Child, Expectation, Reaper};

use super::maker::{self, Making, NOBODYS};

/// Time limit for making a sandbox, which takes milliseconds, except on an overloaded machine.
const MADE_WITHIN: Duration = Duration::from_secs(20);

/// Maximum number of bytes that are read from the maker's output.
const MESSAGE_AT_MOST: u64 = 4096;

/// Time limit for a killed maker to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(1);

struct Maker {
    child: Child,
    /// Lets the shim reap a second process, which the maker may start to hold the namespaces.
    other: Expectation,
    said: pipe::Receiver,
    /// The shim's end of the leash, a pipe. The maker and the holder exit when this end is closed.
    leash: OwnedFd,
}

/// Makes a sandbox. Returns the process that holds its namespaces, and the leash of that process.
/// The process is `None` if no process has to hold the namespaces.
///
/// # Errors
///
/// [`EngineError`]; then no process is left, unless one is stuck in the kernel.
pub(super) async fn make(
    making: &Making,
    reaper: &Reaper,
    token: &CancelToken,
) -> Result<(Option<Child>, OwnedFd), EngineError> {
    let mut maker = Maker::spawn(making, reaper)?;
    let said = tokio::select! {
        biased;
        () = token.canceled() => Err(too_late("canceled")),
        said = timeout(MADE_WITHIN, maker.read_holder_pid()) => {
            said.unwrap_or_else(|_| Err(too_late("took longer than 20 s")))
        }
    };
    match said {
        Ok(pid) => Ok(maker.gives(pid)),
        Err(error) => {
            maker.end(reaper).await;
            Err(error)
        }
    }
}

fn too_late(what: &str) -> EngineError {
    EngineError::CutShort(format!("creation of the pod's namespaces {what}"))
}

fn failed(error: impl Display) -> EngineError {
    EngineError::Failed(format!("cannot make the pod's namespaces: {error}"))
}

impl Maker {
    fn spawn(making: &Making, reaper: &Reaper) -> Result<Maker, EngineError> {
        let (says, said) = pipe::pipe().map_err(failed)?;
        let (end, leash) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
        let mut command = maker::command(making, end).map_err(failed)?;
        command.stdout(says.into_blocking_fd().map_err(failed)?);
        let other = reaper.expect();
        let child = reaper.spawn_self(&mut command).map_err(failed)?;
        // Dropping `command` closes the maker's ends of the pipes.
        Ok(Maker {
            child,
            other,
            said,
            leash,
        })
    }

    /// Reads the PID of the process that holds the namespaces, as the maker reports it.
    async fn read_holder_pid(&mut self) -> Result<i32, EngineError> {
        let mut words = String::new();
        let said = (&mut self.said).take(MESSAGE_AT_MOST);
        let read = { said }.read_to_string(&mut words).await;
        read.map_err(failed)?;
        match (words.trim(), words.trim().parse::<i32>()) {
            (_, Ok(pid)) if pid >= 0 => Ok(pid),
            ("", _) => Err(failed("their maker exited without an answer")),
            (words, _) => Err(failed(words)),
        }
    }

    fn gives(self, pid: i32) -> (Option<Child>, OwnedFd) {
        let child = match pid {
            NOBODYS => None,
            pid if pid == self.child.pid() => Some(self.child),
            pid => Some(self.other.claim(pid)),
        };
        (child, self.leash)
    }

    /// Kills the maker, and waits until it is gone. Also closes the shim's end of the pipe `leash`.
    /// If the maker has already started another process to hold the namespaces, that process then
    /// exits.
    async fn end(mut self, reaper: &Reaper) {
        drop(self.leash);
        // The kill fails if the maker has exited already.
        let _ = reaper.kill(self.child.pid(), Signal::KILL.number());
        if timeout(GONE_WITHIN, self.child.wait()).await.is_err() {
            let pid = self.child.pid();
            tracing::warn!(
                pid,
                "the maker of a pod's namespaces does not exit after SIGKILL"
            );
        }
    }
}
