//! `delete`: removes the leftovers of a container, after its shim has ended or died.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use containerd_shim::Flags;
use containerd_shim::protos::protobuf::{Message, MessageField};
use containerd_shim_protos::api::DeleteResponse;

use crate::events::timestamp;
use usher_linux::cgroup::{cleanup, place};
use usher_linux::reaper::Reaper;
use usher_linux::rootfs;
use usher_oci::exit::{self, RecordedExit};
use usher_oci::sandbox;
use usher_oci::{Bundle, OciRuntime, options, restore_pod_cgroup};

use super::error::ShimError;
use super::{address, control, leftovers, start};

/// Time for the OCI runtime to delete a container; containerd gives `delete` five seconds in all.
const DELETED_WITHIN: Duration = Duration::from_secs(2);

/// Exit code of leftover processes, which `delete` kills: 128 + SIGKILL.
const KILLED: u32 = 137;

/// Removes the leftovers, and returns the answer for containerd. containerd runs `delete` after
/// every container, and usually there are no leftovers.
///
/// # Errors
///
/// The first error.
pub(super) fn delete(flags: &Flags) -> Result<Vec<u8>, ShimError> {
    if flags.id.is_empty() {
        return Err(ShimError::NoId);
    }
    let bundle = start::bundle_directory(flags)?;
    // Read the address first: if containerd gives up a container's creation, it may remove the
    // bundle at any moment. If the bundle is gone already, the container was the first of its pod,
    // and the container's id names the pod's socket.
    let address = address::of_bundle(&bundle);
    let address = address
        .unwrap_or_else(|| address::of_pod(&flags.address, &flags.namespace, None, &flags.id));
    // Read the recorded exit early, too, because containerd may remove the bundle.
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
    // Remove the sockets late, because a shim that was just killed may still have them open.
    let socket = address::path(&address);
    address::remove_dead(&socket);
    control::remove_dead(&socket);
    // Nothing else removes the sockets of shims that died without a task.
    control::sweep(socket.parent().unwrap_or(Path::new("/")));
    // The error is returned only now, after all other cleanup. containerd tries again only when it
    // restarts, and until then nothing else cleans up.
    deleted?;
    Ok(answer(&bundle, exit).write_to_bytes()?)
}

/// Builds the answer from the exit that the shim recorded. Without a record, the process counts as
/// killed just now.
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
) -> Result<(), ShimError> {
    tokio()?.block_on(async {
        reaper
            .start()
            .map_err(ShimError::cannot("handle SIGCHLD"))?;
        let deleted = runtime.delete(id, true).await;
        // Whether or not the runtime has succeeded, no process of the container may go on running.
        cleanup::kill_and_remove(cgroups).await;
        Ok(deleted?)
    })
}

/// A tokio runtime on this thread.
fn tokio() -> Result<tokio::runtime::Runtime, ShimError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ShimError::cannot("start the async runtime"))
}

/// The process id that the OCI runtime wrote at create.
fn init_pid(bundle: &Path) -> u32 {
    let written = std::fs::read_to_string(bundle.join("init.pid")).unwrap_or_default();
    written.trim().parse().unwrap_or_default()
}
