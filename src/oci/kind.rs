//! The engine's part of the program's commands.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use containerd_shim_protos::protobuf::well_known_types::any::Any;

use usher_engine::{Engine, EngineError, EngineKind, RecordedExit, StartOptions};
use usher_linux::cgroup::{cleanup, place};
use usher_linux::reaper::Reaper;
use usher_linux::rootfs;

use super::sandbox::{self, maker};
use super::{
    Bundle, BundleError, OciEngine, OciRuntime, exit, leftovers, options, restore_pod_cgroup,
    runtime::INIT_PID,
};

/// Time for the OCI runtime to delete a container; containerd gives `delete` five seconds in all.
const DELETED_WITHIN: Duration = Duration::from_secs(2);

/// The kind of [`OciEngine`].
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
            // A sandbox without a pause container has no configuration in its bundle: containerd
            // sends the configuration later.
            Err(BundleError::Unreadable { source, .. }) if source.kind() == ErrorKind::NotFound => {
                Ok(BTreeMap::new())
            }
            Err(error) => Err(EngineError::invalid(error)),
        }
    }

    fn recorded_exit(&self, bundle: &Path) -> Option<RecordedExit> {
        exit::recorded(bundle)
    }

    /// The OCI runtime wrote it at create.
    fn init_pid(&self, bundle: &Path) -> u32 {
        let written = std::fs::read_to_string(bundle.join(INIT_PID)).unwrap_or_default();
        written.trim().parse().unwrap_or_default()
    }

    fn clear(&self, namespace: &str, id: &str, bundle: &Path) -> Result<(), EngineError> {
        let reaper = Reaper::default();
        let mut options = options::load(bundle);
        let config = Bundle::read(bundle).unwrap_or_default();
        options.systemd_cgroup |= options::implies_systemd_cgroup(None, &options, &config);
        let mut runtime = OciRuntime::new(&options, namespace, bundle, reaper.clone());
        runtime.within(DELETED_WITHIN);
        let was_busy = leftovers::await_commands(bundle);
        let mut deleted = Ok(());
        let state = runtime.state_dir(id);
        if was_busy || state.exists() {
            let cgroups = runtime.leftover_cgroups(id, &config);
            rootfs::unmount_state_now(&state);
            deleted = force_delete(id, &runtime, &reaper, &cgroups);
            cgroups.iter().for_each(|cgroup| place::remove_leaf(cgroup));
        }
        if sandbox::is_in(bundle) {
            tokio()?.block_on(sandbox::clear(bundle, id));
        }
        restore_pod_cgroup(bundle);
        rootfs::unmount_all(bundle);
        deleted
    }
}

fn force_delete(
    id: &str,
    runtime: &OciRuntime,
    reaper: &Reaper,
    cgroups: &BTreeSet<PathBuf>,
) -> Result<(), EngineError> {
    tokio()?.block_on(async {
        reaper
            .start()
            .map_err(|error| EngineError::Failed(format!("cannot handle SIGCHLD: {error}")))?;
        let deleted = runtime.delete(id, true).await;
        // Whether or not the runtime has succeeded, no process of the container may go on running.
        cleanup::kill_and_remove(cgroups).await;
        deleted.map_err(EngineError::failed)
    })
}

/// A tokio runtime on this thread.
fn tokio() -> Result<tokio::runtime::Runtime, EngineError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| EngineError::Failed(format!("cannot start the async runtime: {error}")))
}
