//! The `exec` probe: the OCI runtime runs a command in the container.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use usher_core::process::ExitStatus;

use super::Target;
use super::error::ProbeError;

/// Time that the OCI runtime may take in addition to the command's timeout.
const RUNTIME_TAKES: Duration = Duration::from_secs(2);

const KILL: i32 = 9;

/// Runs the command, which succeeds if it exits with 0 within `timeout`. Kills the command at the
/// timeout.
///
/// # Errors
///
/// If the command cannot be executed, fails, or does not end in time.
pub(super) async fn attempt(
    command: &[String],
    timeout: Duration,
    target: &Target,
) -> Result<(), ProbeError> {
    // The OCI runtime's own time does not count toward the command's timeout, but it is limited,
    // too.
    let limit = timeout.saturating_add(RUNTIME_TAKES);
    let mut process = target
        .runtime
        .execute(&target.id, command, target.oom_score, limit)
        .await
        .map_err(ProbeError::NotExecuted)?;
    let deadline = Instant::now().checked_add(timeout);
    let exit = match deadline {
        Some(deadline) => timeout_at(deadline, process.wait()).await,
        None => Ok(process.wait().await),
    };
    match exit {
        Ok(Ok(ExitStatus::Code(0))) => Ok(()),
        Ok(Ok(status)) => Err(ProbeError::CommandFailed(status)),
        Ok(Err(error)) => Err(ProbeError::CommandUnseen(error)),
        Err(_) => {
            // This fails if the command has exited in the meantime.
            let _ = target.reaper.kill(process.pid(), KILL);
            Err(ProbeError::CommandLate(timeout))
        }
    }
}
