//! Words of the OCI runtime's options, which containerd's configuration and the shim have in
//! common.

use std::path::Path;

/// Default OCI runtime.
pub const DEFAULT_BINARY: &str = "runc";

/// Option that chose [`REMOVED_RUNTIME`] instead of the OCI runtime in `BinaryName`.
const ENGINE: &str = "engine";

/// OCI runtime of earlier versions of usher. It may still be installed on nodes.
const REMOVED_RUNTIME: &str = "usher-libcontainer";

/// Error message for an option that chooses the removed runtime (`REMOVED_RUNTIME`); `None` for any
/// other option.
pub fn refusal(key: &str, value: &str) -> Option<String> {
    match plain(key).as_str() {
        ENGINE => Some(format!(
            "{key} is no longer an option, as {REMOVED_RUNTIME} was removed: remove {key}, and name runc or another \
             OCI runtime in BinaryName"
        )),
        "binaryname" if Path::new(value).ends_with(REMOVED_RUNTIME) => Some(format!(
            "{key} is {value:?}, which was removed: name runc or another OCI runtime in {key}"
        )),
        _ => None,
    }
}

/// Returns a key without capitals and underscores, which containerd ignores.
pub fn plain(key: &str) -> String {
    key.replace('_', "").to_ascii_lowercase()
}
