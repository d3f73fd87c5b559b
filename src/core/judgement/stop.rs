//! The stop plan: the steps of a termination, and the latest time at which each step ends.

use std::time::Duration;

use serde::Serialize;

use crate::lifecycle::{Budget, MIN_GRACE, RolePolicy, STEPS, Step};
use crate::manifest::Pod;
use crate::plan::{Plan, SidecarStopOrder, Stage};

use super::order::few;
use super::role;

/// The termination of a pod.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Termination {
    pub policy: String,
    pub grace_period_seconds: f64,
    /// Latest time at which the last container ends, in seconds since the first stop request.
    pub worst_case_seconds: f64,
    pub steps: Vec<StopStep>,
    /// The defer containers that are run again until they succeed, and the time that this may take.
    pub run_again: Vec<RunAgain>,
}

/// A defer container that runs again until it succeeds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RunAgain {
    pub container: String,
    /// Latest time at which the container is started again, in seconds since the first stop
    /// request.
    pub until_seconds: f64,
    /// The maximum time for all runs of the container together, in seconds; `None` if the pod's
    /// author has set none.
    pub cap_seconds: Option<f64>,
    /// Names of the defer containers and termination steps that come after this container. If there
    /// are any, two seconds of the grace period are reserved for each, and two for the stop of this
    /// container.
    pub behind: Vec<String>,
}

/// A step of the termination.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StopStep {
    pub step: String,
    pub containers: Vec<String>,
    /// True if the step's containers run or stop one after another.
    pub in_turn: bool,
    /// Latest time at which the step ends, in seconds since the first stop request.
    pub over_after_seconds: f64,
}

/// Computes the termination of a pod: the steps, and the latest time at which each step ends.
pub fn termination(plan: &Plan, pod: &Pod) -> Termination {
    let grace = grace_period(plan, pod);
    let budget = Budget::new(plan.settings(), grace);
    let present: Vec<(Step, Vec<String>)> = STEPS
        .into_iter()
        .map(|step| (step, containers(plan, pod, step)))
        .filter(|(_, containers)| !containers.is_empty())
        .collect();
    let capped = present
        .iter()
        .map(|(step, names)| (*step, longest(plan, pod, *step, names)));
    let capped: Vec<_> = capped.collect();
    let worst = budget.worst_case(&capped);
    let steps: Vec<StopStep> = present
        .into_iter()
        .zip(&worst)
        .map(|((step, containers), (_, over))| StopStep {
            step: step.word().to_owned(),
            in_turn: is_serial(plan, step) && containers.len() > 1,
            containers,
            over_after_seconds: over.as_secs_f64(),
        })
        .collect();
    Termination {
        policy: budget.policy.to_string(),
        grace_period_seconds: grace.as_secs_f64(),
        worst_case_seconds: worst.last().map_or(0.0, |(_, over)| over.as_secs_f64()),
        steps,
        run_again: run_again(plan, pod),
    }
}

/// All defer containers in the order in which they run.
fn defers(plan: &Plan) -> impl Iterator<Item = &String> {
    plan.pre_exit().iter().chain(plan.post_exit())
}

