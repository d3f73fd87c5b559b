//! The process that has had a shim started: containerd. Once it has died nobody will say to a shim
//! without a task that it is to end: the one that comes after may know nothing of it.

use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::parent_id;
use std::str::FromStr;

/// In the environment of the process that serves.
pub(super) const VARIABLE: &str = "USHER_STARTED_BY";

/// When no process has begun.
const NEVER: u64 = u64::MAX;

/// Whoever takes over the children of one that has died.
const INIT: u32 = 1;

/// A process that is not taken for another one which has its number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Starter {
    pid: u32,
    /// When it began, in the kernel's ticks since the machine did.
    since: u64,
}

impl Starter {
    /// Whoever has run this process with `start`; none if it is not to be seen from here.
    pub fn of_this_start() -> Option<Starter> {
        Self::parent(parent_id())
    }

    fn parent(pid: u32) -> Option<Starter> {
        // It has died already. (Where containerd itself has this number its Create comes at once, too.)
        if pid == INIT {
            let since = NEVER;
            return Some(Starter { pid, since });
        }
        let since = began(&fs::read_to_string(stat(pid)).ok()?)?;
        Some(Starter { pid, since })
    }

    /// Whoever has had this process started, by the `start` that has made it.
    pub fn of_this_shim() -> Option<Starter> {
        std::env::var(VARIABLE).ok()?.parse().ok()
    }

    /// Whether it still runs. If that cannot be found out it is believed.
    pub fn is_there(self) -> bool {
        match fs::read_to_string(stat(self.pid)) {
            Ok(stat) => began(&stat) == Some(self.since),
            // It may end while it is read.
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

fn stat(pid: u32) -> String {
    format!("/proc/{pid}/stat")
}

/// When a process began; none if it has ended and only waits to be collected. The first fields are
/// its number and, in parentheses, a name that may hold anything; then come the state and, as the
/// 22nd, this (proc(5)).
fn began(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace();
    let state = fields.next()?;
    let began = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(began)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn of(pid: u32) -> Option<Starter> {
        let since = began(&fs::read_to_string(stat(pid)).ok()?)?;
        Some(Starter { pid, since })
    }

    #[test]
    fn a_process_is_there_until_it_ends_and_no_other_is_taken_for_it() {
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
        // Nobody has collected it yet.
        while fs::read_to_string(stat(child.id())).is_ok_and(|stat| !stat.contains(") Z ")) {
            std::thread::yield_now();
        }
        assert!(!starter.is_there());
        child.wait().unwrap();
        assert!(!starter.is_there());
    }

    #[test]
    fn one_that_has_died_before_it_could_be_asked_for_is_not_there() {
        let gone = Starter::parent(INIT).unwrap();
        assert!(!gone.is_there());
        let told: Starter = gone.to_string().parse().unwrap();
        assert!(!told.is_there());
    }

    #[test]
    fn whoever_runs_this_is_known() {
        assert!(Starter::of_this_start().unwrap().is_there());
    }

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "42 (a) Z (b)) S 1 42 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 99 1";
        assert_eq!(began(stat), Some(4711));
    }
}
