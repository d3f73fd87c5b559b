//! Logs the decisions of the core.

use tokio::time::sleep;
use tracing::{debug, error, info, warn};

use usher_core::lifecycle::{RELEASES_WITHIN, Report};

/// Logs decisions of the core in the background, without delay for the caller. If the core released
/// a container, logs them only after [`RELEASES_WITHIN`], because a log line wakes containerd, and
/// on a small machine containerd would take CPU time from the released program.
pub(crate) fn log(reports: Vec<Report>) {
    if reports.is_empty() {
        return;
    }
    let mut each = reports.iter();
    let is_released = each.any(|report| matches!(report, Report::Released { .. }));
    tokio::spawn(async move {
        if is_released {
            sleep(RELEASES_WITHIN).await;
        }
        reports.iter().for_each(log_report);
    });
}

fn log_report(report: &Report) {
    match report {
        Report::OtherPlan { .. }
        | Report::GraceOver { .. }
        | Report::Stretched { .. }
        | Report::InvalidTransition { .. } => {
            warn!("{report}")
        }
        Report::RuleSuspended { .. } => error!("{report}"),
        Report::ProbeFailed { .. } | Report::TooLate { .. } => debug!("{report}"),
        _ => info!("{report}"),
    }
}
