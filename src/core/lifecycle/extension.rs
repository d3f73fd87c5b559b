//! More time for a defer container that still runs when the grace period is over.
//!
//! The source is the defer proposal, "TerminationGracePeriod", solutions 1 and 2. The setting
//! `grace-extension` selects one of them. With probes, each success of the container's liveness
//! probe grants one more probe period. With intervals, the container gets one more interval each
//! time its time is over. All defer containers share the number of intervals and the maximum time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{GraceExtension, Probe};

use super::Pod;
use super::container::Container;
use super::effects::ContainerContext;
use super::grace::MIN_GRACE;
use super::probe::Stretched;
use super::report::Report;
use super::rules::{Decision, Due, Subject};
use super::termination::StepDeadlines;
use super::time::Time;

/// An attempt of a probe may take this much longer than its timeout. The OCI runtime may be slow to
/// start a command, and the attempt may be slow to end.
const ATTEMPT_LAG: Duration = Duration::from_secs(4);

/// The time granted to the defer containers of a termination beyond the grace period.
#[derive(Clone, Debug, Default, Hash, Serialize, Deserialize)]
pub(super) struct Extension {
    /// Time granted so far, measured from the end of the grace period.
    granted: Duration,
    /// Total number of intervals granted to the defer containers of the termination.
    times: u32,
    /// The attempt of the liveness probe that is under way: the number of the probed execution, and
    /// the time when the attempt began.
    attempt: Option<(u64, Time)>,
    /// True if the running defer container gets no more time.
    refused: bool,
}

impl Extension {
    /// Prepares for the turn of a defer container. Forgets the probe attempt of the previous defer
    /// container, and any refusal of more time. Keeps the time and the number of intervals granted
    /// so far, which count for all defer containers together.
    pub fn begin(&mut self) {
        self.attempt = None;
        self.refused = false;
    }
}

impl Subject<'_> {
    /// Rule: when the time of a defer container is over, the shim decides if the container gets
    /// more time. The container's time includes all time granted before. The setting
    /// `grace-extension` says what the shim does:
    ///
    /// - It gives the container one more interval, if an interval is left.
    /// - Or it attempts the container's liveness probe, as soon as there is CPU time for the
    ///   attempt. A success gives the container one more probe period.
    /// - In all other cases the container gets no more time. The rule `defer_is_due` then delivers
    ///   its stop signal.
    ///
    /// `None` before that time, without the setting, after the stop signal, or after a refusal.
    /// Also `None` if the container's own time limit ends first.
    pub(super) fn extension_is_decided(&self) -> Option<Due<Decision>> {
        let (pod, container) = (self.pod, self.container);
        let extension = pod.extension()?;
        let termination = pod.termination.as_ref()?;
        let granted = &termination.extension;
        if granted.refused || !self.is_late_defer() {
            return None;
        }
        let beyond = pod.now.since(termination.deadline());
        Some(Due::Now(match extension {
            GraceExtension::Interval {
                interval,
                count,
                max,
            } if granted.times < count && beyond < max => Decision::Extend {
                granted: beyond.saturating_add(interval).min(max),
            },
            GraceExtension::Probe { max }
                if pod.liveness_probe(container).is_some()
                    && granted.attempt.is_none()
                    && beyond < max =>
            {
                let cost = self.probe_cost();
                let free_at = pod.allowance.free_at(cost);
                match free_at > pod.now {
                    true => Decision::PutOff {
                        granted: free_at.since(termination.deadline()).min(max),
                        stretched: self.stretched(),
                    },
                    false => Decision::AskForMore { cost },
                }
            }
            _ => Decision::RefuseMore,
        }))
    }
}

impl Pod {
    fn extension(&self) -> Option<GraceExtension> {
        self.plan.as_ref()?.settings().grace_extension
    }

    pub(super) fn liveness_probe(&self, container: &Container) -> Option<&Probe> {
        self.plan_of(container)?.liveness_probe.as_ref()
    }

    /// True if the settings may give more time to a defer container that has not exited, whether it
    /// is held or runs. Stays true when no more time is left to grant, and is true outside of a
    /// termination, too. While this is true, the shim delays answers to stop requests longer.
    pub(super) fn is_extension_possible(&self) -> bool {
        let Some(extension) = self.extension() else {
            return false;
        };
        self.containers.values().any(|container| {
            container.defer_turn().is_some()
                && container.state.is_alive()
                && !container.state.is_ending()
                && match extension {
                    GraceExtension::Probe { .. } => self.liveness_probe(container).is_some(),
                    GraceExtension::Interval { .. } => true,
                }
        })
    }

    /// Returns `probe`, the liveness probe of a defer container, with a timeout so short that an
    /// attempt begun at `now` is over at the end of the longest extension. The timeout stays if
    /// there is no extension.
    pub(super) fn bounded(&self, now: Time, mut probe: Probe) -> Probe {
        if let Some(end) = self.last_end() {
            probe.timeout = probe.timeout.min(end.since(now));
        }
        probe
    }

