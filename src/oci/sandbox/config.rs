//! Reads and checks kubelet's configuration of a sandbox (CRI's `PodSandboxConfig`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use containerd_shim_protos::protobuf::Enum;
use serde::{Deserialize, Serialize};

use usher_api::cri::{LinuxContainerResources, NamespaceMode, NamespaceOption, PodSandboxConfig};
use usher_core::plan::{SandboxFacts, sandbox_annotations};
use usher_engine::{EngineError, SandboxOrder};

use super::files::{self, Files};

/// Longest host name, in bytes (`sethostname(2)`).
const HOSTNAME_AT_MOST: usize = 64;

/// Sysctls that containerd sets by default in each pod that has its own network
/// (`enable_unprivileged_ports`, `enable_unprivileged_icmp`). With them, low ports and pings do not
/// need root.
const LOW_PORTS: (&str, &str) = ("net.ipv4.ip_unprivileged_port_start", "0");
const PING: (&str, &str) = ("net.ipv4.ping_group_range", "0 2147483647");

/// Sysctls that belong to an IPC namespace, in addition to those that begin with [`MESSAGE_QUEUES`]
/// (`ipc_namespaces(7)`).
const OF_IPC: [&str; 8] = [
    "kernel.msgmax",
    "kernel.msgmnb",
    "kernel.msgmni",
    "kernel.sem",
    "kernel.shmall",
    "kernel.shmmax",
    "kernel.shmmni",
    "kernel.shm_rmid_forced",
];
const MESSAGE_QUEUES: &str = "fs.mqueue.";
const OF_NETWORK: &str = "net.";

/// The namespaces that the maker process makes for a pod, with their settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Namespaces {
    /// The network namespace made for the pod; `None` if the pod uses the node's network.
    pub network: Option<PathBuf>,
    /// True if the pod uses the user namespace that owns its network namespace.
    pub is_in_user_namespace: bool,
    pub ipc: bool,
    pub uts: bool,
    /// True if all containers of the pod share a new PID namespace.
    pub pid: bool,
    pub hostname: Option<String>,
    /// Directory in which to mount the namespaces, so that no process has to hold them; `None` if a
    /// process holds them. The mounts have the names of the files in `/proc/<pid>/ns`.
    pub pins: Option<PathBuf>,
    pub sysctls: BTreeMap<String, String>,
}

/// The sandbox that kubelet asks for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub namespaces: Namespaces,
    pub files: Files,
    pub annotations: BTreeMap<String, String>,
    /// Empty if there is no parent cgroup.
    pub cgroup_parent: String,
}

impl Wanted {
    /// Reads the request for sandbox `id`.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if the sandbox is not supported, or would affect the node.
    pub fn read(id: &str, bundle: &Path, order: &SandboxOrder) -> Result<Wanted, EngineError> {
        let config = &order.config;
        let linux = &config.linux;
        let options = &linux.security_context.namespace_options;
        let is_host = |mode| mode_is(mode, NamespaceMode::NODE);
        let (on_host_network, on_host_ipc) = (
            is_host(options.network.value()),
            is_host(options.ipc.value()),
        );
        let network = match (&order.netns, on_host_network) {
            (Some(_), true) => {
                return Err(invalid(
                    "a network namespace was given; expected none with the node's network",
                ));
            }
            (None, false) => {
                return Err(invalid(
                    "no network namespace was given; expected the pod's",
                ));
            }
            (netns, _) => netns.clone(),
        };
        let is_in_user_namespace = is_in_user_namespace(options, network.is_some())?;
        let is_shared = mode_is(options.pid.value(), NamespaceMode::POD);
        // A PID namespace ends with its first process, so a mount could not keep it. In a user
        // namespace the maker has no right to mount anything in the node's mount namespace.
        let by_paths = order.takes_paths && !is_shared && !is_in_user_namespace;
        let namespaces = Namespaces {
            pins: by_paths.then(|| files::pins(bundle)),
            ipc: !on_host_ipc,
            uts: !on_host_network,
            pid: is_shared,
            hostname: hostname(config, on_host_network)?,
            sysctls: sysctls(config, &network, on_host_ipc, is_in_user_namespace)?,
            network,
            is_in_user_namespace,
        };
        Ok(Wanted {
            files: Files::of(config, !on_host_ipc),
            annotations: annotations(id, config),
            cgroup_parent: linux.cgroup_parent.clone(),
            namespaces,
        })
    }
}

fn invalid(words: impl Into<String>) -> EngineError {
    EngineError::Invalid(words.into())
}

