//! The prober's own code: reads the order, makes the attempt, and writes the verdict.

#![allow(
    clippy::large_futures,
    reason = "the prober is a separate process, which ends with the attempt"
)]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;

use nix::sched::{CloneFlags, setns};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use nix::unistd::{alarm, dup2_stderr};
use thiserror::Error;

use crate::probe::connect::Network;
use crate::probe::error::ProbeError;
use crate::probe::{address, grpc, http};
use crate::sys;
use usher_core::text::SAID_CHARS;

use super::confine::confine;
use super::{MAX_QUESTION, Order, Question, Verdict, filter};

/// The failure of a prober: it cannot read the shim's order, or cannot send its verdict to the
/// shim. Without a verdict, the shim counts the attempt as failed.
#[derive(Debug, Error)]
pub enum OrderError {
    #[error("standard input has no order ({0}); probers are started by usher's shim")]
    None(#[source] io::Error),
    #[error("the prober cannot encode its verdict: {0}")]
    Unencoded(#[source] serde_json::Error),
    #[error("the prober cannot send its verdict to the shim: {0}")]
    NotTaken(#[source] io::Error),
}

/// Main function of a prober: carries out the order on standard input.
///
/// # Errors
///
/// If there is no order, or the verdict cannot be written.
pub fn main() -> Result<(), OrderError> {
    // The shim's descriptors should have been closed at exec. Close them here as well, in case one
    // was not marked close-on-exec.
    sys::close_all_from(3);
    // When memory runs out, the kernel kills the prober before any container, even in the pod's
    // cgroup. Raising this score needs no privilege.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let mut socket = UnixStream::from(own(io::stdin().as_fd()).map_err(OrderError::None)?);
    let order = read_order(&socket).map_err(OrderError::None)?;
    // Usually the shim kills the prober in time. The alarm ends the prober if the shim is stopped,
    // or too busy.
    alarm::set(order.over_in);
    let verdict = carry_out(&order);
    let said = serde_json::to_vec(&verdict).map_err(OrderError::Unencoded)?;
    socket.write_all(&said).map_err(OrderError::NotTaken)
}

fn own(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    descriptor.try_clone_to_owned()
}

fn read_order(socket: &UnixStream) -> io::Result<Order> {
    let mut said = Vec::new();
    socket.take(MAX_QUESTION).read_to_end(&mut said)?;
    Ok(serde_json::from_slice(&said)?)
}

fn carry_out(order: &Order) -> Verdict {
    match prepare(order) {
        Err(failure) => Verdict {
            failure: Some(cut(&failure.to_string())),
            kept: None,
        },
        Ok((runtime, network, kept)) => {
            let outcome = runtime.block_on(answer(&order.question, network));
            Verdict {
                failure: outcome.err().map(|error| cut(&error.to_string())),
                kept: (!kept.is_empty()).then(|| cut(&kept.join(", "))),
            }
        }
    }
}

/// Enters the namespace, then gives up all rights that the attempt does not need.
fn prepare(
    order: &Order,
) -> Result<(tokio::runtime::Runtime, Network<'static>, Vec<String>), ProbeError> {
    enter().map_err(ProbeError::NoNetwork)?;
    let is_asked_for = match &order.question {
        Question::HttpGet(get) | Question::AnyAnswer(get) => get.host.is_none(),
        Question::Grpc { .. } => true,
    };
    let network = Network::Own(is_asked_for.then(address::global).flatten());
    let mut kept = confine();
    // Set the parent-death signal after `confine`, which changes the user and group: with that
    // change the kernel resets the signal.
    let dies_with = set_pdeathsig(Signal::SIGKILL);
    kept.extend(
        dies_with
            .err()
            .map(|error| format!("a life of its own ({error})")),
    );
    if parent_id() != order.shim {
        return Err(ProbeError::ShimGone);
    }
    // The async runtime opens its descriptors here, because the filter would forbid the calls
    // later.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(ProbeError::NoRuntime)?;
    let filtered = filter::install();
    kept.extend(
        filtered
            .err()
            .map(|error| format!("system calls ({error})")),
    );
    Ok((runtime, network, kept))
}

fn enter() -> io::Result<()> {
    setns(io::stderr(), CloneFlags::CLONE_NEWNET)?;
    // A panic writes its message to standard error. Replace standard error by standard output,
    // which is `/dev/null`.
    Ok(dup2_stderr(io::stdout())?)
}

async fn answer(question: &Question, network: Network<'_>) -> Result<(), ProbeError> {
    match question {
        Question::HttpGet(get) => http::attempt(get, network).await,
        Question::AnyAnswer(get) => http::request_once(get, network).await,
        Question::Grpc { port, service } => grpc::attempt(*port, service, network).await,
    }
}

/// Cuts a text so that it fits into a verdict. The shim cleans the text before it quotes the text.
fn cut(words: &str) -> String {
    words.chars().take(SAID_CHARS.saturating_add(1)).collect()
}
