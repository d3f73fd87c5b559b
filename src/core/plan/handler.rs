//! Actions shared by probes and hooks: Kubernetes' `ExecAction`, `HTTPGetAction` and
//! `TCPSocketAction`.

use std::fmt;
use std::net::IpAddr;
use std::num::NonZeroU16;

use serde::de::{Deserializer, Error, Unexpected, Visitor};
use serde::{Deserialize, Serialize};

use super::error::{Problem, quote};
use super::json::Object;
use super::word::{Word, words};

/// The host that a probe or hook connects to. Host names are not allowed, because the shim would
/// resolve them outside of the container's network namespace, or with the host's resolver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Hash)]
pub enum Host {
    Localhost,
    Ip(IpAddr),
}

/// A port by number or by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Hash)]
#[serde(untagged)]
pub enum Port {
    Number(NonZeroU16),
    /// The name of one of the container's ports, an `IANA_SVC_NAME` (RFC 6335).
    Name(String),
}

words! {
    /// The scheme of an HTTP request.
    #[derive(Default)]
    pub enum Scheme {
        #[default]
        Http = "HTTP",
        /// Certificates are not verified, as in kubelet.
        Https = "HTTPS",
    }
}

/// A GET request: Kubernetes' `HTTPGetAction`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Hash)]
pub struct HttpGet {
    pub scheme: Scheme,
    /// `None` means loopback or, if a connection to loopback fails, the global address of the
    /// container's network namespace.
    pub host: Option<Host>,
    pub port: Port,
    /// The path and the query. Begins with a slash, and has no control characters.
    pub path: String,
    /// The names consist of letters, digits and `-`. The values have no control characters.
    pub headers: Vec<(String, String)>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawExec {
    command: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct RawHttpGet {
    scheme: Option<String>,
    host: Option<String>,
    port: Port,
    path: Option<String>,
    http_headers: Option<Vec<Object<RawHeader>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawHeader {
    name: String,
    #[serde(default)]
    value: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTcpSocket {
    host: Option<String>,
    port: Port,
}

impl RawExec {
    /// Reads a command that can be executed: it has a program, and no NUL.
    pub(super) fn read(self) -> Result<Vec<String>, Problem> {
        let command = self.command.unwrap_or_default();
        if command.is_empty() {
            return Err(Problem::new(
                "has an exec without command; expected at least a program",
            ));
        }
        if command.iter().any(|argument| argument.contains('\0')) {
            return Err(Problem::new(
                "has a NUL in its command; expected text without",
            ));
        }
        Ok(command)
    }
}

impl RawTcpSocket {
    pub(super) fn read(self) -> Result<(Option<Host>, Port), Problem> {
        Ok((read_host(self.host)?, self.port))
    }
}

impl RawHttpGet {
    pub(super) fn read(self) -> Result<HttpGet, Problem> {
        let headers = self.http_headers.unwrap_or_default().into_iter();
        Ok(HttpGet {
            scheme: read_scheme(self.scheme)?,
            host: read_host(self.host)?,
            port: self.port,
            path: read_path(self.path)?,
            headers: headers
                .map(|Object(header)| header.read())
                .collect::<Result<_, _>>()?,
        })
    }
}

impl RawHeader {
    fn read(self) -> Result<(String, String), Problem> {
        let RawHeader { name, value } = self;
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            return Err(Problem::new(format!(
                "has a header named {}; expected letters, digits and '-'",
                quote(&name)
            )));
        }
        if value.chars().any(|c| c.is_ascii_control() && c != '\t') {
            return Err(Problem::new(format!(
                "has the value {} in its header {}; expected one without control characters",
                quote(&value),
                quote(&name)
            )));
        }
        Ok((name, value))
    }
}

fn read_scheme(scheme: Option<String>) -> Result<Scheme, Problem> {
    let Some(scheme) = scheme.filter(|scheme| !scheme.is_empty()) else {
        return Ok(Scheme::default());
    };
    Scheme::from_word(&scheme).ok_or_else(|| {
        let allowed = Scheme::WORDS.join(" or ");
        Problem::new(format!(
            "has the scheme {}; expected {allowed}",
            quote(&scheme)
        ))
    })
}

/// Reads an empty host as a missing host, as Kubernetes does.
fn read_host(host: Option<String>) -> Result<Option<Host>, Problem> {
    let Some(host) = host.filter(|host| !host.is_empty()) else {
        return Ok(None);
    };
    if host == "localhost" {
        return Ok(Some(Host::Localhost));
    }
    host.parse().map(|ip| Some(Host::Ip(ip))).map_err(|_| {
        Problem::new(format!(
            "has the host {}; expected an IP literal or localhost",
            quote(&host)
        ))
    })
}

/// Adds a missing leading slash, as kubelet does.
fn read_path(path: Option<String>) -> Result<String, Problem> {
    let path = path.unwrap_or_default();
    if path.chars().any(|c| c.is_ascii_control()) {
        return Err(Problem::new(format!(
            "has the path {}; expected one without control characters",
            quote(&path)
        )));
    }
    Ok(if path.starts_with('/') {
        path
    } else {
        format!("/{path}")
    })
}

impl<'de> Deserialize<'de> for Port {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PortVisitor)
    }
}

struct PortVisitor;

impl Visitor<'_> for PortVisitor {
    type Value = Port;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a port number from 1 to 65535, or a port name of 1 to 15 of a-z, 0-9 and '-'"
        )
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Port, E> {
        u16::try_from(number)
            .ok()
            .and_then(NonZeroU16::new)
            .map(Port::Number)
            .ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Port, E> {
        if is_port_name(name) {
            return Ok(Port::Name(name.to_owned()));
        }
        Err(E::invalid_value(Unexpected::Str(name), &self))
    }
}

/// True if Kubernetes' `IsValidPortName` accepts the name. A number in a string is no name.
fn is_port_name(name: &str) -> bool {
    (1..=15).contains(&name.len())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        && name.contains(|c: char| c.is_ascii_lowercase())
        && !name.starts_with('-')
        && !name.ends_with('-')
        && !name.contains("--")
}