fn mode_is(mode: i32, wanted: NamespaceMode) -> bool {
    mode == wanted.value()
}

fn is_in_user_namespace(options: &NamespaceOption, has_network: bool) -> Result<bool, EngineError> {
    let mode = options.userns_options.as_ref().map(|users| users.mode);
    let wants = match mode.map(|mode| mode.enum_value()) {
        None | Some(Ok(NamespaceMode::NODE)) => false,
        Some(Ok(NamespaceMode::POD)) => true,
        Some(Ok(other)) => return Err(unknown_users(&format!("{other:?}"))),
        Some(Err(number)) => return Err(unknown_users(&number.to_string())),
    };
    match (wants, has_network) {
        (true, false) => Err(invalid(
            "a user namespace was requested with the node's network; expected the pod's own network, \
             because this sandbox is made without a pause container",
        )),
        (wants, _) => Ok(wants),
    }
}

fn unknown_users(mode: &str) -> EngineError {
    invalid(format!(
        "user namespace mode {mode} is not supported for a pod; expected POD or NODE"
    ))
}

fn hostname(
    config: &PodSandboxConfig,
    on_host_network: bool,
) -> Result<Option<String>, EngineError> {
    let name = config.hostname.as_str();
    if name.len() > HOSTNAME_AT_MOST || name.contains(['\0', '\n']) {
        let shown: String = name.chars().take(HOSTNAME_AT_MOST).collect();
        return Err(invalid(format!(
            "host name {shown:?} is invalid; expected one line of at most {HOSTNAME_AT_MOST} bytes"
        )));
    }
    match (name.is_empty(), on_host_network) {
        (false, true) => Err(invalid(format!(
            "host name {name:?} was requested with the node's network; expected none, because such a \
             pod has the node's"
        ))),
        (is_empty, _) => Ok((!is_empty).then(|| name.to_owned())),
    }
}

/// Checks the pod's sysctls. A sysctl that belongs to none of the pod's own namespaces would change
/// the node.
fn sysctls(
    config: &PodSandboxConfig,
    network: &Option<PathBuf>,
    on_host_ipc: bool,
    is_in_user_namespace: bool,
) -> Result<BTreeMap<String, String>, EngineError> {
    let mut sysctls = BTreeMap::new();
    for (name, value) in &config.linux.sysctls {
        let dotted = dotted(name);
        let is_of_ipc = OF_IPC.contains(&dotted.as_str()) || dotted.starts_with(MESSAGE_QUEUES);
        let missing = match () {
            () if !is_name(&dotted) => Some("a valid name"),
            () if is_of_ipc => on_host_ipc.then_some("an IPC namespace of the pod's own"),
            () if dotted.starts_with(OF_NETWORK) => {
                network.is_none().then_some("a network of the pod's own")
            }
            () => Some("one of a network or an IPC namespace"),
        };
        if let Some(missing) = missing {
            return Err(invalid(format!(
                "sysctl {name:?} cannot be set for a pod; expected {missing}"
            )));
        }
        sysctls.insert(dotted, value.clone());
    }
    if network.is_some() {
        // In a user namespace the group range for pings cannot be set, because the node's groups
        // are not mapped.
        let usual = [Some(LOW_PORTS), (!is_in_user_namespace).then_some(PING)];
        for (name, value) in usual.into_iter().flatten() {
            sysctls.entry(name.to_owned()).or_insert(value.to_owned());
        }
    }
    Ok(sysctls)
}

/// Normalizes a sysctl's name, so that dots separate its words. A dot inside a word, such as the
/// name of an interface, becomes a slash. If the input has dots and slashes, the separator is the
/// one that comes first (`sysctl(8)`).
fn dotted(name: &str) -> String {
    let is_slashed = name
        .find(['.', '/'])
        .and_then(|at| name.get(at..))
        .is_some_and(|rest| rest.starts_with('/'));
    match is_slashed {
        false => name.to_owned(),
        true => swapped(name),
    }
}

/// True if the name is a valid path below `/proc/sys`, without `..` or empty words.
fn is_name(dotted: &str) -> bool {
    let path = swapped(dotted);
    path.split('/').all(|word| !matches!(word, "" | "." | ".."))
}

/// True for a sysctl that is set by default in a pod with its own network.
pub(super) fn is_usual(name: &str) -> bool {
    [LOW_PORTS.0, PING.0].contains(&name)
}

