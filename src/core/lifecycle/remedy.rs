//! Missing annotations that make a container wait, or delay the completion of a run. The shim
//! guesses nothing, but tells users which list would avoid the wait.
//!
//! The shim sees containers being created, but not the pod's spec. Without a list of apps, an
//! unlisted container counts as an app, and so waits for the sidecars. This also applies to native
//! init containers (`initContainers` in the pod's spec), and to containers added by `kubectl
//! debug`. Until a native init container has exited, kubelet creates no other container. Without a
//! list of apps, the shim also cannot know if more apps will be created.

use std::fmt;
use std::time::Duration;

use crate::plan::{PodSetting, Role, identity};

use super::Pod;
use super::action::ContainerId;
use super::completion::Completion;
use super::container::Container;
use super::gate::Missing;
use super::report::Report;
use super::role_policy::StartCondition;
use super::rules::{Due, PodDecision};
use super::time::Time;

/// Delay before usher writes a line about a wait: a container waits for its turn, the run is late,
/// or containers outside the pod's plan keep the pod alive. Shorter waits are not worth a line.
pub(super) const LOGGED_AFTER: Duration = Duration::from_secs(5);

/// A missing annotation that may be the reason for a wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// If `container` is a native init container (`initContainers` in the pod's spec), an
    /// annotation that lists it lets it run at once.
    NativeInit {
        container: String,
        /// The complete list to set.
        list: Vec<String>,
    },
    /// If `container` was added to a running pod (`kubectl debug`), an annotation that lists the
    /// apps lets this container run at once.
    Guest {
        container: String,
        /// The names of the apps that were created before `container`.
        list: Vec<String>,
    },
    /// `container` has no annotation that groups containers, so it is alone in its pod. If
    /// `container` and the containers that it waits for had this annotation with the same value,
    /// they would share a pod.
    Group { container: String },
    /// Without such an annotation, the shim waits in case more apps are created. With the names in
    /// `list` as the pod's apps, the run would be complete now. This is right if the pod has no
    /// further apps.
    Complete { list: Vec<String> },
}

/// A late run: all known apps are done, but the shim waits until `until`, because more apps may be
/// created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lateness {
    pub until: Time,
    pub remedy: Remedy,
}

impl Remedy {
    /// The key of the annotation, and the names that its value should list. For [`Remedy::Group`]
    /// there are no names, because any value will do.
    pub fn annotation(&self) -> (String, &[String]) {
        match self {
            Remedy::NativeInit { list, .. } => (PodSetting::NativeInit.key(), list),
            Remedy::Guest { list, .. } | Remedy::Complete { list } => {
                (PodSetting::Apps.key(), list)
            }
            Remedy::Group { .. } => (identity::GROUP.to_owned(), &[]),
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, list) = self.annotation();
        match self {
            Remedy::Group { container } => {
                return write!(
                    f,
                    "{container} is alone in its pod; containers share a pod if all of them have the \
                     annotation {key} with the same value"
                );
            }
            Remedy::NativeInit { container, .. } => {
                write!(f, "if {container} is one of the pod's own initContainers, ")?;
            }
            Remedy::Guest { container, .. } => {
                write!(f, "if {container} was added to the pod (kubectl debug), ")?;
            }
            Remedy::Complete { .. } => {}
        }
        let effect = match self {
            Remedy::Complete { .. } => "completes it at once",
            _ => "lets it run at once",
        };
        write!(f, "the annotation {key}: {} {effect}", list.join(", "))
    }
}

impl Pod {
    /// Describes the containers that a container waits for, and the annotations that may be
    /// missing.
    pub(super) fn waits_for(&self, container: &Container, missing: &[String]) -> String {
        let mut words = self.describe(container, missing);
        for remedy in self.remedies(container, missing) {
            words.push_str(&format!("; {remedy}"));
        }
        words
    }

