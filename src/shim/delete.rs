//! `delete`: what is left of a container goes away, whether its shim has ended in peace or died.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use containerd_shim::Flags;
use containerd_shim::protos::protobuf::{Message, MessageField};
use containerd_shim_protos::api::DeleteResponse;

use crate::cgroup::{cleanup, place};
use crate::engine::oci::exit::{self, RecordedExit};
use crate::engine::oci::{Bundle, OciRuntime, options, restore_pod_cgroup};
use crate::engine::sandbox;
use crate::events::timestamp;
use crate::reaper::Reaper;
use crate::rootfs;

use super::{address, control, leftovers, start};

/// How long the OCI runtime may take to delete a container; containerd gives all of this five seconds.
const DELETED_WITHIN: Duration = Duration::from_secs(2);

/// 128 + SIGKILL: what is left over is killed.
const KILLED: u32 = 137;

/// Removes what is left, and gives the answer for containerd. containerd calls it after every
/// container, of which nothing is left as a rule.
///
/// # Errors
///
/// One sentence, for containerd's own error.
pub(super) fn delete(flags: &Flags) -> Result<Vec<u8>, String> {
    if flags.id.is_empty() {
        return Err("no -id is given, expected the container's".to_owned());
    }
    let bundle = start::bundle_directory(flags)?;
    // First of all: containerd may remove the bundle of a container that it gives up meanwhile. Where it
    // was faster, the container was the first of its pod, and gave it its name.
    let address = address::of_bundle(&bundle);
    let address = address
        .unwrap_or_else(|| address::of_pod(&flags.address, &flags.namespace, None, &flags.id));
    // As early, for the same reason.
    let exit = exit::recorded(&bundle);
    let reaper = Reaper::default();
    let mut options = options::load(&bundle);
    let config = Bundle::read(&bundle).unwrap_or_default();
    options.systemd_cgroup |= options::implies_systemd_cgroup(None, &config);
    let mut runtime = OciRuntime::new(&options, &flags.namespace, &bundle, reaper.clone());
    runtime.within(DELETED_WITHIN);
    let was_busy = leftovers::await_commands(&bundle);
    let mut deleted = Ok(());
    let state = runtime.state_dir(&flags.id);
    if was_busy || state.exists() {
        let cgroups = runtime.leftover_cgroups(&flags.id, &config);
        rootfs::unmount_state_now(&state);
        deleted = force_delete(&flags.id, &runtime, &reaper, &cgroups);
        cgroups.iter().for_each(|cgroup| place::remove_leaf(cgroup));
    }
    if sandbox::is_in(&bundle) {
        tokio()?.block_on(sandbox::clear(&bundle, &flags.id));
    }
    restore_pod_cgroup(&bundle);
    rootfs::unmount_all(&bundle);
    // Last of all: a shim that was killed a moment ago may still be letting go of its socket.
    let socket = address::path(&address);
    address::remove_dead(&socket);
    control::remove_dead(&socket);
    // Those that nobody else will come for.
    control::sweep(socket.parent().unwrap_or(Path::new("/")));
    // Not before: containerd tries again when it is restarted, and until then this is all there is.
    deleted?;
    answer(&bundle, exit)
        .write_to_bytes()
        .map_err(|error| format!("the answer cannot be encoded: {error}"))
}

/// How it has ended: as its shim has told, or killed just now.
fn answer(bundle: &Path, exit: Option<RecordedExit>) -> DeleteResponse {
    let mut answer = DeleteResponse::new();
    let (pid, code, at) = match exit {
        Some(RecordedExit { pid, code, at }) => (pid.get(), code, at),
        None => (init_pid(bundle), KILLED, SystemTime::now()),
    };
    answer.set_pid(pid);
    answer.set_exit_status(code);
    answer.exited_at = MessageField::some(timestamp(at));
    answer
}

fn force_delete(
    id: &str,
    runtime: &OciRuntime,
    reaper: &Reaper,
    cgroups: &BTreeSet<PathBuf>,
) -> Result<(), String> {
    tokio()?.block_on(async {
        reaper
            .start()
            .map_err(|error| format!("SIGCHLD: {error}"))?;
        let deleted = runtime.delete(id, true).await;
        // Whatever has become of that, nothing runs on.
        cleanup::kill_and_remove(cgroups).await;
        deleted.map_err(|error| error.to_string())
    })
}

/// A runtime for futures, on this thread.
fn tokio() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("runtime: {error}"))
}

/// The process id that the OCI runtime has written at create.
fn init_pid(bundle: &Path) -> u32 {
    let written = std::fs::read_to_string(bundle.join("init.pid")).unwrap_or_default();
    written.trim().parse().unwrap_or_default()
}
