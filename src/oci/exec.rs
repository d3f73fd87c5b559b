//! Execs of a container.

use std::borrow::Cow;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Map, Value, json};

use usher_core::plan::Signal;
use usher_engine::{EngineError, ExecOrder, ExitFuture, NewExec, Process, SignalProgress};
use usher_linux::cgroup::scores;
use usher_linux::reaper::{Child, Reaper};
use usher_linux::stdio::{self, Size, Streams};

use super::OciRuntime;
use super::container::OciContainer;
use super::init::kill;
use super::release::await_execution;

pub(super) struct Execution<'a> {
    pub order: ExecOrder,
    pub container: &'a OciContainer,
    pub runtime: OciRuntime,
}

/// A process that an exec has started.
#[derive(Clone, Debug)]
struct OciProcess {
    pid: i32,
    reaper: Reaper,
    /// True once the exit of the process has been reported. From then on the PID may be reused.
    has_ended: Arc<AtomicBool>,
}

impl Execution<'_> {
    pub async fn run(mut self) -> Result<NewExec, EngineError> {
        let early = mem::take(&mut self.order.fifos);
        let spec = self.spec();
        let spec = spec.map_err(EngineError::invalid)?;
        let setting = self.container.setting(&self.order.exec_id, false);
        let opened = stdio::open(&self.order.paths, &setting, early).await;
        let (stdio, mut streams) = opened.map_err(EngineError::invalid)?;
        let (id, score) = (&self.container.id, self.order.oom_score);
        let executed = match self.runtime.exec(id, &spec, score, stdio).await {
            Ok(child) => self.connect(child, &mut streams).await,
            Err(error) => {
                error.unless_said(&mut streams);
                Err(error.into())
            }
        };
        match executed {
            Ok(child) => Ok(self.executed(child, streams)),
            Err(error) => {
                // All output is passed on before the caller learns of the failure.
                stdio::drain([streams]).await;
                Err(error)
            }
        }
    }

    async fn connect(&self, child: Child, streams: &mut Streams) -> Result<Child, EngineError> {
        let has_stdin = !self.order.paths.stdin.is_empty();
        if let Err(error) = streams.take_over(has_stdin).await {
            // The process runs, but its streams do not work.
            if let Err(error) = kill(&self.container.reaper, child.pid(), Signal::KILL) {
                tracing::debug!(%error, "exec without streams has exited already");
            }
            return Err(EngineError::failed(error));
        }
        Ok(child)
    }

    fn executed(&self, mut child: Child, streams: Streams) -> NewExec {
        let has_ended = Arc::new(AtomicBool::new(false));
        let process = OciProcess {
            pid: child.pid(),
            reaper: self.container.reaper.clone(),
            has_ended: Arc::clone(&has_ended),
        };
        let exit_future = async move {
            let status = child.wait().await;
            has_ended.store(status.is_ok(), Ordering::Relaxed);
            status
        };
        NewExec {
            process: Arc::new(process),
            exit_future: ExitFuture(Box::pin(exit_future)),
            streams,
        }
    }

    /// Returns the OCI process of the exec, as JSON. Sets the terminal and its size as other fields
    /// of the request say. Lowers the process's OOM score if it exceeds the upper limit in the
    /// request.
    fn spec(&self) -> serde_json::Result<Cow<'_, [u8]>> {
        let order = &self.order;
        let mut spec: Map<String, Value> = serde_json::from_slice(&order.spec)?;
        let has_terminal = spec.get("terminal").and_then(Value::as_bool) == Some(true);
        let is_lowered = order.oom_score.is_some_and(|score| lower(&mut spec, score));
        if has_terminal == order.paths.terminal && order.size.is_none() && !is_lowered {
            return Ok(Cow::Borrowed(&order.spec));
        }
        spec.insert("terminal".to_owned(), json!(order.paths.terminal));
        if let Some(Size { width, height }) = order.size {
            let size = json!({ "height": height, "width": width });
            spec.insert("consoleSize".to_owned(), size);
        }
        Ok(Cow::Owned(serde_json::to_vec(&spec)?))
    }
}

impl OciProcess {
    fn kill_now(&self, signal: Signal) -> Result<(), EngineError> {
        match self.has_ended.load(Ordering::Relaxed) {
            true => Err(EngineError::Gone("the exec has exited".to_owned())),
            false => kill(&self.reaper, self.pid, signal),
        }
    }
}

impl Process for OciProcess {
    fn pid(&self) -> i32 {
        self.pid
    }

    /// Sends a signal to the exec. The shim answers Start when `runc exec` returns. For a moment
    /// after that, the process still runs runc's own code, which would handle the signal. So any
    /// signal but SIGKILL is sent only after the process has executed its program.
    fn kill(&self, signal: Signal) -> SignalProgress {
        if signal == Signal::KILL {
            return SignalProgress::Done(self.kill_now(signal));
        }
        let process = self.clone();
        SignalProgress::UnderWay(Box::pin(async move {
            await_execution(process.pid).await;
            process.kill_now(signal)
        }))
    }
}

/// Lowers the OOM score of an OCI process; returns true if it was higher. Leaves a process without
/// a score as it is, because it gets the score of its container.
pub(crate) fn lower(process: &mut Map<String, Value>, to: i32) -> bool {
    let Some(own) = process.get("oomScoreAdj").and_then(Value::as_i64) else {
        return false;
    };
    let own = i32::try_from(own).unwrap_or(to);
    let lower = scores::allowed(to, own);
    if lower < own {
        process.insert("oomScoreAdj".to_owned(), json!(lower));
    }
    lower < own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oom_score_of_a_process_is_lowered_and_never_raised() {
        let own = scores::own();
        let process = |score: i32| Map::from_iter([("oomScoreAdj".to_owned(), json!(score))]);
        let mut high = process(1000);
        assert!(lower(&mut high, own));
        assert_eq!(high, process(own));
        let mut low = process(own);
        assert!(!lower(&mut low, 1000));
        assert_eq!(low, process(own));
        assert!(!lower(&mut Map::new(), own));
    }
}
