//! containerd's Task service. The handler of each call sends a request to the pod's actor, and
//! awaits the answer.
//!
//! ttrpc drops a handler's future when the deadline of the request passes, or when the client goes
//! away. So no handler does any work itself.

use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use containerd_shim_protos::api::{
    CheckpointTaskRequest, CloseIORequest, ConnectRequest, ConnectResponse, CreateTaskRequest,
    CreateTaskResponse, DeleteRequest, DeleteResponse, Empty, ExecProcessRequest, KillRequest,
    PauseRequest, PidsRequest, PidsResponse, ProcessInfo, ResizePtyRequest, ResumeRequest,
    ShutdownRequest, StartRequest, StartResponse, StateRequest, StateResponse, StatsRequest,
    StatsResponse, Status, UpdateTaskRequest, WaitRequest, WaitResponse,
};
use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::protobuf::well_known_types::timestamp::Timestamp;
use containerd_shim_protos::shim::oci::ProcessDetails;
use containerd_shim_protos::shim_async::Task;
use tokio::sync::oneshot;
use ttrpc::r#async::TtrpcContext;
use ttrpc::{Code, get_status};

use crate::calls::{
    CallError, CheckpointCall, CreateCall, ExecCall, Exit, Figures, KillCall, Kind, Members,
    Status as TaskStatus,
};
use crate::events::{self, message_pid};
use crate::pod::Pod;
use usher_engine::Order;
use usher_linux::any::Pack;
use usher_linux::stdio::{Paths, Size};

/// The Task service of one pod, for both `containerd.task.v2` and `v3`, which have the same
/// messages.
#[derive(Clone, Debug)]
pub struct Service {
    pod: Pod,
}

impl Service {
    pub fn new(pod: Pod) -> Service {
        Service { pod }
    }
}

/// Time that the caller waits for the answer; `None` if the call has no deadline.
pub(crate) fn call_timeout(ctx: &TtrpcContext) -> Option<Duration> {
    u64::try_from(ctx.timeout_nano)
        .ok()
        .filter(|nanos| *nanos > 0)
        .map(Duration::from_nanos)
}

/// Converts an error to a ttrpc status. The message ends with the words that containerd's `errdefs`
/// has for the error's kind, because some clients of containerd parse these words. Since 2.0,
/// containerd's clients get the kind of an error only by these words.
pub(crate) fn status(error: CallError) -> ttrpc::Error {
    let (code, words) = match error.kind {
        Kind::NotFound => (Code::NOT_FOUND, ": not found"),
        Kind::AlreadyExists => (Code::ALREADY_EXISTS, ": already exists"),
        Kind::InvalidArgument => (Code::INVALID_ARGUMENT, ": invalid argument"),
        Kind::FailedPrecondition => (Code::FAILED_PRECONDITION, ": failed precondition"),
        Kind::DeadlineExceeded => (Code::DEADLINE_EXCEEDED, ": deadline exceeded"),
        Kind::Unimplemented => (Code::UNIMPLEMENTED, ": not implemented"),
        Kind::Unknown => (Code::UNKNOWN, ""),
    };
    let mut message = error.message;
    if !message.ends_with(words.trim_start_matches(": ")) {
        message.push_str(words);
    }
    ttrpc::Error::RpcStatus(get_status(code, message))
}

fn exited(exit: Exit) -> (u32, MessageField<Timestamp>) {
    (exit.code, MessageField::some(events::timestamp(exit.at)))
}

#[async_trait]
impl Task for Service {
    async fn create(
        &self,
        ctx: &TtrpcContext,
        req: CreateTaskRequest,
    ) -> ttrpc::Result<CreateTaskResponse> {
        let call = CreateCall {
            order: Order {
                id: req.id,
                bundle: PathBuf::from(req.bundle),
                rootfs: req.rootfs,
                paths: Paths {
                    stdin: req.stdin,
                    stdout: req.stdout,
                    stderr: req.stderr,
                    terminal: req.terminal,
                },
                options: req.options.into_option(),
                checkpoint: req.checkpoint,
                sandbox: None,
            },
            call_timeout: call_timeout(ctx),
        };
        let created = self
            .pod
            .ask(move |actor, reply| actor.create(call, reply))
            .await;
        Ok(CreateTaskResponse {
            pid: message_pid(created.map_err(status)?),
            ..CreateTaskResponse::new()
        })
    }

    async fn start(&self, ctx: &TtrpcContext, req: StartRequest) -> ttrpc::Result<StartResponse> {
        let call_timeout = call_timeout(ctx);
        // If the caller goes away, ttrpc drops this future, which drops `_here`. Then `gone`
        // completes, and the actor learns that the caller has gone.
        let (_here, gone) = oneshot::channel();
        let started = self
            .pod
            .ask(move |actor, reply| match req.exec_id.as_str() {
                "" => actor.start(&req.id, call_timeout, gone, reply),
                exec_id => actor.start_exec(&req.id, exec_id, reply),
            });
        Ok(StartResponse {
            pid: message_pid(started.await.map_err(status)?),
            ..StartResponse::new()
        })
    }

