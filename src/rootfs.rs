//! The root file system of a container: the mounts that containerd asks for.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use containerd_shim::mount::mount_rootfs;
use containerd_shim_protos::types::mount::Mount;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

/// From this size on the mount options of an overlay may not fit into the page that mount(2)
/// takes, and the library changes the working directory of its thread to shorten them.
const LONG_OPTIONS: usize = 2048;

/// Mounts `mounts`, one over the other, at `target`.
///
/// # Errors
///
/// One sentence that names the mount. Nothing is left mounted then.
pub async fn mount(mounts: &[Mount], target: &Path) -> Result<(), String> {
    for mount in mounts {
        if let Err(error) = mount_one(mount, target).await {
            unmount(target);
            return Err(format!(
                "rootfs mount of {:?} (type {:?}) at {}: {error}",
                mount.source,
                mount.type_,
                target.display()
            ));
        }
    }
    Ok(())
}

async fn mount_one(mount: &Mount, target: &Path) -> Result<(), String> {
    let size = mount
        .options
        .iter()
        .map(String::len)
        .fold(0, usize::saturating_add);
    if size < LONG_OPTIONS {
        return mount_now(mount, target);
    }
    check_directories(mount)?;
    // The working directory belongs to the thread only if the thread is one of its own.
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let (mount, target) = (mount.clone(), target.to_owned());
    std::thread::Builder::new()
        .spawn(move || drop(sender.send(mount_now(&mount, &target))))
        .map_err(|error| error.to_string())?;
    receiver
        .await
        .unwrap_or_else(|_| Err("the mounting thread died".to_owned()))
}

fn mount_now(mount: &Mount, target: &Path) -> Result<(), String> {
    let given = |text: &'_ String| (!text.is_empty()).then(|| text.clone());
    let (kind, source) = (given(&mount.type_), given(&mount.source));
    mount_rootfs(kind.as_deref(), source.as_deref(), &mount.options, target)
        .map_err(|error| error.to_string())
}

/// The library ends the whole process if it cannot change to the directory that the lower ones
/// have in common, so it has to be there.
fn check_directories(mount: &Mount) -> Result<(), String> {
    let lower = mount
        .options
        .iter()
        .filter_map(|option| option.strip_prefix("lowerdir="));
    match lower
        .flat_map(|dirs| dirs.split(':'))
        .find(|dir| !Path::new(dir).is_dir())
    {
        Some(missing) => Err(format!("lowerdir {missing:?} is not a directory")),
        None => Ok(()),
    }
}

/// Unmounts everything at `target` and below it, also where `target` itself is not mounted.
pub fn unmount_all(target: &Path) {
    unmount(target);
    // What is detached takes along what is mounted on it.
    let is_empty = std::fs::read_dir(target).map_or(true, |mut entries| entries.next().is_none());
    if is_empty {
        return;
    }
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let fields = table
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    for mounted in fields.map(unescape).filter(|at| at.starts_with(target)) {
        unmount(&mounted);
    }
}

/// A path as `/proc/self/mountinfo` has it: blanks and the like as three octal digits (`proc(5)`).
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((byte, tail)) = rest.split_first() {
        let digits = tail
            .get(..3)
            .and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match escaped.filter(|_| *byte == b'\\') {
            Some(escaped) => {
                path.push(escaped);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                path.push(*byte);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

/// Unmounts everything at `target`; whatever still uses it keeps it until it ends.
pub fn unmount(target: &Path) {
    loop {
        match umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
            Ok(()) => {}
            // EINVAL: not, or no longer, a mount point.
            Err(Errno::EINVAL | Errno::ENOENT) => return,
            Err(error) => {
                return tracing::warn!(target = %target.display(), %error, "rootfs not unmounted");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mounts_are_unescaped() {
        for (field, path) in [
            ("/a/b", "/a/b"),
            ("/a\\040b\\134c", "/a b\\c"),
            ("/a\\04", "/a\\04"),
            ("\\", "\\"),
        ] {
            assert_eq!(unescape(field.as_bytes()), Path::new(path));
        }
    }
}
