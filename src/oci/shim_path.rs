//! containerd's file with the path of a bundle's shim.
//!
//! A restarted containerd reads this path, and runs the program's `delete` if the shim dies later.
//! containerd writes the file into the bundle for which it starts a shim. Since 2.3, containerd
//! starts no shim for a container that joins a pod, and writes no file into that container's
//! bundle. After a restart containerd then derives the shim's program from the runtime's type. If
//! the configuration has a `runtime_path`, the derived program is another shim, whose `delete`
//! knows nothing of usher. If no such program exists, containerd even drops the bundle of a running
//! container (`loadShims` in `core/runtime/v2/shim_load.go`).

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use usher_linux::files::{Replacement, replace};

const FILE: &str = "shim-binary-path";

/// Mode of the file, as containerd writes it.
const MODE: u32 = 0o600;

/// Copies the file from the bundle of the pod's first container to `bundle`. Does nothing if
/// `bundle` already has the file.
///
/// # Errors
///
/// If the file cannot be read or written. Then `bundle` does not have the file.
pub fn hand_on(first: &Path, bundle: &Path) -> io::Result<()> {
    let path = bundle.join(FILE);
    match fs::read(first.join(FILE)) {
        Ok(known) if !path.exists() => replace(&path, &known, Replacement::with_mode(MODE)),
        // The first bundle may lack the file, because containerd before 1.6 and other callers do
        // not write it.
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_missing_file_is_copied_from_the_first_bundle() {
        let (first, bundle) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let file = bundle.path().join(FILE);
        hand_on(first.path(), bundle.path()).unwrap();
        assert!(!file.exists());
        fs::write(first.path().join(FILE), "/opt/usher/shim").unwrap();
        hand_on(first.path(), bundle.path()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "/opt/usher/shim");
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
        hand_on(first.path(), first.path()).unwrap();
        fs::write(&file, "/its/own").unwrap();
        hand_on(first.path(), bundle.path()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "/its/own");
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error_and_leaves_nothing() {
        let first = tempfile::tempdir().unwrap();
        fs::write(first.path().join(FILE), "/opt/usher/shim").unwrap();
        assert!(hand_on(first.path(), &first.path().join("missing")).is_err());
        assert_eq!(fs::read_dir(first.path()).unwrap().count(), 1);
    }
}
