//! The engine's part of the shim's commands `start`, `delete` and `-info`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use containerd_shim_protos::protobuf::well_known_types::any::Any;

use usher_engine::{Engine, EngineError, EngineKind, RecordedExit, StartOptions};
use usher_linux::reaper::Reaper;
use usher_linux::rootfs;

use super::joined::{self, Joined};
use super::leftovers;
use super::sandbox::{self, maker};
use super::{Bundle, BundleError, OciEngine, exit, options, restore_pod_cgroup, runtime::INIT_PID};

/// The [`EngineKind`] of [`OciEngine`].
#[derive(Clone, Copy, Debug)]
pub struct Oci;

impl EngineKind for Oci {
    fn engine(&self, namespace: &str, reaper: Reaper) -> Arc<dyn Engine> {
        Arc::new(OciEngine::new(namespace, reaper))
    }

    fn is_mode(&self, argument: &OsStr) -> bool {
        maker::is_mode(argument)
    }

    fn run_mode(&self, arguments: &[OsString]) {
        maker::main(arguments);
    }

    fn are_options(&self, message: &Any) -> bool {
        options::are_in(message)
    }

    fn start_options(&self, options: Any) -> Result<StartOptions, EngineError> {
        let read = options::with_file(options).and_then(|any| options::from_any(Some(&any)));
        let options = read.map_err(EngineError::invalid)?;
        Ok(StartOptions {
            binary_name: options.binary_name,
            shim_cgroup: options.shim_cgroup,
        })
    }

    fn annotations(&self, bundle: &Path) -> Result<BTreeMap<String, String>, EngineError> {
        match Bundle::read(bundle) {
            Ok(bundle) => Ok(bundle.annotations),
            // A sandbox without a pause container has no configuration in its bundle, because
            // containerd sends the configuration later.
            Err(BundleError::Unreadable { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(BTreeMap::new())
            }
            Err(error) => Err(EngineError::invalid(error)),
        }
    }

    fn recorded_exit(&self, bundle: &Path) -> Option<RecordedExit> {
        exit::recorded(bundle)
    }

    /// Reads the file that the OCI runtime wrote at create.
    fn init_pid(&self, bundle: &Path) -> u32 {
        let written = std::fs::read_to_string(bundle.join(INIT_PID)).unwrap_or_default();
        written.trim().parse().unwrap_or_default()
    }

    fn clear(
        &self,
        namespace: &str,
        id: &str,
        bundle: &Path,
        shim_is_dead: bool,
    ) -> Result<(), EngineError> {
        let reaper = Reaper::default();
        // Read the records first: containerd may remove the bundle at any moment.
        let mut joined = joined::read_all(bundle);
        joined.retain(|other| shim_is_dead && other.id != id);
        let first = Joined {
            id: id.to_owned(),
            bundle: bundle.to_owned(),
            options: options::load(bundle),
        };
        let (first, others) = leftovers::find_all(namespace, &first, &joined, &reaper);
        let mut deleted = Ok(());
        if first.is_some() || !others.is_empty() {
            deleted = tokio()?.block_on(leftovers::delete_all(first, others, &reaper));
        }
        if sandbox::is_in(bundle) {
            tokio()?.block_on(sandbox::clear(bundle, id));
        }
        restore_pod_cgroup(bundle);
        for other in &joined {
            rootfs::unmount_all(&other.bundle);
        }
        rootfs::unmount_all(bundle);
        deleted
    }
}

fn tokio() -> Result<tokio::runtime::Runtime, EngineError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| EngineError::Failed(format!("cannot start the async runtime: {error}")))
}
