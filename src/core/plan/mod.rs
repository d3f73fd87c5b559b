//! What the annotations of one container say about its pod: the plan.
//!
//! Pure: no I/O, no clock. Annotations come from pod authors, so nothing in here panics, recurses
//! without bound, or takes more memory than a small multiple of its input; bad input is refused
//! with one sentence that names the key, the value and what was expected ([`PlanError`]).
//!
//! [`Plan`] is what the pod's author says. What kubelet says is in [`kubelet`], and who a container
//! is, in [`identity`].

mod container;
mod draft;
mod duration;
mod error;
mod handler;
mod hook;
pub mod identity;
mod json;
mod key;
pub mod kubelet;
mod list;
mod probe;
mod quantity;
mod resources;
mod role;
mod rules;
mod settings;
mod signal;
#[cfg(test)]
mod tests;
mod word;

use std::collections::{BTreeMap, BTreeSet};

pub use container::ContainerPlan;
pub use duration::MAX_SECONDS;
pub use duration::parse as parse_duration;
pub use error::{PlanError, Problem};
pub use handler::{Host, HttpGet, Port, Scheme};
pub use hook::Hook;
pub use identity::{ContainerKind, Identity, PodIdentity};
pub use key::{ContainerSetting, PodSetting};
pub use kubelet::{Allotment, KubeletFacts, PreStop};
pub use probe::{Check, Probe};
pub use resources::{Amounts, Resources};
pub use role::{DeferTurn, Role, Stage};
pub use rules::{Limits, Minimums, Reading, Rules, UnknownKeys};
pub use settings::{
    CgroupSizing, DeferExitCode, GraceExtension, GracePolicy, OomScore, RestartPolicy, Settings,
    SidecarExitCode, SidecarStopOrder, StartMode, USUAL_GRACE_PERIOD,
};
pub use signal::{ParseSignalError, Signal};
pub use word::Word;

use role::Cast;

/// Everything the usher annotations of a pod say, free of contradictions: a container has one
/// role, every init and sidecar container is in exactly one stage, and a container has only
/// settings that its role has a use for.
///
/// Two plans are equal when they say the same, whatever the annotations look like.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Plan {
    /// Whether any usher key was there at all.
    given: bool,
    cast: Cast,
    containers: BTreeMap<String, ContainerPlan>,
    settings: Settings,
}

impl Plan {
    /// Reads all `usher/*` and `*.usher/*` keys of one container's (or sandbox's) annotations.
    ///
    /// # Errors
    ///
    /// The first thing that the annotation contract does not allow.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use usher_core::plan::{Plan, Role};
    ///
    /// let annotations = BTreeMap::from([("usher/sidecars".to_owned(), "proxy, logs".to_owned())]);
    /// let plan = Plan::parse(&annotations).unwrap();
    /// assert_eq!(plan.role("logs"), Role::Sidecar);
    /// assert_eq!(plan.role("web"), Role::App);
    /// ```
    pub fn parse(annotations: &BTreeMap<String, String>) -> Result<Plan, PlanError> {
        Plan::parse_under(annotations, &Rules::default()).map(|reading| reading.plan)
    }

    /// Whether no usher key was given at all: the pod is none of our business.
    pub fn is_empty(&self) -> bool {
        !self.given
    }

    /// The role of the container `name`. One in no list is an app; a guest where `apps` was given,
    /// and where the plan is empty.
    pub fn role(&self, name: &str) -> Role {
        if self.is_empty() {
            Role::Guest
        } else {
            self.cast.role(name)
        }
    }

    /// The init and sidecar containers in the order in which they start.
    pub fn stages(&self) -> &[Stage] {
        &self.cast.stages
    }

    /// The index in [`Plan::stages`] of the stage that the init or sidecar container `name` is in.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.cast
            .stages
            .iter()
            .position(|Stage(names)| names.iter().any(|other| other == name))
    }

    /// The init containers, as listed.
    pub fn init(&self) -> &[String] {
        &self.cast.init
    }

    /// The caller's own init containers, as listed.
    pub fn native_init(&self) -> &[String] {
        &self.cast.native_init
    }

    /// The sidecars, as listed; [`Plan::stages`] has them in start order.
    pub fn sidecars(&self) -> &[String] {
        &self.cast.sidecars
    }

    /// The apps where they were listed; never an empty set.
    pub fn apps(&self) -> Option<&BTreeSet<String>> {
        self.cast.apps.as_ref()
    }

    /// The defer containers that run before the apps are stopped, in order.
    pub fn pre_exit(&self) -> &[String] {
        &self.cast.pre_exit
    }

    /// The defer containers that run after the apps have stopped, in order.
    pub fn post_exit(&self) -> &[String] {
        &self.cast.post_exit
    }

    /// What is said about the container `name` alone; a default one where nothing is.
    pub fn container(&self, name: &str) -> &ContainerPlan {
        self.containers.get(name).unwrap_or(&ContainerPlan::NOTHING)
    }

    /// Whether any container has a termination hook.
    pub fn has_termination_hooks(&self) -> bool {
        let mut plans = self.containers.values();
        plans.any(|plan| plan.termination_hook.is_some())
    }

    /// The pod-wide settings that are no lists of roles.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
