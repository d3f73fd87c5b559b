//! Facts from kubelet's own annotations, if containerd passes them on.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::duration::MAX_SECONDS;
use super::hook::{self, Hook};
use super::json::Object;

const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
const PRE_STOP: &str = "io.kubernetes.container.preStopHandler";
const RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
const PORTS: &str = "io.kubernetes.container.ports";
const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
pub(super) const ALLOTTED_MEMORY: &str = "io.kubernetes.cri.sandbox-memory";
pub(super) const ALLOTTED_QUOTA: &str = "io.kubernetes.cri.sandbox-cpu-quota";
pub(super) const ALLOTTED_PERIOD: &str = "io.kubernetes.cri.sandbox-cpu-period";
pub(super) const ALLOTTED_SHARES: &str = "io.kubernetes.cri.sandbox-cpu-shares";

/// Facts about one container and its pod (kubelet's `kuberuntime/labels.go`). kubelet writes them,
/// not the pod's author. So a malformed fact counts as absent, and is never an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KubeletFacts {
    /// The pod's `terminationGracePeriodSeconds`, at most 292 years.
    pub grace_period: Option<Duration>,
    /// The container's preStop handler, which kubelet runs before it sends the stop request.
    pub pre_stop: Option<PreStop>,
    /// The preStop handler in a form that the shim can run; `None` if there is no such form.
    pub pre_stop_hook: Option<Hook>,
    /// Restarts of the container so far; 0 if unknown.
    pub restart_count: u32,
    /// The container's named ports, 1 to 65535.
    pub ports: BTreeMap<String, u16>,
    /// For a sandbox: the resources of all its containers together.
    pub allotment: Allotment,
}

/// The resources of all containers of a pod together, computed by kubelet (1.23 and later). The
/// pod's cgroup is larger by a RuntimeClass's `overhead.podFixed`. A field is `None` if the amount
/// is unbounded or unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Allotment {
    /// Memory limit in bytes.
    pub memory: Option<u64>,
    /// CPU time in microseconds for each period, and the length of the period in microseconds.
    pub quota: Option<(u64, u64)>,
    /// CPU shares of cgroup v1.
    pub shares: Option<u64>,
}

/// The parts of a container's preStop handler that matter to the shim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum PreStop {
    /// Kubelet executes this command in the container, so the shim gets an `Exec` with this argv.
    Exec { command: Vec<String> },
    /// Kubelet sends an HTTP request. The shim does not see the request.
    HttpGet,
    /// Kubelet opens a TCP connection. The shim does not see the connection.
    TcpSocket,
    /// Kubelet waits for this duration, at most 292 years, and then sends the stop request.
    Sleep(Duration),
    /// A handler of a Kubernetes version newer than this shim.
    Other,
}

impl KubeletFacts {
    pub fn read(annotations: &BTreeMap<String, String>) -> KubeletFacts {
        let get = |key| annotations.get(key).map(String::as_str);
        KubeletFacts {
            grace_period: get(GRACE_PERIOD)
                .and_then(|text| text.parse().ok())
                .map(seconds),
            pre_stop: get(PRE_STOP).and_then(parse_pre_stop),
            pre_stop_hook: get(PRE_STOP).and_then(|text| hook::parse(text).ok()),
            restart_count: get(RESTART_COUNT)
                .and_then(|text| text.parse().ok())
                .unwrap_or(0),
            ports: get(PORTS).and_then(parse_ports).unwrap_or_default(),
            allotment: Allotment::read(annotations),
        }
    }
}

/// The path of the container's termination message inside of the container
/// (`terminationMessagePath`).
pub fn termination_message_path(annotations: &BTreeMap<String, String>) -> Option<&str> {
    let path = annotations.get(TERMINATION_MESSAGE_PATH)?;
    Some(path.as_str()).filter(|path| !path.is_empty())
}

impl Allotment {
    fn read(annotations: &BTreeMap<String, String>) -> Allotment {
        let amount = |key| {
            let amount: u64 = annotations.get(key)?.parse().ok()?;
            Some(amount).filter(|amount| *amount > 0)
        };
        Allotment {
            memory: amount(ALLOTTED_MEMORY),
            quota: amount(ALLOTTED_QUOTA).zip(amount(ALLOTTED_PERIOD)),
            shares: amount(ALLOTTED_SHARES),
        }
    }
}

/// A duration in seconds, at most [`MAX_SECONDS`], so that it can be added to the time of any
/// clock.
fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds.min(MAX_SECONDS))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPreStop {
    exec: Option<RawExec>,
    http_get: Option<IgnoredAny>,
    tcp_socket: Option<IgnoredAny>,
    sleep: Option<RawSleep>,
}

#[derive(Deserialize)]
struct RawExec {
    command: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct RawSleep {
    seconds: u64,
}

fn parse_pre_stop(text: &str) -> Option<PreStop> {
    let Object(raw): Object<RawPreStop> = serde_json::from_str(text).ok()?;
    Some(match raw {
        RawPreStop {
            exec: Some(exec), ..
        } => PreStop::Exec {
            command: exec.command.unwrap_or_default(),
        },
        RawPreStop {
            http_get: Some(_), ..
        } => PreStop::HttpGet,
        RawPreStop {
            tcp_socket: Some(_),
            ..
        } => PreStop::TcpSocket,
        RawPreStop {
            sleep: Some(sleep), ..
        } => PreStop::Sleep(seconds(sleep.seconds)),
        _ => PreStop::Other,
    })
}

fn parse_ports(text: &str) -> Option<BTreeMap<String, u16>> {
    serde_json::from_str(text)
        .map(|NamedPorts(ports)| ports)
        .ok()
}

/// Ports by name. They are read one by one, so that the whole list is never in memory.
struct NamedPorts(BTreeMap<String, u16>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPort {
    name: Option<String>,
    container_port: u16,
}

impl<'de> Deserialize<'de> for NamedPorts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(NamedPortsVisitor)
    }
}

struct NamedPortsVisitor;

impl<'de> Visitor<'de> for NamedPortsVisitor {
    type Value = NamedPorts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of ports")
    }

    /// Keeps the first of two ports with the same name, as kubelet does.
    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<NamedPorts, A::Error> {
        let mut ports = BTreeMap::new();
        while let Some(Object(RawPort {
            name,
            container_port,
        })) = list.next_element()?
        {
            if let Some(name) = name.filter(|name| !name.is_empty() && container_port != 0) {
                ports.entry(name).or_insert(container_port);
            }
        }
        Ok(NamedPorts(ports))
    }
}
