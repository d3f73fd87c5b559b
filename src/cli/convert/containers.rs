//! Conversion of single containers: fields become annotations.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use usher_core::judgement;
use usher_core::manifest::Container;
use usher_core::plan::{ContainerSetting, RestartPolicy, Role, Word};

use super::super::manifest::Node;
use super::cast::is_native_sidecar;

/// The shim's startup timeout in seconds, within which sidecars have to become ready.
const READY_WITHIN: u64 = 300;

/// The annotations and notes that result from rewriting containers. The annotations that list
/// containers by role are not among them.
#[derive(Debug, Default)]
pub(super) struct Rewrite {
    pub(super) annotations: Vec<(String, String)>,
    pub(super) essential: Vec<String>,
    /// Sentences about fields that could not be converted, and other remarks.
    pub(super) notes: Vec<String>,
    /// Keys of the annotations that the pod has already.
    pub(super) existing: BTreeSet<String>,
}

/// The probe whose success tells the shim that a sidecar has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Started {
    /// Only the startup probe. kubelet waits for the same probe of a native sidecar.
    ByStartupProbe,
    /// The startup probe or, if the sidecar has none, its readiness probe. KEP-753's draft waits
    /// until "sidecars become ready".
    ByReadiness,
}

impl Rewrite {
    fn annotate(&mut self, setting: &str, name: &str, value: impl ToString) {
        let key = format!("{setting}.usher/{name}");
        self.annotations.push((key, value.to_string()));
    }

    fn note(&mut self, name: &str, says: &str) {
        self.notes.push(format!("{name}: {says}"));
    }

    /// Converts the fields that every container can have: hook, stop signal and fatal failure.
    /// Drops those that the container's role does not support, with a note.
    pub(super) fn common(&mut self, container: &mut Node, role: Role) {
        let name = container.text_of("name").unwrap_or_default().to_owned();
        if role != Role::NativeInit {
            self.stop_signal(container, &name);
        }
        let lifecycle = container.get_mut("lifecycle");
        let of_lifecycle = lifecycle.and_then(|lifecycle| {
            let is_sidecar = lifecycle.take("type") == Some(Node::text("Sidecar"));
            if is_sidecar && role != Role::Sidecar {
                self.note(
                    &name,
                    &format!("its lifecycle.type is dropped: its role is {role}"),
                );
            }
            lifecycle.take("terminationHook")
        });
        if container
            .get("lifecycle")
            .is_some_and(|it| it.fields().is_empty())
        {
            container.take("lifecycle");
        }
        if let Some(hook) = container.take("terminationHook").or(of_lifecycle) {
            match role {
                Role::App | Role::Sidecar => {
                    self.annotate("termination-hook", &name, hook.json());
                }
                _ => self.note(
                    &name,
                    &format!("its terminationHook is dropped: its role is {role}"),
                ),
            }
        }
        let fatal = ["fatalToPod", "terminationFatalToPod"].map(|field| container.take(field));
        if fatal
            .iter()
            .flatten()
            .any(|it| !matches!(it, Node::Bool(_)))
        {
            self.note(&name, "its fatalToPod is dropped: expected true or false");
        }
        if fatal.contains(&Some(Node::Bool(true))) {
            match role {
                Role::Defer(_) => self.note(
                    &name,
                    &format!("its fatalToPod is dropped: its role is {role}"),
                ),
                _ => self.essential.push(name),
            }
        }
    }

    /// Repeats the container's stop signal as an annotation, which the shim uses when it stops the
    /// container. The field stays in the spec, because kubelet uses the field.
    fn stop_signal(&mut self, container: &Node, name: &str) {
        let signal = container.at(&["lifecycle", "stopSignal"]);
        let Some(signal) = signal.and_then(Node::as_text) else {
            return;
        };
        match judgement::stop_signal(signal) {
            Ok(()) => self.annotate("stop-signal", name, signal),
            // The shim uses the signal that the author has named.
            Err(_)
                if self
                    .existing
                    .contains(&ContainerSetting::StopSignal.key(name)) => {}
            Err(why) => self.note(name, &why.to_string()),
        }
    }

    /// Converts a sidecar. Its startup probe becomes an annotation, and so does its liveness probe.
    /// But if `restarts` is true, the liveness probe stays in the spec, because kubelet restarts
    /// the container after a failed liveness probe.
    pub(super) fn sidecar(&mut self, container: &mut Node, started: Started, restarts: bool) {
        let name = container.text_of("name").unwrap_or_default().to_owned();
        if is_native_sidecar(container) {
            container.take("restartPolicy");
            self.drop_rules(container, &name);
        }
        if !restarts && let Some(probe) = container.take("livenessProbe") {
            let probe = self.probe(&name, "livenessProbe", probe.json());
            self.annotate("liveness-probe", &name, probe);
        }
        let startup = container.get("startupProbe").map(Node::json);
        let readiness = container.get("readinessProbe").map(Node::json);
        let probe = match (startup, readiness, started) {
            (Some(probe), _, _) => self.probe(&name, "startupProbe", probe),
            (None, Some(probe), Started::ByReadiness) => {
                let mut probe = self.probe(&name, "readinessProbe", probe);
                outlast(&mut probe);
                probe
            }
            (None, _, _) => return,
        };
        self.annotate("startup-probe", &name, probe);
    }

