//! Reads and parses `/proc/<pid>/stat` (`proc_pid_stat(5)`).
//!
//! The `procfs` crate parses all 52 fields of the file, and fails if one of them is unknown to it.
//! The shim needs four fields, which have not changed since Linux 2.6.

use std::fs;
use std::io::{self, ErrorKind};

/// The flag `PF_EXITING`. Linux sets it before an exiting process closes its descriptors.
const EXITING: u32 = 0x4;

/// The fields of a process's `stat` that the shim needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessStat {
    /// The letter of the state: `R`, `S`, `D`, `T`, `Z`, …
    pub state: char,
    /// The process id of the parent.
    pub parent: i32,
    /// The kernel's flags of the process (`PF_*`).
    flags: u32,
    /// Start time, in clock ticks since boot.
    pub start_time: u64,
}

impl ProcessStat {
    /// Reads the `stat` of a process.
    ///
    /// # Errors
    ///
    /// `NotFound` or ESRCH if there is no such process; `InvalidData` if the text is no `stat`.
    pub fn read(pid: i32) -> io::Result<ProcessStat> {
        let stat = fs::read(format!("/proc/{pid}/stat"))?;
        let unexpected = || {
            let why = format!("/proc/{pid}/stat is not as proc_pid_stat(5) describes it");
            io::Error::new(ErrorKind::InvalidData, why)
        };
        Self::parse(&stat).ok_or_else(unexpected)
    }

    /// Parses `pid (name) state parent …`; the name may contain any bytes.
    pub fn parse(stat: &[u8]) -> Option<ProcessStat> {
        let after_name = stat
            .iter()
            .rposition(|byte| *byte == b')')?
            .checked_add(1)?;
        let fields = str::from_utf8(stat.get(after_name..)?).ok()?;
        let mut fields = fields.split_ascii_whitespace();
        Some(ProcessStat {
            state: fields.next()?.chars().next()?,
            parent: fields.next()?.parse().ok()?,
            // The fields pgrp, session, tty and tpgid come before the flags.
            flags: fields.nth(4)?.parse().ok()?,
            // The start time is the 22nd field of the file.
            start_time: fields.nth(12)?.parse().ok()?,
        })
    }

    /// True if the process has exited and its parent has not collected it yet.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    /// True if the process is stopped by a signal.
    pub fn is_stopped(&self) -> bool {
        self.state == 'T'
    }

    /// True if the process is exiting. Its descriptors may still be open.
    pub fn is_exiting(&self) -> bool {
        self.flags & EXITING != 0
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const AFTER_PARENT: &str = "7 7 0 -1 4194308 1 2 3 4 5 6 7 8 20 0 1 0 123456 0";

    #[test]
    fn a_name_with_parentheses_and_other_bytes_hides_no_field() {
        let stat = ProcessStat {
            state: 'S',
            parent: 42,
            flags: 4_194_308,
            start_time: 123_456,
        };
        let sh = format!("7 (sh) S 42 {AFTER_PARENT}");
        assert_eq!(ProcessStat::parse(sh.as_bytes()), Some(stat));
        let odd = [&b"7 (a) S 1 (\xff) b) S 42 "[..], AFTER_PARENT.as_bytes()];
        assert_eq!(ProcessStat::parse(&odd.concat()), Some(stat));
        for cut in ["", "7", "7 (sh", "7 (sh)", "7 (sh) S", "7 (sh) S 42 7 7"] {
            assert_eq!(ProcessStat::parse(cut.as_bytes()), None, "{cut}");
        }
    }

    #[test]
    fn the_own_stat_names_the_parent() {
        let own = ProcessStat::read(std::process::id() as i32).unwrap();
        assert_eq!(own.parent, std::os::unix::process::parent_id() as i32);
        assert!(!own.is_zombie() && !own.is_stopped() && !own.is_exiting());
    }

    #[test]
    fn an_exited_process_is_a_zombie_until_it_is_collected() {
        let mut child = Command::new("/bin/true").spawn().unwrap();
        let pid = child.id() as i32;
        while !ProcessStat::read(pid).unwrap().is_zombie() {
            std::thread::yield_now();
        }
        assert!(ProcessStat::read(pid).unwrap().is_exiting());
        child.wait().unwrap();
        assert!(ProcessStat::read(pid).is_err());
    }
}
