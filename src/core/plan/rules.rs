//! A node administrator's rules for the annotations of all pods.

use std::collections::BTreeMap;
use std::time::Duration;

use super::draft::Draft;
use super::error::{Entry, Found, PlanError, Problem, REFUSALS_AT_MOST, Refusals};
use super::key::{ContainerSetting, Key, PodSetting};
use super::pattern::Roles;
use super::settings::{GraceExtension, Settings};
use super::word::words;
use super::{ContainerPlan, Hook, Plan, Probe};

/// The rules of a node. [`Rules::default`] leaves everything to the pods' authors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Rules {
    /// False if the node ignores all annotations.
    pub enabled: bool,
    pub unknown_keys: UnknownKeys,
    /// Roles of injected containers.
    pub roles: Roles,
    /// The settings that apply where a pod's annotations set none.
    pub(super) defaults: Settings,
    pub(super) unsaid: Unsaid,
    pub(super) limits: Limits,
    pub(super) minimums: Minimums,
}

/// The defaults of Kubernetes and usher for the JSON fields that an author leaves out. They are
/// adjusted to the node's bounds, so that no pod is refused for a missing field. Always valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Unsaid {
    pub(super) probe_period: Duration,
    pub(super) probe_timeout: Duration,
    pub(super) probe_failure_threshold: u32,
    /// `maxSeconds` of a grace extension.
    pub(super) grace_extension: Duration,
}

words! {
    /// The treatment of keys that this version does not know.
    #[derive(Default)]
    pub enum UnknownKeys {
        #[default]
        Refuse = "Refuse",
        /// Ignores the key with a warning, because a newer version of usher on other nodes may know
        /// it.
        Warn = "Warn",
    }
}

/// Upper limits for annotations, in addition to the bounds that hold on every node. `None` adds no
/// limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Limit for the grace period of a pod or container.
    pub grace_period: Option<Duration>,
    pub startup_timeout: Option<Duration>,
    pub termination_window: Option<Duration>,
    /// Limit for the total time of a grace extension.
    pub grace_extension: Option<Duration>,
    pub grace_extension_count: Option<u32>,
    pub probe_initial_delay: Option<Duration>,
    pub probe_period: Option<Duration>,
    pub probe_timeout: Option<Duration>,
    pub probe_failure_threshold: Option<u32>,
    /// Limit for the time of a termination hook that only waits (`sleep`).
    pub hook_sleep: Option<Duration>,
    /// Limit for the number of names in one list.
    pub names: Option<u32>,
}

/// Minimum values for annotations, because small values burden the node or other pods. They apply
/// in addition to the bounds that hold on every node. `None` adds no minimum.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Minimums {
    /// Minimum for the grace period of a pod or container.
    pub grace_period: Option<Duration>,
    pub startup_timeout: Option<Duration>,
    pub termination_window: Option<Duration>,
    pub probe_period: Option<Duration>,
}

/// A requested value, and the limit that it is compared with.
#[derive(Debug, Clone, Copy)]
enum LimitCheck {
    Time(Duration, Option<Duration>),
    Count(u32, Option<u32>),
    /// A requested value, and the smallest value that is allowed.
    Least(Duration, Option<Duration>),
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            enabled: true,
            unknown_keys: UnknownKeys::default(),
            roles: Roles::default(),
            defaults: Settings::default(),
            unsaid: Unsaid::default(),
            limits: Limits::default(),
            minimums: Minimums::default(),
        }
    }
}

