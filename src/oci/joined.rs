//! Records of the containers that joined a pod, in the bundle of the pod's first container.
//!
//! Since 2.3, containerd runs no `start` for a container that joins a pod. Before 2.4, it then
//! runs no `delete` for such a container either: after the shim has died, containerd only removes
//! the container's bundle (`loadShim` in `core/runtime/v2/shim_manager.go`). With these records,
//! the `delete` of the pod's first container finds the others.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use usher_linux::files::{Replacement, replace};

use super::Options;

const PREFIX: &str = "joined-";

const MODE: u32 = 0o600;

/// A container that joined the pod.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Joined {
    pub id: String,
    pub bundle: PathBuf,
    pub options: Options,
}

impl Joined {
    /// Writes a record of this container into `first`, the bundle of the pod's first container.
    /// Writes nothing if this container is the first one.
    ///
    /// # Errors
    ///
    /// If the record cannot be written. Then there is no record.
    pub fn record(&self, first: &Path) -> io::Result<()> {
        if is_same(first, &self.bundle)? {
            return Ok(());
        }
        replace(
            &path(first, &self.id),
            &serde_json::to_vec(self)?,
            Replacement::with_mode(MODE),
        )
    }
}

/// Removes the record of container `id`.
pub(super) fn remove(first: &Path, id: &str) {
    if let Err(error) = fs::remove_file(path(first, id))
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!(id, %error, "cannot remove a container's record from the first bundle");
    }
}

/// Reads all records in the bundle `first`.
pub(super) fn read_all(first: &Path) -> Vec<Joined> {
    let entries = fs::read_dir(first).into_iter().flatten().flatten();
    let records = entries.filter(|entry| is_record(&entry.file_name()));
    let documents = records.filter_map(|entry| fs::read(entry.path()).ok());
    documents
        .filter_map(|json| serde_json::from_slice(&json).ok())
        .collect()
}

fn path(first: &Path, id: &str) -> PathBuf {
    first.join(format!("{PREFIX}{id}"))
}

fn is_record(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
}

/// True if both paths lead to the same directory.
fn is_same(first: &Path, second: &Path) -> io::Result<bool> {
    let identity = |path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    Ok(identity(first)? == identity(second)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(id: &str, bundle: &Path) -> Joined {
        Joined {
            id: id.to_owned(),
            bundle: bundle.to_owned(),
            options: Options {
                root: "/run/other".to_owned(),
                ..Options::default()
            },
        }
    }

    #[test]
    fn a_container_is_found_until_its_record_is_removed() {
        let (first, bundle) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let app = joined("app", bundle.path());
        app.record(first.path()).unwrap();
        drop(bundle);
        assert_eq!(read_all(first.path()), [app]);
        remove(first.path(), "app");
        assert_eq!(read_all(first.path()), []);
    }

    #[test]
    fn the_first_container_has_no_record() {
        let first = tempfile::tempdir().unwrap();
        joined("first", first.path()).record(first.path()).unwrap();
        assert_eq!(read_all(first.path()), []);
    }

    #[test]
    fn an_id_with_slashes_writes_nothing() {
        let (first, bundle) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let outside = joined("../app", bundle.path());
        outside.record(first.path()).unwrap_err();
        assert_eq!(fs::read_dir(first.path()).unwrap().count(), 0);
    }
}
