//! `usher metrics`: metrics of this node's pods for Prometheus.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Display;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::num::ParseIntError;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::anyhow;
use clap::Args;
use http::{Response, StatusCode, header};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus::{GaugeVec, IntGaugeVec, Opts, Registry, TextEncoder};
use protobuf::Enum;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use super::choice::namespace;
use super::node::{Node, Seen, status_of};
use super::output::{Failure, Stdout, note};
use super::{time, words};
use usher_api as api;

/// Prints metrics of all pods of this node in Prometheus' text format
///
/// For the textfile collector of node_exporter, or with --listen for Prometheus itself. A pod's
/// metrics stay for an hour after its end. If a shim does not answer, the exit status is 1.
#[derive(Debug, Args)]
pub(super) struct Metrics {
    /// Serves /metrics until SIGTERM or SIGINT, at one address, such as 127.0.0.1:9105, or at all
    /// addresses of the node, such as :9105
    #[arg(long, value_name = "[HOST]:PORT")]
    listen: Option<Listen>,
}

/// The addresses at which the server may listen. It listens at the first one that works.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Listen(Vec<SocketAddr>);

impl FromStr for Listen {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Listen> {
        let expected = |error: &dyn Display| anyhow!("{error}; expected [HOST]:PORT");
        if let Some(port) = text.strip_prefix(':') {
            let port = port
                .parse()
                .map_err(|error: ParseIntError| expected(&error))?;
            // A socket for IPv6 accepts connections over IPv4 as well. The IPv4 address is tried on
            // nodes without IPv6.
            let v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
            let v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
            return Ok(Listen(vec![v6, v4]));
        }
        let addresses = text.to_socket_addrs().map_err(|error| expected(&error))?;
        Ok(Listen(addresses.collect()))
    }
}

/// Time limit for a request's header.
const ASKS_WITHIN: Duration = Duration::from_secs(5);

/// Time limit for a whole connection.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

