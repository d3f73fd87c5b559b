//! containerd's Sandbox service (`api/runtime/sandbox/v1/sandbox.proto` in containerd), for pods
//! without a pause container. containerd uses the service if its own configuration says `sandboxer
//! = "shim"`.
//!
//! The pod's actor treats a sandbox like a pause container: the sandbox is created, started, killed
//! and deleted, with the same effects on the pod. So this module only translates calls, as
//! [`task`](crate::task) does. ttrpc drops a handler's future when its caller goes away, so no
//! handler does any work itself.

mod end;
mod spec;
#[cfg(test)]
mod tests;
mod update;

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::sandbox_api::{
    CreateSandboxRequest, CreateSandboxResponse, PingRequest, PingResponse, PlatformRequest,
    PlatformResponse, SandboxMetricsRequest, SandboxMetricsResponse, SandboxStatusRequest,
    SandboxStatusResponse, ShutdownSandboxRequest, ShutdownSandboxResponse, StartSandboxRequest,
    StartSandboxResponse, StopSandboxRequest, StopSandboxResponse, WaitSandboxRequest,
    WaitSandboxResponse,
};
use containerd_shim_protos::sandbox_async::Sandbox;
use containerd_shim_protos::types::platform::Platform;
use serde_json::json;
use tokio::sync::oneshot;
use ttrpc::r#async::TtrpcContext;

use self::spec::{is_network_closed, spec};
use crate::calls::{CallError, CreateCall, Figures, KillCall, Kind, SandboxState, Status};
use crate::events::{message_pid, timestamp};
use crate::pod::Pod;
use crate::task::{call_timeout, status};
use usher_api::cri::{
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption,
    PodSandboxConfig,
};
use usher_engine::{Order, SandboxOrder};

pub(crate) use end::{EndedSandbox, SandboxEnd};

pub use update::services;

/// Time limit for the deletion of a killed sandbox.
const ENDS_WITHIN: Duration = Duration::from_secs(10);

/// Time that containerd has to read the answer to ShutdownSandbox before the shim ends. If the
/// answer and the end of the connection arrive together, Go's ttrpc client drops the answer half of
/// the time (`dispatch` in its `client.go`). Then the pod is not removed, and kubelet has to ask
/// again.
const READS_WITHIN: Duration = Duration::from_millis(300);

/// SIGKILL (`signal(7)`).
const KILL: u32 = 9;

/// The Container Runtime Interface's words for the state of a sandbox.
const READY: &str = "SANDBOX_READY";
const NOT_READY: &str = "SANDBOX_NOTREADY";

/// Annotation, with its value, by which the program that creates a sandbox asks for the paths of
/// the namespaces; see `takes_paths`. Authors of pods do not set this annotation.
const NAMESPACES: &str = "usher/namespaces";
const BY_PATH: &str = "by-path";

/// containerd's name for the type of an OCI configuration.
const SPEC: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";

/// Last part of the type name in a sandbox's options.
const CONFIG: &str = "runtime.v1.PodSandboxConfig";

/// The Sandbox service of one pod.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    pod: Pod,
}

impl Sandboxes {
    pub fn new(pod: Pod) -> Sandboxes {
        Sandboxes { pod }
    }

    /// Sends SIGKILL to the sandbox `id`, and waits until its task is deleted, but at most
    /// [`ENDS_WITHIN`]. Succeeds if the sandbox does not exist, for example because it is already
    /// deleted.
    async fn stop(&self, id: &str) -> Result<(), CallError> {
        let call = KillCall {
            id: id.to_owned(),
            exec_id: String::new(),
            signal: KILL,
            all: false,
            call_timeout: None,
        };
        let killed = self
            .pod
            .ask(move |actor, reply| actor.kill(call, reply))
            .await;
        match killed {
            Err(error) if error.kind != Kind::NotFound => return Err(error),
            _ => {}
        }
        let name = id.to_owned();
        let gone = self
            .pod
            .ask(move |actor, reply| actor.await_sandbox_deletion(&name, reply));
        tokio::time::timeout(ENDS_WITHIN, gone)
            .await
            .unwrap_or_else(|_| {
                Err(CallError::new(
                    Kind::DeadlineExceeded,
                    format!(
                        "sandbox {id} was killed but not deleted within {} s",
                        ENDS_WITHIN.as_secs()
                    ),
                ))
            })
    }

    /// The sandbox, whose namespaces the pod's containers share.
    async fn shared(&self) -> ttrpc::Result<usher_engine::Sandbox> {
        let shared = self.pod.ask(|actor, reply| actor.shared(reply));
        shared.await.map_err(status)
    }

