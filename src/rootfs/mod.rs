//! The root file system of a container: the mounts that containerd asks for.
//!
//! | file | what it is about |
//! |---|---|
//! | `options.rs` | mount options as text: flags, what the file system gets, what is for us |
//! | `mounting.rs` | one mount |
//! | `layers.rs` | the lower directories of an overlay, when there are many, or mapped ones |
//! | `idmap.rs` | owners that are others inside than outside (`uidmap=`, `gidmap=`) |
//! | `loop_device.rs` | a file as a block device (`loop`) |
//! | `fuse.rs` | file systems that a program mounts |
//! | `below.rs` | what a shim that died has left mounted |

mod below;
mod fuse;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod idmap;
mod layers;
mod loop_device;
mod mounting;
mod options;

use std::path::{Path, PathBuf};

use containerd_shim_protos::types::mount::Mount;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::reaper::Reaper;

use mounting::Mounting;

/// The root file system's place in the bundle.
const ROOTFS: &str = "rootfs";

/// Where containerd wants the root file system of the container in `bundle`.
pub fn of(bundle: &Path) -> PathBuf {
    bundle.join(ROOTFS)
}

/// Mounts `mounts`, one after another, at the root file system of `bundle`, or at what is their
/// target below it.
///
/// # Errors
///
/// One sentence that names the mount. Nothing is left mounted then.
pub async fn mount(mounts: &[Mount], bundle: &Path, reaper: &Reaper) -> Result<(), String> {
    let rootfs = of(bundle);
    if !mounts.is_empty()
        && let Err(error) = std::fs::create_dir_all(&rootfs)
    {
        return Err(format!("rootfs {}: {error}", rootfs.display()));
    }
    for mount in mounts {
        if let Err(error) = mount_one(mount, bundle, reaper).await {
            unmount(bundle);
            return Err(format!(
                "rootfs mount of {:?} (type {:?}) at {}: {error}",
                mount.source,
                mount.type_,
                rootfs.join(mount.target.trim_start_matches('/')).display()
            ));
        }
    }
    Ok(())
}

async fn mount_one(mount: &Mount, bundle: &Path, reaper: &Reaper) -> Result<(), String> {
    if let Some(helper) = fuse::Helper::of(&mount.type_) {
        return helper.mount(mount, &of(bundle), reaper).await;
    }
    let mounting = Mounting::new(mount, bundle)?;
    if mounting.is_quick() {
        return mounting.carry_out();
    }
    // A device may be slow to answer, and the working directory belongs to a thread only if the
    // thread is one of its own.
    let (sender, receiver) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("mount".to_owned())
        .spawn(move || drop(sender.send(mounting.carry_out_apart())))
        .map_err(|error| error.to_string())?;
    receiver
        .await
        .unwrap_or_else(|_| Err("the mounting thread died".to_owned()))
}

/// Unmounts everything at the root file system of `bundle`, and below it; whatever still uses it
/// keeps it until it ends.
pub fn unmount(bundle: &Path) {
    unmount_at(&of(bundle));
}

/// The same for what a shim has left that was killed, perhaps in the midst of mounting.
pub fn unmount_all(bundle: &Path) {
    below::unmount(&of(bundle));
    layers::unmount(bundle);
}

/// Unmounts what a command of the OCI runtime that was killed has mounted in its own state of a container:
/// runc's create mounts the program that it is, for a moment, and its delete stumbles over that.
pub fn unmount_state(state: &Path) {
    if state.exists() {
        below::unmount(state);
    }
}

fn unmount_at(target: &Path) {
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