    /// Converts an init container to an ordinary container. Keeps the container's own restart
    /// policy with its rules, if an ordinary container can have that policy.
    pub(super) fn init(&mut self, container: &mut Node) {
        let name = container.text_of("name").unwrap_or_default().to_owned();
        let policy = container.text_of("restartPolicy");
        if policy.and_then(RestartPolicy::from_word).is_some() {
            return;
        }
        if container.take("restartPolicy").is_some() {
            self.note(
                &name,
                "its restartPolicy is dropped, so that the pod's applies; expected Always, OnFailure or Never",
            );
        }
        self.drop_rules(container, &name);
    }

    /// Drops the restart rules of a container that has no restart policy of its own, since the API
    /// server refuses rules without a policy.
    fn drop_rules(&mut self, container: &mut Node, name: &str) {
        if container.take("restartPolicyRules").is_some() {
            self.note(
                name,
                "its restartPolicyRules are dropped: rules need a restartPolicy in the same container",
            );
        }
    }

    /// Writes annotations that say after which exits kubelet restarts an app or init container.
    /// Writes none if the pod's policy `of_pod` says the same. kubelet restarts a native sidecar
    /// after every exit.
    pub(super) fn restarts(&mut self, container: &Node, of_pod: RestartPolicy) {
        let name = container.text_of("name").unwrap_or_default().to_owned();
        let fields = ["restartPolicy", "restartPolicyRules"].into_iter();
        let fields =
            fields.filter_map(|field| Some((field.to_owned(), container.get(field)?.json())));
        let read = serde_json::from_value::<Container>(Value::Object(fields.collect()));
        match read {
            Ok(read) => {
                for (setting, value) in judgement::restarts(&read, of_pod) {
                    self.annotations.push((setting.key(&name), value));
                }
            }
            Err(error) => self.note(
                &name,
                &format!("its restartPolicyRules get no annotation: {error}"),
            ),
        }
    }

    /// Converts a defer container. Removes all probes, since kubelet would probe the container even
    /// while the shim holds it. The liveness probe becomes an annotation.
    pub(super) fn defer(&mut self, container: &mut Node) {
        let name = container.text_of("name").unwrap_or_default().to_owned();
        if let Some(probe) = container.take("livenessProbe") {
            let probe = self.probe(&name, "livenessProbe", probe.json());
            self.annotate("liveness-probe", &name, probe);
        }
        for field in ["startupProbe", "readinessProbe"] {
            if container.take(field).is_some() {
                self.note(
                    &name,
                    &format!(
                        "its {field} is dropped: kubelet would run it while the container is held"
                    ),
                );
            }
        }
        let policy = container.take("restartPolicy");
        self.drop_rules(container, &name);
        match policy.as_ref().map(Node::as_text) {
            None => {}
            Some(Some("Always" | "restartAlways" | "RestartAlways")) => {
                self.annotate("restart", &name, "Always");
            }
            Some(Some("OnFailure")) => self.annotate("restart", &name, "OnFailure"),
            Some(Some("Never" | "restartNever" | "RestartNever")) => {
                self.annotate("restart", &name, "Never");
            }
            Some(_) => self.note(
                &name,
                "its restartPolicy is dropped; expected Always, OnFailure or Never",
            ),
        }
    }

    /// Converts a probe to the shim's format.
    fn probe(&mut self, name: &str, field: &str, probe: Value) -> Value {
        let (probe, lost) = judgement::probe(field, probe);
        for sentence in lost {
            self.note(name, &sentence);
        }
        probe
    }
}

/// Raises the failure threshold of a readiness probe that becomes a startup probe. Kubernetes does
/// nothing to a container whose readiness probe keeps failing, but stops one whose startup probe
/// fails too often.
fn outlast(probe: &mut Value) {
    let empty = &mut Map::new();
    let fields = probe.as_object_mut().unwrap_or(empty);
    let seconds =
        |field: &str, default| fields.get(field).and_then(Value::as_u64).unwrap_or(default);
    let period = seconds("periodSeconds", 10).max(1);
    let rest = READY_WITHIN.saturating_sub(seconds("initialDelaySeconds", 0));
    let times = rest.checked_div(period).unwrap_or_default();
    let threshold = seconds("failureThreshold", 3).max(times);
    fields.insert("failureThreshold".to_owned(), json!(threshold));
}
