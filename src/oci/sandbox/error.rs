//! Errors of the maker process (`maker.rs`), which the shim quotes in its own errors.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;

use thiserror::Error;
use usher_linux::PathError;

/// Failure to make the files of a sandbox.
#[derive(Debug, Error)]
pub enum FilesError {
    #[error("{} does not lead to a directory; expected containerd's link to the bundle's directory on disk", .0.display())]
    NoDirectory(PathBuf),
    #[error("cannot encode the note of a cgroup: {0}")]
    Unencoded(#[from] serde_json::Error),
    #[error(transparent)]
    Path(#[from] PathError),
}

/// Failure to make a sandbox.
#[derive(Debug, Error)]
pub enum MakerError {
    #[error("expected a sandbox to make; only usher's shim starts this")]
    Arguments,
    #[error("the request for a sandbox is malformed: {request:?}: {error}")]
    Request {
        request: OsString,
        #[source]
        error: serde_json::Error,
    },
    #[error("cannot enter the user namespace of {}: {error}", path.display())]
    UserNamespace {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("cannot set host name {hostname:?}: {error}")]
    Hostname {
        hostname: String,
        #[source]
        error: io::Error,
    },
    #[error("cannot set sysctl {name} to {value:?}: {error}")]
    Sysctl {
        name: String,
        value: String,
        #[source]
        error: io::Error,
    },
    #[error("cannot make systemd unit {name} with systemd-run: {error}")]
    Scope {
        name: String,
        #[source]
        error: io::Error,
    },
    #[error("cannot encode the request for a sandbox: {0}")]
    Unencoded(#[from] serde_json::Error),
    #[error("cannot give up capabilities: {0}")]
    Capabilities(#[from] caps::errors::CapsError),
    /// A system call that failed; `action` is a verb with its object.
    #[error("cannot {action}: {error}")]
    Call {
        action: &'static str,
        #[source]
        error: io::Error,
    },
    #[error("cannot hold the pod's namespaces: {0}")]
    NotHeld(#[source] Box<MakerError>),
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error(transparent)]
    Path(#[from] PathError),
}

impl MakerError {
    /// Returns a function that adds the action to an error of the kernel, for `map_err`.
    pub fn cannot<E: Into<io::Error>>(action: &'static str) -> impl Fn(E) -> MakerError {
        move |error| MakerError::Call {
            action,
            error: error.into(),
        }
    }
}