    async fn delete(&self, _: &TtrpcContext, req: DeleteRequest) -> ttrpc::Result<DeleteResponse> {
        let deleted = self
            .pod
            .ask(move |actor, reply| actor.delete(&req.id, &req.exec_id, reply))
            .await;
        let deleted = deleted.map_err(status)?;
        let (exit_status, exited_at) = exited(deleted.exit);
        Ok(DeleteResponse {
            pid: message_pid(deleted.pid),
            exit_status,
            exited_at,
            ..DeleteResponse::new()
        })
    }

    async fn exec(&self, ctx: &TtrpcContext, req: ExecProcessRequest) -> ttrpc::Result<Empty> {
        let call = ExecCall {
            id: req.id,
            exec_id: req.exec_id,
            paths: Paths {
                stdin: req.stdin,
                stdout: req.stdout,
                stderr: req.stderr,
                terminal: req.terminal,
            },
            spec: req
                .spec
                .into_option()
                .map(|any| any.value)
                .unwrap_or_default(),
            has_deadline: call_timeout(ctx).is_some(),
        };
        let added = self
            .pod
            .ask(move |actor, reply| actor.exec(call, reply))
            .await;
        added.map_err(status)?;
        Ok(Empty::new())
    }

    async fn kill(&self, ctx: &TtrpcContext, req: KillRequest) -> ttrpc::Result<Empty> {
        let call = KillCall {
            id: req.id,
            exec_id: req.exec_id,
            signal: req.signal,
            all: req.all,
            call_timeout: call_timeout(ctx),
        };
        self.pod
            .ask(move |actor, reply| actor.kill(call, reply))
            .await
            .map_err(status)?;
        Ok(Empty::new())
    }

    async fn state(&self, _: &TtrpcContext, req: StateRequest) -> ttrpc::Result<StateResponse> {
        let (id, exec_id) = (req.id.clone(), req.exec_id.clone());
        let state = self
            .pod
            .ask(move |actor, reply| actor.state(&req.id, &req.exec_id, reply))
            .await;
        let state = state.map_err(status)?;
        let (word, exit) = match state.status {
            TaskStatus::Created => (Status::CREATED, None),
            TaskStatus::Running => (Status::RUNNING, None),
            TaskStatus::Pausing => (Status::PAUSING, None),
            TaskStatus::Paused => (Status::PAUSED, None),
            TaskStatus::Stopped(exit) => (Status::STOPPED, Some(exit)),
        };
        let (exit_status, exited_at) = exit.map(exited).unwrap_or_default();
        Ok(StateResponse {
            id,
            bundle: state.bundle.display().to_string(),
            pid: message_pid(state.pid),
            status: word.into(),
            stdin: state.paths.stdin,
            stdout: state.paths.stdout,
            stderr: state.paths.stderr,
            terminal: state.paths.terminal,
            exit_status,
            exited_at,
            exec_id,
            ..StateResponse::new()
        })
    }

    async fn wait(&self, _: &TtrpcContext, req: WaitRequest) -> ttrpc::Result<WaitResponse> {
        let exit = self
            .pod
            .ask(move |actor, reply| actor.wait(&req.id, &req.exec_id, reply))
            .await;
        let (exit_status, exited_at) = exited(exit.map_err(status)?);
        Ok(WaitResponse {
            exit_status,
            exited_at,
            ..WaitResponse::new()
        })
    }

    async fn pids(&self, _: &TtrpcContext, req: PidsRequest) -> ttrpc::Result<PidsResponse> {
        let members = self
            .pod
            .ask(move |actor, reply| actor.members(&req.id, reply));
        let Members {
            cgroup,
            execs,
            known_pid,
        } = members.await.map_err(status)?;
        let mut processes = match cgroup {
            Some(cgroup) => cgroup.processes().map_err(CallError::unknown),
            None => Ok(Vec::new()),
        }
        .map_err(status)?;
        if processes.is_empty() {
            processes.extend(known_pid.map(message_pid));
        }
        let processes = processes.into_iter().map(|process| {
            let exec = execs.iter().find(|(exec, _)| message_pid(*exec) == process);
            // containerd's clients show these details beside the process id.
            let details = exec.and_then(|(_, exec_id)| {
                let details = ProcessDetails {
                    exec_id: exec_id.clone(),
                    ..ProcessDetails::new()
                };
                details.pack().ok()
            });
            ProcessInfo {
                pid: process,
                info: details.into(),
                ..ProcessInfo::new()
            }
        });
        Ok(PidsResponse {
            processes: processes.collect(),
            ..PidsResponse::new()
        })
    }

