//! Files that stall each process that opens them, for tests. The kernel makes open(2) wait for the
//! process that has a lease on the file.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::libc;

/// Command of fcntl(2) that sets the signal for the holder of a lease (`F_SETSIG(2const)`). libc
/// has no name for this command.
const F_SETSIG: i32 = 10;

/// A program whose execution stalls until this lease is dropped, or for the seconds in
/// `/proc/sys/fs/lease-break-time`.
#[derive(Debug)]
pub struct Lease {
    path: PathBuf,
    file: File,
}

impl Lease {
    /// Copies `program` into `directory`, and leases the copy.
    pub fn on_copy(program: &str, directory: &Path) -> Lease {
        let path = directory.join("leased");
        fs::copy(program, &path).unwrap();
        let file = File::open(&path).unwrap();
        // The kernel sends this signal to the lease's holder when another process has to wait until
        // it can open the file. By default the signal is ignored.
        control(&file, F_SETSIG, libc::SIGURG).unwrap();
        control(&file, libc::F_SETLEASE, libc::F_WRLCK).unwrap();
        Lease { path, file }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if a process waits until it can open the file.
    pub fn is_wanted(&self) -> bool {
        control(&self.file, libc::F_GETLEASE, 0).unwrap() != libc::F_WRLCK
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Closing the file is not enough to end the lease: processes that are being spawned also
        // have the file open until they execute their program.
        control(&self.file, libc::F_SETLEASE, libc::F_UNLCK).unwrap();
    }
}

fn control(file: &File, command: i32, value: i32) -> io::Result<i32> {
    // SAFETY: these commands of fcntl(2) take and give integers.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, value) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}
