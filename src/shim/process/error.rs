//! Errors of the shim's commands.

use std::io;
use std::path::PathBuf;

use containerd_shim_protos::protobuf;
use thiserror::Error;
use usher_api::config::ConfigFileError;
use usher_engine::EngineError;
use usher_linux::cgroup::JoinError;
use usher_linux::probe::prober::OrderError;

/// The reason why a command failed. containerd adds the message to its own error.
#[derive(Debug, Error)]
pub(super) enum ShimError {
    #[error("{0}")]
    Arguments(containerd_shim::Error),
    #[error("no -namespace is given, expected containerd's namespace")]
    NoNamespace,
    #[error("no -id is given, expected the container's id")]
    NoId,
    #[error("action {0:?} is unknown, expected start or delete")]
    UnknownAction(String),
    #[error(
        "bootstrap parameters are for container {id:?} in namespace {namespace:?}, expected {expected_id:?} \
         in {expected_namespace:?} as the flags say"
    )]
    OtherContainer {
        id: String,
        namespace: String,
        expected_id: String,
        expected_namespace: String,
    },
    #[error("runtime options on stdin cannot be decoded: {0}")]
    Stdin(#[source] protobuf::Error),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Config(#[from] ConfigFileError),
    #[error("cannot claim socket {address}: {error}")]
    NotClaimed {
        address: String,
        #[source]
        error: io::Error,
    },
    #[error("the pod's shim cannot be started: {0}")]
    NotStarted(#[source] Box<ShimError>),
    #[error("ShimCgroup {cgroup:?} {error}")]
    Cgroup {
        cgroup: String,
        #[source]
        error: JoinError,
    },
    #[error("cannot begin the core scheduling that SCHED_CORE asks for: {0}")]
    CoreScheduling(#[source] io::Error),
    #[error("cannot write the address file in {}: {error}", bundle.display())]
    NoAddressFile {
        bundle: PathBuf,
        #[source]
        error: io::Error,
    },
    #[error("standard input is not a socket ({0}); usher is run by containerd, with `start`")]
    NoSocket(#[source] io::Error),
    #[error("cannot serve: {0}")]
    NotServed(#[source] ttrpc::Error),
    #[error("OCI runtime {0:?} is not found")]
    NoRuntime(String),
    #[error("OCI runtime {binary:?} cannot be run: {error}")]
    RuntimeNotRun {
        binary: String,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    Prober(#[from] OrderError),
    #[error("the answer cannot be encoded: {0}")]
    Unencoded(#[from] protobuf::Error),
    #[error("the answer cannot be encoded: {0}")]
    UnencodedJson(#[from] serde_json::Error),
    /// A system call that failed; `action` is a verb with its object.
    #[error("cannot {action}: {error}")]
    Call {
        action: &'static str,
        #[source]
        error: io::Error,
    },
}

impl ShimError {
    /// Returns a function for `map_err`, which adds the failed action to an error of the kernel.
    pub fn cannot<E: Into<io::Error>>(action: &'static str) -> impl FnOnce(E) -> ShimError {
        move |error| ShimError::Call {
            action,
            error: error.into(),
        }
    }
}
