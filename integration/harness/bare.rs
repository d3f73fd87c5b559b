//! A shim that a test calls directly, without containerd. A test can then do what `ctr` cannot do:
//! create a task without starting it, get the code of an error, close the connection during a call.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use containerd_shim_protos::api::{CreateTaskRequest, ExecProcessRequest};
use containerd_shim_protos::bootstrap_api::{BootstrapParams, BootstrapResult, Extension};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};

use super::environment::{Version, shim_program};
use super::{Background, Containerd, Endpoint, PATIENCE, Service, TaskApi, run};

/// A shim for a bundle that the test has made. The test starts the shim in the same way as the
/// installed containerd does. Dropping the value deletes the shim's task.
pub struct BareShim<'host> {
    pub id: String,
    pub address: String,
    pub service: Service,
    host: &'host Containerd,
    program: String,
    bundle: PathBuf,
}

impl<'host> BareShim<'host> {
    /// Writes a bundle that runs `args`, and starts the shim. Before the start, `edit` can change
    /// the bundle's configuration.
    #[track_caller]
    pub fn start(
        host: &'host Containerd,
        runtime: &str,
        id: &str,
        args: &[&str],
        edit: impl FnOnce(&mut Value),
    ) -> Self {
        let mut shim = Self::prepare(host, runtime, id, args, edit);
        let started = shim.try_start(shim.command("start"), &Any::new());
        started.unwrap_or_else(|said| panic!("start of the shim: {said}"));
        shim
    }

    /// Starts the shim by this command, and passes the options of the OCI runtime as containerd
    /// does. Returns the shim's error output if the start fails.
    pub fn try_start(&mut self, mut command: Command, options: &Any) -> Result<(), String> {
        let containerd = Version::of_containerd();
        if let Some(version) = containerd.max_shim_version() {
            command.env("MAX_SHIM_VERSION", version);
        }
        let said = match containerd.speaks_protobuf() {
            true => BootstrapParams {
                extensions: vec![Extension {
                    value: MessageField::some(options.clone()),
                    ..Default::default()
                }],
                ..self.bootstrap_params()
            }
            .write_to_bytes(),
            false => options.write_to_bytes(),
        };
        let mut shim = Background::spawn(command);
        shim.try_write(&said.expect("a message"));
        let finished = shim.finish(PATIENCE);
        if !finished.ok() {
            return Err(finished.err());
        }
        let endpoint = match BootstrapResult::parse_from_bytes(&finished.stdout) {
            Ok(result) if containerd.speaks_protobuf() => Some(Endpoint {
                address: result.address,
                service: Service::TaskV3,
            }),
            _ => Endpoint::parse(&finished.stdout),
        };
        let Some(Endpoint { address, service }) = endpoint else {
            return Err(format!("its answer is {:?}", finished.out()));
        };
        (self.address, self.service) = (address, service);
        Ok(())
    }

    /// The parameters that containerd 2.3 passes to a shim.
    pub fn bootstrap_params(&self) -> BootstrapParams {
        let socket = self.host.socket().display().to_string();
        BootstrapParams {
            instance_id: self.id.clone(),
            namespace: self.host.namespace.clone(),
            containerd_ttrpc_address: format!("{socket}.ttrpc"),
            containerd_grpc_address: socket,
            ..Default::default()
        }
    }

    /// Writes the bundle, but starts no shim. A test that then starts the shim without `try_start`
    /// has to set `address`.
    #[track_caller]
    pub fn prepare(
        host: &'host Containerd,
        runtime: &str,
        id: &str,
        args: &[&str],
        edit: impl FnOnce(&mut Value),
    ) -> Self {
        let bundle = host.dir().join("bundles").join(id);
        fs::create_dir_all(&bundle).expect("the bundle");
        let mut config = default_config(host, id, args);
        edit(&mut config);
        fs::write(bundle.join("config.json"), config.to_string()).expect("config.json");
        drain_log(host, &bundle);
        let program = shim_program(runtime);
        Self {
            id: id.into(),
            address: String::new(),
            service: Service::TaskV2,
            host,
            program,
            bundle,
        }
    }

    /// A command that runs the shim in the bundle's directory, with the flags and the environment
    /// that containerd sets.
    pub fn command(&self, action: &str) -> Command {
        let socket = self.host.socket().display().to_string();
        let mut command = Command::new(&self.program);
        command.args(["-namespace", &self.host.namespace, "-address", &socket]);
        command.args(["-publish-binary", "containerd", "-id", &self.id]);
        if action == "delete" {
            command.arg("-bundle").arg(&self.bundle);
        }
        command.arg(action);
        command
            .env("TTRPC_ADDRESS", format!("{socket}.ttrpc"))
            .env("GOMAXPROCS", "2");
        command.env("PATH", &self.host.path);
        command.env("TMPDIR", self.host.dir().join("tmp"));
        command.env_remove("XDG_RUNTIME_DIR");
        command.current_dir(&self.bundle);
        self.host.enter(&mut command);
        command
    }

    pub fn bundle(&self) -> &Path {
        &self.bundle
    }

    /// A new connection to the shim.
    #[track_caller]
    pub fn api(&self) -> TaskApi {
        self.host.connect(&self.address, self.service)
    }

    /// A Create request without stdio.
    pub fn create_request(&self) -> CreateTaskRequest {
        let bundle = self.bundle.display().to_string();
        CreateTaskRequest {
            id: self.id.clone(),
            bundle,
            ..Default::default()
        }
    }

