//! The shim of a task, and the Task API that tests call directly, without containerd.

use std::fs;
use std::time::Duration;

use containerd_shim_protos::api::{
    CloseIORequest, ConnectRequest, ConnectResponse, CreateTaskRequest, CreateTaskResponse,
    DeleteRequest, DeleteResponse, Empty, ExecProcessRequest, KillRequest, PidsRequest,
    PidsResponse, ResizePtyRequest, ShutdownRequest, StartRequest, StartResponse, StateRequest,
    StateResponse, StatsRequest, StatsResponse, UpdateTaskRequest, WaitRequest, WaitResponse,
};
use containerd_shim_protos::protobuf::Message;
use tokio::runtime::Runtime;
use ttrpc::r#async::Client;
use ttrpc::proto::{Code, Request};

use super::mount_ns::SHARED_STATE;
use super::{Containerd, PATIENCE, scaled};

#[derive(Clone, Debug, PartialEq)]
pub struct Shim {
    pub pid: u32,
    pub endpoint: Endpoint,
}

/// The address of a shim, and the API that it serves there.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoint {
    /// The address of the shim's socket, as the shim and containerd write it.
    pub address: String,
    pub service: Service,
}

/// A service of a shim. The Task service has two names, with the same calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Service {
    /// The Task service under the name that containerd 1.6 and 1.7 use.
    TaskV2,
    /// The Task service under the name that containerd 2.x uses.
    TaskV3,
    /// The service for pods without a pause container, which containerd uses from 2.0 on.
    SandboxV1,
}

/// A connection to a shim, for use by one thread. For several calls at the same time, a test needs
/// several connections.
pub struct TaskApi {
    runtime: Runtime,
    client: Client,
    service: Service,
    deadline: Duration,
}

/// An answer, or the code and message of an error.
pub type Answer<T> = Result<T, (Code, String)>;

impl Containerd {
    /// The shim that serves a task.
    #[track_caller]
    pub fn shim(&self, id: &str) -> Shim {
        let connected = self.task_api(id).connect(id);
        let connected = connected.unwrap_or_else(|e| panic!("Connect {id}: {e:?}"));
        Shim {
            pid: connected.shim_pid,
            endpoint: self.endpoint(id),
        }
    }

    /// Process ids and command lines of this containerd's shims, containers and OCI runtimes.
    pub fn commands(&self) -> Vec<(u32, String)> {
        super::leaks::processes(self)
    }

    /// Process ids of all shims of this containerd.
    pub fn shims(&self) -> Vec<u32> {
        let is_shim = |pid: &u32| {
            let name = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let program = name
                .split('\0')
                .next()
                .unwrap_or_default()
                .rsplit('/')
                .next();
            program.is_some_and(|name| name.starts_with("containerd-shim-"))
        };
        let pids = super::leaks::processes(self)
            .into_iter()
            .map(|(pid, _)| pid);
        pids.filter(is_shim).collect()
    }

    /// A connection to the shim that serves a task.
    #[track_caller]
    pub fn task_api(&self, id: &str) -> TaskApi {
        let Endpoint { address, service } = self.endpoint(id);
        self.connect(&address, service)
    }

    /// The address of a task's shim, read from the bundle.
    #[track_caller]
    pub fn endpoint(&self, id: &str) -> Endpoint {
        let bundle = self.bundle_dir(id);
        let read = |name: &str| fs::read(bundle.join(name)).ok();
        // containerd up to 1.6 writes only `address`, and later versions write `bootstrap.json`.
        let found = read("bootstrap.json").or_else(|| read("address"));
        let found = found.and_then(|said| Endpoint::parse(&said));
        found.unwrap_or_else(|| panic!("{} holds no address", bundle.display()))
    }

    /// A connection to a shim's address.
    #[track_caller]
    pub fn connect(&self, address: &str, service: Service) -> TaskApi {
        // In the shims' mount namespace (see `mount_ns`), the test's directory `run` is mounted on
        // `SHARED_STATE`. The test is outside of this namespace, so it uses `run` itself.
        let outside = self.dir().join("run").display().to_string();
        let address = address.replacen(SHARED_STATE, &outside, 1);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let client = runtime.block_on(Client::connect(&address));
        let client = client.unwrap_or_else(|e| panic!("connect {address}: {e}"));
        TaskApi {
            runtime,
            client,
            service,
            deadline: scaled(PATIENCE),
        }
    }
}

impl Endpoint {
    /// Parses the output of a shim's `start`: an address, or JSON with an address and a version.
    pub fn parse(said: &[u8]) -> Option<Endpoint> {
        let (address, version) = match serde_json::from_slice::<serde_json::Value>(said) {
            Ok(json) => (
                json["address"].as_str()?.to_owned(),
                json["version"].as_u64(),
            ),
            Err(_) => (std::str::from_utf8(said).ok()?.trim().to_owned(), None),
        };
        let service = match version {
            None | Some(2) => Service::TaskV2,
            Some(3) => Service::TaskV3,
            Some(_) => return None,
        };
        Some(Endpoint { address, service })
    }
}

