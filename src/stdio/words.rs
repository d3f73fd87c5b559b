//! What the shim itself has to say to the owner of a container.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

use super::address::Address;

/// Writes a line of the shim's own into a stream of a container, if somebody has it open.
pub fn tell(stream: &str, line: &str) {
    let path = match Address::parse(stream) {
        Address::Path(path) => PathBuf::from(path),
        Address::File(path) => path,
        // Only the container has a pipe to it.
        Address::Binary(_) | Address::Unknown { .. } => return,
    };
    let written = OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
        .and_then(|mut stream| writeln!(stream, "{line}"));
    if let Err(error) = written {
        tracing::debug!(stream, %error, "a container's stream could not be written to");
    }
}

/// Leaves a message in the file that the kubelet reads when a container has ended.
///
/// The file lies in a directory that is kubelet's alone, but it is mounted into the container: what
/// is behind its name may be anything by now, so nothing is followed and nothing is waited for.
pub fn leave_message(file: &Path, message: &str) {
    let written = OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(file)
        .and_then(|mut file| match file.metadata()?.is_file() {
            true => writeln!(file, "{message}"),
            false => Err(io::Error::other("not a regular file")),
        });
    if let Err(error) = written {
        tracing::debug!(file = %file.display(), %error, "no termination message was left");
    }
}
