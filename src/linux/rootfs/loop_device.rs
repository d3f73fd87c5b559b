//! Loop devices, which make it possible to mount a file that contains a file system.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::mount::MsFlags;

use crate::sys::mounts;

use super::MountFailure;
use super::options::Options;
use crate::PathError;

/// Device that returns the numbers of free loop devices.
const CONTROL: &str = "/dev/loop-control";

/// Maximum number of attempts to get a free device. Another process may take the device first.
const TRIES: usize = 100;

/// A loop device with an attached file. The kernel detaches the file when the device is neither
/// open nor mounted.
#[derive(Debug)]
pub(super) struct LoopDevice {
    pub path: String,
    _open: File,
}

/// Attaches `file` to a free device.
///
/// # Errors
///
/// If there is no free device, or the file cannot be attached.
pub(super) fn attach(file: &Path, options: &Options) -> Result<LoopDevice, MountFailure> {
    let read_only = options.flags.contains(MsFlags::MS_RDONLY);
    let open = |path: &Path| {
        OpenOptions::new()
            .read(true)
            .write(!read_only)
            .open(path)
            .map_err(PathError::cannot("open", path))
    };
    let backing = open(file)?;
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open(CONTROL)
        .map_err(PathError::cannot("open", Path::new(CONTROL)))?;
    for _ in 0..TRIES {
        let number = mounts::free_loop_device(control.as_fd()).map_err(PathError::cannot(
            "get a loop device from",
            Path::new(CONTROL),
        ))?;
        let path = format!("/dev/loop{number}");
        let device = open(Path::new(&path))?;
        match mounts::attach_loop_device(
            device.as_fd(),
            backing.as_fd(),
            read_only,
            options.is_direct,
        ) {
            Ok(()) => {
                return Ok(LoopDevice {
                    path,
                    _open: device,
                });
            }
            Err(error) if error.raw_os_error() == Some(Errno::EBUSY as i32) => {}
            Err(error) => {
                return Err(MountFailure::NotAttached {
                    device: path,
                    file: file.to_owned(),
                    error,
                });
            }
        }
    }
    Err(MountFailure::NoLoopDevice { tries: TRIES })
}
