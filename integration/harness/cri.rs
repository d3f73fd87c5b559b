//! Pods made as kubelet makes them, by gRPC to the CRI plugin of a containerd 2.x.
//!
//! ```no_run
//! let node = Cri::start();
//! let pod = node.run_pod(&PodSpec::new("web", Handler::Pauseless));
//! let app = pod.run("app", &["/bin/witness", "app"]);
//! node.await_event("app", "start");
//! assert_eq!(app.exec(&["/bin/hostname"]).out(), "web\n");
//! ```
//!
//! The node has a network of its own, in which Debian's network plugins, if installed, set up pods.
//! Dropping the node removes all pods. The test fails if traces of them remain.

use std::fmt::Write as _;
use std::fs;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use containerd_shim_protos::protobuf::{Message, MessageField};
use serde_json::json;
use tokio::net::UnixStream;
use usher_api::cri;
use usher_linux::grpc::Call;

use super::{
    CgroupFiles, Containerd, Finished, Image, PATIENCE, REFERENCE, Settings, Version, build,
    eventually, has_controllers, make_archive, pod_cgroup, poll, scaled, shim_program,
};

mod pod;

pub use pod::{Container, Pod, PodSpec};

/// The containerd namespace of kubelet's pods.
pub const NAMESPACE: &str = "k8s.io";
/// The name of the directory with the CRI plugin's files.
pub const PLUGIN: &str = "io.containerd.grpc.v1.cri";

/// The image of the pause container. A pause container holds a pod's namespaces, if the shim does
/// not make the sandbox.
pub const PAUSE: &str = "localhost/usher-it/pause:1";
/// An image with busybox and the witness.
const WITNESS: &str = "localhost/usher-it/witness:1";

/// The runtime type of our shim; containerd derives the shim's file name from it.
const OURS: &str = "io.containerd.usher.v2";

/// The directory of Debian's network plugins.
const PLUGINS: &str = "/usr/lib/cni";

const PAUSE_SOURCE: &str = include_str!("pause.rs");
const UNLIMITED_SOURCE: &str = include_str!("unlimited.rs");

/// Longest accepted answer, in bytes.
const MAX_ANSWER: usize = 4 * 1024 * 1024;

/// Maximum time that traces of a removed pod remain.
const SETTLING: Duration = Duration::from_secs(5);

/// The runtime handler of a pod, which decides whether containerd or the shim makes the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handler {
    /// Our shim, with a pause container made by containerd.
    Usher,
    /// Our shim, which also makes the sandbox.
    Pauseless,
    /// containerd's own shim, with a pause container.
    Runc,
}

/// Settings of the CRI plugin.
#[derive(Clone, Debug)]
pub struct CriSettings {
    pub log_level: &'static str,
    /// True if containerd passes the annotations of pods to the shim. On a node, `usher install`
    /// configures this.
    pub passes_annotations: bool,
    /// True if there is a pause image.
    pub has_pause: bool,
    /// The OCI runtime of all shims. `None` leaves the choice to the shims.
    pub oci_runtime: Option<PathBuf>,
}

impl Default for CriSettings {
    fn default() -> Self {
        Self {
            log_level: "debug",
            passes_annotations: true,
            has_pause: true,
            oci_runtime: None,
        }
    }
}

/// A containerd with the CRI plugin. The test acts as kubelet.
pub struct Cri {
    host: Containerd,
    /// Counter for unique names.
    names: AtomicUsize,
}

impl Deref for Cri {
    type Target = Containerd;

    fn deref(&self) -> &Containerd {
        &self.host
    }
}

fn uid_of(pod: &str) -> String {
    format!("uid-of-{pod}")
}

impl Handler {
    /// The handler's name in containerd's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usher => "usher",
            Self::Pauseless => "pauseless",
            Self::Runc => "runc",
        }
    }
}

