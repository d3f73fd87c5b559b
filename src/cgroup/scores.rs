//! The OOM scores of all processes of a container: which of them the kernel kills first when memory
//! runs out (`proc_pid_oom_score_adj(5)`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::sync::OnceLock;
use std::time::Duration;

use nix::errno::Errno;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use super::Cgroup;

/// How long it is tried to reach all processes: those of a fork bomb come as fast as they are
/// written to, and its container's limit of processes decides who wins.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// How many files are open at once, and how many processes are looked at before others have their
/// turn.
const AT_ONCE: usize = 64;

/// When passes have found none left behind for so long, that is all: a child that was being forked
/// during one, with its parent's score of before, is seen by a later one. Twice as long as a container
/// with a limit of CPU stands still at most, by default.
const SETTLED_FOR: Duration = Duration::from_millis(250);

/// The same where in each pass some had ended before they could be looked at, which may have left a
/// child with their score.
const CLEAN_FOR: Duration = Duration::from_secs(2);

/// Between two passes over a container in which nothing happens.
const LOOKS_APART: Duration = Duration::from_millis(125);

/// After so many passes there is a pause before each.
const WITHOUT_PAUSE: usize = 50;
const PAUSE: Duration = Duration::from_millis(1);

/// `CAP_SYS_RESOURCE` (`capabilities(7)`).
const SYS_RESOURCE: u32 = 24;

/// A change of the score of a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// What its processes had been given before.
    pub from: i32,
    pub to: i32,
}

/// What came of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The kernel's refusal, for one of the processes at least.
    pub refused: Option<String>,
    /// Processes were found in every pass that had not been reached before.
    pub is_incomplete: bool,
}

impl Change {
    /// Whether a process with this score is to have another. One that has chosen to be killed before
    /// the others stays so when the others are raised.
    fn concerns(self, score: i32) -> bool {
        score != self.to && (score == self.from || self.to < score && self.to <= self.from)
    }
}

/// Gives all processes of a cgroup a score: looks again until a pass finds none that has been left
/// behind, as one that was forked meanwhile by one that had not been reached. When another score is
/// wanted by then, as `superseded` tells, the first such pass is the last.
///
/// # Errors
///
/// One sentence if it cannot be found out which processes there are.
pub async fn change(
    cgroup: &Cgroup,
    change: Change,
    superseded: &Notify,
) -> Result<Outcome, String> {
    let begun = Instant::now();
    let mut outcome = Outcome::default();
    let (mut clean_since, mut passes) = (None, 0_usize);
    loop {
        let (mut behind, mut unseen) = (0_usize, 0_usize);
        for pids in cgroup.processes()?.chunks(AT_ONCE) {
            let mut files = Vec::new();
            for pid in pids {
                match file_of_one_behind(*pid, change) {
                    Ok(file) => files.extend(file.map(|file| (*pid, file))),
                    // It has ended.
                    Err(_) => unseen = unseen.saturating_add(1),
                }
            }
            if files.is_empty() {
                continue;
            }
            // An open file stays that of its process, even if another gets the number. What is still a
            // member now was one when it was opened.
            let members = cgroup.processes()?;
            for (_, mut file) in files.into_iter().filter(|(pid, _)| members.contains(pid)) {
                match file.write_all(change.to.to_string().as_bytes()) {
                    Ok(()) => behind = behind.saturating_add(1),
                    Err(error) if is_refusal(&error) => outcome.refused = Some(error.to_string()),
                    Err(_) => unseen = unseen.saturating_add(1),
                }
            }
            yield_now().await;
        }
        clean_since = (behind == 0).then(|| clean_since.unwrap_or_else(Instant::now));
        let enough = match unseen {
            0 => SETTLED_FOR,
            _ => CLEAN_FOR,
        };
        let is_clean = clean_since.is_some_and(|since| since.elapsed() >= enough);
        outcome.is_incomplete = !is_clean && begun.elapsed() > REACHED_WITHIN;
        if is_clean || outcome.is_incomplete {
            return Ok(outcome);
        }
        passes = passes.saturating_add(1);
        let pause = match (behind, unseen) {
            (0, 0) => LOOKS_APART,
            _ if passes > WITHOUT_PAUSE => PAUSE,
            _ => Duration::ZERO,
        };
        if behind > 0 {
            sleep(pause).await;
        } else if timeout(pause, superseded.notified()).await.is_ok() {
            return Ok(outcome);
        }
        yield_now().await;
    }
}

