//! ID-mapped mounts, through which files have other owners than on their file system
//! (`mount_setattr(2)`).

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::libc;

use crate::sys::mounts;

/// A user namespace that exists only for its ID maps.
#[derive(Debug)]
pub(super) struct UserNamespace(OwnedFd);

impl UserNamespace {
    /// Makes a namespace with these maps: `inside:outside:count`, several separated by commas.
    ///
    /// # Errors
    ///
    /// A sentence with the invalid map, or the kernel's error.
    pub fn new(uidmap: &str, gidmap: &str) -> Result<UserNamespace, String> {
        let (uids, gids) = (table("uidmap", uidmap)?, table("gidmap", gidmap)?);
        let refused = |error: std::io::Error| format!("user namespace: {error}");
        // The holder process exits when `holder` is dropped. After that, the descriptor keeps the
        // namespace.
        let holder = mounts::UserNamespaceHolder::new().map_err(refused)?;
        let of_holder = |name: &str| format!("/proc/{}/{name}", holder.pid());
        let write = |option: &str, given: &str, file: &str, table: &str| {
            fs::write(of_holder(file), table)
                .map_err(|error| format!("the kernel refuses {option}={given}: {error}"))
        };
        write("uidmap", uidmap, "uid_map", &uids)?;
        write("gidmap", gidmap, "gid_map", &gids)?;
        let namespace = fs::File::open(of_holder("ns/user")).map_err(refused)?;
        Ok(UserNamespace(namespace.into()))
    }

    /// Mounts the files at `target` at the same place again, with mapped owners.
    ///
    /// # Errors
    ///
    /// A sentence with the error of the kernel or the file system.
    pub fn remount(&self, target: &Path) -> Result<(), String> {
        self.attach(target, target, 0, "its files")
    }

    /// Mounts the files at `source` at `target`, read-only and with mapped owners.
    ///
    /// # Errors
    ///
    /// A sentence with the error of the kernel or the file system.
    pub fn mount_read_only(&self, source: &Path, target: &Path) -> Result<(), String> {
        let files = source.display().to_string();
        self.attach(source, target, libc::MOUNT_ATTR_RDONLY, &files)
    }

    fn attach(
        &self,
        source: &Path,
        target: &Path,
        attributes: u64,
        files: &str,
    ) -> Result<(), String> {
        let at = |error: std::io::Error| format!("{}: {error}", target.display());
        let tree =
            mounts::clone_tree(source).map_err(|error| format!("{}: {error}", source.display()))?;
        // Map the owners before the mount becomes visible.
        mounts::map_owners(tree.as_fd(), self.as_fd(), attributes).map_err(|error| {
            format!("the kernel or file system cannot map the owners of {files}: {error}")
        })?;
        mounts::attach_tree(tree.as_fd(), target).map_err(at)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Converts a map to the kernel's format, with a line for each part.
pub(super) fn table(option: &str, map: &str) -> Result<String, String> {
    let line = |part: &str| {
        let numbers: Option<Vec<u32>> = part.split(':').map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some([inside, outside, count]) if *count > 0 => {
                Ok(format!("{inside} {outside} {count}\n"))
            }
            _ => Err(format!(
                "{option}={map} has {part:?}; expected inside:outside:count in numbers"
            )),
        }
    };
    map.split(',').map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_of_a_map_becomes_a_line() {
        let lines = table("uidmap", "0:1000:1,1:100000:65536");
        assert_eq!(lines.as_deref(), Ok("0 1000 1\n1 100000 65536\n"));
    }

    #[test]
    fn the_error_of_an_invalid_map_names_it() {
        for map in ["", "0:0", "0:0:0", "0:0:1:1", "a:0:1", "0:0:1,", "0:-1:1"] {
            let error = table("gidmap", map).unwrap_err();
            assert!(error.starts_with(&format!("gidmap={map} has")), "{error}");
        }
    }
}
