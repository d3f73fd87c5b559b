//! Which program is the shim of a bundle: a file of containerd's, which it reads when it is restarted, and has run that
//! program's `delete` if the shim dies after that.
//!
//! containerd writes it where it has started a shim. Since 2.0 it starts none for a container that joins a pod, and
//! takes such a container for one of its runtime's type then: with `runtime_path` that is another shim, whose `delete`
//! knows nothing of ours. If the program is not there that containerd takes for the shim, it drops the bundle of a
//! container that runs (`loadShims` in `core/runtime/v2/shim_load.go`).

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use super::config::replace;

const FILE: &str = "shim-binary-path";

/// Like containerd's own: its owner's alone.
const MODE: u32 = 0o600;

/// Leaves in `bundle` what containerd has written in that of the pod's first container, where it has written nothing.
///
/// # Errors
///
/// If the file of the one cannot be read, or that of the other not written. There is none of that name then.
pub fn hand_on(first: &Path, bundle: &Path) -> io::Result<()> {
    let path = bundle.join(FILE);
    match fs::read(first.join(FILE)) {
        Ok(known) if !path.exists() => replace(&path, &known, MODE),
        // As before containerd 1.6, and with whatever else talks to a shim.
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn what_containerd_has_not_written_is_as_in_the_first_bundle() {
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
    fn what_cannot_be_written_is_an_error_and_leaves_nothing() {
        let first = tempfile::tempdir().unwrap();
        fs::write(first.path().join(FILE), "/opt/usher/shim").unwrap();
        assert!(hand_on(first.path(), &first.path().join("missing")).is_err());
        assert_eq!(fs::read_dir(first.path()).unwrap().count(), 1);
    }
}
