//! Options of the OCI runtime in containerd's configuration: keys and values that the shim and
//! `usher check` both read.

use std::path::Path;

use thiserror::Error;

/// Default OCI runtime.
pub const DEFAULT_BINARY: &str = "runc";

/// Option that chose [`REMOVED_RUNTIME`] instead of the OCI runtime in `BinaryName`.
const ENGINE: &str = "engine";

/// OCI runtime of earlier versions of usher. It may still be installed on nodes.
const REMOVED_RUNTIME: &str = "usher-libcontainer";

/// The error for an option that chooses the OCI runtime that was removed from usher.
#[derive(Debug, Error)]
pub enum RemovedOption {
    #[error(
        "{key} is no longer an option, as {REMOVED_RUNTIME} was removed: remove {key}, and name runc or another \
         OCI runtime in BinaryName"
    )]
    Engine { key: String },
    #[error(
        "{key} is {value:?}, which is no longer part of usher: name runc or another OCI runtime \
         in {key}"
    )]
    Runtime { key: String, value: String },
}

/// Returns an error if the option chooses the removed runtime (`REMOVED_RUNTIME`).
pub fn refusal(key: &str, value: &str) -> Option<RemovedOption> {
    match plain(key).as_str() {
        ENGINE => Some(RemovedOption::Engine {
            key: key.to_owned(),
        }),
        "binaryname" if Path::new(value).ends_with(REMOVED_RUNTIME) => {
            Some(RemovedOption::Runtime {
                key: key.to_owned(),
                value: value.to_owned(),
            })
        }
        _ => None,
    }
}

/// Returns a key in lower case and without underscores, so that different spellings of a key are
/// equal.
pub fn plain(key: &str) -> String {
    key.replace('_', "").to_ascii_lowercase()
}
