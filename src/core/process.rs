//! What the kernel says of processes.

use serde::{Deserialize, Serialize};

/// How a process ended, as `waitpid(2)` tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ExitStatus {
    /// It exited with this code.
    Code(u8),
    /// It died of this signal.
    Signal(i32),
}

impl ExitStatus {
    /// The code as a shell and containerd give it: 128 + n for a death by signal n.
    pub fn code(self) -> u32 {
        match self {
            ExitStatus::Code(code) => u32::from(code),
            ExitStatus::Signal(signal) => {
                128_u32.saturating_add(u32::try_from(signal).unwrap_or_default())
            }
        }
    }
}
