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

use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub use ended::{Archive, Ended, NodeArchive};
pub use generated::control::*;
pub use generated::control_ttrpc::{Control, ControlClient, create_control};
pub use vocabulary::{cause, cause_of, hook_of, missing_of, remedy_of, role, state_of, step_of};

/// The variable that names another directory than the usual one.
pub const DIRECTORY_VARIABLE: &str = "USHER_SOCKETS";

/// Beside the shims' own sockets.
const DIRECTORY: &str = "/run/containerd/usher";

/// Where the sockets are.
pub fn directory() -> PathBuf {
    let given = std::env::var_os(DIRECTORY_VARIABLE).filter(|given| !given.is_empty());
    given.map_or_else(|| PathBuf::from(DIRECTORY), PathBuf::from)
}

/// Makes a directory that nobody else can look into, and those above it.
///
/// # Errors
///
/// If it cannot be made.
pub(crate) fn make_directory(path: &Path) -> io::Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
}