    async fn stats(&self, _: &TtrpcContext, req: StatsRequest) -> ttrpc::Result<StatsResponse> {
        let figures = self
            .pod
            .ask(move |actor, reply| actor.figures(&req.id, reply));
        let metrics = match figures.await.map_err(status)? {
            Figures::Of(cgroup) => cgroup.metrics().map_err(CallError::unknown),
            Figures::Last(metrics) => Ok(metrics),
        };
        let metrics = metrics.map_err(status)?;
        Ok(StatsResponse {
            stats: MessageField::some(metrics),
            ..StatsResponse::new()
        })
    }

    async fn pause(&self, _: &TtrpcContext, req: PauseRequest) -> ttrpc::Result<Empty> {
        let paused = self
            .pod
            .ask(move |actor, reply| actor.pause(&req.id, reply))
            .await;
        paused.map_err(status)?;
        Ok(Empty::new())
    }

    async fn resume(&self, _: &TtrpcContext, req: ResumeRequest) -> ttrpc::Result<Empty> {
        let resumed = self
            .pod
            .ask(move |actor, reply| actor.resume(&req.id, reply))
            .await;
        resumed.map_err(status)?;
        Ok(Empty::new())
    }

    async fn checkpoint(
        &self,
        _: &TtrpcContext,
        req: CheckpointTaskRequest,
    ) -> ttrpc::Result<Empty> {
        let call = CheckpointCall {
            id: req.id,
            path: req.path,
            options: req.options.into_option(),
        };
        let written = self
            .pod
            .ask(move |actor, reply| actor.checkpoint(call, reply))
            .await;
        written.map_err(status)?;
        Ok(Empty::new())
    }

    async fn update(&self, _: &TtrpcContext, req: UpdateTaskRequest) -> ttrpc::Result<Empty> {
        let resources = req
            .resources
            .into_option()
            .map(|any| any.value)
            .unwrap_or_default();
        let updated = self
            .pod
            .ask(move |actor, reply| actor.update(&req.id, resources, reply))
            .await;
        updated.map_err(status)?;
        Ok(Empty::new())
    }

    async fn close_io(&self, _: &TtrpcContext, req: CloseIORequest) -> ttrpc::Result<Empty> {
        if req.stdin {
            let closed = self
                .pod
                .ask(move |actor, reply| actor.close_stdin(&req.id, &req.exec_id, reply))
                .await;
            closed.map_err(status)?;
        }
        Ok(Empty::new())
    }

    async fn resize_pty(&self, _: &TtrpcContext, req: ResizePtyRequest) -> ttrpc::Result<Empty> {
        let size = Size {
            width: u16::try_from(req.width).unwrap_or(u16::MAX),
            height: u16::try_from(req.height).unwrap_or(u16::MAX),
        };
        let resized = self
            .pod
            .ask(move |actor, reply| actor.resize(&req.id, &req.exec_id, size, reply))
            .await;
        resized.map_err(status)?;
        Ok(Empty::new())
    }

    async fn connect(
        &self,
        _: &TtrpcContext,
        req: ConnectRequest,
    ) -> ttrpc::Result<ConnectResponse> {
        let task = self
            .pod
            .ask(move |actor, reply| actor.connect(&req.id, reply))
            .await;
        Ok(ConnectResponse {
            shim_pid: std::process::id(),
            task_pid: message_pid(task.map_err(status)?),
            version: usher_api::VERSION.to_owned(),
            ..ConnectResponse::new()
        })
    }

    async fn shutdown(&self, _: &TtrpcContext, req: ShutdownRequest) -> ttrpc::Result<Empty> {
        let granted = self
            .pod
            .ask(move |actor, reply| actor.shutdown(&req.id, reply));
        // containerd calls Shutdown after each deletion. The actor's answer fails only if the actor
        // has ended already, which is what the caller wants. If this call returned an error,
        // containerd 2.4 would report that the deletion has failed.
        let _ = granted.await;
        Ok(Empty::new())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::Actor;
    use crate::pod::sim::SimNode;
    use usher_engine::sim::SimEngine;

    #[tokio::test]
    async fn a_shutdown_after_the_end_of_the_pod_is_granted() {
        let node = SimNode::new(SimEngine::default());
        let (actor, pod) = Actor::new("sim", node.node());
        let service = Service::new(pod);
        drop(actor);
        let context = TtrpcContext::default();
        let state = service.state(&context, StateRequest::new()).await;
        assert!(state.is_err(), "{state:?}");
        let granted = service.shutdown(&context, ShutdownRequest::new()).await;
        assert_eq!(granted, Ok(Empty::new()));
    }
}
