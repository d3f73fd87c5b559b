//! Reads a pod's plan (the roles and settings of its containers) from the annotations of one of the
//! containers.
//!
//! Pure: no I/O, no clock. Annotations come from pod authors, so nothing in here panics, recurses
//! without bound, or takes more memory than a small multiple of its input. Bad input is refused
//! with one sentence that names the key, the value and what was expected ([`PlanError`]).
//!
//! [`Plan`] has the settings of the pod's author, [`kubelet`] has facts that kubelet writes, and
//! [`identity`] tells which container and pod the annotations are from.

mod container;
mod draft;
mod duration;
mod error;
mod exit_codes;
mod handler;
mod hook;
pub mod identity;
mod json;
mod key;
pub mod kubelet;
mod list;
mod pattern;
mod probe;
mod quantity;
pub mod reference;
mod resources;
mod role;
mod role_assignment;
mod rules;
mod sandbox;
mod settings;
mod signal;
#[cfg(test)]
mod tests;
mod word;

use std::collections::{BTreeMap, BTreeSet};

pub use container::ContainerPlan;
pub use duration::MAX_SECONDS;
pub use duration::parse as parse_duration;
pub(crate) use error::MAX_VALUE_BYTES;
pub use error::{PlanError, Problem, Refusals};
pub use exit_codes::ExitCodes;
pub use handler::{Host, HttpGet, Port, Scheme};
pub use hook::Hook;
pub use identity::{ContainerKind, Identity, PodIdentity};
pub use json::Object;
pub use key::{ContainerSetting, PodSetting, is_usher_key};
pub use kubelet::{Allotment, KubeletFacts, PreStop, termination_message_path};
pub(crate) use list::{
    MAX_NAME_CHARS, MAX_NAMES, is_container_name, is_near, without_mark, words as list_words,
};
pub use pattern::{Pattern, PatternError, Roles, RolesError};
pub use probe::{Check, Probe};
pub use resources::{Amounts, Resources};
pub use role::{DeferTurn, Origin, Role, Stage};
pub(crate) use role_assignment::{gives_a_role, lists, role_of_list};
pub use rules::{Limits, Minimums, Reading, Rules, UnknownKeys};
pub use sandbox::{SandboxFacts, sandbox_annotations};
pub use settings::{
    CgroupSizing, DeferExitCode, GraceExtension, GracePolicy, OomScore, RestartPolicy, Settings,
    SidecarExitCode, SidecarStopOrder, StartMode, USUAL_GRACE_PERIOD,
};
pub use signal::{ParseSignalError, Signal};
pub use word::Word;

use role_assignment::RoleAssignment;

/// The content of a pod's usher annotations, free of contradictions: a container has one role,
/// every init and sidecar container is in exactly one [`Stage`], and a container has only settings
/// that have an effect in its role.
///
/// An optional name (`NAME?`) is in a list of the plan only once a container of that name is
/// [present](Plan::mark_present). A sidecar that only the node's rules ([`Roles`]) name is
/// optional, too.
///
/// Two plans are equal if the content is the same, even if the annotations are written differently,
/// and if the same optional containers are present.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Plan {
    /// True if the annotations have any usher key.
    given: bool,
    assignment: RoleAssignment,
    containers: BTreeMap<String, ContainerPlan>,
    settings: Settings,
}

impl Plan {
    /// Reads all `usher/*` and `*.usher/*` keys of one container's (or sandbox's) annotations.
    ///
    /// # Errors
    ///
    /// The first violation of the annotation contract that is found.
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

    /// True if usher leaves the pod alone: the pod has no annotation of usher, and none of its
    /// present containers has a role from the node's rules.
    pub fn is_empty(&self) -> bool {
        !self.given && !self.assignment.has_one_of_node()
    }

    /// The role of the container `name`: from a list of the pod, else from the node's rules. Any
    /// other container is an app, or a [guest](Role::Guest) if the pod lists its apps. Without
    /// usher keys, every container is a guest, unless the node's rules apply to such pods, too.
    pub fn role(&self, name: &str) -> Role {
        match self.given || self.assignment.is_for_all_pods() {
            true => self.assignment.role(name),
            false => Role::Guest,
        }
    }

    /// The reason why the container `name` has its role.
    pub fn origin(&self, name: &str) -> Origin {
        match self.given || self.assignment.is_for_all_pods() {
            true => self.assignment.origin(name),
            false => Origin::Default,
        }
    }

    pub fn is_optional(&self, name: &str) -> bool {
        self.origin(name) != Origin::Default && self.assignment.is_optional(name)
    }