impl Service {
    fn name(self) -> &'static str {
        match self {
            Self::TaskV2 => "containerd.task.v2.Task",
            Self::TaskV3 => "containerd.task.v3.Task",
            Self::SandboxV1 => "containerd.runtime.sandbox.v1.Sandbox",
        }
    }
}

impl TaskApi {
    /// Sets the deadline of later calls. Each of these calls also passes its deadline to the shim.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Makes any call by name.
    pub fn call<T: Message>(&self, method: &str, request: &impl Message) -> Answer<T> {
        let request = self.request(method, request);
        match self.runtime.block_on(self.client.request(request)) {
            Ok(response) => Ok(T::parse_from_bytes(&response.payload).expect("a message")),
            Err(ttrpc::Error::RpcStatus(status)) => Err((status.code(), status.message)),
            Err(other) => Err((Code::UNKNOWN, other.to_string())),
        }
    }

    /// Sends a call, and closes the connection after the time `after`, even if no answer has come.
    pub fn call_and_vanish(self, method: &str, request: &impl Message, after: Duration) {
        let request = self.request(method, request);
        let call = self.client.request(request);
        let _ = self
            .runtime
            .block_on(async { tokio::time::timeout(after, call).await });
    }

    fn request(&self, method: &str, request: &impl Message) -> Request {
        Request {
            service: self.service.name().to_owned(),
            method: method.to_owned(),
            timeout_nano: self.deadline.as_nanos() as i64,
            payload: request.write_to_bytes().expect("a message"),
            ..Request::default()
        }
    }

    pub fn connect(&self, id: &str) -> Answer<ConnectResponse> {
        self.call(
            "Connect",
            &ConnectRequest {
                id: id.into(),
                ..Default::default()
            },
        )
    }

    pub fn create(&self, request: &CreateTaskRequest) -> Answer<CreateTaskResponse> {
        self.call("Create", request)
    }

    /// Starts a task or an exec. In this call and those below, an empty `exec_id` means the task's
    /// first process.
    pub fn start(&self, id: &str, exec_id: &str) -> Answer<StartResponse> {
        let (id, exec_id) = (id.into(), exec_id.into());
        self.call(
            "Start",
            &StartRequest {
                id,
                exec_id,
                ..Default::default()
            },
        )
    }

    pub fn state(&self, id: &str, exec_id: &str) -> Answer<StateResponse> {
        let (id, exec_id) = (id.into(), exec_id.into());
        self.call(
            "State",
            &StateRequest {
                id,
                exec_id,
                ..Default::default()
            },
        )
    }

    pub fn wait(&self, id: &str, exec_id: &str) -> Answer<WaitResponse> {
        let (id, exec_id) = (id.into(), exec_id.into());
        self.call(
            "Wait",
            &WaitRequest {
                id,
                exec_id,
                ..Default::default()
            },
        )
    }

    pub fn kill(&self, id: &str, exec_id: &str, signal: u32, all: bool) -> Answer<Empty> {
        let (id, exec_id) = (id.into(), exec_id.into());
        self.call(
            "Kill",
            &KillRequest {
                id,
                exec_id,
                signal,
                all,
                ..Default::default()
            },
        )
    }

    pub fn delete(&self, id: &str, exec_id: &str) -> Answer<DeleteResponse> {
        let (id, exec_id) = (id.into(), exec_id.into());
        self.call(
            "Delete",
            &DeleteRequest {
                id,
                exec_id,
                ..Default::default()
            },
        )
    }

    pub fn exec(&self, request: &ExecProcessRequest) -> Answer<Empty> {
        self.call("Exec", request)
    }

    pub fn pids(&self, id: &str) -> Answer<PidsResponse> {
        self.call(
            "Pids",
            &PidsRequest {
                id: id.into(),
                ..Default::default()
            },
        )
    }

    pub fn stats(&self, id: &str) -> Answer<StatsResponse> {
        self.call(
            "Stats",
            &StatsRequest {
                id: id.into(),
                ..Default::default()
            },
        )
    }

    pub fn update(&self, request: &UpdateTaskRequest) -> Answer<Empty> {
        self.call("Update", request)
    }

    pub fn close_stdin(&self, id: &str, exec_id: &str) -> Answer<Empty> {
        let (id, exec_id) = (id.into(), exec_id.into());
        self.call(
            "CloseIO",
            &CloseIORequest {
                id,
                exec_id,
                stdin: true,
                ..Default::default()
            },
        )
    }

    /// Sets the terminal's size in columns and lines.
    pub fn resize(&self, id: &str, exec_id: &str, width: u32, height: u32) -> Answer<Empty> {
        let request = ResizePtyRequest {
            id: id.into(),
            exec_id: exec_id.into(),
            width,
            height,
            ..Default::default()
        };
        self.call("ResizePty", &request)
    }

    pub fn shutdown(&self, id: &str) -> Answer<Empty> {
        self.call(
            "Shutdown",
            &ShutdownRequest {
                id: id.into(),
                ..Default::default()
            },
        )
    }
}