/// Lowers the score of a process to this, if it is higher: of one that is ours to collect, and whose number is
/// nobody else's therefore.
///
/// # Errors
///
/// If it has ended, or the kernel refuses it.
pub fn lower(pid: i32, to: i32) -> io::Result<()> {
    let pid = u32::try_from(pid).map_err(io::Error::other)?;
    let change = Change { from: to, to };
    match file_of_one_behind(pid, change)? {
        Some(mut file) => file.write_all(to.to_string().as_bytes()),
        None => Ok(()),
    }
}

/// The score of a process, to be written, if it is to be changed; an error if it has ended.
fn file_of_one_behind(pid: u32, change: Change) -> io::Result<Option<File>> {
    let path = format!("/proc/{pid}/oom_score_adj");
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    let score = text.trim().parse().map_err(io::Error::other)?;
    file.rewind()?;
    Ok(change.concerns(score).then_some(file))
}

fn is_refusal(error: &io::Error) -> bool {
    [Errno::EACCES, Errno::EPERM]
        .iter()
        .any(|errno| error.raw_os_error() == Some(*errno as i32))
}

/// The score of this process, which a container has that is given none.
pub fn own() -> i32 {
    let text = fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// What a container can be created with that is to have score `wanted` instead of `own`: the OCI
/// runtime fails when the kernel refuses a score, which it does below that of a process without
/// `CAP_SYS_RESOURCE`.
pub fn allowed(wanted: i32, instead_of: i32) -> i32 {
    match may_lower() {
        true => wanted,
        false => wanted.max(own().min(instead_of)),
    }
}

/// Whether this process may lower scores below its own: with the capability, in the first user
/// namespace.
fn may_lower() -> bool {
    static MAY_LOWER: OnceLock<bool> = OnceLock::new();
    *MAY_LOWER.get_or_init(|| {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        is_first(&read("/proc/self/uid_map")) && has_resource(&read("/proc/self/status"))
    })
}

/// Whether a `uid_map` is that of the first user namespace.
pub(super) fn is_first(users: &str) -> bool {
    let mut users = users.split_whitespace();
    [users.next(), users.next(), users.next()] == [Some("0"), Some("0"), Some("4294967295")]
}

/// Whether a `status` has `CAP_SYS_RESOURCE` in it.
pub(super) fn has_resource(status: &str) -> bool {
    let mut lines = status.lines();
    let capabilities = lines
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    capabilities.is_some_and(|set| set >> SYS_RESOURCE & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lowering_reaches_all_that_have_more_and_a_raising_those_that_were_given_less() {
        let lower = Change { from: 990, to: 500 };
        let concerned: Vec<_> = [1000, 990, 600, 500, 400]
            .into_iter()
            .filter(|score| lower.concerns(*score))
            .collect();
        assert_eq!(concerned, [1000, 990, 600]);
        let raise = Change { from: 500, to: 990 };
        let concerned: Vec<_> = [1000, 990, 600, 500, 400]
            .into_iter()
            .filter(|score| raise.concerns(*score))
            .collect();
        assert_eq!(concerned, [500]);
        let again = Change { from: 500, to: 500 };
        assert!(again.concerns(990) && !again.concerns(500) && !again.concerns(400));
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_superseded_does_not_wait_for_what_may_still_be_born() {
        let cgroup = Cgroup::of(nix::unistd::getpid().as_raw()).expect("the cgroup of the test");
        // Nobody has more than the highest score, so nobody is concerned.
        let nothing = Change {
            from: 1000,
            to: 1000,
        };
        let (begun, superseded) = (Instant::now(), Notify::new());
        change(&cgroup, nothing, &superseded).await.expect("all");
        assert!(begun.elapsed() >= SETTLED_FOR);
        superseded.notify_one();
        let begun = Instant::now();
        change(&cgroup, nothing, &superseded).await.expect("all");
        assert_eq!(begun.elapsed(), Duration::ZERO);
    }

    #[test]
    fn what_a_container_can_have_anyway_is_allowed() {
        assert_eq!(allowed(1000, 1000), 1000);
        assert_eq!(allowed(own(), 1000), own());
        // Its own was given by the caller: whether it can be is not for us to say.
        assert!(allowed(-1000, own()) <= own());
    }
}
