//! Runs the shim's commands for a pod in the pod's cgroup, so that their CPU time is charged to the
//! pod.
//!
//! A move into a cgroup may wait for an RCU grace period (see `moves.rs`). The shim's only thread
//! must not wait that long. A spawned child must not move before exec either, because the shim's
//! thread waits for the exec. So the child first executes the shim's own program in another mode.
//! In this mode the program moves itself, and then executes the command.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{fs, io};

use super::MEMBERS;

/// First argument of the shim's program that selects this mode.
pub const MODE: &str = "in-cgroup";

/// Argument between the cgroups and the command.
const COMMAND: &str = "--";

/// Path of this program, which works even after its file was replaced.
const SELF: &str = "/proc/self/exe";

/// Name of the cgroup for commands, which is below the pod's cgroup. On v2 the pod's cgroup itself
/// can have no processes, because it enables controllers for its children.
const LEAF: &str = "usher-commands";

/// The cgroups in which a command runs.
#[derive(Clone, Debug)]
pub struct Place {
    directories: Vec<PathBuf>,
    leaf: Option<Arc<Leaf>>,
}

/// A cgroup that is made when needed, and removed on drop.
#[derive(Debug)]
struct Leaf(PathBuf);

impl Place {
    /// Returns the [`Place`] for commands that run in these v1 cgroups, which exist already.
    pub(super) fn in_v1(directories: Vec<PathBuf>) -> Place {
        Place {
            directories,
            leaf: None,
        }
    }

    /// Returns the place of a pod on v2: a cgroup below the pod's cgroup.
    pub(super) fn below_v2(pod: &Path) -> Place {
        let leaf = pod.join(LEAF);
        Place {
            directories: vec![leaf.clone()],
            leaf: Some(Arc::new(Leaf(leaf))),
        }
    }

    /// Builds a command that runs in `place`; without a place it runs in the shim's cgroup. If the
    /// command cannot be moved to the place, it stays in the shim's cgroup.
    pub fn command(place: Option<&Place>, program: impl AsRef<OsStr>) -> Command {
        let Some(place) = place else {
            return Command::new(program);
        };
        if let Some(leaf) = &place.leaf {
            // If this fails, the command's move to the cgroup fails, too, and the command stays in
            // the shim's cgroup.
            let _ = fs::create_dir(&leaf.0);
        }
        let mut command = Command::new(SELF);
        command.arg(MODE).args(&place.directories);
        command.arg(COMMAND).arg(program);
        command
    }
}

impl Drop for Leaf {
    fn drop(&mut self) {
        // Fails while the cgroup has processes.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Removes the cgroup in which a dead shim ran its commands. `container` is the cgroup of one of
/// the shim's containers. Both cgroups are directly below the pod's cgroup.
pub fn remove_leaf(container: &Path) {
    if let Some(pod) = container.parent() {
        let _ = fs::remove_dir(pod.join(LEAF));
    }
}

/// Main function of the mode `in-cgroup`: moves this process to the cgroups in the arguments, and
/// executes the command that follows them.
///
/// # Errors
///
/// If there is no command, or it cannot be executed.
pub fn enter(arguments: &[OsString]) -> io::Error {
    let mut arguments = arguments.iter();
    for directory in arguments.by_ref().take_while(|word| *word != COMMAND) {
        // The kernel takes 0 as the process that writes. If the move fails, the command runs in the
        // current cgroup.
        let _ = fs::write(Path::new(directory).join(MEMBERS), "0");
    }
    match arguments.next() {
        Some(program) => Command::new(program).args(arguments).exec(),
        None => io::Error::other("expected a command after the cgroups"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> Vec<&str> {
        let words = [command.get_program()]
            .into_iter()
            .chain(command.get_args());
        words.filter_map(OsStr::to_str).collect()
    }

    #[test]
    fn without_a_place_a_command_runs_directly() {
        let mut command = Place::command(None, "runc");
        command.arg("exec");
        assert_eq!(words(&command), ["runc", "exec"]);
    }

    #[test]
    fn with_a_place_a_command_is_run_by_the_shims_program() {
        let place = Place::in_v1(vec![PathBuf::from("/a"), PathBuf::from("/b")]);
        let mut command = Place::command(Some(&place), "runc");
        command.arg("exec");
        let expected = [SELF, MODE, "/a", "/b", COMMAND, "runc", "exec"];
        assert_eq!(words(&command), expected);
    }

    #[test]
    fn the_cgroup_for_commands_exists_while_its_place_is_held() {
        let pod = tempfile::tempdir().unwrap();
        let leaf = pod.path().join(LEAF);
        let place = Place::below_v2(pod.path());
        assert!(!leaf.exists());
        let _ = Place::command(Some(&place), "runc");
        assert!(leaf.exists());
        let other = place.clone();
        drop(place);
        assert!(leaf.exists());
        drop(other);
        assert!(!leaf.exists());
        fs::create_dir(&leaf).unwrap();
        remove_leaf(&pod.path().join("container"));
        assert!(!leaf.exists());
    }
}
