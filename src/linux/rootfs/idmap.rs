//! ID-mapped mounts, through which files have other owners than on their file system
//! (`mount_setattr(2)`).

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::libc;

use super::MountFailure;
use crate::PathError;
use crate::sys::mounts;

/// A user namespace that exists only for its ID maps.
#[derive(Debug)]
pub(super) struct UserNamespace(OwnedFd);

impl UserNamespace {
    /// Makes a namespace with these maps: `inside:outside:count`, several separated by commas.
    ///
    /// # Errors
    ///
    /// If a map is invalid, or the kernel refuses it.
    pub fn new(uidmap: &str, gidmap: &str) -> Result<UserNamespace, MountFailure> {
        let (uids, gids) = (table("uidmap", uidmap)?, table("gidmap", gidmap)?);
        // The holder process exits when `holder` is dropped. After that, the descriptor keeps the
        // namespace.
        let holder = mounts::UserNamespaceHolder::new().map_err(MountFailure::NoUserNamespace)?;
        let of_holder = |name: &str| format!("/proc/{}/{name}", holder.pid());
        let write = |option, given: &str, file: &str, table: &str| {
            fs::write(of_holder(file), table).map_err(|error| MountFailure::RefusedMap {
                option,
                map: given.to_owned(),
                error,
            })
        };
        write("uidmap", uidmap, "uid_map", &uids)?;
        write("gidmap", gidmap, "gid_map", &gids)?;
        let namespace =
            fs::File::open(of_holder("ns/user")).map_err(MountFailure::NoUserNamespace)?;
        Ok(UserNamespace(namespace.into()))
    }

    /// Mounts the files at `target` at the same place again, with mapped owners.
    ///
    /// # Errors
    ///
    /// If the kernel or the file system cannot do it.
    pub fn remount(&self, target: &Path) -> Result<(), MountFailure> {
        self.attach(target, target, 0)
    }

    /// Makes a mount at `target` that shows the files at `source`, read-only and with mapped
    /// owners.
    ///
    /// # Errors
    ///
    /// If the kernel or the file system cannot do it.
    pub fn mount_read_only(&self, source: &Path, target: &Path) -> Result<(), MountFailure> {
        self.attach(source, target, libc::MOUNT_ATTR_RDONLY)
    }

    fn attach(&self, source: &Path, target: &Path, attributes: u64) -> Result<(), MountFailure> {
        let tree = mounts::clone_tree(source).map_err(PathError::cannot("clone", source))?;
        // Map the owners before the mount becomes visible.
        mounts::map_owners(tree.as_fd(), self.as_fd(), attributes).map_err(|error| {
            MountFailure::UnmappedOwners {
                path: source.to_owned(),
                error,
            }
        })?;
        let attached = mounts::attach_tree(tree.as_fd(), target);
        Ok(attached.map_err(PathError::cannot("mount at", target))?)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Converts a map to the kernel's format, with a line for each part.
pub(super) fn table(option: &'static str, map: &str) -> Result<String, MountFailure> {
    let line = |part: &str| {
        let numbers: Option<Vec<u32>> = part.split(':').map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some([inside, outside, count]) if *count > 0 => {
                Ok(format!("{inside} {outside} {count}\n"))
            }
            _ => Err(MountFailure::InvalidMap {
                option,
                map: map.to_owned(),
                part: part.to_owned(),
            }),
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
        assert_eq!(lines.unwrap(), "0 1000 1\n1 100000 65536\n");
    }

    #[test]
    fn the_error_of_an_invalid_map_names_it() {
        for map in ["", "0:0", "0:0:0", "0:0:1:1", "a:0:1", "0:0:1,", "0:-1:1"] {
            let error = table("gidmap", map).unwrap_err().to_string();
            assert!(error.starts_with(&format!("gidmap={map} has")), "{error}");
        }
    }
}