impl Rules {
    /// Makes rules. `defaults` maps the names of settings (`start-mode`) to values, which are
    /// written as in annotations.
    ///
    /// Bounds apply to defaults, too, so that a default alone is never a reason to refuse a pod. A
    /// default of usher itself is lowered to its limit. Every default, even one in `defaults`, is
    /// raised to its minimum.
    ///
    /// # Errors
    ///
    /// An error as for annotations, a value in `defaults` above its limit, or a setting that only a
    /// pod can have, such as a list of its containers or its restart policy.
    pub fn new(
        defaults: &BTreeMap<String, String>,
        limits: Limits,
        minimums: Minimums,
    ) -> Result<Rules, PlanError> {
        let annotations = defaults
            .iter()
            .map(|(setting, value)| (format!("usher/{setting}"), value.clone()))
            .collect();
        let mut rules = Rules {
            unsaid: Unsaid::within(&limits, &minimums),
            limits,
            ..Rules::default()
        };
        let plan = Plan::parse_under(&annotations, &rules)?.plan;
        for (key, value) in &annotations {
            let entry = Entry { key, value };
            if let Some(Key::Pod(setting)) = Key::read(entry)?
                && !has_default(setting)
            {
                return Err(entry.invalid(Problem::new(
                    "is no default; expected a setting that is not about single containers",
                )));
            }
        }
        let mut settings = plan.settings;
        lower(&mut settings.startup_timeout, limits.startup_timeout);
        lower(&mut settings.termination_window, limits.termination_window);
        if let Some(period) = settings.grace_period.take() {
            // The pod's author chooses kubelet's grace period, so it overrides the node's default.
            settings.usual_grace_period = period;
        }
        lower(&mut settings.usual_grace_period, limits.grace_period);
        raise(&mut settings.startup_timeout, minimums.startup_timeout);
        raise(
            &mut settings.termination_window,
            minimums.termination_window,
        );
        raise(&mut settings.usual_grace_period, minimums.grace_period);
        rules.minimums = minimums;
        rules.defaults = settings;
        Ok(rules)
    }
}

impl Rules {
    /// Refuses a container's setting above its limit or below its minimum.
    pub(super) fn check_container(
        &self,
        setting: ContainerSetting,
        container: &ContainerPlan,
        entry: Entry<'_>,
    ) -> Result<(), PlanError> {
        let least = self.minimums.of_container(setting, container);
        let checks = self.limits.of_container(setting, container);
        check_limits(checks.into_iter().chain(least), entry)
    }
}

fn lower<T: Ord + Copy>(value: &mut T, limit: Option<T>) {
    *value = limit.map_or(*value, |limit| limit.min(*value));
}

fn raise<T: Ord + Copy>(value: &mut T, least: Option<T>) {
    *value = least.map_or(*value, |least| least.max(*value));
}

/// True if a node can set a default for this setting: not for lists of containers, and not for the
/// restart policy.
fn has_default(setting: PodSetting) -> bool {
    use PodSetting::{
        Apps, Essential, Init, NativeInit, PostExit, PreExit, RestartPolicy, Sidecars, StartupOrder,
    };
    !matches!(
        setting,
        Init | NativeInit
            | Sidecars
            | Apps
            | PreExit
            | PostExit
            | StartupOrder
            | Essential
            | RestartPolicy
    )
}

/// A plan, and the ignored annotations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reading {
    pub plan: Plan,
    /// Errors for the first few ignored annotations; empty unless the rules allow unknown keys.
    pub ignored: Vec<PlanError>,
    /// Size in bytes of all annotations that usher knows, with their keys.
    pub bytes: usize,
}

impl Plan {
    /// Reads annotations as [`Plan::parse`], under a node's rules.
    ///
    /// # Errors
    ///
    /// As [`Plan::parse`], and for a value above its limit or below its minimum.
    pub fn parse_under(
        annotations: &BTreeMap<String, String>,
        rules: &Rules,
    ) -> Result<Reading, PlanError> {
        read(annotations, rules, 1).map_err(|refusals| refusals.first)
    }

    /// Reads annotations as [`Plan::parse_under`], but continues after errors.
    ///
    /// # Errors
    ///
    /// All errors. The first is the error of [`Plan::parse_under`].
    pub fn parse_all(
        annotations: &BTreeMap<String, String>,
        rules: &Rules,
    ) -> Result<Reading, Refusals> {
        read(annotations, rules, REFUSALS_AT_MOST)
    }
}

fn read(
    annotations: &BTreeMap<String, String>,
    rules: &Rules,
    refusals_at_most: usize,
) -> Result<Reading, Refusals> {
    let empty = BTreeMap::new();
    let annotations = if rules.enabled { annotations } else { &empty };
    let reading = Draft::read(annotations, rules, Found::at_most(refusals_at_most))?;
    let mut found = Found::at_most(refusals_at_most);
    check(&reading.plan, annotations, rules, &mut found);
    found.nothing_or(reading)
}

