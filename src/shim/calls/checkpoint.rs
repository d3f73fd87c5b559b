//! The options of the Checkpoint call.

use std::path::PathBuf;

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::shim::oci::CheckpointOptions;

use usher_engine::Checkpoint;

use super::{CallError, CheckpointCall, Kind};

impl CheckpointCall {
    /// Converts the call to the request for the engine. Makes no checkpoint.
    ///
    /// # Errors
    ///
    /// [`Kind::InvalidArgument`] if the options have another type, or cannot be decoded.
    pub fn checkpoint(&self) -> Result<Checkpoint, CallError> {
        let options = options(self.options.as_ref())?;
        let given = |path: String| (!path.is_empty()).then(|| PathBuf::from(path));
        Ok(Checkpoint {
            image: PathBuf::from(&self.path),
            work: given(options.work_path),
            exit: options.exit,
            open_tcp: options.open_tcp,
            external_unix_sockets: options.external_unix_sockets,
            terminal: options.terminal,
            file_locks: options.file_locks,
            empty_namespaces: options.empty_namespaces,
            cgroups_mode: options.cgroups_mode,
        })
    }
}

fn options(options: Option<&Any>) -> Result<CheckpointOptions, CallError> {
    let invalid = |message: String| CallError::new(Kind::InvalidArgument, message);
    let Some(any) = options.filter(|any| !any.type_url.is_empty()) else {
        return Ok(CheckpointOptions::default());
    };
    if any.type_url.rsplit('/').next() != Some("containerd.runc.v1.CheckpointOptions") {
        return Err(invalid(format!(
            "checkpoint options are of type {:?}, expected containerd.runc.v1.CheckpointOptions",
            any.type_url
        )));
    }
    CheckpointOptions::parse_from_bytes(&any.value)
        .map_err(|error| invalid(format!("checkpoint options cannot be decoded: {error}")))
}