    async fn state(&self, id: &str) -> ttrpc::Result<SandboxState> {
        let id = id.to_owned();
        let state = self
            .pod
            .ask(move |actor, reply| actor.sandbox_state(&id, reply));
        state.await.map_err(status)
    }
}

/// Details for a verbose SandboxStatus, which `crictl inspectp` shows beside the status. `word` is
/// the state of the process. The JSON under the key `info` has only the fields that containerd
/// knows from pause containers, because containerd drops all other fields.
fn info(
    said: &SandboxStatusResponse,
    word: &str,
    sandbox: &usher_engine::Sandbox,
) -> HashMap<String, String> {
    let info = json!({
        "pid": said.pid,
        "processStatus": word,
        "netNamespaceClosed": is_network_closed(sandbox),
        "runtimeSpec": spec(sandbox),
    });
    let info = [
        ("info", info.to_string()),
        ("pid", said.pid.to_string()),
        ("state", said.state.clone()),
    ];
    info.map(|(key, value)| (key.to_owned(), value)).into()
}

/// Converts the error of a StartSandbox. If the sandbox does not exist, the error says that
/// CreateSandbox must come first, as containerd's protocol requires. Other errors stay unchanged.
fn not_created(error: CallError) -> CallError {
    match error.kind {
        Kind::NotFound => CallError::new(
            Kind::FailedPrecondition,
            format!(
                "{}, expected CreateSandbox before StartSandbox",
                error.message
            ),
        ),
        _ => error,
    }
}

/// True if the caller takes the paths of a sandbox's namespaces from the shim, and accepts the
/// process id zero for a sandbox without a process. No released containerd does, but a change is
/// proposed (<https://github.com/containerd/containerd/pull/14123>). A containerd with this change
/// does not say so to the shim, so the caller sets an annotation of usher.
fn takes_paths(annotations: &HashMap<String, String>) -> bool {
    annotations
        .get(NAMESPACES)
        .is_some_and(|value| value == BY_PATH)
}

/// Reads kubelet's configuration of a sandbox. Without a configuration, as from `ctr sandboxes
/// run`, the sandbox gets the node's namespaces. Fails if the options are of another type, or
/// cannot be decoded.
fn config(options: Option<&Any>) -> Result<PodSandboxConfig, CallError> {
    let invalid = |words: String| CallError::new(Kind::InvalidArgument, words);
    match options.filter(|options| !options.type_url.is_empty()) {
        None => Ok(of_the_node()),
        Some(options) if options.type_url.ends_with(CONFIG) => {
            PodSandboxConfig::parse_from_bytes(&options.value).map_err(|error| {
                invalid(format!(
                    "cannot decode the sandbox's configuration: {error}"
                ))
            })
        }
        Some(options) => Err(invalid(format!(
            "a sandbox's options are {:?}, expected {CONFIG}",
            options.type_url
        ))),
    }
}

fn of_the_node() -> PodSandboxConfig {
    let node = NamespaceMode::NODE;
    let options = NamespaceOption {
        network: node.into(),
        pid: node.into(),
        ipc: node.into(),
        ..NamespaceOption::new()
    };
    let context = LinuxSandboxSecurityContext {
        namespace_options: MessageField::some(options),
        ..LinuxSandboxSecurityContext::new()
    };
    let linux = LinuxPodSandboxConfig {
        security_context: MessageField::some(context),
        ..LinuxPodSandboxConfig::new()
    };
    PodSandboxConfig {
        linux: MessageField::some(linux),
        ..PodSandboxConfig::new()
    }
}

/// Go's name for the processor that this program was built for.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[async_trait]
impl Sandbox for Sandboxes {
    async fn create_sandbox(
        &self,
        ctx: &TtrpcContext,
        req: CreateSandboxRequest,
    ) -> ttrpc::Result<CreateSandboxResponse> {
        let config = config(req.options.as_ref()).map_err(status)?;
        let call = CreateCall {
            order: Order {
                id: req.sandbox_id,
                bundle: PathBuf::from(req.bundle_path),
                sandbox: Some(SandboxOrder {
                    config,
                    takes_paths: takes_paths(&req.annotations),
                    netns: (!req.netns_path.is_empty()).then(|| PathBuf::from(req.netns_path)),
                }),
                ..Order::default()
            },
            call_timeout: call_timeout(ctx),
        };
        let created = self
            .pod
            .ask(move |actor, reply| actor.create(call, reply))
            .await;
        created.map_err(status)?;
        Ok(CreateSandboxResponse::new())
    }