impl Metrics {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        let node = Node::new()?;
        match self.listen {
            None => {
                let seen = node.living(false);
                stdout.bytes(text(&seen, &node.ended())?.as_bytes())?;
                Ok(status_of(seen.silent))
            }
            Some(Listen(addresses)) => {
                node.block_on(listen(&node, &addresses))?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Serves metrics until SIGTERM or SIGINT.
async fn listen(node: &Node, addresses: &[SocketAddr]) -> Result<(), Failure> {
    let failed = |error: std::io::Error| match addresses.last() {
        Some(address) => Failure::because(format!("cannot listen at {address}: {error}")),
        None => Failure::because("the host has no address"),
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let listener = TcpListener::bind(addresses).await.map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    note(&format!("listening at http://{local}/metrics"));
    tokio::select! {
        never = serve(node, &listener) => match never {},
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
    }
}

/// Answers one request after another, which is enough for one Prometheus.
async fn serve(node: &Node, listener: &TcpListener) -> Infallible {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let answer = service_fn(async |request: http::Request<hyper::body::Incoming>| {
            Ok::<_, Infallible>(respond(node, request.uri().path()).await)
        });
        let served = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(ASKS_WITHIN)
            .keep_alive(false)
            .serve_connection(TokioIo::new(stream), answer);
        // A connection that fails or times out is not reported.
        let _ = tokio::time::timeout(SERVED_WITHIN, served).await;
    }
}

async fn respond(node: &Node, path: &str) -> Response<String> {
    let (status, kind, body) = match path {
        "/metrics" => match text(&node.ask_for_pods(false).await, &node.ended()) {
            Ok(text) => (StatusCode::OK, prometheus::TEXT_FORMAT, text),
            Err(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "text/plain",
                String::new(),
            ),
        },
        _ => {
            let body = "usher: see /metrics\n".to_owned();
            (StatusCode::NOT_FOUND, "text/plain", body)
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// All metrics, with the values for one answer to Prometheus.
struct Figures {
    registry: Registry,
    pods: IntGaugeVec,
    silent: IntGaugeVec,
    shims: IntGaugeVec,
    ready: GaugeVec,
    stage: GaugeVec,
    step: GaugeVec,
    held: GaugeVec,
    restarts: IntGaugeVec,
    oom_kills: IntGaugeVec,
    kills: IntGaugeVec,
}

const POD: [&str; 3] = ["containerd_namespace", "namespace", "pod"];

pub(super) fn text(seen: &Seen, ended: &[api::Pod]) -> Result<String, Failure> {
    let failed = |error: prometheus::Error| Failure::because(format!("metrics: {error}"));
    let figures = Figures::new().map_err(failed)?;
    // If several pods have the same name, the map keeps the last of them. So running pods come
    // after ended ones.
    let mut pods = BTreeMap::new();
    let living = || seen.pods.iter().map(|found| &found.pod);
    for pod in ended.iter().chain(living()) {
        pods.insert((&pod.containerd_namespace, namespace(pod), &pod.name), pod);
    }
    let phases = api::Phase::VALUES.iter();
    for phase in phases.filter(|phase| **phase != api::Phase::PHASE_UNKNOWN) {
        let phase = words::word((*phase).into());
        figures.pods.with_label_values(&[phase]).set(0);
    }
    for pod in living() {
        let phase = words::word(pod.phase);
        figures.pods.with_label_values(&[phase]).inc();
        let version = words::shim_version(pod);
        figures.shims.with_label_values(&[version]).inc();
    }
    let silent = i64::try_from(seen.silent).unwrap_or(i64::MAX);
    figures.silent.with_label_values::<&str>(&[]).set(silent);
    for pod in pods.into_values() {
        figures.add(pod);
    }
    let families = figures.registry.gather();
    TextEncoder::new()
        .encode_to_string(&families)
        .map_err(failed)
}

impl Figures {
    fn new() -> prometheus::Result<Figures> {
        let registry = Registry::new();
        let with = |more: &[&'static str]| [&POD, more].concat();
        let integers = |name: &str, help: &str, labels: &[&str]| {
            let gauge = IntGaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let numbers = |name: &str, help: &str, labels: &[&str]| {
            let gauge = GaugeVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        Ok(Figures {
            pods: integers("usher_pods", "Running pods, by phase", &["phase"])?,
            silent: integers(
                "usher_silent_shims",
                "Shims that did not answer; their pods are missing here",
                &[],
            )?,
            shims: integers(
                "usher_shims",
                "Running shims, by version, which an upgrade of usher does not change",
                &["version"],
            )?,
            ready: numbers(
                "usher_pod_ready_seconds",
                "Time from a pod's first container until all has started",
                &POD,
            )?,
            stage: numbers(
                "usher_pod_stage_ready_seconds",
                "Time from a pod's first container until a stage of its start order is done",
                &with(&["stage", "containers"]),
            )?,
            step: numbers(
                "usher_pod_termination_step_seconds",
                "Time that a step of a pod's termination took",
                &with(&["step"]),
            )?,
            held: numbers(
                "usher_container_held_seconds",
                "Time from a container's creation until the execution of its program",
                &with(&["container", "role"]),
            )?,
            restarts: integers(
                "usher_container_restarts",
                "Restarts of a container, by usher or its caller",
                &with(&["container", "role"]),
            )?,
            oom_kills: integers(
                "usher_container_oom_kills",
                "Processes of a container that the kernel killed because it was out of memory",
                &with(&["container", "role"]),
            )?,
            kills: integers(
                "usher_container_kills",
                "SIGKILLs to a container, by reason (Why in control.proto), such as caller, grace-over or held",
                &with(&["container", "role", "reason"]),
            )?,
            registry,
        })
    }

    fn add(&self, pod: &api::Pod) {
        let labels = [
            pod.containerd_namespace.as_str(),
            namespace(pod),
            pod.name.as_str(),
        ];
        let with = |more: &[&str]| -> Vec<String> {
            let all = labels.iter().chain(more);
            all.map(|label| (*label).to_owned()).collect()
        };
        let created = time::seconds(&pod.created).unwrap_or_default();
        if let Some(ready) = time::seconds(&pod.became_ready) {
            self.ready.with_label_values(&labels).set(ready - created);
        }
        for (index, stage) in pod.stages.iter().enumerate() {
            if let Some(done) = time::seconds(&stage.done) {
                let labels = with(&[&index.to_string(), &stage.containers.join(",")]);
                self.stage.with_label_values(&labels).set(done - created);
            }
        }
        for step in pod
            .termination
            .iter()
            .flat_map(|termination| &termination.over)
        {
            let took = time::duration(&step.took).unwrap_or_default();
            let labels = with(&[&words::word(step.name)]);
            self.step.with_label_values(&labels).set(took);
        }
        let workload = |container: &&api::Container| {
            container.role.enum_value() != Ok(api::Role::ROLE_SANDBOX)
        };
        for container in pod.containers.iter().filter(workload) {
            let role = words::word(container.role);
            let labels = with(&[&container.name, &role]);
            if let Some(held) = time::duration(&container.held) {
                self.held.with_label_values(&labels).set(held);
            }
            let restarts = i64::from(container.restarts);
            self.restarts.with_label_values(&labels).set(restarts);
            let kills = i64::from(container.oom_kills);
            self.oom_kills.with_label_values(&labels).set(kills);
            for kills in &container.kills {
                let labels = with(&[&container.name, &role, &words::word(kills.why)]);
                // Several reasons for kills can be unknown to this version. They share one label,
                // so the numbers of their kills are added up.
                let count = i64::from(kills.count);
                self.kills.with_label_values(&labels).add(count);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::node::Found;
    use super::*;

    #[test]
    fn a_port_without_a_host_means_all_addresses() {
        let all: Listen = ":9105".parse().unwrap();
        assert_eq!(all.0.len(), 2);
        assert!(
            all.0
                .iter()
                .all(|it| it.ip().is_unspecified() && it.port() == 9105)
        );
        let one: Listen = "127.0.0.1:0".parse().unwrap();
        assert_eq!(one.0, ["127.0.0.1:0".parse().unwrap()]);
        for wrong in ["9105", ":", ":70000", "127.0.0.1"] {
            let error = wrong.parse::<Listen>().unwrap_err().to_string();
            assert!(error.ends_with("expected [HOST]:PORT"), "{error}");
        }
    }

    #[test]
    fn metrics_cover_running_and_ended_pods() {
        let kills = api::Kills {
            why: api::Why::WHY_CALLER.into(),
            count: 2,
            ..api::Kills::new()
        };
        let container = api::Container {
            name: "web".to_owned(),
            role: api::Role::ROLE_APP.into(),
            held: Some(time::message(Duration::from_millis(1500))).into(),
            kills: vec![kills],
            restarts: 3,
            ..api::Container::new()
        };
        let pod = api::Pod {
            containerd_namespace: "k8s.io".to_owned(),
            namespace: "shop".to_owned(),
            name: "a\"b".to_owned(),
            phase: api::Phase::PHASE_RUNNING.into(),
            shim_version: "0.0.9".to_owned(),
            containers: vec![container],
            ..api::Pod::new()
        };
        let old = api::Pod {
            name: "old".to_owned(),
            phase: api::Phase::PHASE_TERMINATED.into(),
            containers: pod.containers.clone(),
            ..pod.clone()
        };
        let seen = Seen {
            pods: vec![Found { socket: None, pod }],
            silent: 2,
        };
        let text = text(&seen, &[old]).unwrap();
        let labels = r#"container="web",containerd_namespace="k8s.io",namespace="shop""#;
        for line in [
            r#"usher_pods{phase="Running"} 1"#.to_owned(),
            r#"usher_pods{phase="Terminated"} 0"#.to_owned(),
            "usher_silent_shims 2".to_owned(),
            r#"usher_shims{version="0.0.9"} 1"#.to_owned(),
            format!(r#"usher_container_held_seconds{{{labels},pod="a\"b",role="app"}} 1.5"#),
            format!(r#"usher_container_restarts{{{labels},pod="old",role="app"}} 3"#),
            format!(r#"usher_container_kills{{{labels},pod="old",reason="caller",role="app"}} 2"#),
        ] {
            assert!(text.lines().any(|other| other == line), "{line}\n{text}");
        }
    }
}
