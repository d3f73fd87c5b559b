//! Logging programs (`binary://`), which read a process's output. The node's administrator provides
//! them.
//!
//! A program reads the output on descriptors 3 and 4. When the program is ready, it closes
//! descriptor 5. A `binary-v2://` program (containerd 2.4 and later) first writes a byte to
//! descriptor 5 (<https://github.com/containerd/containerd/blob/main/core/runtime/v2/README.md>).

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::Duration;

use command_fds::{CommandFdExt, FdMapping};
use nix::errno::Errno;
use nix::unistd::read;
use tokio::io::Interest;
use tokio::time::timeout;

use super::address::Program;
use super::{LoggerError, Owner, Setting, StdioError, pipe, watch};
use crate::ProcessStat;
use crate::reaper::{Child, ParentThread, Reaper};
use usher_core::plan::Signal;
use usher_core::process::ExitStatus;

/// Time limit for a program to be ready.
const READY_WITHIN: Duration = Duration::from_secs(10);

/// Time that a program has to read the rest of the output after the process is deleted. At the
/// deletion the streams end, unless another process has them open.
const READS_ON_FOR: Duration = Duration::from_secs(2);

/// Time that a program has to exit after SIGTERM, as under containerd's runc shim.
const ENDS_WITHIN: Duration = Duration::from_secs(12);

#[derive(Debug)]
pub(super) struct Logger {
    name: String,
    child: Child,
    _parent: ParentThread,
    /// Exit status of the program, once it has exited. It is kept because a child can be waited for
    /// only once.
    status: Option<ExitStatus>,
    reaper: Reaper,
}

/// A program that is ready, and the pipes that it reads.
#[derive(Debug)]
pub(super) struct Ready {
    pub logger: Logger,
    pub stdout: OwnedFd,
    pub stderr: OwnedFd,
}

/// Starts a logging program and waits until it is ready.
///
/// # Errors
///
/// If the program cannot be run, exits early or is not ready in time. After an error the program
/// does not run anymore.
pub(super) async fn start(program: &Program, setting: &Setting<'_>) -> Result<Ready, StdioError> {
    let name = program.path.display().to_string();
    let failed = |error| StdioError::Logger {
        program: name.clone(),
        error,
    };
    let not_run = |error: io::Error| failed(LoggerError::NotRun(error));
    let (their_stdout, stdout) = pipe(setting.owner).map_err(not_run)?;
    let (their_stderr, stderr) = pipe(setting.owner).map_err(not_run)?;
    let (ready, their_ready) = pipe(Owner::default()).map_err(not_run)?;
    let mut command = Command::new(&program.path);
    command
        .args(&program.args)
        .env_clear()
        .env("CONTAINER_ID", setting.id)
        .env("CONTAINER_NAMESPACE", setting.namespace)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let theirs = [(3, their_stdout), (4, their_stderr), (5, their_ready)];
    let theirs = theirs.map(|(child_fd, parent_fd)| FdMapping {
        parent_fd,
        child_fd,
    });
    command
        .fd_mappings(theirs.into())
        .map_err(|error| not_run(io::Error::other(error)))?;
    let spawned = timeout(READY_WITHIN, setting.reaper.spawn_with_parent(command)).await;
    let spawned = spawned.map_err(|_| {
        failed(LoggerError::NotExecuted {
            limit: READY_WITHIN,
        })
    })?;
    let (child, parent) = spawned.map_err(not_run)?;
    let mut logger = Logger {
        name: name.clone(),
        child,
        _parent: parent,
        status: None,
        reaper: setting.reaper.clone(),
    };
    let is_ready = logger.wait_until_ready(ready, program.says_when_ready);
    match timeout(READY_WITHIN, is_ready).await {
        Ok(Ok(())) => Ok(Ready {
            logger,
            stdout,
            stderr,
        }),
        Ok(Err(error)) => {
            logger.kill().await;
            Err(failed(error))
        }
        Err(_) => {
            logger.kill().await;
            Err(failed(LoggerError::Late {
                limit: READY_WITHIN,
            }))
        }
    }
}

impl Logger {
    async fn wait_until_ready(&mut self, ready: OwnedFd, says_so: bool) -> Result<(), LoggerError> {
        let ready = watch(ready, Interest::READABLE)?;
        loop {
            let mut readable = ready.readable().await?;
            match read(ready.get_ref(), &mut [0]) {
                // A byte means that the program is ready, even if the program is expected only to
                // close the pipe. containerd's runc shim accepts the byte, too.
                Ok(1..) => return Ok(()),
                Ok(0) if says_so => {
                    return Err(LoggerError::ClosedEarly);
                }
                // The descriptor is also closed when the program exits, so check that the program
                // still runs.
                Ok(0) if !is_ending(self.child.pid()) => return Ok(()),
                Ok(0) => return Err(self.ended_early().await),
                Err(Errno::EAGAIN) => readable.clear_ready(),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
    }

    /// Waits until the program has read everything and exited. If the program does not exit in
    /// time, sends SIGTERM, and then SIGKILL.
    pub async fn end(mut self) {
        if self.wait_for_exit(READS_ON_FOR).await {
            return;
        }
        self.signal(Signal::TERM);
        if !self.wait_for_exit(ENDS_WITHIN).await {
            tracing::warn!(
                program = self.name,
                "it did not exit after SIGTERM: killing it"
            );
            self.kill().await;
        }
    }

    async fn wait_for_exit(&mut self, within: Duration) -> bool {
        if self.status.is_none()
            && let Ok(Ok(status)) = timeout(within, self.child.wait()).await
        {
            self.status = Some(status);
        }
        self.status.is_some()
    }

    async fn ended_early(&mut self) -> LoggerError {
        self.wait_for_exit(ENDS_WITHIN).await;
        match self.status {
            Some(ExitStatus::Code(code)) => LoggerError::Exited { code },
            Some(ExitStatus::Signal(signal)) => LoggerError::Killed { signal },
            None => LoggerError::Exiting,
        }
    }

    async fn kill(&mut self) {
        self.signal(Signal::KILL);
        // The wait is limited, because the program may hang in the kernel.
        self.wait_for_exit(ENDS_WITHIN).await;
    }

    fn signal(&self, signal: Signal) {
        if let Err(error) = self.reaper.kill(self.child.pid(), signal.number()) {
            tracing::debug!(program = self.name, %error, "logging program has exited already");
        }
    }
}

/// True if a child is exiting, or has exited.
fn is_ending(pid: i32) -> bool {
    ProcessStat::read(pid).map_or(true, |stat| stat.is_exiting())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_running_process_is_not_exiting() {
        assert!(!is_ending(std::process::id() as i32));
        assert!(is_ending(i32::MAX));
    }

    #[test]
    fn a_process_whose_exit_has_closed_its_descriptors_is_exiting() {
        for _ in 0..50 {
            let mut child = Command::new("/bin/true")
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut output = child.stdout.take().unwrap();
            std::io::Read::read_to_end(&mut output, &mut Vec::new()).unwrap();
            assert!(is_ending(child.id() as i32));
            child.wait().unwrap();
        }
    }
}
