//! The kind of engine that a shim's program is built with.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use usher_linux::reaper::Reaper;

use super::{Engine, EngineError};

/// Makes engines of one kind. Also does the part of the program's commands `start`, `delete` and
/// `-info` that depends on the kind of engine. A process that executes such a command serves no
/// requests, so the methods for commands may block.
pub trait EngineKind: fmt::Debug + Sync {
    /// Makes an engine for containers of containerd's `namespace`; `reaper` reaps their processes.
    fn engine(&self, namespace: &str, reaper: Reaper) -> Arc<dyn Engine>;

    /// True if this first argument makes the program run as a helper process of the engine.
    fn is_mode(&self, argument: &OsStr) -> bool;

    /// Runs this process as a helper process of the engine. `arguments` do not include the
    /// program's name.
    fn run_mode(&self, arguments: &[OsString]);

    /// True if the message contains options for engines of this kind.
    fn are_options(&self, message: &Any) -> bool;

    /// Reads options. If they name a file, reads the options in that file.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if the options are invalid.
    fn start_options(&self, options: Any) -> Result<StartOptions, EngineError>;

    /// Reads the annotations of the container in `bundle`. A sandbox without a pause container has
    /// none there.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if the bundle is invalid.
    fn annotations(&self, bundle: &Path) -> Result<BTreeMap<String, String>, EngineError>;

    /// Returns the exit that a shim has [recorded](super::Container::record_exit) in `bundle`.
    fn recorded_exit(&self, bundle: &Path) -> Option<RecordedExit>;

    /// Returns the PID of the last init of the container in `bundle`; 0 if it is unknown.
    fn init_pid(&self, bundle: &Path) -> u32;

    /// Removes the leftovers of container `id`, and kills its processes, after its shim has ended
    /// or died. Usually there are no leftovers. If `shim_is_dead` is true and the container was the
    /// first of its pod, does the same for the pod's other containers.
    ///
    /// # Errors
    ///
    /// [`EngineError::Failed`] if the container cannot be deleted; the rest is removed all the
    /// same.
    fn clear(
        &self,
        namespace: &str,
        id: &str,
        bundle: &Path,
        shim_is_dead: bool,
    ) -> Result<(), EngineError>;
}

/// The options that the program needs before any container exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartOptions {
    /// Name or path of the OCI runtime; empty for the default.
    pub binary_name: String,
    /// Cgroup of the shim. If empty, the shim stays in the cgroup of the process that started it.
    pub shim_cgroup: String,
}

/// The recorded exit of an init process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedExit {
    pub pid: NonZeroU32,
    pub code: u32,
    pub at: SystemTime,
}
