//! Makes a single mount of a container's root file system.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use containerd_shim_protos::types::mount::Mount;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::MountFailure;
use super::idmap::UserNamespace;
use super::layers::{self, Layers};
use super::loop_device;
use super::options::Options;
use crate::PathError;

#[derive(Debug)]
pub(super) struct Mounting {
    kind: String,
    source: String,
    /// Path at which to mount, below the root file system.
    target: String,
    options: Options,
    bundle: PathBuf,
}

impl Mounting {
    /// Reads the options of `mount`.
    ///
    /// # Errors
    ///
    /// If the options contradict each other.
    pub fn new(mount: &Mount, bundle: &Path) -> Result<Mounting, MountFailure> {
        let options = Options::parse(&mount.options);
        if options.uidmap.is_some() != options.gidmap.is_some() {
            return Err(MountFailure::OneMap);
        }
        Ok(Mounting {
            kind: mount.type_.clone(),
            source: mount.source.clone(),
            target: mount.target.clone(),
            options,
            bundle: bundle.to_owned(),
        })
    }

    fn is_overlay(&self) -> bool {
        self.kind == "overlay"
    }

    /// Makes the mount. Afterward the calling thread no longer shares the working directory of its
    /// process, so the thread must end.
    ///
    /// # Errors
    ///
    /// The reason why the mount failed.
    pub fn carry_out(mut self) -> Result<(), MountFailure> {
        unshare(CloneFlags::CLONE_FS).map_err(MountFailure::NoWorkingDirectory)?;
        let users = match (&self.options.uidmap, &self.options.gidmap) {
            (Some(uids), Some(gids)) => Some(UserNamespace::new(uids, gids)?),
            _ => None,
        };
        match &users {
            None if self.is_overlay() && self.options.data().is_err() => {
                layers::shorten(&mut self.options.data)?;
                self.mount_at(&self.target()?)
            }
            None => self.mount_at(&self.target()?),
            // For an overlay, map the owners in its layers, and not in the overlay itself.
            Some(users) if self.is_overlay() => {
                let target = self.target()?;
                let _layers = Layers::map(&mut self.options.data, &self.bundle, users)?;
                self.mount_at(&target)
            }
            Some(users) => {
                self.mount_at(&self.target()?)?;
                // Open the target again: the first descriptor refers to the directory that the new
                // mount covers.
                let target = self.target()?;
                users.remount(&path_of(&target))
            }
        }
    }

    /// Opens the directory to mount at. Symbolic links in the image are resolved inside the root
    /// file system.
    fn target(&self) -> Result<OwnedFd, MountFailure> {
        let rootfs = super::of(&self.bundle);
        let root = File::open(&rootfs).map_err(PathError::cannot("open", &rootfs))?;
        let below = Path::new(&self.target);
        if self.target.trim_matches('/').is_empty() {
            return Ok(root.into());
        }
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT);
        openat2(root.as_fd(), below, how).map_err(|error| MountFailure::NoTarget {
            target: self.target.clone(),
            error,
        })
    }

    fn mount_at(&self, target: &OwnedFd) -> Result<(), MountFailure> {
        let target = path_of(target);
        let flags = self.options.flags;
        let data = self.options.data()?;
        let text = |text: &'_ str| (!text.is_empty()).then(|| text.to_owned());
        if !flags.contains(MsFlags::MS_REMOUNT) || data.is_some() {
            let device = match self.options.is_loop {
                true => Some(loop_device::attach(Path::new(&self.source), &self.options)?),
                false => None,
            };
            let source = match &device {
                Some(device) => text(&device.path),
                None => text(&self.source),
            };
            let kind = text(&self.kind);
            mount(
                source.as_deref(),
                &target,
                kind.as_deref(),
                flags,
                data.as_deref(),
            )
            .map_err(MountFailure::Refused)?;
        }
        let read_only_bind = MsFlags::MS_BIND | MsFlags::MS_RDONLY;
        if flags.contains(read_only_bind) {
            // A bind mount gets its flags by a remount. Open the target again: the first descriptor
            // refers to the directory that the mount covers.
            let target = self.target()?;
            let target = path_of(&target);
            let none: Option<&str> = None;
            mount(none, &target, none, flags | MsFlags::MS_REMOUNT, none)
                .map_err(MountFailure::Refused)?;
        }
        Ok(())
    }
}

fn path_of(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}
