//! Messages between shims and `usher`, and the records of pods that have ended.
//!
//! `protos/usher/v1/control.proto` defines the messages and the service. Each shim answers on a
//! socket in [`directory`]. When a pod ends, a file in that directory keeps the pod's record for an
//! hour.
//!
//! | module | content |
//! |---|---|
//! | [`config`] | the node's configuration file, which shims and `usher` read |
//! | [`cri`] | messages of the Container Runtime Interface, between kubelet and containerd |
//! | [`runtime_options`] | options of the OCI runtime in containerd's configuration |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::restriction, reason = "tests may panic"))]
// Only the thread that serves requests must not block, so tests may.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may wait"))]

#[expect(clippy::disallowed_methods, reason = "read before the shim serves")]
pub mod config;
pub mod cri;
#[expect(clippy::disallowed_methods, reason = "below /run, in memory")]
mod ended;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod runtime_options;
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

/// Version of usher.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Environment variable with a directory to use instead of the default one.
pub const DIRECTORY_VARIABLE: &str = "USHER_SOCKETS";

/// Mode of the directories: only their owner can access them.
const OURS_ALONE: u32 = 0o700;

/// Default directory of the control sockets, beside the shims' own sockets.
const DIRECTORY: &str = "/run/containerd/usher";

/// Subdirectory of [`directory`] with the sockets for root alone.
const ROOTS: &str = "root";

/// Directory of the control sockets.
pub fn directory() -> PathBuf {
    let given = std::env::var_os(DIRECTORY_VARIABLE).filter(|given| !given.is_empty());
    given.map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from)
}

/// Path of a shim's second socket, which only root can use. `socket` is the path of the shim's
/// first socket, in [`directory`].
pub fn roots_socket(socket: &Path) -> PathBuf {
    let name = socket.file_name().unwrap_or_default();
    socket.with_file_name(ROOTS).join(name)
}

/// Makes a directory that only its owner can access, and its missing parents. If the directory
/// exists, takes the access away from all other users. This is needed because kubelet makes the
/// directory, readable by all, if a pod mounts it before the first shim runs.
///
/// # Errors
///
/// If the directory cannot be made.
#[expect(clippy::disallowed_methods, reason = "below /run, in memory")]
pub fn make_directory(path: &Path) -> io::Result<()> {
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
    fn an_existing_directory_loses_the_access_of_others() {
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
