//! Fields of single containers that become annotations.

use serde_json::{Map, Value, json};

use crate::judgement;
use crate::manifest::Container;
use crate::plan::{RestartPolicy, Role, Word};

use super::super::manifest::Node;
use super::cast::is_native_sidecar;

/// As long as a sidecar may take to become ready, in seconds: the shim's startup timeout.
const READY_WITHIN: u64 = 300;

/// What is written beside the lists while containers are rewritten.
#[derive(Debug, Default)]
pub(super) struct Rewrite {
    /// Keys and values.
    pub(super) annotations: Vec<(String, String)>,
    pub(super) essential: Vec<String>,
    /// What could not be expressed, and what else should be known.
    pub(super) notes: Vec<String>,
}

/// From when on a sidecar counts as started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Started {
    /// By its startup probe alone: native sidecars.
    ByStartupProbe,
    /// "Sidecars become ready": the draft. Its readiness probe if it has no startup probe.
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

    /// What any container can have: a hook, a stop signal, and that its failure is fatal. Not every
    /// role has a use for them.
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

    /// What kubelet sends, for when nobody has asked for a signal. Kubelet's own is left to it.
    fn stop_signal(&mut self, container: &Node, name: &str) {
        let signal = container.at(&["lifecycle", "stopSignal"]);
        let Some(signal) = signal.and_then(Node::as_text) else {
            return;
        };
        match judgement::stop_signal(signal) {
            Ok(()) => self.annotate("stop-signal", name, signal),
            Err(why) => self.note(name, &why),
        }
    }

    /// A sidecar: its probe tells when it is started, and another one when it is to be started again.
    /// Unless kubelet `restarts` what fails that one, it is usher that has to ask.
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

    /// An init container that becomes an ordinary one. It keeps a policy of its own, and rules beside one,
    /// as far as ordinary containers may have them.
    pub(super) fn init(&mut self, container: &mut Node) {
        let name = container.text_of("name").unwrap_or_default().to_owned();
        let policy = container.text_of("restartPolicy");
        if policy.and_then(RestartPolicy::from_word).is_some() {
            return;
        }
        if container.take("restartPolicy").is_some() {
            self.note(
                &name,
                "its restartPolicy is dropped: the pod's holds; expected Always, OnFailure or Never",
            );
        }
        self.drop_rules(container, &name);
    }

    /// Rules make sense beside a policy of the container's own only; the API server refuses others.
    fn drop_rules(&mut self, container: &mut Node, name: &str) {
        if container.take("restartPolicyRules").is_some() {
            self.note(
                name,
                "its restartPolicyRules are dropped: it has no restartPolicy of its own beside them",
            );
        }
    }

    /// Writes after which exits kubelet creates an app or init container again, where the policy
    /// `of_pod` does not tell. kubelet restarts a native sidecar after every exit.
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
                &format!("its restartPolicyRules are not said to usher: {error}"),
            ),
        }
    }

    /// A defer container: held nearly all its life, so that no probe of kubelet's may be left.
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
                    &format!("its {field} is dropped: kubelet would ask while it is held"),
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

    /// A probe as the shim takes it.
    fn probe(&mut self, name: &str, field: &str, probe: Value) -> Value {
        let (probe, lost) = judgement::probe(field, probe);
        for sentence in lost {
            self.note(name, &sentence);
        }
        probe
    }
}

/// A readiness probe may fail for as long as it likes; a startup probe is given up on.
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
