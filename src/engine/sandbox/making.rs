//! The process that makes a sandbox, as the shim sees it.

use std::fmt::Display;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::time::timeout;

use crate::engine::{EngineError, Halt};
use crate::plan::Signal;
use crate::reaper::{Child, Expectation, Reaper};

use super::maker::{self, Making, NOBODYS};

/// The time that a sandbox may take to be made. It takes milliseconds, and more only on a machine without time.
const MADE_WITHIN: Duration = Duration::from_secs(20);

/// The most that is read of what the process says, in bytes.
const SAID_AT_MOST: u64 = 4096;

/// The time that the process has to be gone once it is killed.
const GONE_WITHIN: Duration = Duration::from_secs(1);

/// The process that makes a sandbox.
struct Maker {
    child: Child,
    /// Of another process that holds the namespaces in its place.
    other: Expectation,
    said: pipe::Receiver,
    /// The process, and the one that holds the namespaces, end when this is closed.
    leash: OwnedFd,
}

/// Makes a sandbox. Gives the process that holds its namespaces, none where none has to, and that process's leash.
///
/// # Errors
///
/// [`EngineError`]. No process is left then, unless the kernel does not let it go.
pub(super) async fn make(
    making: &Making,
    reaper: &Reaper,
    halt: &Halt,
) -> Result<(Option<Child>, OwnedFd), EngineError> {
    let mut maker = Maker::spawn(making, reaper)?;
    let said = tokio::select! {
        biased;
        () = halt.called() => Err(too_late("were called off")),
        said = timeout(MADE_WITHIN, maker.said()) => {
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
    EngineError::CutShort(format!("the pod's namespaces {what}"))
}

fn failed(error: impl Display) -> EngineError {
    EngineError::Failed(format!("the pod's namespaces: {error}"))
}

impl Maker {
    fn spawn(making: &Making, reaper: &Reaper) -> Result<Maker, EngineError> {
        let (says, said) = pipe::pipe().map_err(failed)?;
        let (end, leash) = pipe2(OFlag::O_CLOEXEC).map_err(failed)?;
        let mut command = maker::command(making, end).map_err(failed)?;
        command.stdout(says.into_blocking_fd().map_err(failed)?);
        let other = reaper.expect();
        let child = reaper.spawn_self(&mut command).map_err(failed)?;
        // With `command` its own ends of the pipes are closed.
        Ok(Maker {
            child,
            other,
            said,
            leash,
        })
    }

    /// The process that holds the namespaces, as this one says.
    async fn said(&mut self) -> Result<i32, EngineError> {
        let mut words = String::new();
        let said = (&mut self.said).take(SAID_AT_MOST);
        let read = { said }.read_to_string(&mut words).await;
        read.map_err(failed)?;
        match (words.trim(), words.trim().parse::<i32>()) {
            (_, Ok(pid)) if pid >= 0 => Ok(pid),
            ("", _) => Err(failed("nothing was said of them")),
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

    /// Kills it, and the process that holds the namespaces in its place, and waits until it is gone.
    async fn end(mut self, reaper: &Reaper) {
        drop(self.leash);
        // One that has ended is what is wanted.
        let _ = reaper.kill(self.child.pid(), Signal::KILL.number());
        if timeout(GONE_WITHIN, self.child.wait()).await.is_err() {
            let pid = self.child.pid();
            tracing::warn!(
                pid,
                "the process that makes a pod's namespaces does not end"
            );
        }
    }
}