    /// Records that a container of this name is present. If the name is optional, its list contains
    /// the name from now on.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use usher_core::plan::Plan;
    ///
    /// let annotations = BTreeMap::from([("usher/sidecars".to_owned(), "proxy?, logs".to_owned())]);
    /// let mut plan = Plan::parse(&annotations).unwrap();
    /// assert_eq!(plan.sidecars(), ["logs"]);
    /// plan.mark_present("proxy");
    /// assert_eq!(plan.sidecars(), ["proxy", "logs"]);
    /// ```
    pub fn mark_present(&mut self, name: &str) {
        self.mark_all_present(std::iter::once(name));
    }

    pub fn mark_all_present<'a>(&mut self, names: impl Iterator<Item = &'a str>) {
        if self.given || self.assignment.is_for_all_pods() {
            self.assignment.mark_all_present(names);
        }
    }

    /// True if both plans have the same content, whichever optional containers are present.
    pub fn is_written_as(&self, other: &Plan) -> bool {
        if self.assignment.is_as_written() && other.assignment.is_as_written() {
            return self == other;
        }
        let written = |plan: &Plan| {
            let mut plan = plan.clone();
            plan.forget_who_came();
            plan
        };
        written(self) == written(other)
    }

    /// Forgets which optional containers are present.
    pub fn forget_who_came(&mut self) {
        self.assignment.forget_who_came();
    }

    /// The init and sidecar containers in the order in which they start.
    pub fn stages(&self) -> &[Stage] {
        &self.assignment.order.stages
    }

    /// The index in [`Plan::stages`] of the stage with the container `name`.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.assignment
            .order
            .stages
            .iter()
            .position(|Stage(names)| names.iter().any(|other| other == name))
    }

    /// The init containers in the order of their list.
    pub fn init(&self) -> &[String] {
        &self.assignment.order.init
    }

    /// The native init containers, in the order of their list. kubelet itself starts them in order.
    pub fn native_init(&self) -> &[String] {
        &self.assignment.native_init
    }

    /// The sidecars, as listed; [`Plan::stages`] has them in start order.
    pub fn sidecars(&self) -> &[String] {
        &self.assignment.order.sidecars
    }

    /// The listed apps, or `None` if the pod lists none; never an empty set.
    pub fn apps(&self) -> Option<&BTreeSet<String>> {
        self.assignment.apps.as_ref()
    }

    /// The defer containers that run before the apps are stopped, in order.
    pub fn pre_exit(&self) -> &[String] {
        &self.assignment.order.pre_exit
    }

    /// The defer containers that run after the apps have stopped, in order.
    pub fn post_exit(&self) -> &[String] {
        &self.assignment.order.post_exit
    }

    /// The settings of the container `name`, or default ones.
    pub fn container(&self, name: &str) -> &ContainerPlan {
        self.containers.get(name).unwrap_or(&ContainerPlan::NOTHING)
    }

    /// The restart policy of the container `name`: its own, else the pod's.
    pub fn restart_policy(&self, name: &str) -> RestartPolicy {
        let own = self.container(name).restart_policy;
        own.unwrap_or(self.settings.restart_policy)
    }

    /// True if the caller (kubelet) creates the container `name` again after an exit with `code`,
    /// according to the container's restart policy or its setting `caller-restarts`.
    ///
    /// ```
    /// use std::collections::BTreeMap;
    /// use usher_core::plan::Plan;
    ///
    /// let annotations = [
    ///     ("usher/restart-policy", "Never"),
    ///     ("caller-restarts.usher/web", "42"),
    ///     ("restart-policy.usher/report", "OnFailure"),
    /// ];
    /// let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
    /// let plan = Plan::parse(&BTreeMap::from(annotations)).unwrap();
    /// assert!(plan.is_created_again("web", 42) && !plan.is_created_again("web", 1));
    /// assert!(plan.is_created_again("report", 1) && !plan.is_created_again("report", 0));
    /// ```
    pub fn is_created_again(&self, name: &str, code: u32) -> bool {
        self.creates_again(name)(code)
    }

    /// As `is_created_again`, for many exit codes of one container.
    pub fn creates_again(&self, name: &str) -> impl Fn(u32) -> bool + use<'_> {
        let by_code = &self.container(name).caller_restarts;
        let policy = self.restart_policy(name);
        move |code| by_code.contains(code) || policy.restarts(code)
    }

    pub fn has_termination_hooks(&self) -> bool {
        let mut plans = self.containers.values();
        plans.any(|plan| plan.termination_hook.is_some())
    }

    /// The pod-wide settings other than lists of roles.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
}
