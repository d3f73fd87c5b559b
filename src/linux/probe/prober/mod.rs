//! A prober: a process that asks a server in a container one question and exits.
//!
//! The container chooses what its server answers, and parsing HTTP, HTTP/2 and TLS takes much code.
//! So this code runs where a bug does little harm: in a separate process, which executes the shim's
//! binary in another mode. The process enters the container's network namespace, and then gives up
//! all other rights. The shim's memory and thread are out of reach, and the shim kills the prober
//! at the attempt's timeout.
//!
//! A prober's standard input is a socket, from which the prober reads its question, and to which it
//! writes its verdict. Its standard error is an open file of the network namespace. The standard
//! streams are used because std passes these to a child, without further code between fork and
//! exec.

mod ask;
mod confine;
mod filter;
#[expect(clippy::disallowed_methods, reason = "a process that serves nothing")]
mod process;

use serde::{Deserialize, Serialize};

use usher_core::plan::HttpGet;

pub(super) use ask::ask;
pub use process::{OrderError, main};

/// The argument that makes the shim's binary a prober.
pub const MODE: &str = "prober";

/// Maximum size of an order in bytes. The longest annotation fits, even if every character is
/// escaped.
const MAX_QUESTION: u64 = 256 * 1024;

/// Maximum size of a verdict in bytes.
const MAX_VERDICT: u64 = 4 * 1024;

/// The order that the shim gives to a prober.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    /// The shim's process id. The prober checks it, because a prober must not outlive the shim.
    shim: u32,
    /// Seconds until the prober ends by itself, if the shim has not killed it by then.
    over_in: u32,
    question: Question,
}

/// The question that a prober asks in one attempt.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Question {
    /// Succeeds if the server answers this GET with a status of success. The port is a number.
    HttpGet(HttpGet),
    /// Succeeds if the server answers this GET, with any status. The port is a number.
    AnyAnswer(HttpGet),
    /// Succeeds if the gRPC health service answers that this service is serving.
    Grpc { port: u16, service: String },
}

/// The report of a prober.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Verdict {
    /// Why the attempt failed; part of the text may come from the container.
    failure: Option<String>,
    /// The rights that the prober could not give up, and why; `None` if it gave up all.
    kept: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_core::text::SAID_CHARS;

    #[test]
    fn the_longest_verdict_has_room() {
        for worst in ["\u{1}", "\u{10ffff}", "\\"] {
            let words = worst.repeat(SAID_CHARS);
            let verdict = Verdict {
                failure: Some(words.clone()),
                kept: Some(words),
            };
            let said = serde_json::to_vec(&verdict).unwrap();
            assert!(said.len() as u64 <= MAX_VERDICT, "{}", said.len());
        }
    }

    #[test]
    fn a_question_arrives_as_it_was_asked() {
        for host in [r#","host":"localhost""#, r#","host":"2001:db8::7""#, ""] {
            let get = crate::probe::tests::http_get(&format!(
                r#""scheme":"HTTPS","path":"/ä"{host},"httpHeaders":[{{"name":"X-A","value":"1"}}]"#
            ));
            let order = Order {
                shim: 7,
                over_in: 1,
                question: Question::AnyAnswer(get),
            };
            let said = serde_json::to_vec(&order).unwrap();
            let read: Order = serde_json::from_slice(&said).unwrap();
            assert_eq!(read.question, order.question);
        }
    }
}
