//! What a program finds: streams that are its user's, and the directory that it begins in.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use libcontainer::oci_spec::runtime::Spec;
use nix::libc;
use nix::sys::stat::fstat;
use nix::unistd::{Uid, fchown};
use pathrs::Root;

use crate::error::Failure;

/// Makes the streams the user's, so that it can open them anew by `/dev/stdout`; what is somebody's on purpose, or a
/// device of all, stays as it is.
pub fn give(uid: u32) {
    let give = |fd: BorrowedFd<'_>| {
        let is_pipe = |mode: u32| [libc::S_IFIFO, libc::S_IFSOCK].contains(&(mode & libc::S_IFMT));
        if fstat(fd).is_ok_and(|stat| is_pipe(stat.st_mode) && stat.st_uid != uid) {
            // As with runc, it runs all the same.
            let _ = fchown(fd, Some(Uid::from_raw(uid)), None);
        }
    };
    give(io::stdin().as_fd());
    give(io::stdout().as_fd());
    give(io::stderr().as_fd());
}

/// Makes the directory that a container's program begins in, if it is not there.
///
/// # Errors
///
/// If it cannot be made.
pub fn make_cwd(spec: &Spec) -> Result<(), Failure> {
    let (Some(process), Some(root)) = (spec.process(), spec.root()) else {
        return Ok(());
    };
    let cwd = process.cwd();
    if cwd.as_os_str().is_empty() || cwd == Path::new("/") {
        return Ok(());
    }
    let failed = |error: pathrs::error::Error| Failure::document(cwd, error);
    let files = Root::open(root.path()).map_err(failed)?;
    files
        .mkdir_all(cwd, &Permissions::from_mode(0o755))
        .map(drop)
        .map_err(failed)
}
