//! The stop plan: the steps of a termination, and when each is over at worst.

use serde::Serialize;

use crate::lifecycle::{Budget, Duty, STEPS, Step};
use crate::manifest::Pod;
use crate::plan::{Plan, SidecarStopOrder, Stage};

use super::role;

/// How the pod ends.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Termination {
    pub policy: String,
    pub grace_period_seconds: f64,
    /// From the first request to the end of the last container, if each takes all the time it may.
    pub worst_case_seconds: f64,
    pub steps: Vec<StopStep>,
}

/// A step of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StopStep {
    pub step: String,
    pub containers: Vec<String>,
    /// Whether they go one after another.
    pub in_turn: bool,
    /// Since the first request, at worst.
    pub over_after_seconds: f64,
}

pub fn termination(plan: &Plan, pod: &Pod) -> Termination {
    let grace = plan.settings().grace_period.unwrap_or(pod.grace_period());
    let budget = Budget::new(plan.settings(), grace);
    let present: Vec<(Step, Vec<String>)> = STEPS
        .into_iter()
        .map(|step| (step, containers(plan, pod, step)))
        .filter(|(_, containers)| !containers.is_empty())
        .collect();
    let names: Vec<Step> = present.iter().map(|(step, _)| *step).collect();
    let worst = budget.worst_case(&names);
    let is_serial = |step| match step {
        Step::PreExit | Step::PostExit => true,
        Step::Sidecars => plan.settings().sidecar_stop_order == SidecarStopOrder::Reverse,
        Step::Hooks | Step::Apps | Step::Over => false,
    };
    let steps: Vec<StopStep> = present
        .into_iter()
        .zip(&worst)
        .map(|((step, containers), (_, over))| StopStep {
            step: step.word().to_owned(),
            in_turn: is_serial(step) && containers.len() > 1,
            containers,
            over_after_seconds: over.as_secs_f64(),
        })
        .collect();
    Termination {
        policy: budget.policy.to_string(),
        grace_period_seconds: grace.as_secs_f64(),
        worst_case_seconds: worst.last().map_or(0.0, |(_, over)| over.as_secs_f64()),
        steps,
    }
}

/// Those of a step, in their order.
fn containers(plan: &Plan, pod: &Pod, step: Step) -> Vec<String> {
    let listed = pod.spec.containers.iter().map(|it| it.name.clone());
    match step {
        Step::Hooks => listed
            .filter(|name| plan.container(name).termination_hook.is_some())
            .collect(),
        Step::PreExit => plan.pre_exit().to_vec(),
        Step::Apps => listed
            .filter(|name| Duty::of(role(plan, pod, name)).is_work)
            .collect(),
        Step::PostExit => plan.post_exit().to_vec(),
        Step::Sidecars => {
            let stages = plan.stages().iter().rev();
            let names = stages.flat_map(|Stage(names)| names.iter().rev());
            names
                .filter(|name| Duty::of(plan.role(name)).step == Some(Step::Sidecars))
                .cloned()
                .collect()
        }
        Step::Over => Vec::new(),
    }
}
