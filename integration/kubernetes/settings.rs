//! Configuration and arguments of the cluster's programs.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::harness::{installed_program, run};

use super::cluster::{Cluster, NODE, Node};

/// The paths of the programs that a cluster needs. `scripts/test-kubernetes` passes them in
/// environment variables.
pub struct Programs {
    /// The directory of Kubernetes' programs, which are in its subdirectory `bin`.
    pub kubernetes: PathBuf,
    /// Kubernetes' version, like `1.34`.
    pub version: (u32, u32),
    /// The directory of etcd and the CNI plugins, from their Debian packages.
    pub parts: PathBuf,
    /// The directory of containerd and ctr.
    pub containerd: PathBuf,
    /// The directory of usher's programs, statically linked as in images.
    pub statically_linked: PathBuf,
    /// The directory of bash and busybox for usher's images.
    pub image_tools: PathBuf,
    /// The directory with the kernel and disk of the virtual machine. `None` if the node is no
    /// virtual machine.
    pub node_image: Option<PathBuf>,
    /// The runc of the node. `None` if the node uses the machine's runc.
    pub runc: Option<PathBuf>,
}

const TOKEN: &str = "of-the-test";
/// The token with which the cluster's only node authenticates.
const NODE_TOKEN: &str = "of-the-node";

/// The path of the configuration that containerd's package uses.
pub const CONTAINERD_CONFIG: &str = "/etc/containerd/config.toml";

/// Paths below the cluster's directory: kubelet's configuration, and the directory of static pods.
pub const KUBELET: &str = "etc/kubelet.json";
pub const STATIC_PODS: &str = "etc/static-pods";

/// A script that runs containerd as systemd does. It restarts containerd when containerd has
/// exited, or when a restart is requested. Child processes of containerd go on running.
const CONTAINERD_SERVICE: &str = r#"
mkfifo /run/containerd.restart
while :; do "$@" & echo $! >/run/containerd.service; wait; done &
while read -r _; do kill "$(cat /run/containerd.service)"; done <>/run/containerd.restart
"#;

impl Programs {
    /// Reads the paths from the environment. `None` if the environment does not configure a
    /// cluster.
    pub fn from_environment() -> Option<Self> {
        let kubernetes = PathBuf::from(std::env::var_os("USHER_TEST_KUBERNETES")?);
        let directory = |name| PathBuf::from(std::env::var_os(name).expect(name));
        let mut kubelet = Command::new(kubernetes.join("bin/kubelet"));
        kubelet.arg("--version");
        let said = run(kubelet, Duration::from_secs(60)).out();
        let version = version_after("Kubernetes v", &said);
        Some(Self {
            version: version.unwrap_or_else(|| panic!("kubelet --version says {said:?}")),
            kubernetes,
            parts: directory("USHER_TEST_CLUSTER_PARTS"),
            statically_linked: directory("USHER_TEST_STATIC_PROGRAMS"),
            image_tools: directory("USHER_TEST_IMAGE_TOOLS"),
            containerd: installed_program("containerd").with_file_name(""),
            node_image: std::env::var_os("USHER_TEST_NODE_IMAGE").map(PathBuf::from),
            runc: std::env::var_os("USHER_TEST_RUNC")
                .map(|directory| PathBuf::from(directory).join("usr/bin/runc")),
        })
    }

    /// True if the node's runc supports pods in user namespaces (1.2 and later).
    pub fn has_user_namespaces(&self) -> bool {
        let runc = self.runc.clone().unwrap_or_else(|| PathBuf::from("runc"));
        let mut version = Command::new(runc);
        version.arg("--version");
        let said = run(version, Duration::from_secs(60)).out();
        version_after("runc version ", &said).is_some_and(|version| version >= (1, 2))
    }

    /// True if kubelet knows native sidecars (`restartPolicy` of an init container).
    pub fn has_native_sidecars(&self) -> bool {
        self.version >= (1, 29)
    }
}

/// Major and minor version in a program's output, like `Kubernetes v1.34.4`.
fn version_after(words: &str, said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.trim().trim_start_matches(words).split('.');
    let mut next = || numbers.next()?.parse().ok();
    next().zip(next())
}

