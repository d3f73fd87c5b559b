//! The shim's side of a prober: starts the prober, reads its verdict, ends the prober.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::cgroup::Place;
use crate::probe::error::{ProbeError, ProberError};
use crate::probe::{Target, netns};
use crate::reaper::{Child, Reaper};
use usher_core::process::ExitStatus;

use super::{MAX_QUESTION, MAX_VERDICT, MODE, Order, Question, Verdict};

/// The running program, even if its file has been replaced meanwhile.
const THIS_PROGRAM: &str = "/proc/self/exe";

/// Name of a prober in lists of processes.
const NAME: &str = "usher-prober";

/// Longest wait for the exit of a killed prober. If the prober hangs in the kernel, the shim stops
/// waiting for it.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Maximum number of seconds that a prober runs after the end of its attempt, if the shim does not
/// kill it.
const OVERTIME_SECONDS: u64 = 2;

const KILL: i32 = 9;

/// True once the shim has logged that probers cannot give up all privileges.
static IS_SAID: AtomicBool = AtomicBool::new(false);

/// Starts a prober in the container's network namespace, and waits for its answer to `question`.
/// After the answer, or after `limit` at the latest, the shim kills the prober.
///
/// # Errors
///
/// If the attempt failed.
pub(in crate::probe) async fn ask(
    question: Question,
    limit: Duration,
    target: &Target,
) -> Result<(), ProbeError> {
    let order = Order {
        shim: std::process::id(),
        over_in: u32::try_from(limit.as_secs().saturating_add(OVERTIME_SECONDS))
            .unwrap_or(u32::MAX),
        question,
    };
    let (mut prober, socket) = Prober::start(target)?;
    let verdict = timeout(limit, hear(socket, &order)).await;
    let status = prober.end().await;
    match verdict {
        Err(_) => Err(ProbeError::Late {
            wanted: "answer",
            limit,
        }),
        Ok(Err(problem)) => {
            // The status explains nothing if the prober exited with 0, or the shim has killed it.
            let is_usual = |status: &ExitStatus| {
                matches!(status, ExitStatus::Code(0) | ExitStatus::Signal(KILL))
            };
            let status = status.filter(|status| !is_usual(status));
            Err(ProbeError::Prober { problem, status })
        }
        Ok(Ok(verdict)) => {
            if let Some(kept) = verdict.kept
                && !IS_SAID.swap(true, Ordering::Relaxed)
            {
                let kept = usher_core::text::tame(&kept);
                tracing::warn!("probers keep rights that they do not need: {kept}");
            }
            match verdict.failure {
                Some(failure) => Err(ProbeError::Reported(failure)),
                None => Ok(()),
            }
        }
    }
}

/// A running prober; killed when it is dropped.
#[derive(Debug)]
struct Prober {
    child: Child,
    reaper: Reaper,
    has_ended: bool,
}

impl Prober {
    fn start(target: &Target) -> Result<(Prober, UnixStream), ProbeError> {
        let failed = ProbeError::NoProber;
        let namespace = netns::of(target.pid, &target.reaper).map_err(ProbeError::NoNetwork)?;
        let (socket, theirs) = UnixStream::pair().map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let mut command = Place::command(target.place.as_ref(), THIS_PROGRAM);
        command
            .arg0(NAME)
            .arg(MODE)
            .env_clear()
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(namespace);
        let child = target.reaper.spawn_self(&mut command).map_err(failed)?;
        let prober = Prober {
            child,
            reaper: target.reaper.clone(),
            has_ended: false,
        };
        Ok((prober, socket))
    }

    /// Kills the prober if it still runs, and returns its exit status.
    async fn end(&mut self) -> Option<ExitStatus> {
        self.kill();
        let status = timeout(ENDS_WITHIN, self.child.wait()).await;
        let status = status.ok().and_then(Result::ok);
        self.has_ended = status.is_some();
        status
    }

    fn kill(&self) {
        if !self.has_ended {
            // This fails if the prober has exited in the meantime.
            let _ = self.reaper.kill(self.child.pid(), KILL);
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends the order and reads the verdict.
async fn hear(socket: UnixStream, order: &Order) -> Result<Verdict, ProberError> {
    let order = serde_json::to_vec(order).map_err(ProberError::Unencoded)?;
    if order.len() as u64 > MAX_QUESTION {
        return Err(ProberError::LongOrder {
            length: order.len(),
            most: MAX_QUESTION,
        });
    }
    let heard = async {
        let mut socket = tokio::net::UnixStream::from_std(socket)?;
        socket.write_all(&order).await?;
        socket.shutdown().await?;
        let mut said = Vec::new();
        socket.take(MAX_VERDICT).read_to_end(&mut said).await?;
        Ok::<_, std::io::Error>(said)
    };
    serde_json::from_slice(&heard.await?).map_err(|_| ProberError::NoVerdict)
}
