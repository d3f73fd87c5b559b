//! `delete`: removes the leftovers of a container, after its shim has ended or died.

use std::path::Path;
use std::time::SystemTime;

use containerd_shim::Flags;
use containerd_shim::protos::protobuf::{Message, MessageField};
use containerd_shim_protos::api::DeleteResponse;

use crate::events::timestamp;
use usher_engine::{EngineKind, RecordedExit};

use super::error::ShimError;
use super::{address, control, start};

/// Exit code of a container if the shim has not recorded its exit: 128 + SIGKILL, because `delete`
/// kills leftover processes.
const KILLED: u32 = 137;

/// Removes the leftovers of the container and the sockets of all dead shims, and returns the answer
/// for containerd: the container's exit. containerd runs `delete` after every container, and
/// usually there are no leftovers.
///
/// # Errors
///
/// If the flags have no id, or if the container cannot be deleted. In the second case, all other
/// leftovers are removed anyway.
pub(super) fn delete(flags: &Flags, kind: &dyn EngineKind) -> Result<Vec<u8>, ShimError> {
    if flags.id.is_empty() {
        return Err(ShimError::NoId);
    }
    let bundle = start::bundle_directory(flags)?;
    // Read the address first: if containerd gives up a container's creation, it may remove the
    // bundle at any moment. If the bundle is gone already, derive the address from the container's
    // id. This is right if the container is the first of its pod.
    let address = address::of_bundle(&bundle);
    let address = address
        .unwrap_or_else(|| address::of_pod(&flags.address, &flags.namespace, None, &flags.id));
    // Read the recorded exit now, because containerd may remove the bundle at any moment.
    let exit = kind.recorded_exit(&bundle);
    let socket = address::path(&address);
    let shim_is_dead = address::remove_dead(&socket);
    let cleared = kind.clear(&flags.namespace, &flags.id, &bundle, shim_is_dead);
    control::remove_dead(&socket);
    // Nothing else removes the sockets of shims that died without a task.
    control::sweep(socket.parent().unwrap_or(Path::new("/")));
    // The error is returned only now, after all other cleanup. containerd tries again only when it
    // restarts, and until then nothing else cleans up.
    cleared?;
    Ok(answer(exit, || kind.init_pid(&bundle)).write_to_bytes()?)
}

/// Builds the answer from the exit that the shim recorded. Without a record, the process counts as
/// killed just now.
fn answer(exit: Option<RecordedExit>, init_pid: impl FnOnce() -> u32) -> DeleteResponse {
    let mut answer = DeleteResponse::new();
    let (pid, code, at) = match exit {
        Some(RecordedExit { pid, code, at }) => (pid.get(), code, at),
        None => (init_pid(), KILLED, SystemTime::now()),
    };
    answer.set_pid(pid);
    answer.set_exit_status(code);
    answer.exited_at = MessageField::some(timestamp(at));
    answer
}