/// Writes all configuration files, most of them into the cluster's directory `etc`.
pub fn write(cluster: &Cluster) {
    let etc = cluster.path("etc");
    let put = |name: &str, text: String| fs::write(etc.join(name), text).expect("a setting");
    let config = match cluster.is_in_guest() {
        true => cluster
            .path("guest")
            .join(CONTAINERD_CONFIG.trim_start_matches('/')),
        false => cluster.path_on_machine(CONTAINERD_CONFIG),
    };
    fs::create_dir_all(config.with_file_name("")).expect("a directory");
    fs::write(config, containerd(cluster)).expect("a setting");
    fs::create_dir(etc.join("cni")).expect("a directory");
    put("cni/pods.conflist", network());
    let node = format!("{NODE_TOKEN},system:node:{NODE},node,system:nodes\n");
    put(
        "tokens.csv",
        format!("{TOKEN},test,test,system:masters\n{node}"),
    );
    put("kubeconfig", kubeconfig(TOKEN));
    put("kubelet.conf", kubeconfig(NODE_TOKEN));
    fs::create_dir(cluster.path(STATIC_PODS)).expect("a directory");
    fs::write(cluster.path(KUBELET), kubelet(cluster)).expect("a setting");
    let mut openssl = Command::new("openssl");
    openssl
        .args(["genrsa", "-out"])
        .arg(etc.join("accounts.key"))
        .arg("2048");
    let finished = run(openssl, Duration::from_secs(60));
    assert!(finished.ok(), "openssl: {}", finished.err());
}

/// A typical containerd configuration of a node, before usher is installed.
fn containerd(cluster: &Cluster) -> String {
    let dir = cluster.directory();
    let (places, cri, plugins, runc) = match cluster.is_in_guest() {
        true => (
            String::new(),
            "",
            "/opt/cni/bin".to_owned(),
            "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc.options]\n      \
             SystemdCgroup = true\n",
        ),
        false => (
            format!(
                "root = \"{dir}/containerd\"\nstate = \"{dir}/state\"\n\
                 [plugins.\"io.containerd.internal.v1.opt\"]\n  path = \"{dir}/opt\"\n"
            ),
            "# Root is not allowed to lower scores everywhere.\n  restrict_oom_score_adj = true",
            format!("{}/usr/lib/cni", cluster.programs.parts.display()),
            "",
        ),
    };
    format!(
        r#"version = 2
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.restart"]
{places}
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  {cri}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{dir}/etc/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
    {runc}"#,
        pause = super::images::PAUSE,
    )
}

/// The configuration of the network from which pods get an address.
pub fn network() -> String {
    json!({
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "pods",
            "isGateway": true,
            "ipam": {
                "type": "host-local",
                "dataDir": "/run/cni",
                "ranges": [[{ "subnet": "10.89.0.0/16" }]],
                // Outside of the node, pods can reach only the API server.
                "routes": [{ "dst": "10.96.0.0/16" }],
            },
        }],
    })
    .to_string()
}

fn kubeconfig(token: &str) -> String {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "c", "cluster": {
            "server": "https://10.96.0.1", "insecure-skip-tls-verify": true,
        }}],
        "users": [{ "name": "u", "user": { "token": token } }],
        "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        "current-context": "x",
    })
    .to_string()
}

fn kubelet(cluster: &Cluster) -> String {
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": { "anonymous": { "enabled": true }, "webhook": { "enabled": false } },
        "authorization": { "mode": "AlwaysAllow" },
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", cluster.name()),
        "enforceNodeAllocatable": [],
        // kubelet must not evict pods because the machine's disk is full.
        "evictionHard": {
            "memory.available": "1Mi", "nodefs.available": "1Mi", "nodefs.inodesFree": "10",
            "imagefs.available": "1Mi",
        },
        "failSwapOn": false,
        "imageGCHighThresholdPercent": 100,
        "makeIPTablesUtilChains": false,
        "protectKernelDefaults": true,
        "kubeAPIQPS": 100, "kubeAPIBurst": 200,
        "staticPodPath": cluster.path(STATIC_PODS),
        // In the virtual machine kubelet is not notified when a file is created, so it has to look
        // for files periodically.
        "fileCheckFrequency": "5s",
    });
    if cluster.programs.version >= (1, 27) {
        config["containerRuntimeEndpoint"] = SOCKET.into();
    }
    if cluster.programs.version >= (1, 31) {
        config["failCgroupV1"] = false.into();
    }
    if cluster.is_in_guest() {
        config["cgroupDriver"] = "systemd".into();
        config["cgroupRoot"] = "/".into();
        config["protectKernelDefaults"] = false.into();
        config["shutdownGracePeriod"] = "10m".into();
        config["shutdownGracePeriodCriticalPods"] = "10s".into();
    }
    config.to_string()
}

