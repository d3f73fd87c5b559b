//! Exit statuses of processes.

use serde::{Deserialize, Serialize};

/// The exit status of a process, as in `waitpid(2)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExitStatus {
    Code(u8),
    Signal(i32),
}

impl ExitStatus {
    /// The code as a shell and containerd report it: 128 + n for a death by signal n.
    pub fn code(self) -> u32 {
        match self {
            ExitStatus::Code(code) => u32::from(code),
            ExitStatus::Signal(signal) => {
                128_u32.saturating_add(u32::try_from(signal).unwrap_or_default())
            }
        }
    }
}