    async fn start_sandbox(
        &self,
        ctx: &TtrpcContext,
        req: StartSandboxRequest,
    ) -> ttrpc::Result<StartSandboxResponse> {
        let call_timeout = call_timeout(ctx);
        // If the caller goes away, ttrpc drops this future, which drops `_here`. Then `gone`
        // completes, and the actor learns that the caller has gone.
        let (_here, gone) = oneshot::channel();
        let id = req.sandbox_id.clone();
        let started = self
            .pod
            .ask(move |actor, reply| actor.start(&id, call_timeout, gone, reply));
        let started = started.await.map_err(not_created).map_err(status)?;
        let created_at = self.state(&req.sandbox_id).await?.created_at;
        let spec = spec(&self.shared().await?).map(|spec| Any {
            type_url: SPEC.to_owned(),
            value: spec.to_string().into_bytes(),
            ..Any::new()
        });
        Ok(StartSandboxResponse {
            pid: message_pid(started),
            created_at: MessageField::some(timestamp(created_at)),
            spec: spec.into(),
            ..StartSandboxResponse::new()
        })
    }

    async fn platform(
        &self,
        _: &TtrpcContext,
        _: PlatformRequest,
    ) -> ttrpc::Result<PlatformResponse> {
        let platform = Platform {
            os: "linux".to_owned(),
            architecture: architecture().to_owned(),
            ..Platform::new()
        };
        Ok(PlatformResponse {
            platform: MessageField::some(platform),
            ..PlatformResponse::new()
        })
    }

    async fn stop_sandbox(
        &self,
        _: &TtrpcContext,
        req: StopSandboxRequest,
    ) -> ttrpc::Result<StopSandboxResponse> {
        self.stop(&req.sandbox_id).await.map_err(status)?;
        Ok(StopSandboxResponse::new())
    }

    async fn wait_sandbox(
        &self,
        _: &TtrpcContext,
        req: WaitSandboxRequest,
    ) -> ttrpc::Result<WaitSandboxResponse> {
        let exit = self
            .pod
            .ask(move |actor, reply| actor.wait_sandbox(&req.sandbox_id, reply));
        let exit = exit.await.map_err(status)?;
        Ok(WaitSandboxResponse {
            exit_status: exit.code,
            exited_at: MessageField::some(timestamp(exit.at)),
            ..WaitSandboxResponse::new()
        })
    }

    async fn sandbox_status(
        &self,
        _: &TtrpcContext,
        req: SandboxStatusRequest,
    ) -> ttrpc::Result<SandboxStatusResponse> {
        let state = self.state(&req.sandbox_id).await?;
        let mut said = SandboxStatusResponse {
            sandbox_id: req.sandbox_id,
            created_at: MessageField::some(timestamp(state.created_at)),
            ..SandboxStatusResponse::new()
        };
        let word = match state.status {
            Status::Running => {
                READY.clone_into(&mut said.state);
                said.pid = message_pid(state.pid);
                "running"
            }
            Status::Stopped(exit) => {
                NOT_READY.clone_into(&mut said.state);
                said.exited_at = MessageField::some(timestamp(exit.at));
                "stopped"
            }
            _ => {
                NOT_READY.clone_into(&mut said.state);
                "created"
            }
        };
        if req.verbose {
            said.info = info(&said, word, &self.shared().await?);
        }
        Ok(said)
    }

    async fn ping_sandbox(
        &self,
        _: &TtrpcContext,
        req: PingRequest,
    ) -> ttrpc::Result<PingResponse> {
        self.state(&req.sandbox_id).await?;
        Ok(PingResponse::new())
    }

    async fn shutdown_sandbox(
        &self,
        _: &TtrpcContext,
        req: ShutdownSandboxRequest,
    ) -> ttrpc::Result<ShutdownSandboxResponse> {
        self.stop(&req.sandbox_id).await.map_err(status)?;
        let pod = self.pod.clone();
        tokio::spawn(async move {
            tokio::time::sleep(READS_WITHIN).await;
            let granted = pod.ask(move |actor, reply| actor.shutdown(&req.sandbox_id, reply));
            // This fails only if the actor has ended already, which is what the caller wants.
            let _ = granted.await;
        });
        Ok(ShutdownSandboxResponse::new())
    }

    async fn sandbox_metrics(
        &self,
        _: &TtrpcContext,
        req: SandboxMetricsRequest,
    ) -> ttrpc::Result<SandboxMetricsResponse> {
        let id = req.sandbox_id.clone();
        let figures = self.pod.ask(move |actor, reply| actor.figures(&id, reply));
        let figures = match figures.await.map_err(status)? {
            Figures::Of(cgroup) => cgroup.metrics().map_err(CallError::unknown),
            Figures::Last(figures) => Ok(figures),
        };
        let mut said = SandboxMetricsResponse::new();
        let metric = said.metrics.mut_or_insert_default();
        metric.id = req.sandbox_id;
        metric.timestamp = MessageField::some(timestamp(std::time::SystemTime::now()));
        metric.data = MessageField::some(figures.map_err(status)?);
        Ok(said)
    }
}
