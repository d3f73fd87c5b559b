//! Derives annotations that the shim needs from the pod's spec, so that the author need not write
//! them.

use std::collections::{BTreeMap, BTreeSet};

use crate::manifest::{Container, Json, Pod};
use crate::plan::{
    ContainerSetting, MAX_VALUE_BYTES, Origin, Plan, PlanError, PodSetting, Refusals,
    RestartPolicy, Role, Rules, is_container_name, is_usher_key, list_words,
};

use super::names::{Annotations, PatternsError, put, without_absent, without_patterns};
use super::start::{longest_start, shown};
use super::{Warning, fields, role};

/// Changes to a pod, after which its annotations contain everything that the shim has to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Completion {
    /// Annotations to set, and annotations to remove (`None`). Unchanged annotations are left out.
    pub annotations: BTreeMap<String, Option<String>>,
    /// Containers whose `livenessProbe` is to be removed because usher probes instead.
    pub without_liveness_probe: Vec<String>,
    /// Parts of the spec that annotations could not express.
    pub notes: Vec<Warning>,
}

/// The reason why the author's annotations are refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompletionError {
    #[error(transparent)]
    Patterns(#[from] PatternsError),
    /// The annotations are invalid, or the node's rules forbid them. The shim would refuse the pod.
    #[error(transparent)]
    Plan(#[from] Refusals),
}

impl CompletionError {
    /// A sentence for each error, the first error first.
    pub fn sentences(&self) -> Vec<String> {
        match self {
            CompletionError::Patterns(error) => vec![error.to_string()],
            CompletionError::Plan(refusals) => refusals.sentences().collect(),
        }
    }
}

/// True if usher handles the pod: because of its annotations, or because of the node's roles.
pub fn concerns(pod: &Pod, rules: &Rules) -> bool {
    let mut containers = pod.spec.containers.iter();
    rules.enabled
        && (pod.annotations.keys().any(|key| is_usher_key(key))
            || rules.roles.are_everywhere()
                && containers.any(|it| rules.roles.is_sidecar(&it.name)))
}

/// Returns the changes that complete the annotations of a pod, or `None` if usher does not handle
/// the pod ([`concerns`]).
///
/// The result depends only on the author's annotations, the spec and the rules. The caller may
/// complete a pod again, for example when another program has changed the spec since. Before that,
/// the caller must restore the author's annotations, because any annotation of an earlier
/// completion counts as the author's.
///
/// # Errors
///
/// If the author's annotations are refused.
pub fn complete(pod: &Pod, rules: &Rules) -> Result<Option<Completion>, CompletionError> {
    if !concerns(pod, rules) {
        return Ok(None);
    }
    let resolved = without_patterns(&pod.annotations, pod)?;
    let mut annotations = without_absent(&resolved, pod);
    if let Some(policy) = pod.restart_policy() {
        // usher handles the pod even if no list is left, so the restart policy is set in any case.
        let said = annotations.entry(PodSetting::RestartPolicy.key());
        said.or_insert_with(|| policy.to_string());
    }
    let reading = Plan::parse_all(&annotations, rules)?;
    let mut work = Work {
        pod,
        rules,
        said: reading.plan.clone(),
        plan: reading.plan,
        annotations,
        bytes: reading.bytes,
        changes: Completion::default(),
    };
    work.add_lists();
    for container in pod.all() {
        work.container(container);
    }
    work.startup_timeout();
    Ok(Some(work.finish()))
}

struct Work<'a> {
    pod: &'a Pod,
    rules: &'a Rules,
    /// The plan from the author's annotations.
    plan: Plan,
    annotations: Annotations,
    /// The plan from the annotations completed so far, and the size of these annotations in bytes.
    said: Plan,
    bytes: usize,
    changes: Completion,
}

impl Completion {
    pub fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.without_liveness_probe.is_empty()
    }

    /// The containers whose `livenessProbe` is to be removed.
    pub fn moved_probes(&self) -> BTreeSet<&str> {
        let names = self.without_liveness_probe.iter();
        names.map(String::as_str).collect()
    }

    pub fn apply(&self, pod: &mut Pod) {
        for (key, value) in &self.annotations {
            match value {
                Some(value) => pod.annotations.insert(key.clone(), value.clone()),
                None => pod.annotations.remove(key),
            };
        }
        pod.take_liveness_probes(&self.moved_probes());
    }
}