/// The systemd unit for a program in the virtual machine. Unlike the unit of the program's own
/// project, it does not restart the program.
pub fn unit(cluster: &Cluster, name: &str) -> String {
    let own = match name {
        "containerd" => {
            "Type=notify\nDelegate=yes\nKillMode=process\nOOMScoreAdjust=-999\n\
             LimitNOFILE=infinity\nTasksMax=infinity\n"
        }
        _ => "KillMode=process\nCPUAccounting=true\nMemoryAccounting=true\n",
    };
    let mut words = command_line(cluster, name);
    words[0].insert_str(0, "/usr/local/bin/");
    let log = cluster.path("log").join(name);
    format!(
        "[Unit]\nDescription={name}\n\n[Service]\nExecStart={}\n{own}\
         Environment=PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nStandardOutput=append:{}\n",
        words.join(" "),
        log.display()
    )
}

const SOCKET: &str = "unix:///run/containerd/containerd.sock";

/// The path of the RuntimeClass that users apply.
pub fn runtime_class() -> String {
    concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/scripts/kubernetes/runtimeclass.yaml"
    )
    .to_owned()
}

pub fn command_line(cluster: &Cluster, name: &str) -> Vec<String> {
    let etc = |file: &str| cluster.path("etc").join(file).display().to_string();
    let with = |kubeconfig: &str| {
        let mut words = vec![format!("--kubeconfig={}", etc(kubeconfig))];
        words.push(format!("--cert-dir={}", etc(name)));
        words
    };
    let bare = cluster.node == Node::Bare;
    let mut words = vec![name.to_owned()];
    // In the virtual machine, systemd restarts containerd.
    if name == "containerd" && bare && !cluster.is_in_guest() {
        let service = ["sh", "-c", CONTAINERD_SERVICE, "service"].map(str::to_owned);
        words.splice(0..0, service);
    }
    let fixed: &[&str] = match name {
        "etcd" => &[
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
        ],
        "kube-apiserver" => &[
            "--etcd-servers=http://127.0.0.1:2379",
            "--service-cluster-ip-range=10.96.0.0/16",
            // With a node's credentials, a client can change only that node and its pods.
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--service-account-issuer=https://kubernetes.test",
            "--secure-port=443",
            "--advertise-address=10.88.0.1",
            "--endpoint-reconciler-type=none",
            // The cluster has no kube-proxy. So the API server calls webhooks at the addresses of
            // their pods.
            "--enable-aggregator-routing",
            "--kubelet-preferred-address-types=InternalIP",
            "--allow-privileged",
        ],
        "kube-controller-manager" => &[
            "--leader-elect=false",
            // A node that reports late because its machine is busy must not count as failed.
            "--node-monitor-grace-period=5m",
        ],
        "kube-scheduler" => &["--leader-elect=false"],
        "kubelet" => &["--node-ip=10.88.0.1"],
        _ => &[],
    };
    words.extend(fixed.iter().map(|word| word.to_string()));
    // Features that some cases need and that are off by default in this version of Kubernetes. One
    // of them is ephemeral containers, for `kubectl debug`.
    let gates = match cluster.programs.version {
        (..1, _) | (1, ..23) => Some("EphemeralContainers=true"),
        (1, 34) => Some("ContainerRestartRules=true"),
        (1, 36..) => Some("ContainerStopSignals=true"),
        _ => None,
    };
    if let Some(gates) = gates.filter(|_| name.starts_with("kube")) {
        words.push(format!("--feature-gates={gates}"));
    }
    match name {
        "etcd" => words.push(format!("--data-dir={}", cluster.path("etcd").display())),
        "containerd" => words.extend(["--config".into(), CONTAINERD_CONFIG.into()]),
        "kube-apiserver" => {
            words.push(format!("--token-auth-file={}", etc("tokens.csv")));
            words.push(format!("--cert-dir={}", etc(name)));
            for flag in ["key-file", "signing-key-file"] {
                words.push(format!("--service-account-{flag}={}", etc("accounts.key")));
            }
        }
        "kube-controller-manager" => {
            words.extend(with("kubeconfig"));
            let certificate = cluster.path("etc/kube-apiserver/apiserver.crt");
            words.push(format!("--root-ca-file={}", certificate.display()));
            let key = etc("accounts.key");
            words.push(format!("--service-account-private-key-file={key}"));
        }
        "kubelet" => {
            words.extend(with("kubelet.conf"));
            if !bare {
                words.push("--node-labels=usher/installed=true".into());
            }
            words.push(format!("--hostname-override={NODE}"));
            let plugins = cluster.path("volume-plugins");
            words.push(format!("--volume-plugin-dir={}", plugins.display()));
            words.push(format!("--config={}", cluster.path(KUBELET).display()));
            if cluster.programs.version < (1, 27) {
                words.push("--container-runtime=remote".into());
                words.push(format!("--container-runtime-endpoint={SOCKET}"));
            }
        }
        _ => words.extend(with("kubeconfig")),
    }
    words
}
