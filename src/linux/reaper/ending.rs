//! Time limits for commands: a command that does not exit in time is ended with all processes it
//! has started.

use std::collections::BTreeSet;
use std::io;
use std::time::Duration;

use nix::libc;
use tokio::time::{sleep, timeout};

use crate::ProcessStat;
use crate::sys;
use usher_core::process::ExitStatus;

use super::children::Family;
use super::{Child, Reaper};

/// Time that a command has to clean up, after its child processes were killed.
const CLEARS_AWAY_WITHIN: Duration = Duration::from_millis(400);

/// Time limit for a process to die of SIGKILL.
const DIES_WITHIN: Duration = Duration::from_secs(1);

/// Maximum number of searches for the processes that a stopped command has started. Several are
/// needed, because a process may be stopped while it forks.
const LOOKS: u32 = 50;
const LOOKS_APART: Duration = Duration::from_millis(1);

/// The outcome of waiting for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    Ended(ExitStatus),
    /// The time limit passed, and the command was ended.
    Late,
    /// The caller canceled, and the command was ended.
    Canceled,
}

impl Child {
    /// Waits for a command, and ends it after `limit` or when `cancel` resolves.
    ///
    /// # Errors
    ///
    /// If the reaper is gone, which happens only when the shim ends.
    pub async fn wait_within(
        &mut self,
        reaper: &Reaper,
        limit: Duration,
        cancel: impl Future<Output = ()>,
    ) -> io::Result<Waited> {
        let mut unfinished = Unfinished {
            pid: self.pid(),
            reaper,
            has_ended: false,
        };
        let waited = tokio::select! {
            biased;
            status = self.wait() => status.map(Waited::Ended),
            () = cancel => Ok(Waited::Canceled),
            () = sleep(limit) => Ok(Waited::Late),
        };
        if matches!(waited, Ok(Waited::Canceled | Waited::Late)) {
            self.end(reaper).await;
        }
        unfinished.has_ended = true;
        waited
    }

    /// Ends a command. First kills the processes that the command has started, so that the command
    /// can clean up. Then kills the command.
    async fn end(&mut self, reaper: &Reaper) {
        self.end_descendants(reaper).await;
        if timeout(CLEARS_AWAY_WITHIN, self.wait()).await.is_ok() {
            return;
        }
        self.end_descendants(reaper).await;
        // This fails if the command has exited in the meantime.
        let _ = reaper.kill(self.pid(), libc::SIGKILL);
        if timeout(DIES_WITHIN, self.wait()).await.is_err() {
            // The command is stuck in the kernel, and is collected once it dies.
            tracing::error!(pid = self.pid(), "a command does not die of SIGKILL");
        }
    }

    /// Kills all descendants of the command. Stops each process before listing its children,
    /// because a stopped process neither forks nor collects a child, so the listed process ids stay
    /// valid.
    async fn end_descendants(&self, reaper: &Reaper) {
        if reaper.kill(self.pid(), libc::SIGSTOP).is_err() {
            return;
        }
        let mut ended = BTreeSet::new();
        for look in 0..LOOKS {
            let stopped = stop_below(self.pid(), &reaper.search.look());
            let is_new = stopped.iter().any(|pid| ended.insert(*pid));
            for pid in stopped {
                let _ = sys::kill(pid, libc::SIGKILL);
            }
            if look > 0 && !is_new && is_stopped(self.pid()) {
                break;
            }
            sleep(LOOKS_APART).await;
        }
        let _ = reaper.kill(self.pid(), libc::SIGCONT);
    }
}

/// A command whose caller waits for its exit. If this value is dropped, as when the shim ends, the
/// command is killed at once.
struct Unfinished<'a> {
    pid: i32,
    reaper: &'a Reaper,
    has_ended: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.has_ended && self.reaper.kill(self.pid, libc::SIGSTOP).is_ok() {
            for pid in stop_below(self.pid, &self.reaper.search.look()) {
                let _ = sys::kill(pid, libc::SIGKILL);
            }
            let _ = self.reaper.kill(self.pid, libc::SIGKILL);
        }
    }
}

/// Sends SIGSTOP to all descendants of a process that has got SIGSTOP itself. Returns their ids.
fn stop_below(pid: i32, family: &Family) -> Vec<i32> {
    let mut stopped = Vec::new();
    let mut parents = vec![pid];
    while let Some(parent) = parents.pop() {
        for child in family.children_of(parent) {
            let _ = sys::kill(child, libc::SIGSTOP);
            stopped.push(child);
            parents.push(child);
        }
    }
    stopped
}

