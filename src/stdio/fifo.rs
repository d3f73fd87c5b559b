//! The FIFOs that containerd gives, and how they are opened without waiting for anybody.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::libc;

pub(super) enum End {
    Read,
    Write,
}

/// Whether there is a FIFO of this name.
///
/// # Errors
///
/// If there is nothing of this name, or that cannot be found out.
pub(super) fn is_fifo(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.file_type().is_fifo())
}

/// Opens one end of a FIFO without waiting for the other. The write end opens only where there is
/// a read end.
///
/// # Errors
///
/// If it cannot be opened, or is no FIFO.
pub(super) fn open(path: &Path, end: End) -> io::Result<File> {
    let mut options = OpenOptions::new();
    match end {
        End::Read => options.read(true),
        End::Write => options.write(true),
    };
    let file = options.custom_flags(libc::O_NONBLOCK).open(path)?;
    // Asked of what was opened: the name may lead elsewhere by now.
    match file.metadata()?.file_type().is_fifo() {
        true => Ok(file),
        false => Err(no_fifo()),
    }
}

pub(super) fn no_fifo() -> io::Error {
    io::Error::other("not a FIFO, which was expected")
}
