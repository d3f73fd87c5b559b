//! The containerd process that has started a shim through `start`. When that process has died, the
//! next containerd may not know that a shim without a task exists, and never asks the shim to end.
//! So such a shim ends by itself.

use std::fmt;
use std::io::{self, ErrorKind};
use std::os::unix::process::parent_id;
use std::str::FromStr;

use usher_linux::ProcessStat;

/// Environment variable in which `start` passes the [`Starter`] to the shim.
pub(super) const VARIABLE: &str = "USHER_STARTED_BY";

/// Start time that no process has. It marks a starter that had died before it was looked up.
const NEVER: u64 = u64::MAX;

/// Process id of init, which adopts the children of a dead process.
const INIT: u32 = 1;

/// A process, identified by its id and its start time, because process ids are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Starter {
    pid: u32,
    /// Start time, in clock ticks since boot.
    since: u64,
}

impl Starter {
    /// The process that started this `start` process; `None` if `/proc` does not show that process,
    /// for example because it is in another PID namespace.
    pub fn of_this_start() -> Option<Starter> {
        Self::parent(parent_id())
    }

    fn parent(pid: u32) -> Option<Starter> {
        // A parent with process id 1 means that the real parent has died, and that init has adopted
        // this process. If containerd itself is process 1, this conclusion is wrong. The error does
        // no harm, because containerd's Create comes at once.
        if pid == INIT {
            let since = NEVER;
            return Some(Starter { pid, since });
        }
        let since = began(pid).ok()??;
        Some(Starter { pid, since })
    }

    /// The process that ran `start` for this shim, as `start` has written it into the environment;
    /// `None` if `start` could not find that process.
    pub fn of_this_shim() -> Option<Starter> {
        std::env::var(VARIABLE).ok()?.parse().ok()
    }

    /// True if the process still runs, or if `/proc` does not tell.
    pub fn is_there(self) -> bool {
        match began(self.pid) {
            Ok(began) => began == Some(self.since),
            // The process may exit while its file is read.
            Err(error) => {
                let is_gone = error.raw_os_error() == Some(nix::libc::ESRCH);
                !is_gone && error.kind() != ErrorKind::NotFound
            }
        }
    }
}

impl fmt::Display for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.pid, self.since)
    }
}

impl FromStr for Starter {
    type Err = ();

    fn from_str(text: &str) -> Result<Starter, ()> {
        let (pid, since) = text.split_once(' ').ok_or(())?;
        Ok(Starter {
            pid: pid.parse().map_err(drop)?,
            since: since.parse().map_err(drop)?,
        })
    }
}

/// The start time of a process, in clock ticks since boot; `None` if the process is a zombie.
///
/// # Errors
///
/// As [`ProcessStat::read`].
fn began(pid: u32) -> io::Result<Option<u64>> {
    let pid = i32::try_from(pid).map_err(|_| io::Error::from(ErrorKind::NotFound))?;
    let stat = ProcessStat::read(pid)?;
    Ok((!stat.is_zombie()).then_some(stat.start_time))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn of(pid: u32) -> Option<Starter> {
        let since = began(pid).ok()??;
        Some(Starter { pid, since })
    }

    #[test]
    fn a_process_is_there_until_it_exits_and_no_other_is_mistaken_for_it() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let starter = of(child.id()).unwrap();
        assert_eq!(starter.to_string().parse(), Ok(starter));
        assert!(starter.is_there());
        let other = Starter {
            since: starter.since.wrapping_add(1),
            ..starter
        };
        assert!(!other.is_there());
        child.kill().unwrap();
        // The process is a zombie until the test collects it.
        while began(child.id()).unwrap().is_some() {
            std::thread::yield_now();
        }
        assert!(!starter.is_there());
        child.wait().unwrap();
        assert!(!starter.is_there());
    }

    #[test]
    fn a_starter_that_died_before_it_was_read_is_not_there() {
        let gone = Starter::parent(INIT).unwrap();
        assert!(!gone.is_there());
        let told: Starter = gone.to_string().parse().unwrap();
        assert!(!told.is_there());
    }

    #[test]
    fn the_parent_of_the_test_is_a_running_starter() {
        assert!(Starter::of_this_start().unwrap().is_there());
    }
}