/// True if a process is stopped, or does not exist anymore.
fn is_stopped(pid: i32) -> bool {
    ProcessStat::read(pid).map_or(true, |stat| stat.is_stopped() || stat.is_zombie())
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::process::Command;

    use crate::sys::lease::Lease;

    use super::*;

    async fn shell(reaper: &Reaper, script: &str) -> Child {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        reaper.spawn(command).await.unwrap()
    }

    fn is_there(pid: i32) -> bool {
        std::path::Path::new(&format!("/proc/{pid}/ns/net")).exists()
    }

    fn alone(name: &str, test: impl AsyncFnOnce(Reaper)) {
        let path = format!("{}::{name}", module_path!());
        super::super::alone::alone(&path, Reaper::default, test);
    }

    #[test]
    fn a_late_command_is_ended_with_all_its_descendants() {
        alone(
            "a_late_command_is_ended_with_all_its_descendants",
            async |reaper| {
                let dir = tempfile::tempdir().unwrap();
                let file = dir.path().join("pids");
                // Both processes ignore TERM, and the grandchild has its own session, like runc's
                // init.
                let script = format!(
                    "trap '' TERM; (trap '' TERM; setsid sleep 1000 & echo $! >> {0}.new; \
                     mv {0}.new {0}; wait) & wait; wait",
                    file.display()
                );
                let mut command = shell(&reaper, &script).await;
                while !file.exists() {
                    sleep(Duration::from_millis(5)).await;
                }
                let grandchild: i32 = std::fs::read_to_string(&file)
                    .unwrap()
                    .trim()
                    .parse()
                    .unwrap();
                assert!(is_there(grandchild));
                let limit = Duration::from_millis(50);
                let waited = command.wait_within(&reaper, limit, pending()).await;
                assert_eq!(waited.unwrap(), Waited::Late);
                assert!(!is_there(command.pid()));
                // SIGKILL was sent; the process dies once it gets a processor.
                let gone = async {
                    while is_there(grandchild) {
                        sleep(Duration::from_millis(5)).await;
                    }
                };
                assert!(timeout(DIES_WITHIN, gone).await.is_ok());
            },
        );
    }

    #[test]
    fn the_parent_of_a_command_is_a_thread_that_lives_until_it_is_dropped() {
        alone(
            "the_parent_of_a_command_is_a_thread_that_lives_until_it_is_dropped",
            async |reaper| {
                let mut command = Command::new("setpriv");
                command.args(["--pdeathsig", "KILL", "sleep", "1000"]);
                let (mut child, parent) = reaper.spawn_with_parent(command).await.unwrap();
                let name = format!("/proc/{}/comm", child.pid());
                while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
                    sleep(Duration::from_millis(5)).await;
                }
                let early = timeout(Duration::from_millis(50), child.wait()).await;
                assert!(early.is_err(), "{early:?}");
                drop(parent);
                let status = timeout(DIES_WITHIN, child.wait()).await.unwrap();
                assert_eq!(status.unwrap(), ExitStatus::Signal(9));
            },
        );
    }

    /// A shim may exit while it kills the processes of a command.
    #[test]
    fn a_command_whose_wait_is_dropped_ends_at_once() {
        alone(
            "a_command_whose_wait_is_dropped_ends_at_once",
            async |reaper| {
                let mut command = shell(&reaper, "exec sleep 1000").await;
                let pid = command.pid();
                let canceled = async {};
                let long = Duration::from_secs(60);
                let wait = command.wait_within(&reaper, long, canceled);
                // By then the command is stopped, but not killed yet.
                let given_up = timeout(Duration::from_millis(20), wait).await;
                assert!(given_up.is_err());
                assert_eq!(command.wait().await.unwrap(), ExitStatus::Signal(9));
                assert!(!is_there(pid));
            },
        );
    }

    #[test]
    fn a_late_command_can_clean_up_after_its_children_are_killed() {
        alone(
            "a_late_command_can_clean_up_after_its_children_are_killed",
            async |reaper| {
                let dir = tempfile::tempdir().unwrap();
                let (begun, cleared) = (dir.path().join("begun"), dir.path().join("cleared"));
                let script = format!(
                    "sleep 1000 & : > {}; wait $!; : > {}",
                    begun.display(),
                    cleared.display()
                );
                let mut command = shell(&reaper, &script).await;
                let cancel = async {
                    while !begun.exists() {
                        sleep(Duration::from_millis(5)).await;
                    }
                };
                let limit = Duration::from_secs(60);
                let waited = command.wait_within(&reaper, limit, cancel).await;
                assert_eq!(waited.unwrap(), Waited::Canceled);
                assert!(cleared.exists());
            },
        );
    }

    #[test]
    fn a_program_whose_file_stalls_delays_no_other_exit() {
        alone(
            "a_program_whose_file_stalls_delays_no_other_exit",
            async |reaper| {
                let dir = tempfile::tempdir().unwrap();
                let lease = Lease::on_copy("/bin/true", dir.path());
                let (one, command) = (reaper.with_own_threads(), Command::new(lease.path()));
                let stalled = tokio::spawn(async move { one.spawn(command).await });
                while !lease.is_wanted() {
                    sleep(Duration::from_millis(5)).await;
                }
                reaper.reserve(0);
                for is_reserving in [true, false] {
                    let other = reaper.with_own_threads();
                    let mut command = shell(&other, "exit 3").await;
                    assert_eq!(command.wait().await.unwrap(), ExitStatus::Code(3));
                    let missing = other.spawn(Command::new("/no/such/program")).await;
                    let missing = missing.map(|_| ()).unwrap_err();
                    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
                    if is_reserving {
                        reaper.free(0);
                    }
                }
                assert!(!stalled.is_finished());
                drop(lease);
                let mut command = stalled.await.unwrap().unwrap();
                assert_eq!(command.wait().await.unwrap(), ExitStatus::Code(0));
            },
        );
    }

    #[test]
    fn a_command_whose_caller_is_gone_once_it_starts_is_killed() {
        alone(
            "a_command_whose_caller_is_gone_once_it_starts_is_killed",
            async |reaper| {
                let dir = tempfile::tempdir().unwrap();
                let lease = Lease::on_copy("/bin/sleep", dir.path());
                let mut command = Command::new(lease.path());
                command.arg("1000");
                let given_up = timeout(Duration::from_millis(50), reaper.spawn(command)).await;
                assert!(given_up.is_err());
                drop(lease);
                let own = i32::try_from(std::process::id()).unwrap();
                let gone = async {
                    while !crate::reaper::Search::default()
                        .look()
                        .children_of(own)
                        .is_empty()
                    {
                        sleep(Duration::from_millis(5)).await;
                    }
                };
                assert!(timeout(Duration::from_secs(20), gone).await.is_ok());
            },
        );
    }
}