impl CriSettings {
    /// The part of containerd's configuration for the CRI plugin. `dir` is the directory of this
    /// containerd.
    pub(super) fn tables(&self, dir: &Path) -> String {
        let mut text = format!(
            r#"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE}"
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_port = "0"
[plugins."io.containerd.cri.v1.runtime"]
  # Root is not allowed to lower scores everywhere.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{PLUGINS}"]
  conf_dir = "{dir}/cni"
"#,
            dir = dir.display()
        );
        let shim = dir.join("bin").join(shim_program(OURS));
        let shim = shim.display();
        for handler in [Handler::Usher, Handler::Pauseless, Handler::Runc] {
            let cri = "plugins.\"io.containerd.cri.v1.runtime\"";
            let table = format!("{cri}.containerd.runtimes.{}", handler.name());
            let kind = match handler {
                // The shim's path cannot be configured here, because containerd ignores it if the
                // shim makes the sandbox.
                Handler::Pauseless => OURS,
                Handler::Usher | Handler::Runc => REFERENCE,
            };
            let _ = writeln!(text, "[{table}]\n  runtime_type = \"{kind}\"");
            if handler == Handler::Usher {
                let _ = writeln!(text, "  runtime_path = \"{shim}\"");
            }
            if handler != Handler::Runc {
                text.push_str(
                    "  container_annotations = [\"usher/*\", \"*.usher/*\", \"io.kubernetes.*\"]\n",
                );
            }
            if handler != Handler::Runc && self.passes_annotations {
                text.push_str("  pod_annotations = [\"usher/*\", \"*.usher/*\"]\n");
            }
            if handler == Handler::Pauseless {
                text.push_str("  sandboxer = \"shim\"\n");
                if Version::of_containerd() >= Version(2, 4) {
                    text.push_str("  disable_pause_image_pull = true\n");
                }
            }
            // containerd sets CPU shares for each pause container, and containerd 2 cannot be told
            // to omit them. Without the CPU controller, an OCI runtime refuses CPU shares. So a
            // program removes them.
            let unlimited = || build("unlimited", UNLIMITED_SOURCE);
            let needed = (!has_controllers()).then(unlimited);
            if let Some(runtime) = self.oci_runtime.as_ref().or(needed.as_ref()) {
                let name = runtime.display();
                let _ = writeln!(text, "  [{table}.options]\n    BinaryName = \"{name}\"");
            }
        }
        text
    }
}

/// The program of a pause container.
pub(super) fn pause_program() -> PathBuf {
    build("pause", PAUSE_SOURCE)
}

/// Writes the configuration of the pods' network, which is a bridge in containerd's network
/// namespace.
pub(super) fn write_network(dir: &Path) {
    let network = json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "pods",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "dataDir": dir.join("networks/addresses"),
                "ranges": [[{ "subnet": "10.97.0.0/16" }]],
            },
        }],
    });
    let conf = dir.join("cni");
    fs::create_dir(&conf).expect("a directory");
    fs::write(conf.join("pods.conflist"), network.to_string()).expect("a network");
}

