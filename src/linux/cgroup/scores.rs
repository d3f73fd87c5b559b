//! The OOM scores of a container's processes, by which the kernel chooses which process to kill
//! when memory runs out (`proc_pid_oom_score_adj(5)`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::sync::OnceLock;
use std::time::Duration;

use nix::errno::Errno;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use super::{Cgroup, CgroupError};

/// Time limit of a change. A fork bomb may create processes faster than the shim can write their
/// scores.
const REACHED_WITHIN: Duration = Duration::from_secs(10);

/// Maximum number of files that are open at a time, and of processes that are handled before other
/// tasks run.
const AT_ONCE: usize = 64;

/// Time after which a change is complete, if no process had the old score during this time. A
/// process may fork while the shim goes over all processes, and the child may have the old score. A
/// later pass finds the child. By default, a CPU limit pauses a container for less than half of
/// this time.
const SETTLED_FOR: Duration = Duration::from_millis(250);

/// The time that replaces [`SETTLED_FOR`] after a pass in which some processes exited before the
/// shim could read their scores. Such a process may have left a child with the old score.
const CLEAN_FOR: Duration = Duration::from_secs(2);

/// Pause between two passes that find nothing to change.
const LOOKS_APART: Duration = Duration::from_millis(125);

/// Number of passes without a pause between them. Before each further pass there is a pause.
const WITHOUT_PAUSE: usize = 50;
const PAUSE: Duration = Duration::from_millis(1);

/// Number of `CAP_SYS_RESOURCE` (`capabilities(7)`).
const SYS_RESOURCE: u32 = 24;

/// A change of a container's OOM score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Previous score of the container's processes.
    pub from: i32,
    pub to: i32,
}

/// Outcome of a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The kernel's error, if the kernel refused the new score for at least one process.
    pub refused: Option<String>,
    /// True if the time limit has passed, and processes with the old score may be left.
    pub is_incomplete: bool,
}

impl Change {
    /// True if a process with this score gets the new score. When scores are raised, a process that
    /// has raised its own score keeps it.
    fn concerns(self, score: i32) -> bool {
        score != self.to && (score == self.from || self.to < score && self.to <= self.from)
    }
}

/// Sets the score of all processes of a cgroup. A process may fork before the shim has set its
/// score. So the shim looks at all processes again and again, until it has changed no score for
/// some time. If another change follows, the caller notifies `superseded`. Then a single pass
/// without a change is enough.
///
/// # Errors
///
/// If the processes cannot be listed.
pub async fn change(
    cgroup: &Cgroup,
    change: Change,
    superseded: &Notify,
) -> Result<Outcome, CgroupError> {
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
                    // The process has exited.
                    Err(_) => unseen = unseen.saturating_add(1),
                }
            }
            if files.is_empty() {
                continue;
            }
            // Another process may have got the PID before the file was opened, so check now that
            // the PID is in the cgroup. The open file stays with its process: if that process has
            // exited, a write fails and hits no other process.
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

/// Lowers the score of a child process to `to`, if it is higher. The PID need not be checked,
/// because the kernel does not reuse a child's PID before the child is reaped.
///
/// # Errors
///
/// If the process has exited, or the kernel's error.
pub fn lower(pid: i32, to: i32) -> io::Result<()> {
    let pid = u32::try_from(pid).map_err(io::Error::other)?;
    let change = Change { from: to, to };
    match file_of_one_behind(pid, change)? {
        Some(mut file) => file.write_all(to.to_string().as_bytes()),
        None => Ok(()),
    }
}

/// Opens the file with the score of a process, if the score has to be changed. Returns an error if
/// the process has exited.
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

/// Score of this process. A container inherits the score if its bundle has none.
pub fn own() -> i32 {
    let text = fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// Returns the OOM score to set instead of the configured score `instead_of`. With
/// `CAP_SYS_RESOURCE` this is `wanted`. Without it, the kernel refuses a score below that of this
/// process, and the OCI runtime would fail. So `wanted` is raised, if necessary, to the lower of
/// two scores: this process's score and `instead_of`.
pub fn allowed(wanted: i32, instead_of: i32) -> i32 {
    match may_lower() {
        true => wanted,
        false => wanted.max(own().min(instead_of)),
    }
}

/// True if this process may set scores below its own: it has `CAP_SYS_RESOURCE`, and is in the
/// initial user namespace.
fn may_lower() -> bool {
    static MAY_LOWER: OnceLock<bool> = OnceLock::new();
    *MAY_LOWER.get_or_init(|| {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        is_first(&read("/proc/self/uid_map")) && has_resource(&read("/proc/self/status"))
    })
}

/// True for the `uid_map` of the initial user namespace.
pub(super) fn is_first(users: &str) -> bool {
    let mut users = users.split_whitespace();
    [users.next(), users.next(), users.next()] == [Some("0"), Some("0"), Some("4294967295")]
}

/// True if a `/proc/<pid>/status` shows `CAP_SYS_RESOURCE`.
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
    fn lowering_changes_all_higher_scores_and_raising_only_the_previous_score() {
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
    async fn a_superseded_change_does_not_wait_for_further_children() {
        let cgroup = Cgroup::of(nix::unistd::getpid().as_raw()).expect("the cgroup of the test");
        // No process has more than the highest score, so none has to be changed.
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
    fn the_score_that_a_container_would_have_anyway_is_allowed() {
        assert_eq!(allowed(1000, 1000), 1000);
        assert_eq!(allowed(own(), 1000), own());
        // When the score of a bundle is to be lowered, `allowed` never returns a higher score than
        // the bundle has.
        assert!(allowed(-1000, own()) <= own());
    }
}
