//! Ends a pod as kubelet and containerd do.
//!
//! All containers get a stop request at the same time. The shim computes the grace period from the
//! deadline of the request. If a container still runs one grace period after the shim's answer, the
//! test sends it SIGKILL. When a container has exited, its other processes get SIGKILL.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use containerd_shim_protos::api::Empty;
use ttrpc::proto::Code;

use super::{Answer, Containerd, PATIENCE};

/// Time that kubelet adds to the grace period to get the deadline of a stop request
/// (`runtimeRequestTimeout`).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Outcome of the stop of one container.
#[derive(Clone, Debug)]
pub struct Stopped {
    pub id: String,
    /// Time from the stop request to its answer.
    pub answered: Duration,
    /// True if the caller had to send SIGKILL.
    pub killed: bool,
    pub code: u32,
}

impl Containerd {
    /// Sends stop requests with this grace period to all containers at the same time. Does not use
    /// `ctr`, because `ctr` may start slowly. Returns the calls, which wait for their answers.
    #[track_caller]
    pub fn ask_all(&self, ids: &[&str], grace: Duration) -> Vec<JoinHandle<Answer<Empty>>> {
        let apis = ids.iter().map(|id| {
            let api = self.task_api(id).deadline(grace + REQUEST_TIMEOUT);
            ((*id).to_owned(), api)
        });
        let apis: Vec<_> = apis.collect();
        let asked = apis.into_iter();
        asked
            .map(|(id, api)| thread::spawn(move || api.kill(&id, "", 15, false)))
            .collect()
    }

    /// Ends a pod with this grace period. Returns how each container stopped, in the order of
    /// `ids`.
    #[track_caller]
    pub fn end_pod(&self, ids: &[&str], grace: Duration) -> Vec<Stopped> {
        let stops: Vec<_> = ids
            .iter()
            .map(|id| {
                let id = (*id).to_owned();
                // Each call uses a separate connection: on one connection, this client would make
                // one call after another.
                let asking = self.task_api(&id).deadline(grace + REQUEST_TIMEOUT);
                let waiting = self.task_api(&id).deadline(grace);
                let killing = self.task_api(&id).deadline(super::scaled(PATIENCE));
                thread::spawn(move || {
                    let asked = Instant::now();
                    match asking.kill(&id, "", 15, false) {
                        // The container may have exited already.
                        Ok(_) | Err((Code::NOT_FOUND, _)) => {}
                        Err(error) => panic!("a stop request for {id}: {error:?}"),
                    }
                    let answered = asked.elapsed();
                    let (code, killed) = match waiting.wait(&id, "") {
                        Ok(exit) => (exit.exit_status, false),
                        Err(_) => {
                            match killing.kill(&id, "", 9, false) {
                                // The container may have exited just now.
                                Ok(_) | Err((Code::NOT_FOUND, _)) => {}
                                Err(error) => panic!("SIGKILL for {id}: {error:?}"),
                            }
                            let exit = killing.wait(&id, "").expect("the container's exit");
                            (exit.exit_status, true)
                        }
                    };
                    let _ = killing.kill(&id, "", 9, true);
                    Stopped {
                        id,
                        answered,
                        killed,
                        code,
                    }
                })
            })
            .collect();
        let joined = stops.into_iter().map(|stop| stop.join());
        joined
            .map(|stopped| stopped.expect("the stop of a container"))
            .collect()
    }
}
