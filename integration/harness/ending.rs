//! The end of a pod as kubelet and containerd bring it about: a stop request for every container,
//! all at once, with a deadline that tells the grace period; SIGKILL when the grace period is over,
//! counted from the answer; and a SIGKILL for all that is left of a container that has ended.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use containerd_shim_protos::api::Empty;
use ttrpc::proto::Code;

use super::{Answer, Containerd, PATIENCE};

/// Kubelet's `runtimeRequestTimeout`: its stop requests wait so long beyond the grace period.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// How the stop of one container went.
#[derive(Clone, Debug)]
pub struct Stopped {
    pub id: String,
    /// From the request to its answer.
    pub answered: Duration,
    /// It had to be killed.
    pub killed: bool,
    pub code: u32,
}

impl Containerd {
    /// Asks containers to stop, giving them `grace`, all at once and without the clients that may be
    /// slow to start; what they are answered.
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

    /// Ends a pod, giving its containers `grace`; how it went for each, in their order.
    #[track_caller]
    pub fn end_pod(&self, ids: &[&str], grace: Duration) -> Vec<Stopped> {
        let stops: Vec<_> = ids
            .iter()
            .map(|id| {
                let id = (*id).to_owned();
                // Calls of one connection come one after another here, and these do not.
                let asking = self.task_api(&id).deadline(grace + REQUEST_TIMEOUT);
                let waiting = self.task_api(&id).deadline(grace);
                let killing = self.task_api(&id).deadline(super::scaled(PATIENCE));
                thread::spawn(move || {
                    let asked = Instant::now();
                    match asking.kill(&id, "", 15, false) {
                        // It may have ended already.
                        Ok(_) | Err((Code::NOT_FOUND, _)) => {}
                        Err(error) => panic!("a stop request for {id}: {error:?}"),
                    }
                    let answered = asked.elapsed();
                    let (code, killed) = match waiting.wait(&id, "") {
                        Ok(exit) => (exit.exit_status, false),
                        Err(_) => {
                            match killing.kill(&id, "", 9, false) {
                                // It may have ended just now.
                                Ok(_) | Err((Code::NOT_FOUND, _)) => {}
                                Err(error) => panic!("SIGKILL for {id}: {error:?}"),
                            }
                            let exit = killing.wait(&id, "").expect("its end");
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