    /// The end of the grace period plus the longest extension that the settings allow. `None`
    /// outside of a termination, or if the settings allow none.
    fn last_end(&self) -> Option<Time> {
        let (GraceExtension::Probe { max } | GraceExtension::Interval { max, .. }) =
            self.extension()?;
        Some(self.termination.as_ref()?.deadline().after(max))
    }

    /// The deadlines of a step of defer containers. If the settings do not extend the grace period,
    /// these are the usual deadlines `ends`.
    ///
    /// An extended step ends at the end of the grace period plus the time granted so far. Then the
    /// container gets a stop signal, and SIGKILL two seconds later. If an attempt of the liveness
    /// probe is under way at this time, the stop signal waits for it. If `ends` are later, they
    /// remain.
    pub(super) fn extended(&self, ends: StepDeadlines) -> StepDeadlines {
        let (Some(termination), Some(_)) = (&self.termination, self.extension()) else {
            return ends;
        };
        let extension = &termination.extension;
        let mut ask_all = termination.deadline().after(extension.granted);
        if let Some((_, began)) = extension.attempt {
            let answered = began.after(self.attempt_limit());
            // The step does not wait for a result that comes after the end of the longest
            // extension.
            let last = self.last_end().unwrap_or(answered);
            ask_all = ask_all.max(answered.min(last));
        }
        match ask_all > ends.ask_all {
            true => StepDeadlines {
                ask_all,
                kill: ask_all.after(MIN_GRACE),
            },
            false => ends,
        }
    }

    fn attempt_limit(&self) -> Duration {
        let running = self
            .containers
            .values()
            .filter(|container| container.defer_turn().is_some() && container.state.is_executed());
        let timeouts = running.filter_map(|container| self.liveness_probe(container));
        let timeout = timeouts.map(|probe| probe.timeout).max();
        timeout.unwrap_or_default().saturating_add(ATTEMPT_LAG)
    }
}

impl ContainerContext<'_> {
    pub(super) fn extend(&mut self, granted: Duration) {
        if let Some(termination) = &mut self.termination {
            let extension = &mut termination.extension;
            extension.granted = granted;
            extension.times = extension.times.saturating_add(1);
            let name = self.container.name.clone();
            self.out.report(Report::Extended { name, by: granted });
        }
    }

    pub(super) fn put_off(&mut self, granted: Duration, stretched: Option<Stretched>) {
        if let Some(termination) = &mut self.termination {
            termination.extension.granted = granted;
            self.tell_of_stretching(stretched);
        }
    }

    pub(super) fn ask_for_more(&mut self, cost: Duration) {
        if let Some(termination) = &mut self.termination
            && let Some(running) = self.container.state.as_running()
        {
            let execution = running.execution;
            termination.extension.attempt = Some((execution, self.now));
            self.attempt_begins(execution, cost);
        }
    }

    pub(super) fn refuse_more(&mut self) {
        if let Some(termination) = &mut self.termination {
            let beyond = self.now.since(termination.deadline());
            let extension = &mut termination.extension;
            extension.refused = true;
            if extension.attempt.take().is_some() {
                // The attempt goes on, but its result no longer matters. The extension covers the
                // time until now, and no more.
                extension.granted = extension.granted.max(beyond);
            }
        }
    }

    /// Records the result of a probe of the container's program; `execution` is the number of the
    /// program's execution. Ignores all probes but the one that [`Decision::AskForMore`] began.
    /// After a success, the container's time ends one probe period after the beginning of this
    /// attempt, or now if that is past, but not later than the setting allows. A failure ends the
    /// extension.
    pub(super) fn record_extension_probe(&mut self, execution: u64, succeeded: bool) {
        let (Some(termination), Some(plan)) = (&mut self.termination, self.plan) else {
            return;
        };
        let Some(GraceExtension::Probe { max }) = plan.settings().grace_extension else {
            return;
        };
        let deadline = termination.deadline();
        let extension = &mut termination.extension;
        let Some((_, began)) = extension
            .attempt
            .take_if(|(probed, _)| *probed == execution)
        else {
            return;
        };
        if !succeeded {
            // From here on the usual rules for the end of the grace period apply.
            extension.refused = true;
            extension.granted = self.now.since(deadline).min(max);
            return;
        }
        let name = self.container.name.clone();
        let probe = plan.container(&name).liveness_probe.as_ref();
        let period = probe.map(|probe| probe.period).unwrap_or_default();
        // If the attempt took longer than a period, the next attempt is due at once.
        let next = began.after(period).max(self.now);
        let by = next.since(deadline).min(max);
        extension.granted = by;
        self.out.report(Report::Extended { name, by });
    }
}
