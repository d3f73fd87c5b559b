//! What a pod's author need not write, since the spec says it: made into the annotations that the shim
//! reads.

use std::collections::{BTreeMap, BTreeSet};

use crate::manifest::{Container, Json, Pod};
use crate::plan::{
    ContainerSetting, MAX_VALUE_BYTES, Origin, Plan, PlanError, PodSetting, RestartPolicy, Role,
    Rules, is_container_name, is_usher_key, list_words,
};

use super::names::{Annotations, put, without_absent, without_patterns};
use super::start::{longest_start, shown};
use super::{Warning, fields, role};

/// What is to be changed in a pod so that its annotations say all that the shim has to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Completion {
    /// Annotations to be set, or to be removed; nothing that is so already.
    pub annotations: BTreeMap<String, Option<String>>,
    /// Containers whose `livenessProbe` is to be taken out: usher makes it.
    pub without_liveness_probe: Vec<String>,
    /// What could not be said in annotations.
    pub notes: Vec<Warning>,
}

/// Whether usher has anything to do with a pod: its author says so, or the node in all pods.
pub fn concerns(pod: &Pod, rules: &Rules) -> bool {
    let mut containers = pod.spec.containers.iter();
    rules.enabled
        && (pod.annotations.keys().any(|key| is_usher_key(key))
            || rules.roles.are_everywhere()
                && containers.any(|it| rules.roles.is_sidecar(&it.name)))
}

/// Completes what the author of a pod has written. None if usher has nothing to do with it.
///
/// It depends on the author's annotations, the spec and the rules alone. Whoever changes a pod by it, and
/// sees it once more after others have changed its spec, has to put the author's annotations back first.
///
/// # Errors
///
/// The shim's sentence, if what the author has written is refused.
pub fn complete(pod: &Pod, rules: &Rules) -> Result<Option<Completion>, String> {
    if !concerns(pod, rules) {
        return Ok(None);
    }
    let resolved = without_patterns(&pod.annotations, pod)?;
    let mut annotations = without_absent(&resolved, pod);
    if let Some(policy) = pod.restart_policy() {
        // Also where no list is left: usher has to do with the pod all the same.
        let said = annotations.entry(PodSetting::RestartPolicy.key());
        said.or_insert_with(|| policy.to_string());
    }
    let plan = Plan::parse_under(&annotations, rules).map_err(|error| error.to_string())?;
    let mut work = Work {
        pod,
        rules,
        said: plan.plan.clone(),
        plan: plan.plan,
        annotations,
        bytes: 0,
        changes: Completion::default(),
    };
    work.lists();
    work.read().map_err(|error| error.to_string())?;
    for container in pod.all() {
        work.container(container);
    }
    work.startup_timeout();
    Ok(Some(work.finish()))
}

/// A completion under way.
struct Work<'a> {
    pod: &'a Pod,
    rules: &'a Rules,
    /// What the author says.
    plan: Plan,
    annotations: Annotations,
    /// What they say by now, and in how many bytes.
    said: Plan,
    bytes: usize,
    changes: Completion,
}

// === impl Completion ===

impl Completion {
    /// Whether the pod is as it should be.
    pub fn is_empty(&self) -> bool {
        self.annotations.is_empty() && self.without_liveness_probe.is_empty()
    }

    /// The containers whose `livenessProbe` is to be taken out.
    pub fn moved_probes(&self) -> BTreeSet<&str> {
        let names = self.without_liveness_probe.iter();
        names.map(String::as_str).collect()
    }

    /// Changes a pod by it.
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

// === impl Work ===

impl Work<'_> {
    /// Every container of the pod is in the list of its role.
    fn lists(&mut self) {
        let named = |list: &[String], containers: &[Container], wanted: &dyn Fn(&str) -> bool| {
            let mut all = list.to_vec();
            let mut is_there: BTreeSet<&str> = list.iter().map(String::as_str).collect();
            for Container { name, .. } in containers {
                // What cannot be a name, and what is one twice, is for the API server to refuse.
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
        let order = self
            .annotations
            .contains_key(&PodSetting::StartupOrder.key());
        let order = order.then(|| {
            let stages = plan.stages().iter().flat_map(|stage| stage.0.clone());
            named(&stages.collect::<Vec<_>>(), &spec.containers, &is_of_node)
        });
        let apps = plan.apps().is_none();
        let apps = apps.then(|| named(&[], &spec.containers, &is_app));
        for (setting, names) in [
            (PodSetting::NativeInit, Some(native_init)),
            (PodSetting::Sidecars, Some(sidecars)),
            (PodSetting::StartupOrder, order),
            (PodSetting::Apps, apps),
        ] {
            let Some(names) = names else { continue };
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            // A list that says the same stays as its author wrote it.
            if !self.says(setting, &names) {
                put(&mut self.annotations, setting, &names);
            }
        }
    }

    fn says(&self, setting: PodSetting, names: &[&str]) -> bool {
        let written = self.annotations.get(&setting.key());
        let words = written.and_then(|value| list_words(value).ok());
        words.as_deref().unwrap_or_default() == names
    }

    /// What the spec says of one container.
    fn container(&mut self, container: &Container) {
        let name = container.name.as_str();
        let role = match self.plan.origin(name) {
            // As the lists have it now.
            Origin::Nobody => role(&self.plan, self.pod, name),
            Origin::Node if self.pod.has_init_container(name) => Role::NativeInit,
            _ => self.plan.role(name),
        };
        let resources = container.resources.as_ref().and_then(fields::resources);
        if let Some(resources) = resources.filter(|_| role != Role::Guest) {
            self.annotate(ContainerSetting::Resources, name, resources.to_string());
        }
        if let Some(signal) = container.lifecycle.stop_signal.as_deref()
            && !matches!(role, Role::Guest | Role::NativeInit)
        {
            match fields::stop_signal(signal) {
                Ok(()) => {
                    self.annotate(ContainerSetting::StopSignal, name, signal.to_owned());
                }
                Err(why) => self.note(Some(name), why),
            }
        }
        match role {
            Role::Sidecar => self.sidecar(container),
            Role::App | Role::Init | Role::NativeInit => self.restarts(container),
            Role::Defer(_) | Role::Guest => {}
        }
    }

    /// Writes after which exits kubelet creates the container again, where the pod's policy does not tell.
    /// kubelet restarts a native sidecar after every exit.
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

    /// Its probe tells when it is started, and another one when it is to be started again: kubelet does
    /// that under `Always` alone.
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

    /// True if it is said now, and was not before.
    fn probe(&mut self, setting: ContainerSetting, field: &str, name: &str, probe: &Json) -> bool {
        if self.annotations.contains_key(&setting.key(name)) {
            return false;
        }
        // One that is too long for an annotation is refused unparsed.
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

    /// What waits for sidecars waits for as long as their probes may take.
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

    /// Says what the author has not said, if the shim takes it; true if it does. What Kubernetes takes and
    /// the shim does not is no reason to refuse a pod.
    fn annotate(&mut self, setting: ContainerSetting, name: &str, value: String) -> bool {
        let key = setting.key(name);
        if self.annotations.contains_key(&key) {
            return false;
        }
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

    /// As the shim reads it.
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

    /// What of it is not so already.
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

/// Settings of an app or init container that say after which exits kubelet creates it again, where the pod's
/// policy does not tell.
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
