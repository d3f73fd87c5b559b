//! Judges a pod by its spec: predicts everything that the shim would do with the pod. The commands
//! and the webhook, which know a pod before its containers are created, call this module.
//!
//! This module decides nothing itself. It takes the plan from the shim's own parser
//! ([`crate::plan`]), times from the shim's termination ([`crate::lifecycle::Budget`]), and sizes
//! from the shim's sizing ([`crate::sizing`]).
//!
//! | module | contents |
//! |---|---|
//! | `start` | what each container waits for, and what its Start looks like to kubelet |
//! | `stop` | the steps of a termination, and the latest time at which each ends |
//! | `sizes` | the size of the pod in each phase, its QoS class |
//! | `warnings` | parts of a manifest that do not do what they seem to do |
//! | `order` | the start order, as seen from a manifest |
//! | `names` | patterns and optional names, replaced by the names of the pod's containers |
//! | `complete` | annotations that follow from the spec |
//! | `fields` | single fields of the spec as annotations |

#[cfg(test)]
mod bounds;
mod complete;
mod fields;
mod names;
mod order;
mod sizes;
mod start;
mod stop;
#[cfg(test)]
mod tests;
mod warnings;

use crate::manifest::Pod;
use crate::plan::{Plan, Role, Rules};

use names::without_patterns;

pub use complete::{Completion, CompletionError, complete, concerns, restarts};
pub use fields::{UnusableStopSignal, probe, stop_signal};
pub use names::PatternsError;
pub use sizes::{Amounts, Phase, Resources, bytes, cpus, resources};
pub use start::{ADDED_LATER, Entry, Held, added_later, entries, shown};
pub use stop::{RunAgain, StopStep, Termination, termination};
pub use warnings::Warning;

/// The judgement of a pod: the plan, the errors with which the shim would refuse the pod, and
/// warnings.
#[derive(Debug, Clone)]
pub struct Judgement {
    /// The plan of the pod; `None` if usher does not handle the pod, or if its annotations are
    /// invalid.
    pub plan: Option<Plan>,
    /// The error message with which the shim would refuse the pod.
    pub refused: Option<String>,
    /// Further reasons to refuse the pod, which remain when the first reason is fixed.
    pub also_refused: Vec<String>,
    pub warnings: Vec<Warning>,
}

impl Judgement {
    /// Judges a pod by the rules of a node. Patterns in the pod's lists are replaced by the names
    /// that they match.
    pub fn of(pod: &Pod, rules: &Rules) -> Judgement {
        let read = without_patterns(&pod.annotations, pod).map(|annotations| {
            match Plan::parse_all(&annotations, rules) {
                Ok(reading) => (Some(reading.plan), Vec::new()),
                // If only the node's rules forbid the annotations, the plan is made without the
                // rules.
                Err(refusals) => (
                    Plan::parse(&annotations).ok(),
                    refusals.sentences().collect(),
                ),
            }
        });
        let (plan, mut refusals) = read.unwrap_or_else(|error| (None, vec![error.to_string()]));
        let also_refused = refusals.split_off(refusals.len().min(1));
        let refused = refusals.pop();
        let plan = plan.map(|mut plan| {
            plan.mark_all_present(pod.all().map(|it| it.name.as_str()));
            plan
        });
        let plan = plan.filter(|plan| !plan.is_empty());
        let mut warnings = warnings::of_keys(pod);
        warnings.extend(warnings::of_patterns(pod));
        warnings.extend(warnings::of_names(pod));
        warnings.extend(warnings::of(plan.as_ref(), pod));
        Judgement {
            warnings,
            plan,
            refused,
            also_refused,
        }
    }

    /// All reasons to refuse the pod, the first reason first.
    pub fn refusals(self) -> Vec<String> {
        self.refused.into_iter().chain(self.also_refused).collect()
    }
}

/// The role of a container. A container in `initContainers` is a native init, unless a list or the
/// node's rules make it an init, sidecar or defer container.
fn role(plan: &Plan, pod: &Pod, name: &str) -> Role {
    match plan.role(name) {
        Role::App | Role::Guest if pod.has_init_container(name) => Role::NativeInit,
        role => role,
    }
}