/// Refuses each annotation above its limit or below its minimum.
fn check(plan: &Plan, annotations: &BTreeMap<String, String>, rules: &Rules, found: &mut Found) {
    let Rules {
        limits, minimums, ..
    } = rules;
    if *limits == Limits::default() && *minimums == Minimums::default() {
        return;
    }
    for (key, value) in annotations {
        if found.is_full() {
            return;
        }
        let entry = Entry { key, value };
        match Key::read(entry) {
            Ok(Some(Key::Pod(setting))) => {
                let least = minimums.of_pod(setting, plan);
                let checks = limits.of_pod(setting, plan).into_iter().chain(least);
                found.ok(check_limits(checks, entry));
            }
            Ok(Some(Key::Container(setting, name))) => {
                found.ok(rules.check_container(setting, plan.container(name), entry));
            }
            // An unreadable key was reported already.
            Ok(None) | Err(_) => {}
        }
    }
}

fn check_limits(
    checks: impl Iterator<Item = (&'static str, LimitCheck)>,
    entry: Entry<'_>,
) -> Result<(), PlanError> {
    for (what, check) in checks {
        check
            .check(what)
            .map_err(|problem| entry.invalid(problem))?;
    }
    Ok(())
}

impl Default for Unsaid {
    fn default() -> Unsaid {
        Unsaid {
            probe_period: Duration::from_secs(10),
            probe_timeout: Duration::from_secs(1),
            probe_failure_threshold: 3,
            grace_extension: Duration::from_secs(100),
        }
    }
}

impl Unsaid {
    /// The default values, lowered to the node's limits and raised to its minimums. The defaults
    /// for probes are also raised to the smallest valid values, even above the node's limits.
    fn within(limits: &Limits, minimums: &Minimums) -> Unsaid {
        const SHORTEST: Duration = Duration::from_millis(1);
        let mut unsaid = Unsaid::default();
        lower(&mut unsaid.probe_period, limits.probe_period);
        raise(
            &mut unsaid.probe_period,
            minimums.probe_period.max(Some(SHORTEST)),
        );
        lower(&mut unsaid.probe_timeout, limits.probe_timeout);
        raise(&mut unsaid.probe_timeout, Some(SHORTEST));
        lower(
            &mut unsaid.probe_failure_threshold,
            limits.probe_failure_threshold,
        );
        raise(&mut unsaid.probe_failure_threshold, Some(1));
        lower(&mut unsaid.grace_extension, limits.grace_extension);
        unsaid
    }
}

type LimitChecks = Vec<(&'static str, LimitCheck)>;

impl Limits {
    fn of_pod(&self, setting: PodSetting, plan: &Plan) -> LimitChecks {
        let (settings, written) = (&plan.settings, plan.assignment.written());
        let names = |count: usize| {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            vec![("has too many names", LimitCheck::Count(count, self.names))]
        };
        let time = |time, limit| vec![("is too long", LimitCheck::Time(time, limit))];
        match setting {
            PodSetting::Init => names(written.init.len()),
            PodSetting::NativeInit => names(plan.native_init().len()),
            PodSetting::Sidecars => names(written.sidecars.len()),
            PodSetting::Apps => names(plan.apps().map_or(0, |apps| apps.len())),
            PodSetting::PreExit => names(written.pre_exit.len()),
            PodSetting::PostExit => names(written.post_exit.len()),
            PodSetting::StartupOrder => names(written.stages.len()),
            PodSetting::Essential => names(settings.essential.len()),
            PodSetting::StartupTimeout => time(settings.startup_timeout, self.startup_timeout),
            PodSetting::GracePeriod => {
                time(settings.grace_period.unwrap_or_default(), self.grace_period)
            }
            PodSetting::TerminationWindow => {
                time(settings.termination_window, self.termination_window)
            }
            PodSetting::GraceExtension => {
                let (max, count) = match settings.grace_extension {
                    Some(GraceExtension::Probe { max }) => (max, 0),
                    Some(GraceExtension::Interval { max, count, .. }) => (max, count),
                    None => return Vec::new(),
                };
                vec![
                    (
                        "has a maxSeconds that is too long",
                        LimitCheck::Time(max, self.grace_extension),
                    ),
                    (
                        "has too large a count",
                        LimitCheck::Count(count, self.grace_extension_count),
                    ),
                ]
            }
            PodSetting::StartMode
            | PodSetting::RestartPolicy
            | PodSetting::GracePolicy
            | PodSetting::SidecarStopOrder
            | PodSetting::SidecarExitCode
            | PodSetting::DeferExitCode
            | PodSetting::OomScore
            | PodSetting::CgroupSizing => Vec::new(),
        }
    }

    fn of_container(&self, setting: ContainerSetting, container: &ContainerPlan) -> LimitChecks {
        match setting {
            ContainerSetting::StartupProbe => self.of_probe(container.startup_probe.as_ref()),
            ContainerSetting::LivenessProbe => self.of_probe(container.liveness_probe.as_ref()),
            ContainerSetting::GracePeriod => vec![(
                "is too long",
                LimitCheck::Time(
                    container.grace_period.unwrap_or_default(),
                    self.grace_period,
                ),
            )],
            ContainerSetting::TerminationHook => match container.termination_hook {
                Some(Hook::Sleep(time)) => {
                    vec![("sleeps too long", LimitCheck::Time(time, self.hook_sleep))]
                }
                _ => Vec::new(),
            },
            ContainerSetting::RestartPolicy
            | ContainerSetting::CallerRestarts
            | ContainerSetting::Restart
            | ContainerSetting::StopSignal
            | ContainerSetting::Resources => Vec::new(),
        }
    }

    fn of_probe(&self, probe: Option<&Probe>) -> LimitChecks {
        let Some(probe) = probe else {
            return Vec::new();
        };
        vec![
            (
                "has an initialDelaySeconds that is too long",
                LimitCheck::Time(probe.initial_delay, self.probe_initial_delay),
            ),
            (
                "has a period that is too long",
                LimitCheck::Time(probe.period, self.probe_period),
            ),
            (
                "has a timeoutSeconds that is too long",
                LimitCheck::Time(probe.timeout, self.probe_timeout),
            ),
            (
                "has too large a failureThreshold",
                LimitCheck::Count(probe.failure_threshold, self.probe_failure_threshold),
            ),
        ]
    }
}

impl Minimums {
    fn of_pod(&self, setting: PodSetting, plan: &Plan) -> Option<(&'static str, LimitCheck)> {
        let settings = &plan.settings;
        let (time, least) = match setting {
            PodSetting::StartupTimeout => (settings.startup_timeout, self.startup_timeout),
            PodSetting::GracePeriod => (settings.grace_period?, self.grace_period),
            PodSetting::TerminationWindow => (settings.termination_window, self.termination_window),
            PodSetting::Init
            | PodSetting::NativeInit
            | PodSetting::Sidecars
            | PodSetting::Apps
            | PodSetting::PreExit
            | PodSetting::PostExit
            | PodSetting::StartupOrder
            | PodSetting::StartMode
            | PodSetting::RestartPolicy
            | PodSetting::Essential
            | PodSetting::GracePolicy
            | PodSetting::SidecarStopOrder
            | PodSetting::SidecarExitCode
            | PodSetting::DeferExitCode
            | PodSetting::GraceExtension
            | PodSetting::OomScore
            | PodSetting::CgroupSizing => return None,
        };
        Some(("is too short", LimitCheck::Least(time, least)))
    }

    fn of_container(
        &self,
        setting: ContainerSetting,
        container: &ContainerPlan,
    ) -> Option<(&'static str, LimitCheck)> {
        let probe = match setting {
            ContainerSetting::StartupProbe => container.startup_probe.as_ref(),
            ContainerSetting::LivenessProbe => container.liveness_probe.as_ref(),
            ContainerSetting::GracePeriod => {
                let check = LimitCheck::Least(container.grace_period?, self.grace_period);
                return Some(("is too short", check));
            }
            ContainerSetting::RestartPolicy
            | ContainerSetting::CallerRestarts
            | ContainerSetting::TerminationHook
            | ContainerSetting::Restart
            | ContainerSetting::StopSignal
            | ContainerSetting::Resources => return None,
        };
        let check = LimitCheck::Least(probe?.period, self.probe_period);
        Some(("has a period that is too short", check))
    }
}

impl LimitCheck {
    fn check(self, what: &str) -> Result<(), Problem> {
        match self {
            LimitCheck::Time(time, Some(limit)) if time > limit => Err(Problem::new(format!(
                "{what} for this node ({time:?}); expected at most {limit:?}"
            ))),
            LimitCheck::Count(count, Some(limit)) if count > limit => Err(Problem::new(format!(
                "{what} for this node ({count}); expected at most {limit}"
            ))),
            LimitCheck::Least(time, Some(least)) if time < least => Err(Problem::new(format!(
                "{what} for this node ({time:?}); expected at least {least:?}"
            ))),
            _ => Ok(()),
        }
    }
}
