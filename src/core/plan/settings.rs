//! The pod-wide settings other than lists of roles.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::Problem;
use super::json::{self, Whole};
use super::word::words;

/// Time that [`GracePolicy::Reserve`] reserves for the later steps. If the grace period is shorter,
/// [`GracePolicy::Strict`] applies instead.
const RESERVED: Duration = Duration::from_secs(6);

/// Kubernetes' default for `terminationGracePeriodSeconds`.
pub const USUAL_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// The settings of a whole pod. [`Settings::default`] is a pod without annotations.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Settings {
    pub start_mode: StartMode,
    /// Maximum time for which a container waits until it may start.
    pub startup_timeout: Duration,
    /// The pod's own `restartPolicy`, repeated in an annotation because the shim cannot see it.
    pub restart_policy: RestartPolicy,
    /// Containers whose failure ends the pod (`fatalToPod` in the KEP-753 draft); never defer
    /// containers.
    pub essential: BTreeSet<String>,
    /// The grace period from the annotations. If `None`, kubelet's grace period applies. If kubelet
    /// gives none, [`usual_grace_period`](Self::usual_grace_period) applies.
    pub grace_period: Option<Duration>,
    /// The grace period if neither the pod nor kubelet sets one.
    pub usual_grace_period: Duration,
    pub grace_policy: GracePolicy,
    pub sidecar_stop_order: SidecarStopOrder,
    pub sidecar_exit_code: SidecarExitCode,
    pub defer_exit_code: DeferExitCode,
    /// Delay of a stop request that comes alone, because it could be the first request of a
    /// termination.
    pub termination_window: Duration,
    pub grace_extension: Option<GraceExtension>,
    pub oom_score: OomScore,
    pub cgroup_sizing: CgroupSizing,
}

words! {
    /// The way in which the shim answers Start for a container that has to wait for other
    /// containers.
    #[derive(Default)]
    pub enum StartMode {
        /// If the container can start soon, the shim answers Start when the container begins to
        /// run. Otherwise the shim answers Start at once.
        #[default]
        Auto = "Auto",
        /// The shim answers Start when the container begins to run. If the container waits too
        /// long, Start fails.
        Block = "Block",
        /// The shim answers Start at once, and holds the container until it may run.
        Hold = "Hold",
    }
}

words! {
    /// The exits after which a container is started again.
    #[derive(Default)]
    pub enum RestartPolicy {
        #[default]
        Always = "Always",
        OnFailure = "OnFailure",
        Never = "Never",
    }
}

impl RestartPolicy {
    pub const fn restarts(self, code: u32) -> bool {
        match self {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => code != 0,
            RestartPolicy::Never => false,
        }
    }

    pub const fn restarts_failed(self) -> bool {
        !matches!(self, RestartPolicy::Never)
    }

    /// True if the pod's next sandbox lacks the containers that exited with 0, because kubelet does
    /// not create them again.
    pub const fn leaves_out_succeeded(self) -> bool {
        matches!(self, RestartPolicy::OnFailure)
    }
}

words! {
    /// The division of the grace period among the steps of a termination (the "alternatives" of
    /// KEP-753's draft).
    #[derive(Default)]
    pub enum GracePolicy {
        /// Every step may use all the time that is left.
        #[default]
        Shared = "Shared",
        /// A part of the grace period is reserved for each later step.
        Reserve = "Reserve",
        /// Each later step gets some time, even beyond the end of the grace period.
        Overrun = "Overrun",
        /// Hooks and defer containers are skipped if too little time is left.
        SkipHooks = "SkipHooks",
        /// If a step has no time left, its containers are killed at once.
        Strict = "Strict",
    }
}

impl GracePolicy {
    /// The shortest grace period for this policy. With a shorter one, [`Strict`](Self::Strict)
    /// applies.
    pub const fn least(self) -> Duration {
        match self {
            GracePolicy::Reserve => RESERVED,
            GracePolicy::Shared
            | GracePolicy::Overrun
            | GracePolicy::SkipHooks
            | GracePolicy::Strict => Duration::ZERO,
        }
    }
}

words! {
    /// The order in which sidecars are stopped.
    #[derive(Default)]
    pub enum SidecarStopOrder {
        /// Sidecars stop one after another, in reverse order of their start.
        #[default]
        Reverse = "Reverse",
        Parallel = "Parallel",
    }
}

words! {
    /// The exit code of a sidecar that the shim stopped.
    #[derive(Default)]
    pub enum SidecarExitCode {
        /// The exit code is always 0.
        #[default]
        Mask = "Mask",
        /// 0 if a signal killed the sidecar, otherwise the sidecar's own exit code.
        Signal = "Signal",
        Propagate = "Propagate",
    }
}

words! {
    /// The exit code of a defer container.
    #[derive(Default)]
    pub enum DeferExitCode {
        /// The exit code is always 0.
        #[default]
        Mask = "Mask",
        Propagate = "Propagate",
    }
}

words! {
    /// The treatment of sidecars' OOM scores.
    #[derive(Default)]
    pub enum OomScore {
        /// The score of a sidecar is at most the lowest score of the apps.
        #[default]
        Match = "Match",
        Off = "Off",
    }
}

words! {
    /// The size of the pod's cgroup.
    #[derive(Default)]
    pub enum CgroupSizing {
        /// The largest size that the pod needs at any time.
        #[default]
        Effective = "Effective",
        /// The size that the current phase needs.
        Phase = "Phase",
        /// The size that the caller has set.
        Off = "Off",
    }
}

/// Extra time that a defer container may get beyond the grace period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GraceExtension {
    /// The time is extended while the container's liveness probe succeeds, at most by `max` in all.
    Probe { max: Duration },
    /// The time is extended by `interval`, at most `count` times and at most by `max` in all.
    Interval {
        interval: Duration,
        count: u32,
        max: Duration,
    },
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RawGraceExtension {
    probe: Option<bool>,
    interval_seconds: Option<Whole<1>>,
    count: Option<Whole<1>>,
    max_seconds: Option<Whole<1>>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            start_mode: StartMode::default(),
            startup_timeout: Duration::from_secs(5 * 60),
            restart_policy: RestartPolicy::default(),
            essential: BTreeSet::new(),
            grace_period: None,
            usual_grace_period: USUAL_GRACE_PERIOD,
            grace_policy: GracePolicy::default(),
            sidecar_stop_order: SidecarStopOrder::default(),
            sidecar_exit_code: SidecarExitCode::default(),
            defer_exit_code: DeferExitCode::default(),
            termination_window: Duration::from_secs(1),
            grace_extension: None,
            oom_score: OomScore::default(),
            cgroup_sizing: CgroupSizing::default(),
        }
    }
}

/// Reads a grace extension from JSON; `usual` is the default of `maxSeconds`.
///
/// # Errors
///
/// Any text but `{"probe": true}` and `{"intervalSeconds": S, "count": N}`, each with or without
/// `maxSeconds`.
pub(super) fn parse_grace_extension(
    text: &str,
    usual: Duration,
) -> Result<GraceExtension, Problem> {
    let raw: RawGraceExtension = json::parse(text, "a grace extension")?;
    let max = raw.max_seconds.map_or(usual, Whole::seconds);
    match (raw.probe, raw.interval_seconds, raw.count) {
        (Some(true), None, None) => Ok(GraceExtension::Probe { max }),
        (None, Some(interval), Some(count)) => Ok(GraceExtension::Interval {
            interval: interval.seconds(),
            count: count.count(),
            max,
        }),
        _ => Err(Problem::new(
            "is not a grace extension; expected either probe: true, or intervalSeconds and count",
        )),
    }
}