    /// The annotations that may be missing if a container waits for these names. Empty if it waits
    /// for no names, or if no annotation would end its wait.
    ///
    /// - `Group` alone if the container has no annotation that groups containers.
    /// - `NativeInit` if an awaited container was never created, except for a listed app.
    /// - `Guest` for an app, if the annotations list no apps and other apps were created before it.
    pub(super) fn remedies(&self, container: &Container, missing: &[String]) -> Vec<Remedy> {
        let Some(plan) = self.plan.as_ref().filter(|_| !missing.is_empty()) else {
            return Vec::new();
        };
        let name = &container.name;
        if container.is_ungrouped {
            let container = name.clone();
            return vec![Remedy::Group { container }];
        }
        let is_unlisted = container.role == Role::App && plan.apps().is_none();
        let is_staged = container.role_policy().start_condition == StartCondition::InItsStage;
        // Until a native init container has exited, kubelet creates no further container. So if
        // this container waits for a container that was never created, this one may itself be a
        // native init container.
        let mut ahead = missing.iter();
        let may_be_native = ahead.any(|name| self.missing_of(name) == Missing::NeverCreated);
        let mut remedies = Vec::new();
        if may_be_native && (is_unlisted || is_staged) {
            let known = plan.native_init().iter();
            remedies.push(Remedy::NativeInit {
                container: name.clone(),
                list: known.chain([name]).cloned().collect(),
            });
        }
        let apps = self.apps_before(container);
        if is_unlisted && !apps.is_empty() {
            remedies.push(Remedy::Guest {
                container: name.clone(),
                list: apps,
            });
        }
        remedies
    }

    /// The names of the apps that were created before a container.
    fn apps_before(&self, container: &Container) -> Vec<String> {
        let others = self.known_apps().into_iter().flatten();
        let before = others
            .filter(|(name, past)| *name != container.name && past.created < container.number);
        before.map(|(name, _)| name.to_owned()).collect()
    }

    /// The time at which a late run is complete if the caller creates no more containers, and the
    /// annotation that would make the run complete now. A run is late if all known apps are done,
    /// but the caller may still create more apps. `None` if the run is not late, or if not all
    /// container names are known.
    pub(super) fn lateness(&self) -> Option<Lateness> {
        let (_, until) = self.late()?;
        let list = self
            .known_apps()?
            .map(|(name, _)| name.to_owned())
            .collect();
        let remedy = Remedy::Complete { list };
        Some(Lateness { until, remedy })
    }

    /// The period in which the run is late: all known apps are done, but more apps may still be
    /// created. The period begins when the exits of all known apps are final. It ends when no more
    /// apps are expected. `None` in these cases:
    ///
    /// - The annotations list the apps.
    /// - The pod terminates.
    /// - No app is known, or a known app is not done.
    /// - No container that usher orders is alive.
    /// - The period is over.
    /// - The exits become final only when no more apps are expected.
    fn late(&self) -> Option<(Time, Time)> {
        let plan = self.plan.as_ref()?;
        if plan.apps().is_some() || self.termination.is_some() {
            return None;
        }
        let Completion { known, counts } = self.completion()?;
        let mut containers = self.containers.values();
        let goes_on = containers.any(|other| other.is_ordered() && other.state.is_alive());
        (counts < known && self.now < known && goes_on).then_some((counts, known))
    }
}

impl Pod {
    /// Rule: the shim warns once of a late run, in which all known apps are done but more apps may
    /// still be created. The warning goes to the log, and to the stderr of the run's running
    /// containers.
    pub(super) fn incomplete_run_is_logged(&self) -> Option<Due<PodDecision>> {
        let (since, until) = self.late()?;
        let at = since.after(LOGGED_AFTER);
        let is_news = self.late_said != Some(since) && at < until;
        is_news.then(|| self.due(at, || PodDecision::NoteLateness { since }))
    }

    pub(super) fn note_lateness(&mut self, since: Time) {
        self.late_said = Some(since);
        let Some(Lateness { until, remedy }) = self.lateness() else {
            return;
        };
        let wait = until.since(self.now);
        let runs = |container: &Container| container.is_ordered() && container.state.is_running();
        let running = self.containers.iter().filter(|(_, it)| runs(it));
        let ids: Vec<ContainerId> = running.map(|(id, _)| id.clone()).collect();
        let remedy = remedy.to_string();
        let report = Report::Late { wait, remedy };
        for id in &ids {
            self.out
                .write_message(id, format!("usher: {report}"), false);
        }
        self.out.report(report);
    }
}