/// The defer containers that run again until they succeed.
fn run_again(plan: &Plan, pod: &Pod) -> Vec<RunAgain> {
    let grace = grace_period(plan, pod);
    let is_present = |step: Step| !containers(plan, pod, step).is_empty();
    let (apps, sidecars) = (is_present(Step::Apps), is_present(Step::Sidecars));
    let defers: Vec<&str> = defers(plan).map(String::as_str).collect();
    let of_defer = |(index, name): (usize, &&str)| {
        let own = plan.container(name);
        own.restart.filter(|policy| policy.restarts_failed())?;
        // Later defer containers and later steps need a part of the same grace period.
        let later = defers.get(index.saturating_add(1)..).unwrap_or_default();
        let is_pre_exit = index < plan.pre_exit().len();
        let steps = [
            (Step::Apps, apps && is_pre_exit),
            (Step::Sidecars, sidecars),
        ];
        let steps = steps.into_iter().filter(|(_, is_behind)| *is_behind);
        let mut behind = few(later.iter().copied());
        behind.extend(
            steps
                .clone()
                .map(|(step, _)| format!("the {}", step.word())),
        );
        // Two seconds are needed for each later container and step, and also for this container's
        // last run.
        let needed = match later.len().saturating_add(steps.count()) {
            0 => 0,
            count => u32::try_from(count).unwrap_or(u32::MAX).saturating_add(1),
        };
        let until = grace.saturating_sub(MIN_GRACE.saturating_mul(needed));
        Some(RunAgain {
            container: (*name).to_owned(),
            until_seconds: until.as_secs_f64(),
            cap_seconds: own.grace_period.map(|cap| cap.as_secs_f64()),
            behind,
        })
    };
    defers.iter().enumerate().filter_map(of_defer).collect()
}

/// The pod's grace period by its annotations, else by its spec.
fn grace_period(plan: &Plan, pod: &Pod) -> Duration {
    let annotated = plan.settings().grace_period;
    annotated.unwrap_or(pod.grace_period())
}

/// True if the containers of a step run or stop one after another.
fn is_serial(plan: &Plan, step: Step) -> bool {
    match step {
        Step::PreExit | Step::PostExit => true,
        Step::Sidecars => plan.settings().sidecar_stop_order == SidecarStopOrder::Reverse,
        Step::Hooks | Step::Apps | Step::Over => false,
    }
}

/// The longest time of a step if all its containers have time limits of their own. `None` if a
/// container has no limit.
fn longest(plan: &Plan, pod: &Pod, step: Step, names: &[String]) -> Option<Duration> {
    let caps = names.iter().map(|name| cap(plan, pod, step, name));
    let mut caps = caps.collect::<Option<Vec<_>>>()?.into_iter();
    match is_serial(plan, step) {
        true => Some(caps.fold(Duration::ZERO, Duration::saturating_add)),
        false => caps.by_ref().max(),
    }
}

/// The longest time that a container may take in a step, by the container's own time limit. For a
/// defer container, the time until SIGKILL, two seconds after the limit. `None` without a limit, in
/// the step of the hooks, and for an app or a sidecar with a preStop handler, because the limit
/// does not apply to the handler. Also `None` for an app or a sidecar that is not in the spec.
fn cap(plan: &Plan, pod: &Pod, step: Step, name: &str) -> Option<Duration> {
    let cap = plan.container(name).grace_period?;
    match step {
        // The limit applies to the time from the container's release to its stop signal. SIGKILL
        // comes later.
        Step::PreExit | Step::PostExit => Some(cap.saturating_add(MIN_GRACE)),
        // A preStop handler runs before the stop signal. The container's own time limit does not
        // apply to the handler, so the step can take any time.
        Step::Apps | Step::Sidecars => {
            let has_handler = pod.container(name)?.lifecycle.pre_stop.is_some();
            (!has_handler).then_some(cap)
        }
        Step::Hooks | Step::Over => None,
    }
}

/// The containers of a step in their order.
fn containers(plan: &Plan, pod: &Pod, step: Step) -> Vec<String> {
    let listed = pod.spec.containers.iter().map(|it| it.name.clone());
    match step {
        Step::Hooks => listed
            .filter(|name| plan.container(name).termination_hook.is_some())
            .collect(),
        Step::PreExit => plan.pre_exit().to_vec(),
        Step::Apps => listed
            .filter(|name| RolePolicy::of(role(plan, pod, name)).is_work)
            .collect(),
        Step::PostExit => plan.post_exit().to_vec(),
        Step::Sidecars => {
            let stages = plan.stages().iter().rev();
            let names = stages.flat_map(|Stage(names)| names.iter().rev());
            names
                .filter(|name| RolePolicy::of(plan.role(name)).step == Some(Step::Sidecars))
                .cloned()
                .collect()
        }
        Step::Over => Vec::new(),
    }
}
