//! Termination hooks: Kubernetes' `LifecycleHandler`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::duration::MAX_SECONDS;
use super::error::Problem;
use super::handler::{Host, HttpGet, Port, RawExec, RawHttpGet, RawTcpSocket};
use super::json::{self, Object, Whole};

/// An action for a container, which is run when the container's pod terminates.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Hook {
    /// Runs a command in the container. `command` has at least a program.
    Exec { command: Vec<String> },
    /// Sends a request and ignores the answer.
    HttpGet(HttpGet),
    /// Opens a connection.
    TcpSocket { host: Option<Host>, port: Port },
    /// Waits for this time, in whole seconds.
    Sleep(Duration),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawHook {
    exec: Option<Object<RawExec>>,
    http_get: Option<Object<RawHttpGet>>,
    tcp_socket: Option<Object<RawTcpSocket>>,
    sleep: Option<Object<RawSleep>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSleep {
    seconds: Whole<0, MAX_SECONDS>,
}

/// Reads a hook from JSON.
///
/// # Errors
///
/// A field or type that Kubernetes' `LifecycleHandler` does not have, or a hook that does not have
/// exactly one action.
pub(super) fn parse(text: &str) -> Result<Hook, Problem> {
    let raw: RawHook = json::parse(text, "a Kubernetes LifecycleHandler")?;
    match (raw.exec, raw.http_get, raw.tcp_socket, raw.sleep) {
        (Some(Object(exec)), None, None, None) => Ok(Hook::Exec {
            command: exec.read()?,
        }),
        (None, Some(Object(http_get)), None, None) => Ok(Hook::HttpGet(http_get.read()?)),
        (None, None, Some(Object(tcp_socket)), None) => {
            let (host, port) = tcp_socket.read()?;
            Ok(Hook::TcpSocket { host, port })
        }
        (None, None, None, Some(Object(sleep))) => Ok(Hook::Sleep(sleep.seconds.seconds())),
        (None, None, None, None) => Err(Problem::new(
            "has nothing to do; expected exactly one of exec, httpGet, tcpSocket, sleep",
        )),
        _ => Err(Problem::new(
            "has more than one action; expected exactly one of exec, httpGet, tcpSocket, sleep",
        )),
    }
}
