//! What shims tell `usher`, in messages; and what is kept of pods that have ended.
//!
//! The messages and the service are those of `protos/usher/v1/control.proto`. Each shim answers on a
//! socket in [`directory`]. What is known of a pod that has ended is kept there in files, for an hour.

mod ended;
mod vocabulary;

/// Messages and service of `protos/usher/v1/control.proto`.
#[allow(warnings, clippy::all, clippy::restriction)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/protos/mod.rs"));
}

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub use ended::{Archive, Ended, NodeArchive};
pub use generated::control::*;
pub use generated::control_ttrpc::{Control, ControlClient, create_control};
pub use vocabulary::{cause, cause_of, hook_of, missing_of, remedy_of, role, state_of, step_of};

/// The variable that names another directory than the usual one.
pub const DIRECTORY_VARIABLE: &str = "USHER_SOCKETS";

/// The mode of directories.
const OURS_ALONE: u32 = 0o700;

/// Beside the shims' own sockets.
const DIRECTORY: &str = "/run/containerd/usher";

/// Beside the sockets in [`directory`], the sockets that only root may connect to.
const ROOTS: &str = "root";

/// Where the sockets are.
pub fn directory() -> PathBuf {
    let given = std::env::var_os(DIRECTORY_VARIABLE).filter(|given| !given.is_empty());
    given.map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from)
}

/// The socket for root alone that belongs to the one at `socket`, which is in [`directory`].
pub fn roots_socket(socket: &Path) -> PathBuf {
    let name = socket.file_name().unwrap_or_default();
    socket.with_file_name(ROOTS).join(name)
}

/// Makes a directory that nobody else can look into, and those above it. One that is there is closed to
/// others, since kubelet makes it open to them where it is mounted before there is a shim.
///
/// # Errors
///
/// If it cannot be made.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(OURS_ALONE)
        .create(path)?;
    let mode = std::fs::metadata(path)?.permissions().mode();
    if mode & 0o077 != 0 {
        std::fs::set_permissions(path, Permissions::from_mode(OURS_ALONE))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_was_open_to_others_is_closed_to_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("above/usher");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        make_directory(&path).unwrap();
        assert_eq!(mode(), OURS_ALONE);
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        make_directory(&path).unwrap();
        assert_eq!(mode(), OURS_ALONE);
    }
}
