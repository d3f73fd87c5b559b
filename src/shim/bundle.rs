//! Reads the pod's plan and the description of a new container from the facts of a container's
//! bundle.

use crate::calls::{CallError, Kind};
use usher_core::lifecycle::{BundleFacts, Demands, NewContainer};
use usher_core::plan::identity::group;
use usher_core::plan::{Identity, KubeletFacts, Plan, Rules};
use usher_engine::Facts;

/// Reads the pod's plan from the annotations in a container's bundle, under the administrator's
/// rules. Logs unknown annotations if the rules allow them. `id` is the container's id.
///
/// # Errors
///
/// [`Kind::InvalidArgument`] if an annotation is invalid, or if the rules do not allow it.
pub(crate) fn plan(id: &str, facts: &Facts, rules: &Rules) -> Result<Plan, CallError> {
    let reading = Plan::parse_under(&facts.annotations, rules)
        .map_err(|error| CallError::new(Kind::InvalidArgument, error.to_string()))?;
    for unknown in &reading.ignored {
        tracing::warn!(container = id, "ignored: {unknown}");
    }
    Ok(reading.plan)
}

/// Builds the core's description of a new container from the facts of its bundle. `id` is the
/// container's id.
pub(crate) fn new_container(id: &str, facts: &Facts) -> NewContainer {
    let identity = Identity::read(id, &facts.annotations);
    NewContainer {
        name: identity.name,
        kind: identity.kind,
        facts: KubeletFacts::read(&facts.annotations),
        demands: Demands {
            oom_score: facts.oom_score,
            size: facts.size,
        },
        is_ungrouped: group(&facts.annotations).is_none(),
        bundle: BundleFacts {
            has_own_pid_namespace: facts.has_own_pid_namespace,
            has_poststop_hooks: facts.has_poststop_hooks,
        },
    }
}
