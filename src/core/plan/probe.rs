//! Kubernetes' `Probe`, with the additional field `periodMilliseconds`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::Problem;
use super::handler::{Host, HttpGet, Port, RawExec, RawHttpGet, RawTcpSocket};
use super::json::{self, Object, Whole};
use super::rules::Unsaid;

/// A check, its schedule, and the number of results after which the probe has succeeded or failed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Probe {
    pub check: Check,
    /// Time from the container's start to the first check.
    pub initial_delay: Duration,
    /// Time from one check to the next; never zero.
    pub period: Duration,
    /// Longest time of a check; never zero.
    pub timeout: Duration,
    /// Successful checks in a row after which the probe has succeeded; Kubernetes allows only 1 for
    /// startup and liveness probes.
    pub success_threshold: u32,
    /// Failed checks in a row after which the probe has failed, at least 1.
    pub failure_threshold: u32,
}

impl Probe {
    /// The longest time from one check to the next. A check that takes longer than the period
    /// delays the next check.
    pub fn longest_period(&self) -> Duration {
        self.period.max(self.timeout)
    }
}

/// The action of a probe, and the condition under which the action succeeds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Check {
    /// A command in the container exits with 0. `command` has at least a program.
    Exec { command: Vec<String> },
    /// The port accepts a connection.
    TcpSocket { host: Option<Host>, port: Port },
    /// The answer's status is 200 to 399.
    HttpGet(HttpGet),
    /// The answer of the gRPC health checking protocol is SERVING; `service` may be empty.
    Grpc { port: u16, service: String },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawProbe {
    exec: Option<Object<RawExec>>,
    http_get: Option<Object<RawHttpGet>>,
    tcp_socket: Option<Object<RawTcpSocket>>,
    grpc: Option<Object<RawGrpc>>,
    initial_delay_seconds: Option<Whole<0>>,
    period_seconds: Option<Whole<1>>,
    period_milliseconds: Option<Whole<1>>,
    timeout_seconds: Option<Whole<1>>,
    success_threshold: Option<Whole<1, 1>>,
    failure_threshold: Option<Whole<1>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawGrpc {
    port: Whole<1, 65535>,
    service: Option<String>,
}

/// Reads a startup or liveness probe from JSON. `unsaid` has values for some of the fields that the
/// JSON leaves out. The others are 0 s for `initialDelaySeconds` and 1 for `successThreshold`.
///
/// # Errors
///
/// Text that is no JSON object, a field or type that Kubernetes' `Probe` does not have, no check or
/// more than one, or an invalid check. Also both `periodSeconds` and `periodMilliseconds`, or a
/// number that Kubernetes does not allow, such as a `successThreshold` other than 1.
pub(super) fn parse(text: &str, unsaid: &Unsaid) -> Result<Probe, Problem> {
    let raw: RawProbe = json::parse(text, "a Kubernetes Probe")?;
    let period = match (raw.period_seconds, raw.period_milliseconds) {
        (Some(_), Some(_)) => {
            return Err(Problem::new(
                "has both periodSeconds and periodMilliseconds; expected one of them",
            ));
        }
        (None, Some(milliseconds)) => Duration::from_millis(milliseconds.get()),
        (Some(seconds), None) => seconds.seconds(),
        (None, None) => unsaid.probe_period,
    };
    Ok(Probe {
        check: check(raw.exec, raw.http_get, raw.tcp_socket, raw.grpc)?,
        initial_delay: raw
            .initial_delay_seconds
            .map_or(Duration::ZERO, Whole::seconds),
        period,
        timeout: raw
            .timeout_seconds
            .map_or(unsaid.probe_timeout, Whole::seconds),
        success_threshold: raw.success_threshold.map_or(1, Whole::count),
        failure_threshold: raw
            .failure_threshold
            .map_or(unsaid.probe_failure_threshold, Whole::count),
    })
}

fn check(
    exec: Option<Object<RawExec>>,
    http_get: Option<Object<RawHttpGet>>,
    tcp_socket: Option<Object<RawTcpSocket>>,
    grpc: Option<Object<RawGrpc>>,
) -> Result<Check, Problem> {
    match (exec, http_get, tcp_socket, grpc) {
        (Some(Object(exec)), None, None, None) => Ok(Check::Exec {
            command: exec.read()?,
        }),
        (None, Some(Object(http_get)), None, None) => Ok(Check::HttpGet(http_get.read()?)),
        (None, None, Some(Object(tcp_socket)), None) => {
            let (host, port) = tcp_socket.read()?;
            Ok(Check::TcpSocket { host, port })
        }
        (None, None, None, Some(Object(grpc))) => {
            let port = u16::try_from(grpc.port.get()).unwrap_or(u16::MAX);
            Ok(Check::Grpc {
                port,
                service: grpc.service.unwrap_or_default(),
            })
        }
        (None, None, None, None) => Err(Problem::new(
            "has nothing to check; expected exactly one of exec, httpGet, tcpSocket, grpc",
        )),
        _ => Err(Problem::new(
            "has more than one check; expected exactly one of exec, httpGet, tcpSocket, grpc",
        )),
    }
}
