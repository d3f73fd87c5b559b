//! This program's file, which no container may write.
//!
//! A process that is on its way into a container is this program still, and `/proc/PID/exe` leads to its file:
//! who opens that for writing when the process is gone has every later container (CVE-2019-5736). So what gets
//! into a container runs from a copy of the mount on which the file is, which can only be read, and is mounted
//! nowhere, so that no container can change it. runc does the same with an overlay.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::execv;

use crate::error::Failure;
use crate::sys;

/// Has libcontainer give descriptors to a container (`sd_listen_fds(3)`).
const PASSED_ON: &str = "LISTEN_FDS";

const OWN_FILE: &str = "/proc/self/exe";

/// Executes this program once more, with the same arguments, from where it cannot be written; if it runs from
/// there already it goes on.
///
/// # Errors
///
/// If that cannot be: nothing may be made then.
pub fn seal() -> Result<(), Failure> {
    let is_read_only =
        statvfs(OWN_FILE).is_ok_and(|mount| mount.flags().contains(FsFlags::ST_RDONLY));
    if !is_read_only {
        return Err(again());
    }
    match std::env::var_os(PASSED_ON) {
        None => Ok(()),
        // Whatever has these numbers would be the container's.
        Some(_) => Err(Failure::Refused(format!(
            "{PASSED_ON} is set, expected no descriptors to pass on"
        ))),
    }
}

/// What keeps it from being executed once more.
fn again() -> Failure {
    let refused = |why: &dyn std::fmt::Display| {
        Failure::Refused(format!(
            "this program cannot be run from where no container can write it: {why}"
        ))
    };
    let file: PathBuf = match std::fs::read_link(OWN_FILE) {
        Ok(file) => file,
        Err(error) => return refused(&error),
    };
    let strings = || -> Result<_, std::ffi::NulError> {
        let arguments = std::env::args_os().map(|argument| CString::new(argument.as_bytes()));
        Ok((
            CString::new(file.as_os_str().as_bytes())?,
            arguments.collect::<Result<Vec<_>, _>>()?,
        ))
    };
    let (file, arguments) = match strings() {
        Ok(strings) => strings,
        Err(error) => return refused(&error),
    };
    let sealed = sys::clone_mount(&file).and_then(|mount| {
        sys::make_read_only(mount.as_fd())?;
        Ok(mount)
    });
    let mount = match sealed {
        Ok(mount) => mount,
        Err(error) => {
            return refused(&format!(
                "{error} (open_tree and mount_setattr, Linux 5.12)"
            ));
        }
    };
    if let Err(error) = sys::inherit_only_streams() {
        return refused(&error);
    }
    // A copy of a mount begins where its path led: at the file itself.
    let Ok(path) = CString::new(format!("/proc/self/fd/{}", mount.as_raw_fd())) else {
        return refused(&"no path");
    };
    match execv(&path, &arguments) {
        Ok(never) => match never {},
        Err(error) => refused(&error),
    }
}