impl Cri {
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(CriSettings::default())
    }

    #[track_caller]
    pub fn start_with(settings: CriSettings) -> Self {
        let has_pause = settings.has_pause;
        let host = Containerd::start_with(&Settings {
            log_level: settings.log_level,
            cri: Some(settings),
            ..Settings::default()
        });
        let node = Self {
            host,
            names: AtomicUsize::new(0),
        };
        node.await_runtime();
        node.import(has_pause);
        node
    }

    /// True if the network plugins are installed, so that a pod can have a network of its own.
    pub fn has_networks() -> bool {
        ["bridge", "host-local", "loopback"]
            .iter()
            .all(|name| Path::new(PLUGINS).join(name).exists())
    }

    /// Starts containerd again after [`stop`](Containerd::stop) or [`crash`](Containerd::crash),
    /// and waits until the new process has loaded its pods.
    #[track_caller]
    pub fn restart(&self) {
        self.host.start_again();
        self.await_runtime();
    }

    /// Gives each of our two handlers the configuration of the other handler. containerd reads the
    /// configuration when it starts again.
    pub fn exchange_handlers(&self) {
        let path = self.dir().join("config.toml");
        let text = fs::read_to_string(&path).expect("a configuration");
        let [usher, pauseless] = [Handler::Usher, Handler::Pauseless]
            .map(|handler| format!(".runtimes.{}", handler.name()));
        let text = text.replace(&usher, ".runtimes.third");
        let text = text.replace(&pauseless, &usher);
        let text = text.replace(".runtimes.third", &pauseless);
        fs::write(path, text).expect("a configuration");
    }

    fn await_runtime(&self) {
        let answers = || {
            let status = self.call::<cri::StatusResponse>("Status", &cri::StatusRequest::new());
            let conditions = status.ok()?.status.conditions.clone();
            let ready = |c: &cri::RuntimeCondition| c.type_ == "RuntimeReady" && c.status;
            conditions.iter().any(ready).then_some(())
        };
        let tail = || self.log_tail(20);
        assert!(poll(PATIENCE, answers).is_some(), "no CRI:\n{}", tail());
    }

    fn import(&self, has_pause: bool) {
        let rootfs = self.dir().join("rootfs");
        fs::copy(pause_program(), rootfs.join("pause")).expect("copy pause");
        let env = ["PATH=/bin"];
        let mut images = vec![Image {
            reference: WITNESS,
            config: json!({ "Env": env, "Cmd": ["/bin/true"] }),
        }];
        if has_pause {
            images.push(Image {
                reference: PAUSE,
                config: json!({ "Env": env, "Entrypoint": ["/pause"] }),
            });
        }
        let archive = make_archive(&self.dir().join("image"), &rootfs, &images);
        self.must(&[
            "images",
            "import",
            "--local",
            &archive.display().to_string(),
        ]);
        eventually("the plugin knows the images", PATIENCE, || {
            self.images().len() == images.len()
        });
    }

    /// The names of all images that containerd reports to kubelet.
    #[track_caller]
    pub fn images(&self) -> Vec<String> {
        let request = cri::ListImagesRequest::new();
        let listed = self.ask::<cri::ListImagesResponse>("ImageService/ListImages", &request);
        let listed = listed.unwrap_or_else(|e| panic!("ListImages: {e}"));
        let names = listed.images.into_iter().flat_map(|image| image.repo_tags);
        names.collect()
    }

    /// Calls a method of the runtime service. Returns the error's message if the call fails.
    pub fn call<A: Message>(&self, method: &str, question: &impl Message) -> Result<A, String> {
        self.ask(&format!("RuntimeService/{method}"), question)
    }

    fn ask<A: Message>(&self, method: &str, question: &impl Message) -> Result<A, String> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let method = format!("runtime.v1.{method}");
        let call = Call {
            authority: "localhost",
            method: &method,
            agent: "usher-it",
            max_body: MAX_ANSWER,
        };
        let asking = async {
            let connection = UnixStream::connect(self.socket()).await;
            let connection = connection.map_err(|error| error.to_string())?;
            let answer = call
                .ask(connection, question)
                .await
                .map_err(|error| error.to_string())?;
            let succeeded = answer.succeeded();
            succeeded.map_err(|status| answer.reason().unwrap_or(status.to_string()))?;
            answer.message().ok_or("no message".to_owned())
        };
        runtime.block_on(async {
            match tokio::time::timeout(scaled(PATIENCE * 2), asking).await {
                Ok(answer) => answer,
                Err(_) => Err("no answer".to_owned()),
            }
        })
    }

    #[track_caller]
    pub fn pods(&self) -> Vec<cri::PodSandbox> {
        let request = cri::ListPodSandboxRequest::new();
        let listed = self.call::<cri::ListPodSandboxResponse>("ListPodSandbox", &request);
        listed
            .unwrap_or_else(|e| panic!("ListPodSandbox: {e}"))
            .items
    }

    #[track_caller]
    pub fn containers(&self) -> Vec<cri::Container> {
        let request = cri::ListContainersRequest::new();
        let listed = self.call::<cri::ListContainersResponse>("ListContainers", &request);
        listed
            .unwrap_or_else(|e| panic!("ListContainers: {e}"))
            .containers
    }

    /// The path of the cgroup that kubelet would make for a pod.
    fn cgroup_of(&self, pod: &str) -> String {
        format!("/{}/pod{}", self.name, uid_of(pod))
    }

    /// Stops and removes all pods, and returns the problems. Repeats failed removals as kubelet
    /// does, because containerd refuses a removal while it cleans up after a dead shim.
    pub fn remove_pods(&self) -> Vec<String> {
        let mut problems = Vec::new();
        poll(PATIENCE, || {
            problems = self.try_remove_pods();
            problems.is_empty().then_some(())
        });
        problems
    }

    fn try_remove_pods(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let request = cri::ListPodSandboxRequest::new();
        let pods = match self.call::<cri::ListPodSandboxResponse>("ListPodSandbox", &request) {
            Ok(listed) => listed.items,
            Err(error) => return vec![format!("ListPodSandbox: {error}")],
        };
        for pod in pods {
            let mut stop = cri::StopPodSandboxRequest::new();
            stop.pod_sandbox_id.clone_from(&pod.id);
            let mut remove = cri::RemovePodSandboxRequest::new();
            remove.pod_sandbox_id.clone_from(&pod.id);
            let name = &pod.metadata.name;
            let stopped = self.call::<cri::StopPodSandboxResponse>("StopPodSandbox", &stop);
            problems.extend(stopped.err().map(|e| format!("stop {name}: {e}")));
            let removed = self.call::<cri::RemovePodSandboxResponse>("RemovePodSandbox", &remove);
            problems.extend(removed.err().map(|e| format!("remove {name}: {e}")));
            pod_cgroup::remove(&self.cgroup_of(name));
        }
        problems
    }

    /// Removes all pods and the containers' record, and checks that no trace of the pods is left.
    #[track_caller]
    pub fn clear(&self) {
        let problems = self.remove_pods();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
        poll(SETTLING, || self.remains().is_empty().then_some(()));
        let remains = self.remains();
        assert!(remains.is_empty(), "left behind:\n{}", remains.join("\n"));
        let _ = fs::remove_file(self.shared_dir().join("record"));
    }
}

impl Drop for Cri {
    /// Removes the pods. Afterwards `Containerd` is dropped, and looks for leaks.
    fn drop(&mut self) {
        if self.pid().is_none() {
            let again = || self.restart();
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(again));
        }
        let problems = self.remove_pods();
        if !problems.is_empty() && !std::thread::panicking() {
            panic!("{}", problems.join("\n"));
        }
    }
}
