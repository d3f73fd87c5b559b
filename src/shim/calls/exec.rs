//! The process in an Exec call.

use serde::Deserialize;

use super::{CallError, ExecCall, Kind};

/// The fields that the shim reads from a process in the OCI specification.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Process {
    args: Vec<String>,
}

impl ExecCall {
    /// Reads the command line of the process from the spec. Empty if the spec has none.
    ///
    /// # Errors
    ///
    /// [`Kind::InvalidArgument`] if the spec is not a process of the OCI specification.
    pub fn argv(&self) -> Result<Vec<String>, CallError> {
        let process: Process = serde_json::from_slice(&self.spec).map_err(|error| {
            let id = &self.exec_id;
            let message = format!("exec {id:?}: its spec is not an OCI process: {error}");
            CallError::new(Kind::InvalidArgument, message)
        })?;
        Ok(process.args)
    }
}