/// Swaps dots and slashes.
pub(super) fn swapped(name: &str) -> String {
    let swap = |letter| match letter {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    name.chars().map(swap).collect()
}

/// The pod's annotations, and the annotations that containerd sets on a pause container.
/// containerd's annotations override the author's.
fn annotations(id: &str, config: &PodSandboxConfig) -> BTreeMap<String, String> {
    let metadata = &config.metadata;
    let amount = |amount: fn(&LinuxContainerResources) -> i64| {
        let resources = config.linux.resources.as_ref();
        resources.and_then(|resources| u64::try_from(amount(resources)).ok())
    };
    let facts = SandboxFacts {
        id,
        name: &metadata.name,
        namespace: &metadata.namespace,
        uid: &metadata.uid,
        memory: amount(|resources| resources.memory_limit_in_bytes),
        quota: amount(|resources| resources.cpu_quota),
        period: amount(|resources| resources.cpu_period),
        shares: amount(|resources| resources.cpu_shares),
    };
    let given = config.annotations.iter();
    let given = given.map(|(key, value)| (key.clone(), value.clone()));
    sandbox_annotations(&facts, given.collect())
}

#[cfg(test)]
mod tests {
    use containerd_shim_protos::protobuf::{EnumOrUnknown, MessageField};

    use super::*;
    use usher_api::cri::{LinuxPodSandboxConfig, LinuxSandboxSecurityContext, UserNamespace};

    fn pod(network: NamespaceMode, ipc: NamespaceMode, pid: NamespaceMode) -> SandboxOrder {
        let options = NamespaceOption {
            network: network.into(),
            ipc: ipc.into(),
            pid: pid.into(),
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
        let is_on_host = network == NamespaceMode::NODE;
        let config = PodSandboxConfig {
            hostname: if is_on_host { "" } else { "web-0" }.to_owned(),
            linux: MessageField::some(linux),
            ..PodSandboxConfig::new()
        };
        SandboxOrder {
            config,
            netns: (!is_on_host).then(|| PathBuf::from("/run/netns/a")),
            takes_paths: false,
        }
    }

    fn usual() -> SandboxOrder {
        pod(
            NamespaceMode::POD,
            NamespaceMode::POD,
            NamespaceMode::CONTAINER,
        )
    }

    fn wanted(order: &SandboxOrder) -> Result<Wanted, EngineError> {
        Wanted::read("s", Path::new("/run/b/s"), order)
    }

    fn refused(order: &SandboxOrder) -> String {
        wanted(order).unwrap_err().to_string()
    }

    fn with_sysctl(mut order: SandboxOrder, name: &str) -> SandboxOrder {
        let sysctls = &mut order.config.linux.as_mut().unwrap().sysctls;
        sysctls.insert(name.to_owned(), "1".to_owned());
        order
    }

    #[test]
    fn a_pod_has_its_own_network_ipc_and_host_name() {
        let namespaces = wanted(&usual()).unwrap().namespaces;
        assert!(namespaces.ipc && namespaces.uts && !namespaces.pid);
        assert_eq!(namespaces.hostname.as_deref(), Some("web-0"));
        assert_eq!(
            namespaces.sysctls["net.ipv4.ip_unprivileged_port_start"],
            "0"
        );
        let shared = pod(NamespaceMode::POD, NamespaceMode::POD, NamespaceMode::POD);
        assert!(wanted(&shared).unwrap().namespaces.pid);
    }

    #[test]
    fn the_nodes_namespaces_are_not_made_anew() {
        let host = pod(
            NamespaceMode::NODE,
            NamespaceMode::NODE,
            NamespaceMode::NODE,
        );
        let host = wanted(&host).unwrap();
        assert_eq!(host.namespaces, Namespaces::default());
    }

    #[test]
    fn a_network_namespace_is_required_exactly_for_a_pod_with_its_own_network() {
        let mut order = usual();
        order.netns = None;
        assert!(refused(&order).starts_with("no network namespace was given"));
        let mut order = pod(NamespaceMode::NODE, NamespaceMode::POD, NamespaceMode::POD);
        order.netns = Some(PathBuf::from("/run/netns/a"));
        assert!(refused(&order).starts_with("a network namespace was given"));
    }

    #[test]
    fn a_sysctl_that_would_change_the_node_is_refused() {
        let ours = |name: &str| wanted(&with_sysctl(usual(), name)).unwrap();
        let sysctls = ours("net/ipv4/conf/eth0.100/forwarding").namespaces.sysctls;
        assert_eq!(sysctls["net.ipv4.conf.eth0/100.forwarding"], "1");
        assert!(
            ours("fs.mqueue.msg_max")
                .namespaces
                .sysctls
                .contains_key("fs.mqueue.msg_max")
        );
        for name in [
            "kernel.panic",
            "vm.swappiness",
            "kernel.hostname",
            "net",
            "",
            "net..x",
            "net/../kernel/panic",
        ] {
            let said = refused(&with_sysctl(usual(), name));
            assert!(
                said.starts_with(&format!("sysctl {name:?} cannot be set for a pod")),
                "{said}"
            );
        }
        let host = pod(
            NamespaceMode::NODE,
            NamespaceMode::NODE,
            NamespaceMode::NODE,
        );
        for name in ["net.ipv4.ip_forward", "kernel.shmmax"] {
            assert!(refused(&with_sysctl(host.clone(), name)).contains("of the pod's own"));
        }
    }

    /// A copy of `order` with a user namespace of this mode.
    fn with_mode(mut order: SandboxOrder, mode: EnumOrUnknown<NamespaceMode>) -> SandboxOrder {
        let linux = order.config.linux.as_mut().unwrap();
        let context = linux.security_context.as_mut().unwrap();
        let options = context.namespace_options.as_mut().unwrap();
        let mut users = UserNamespace::new();
        users.mode = mode;
        options.userns_options = MessageField::some(users);
        order
    }

    #[test]
    fn a_user_namespace_of_an_unknown_mode_is_refused() {
        for (mode, name) in [
            (NamespaceMode::CONTAINER.into(), "CONTAINER"),
            (NamespaceMode::TARGET.into(), "TARGET"),
            (EnumOrUnknown::from_i32(7), "7"),
        ] {
            let said = refused(&with_mode(usual(), mode));
            assert!(
                said.starts_with(&format!("user namespace mode {name} ")),
                "{said}"
            );
        }
        let node = with_mode(usual(), NamespaceMode::NODE.into());
        assert!(!wanted(&node).unwrap().namespaces.is_in_user_namespace);
    }

    #[test]
    fn a_host_name_with_the_nodes_network_is_refused() {
        let mut order = pod(NamespaceMode::NODE, NamespaceMode::POD, NamespaceMode::POD);
        order.config.hostname = "web-0".to_owned();
        assert!(
            refused(&order)
                .starts_with("host name \"web-0\" was requested with the node's network")
        );
    }

    #[test]
    fn the_user_namespace_is_the_one_that_owns_the_pods_network() {
        let with_users = |order| with_mode(order, NamespaceMode::POD.into());
        let namespaces = wanted(&with_users(usual())).unwrap().namespaces;
        assert!(namespaces.is_in_user_namespace);
        assert!(!namespaces.sysctls.contains_key(PING.0));
        let host = pod(NamespaceMode::NODE, NamespaceMode::POD, NamespaceMode::POD);
        assert!(refused(&with_users(host)).contains("expected the pod's own network"));
    }

    #[test]
    fn namespaces_are_mounted_if_the_caller_takes_paths() {
        let pins = |mut order: SandboxOrder| {
            order.takes_paths = true;
            wanted(&order).unwrap().namespaces.pins
        };
        assert!(pins(usual()).is_some_and(|pins| pins.starts_with("/run/b/s")));
        assert_eq!(wanted(&usual()).unwrap().namespaces.pins, None);
        let shared = pod(NamespaceMode::POD, NamespaceMode::POD, NamespaceMode::POD);
        assert_eq!(pins(shared), None);
    }

    #[test]
    fn a_host_name_is_one_line_of_limited_length() {
        for name in ["a\nb".to_owned(), "a".repeat(65)] {
            let mut order = usual();
            order.config.hostname = name;
            assert!(refused(&order).starts_with("host name "));
        }
    }

    #[test]
    fn an_author_cannot_override_the_pods_identity() {
        let mut order = usual();
        let given = [
            ("io.kubernetes.cri.container-type", "container"),
            ("io.containerd.runc.v2.group", "other"),
            ("usher/sidecars", "proxy"),
        ];
        for (key, value) in given {
            order
                .config
                .annotations
                .insert(key.to_owned(), value.to_owned());
        }
        let annotations = wanted(&order).unwrap().annotations;
        assert_eq!(annotations["io.kubernetes.cri.container-type"], "sandbox");
        assert_eq!(annotations["io.kubernetes.cri.sandbox-id"], "s");
        assert_eq!(annotations["usher/sidecars"], "proxy");
        assert!(!annotations.contains_key("io.containerd.runc.v2.group"));
    }
}