impl Work<'_> {
    /// Completes the lists of roles, so that the shim knows the role of every container. The lists
    /// then also name native init containers, sidecars by the node's rules and, if the author lists
    /// no apps, the apps. Guests stay in no list. Lists that the shim would refuse stay as they
    /// were, and a note says so.
    fn add_lists(&mut self) {
        for lists in self.lists() {
            let before = self.annotations.clone();
            for (setting, names) in &lists {
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                // If the list already has exactly these names, it stays as its author wrote it.
                if !self.says(*setting, &names) {
                    put(&mut self.annotations, *setting, &names);
                }
            }
            // The author's annotations are valid, so the added names cause the error.
            if let Err(error) = self.read() {
                self.annotations = before;
                let keys: Vec<String> = lists.iter().map(|(setting, _)| setting.key()).collect();
                self.note(None, format!("{} is not added: {error}", keys.join(", ")));
            }
        }
    }

    /// The completed lists in three groups: native init containers, sidecars with the startup
    /// order, and apps. The lists of a group are set together, because one of them alone can be
    /// invalid.
    fn lists(&self) -> [Vec<(PodSetting, Vec<String>)>; 3] {
        let named = |list: &[String], containers: &[Container], wanted: &dyn Fn(&str) -> bool| {
            let mut all = list.to_vec();
            let mut is_there: BTreeSet<&str> = list.iter().map(String::as_str).collect();
            for Container { name, .. } in containers {
                // Skips invalid names and duplicates, which the API server refuses.
                if is_container_name(name) && wanted(name) && is_there.insert(name) {
                    all.push(name.clone());
                }
            }
            all
        };
        let (plan, spec) = (&self.plan, &self.pod.spec);
        let is_unlisted = |name: &str| plan.origin(name) != Origin::List;
        let is_of_node = |name: &str| plan.origin(name) == Origin::Node;
        let is_app = |name: &str| plan.role(name) == Role::App && is_unlisted(name);
        let native_init = named(plan.native_init(), &spec.init_containers, &is_unlisted);
        let sidecars = named(plan.sidecars(), &spec.containers, &is_of_node);
        let mut of_sidecars = vec![(PodSetting::Sidecars, sidecars)];
        if self
            .annotations
            .contains_key(&PodSetting::StartupOrder.key())
        {
            let stages = plan.stages().iter().flat_map(|stage| stage.0.clone());
            let order = named(&stages.collect::<Vec<_>>(), &spec.containers, &is_of_node);
            of_sidecars.push((PodSetting::StartupOrder, order));
        }
        let apps = plan.apps().is_none();
        let apps = apps.then(|| (PodSetting::Apps, named(&[], &spec.containers, &is_app)));
        [
            vec![(PodSetting::NativeInit, native_init)],
            of_sidecars,
            apps.into_iter().collect(),
        ]
    }

    fn says(&self, setting: PodSetting, names: &[&str]) -> bool {
        let written = self.annotations.get(&setting.key());
        let words = written.and_then(|value| list_words(value).ok());
        words.as_deref().unwrap_or_default() == names
    }

    /// Adds the settings that follow from the spec of one container.
    fn container(&mut self, container: &Container) {
        let name = container.name.as_str();
        let role = match self.plan.origin(name) {
            // Neither the pod's lists nor the node's rules name this container. The container is an
            // app, a guest (which usher leaves alone) or, if it is in `initContainers`, a native
            // init container.
            Origin::Default => role(&self.plan, self.pod, name),
            Origin::Node if self.pod.has_init_container(name) => Role::NativeInit,
            _ => self.plan.role(name),
        };
        let resources = container.resources.as_ref().and_then(fields::resources);
        if let Some(resources) = resources.filter(|_| role != Role::Guest) {
            self.annotate(ContainerSetting::Resources, name, resources.to_string());
        }
        if let Some(signal) = container.lifecycle.stop_signal.as_deref()
            && !matches!(role, Role::Guest | Role::NativeInit)
            && !self.has(ContainerSetting::StopSignal, name)
        {
            match fields::stop_signal(signal) {
                Ok(()) => {
                    self.annotate(ContainerSetting::StopSignal, name, signal.to_owned());
                }
                Err(error) => self.note(Some(name), error.to_string()),
            }
        }
        match role {
            Role::Sidecar => self.sidecar(container),
            Role::App | Role::Init | Role::NativeInit => self.restarts(container),
            Role::Defer(_) | Role::Guest => {}
        }
    }

    /// Adds the container's own restart policy and restart rules where they differ from the pod's
    /// policy. A native sidecar needs neither, because kubelet restarts it after every exit.
    fn restarts(&mut self, container: &Container) {
        let name = container.name.as_str();
        if self.pod.has_init_container(name) && container.is_native_sidecar() {
            return;
        }
        let of_pod = self.said.settings().restart_policy;
        for (setting, value) in restarts(container, of_pod) {
            self.annotate(setting, name, value);
        }
    }

    /// Adds the probes of a sidecar. The startup probe tells when the sidecar is started. The
    /// liveness probe tells when to restart it. Under the restart policy `Always`, kubelet keeps
    /// the liveness probe, because kubelet restarts the sidecar itself.
    fn sidecar(&mut self, container: &Container) {
        let name = container.name.as_str();
        if let Some(probe) = &container.startup_probe {
            self.probe(ContainerSetting::StartupProbe, "startupProbe", name, probe);
        }
        let is_started_again = self.pod.restart_policy() == Some(RestartPolicy::Always);
        if let Some(probe) = container
            .liveness_probe
            .as_ref()
            .filter(|_| !is_started_again)
        {
            let is_said = self.probe(
                ContainerSetting::LivenessProbe,
                "livenessProbe",
                name,
                probe,
            );
            if is_said {
                self.changes.without_liveness_probe.push(name.to_owned());
            }
        }
    }

    /// Adds a probe of the container `name` as an annotation. Returns false if the annotation
    /// exists already, or if the shim refuses the probe, which is then noted. `field` is the
    /// probe's field in the spec. Parts that usher's probes do not have are dropped, and noted.
    fn probe(&mut self, setting: ContainerSetting, field: &str, name: &str, probe: &Json) -> bool {
        if self.annotations.contains_key(&setting.key(name)) {
            return false;
        }
        // A probe that is too long for an annotation is not parsed, because `annotate` refuses it
        // in any case.
        let (probe, lost) = match probe.text().len() > MAX_VALUE_BYTES {
            true => (probe.text().to_owned(), Vec::new()),
            false => {
                let (probe, lost) = fields::probe(field, probe.value());
                (probe.to_string(), lost)
            }
        };
        let is_said = self.annotate(setting, name, probe);
        if is_said {
            for sentence in lost {
                self.note(Some(name), sentence);
            }
        }
        is_said
    }

    /// Raises the startup timeout to the longest time until the startup probes of all sidecars are
    /// over. Of sidecars that start at the same time, only the slowest probe counts. Does nothing
    /// if the timeout is long enough, or if the pod's author has set it. If the longer timeout is
    /// refused, for example by the node's limits, only adds a note.
    fn startup_timeout(&mut self) {
        let key = PodSetting::StartupTimeout.key();
        let probed = longest_start(&self.said);
        if probed <= self.said.settings().startup_timeout || self.annotations.contains_key(&key) {
            return;
        }
        self.annotations.insert(key.clone(), shown(probed));
        if let Err(error) = self.read() {
            self.annotations.remove(&key);
            self.note(None, not_said(&error));
        }
    }

    fn has(&self, setting: ContainerSetting, name: &str) -> bool {
        self.annotations.contains_key(&setting.key(name))
    }

    /// Adds a setting. Returns false if the annotation exists already, or if the shim refuses the
    /// value. The pod is not refused then, because Kubernetes accepts the value.
    fn annotate(&mut self, setting: ContainerSetting, name: &str, value: String) -> bool {
        if self.has(setting, name) {
            return false;
        }
        let key = setting.key(name);
        let said = self.said.say(setting, name, &value, self.bytes, self.rules);
        if let Err(error) = said {
            self.note(Some(name), not_said(&error));
            return false;
        }
        let bytes = key.len().saturating_add(value.len());
        self.bytes = self.bytes.saturating_add(bytes);
        self.annotations.insert(key, value);
        true
    }

    /// Reads the annotations as the shim does.
    fn read(&mut self) -> Result<(), PlanError> {
        let reading = Plan::parse_under(&self.annotations, self.rules)?;
        (self.said, self.bytes) = (reading.plan, reading.bytes);
        Ok(())
    }

    fn note(&mut self, container: Option<&str>, says: impl Into<String>) {
        self.changes.notes.push(Warning {
            container: container.map(str::to_owned),
            says: says.into(),
        });
    }

    /// Returns the changes. Annotations that are the same as before are left out.
    fn finish(mut self) -> Completion {
        let before = &self.pod.annotations;
        let gone = before
            .keys()
            .filter(|key| !self.annotations.contains_key(*key));
        let gone = gone.map(|key| (key.clone(), None));
        let set = self.annotations.iter();
        let set = set.filter(|(key, value)| before.get(*key) != Some(*value));
        let set = set.map(|(key, value)| (key.clone(), Some(value.clone())));
        self.changes.annotations = gone.chain(set).collect();
        self.changes
    }
}

/// The settings that tell the shim after which exits kubelet creates an app or init container
/// again. Empty if the pod's restart policy alone decides.
pub fn restarts(container: &Container, of_pod: RestartPolicy) -> Vec<(ContainerSetting, String)> {
    let own = container.restart_policy().filter(|own| *own != of_pod);
    let own = own.map(|own| (ContainerSetting::RestartPolicy, own.to_string()));
    let codes = Some(container.restart_codes()).filter(|codes| !codes.is_empty());
    let codes = codes.map(|codes| (ContainerSetting::CallerRestarts, codes.to_string()));
    own.into_iter().chain(codes).collect()
}

fn not_said(error: &PlanError) -> String {
    format!("is not said to usher: {error}")
}
