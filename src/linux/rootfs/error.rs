//! Errors of mounts.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

use super::options::DATA_AT_MOST;
use crate::PathError;

/// A failed mount of a container's root file system.
#[derive(Debug, Error)]
#[error("cannot mount {from:?} (type {kind:?}) at {}: {failure}", target.display())]
pub struct MountError {
    pub from: String,
    pub kind: String,
    pub target: PathBuf,
    #[source]
    pub failure: MountFailure,
}

/// The reason why a mount failed.
#[derive(Debug, Error)]
pub enum MountFailure {
    #[error("its options have only one of uidmap and gidmap; expected both or none")]
    OneMap,
    #[error("its options have {length} bytes; expected at most {DATA_AT_MOST}")]
    LongOptions { length: usize },
    #[error(
        "{option}={map} has {part:?}; expected inside:outside:count in numbers, with a count above 0"
    )]
    InvalidMap {
        option: &'static str,
        map: String,
        part: String,
    },
    #[error("cannot write {option}={map} to the map of a user namespace: {error}")]
    RefusedMap {
        option: &'static str,
        map: String,
        #[source]
        error: io::Error,
    },
    #[error("cannot make a user namespace for its uidmap and gidmap: {0}")]
    NoUserNamespace(#[source] io::Error),
    #[error("its options have uidmap but no lowerdir; expected lowerdir with the layers")]
    NoLayers,
    #[error(
        "the kernel or file system cannot map the owners of {} (ID-mapped mount): {error}",
        path.display()
    )]
    UnmappedOwners {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("its target {target:?} cannot be opened: {error}")]
    NoTarget {
        target: String,
        #[source]
        error: Errno,
    },
    /// The kernel refuses to attach the file to a free loop device.
    #[error("{} cannot be attached to {device}: {error}", file.display())]
    NotAttached {
        device: String,
        file: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("no loop device was free in {tries} tries")]
    NoLoopDevice { tries: usize },
    #[error("cannot start a thread: {0}")]
    NoThread(#[source] io::Error),
    #[error("cannot give a thread its own working directory: {0}")]
    NoWorkingDirectory(#[source] Errno),
    /// The error of mount(2).
    #[error("{0}")]
    Refused(#[source] Errno),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("{program} {error}")]
    Helper {
        program: &'static str,
        #[source]
        error: HelperError,
    },
}

/// The failure of a program that mounts a FUSE file system. The message follows the program's name.
#[derive(Debug, Error)]
pub enum HelperError {
    #[error("cannot be run: {0}")]
    NotRun(#[from] io::Error),
    /// `said` is the text of the program's standard error.
    #[error("exited with {code}: {said}")]
    Failed { code: u32, said: String },
    #[error("did not end within {limit:?} and was killed")]
    Late { limit: Duration },
}
