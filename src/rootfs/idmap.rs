//! Id-mapped mounts: users and groups own other ids through the mount than on the file system
//! (`mount_setattr(2)`).

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::libc;

use crate::sys::mounts;

/// A user namespace that is there only for its maps.
#[derive(Debug)]
pub(super) struct UserNamespace(OwnedFd);

impl UserNamespace {
    /// The namespace with these maps, each of the form `inside:outside:count`, several separated by
    /// commas.
    ///
    /// # Errors
    ///
    /// One sentence that names the map that is wrong, or what the kernel refuses.
    pub fn new(uidmap: &str, gidmap: &str) -> Result<UserNamespace, String> {
        let (uids, gids) = (table("uidmap", uidmap)?, table("gidmap", gidmap)?);
        let refused = |error: std::io::Error| format!("user namespace: {error}");
        // It lives until it is dropped, and the namespace then lives by its descriptor.
        let holder = mounts::UserNamespaceHolder::new().map_err(refused)?;
        let of_holder = |name: &str| format!("/proc/{}/{name}", holder.pid());
        let write = |option: &str, given: &str, file: &str, table: &str| {
            fs::write(of_holder(file), table)
                .map_err(|error| format!("{option}={given} is refused by the kernel: {error}"))
        };
        write("uidmap", uidmap, "uid_map", &uids)?;
        write("gidmap", gidmap, "gid_map", &gids)?;
        let namespace = fs::File::open(of_holder("ns/user")).map_err(refused)?;
        Ok(UserNamespace(namespace.into()))
    }

    /// Mounts what is at `target` once more over itself, with the owners mapped.
    ///
    /// # Errors
    ///
    /// One sentence if kernel or file system refuse.
    pub fn remount(&self, target: &Path) -> Result<(), String> {
        self.attach(target, target, 0, "its files")
    }

    /// Mounts what is at `source` at `target`, read-only and with the owners mapped.
    ///
    /// # Errors
    ///
    /// One sentence if kernel or file system refuse.
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
        // Before it is anywhere to be seen.
        mounts::map_owners(tree.as_fd(), self.as_fd(), attributes).map_err(|error| {
            format!("the owners of {files} cannot be mapped by kernel or file system: {error}")
        })?;
        mounts::attach_tree(tree.as_fd(), target).map_err(at)
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A map as the kernel takes it, a line for each part.
pub(super) fn table(option: &str, map: &str) -> Result<String, String> {
    let line = |part: &str| {
        let numbers: Option<Vec<u32>> = part.split(':').map(|word| word.parse().ok()).collect();
        match numbers.as_deref() {
            Some([inside, outside, count]) if *count > 0 => {
                Ok(format!("{inside} {outside} {count}\n"))
            }
            _ => Err(format!(
                "{option}={map} has {part:?}, expected inside:outside:count in numbers"
            )),
        }
    };
    map.split(',').map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_several_parts_is_a_line_for_each() {
        let lines = table("uidmap", "0:1000:1,1:100000:65536");
        assert_eq!(lines.as_deref(), Ok("0 1000 1\n1 100000 65536\n"));
    }

    #[test]
    fn a_map_that_is_none_is_refused_by_name() {
        for map in ["", "0:0", "0:0:0", "0:0:1:1", "a:0:1", "0:0:1,", "0:-1:1"] {
            let error = table("gidmap", map).unwrap_err();
            assert!(error.starts_with(&format!("gidmap={map} has")), "{error}");
        }
    }
}