    #[track_caller]
    pub fn pid(&self) -> u32 {
        self.api().connect(&self.id).expect("Connect").shim_pid
    }

    /// Makes a FIFO in the bundle, and returns its path.
    #[track_caller]
    pub fn fifo(&self, name: &str) -> String {
        let fifo = self.bundle.join(name);
        mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
        fifo.display().to_string()
    }

    /// A Create request with FIFOs. The returned files keep the FIFOs for output open, so that no
    /// reader is needed.
    pub fn create_request_with_stdio(&self) -> (CreateTaskRequest, [File; 2]) {
        let [stdin, stdout, stderr] = ["stdin", "stdout", "stderr"].map(|name| self.fifo(name));
        let open = |path| {
            File::options()
                .read(true)
                .write(true)
                .open(path)
                .expect("a FIFO")
        };
        let output = [open(&stdout), open(&stderr)];
        (
            CreateTaskRequest {
                stdin,
                stdout,
                stderr,
                ..self.create_request()
            },
            output,
        )
    }

    /// An Exec request without stdio.
    pub fn exec_request(&self, exec_id: &str, args: &[&str]) -> ExecProcessRequest {
        let process = json!({
            "args": args, "cwd": "/", "env": ["PATH=/bin"], "user": { "uid": 0, "gid": 0 },
        });
        let spec = Any {
            type_url: "types.containerd.io/opencontainers/runtime-spec/1/Process".to_owned(),
            value: process.to_string().into_bytes(),
            ..Default::default()
        };
        ExecProcessRequest {
            id: self.id.clone(),
            exec_id: exec_id.to_owned(),
            spec: MessageField::some(spec),
            ..Default::default()
        }
    }
}

impl Drop for BareShim<'_> {
    fn drop(&mut self) {
        let end = || {
            if self.address.is_empty() {
                return;
            }
            let api = self.api();
            if api.kill(&self.id, "", 9, true).is_ok() {
                let _ = api.wait(&self.id, "");
            }
            let _ = api.delete(&self.id, "");
            let _ = api.shutdown(&self.id);
        };
        // `BareShim::api` panics if the shim has already exited.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(end));
        // Like containerd, run `delete` after the shim's exit.
        let _ = std::panic::catch_unwind(|| run(self.command("delete"), PATIENCE));
    }
}

/// The default container configuration of `ctr`, with the test's root file system.
#[track_caller]
pub fn default_config(host: &Containerd, id: &str, args: &[&str]) -> Value {
    let text = host.must(&["oci", "spec"]);
    let mut config: Value = serde_json::from_str(&text).expect("a config");
    config["process"]["args"] = json!(args);
    config["process"]["env"] = json!(["PATH=/bin"]);
    config["root"] = json!({ "path": host.dir().join("rootfs"), "readonly": false });
    config["linux"]["cgroupsPath"] = json!(format!("/{}/{id}", host.namespace));
    let shared = json!({
        "destination": "/shared", "type": "bind", "source": host.shared_dir(),
        "options": ["rbind", "rw"],
    });
    config["mounts"]
        .as_array_mut()
        .expect("mounts")
        .push(shared);
    config
}

/// Removes the PID namespace from a container's configuration. Then the container's other processes
/// outlive its first process, and its orphans become children of the shim.
pub fn host_pids(config: &mut Value) {
    let namespaces = config["linux"]["namespaces"].as_array_mut();
    namespaces.expect("a list").retain(|ns| ns["type"] != "pid");
}

/// Adds a user namespace. Its user id 0 is the host's `uid`, and its group id 0 the host's `gid`.
pub fn add_user_namespace(config: &mut Value, uid: u32, gid: u32) {
    let map = |outside: u32| json!([{"containerID": 0, "hostID": outside, "size": 65536}]);
    config["linux"]["uidMappings"] = map(uid);
    config["linux"]["gidMappings"] = map(gid);
    let namespaces = config["linux"]["namespaces"].as_array_mut();
    namespaces
        .expect("namespaces")
        .push(json!({"type": "user"}));
    // These file systems of the host cannot be mounted from a user namespace.
    let mounts = config["mounts"].as_array_mut().expect("mounts");
    mounts.retain(|mount| mount["type"] != "cgroup" && mount["type"] != "mqueue");
}

/// Adds a poststart hook. Because of the hook, the shim releases the container by calling the OCI
/// runtime's `start`. The hook reads its input, because crun would otherwise fail with SIGPIPE.
pub fn add_poststart_hook(config: &mut Value) {
    let args = ["sh", "-c", "cat > /dev/null"];
    config["hooks"] = json!({ "poststart": [{ "path": "/bin/sh", "args": args }] });
}

/// Copies the shim's log into a file, as containerd does. The file is beside containerd's log.
fn drain_log(host: &Containerd, bundle: &Path) {
    let fifo = bundle.join("log");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).expect("the log's FIFO");
    let log = host.dir().join("bare-shim.log");
    let mut log = File::options()
        .append(true)
        .create(true)
        .open(log)
        .expect("the log");
    // The FIFO is opened for reading and writing. So opening it does not wait for a writer, and
    // reading it does not end when a writer closes it.
    let mut fifo = File::options()
        .read(true)
        .write(true)
        .open(fifo)
        .expect("the log's FIFO");
    std::thread::spawn(move || io::copy(&mut fifo, &mut log));
}
