//! The pod-wide settings that are no lists of roles.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::error::Problem;
use super::json::{self, Whole};
use super::word::words;

/// What [`GracePolicy::Reserve`] puts aside of a grace period, which has to be as long at least.
const RESERVED: Duration = Duration::from_secs(6);

/// Kubernetes' default for `terminationGracePeriodSeconds`.
pub const USUAL_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// What holds for the whole pod. [`Settings::default`] is a pod that says nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Settings {
    pub start_mode: StartMode,
    /// How long a container may wait for its turn.
    pub startup_timeout: Duration,
    /// The pod's own `restartPolicy`, which nothing else tells.
    pub restart_policy: RestartPolicy,
    /// Containers whose failure ends the pod (`fatalToPod` in the KEP-753 draft); no defers.
    pub essential: BTreeSet<String>,
    /// None: kubelet's, else [`usual_grace_period`](Self::usual_grace_period).
    pub grace_period: Option<Duration>,
    /// Where neither the pod nor kubelet says anything.
    pub usual_grace_period: Duration,
    pub grace_policy: GracePolicy,
    pub sidecar_stop_order: SidecarStopOrder,
    pub sidecar_exit_code: SidecarExitCode,
    pub defer_exit_code: DeferExitCode,
    /// How long a lone request is held back where it could be the first of a termination.
    pub termination_window: Duration,
    pub grace_extension: Option<GraceExtension>,
    pub oom_score: OomScore,
    pub cgroup_sizing: CgroupSizing,
}

words! {
    /// What becomes of a `Start` whose turn has not come.
    #[derive(Default)]
    pub enum StartMode {
        /// Blocks while that shows the truth soon, else holds.
        #[default]
        Auto = "Auto",
        /// Answers when the turn comes.
        Block = "Block",
        /// Answers at once, with the container held.
        Hold = "Hold",
    }
}

words! {
    /// When an exited container is started again.
    #[derive(Default)]
    pub enum RestartPolicy {
        #[default]
        Always = "Always",
        OnFailure = "OnFailure",
        Never = "Never",
    }
}

impl RestartPolicy {
    /// Whether what has ended with `code` is started again.
    pub const fn restarts(self, code: u32) -> bool {
        match self {
            RestartPolicy::Always => true,
            RestartPolicy::OnFailure => code != 0,
            RestartPolicy::Never => false,
        }
    }

    /// Whether what has failed is started again.
    pub const fn restarts_failed(self) -> bool {
        !matches!(self, RestartPolicy::Never)
    }

    /// Whether kubelet leaves what has ended with 0 out of the pod's next sandbox, but makes one.
    pub const fn leaves_out_succeeded(self) -> bool {
        matches!(self, RestartPolicy::OnFailure)
    }
}

words! {
    /// How the steps of a termination share the grace period (KEP-753's draft has them as its
    /// alternatives).
    #[derive(Default)]
    pub enum GracePolicy {
        /// Every step may use all that is left.
        #[default]
        Shared = "Shared",
        /// Time is put aside for each later step, out of the grace period.
        Reserve = "Reserve",
        /// Each later step has some time, beyond the grace period.
        Overrun = "Overrun",
        /// Hooks and defers are skipped when time is short.
        SkipHooks = "SkipHooks",
        /// A step with no time left kills at once.
        Strict = "Strict",
    }
}

impl GracePolicy {
    /// The shortest grace period that it can share; with less it is as [`Strict`](Self::Strict).
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
    /// In which order sidecars are stopped.
    #[derive(Default)]
    pub enum SidecarStopOrder {
        /// One after another, the one that started last first.
        #[default]
        Reverse = "Reverse",
        /// All at once.
        Parallel = "Parallel",
    }
}

words! {
    /// What a sidecar that the shim stopped reports.
    #[derive(Default)]
    pub enum SidecarExitCode {
        /// Always 0.
        #[default]
        Mask = "Mask",
        /// 0 for a death by signal, else its own.
        Signal = "Signal",
        /// Its own.
        Propagate = "Propagate",
    }
}

words! {
    /// What a defer container reports.
    #[derive(Default)]
    pub enum DeferExitCode {
        /// Always 0.
        #[default]
        Mask = "Mask",
        /// Its own.
        Propagate = "Propagate",
    }
}

words! {
    /// What becomes of sidecars' OOM scores.
    #[derive(Default)]
    pub enum OomScore {
        /// At most the lowest of the apps.
        #[default]
        Match = "Match",
        Off = "Off",
    }
}

words! {
    /// What becomes of the size of the pod's cgroup.
    #[derive(Default)]
    pub enum CgroupSizing {
        /// What the pod needs at any time of its life, from its first container to its last.
        #[default]
        Effective = "Effective",
        /// What the phase needs that the pod is in.
        Phase = "Phase",
        /// What its caller has given it.
        Off = "Off",
    }
}

/// How far a defer container may go past the grace deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum GraceExtension {
    /// As long as its liveness probe succeeds; at most `max`.
    Probe { max: Duration },
    /// By `interval`, at most `count` times and at most `max` in all.
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

// === impl Settings ===

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

// === impl GraceExtension ===

/// Reads a grace extension from JSON; it goes as far as is `usual` where it does not say how far.
///
/// # Errors
///
/// Anything but `{"probe": true}` and `{"intervalSeconds": S, "count": N}`, each with `maxSeconds`
/// or without.
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
