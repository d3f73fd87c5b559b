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

#[expect(
    clippy::disallowed_methods,
    reason = "on a thread of its own, or in a process that serves nothing"
)]
mod below;
mod fuse;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[expect(
    clippy::disallowed_methods,
    reason = "on a thread of its own, or in a process that serves nothing"
)]
mod idmap;
#[expect(
    clippy::disallowed_methods,
    reason = "on a thread of its own, or in a process that serves nothing"
)]
mod layers;
#[expect(
    clippy::disallowed_methods,
    reason = "on a thread of its own, or in a process that serves nothing"
)]
mod loop_device;
#[expect(
    clippy::disallowed_methods,
    reason = "on a thread of its own, or in a process that serves nothing"
)]
mod mounting;
mod options;

use std::fs::create_dir_all;
use std::path::{Path, PathBuf};

use containerd_shim_protos::types::mount::Mount;
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use crate::offload::Threads;
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
    for mount in mounts {
        if let Err(error) = mount_one(mount, bundle, reaper).await {
            unmount(bundle, reaper.threads()).await;
            return Err(format!(
                "rootfs mount of {:?} (type {:?}) at {}: {error}",
                mount.source,
                mount.type_,
                of(bundle)
                    .join(mount.target.trim_start_matches('/'))
                    .display()
            ));
        }
    }
    Ok(())
}

/// Mounts on a thread, since devices, network file systems and the layers of an overlay may stall.
#[expect(clippy::disallowed_methods, reason = "on a thread of its own")]
async fn mount_one(mount: &Mount, bundle: &Path, reaper: &Reaper) -> Result<(), String> {
    let rootfs = of(bundle);
    let helper = fuse::Helper::of(&mount.type_);
    let mounting = match &helper {
        Some(_) => None,
        None => Some(Mounting::new(mount, bundle)?),
    };
    let mounted = reaper.threads().run(move || {
        create_dir_all(&rootfs).map_err(|error| format!("{}: {error}", rootfs.display()))?;
        mounting.map_or(Ok(()), Mounting::carry_out)
    });
    mounted.await.map_err(|error| error.to_string())??;
    match helper {
        Some(helper) => helper.mount(mount, &of(bundle), reaper).await,
        None => Ok(()),
    }
}

/// Unmounts everything at the root file system of `bundle`, and below it; whatever still uses it
/// keeps it until it ends.
pub async fn unmount(bundle: &Path, threads: &Threads) {
    let rootfs = of(bundle);
    let unmounted = threads.run(move || unmount_at(&rootfs));
    if let Err(error) = unmounted.await {
        tracing::warn!(bundle = %bundle.display(), %error, "rootfs not unmounted");
    }
}

/// Unmounts what a shim has left that was killed, perhaps in the midst of mounting. Any disk may stall it: it is
/// for a process that serves nothing.
pub fn unmount_all(bundle: &Path) {
    below::unmount(&of(bundle));
    layers::unmount(bundle);
}

/// Unmounts what a command of the OCI runtime that was killed has mounted in its own state of a container:
/// runc's create mounts the program that it is, for a moment, and its delete stumbles over that.
pub async fn unmount_state(state: &Path, threads: &Threads) {
    let owned = state.to_owned();
    if let Err(error) = threads.run(move || unmount_state_now(&owned)).await {
        tracing::warn!(state = %state.display(), %error, "not unmounted");
    }
}

/// The same, in a process that serves nothing.
#[expect(
    clippy::disallowed_methods,
    reason = "on a thread of its own, or in a process that serves nothing"
)]
pub fn unmount_state_now(state: &Path) {
    if state.exists() {
        below::unmount(state);
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "on a thread of its own, or in a process that serves nothing"
)]
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
