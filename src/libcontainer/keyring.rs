//! The session's keys: a container has its own.

use std::ffi::CString;

use nix::libc;

use crate::error::Failure;
use crate::sys;

/// Who has the keyring may do all with it, its user may view, read, search and link it (`keyctl_setperm(3)`):
/// what the kernel gives a new one, and "search", without which a key in it is found by none of the user's processes.
const PERMISSIONS: u32 = 0x3f1b_0000;

/// Joins container `id`'s session keyring, which is made if it has none yet: what else is in ours, keys of the
/// node, would be the container's as well. Where the kernel has no keys there is nothing to do.
///
/// # Errors
///
/// If the kernel refuses it.
pub fn join(id: &str) -> Result<(), Failure> {
    let failed =
        |error: std::io::Error| Failure::Library(format!("session keyring _ses.{id}: {error}"));
    let name = CString::new(format!("_ses.{id}")).map_err(|error| failed(error.into()))?;
    match sys::join_session_keyring(&name) {
        Ok(key) => sys::set_key_permissions(key, PERMISSIONS).map_err(failed),
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}
