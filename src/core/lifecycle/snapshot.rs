//! The state of a pod as JSON, written and read. Only the simulator and tests use it.
//!
//! The state is all that the core knows: a pod that is read back continues as if nothing had
//! happened. Only [suspended rules](super::suspension) are evaluated again at once.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Pod;

/// Version of the format. The version goes up when earlier readers would misread the new format.
pub const SNAPSHOT_VERSION: u32 = 1;

/// The reason why a snapshot cannot be written or read.
#[derive(Debug, Error)]
pub enum SnapshotError {
    #[error("the state of a pod is not written: an action is still to be carried out")]
    ActionPending,
    #[error("the state of a pod has format version {found}; usher reads only {SNAPSHOT_VERSION}")]
    OtherVersion { found: u32 },
    #[error("the state of a pod is malformed")]
    Malformed(#[from] serde_json::Error),
}

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    pod: &'a Pod,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

#[derive(Deserialize)]
struct Read {
    pod: Pod,
}

impl Pod {
    /// Returns the state as JSON.
    ///
    /// # Errors
    ///
    /// [`SnapshotError::ActionPending`] unless all actions were [polled](Pod::poll_action).
    pub fn to_snapshot(&self) -> Result<String, SnapshotError> {
        if self.out.iter().next().is_some() {
            return Err(SnapshotError::ActionPending);
        }
        let version = SNAPSHOT_VERSION;
        Ok(serde_json::to_string(&Written { version, pod: self })?)
    }

    /// Reads the output of [`to_snapshot`](Pod::to_snapshot).
    ///
    /// # Errors
    ///
    /// [`SnapshotError::OtherVersion`] for any other format version, older or newer, and
    /// [`SnapshotError::Malformed`].
    pub fn from_snapshot(text: &str) -> Result<Pod, SnapshotError> {
        let Version { version: found } = serde_json::from_str(text)?;
        if found != SNAPSHOT_VERSION {
            return Err(SnapshotError::OtherVersion { found });
        }
        let Read { pod } = serde_json::from_str(text)?;
        Ok(pod)
    }
}
