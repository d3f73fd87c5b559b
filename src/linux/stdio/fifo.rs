//! containerd's FIFOs, opened without blocking.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::libc;

pub(super) enum End {
    Read,
    Write,
}

/// True if `path` is a FIFO.
///
/// # Errors
///
/// If `path` does not exist or cannot be checked.
pub(super) fn is_fifo(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.file_type().is_fifo())
}

/// Opens one end of a FIFO without waiting until the other end is open. The writing end cannot be
/// opened while no process has the reading end open.
///
/// # Errors
///
/// If the file cannot be opened, or is no FIFO.
pub(super) fn open(path: &Path, end: End) -> io::Result<File> {
    let mut options = OpenOptions::new();
    match end {
        End::Read => options.read(true),
        End::Write => options.write(true),
    };
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    // Check the open file, because the file at the path may have been replaced.
    match file.metadata()?.file_type().is_fifo() {
        true => Ok(file),
        false => Err(no_fifo()),
    }
}

pub(super) fn no_fifo() -> io::Error {
    io::Error::other("not a FIFO; expected one")
}
