//! The root file system of a container, made from the mounts in containerd's Create.
//!
//! | file | subject |
//! |---|---|
//! | `options.rs` | mount options: flags, data for the file system, and options for the shim |
//! | `mounting.rs` | one mount |
//! | `layers.rs` | many or ID-mapped lower directories of an overlay |
//! | `idmap.rs` | mapped owners (`uidmap=`, `gidmap=`) |
//! | `loop_device.rs` | a file as a block device (`loop`) |
//! | `fuse.rs` | FUSE file systems |
//! | `below.rs` | unmounting what a dead shim has left |

#[expect(
    clippy::disallowed_methods,
    reason = "on a thread of its own, or in a process that serves nothing"
)]
mod below;
mod error;
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

use crate::PathError;
use crate::offload::Threads;
use crate::reaper::Reaper;

pub use error::{HelperError, MountError, MountFailure};
use mounting::Mounting;

/// Name of the root file system's directory in the bundle.
const ROOTFS: &str = "rootfs";

/// Path of the root file system of the container in `bundle`.
pub fn of(bundle: &Path) -> PathBuf {
    bundle.join(ROOTFS)
}

/// Mounts `mounts`, in order, at the root file system of `bundle`, or at their targets below it.
///
/// # Errors
///
/// The first mount that failed. After an error nothing is left mounted.
pub async fn mount(mounts: &[Mount], bundle: &Path, reaper: &Reaper) -> Result<(), MountError> {
    for mount in mounts {
        if let Err(failure) = mount_one(mount, bundle, reaper).await {
            unmount(bundle, reaper.threads()).await;
            return Err(MountError {
                from: mount.source.clone(),
                kind: mount.type_.clone(),
                target: of(bundle).join(mount.target.trim_start_matches('/')),
                failure,
            });
        }
    }
    Ok(())
}

/// Makes one of the mounts on a further thread, because devices, network file systems and the
/// layers of an overlay may stall.
#[expect(clippy::disallowed_methods, reason = "on a thread of its own")]
async fn mount_one(mount: &Mount, bundle: &Path, reaper: &Reaper) -> Result<(), MountFailure> {
    let rootfs = of(bundle);
    let helper = fuse::Helper::of(&mount.type_);
    let mounting = match &helper {
        Some(_) => None,
        None => Some(Mounting::new(mount, bundle)?),
    };
    let mounted = reaper.threads().run(move || {
        create_dir_all(&rootfs).map_err(PathError::cannot("make", &rootfs))?;
        mounting.map_or(Ok(()), Mounting::carry_out)
    });
    mounted.await.map_err(MountFailure::NoThread)??;
    match helper {
        Some(helper) => helper.mount(mount, &of(bundle), reaper).await,
        None => Ok(()),
    }
}

/// Detaches all mounts at the root file system of `bundle` and below it. A process that still uses
/// such a mount keeps the mount until it exits.
pub async fn unmount(bundle: &Path, threads: &Threads) {
    let rootfs = of(bundle);
    let unmounted = threads.run(move || unmount_at(&rootfs));
    if let Err(error) = unmounted.await {
        tracing::warn!(bundle = %bundle.display(), %error, "rootfs not unmounted");
    }
}

/// Unmounts everything that a killed shim has left in `bundle`, even if the shim was killed while
/// it was mounting. Any disk may stall this call, so a process that serves a pod must not make it.
pub fn unmount_all(bundle: &Path) {
    below::unmount(&of(bundle));
    layers::unmount(bundle);
}

/// Unmounts what a killed command of the OCI runtime has mounted in the directory of a container's
/// state. `runc create` mounts its own program there for a moment, and `runc delete` fails while
/// that program is mounted.
pub async fn unmount_state(state: &Path, threads: &Threads) {
    let owned = state.to_owned();
    if let Err(error) = threads.run(move || unmount_state_now(&owned)).await {
        tracing::warn!(state = %state.display(), %error, "OCI runtime's state not unmounted");
    }
}

/// Does the same as [`unmount_state`], on the calling thread. Only for a process that does not
/// serve a pod.
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
            // EINVAL means that `target` is no mount point, or no longer one.
            Err(Errno::EINVAL | Errno::ENOENT) => return,
            Err(error) => {
                return tracing::warn!(target = %target.display(), %error, "rootfs not unmounted");
            }
        }
    }
}
