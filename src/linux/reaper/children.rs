//! Finds the children of a process: in the kernel's lists of children, or by the parent of each
//! process on the node.

use std::fs;
use std::path::Path;

use crate::ProcessStat;

/// The list of a thread's children (`proc_tid_children(5)`). Only kernels with
/// `CONFIG_PROC_CHILDREN` have such lists.
pub const LIST: &str = "/proc/thread-self/children";

/// The way to find the children of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Search {
    /// Reads the kernel's lists of children.
    Lists,
    /// Looks at the parents of all processes on the node. This takes milliseconds if there are
    /// thousands of processes.
    Parents,
}

/// Looks up the children of processes, during one search.
#[derive(Debug)]
pub(super) enum Family {
    /// Reads the kernel's lists of children anew for each process.
    Lists,
    /// All processes of the node at the beginning of the search, as pairs of parent and process.
    Parents(Vec<(i32, i32)>),
}

impl Default for Search {
    fn default() -> Search {
        Search::by(Path::new(LIST))
    }
}

impl Search {
    /// Returns [`Search::Lists`] if the file `list` exists, otherwise [`Search::Parents`].
    pub fn by(list: &Path) -> Search {
        match list.exists() {
            true => Search::Lists,
            false => Search::Parents,
        }
    }

    pub fn look(self) -> Family {
        match self {
            Search::Lists => Family::Lists,
            Search::Parents => Family::Parents(all()),
        }
    }
}

impl Family {
    /// The children of all threads of a process.
    pub fn children_of(&self, process: i32) -> Vec<i32> {
        match self {
            Family::Lists => listed(process),
            Family::Parents(all) => {
                let children = all.iter().filter(|(parent, _)| *parent == process);
                children.map(|(_, child)| *child).collect()
            }
        }
    }
}

fn listed(process: i32) -> Vec<i32> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let threads = threads.into_iter().flatten();
    let lists = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| pids(&list)).collect()
}

fn pids(list: &str) -> Vec<i32> {
    let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.collect()
}

fn all() -> Vec<(i32, i32)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        // If this fails, the process has exited in the meantime.
        Some((ProcessStat::read(pid).ok()?.parent, pid))
    });
    processes.collect()
}

/// Fuzzes the parser of the list of children.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(input: &[u8]) {
    let list = String::from_utf8_lossy(input);
    let read = || pids(&list);
    usher_fuzz::cost::assert_bounded(input.len(), 16, 1024, read);
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;
    use std::time::Duration;

    use nix::sys::prctl;
    use tokio::time::{sleep, timeout};

    use super::super::alone::alone;
    use super::super::{Child, Reaper};
    use super::*;
    use usher_core::process::ExitStatus;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn shell(reaper: &Reaper, script: &str) -> Child {
        let mut command = Command::new("/bin/sh");
        reaper.spawn_self(command.args(["-c", script])).unwrap()
    }

    async fn ended(child: &mut Child) -> ExitStatus {
        timeout(PATIENCE, child.wait())
            .await
            .expect("its end")
            .unwrap()
    }

    /// The letter of a process's state, or `None` if it was collected.
    fn state(pid: i32) -> Option<char> {
        Some(ProcessStat::read(pid).ok()?.state)
    }

    async fn becomes(pid: i32, expected: Option<char>) {
        let reached = async {
            while state(pid) != expected {
                sleep(Duration::from_millis(5)).await;
            }
        };
        let reached = timeout(PATIENCE, reached).await;
        assert!(
            reached.is_ok(),
            "{pid} is {:?}, not {expected:?}",
            state(pid)
        );
    }

    /// Has a shell start a process that becomes a child of the reaper and runs until the test
    /// creates `file`.
    async fn orphan(reaper: &Reaper, directory: &Path, file: &str, code: u8) -> i32 {
        let (go, pid) = (directory.join(file), directory.join(format!("{file}-pid")));
        let script = format!(
            "(until test -e {}; do sleep 0.01; done; exit {code}) & echo $! > {}",
            go.display(),
            pid.display()
        );
        let mut parent = shell(reaper, &script);
        assert_eq!(ended(&mut parent).await, ExitStatus::Code(0));
        fs::read_to_string(pid).unwrap().trim().parse().unwrap()
    }

    /// Checks that the reaper collects orphans even while it keeps the zombie of a reserved
    /// process. After a restart in place, the first process of the container is such a zombie.
    async fn everything_is_collected_behind_a_reserved_process(reaper: Reaper) {
        prctl::set_child_subreaper(true).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let go = |file: &str| fs::write(directory.path().join(file), "").unwrap();
        let mut first = shell(&reaper, "exit 3");
        reaper.reserve(first.pid());
        assert_eq!(ended(&mut first).await, ExitStatus::Code(3));
        assert_eq!(state(first.pid()), Some('Z'));
        // The process `named` exits before the command that started the process reports the PID.
        let expectation = reaper.expect();
        let named = orphan(&reaper, directory.path(), "a", 7).await;
        go("a");
        let stranger = orphan(&reaper, directory.path(), "b", 0).await;
        let mut named = expectation.claim(named);
        assert_eq!(ended(&mut named).await, ExitStatus::Code(7));
        // No caller waits for this process.
        go("b");
        becomes(stranger, None).await;
        assert_eq!(state(first.pid()), Some('Z'));
        reaper.free(first.pid());
        becomes(first.pid(), None).await;
    }

    fn with(search: Search) -> Reaper {
        Reaper {
            search,
            ..Reaper::default()
        }
    }

    #[test]
    fn everything_is_collected_behind_a_reserved_process_on_a_kernel_with_lists() {
        alone(
            concat!(
                module_path!(),
                "::everything_is_collected_behind_a_reserved_process_on_a_kernel_with_lists"
            ),
            || with(Search::Lists),
            everything_is_collected_behind_a_reserved_process,
        );
    }

    #[test]
    fn everything_is_collected_behind_a_reserved_process_on_a_kernel_without_lists() {
        alone(
            concat!(
                module_path!(),
                "::everything_is_collected_behind_a_reserved_process_on_a_kernel_without_lists"
            ),
            || with(Search::Parents),
            everything_is_collected_behind_a_reserved_process,
        );
    }

    #[test]
    fn a_process_is_found_among_the_children_of_its_parent_with_lists_and_without() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let nowhere = PathBuf::from("/proc/thread-self/no-such-list");
        for search in [Search::default(), Search::by(&nowhere)] {
            let family = search.look();
            assert!(family.children_of(own).contains(&pid), "{search:?}");
            assert!(family.children_of(pid).is_empty(), "{search:?}");
        }
        assert_eq!(Search::by(&nowhere), Search::Parents);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
