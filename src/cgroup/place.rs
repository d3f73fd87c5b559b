//! Where commands run that the shim runs for a pod: in the pod's own cgroup, so that what they take of
//! the CPU is the pod's.
//!
//! Whoever moves a process may have to wait for an RCU grace period (see `moves.rs`): not the shim's
//! only thread, nor the child that it spawns, since spawning waits until that executes something. So
//! the shim's own program comes first, in a mode for this, moves itself and then becomes the command.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::{fs, io};

use super::MEMBERS;

/// The first argument of the shim's program that is to move itself.
pub const MODE: &str = "in-cgroup";

/// What comes before the command.
const COMMAND: &str = "--";

/// This program, also when its file has been replaced.
const SELF: &str = "/proc/self/exe";

/// The cgroup below a pod's that its commands are in where the pod's own takes none: in version 2 no
/// process may be where controllers are given on.
const LEAF: &str = "usher-commands";

/// The cgroups that a command is to be in.
#[derive(Clone, Debug)]
pub struct Place {
    directories: Vec<PathBuf>,
    leaf: Option<Arc<Leaf>>,
}

/// A cgroup that is made when it is needed, and goes away with the last who needs it.
#[derive(Debug)]
struct Leaf(PathBuf);

// === impl Place ===

impl Place {
    /// These cgroups of version 1.
    pub(super) fn in_v1(directories: Vec<PathBuf>) -> Place {
        Place {
            directories,
            leaf: None,
        }
    }

    /// A cgroup below that of a pod, in version 2.
    pub(super) fn below_v2(pod: &Path) -> Place {
        let leaf = pod.join(LEAF);
        Place {
            directories: vec![leaf.clone()],
            leaf: Some(Arc::new(Leaf(leaf))),
        }
    }

    /// A command that runs there; where there is no place, that runs where we are. Should it not be
    /// possible to move, it runs all the same.
    pub fn command(place: Option<&Place>, program: impl AsRef<OsStr>) -> Command {
        let Some(place) = place else {
            return Command::new(program);
        };
        if let Some(leaf) = &place.leaf {
            // What fails here, fails again when it is entered.
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
        // Whoever is still in it keeps it.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Removes what a shim that has died could not, of the pod of a container that was in this cgroup.
pub fn remove_leaf(container: &Path) {
    if let Some(pod) = container.parent() {
        let _ = fs::remove_dir(pod.join(LEAF));
    }
}

/// Moves this process to where the arguments say, and becomes the command behind them.
///
/// # Errors
///
/// If there is no command, or it cannot be executed.
pub fn enter(arguments: &[OsString]) -> io::Error {
    let mut arguments = arguments.iter();
    for directory in arguments.by_ref().take_while(|word| *word != COMMAND) {
        // A zero moves the process that writes it. If that is refused, the command runs where it is.
        let _ = fs::write(Path::new(directory).join(MEMBERS), "0");
    }
    match arguments.next() {
        Some(program) => Command::new(program).args(arguments).exec(),
        None => io::Error::other("there is no command behind the cgroups"),
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
    fn where_there_is_no_place_nothing_comes_before_a_command() {
        let mut command = Place::command(None, "runc");
        command.arg("exec");
        assert_eq!(words(&command), ["runc", "exec"]);
    }

    #[test]
    fn a_command_is_preceded_by_our_own_program() {
        let place = Place::in_v1(vec![PathBuf::from("/a"), PathBuf::from("/b")]);
        let mut command = Place::command(Some(&place), "runc");
        command.arg("exec");
        let expected = [SELF, MODE, "/a", "/b", COMMAND, "runc", "exec"];
        assert_eq!(words(&command), expected);
    }

    #[test]
    fn a_cgroup_below_the_pods_is_there_while_somebody_needs_it() {
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
