//! The events about tasks that the shim sends to containerd.

use containerd_shim_protos::events::task::{
    TaskCreate, TaskDelete, TaskExecAdded, TaskExecStarted, TaskExit, TaskIO, TaskOOM, TaskPaused,
    TaskResumed, TaskStart,
};
use containerd_shim_protos::protobuf::MessageField;

use usher_core::lifecycle::ContainerId;
use usher_engine::Order;

use crate::calls::Exit;

use super::{message_pid, timestamp};

/// Makes the event of a created container. `pid` is zero if the container is still to be restored
/// from its checkpoint, because it then has no process yet.
pub fn created(order: &Order, pid: i32) -> TaskCreate {
    let mut io = TaskIO::new();
    io.set_stdin(order.paths.stdin.clone());
    io.set_stdout(order.paths.stdout.clone());
    io.set_stderr(order.paths.stderr.clone());
    io.set_terminal(order.paths.terminal);
    TaskCreate {
        container_id: order.id.clone(),
        bundle: order.bundle.display().to_string(),
        rootfs: order.rootfs.clone(),
        io: MessageField::some(io),
        checkpoint: order.checkpoint.clone(),
        pid: message_pid(pid),
        ..TaskCreate::new()
    }
}

/// Makes the event of a started container; `pid` is its init process.
pub fn started(id: &ContainerId, pid: i32) -> TaskStart {
    TaskStart {
        container_id: id.to_string(),
        pid: message_pid(pid),
        ..TaskStart::new()
    }
}

pub fn exec_added(id: &ContainerId, exec_id: &str) -> TaskExecAdded {
    TaskExecAdded {
        container_id: id.to_string(),
        exec_id: exec_id.to_owned(),
        ..TaskExecAdded::new()
    }
}

pub fn exec_started(id: &ContainerId, exec_id: &str, pid: i32) -> TaskExecStarted {
    TaskExecStarted {
        container_id: id.to_string(),
        exec_id: exec_id.to_owned(),
        pid: message_pid(pid),
        ..TaskExecStarted::new()
    }
}

/// Makes the event of an exit. `process` is the id of the exec or, for an init process, the id of
/// the container.
pub fn exited(id: &ContainerId, process: &str, pid: i32, exit: Exit) -> TaskExit {
    TaskExit {
        container_id: id.to_string(),
        id: process.to_owned(),
        pid: message_pid(pid),
        exit_status: exit.code,
        exited_at: MessageField::some(timestamp(exit.at)),
        ..TaskExit::new()
    }
}

pub fn deleted(id: &ContainerId, pid: i32, exit: Exit) -> TaskDelete {
    TaskDelete {
        container_id: id.to_string(),
        pid: message_pid(pid),
        exit_status: exit.code,
        exited_at: MessageField::some(timestamp(exit.at)),
        ..TaskDelete::new()
    }
}

pub fn paused(id: &ContainerId) -> TaskPaused {
    TaskPaused {
        container_id: id.to_string(),
        ..TaskPaused::new()
    }
}

pub fn resumed(id: &ContainerId) -> TaskResumed {
    TaskResumed {
        container_id: id.to_string(),
        ..TaskResumed::new()
    }
}

/// Makes the event of a container in which the kernel killed a process, because memory was short.
pub fn oom(id: &ContainerId) -> TaskOOM {
    TaskOOM {
        container_id: id.to_string(),
        ..TaskOOM::new()
    }
}
