//! Files whose open(2) stalls, for tests: the kernel makes it wait for the process that holds a
//! lease.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::libc;

/// Sets the signal for a waiting process (`F_SETSIG(2const)`); libc has no name for it.
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
        // The kernel sends this signal when a process waits. It is ignored by default.
        control(&file, F_SETSIG, libc::SIGURG).unwrap();
        control(&file, libc::F_SETLEASE, libc::F_WRLCK).unwrap();
        Lease { path, file }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if a process waits for the file.
    pub fn is_wanted(&self) -> bool {
        control(&self.file, libc::F_GETLEASE, 0).unwrap() != libc::F_WRLCK
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Processes that are being spawned hold the file open too, until they execute their
        // program.
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
