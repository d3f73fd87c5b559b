//! Gates: which names a container still waits for.
//!
//! The order is that of the plan's stages (KEP-753, "Proposal": init containers and sidecars in
//! their order, then the apps). A gate is not an object that is opened: it is a question, asked anew
//! whenever something has happened.

use crate::plan::Role;

use super::Pod;
use super::container::{Container, State};

impl Pod {
    /// The names that `container` waits for, in the order of the plan.
    pub(super) fn missing(&self, container: &Container) -> Vec<String> {
        let before = match (&self.plan, container.role) {
            (Some(plan), Role::Init | Role::Sidecar) => {
                plan.position(&container.name).unwrap_or(usize::MAX)
            }
            (Some(_), Role::App) => usize::MAX,
            _ => return Vec::new(),
        };
        let stages = self.plan.iter().flat_map(|plan| plan.stages()).take(before);
        let names = stages.flat_map(|stage| stage.0.iter());
        names
            .filter(|name| !self.has_done_its_part(name, container.number))
            .cloned()
            .collect()
    }

    /// Whether what comes after `name` in the start order, and was created as number `number`, need
    /// not wait for it any more: an init container has exited 0, a sidecar is started.
    pub(super) fn has_done_its_part(&self, name: &str, number: u64) -> bool {
        match self.plan.as_ref().map(|plan| plan.role(name)) {
            Some(Role::Init) => {
                let past = self.history.of(name);
                past.is_some_and(|past| past.is_done_for(number))
            }
            _ => self.current(name).is_some_and(Container::is_started),
        }
    }

    /// The first of the first `before` stages that is not done.
    pub(super) fn closed_stage(&self, before: usize) -> Option<usize> {
        let plan = self.plan.as_ref()?;
        let mut stages = plan.stages().iter().take(before);
        stages.position(|stage| {
            stage
                .0
                .iter()
                .any(|name| !self.has_done_its_part(name, u64::MAX))
        })
    }

    /// Whether a container may be executed now.
    pub(super) fn may_run(&self, container: &Container) -> bool {
        if !container.is_ordered() {
            return true;
        }
        match container.role {
            Role::Defer(_) => false,
            _ => self.termination.is_none() && self.missing(container).is_empty(),
        }
    }

    /// Whether every container that `container` waits for has been created and is alive: only then
    /// can its turn come without the caller creating anything.
    pub(super) fn can_come_by_itself(&self, missing: &[String]) -> bool {
        missing.iter().all(|name| {
            self.current(name)
                .is_some_and(|other| other.is_alive() || matches!(other.state, State::Creating))
        })
    }

    /// Names with their roles and states, for a person.
    pub(super) fn describe(&self, names: &[String]) -> String {
        let Some(plan) = &self.plan else {
            return String::new();
        };
        if names.is_empty() {
            return match self.termination {
                Some(_) => "nothing any more: its pod terminates".to_owned(),
                None => "its start".to_owned(),
            };
        }
        let words = names
            .iter()
            .map(|name| format!("{} {name} ({})", plan.role(name), self.how_far(name)));
        words.collect::<Vec<_>>().join(", ")
    }

    /// How far the container is that counts for a name others wait for.
    pub(super) fn how_far(&self, name: &str) -> &'static str {
        match self.current(name) {
            None => {
                "never created: if the caller runs it as an init container of its own, it belongs in usher/native-init"
            }
            Some(container) if container.is_running() && container.role == Role::Init => {
                "not done yet"
            }
            Some(container) if container.is_started() => "started",
            Some(container) if matches!(container.state, State::Running(_)) => "not started yet",
            Some(container) => container.state_word(),
        }
    }
}
