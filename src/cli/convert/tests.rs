use proptest::prelude::*;

use super::super::manifest::{parse, pods, print};
use super::super::output::sentence;
use super::cast::Starting;
use super::*;
use usher_core::plan::{Plan, RestartPolicy, Role, Stage};

fn options(legacy: bool) -> Options {
    Options {
        legacy,
        runtime_class: "usher".to_owned(),
        rules: Rules::default(),
    }
}

#[test]
fn sidecars_of_the_nodes_rules_become_sidecars() {
    let text = "kind: Pod\nspec: {containers: [{name: web}, {name: istio-proxy}, \
        {name: logs, lifecycle: {type: Sidecar}}]}";
    let mut document = parse(text).unwrap().remove(0);
    let roles = "[roles]\nsidecars = ['istio-*']";
    let options = Options {
        rules: usher_core::config::parse(roles).unwrap(),
        ..options(false)
    };
    pod::convert(&mut document, &options).unwrap();
    assert_eq!(
        annotation(&document, "usher/sidecars"),
        Some("istio-proxy,logs")
    );
    assert_eq!(annotation(&document, "usher/apps"), Some("web"));
}

#[test]
fn the_nodes_rules_alone_are_a_reason_to_convert_a_pod() {
    let rules = usher_core::config::parse("[roles]\nsidecars = ['istio-*']").unwrap();
    let options = Options {
        rules,
        ..options(false)
    };
    let text = "kind: Pod\nspec: {containers: [{name: web}, {name: istio-proxy}]}";
    let mut document = parse(text).unwrap().remove(0);
    pod::convert(&mut document, &options).unwrap();
    assert_eq!(annotation(&document, "usher/sidecars"), Some("istio-proxy"));
    // A second conversion changes nothing. A conversion that would leave the pod without an app
    // changes nothing, either.
    let gateway = "kind: Pod\nspec: {containers: [{name: istio-proxy}]}";
    for before in [document, parse(gateway).unwrap().remove(0)] {
        let mut after = before.clone();
        let notes = pod::convert(&mut after, &options).unwrap();
        assert_eq!(after, before, "{notes:?}");
    }
}

#[test]
fn the_drafts_standard_type_is_removed() {
    let text = "kind: Pod\nspec: {containers: [{name: web, lifecycle: {type: Standard}}]}";
    let (pod, _) = converted(text, false);
    let printed = print(&[pod]).unwrap();
    assert!(!printed.contains("Standard"), "{printed}");
}

#[test]
fn a_dropped_fatal_to_pod_yields_a_note() {
    let text = "kind: Pod\nspec: {containers: [{name: web, fatalToPod: 'true'}]}";
    let (pod, notes) = converted(text, false);
    assert_eq!(annotation(&pod, "usher/essential"), None);
    assert!(
        notes.iter().any(|it| it.contains("fatalToPod")),
        "{notes:?}"
    );
}

#[test]
fn a_pod_in_another_projects_kind_yields_a_warning() {
    let template = "{spec: {containers: [{name: a, lifecycle: {type: Sidecar}}]}}";
    let set = format!("{{kind: JobSet, spec: {{jobs: [{{template: {template}}}]}}}}");
    let said = |text: &str| {
        let mut documents = parse(text).unwrap();
        convert(&mut documents, &options(false)).unwrap()
    };
    let notes = said(&set);
    assert!(
        matches!(&notes[..], [note] if note.contains("JobSet")),
        "{notes:?}"
    );
    assert_eq!(said(&format!("{{kind: List, items: [{set}]}}")), notes);
    let other = "{kind: Model, spec: {primaryContainer: {image: a}}}";
    assert_eq!(said(other), Vec::<String>::new());
}

fn converted(text: &str, legacy: bool) -> (Node, Vec<String>) {
    let mut document = parse(text).unwrap().remove(0);
    let notes = pod::convert(&mut document, &options(legacy)).unwrap();
    (document, notes)
}

fn annotation<'a>(pod: &'a Node, key: &str) -> Option<&'a str> {
    pod.at(&["metadata", "annotations", key])?.as_text()
}

fn names(pod: &Node, list: &str) -> Vec<String> {
    cast::names(cast::items(pod.get("spec").unwrap(), list))
}

#[test]
fn the_drafts_sidecars_come_first_and_wait_until_they_are_ready() {
    let (pod, notes) = converted(
        r#"
kind: Pod
metadata: {name: shop, labels: {a: b}}
spec:
  restartPolicy: Never
  containers:
  - {name: app, image: a, fatalToPod: true}
  - name: proxy
    image: b
    lifecycle: {type: Sidecar, preStop: {exec: {command: [x]}}}
    readinessProbe: {httpGet: {port: 1}, periodSeconds: 7, successThreshold: 2}
  volumes: [{name: v}]
"#,
        false,
    );
    let expected = parse(
        r#"
kind: Pod
metadata:
  name: shop
  labels: {a: b}
  annotations:
    usher/sidecars: proxy
    usher/apps: app
    usher/restart-policy: Never
    usher/essential: app
    startup-probe.usher/proxy: '{"failureThreshold":42,"httpGet":{"port":1},"periodSeconds":7}'
spec:
  runtimeClassName: usher
  restartPolicy: Never
  containers:
  - name: proxy
    image: b
    lifecycle: {preStop: {exec: {command: [x]}}}
    readinessProbe: {httpGet: {port: 1}, periodSeconds: 7, successThreshold: 2}
  - {name: app, image: a}
  volumes: [{name: v}]
"#,
    )
    .unwrap()
    .remove(0);
    let shown = print(std::slice::from_ref(&pod)).unwrap();
    assert_eq!(pod, expected, "{shown}");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("successThreshold"), "{notes:?}");
}

const NATIVE: &str = r#"
kind: Pod
spec:
  initContainers:
  - {name: setup}
  - {name: proxy, restartPolicy: Always, startupProbe: {tcpSocket: {port: 1}}}
  - {name: migrate}
  - {name: logs, restartPolicy: Always, readinessProbe: {tcpSocket: {port: 2}}}
  containers: [{name: app}]
"#;

#[test]
fn native_sidecars_become_containers_in_the_order_of_their_start() {
    let (pod, notes) = converted(NATIVE, true);
    assert_eq!(names(&pod, "initContainers"), ["setup"]);
    assert_eq!(
        names(&pod, "containers"),
        ["proxy", "migrate", "logs", "app"]
    );
    for (key, value) in [
        ("usher/native-init", Some("setup")),
        ("usher/init", Some("migrate")),
        ("usher/sidecars", Some("proxy,logs")),
        ("usher/startup-order", Some("proxy,migrate,logs")),
        ("usher/restart-policy", Some("Always")),
        (
            "startup-probe.usher/proxy",
            Some(r#"{"tcpSocket":{"port":1}}"#),
        ),
        // In KEP-753, a readiness probe does not tell whether a sidecar has started.
        ("startup-probe.usher/logs", None),
    ] {
        assert_eq!(annotation(&pod, key), value, "{key}");
    }
    assert!(!print(&[pod]).unwrap().contains("restartPolicy"));
    assert_eq!(notes, Vec::<String>::new());
}

/// Containers with their own restart policies (KEP-5307) and rules.
const OWN_POLICIES: &str = r#"
kind: Pod
spec:
  restartPolicy: Never
  initContainers:
  - {name: setup, restartPolicy: OnFailure}
  - name: proxy
    restartPolicy: Always
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]
  - name: migrate
    restartPolicy: OnFailure
    restartPolicyRules: [{action: Restart, exitCodes: {operator: NotIn, values: [3]}}]
  - name: odd
    restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [4]}}]
  - {name: other, restartPolicy: Sometimes}
  containers:
  - name: app
    restartPolicy: Never
    restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [88, 42]}}]
  - {name: web, restartPolicy: Always}
"#;

#[test]
fn a_containers_restart_policy_and_rules_become_annotations() {
    let (pod, notes) = converted(OWN_POLICIES, true);
    for (key, value) in [
        ("usher/restart-policy", Some("Never")),
        ("restart-policy.usher/setup", Some("OnFailure")),
        ("restart-policy.usher/proxy", None),
        ("caller-restarts.usher/proxy", None),
        ("restart-policy.usher/migrate", Some("OnFailure")),
        ("caller-restarts.usher/migrate", Some("!3")),
        ("restart-policy.usher/odd", None),
        ("caller-restarts.usher/odd", None),
        ("restart-policy.usher/app", None),
        ("caller-restarts.usher/app", Some("42, 88")),
        ("restart-policy.usher/web", Some("Always")),
    ] {
        assert_eq!(annotation(&pod, key), value, "{key}");
    }
    let of = |name: &str| {
        let containers = cast::items(pod.get("spec").unwrap(), "containers").iter();
        let mut found = containers.filter(|it| it.text_of("name") == Some(name));
        let container = found.next().unwrap();
        let fields = ["restartPolicy", "restartPolicyRules"];
        fields.map(|field| container.get(field).is_some())
    };
    // An ordinary container keeps its own restart policy. It keeps restart rules only if it has a
    // policy.
    assert_eq!(of("migrate"), [true, true]);
    assert_eq!(of("app"), [true, true]);
    for name in ["proxy", "odd", "other"] {
        assert_eq!(of(name), [false, false], "{name}");
    }
    let dropped: Vec<_> = notes
        .iter()
        .map(|note| note.split(' ').collect::<Vec<_>>()[..2].join(" "))
        .collect();
    let expected = ["proxy: its", "odd: its", "other: its"];
    assert_eq!(dropped, expected, "{notes:?}");
}

#[test]
fn native_sidecars_stay_without_legacy() {
    let (pod, notes) = converted(NATIVE, false);
    assert_eq!(pod, parse(NATIVE).unwrap().remove(0));
    assert_eq!(notes.len(), 1);
    assert!(notes[0].contains("--legacy"), "{notes:?}");
}

const DEFERS: &str = r#"
kind: Pod
spec:
  terminationGracePeriod: 60
  deferContainerGracePeriodExtension: true
  prePullDeferImages: true
  containers: [{name: app, lifecycle: {terminationHook: {sleep: {seconds: 1}}}}]
  deferContainers:
  - {name: drain, restartPolicy: OnFailure, livenessProbe: {exec: {command: [a]}}, readinessProbe: {}}
  - {name: bye, restartPolicy: restartNever}
"#;

#[test]
fn defer_containers_come_last_and_keep_no_probe_of_kubelet() {
    let (pod, notes) = converted(DEFERS, false);
    assert_eq!(names(&pod, "containers"), ["app", "drain", "bye"]);
    for (key, value) in [
        ("usher/pre-exit", "drain,bye"),
        ("usher/grace-extension", r#"{"probe":true}"#),
        ("restart.usher/drain", "OnFailure"),
        ("restart.usher/bye", "Never"),
        (
            "liveness-probe.usher/drain",
            r#"{"exec":{"command":["a"]}}"#,
        ),
        ("termination-hook.usher/app", r#"{"sleep":{"seconds":1}}"#),
    ] {
        assert_eq!(annotation(&pod, key), Some(value), "{key}");
    }
    assert_eq!(
        pod.at(&["spec", "terminationGracePeriodSeconds"]),
        Some(&Node::Integer(60))
    );
    let text = print(&[pod]).unwrap();
    for gone in [
        "deferContainer",
        "prePull",
        "livenessProbe",
        "readinessProbe",
        "lifecycle:",
    ] {
        assert!(!text.contains(gone), "{gone} is left in:\n{text}");
    }
    assert_eq!(notes.len(), 2, "{notes:?}");
    // The shim accepts the result, without further warnings.
    let mut documents = parse(DEFERS).unwrap();
    assert_eq!(convert(&mut documents, &options(false)).unwrap().len(), 2);
}

#[test]
fn fields_that_a_role_does_not_support_are_dropped_with_a_note() {
    let fields = "fatalToPod: true, terminationHook: {sleep: {seconds: 1}}, \
                  lifecycle: {type: Sidecar}";
    let (pod, notes) = converted(
        &format!(
            "kind: Pod\nspec:\n  initContainers: [{{name: i, {fields}}}]\n  containers: [{{name: \
             a}}]\n  deferContainers: [{{name: d, {fields}}}]\n"
        ),
        false,
    );
    assert_eq!(annotation(&pod, "usher/essential"), Some("i"));
    assert_eq!(annotation(&pod, "termination-hook.usher/d"), None);
    let said: Vec<_> = notes
        .iter()
        .filter_map(|note| note.split_once(" is "))
        .collect();
    let about: Vec<_> = said.iter().map(|(what, _)| *what).collect();
    assert_eq!(
        about,
        [
            "i: its lifecycle.type",
            "i: its terminationHook",
            "d: its lifecycle.type",
            "d: its terminationHook",
            "d: its fatalToPod"
        ]
    );
}

#[test]
fn a_pod_that_the_shim_would_refuse_is_an_error() {
    let text = "kind: Pod\nmetadata: {name: x}\nspec: {containers: [{name: app}, {name: proxy, \
                lifecycle: {type: Sidecar}, startupProbe: {httpGet: {port: 1, host: a.example}}}]}";
    let mut documents = parse(text).unwrap();
    let error = sentence(&convert(&mut documents, &options(false)).unwrap_err());
    for word in ["Pod x", "would refuse", "a.example", "IP literal"] {
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn invalid_pods_are_refused() {
    for (text, words) in [
        (
            "containers: [{name: a, lifecycle: {type: Sidecar}}]",
            "has no app",
        ),
        (
            "containers: [{name: a}, {name: a, lifecycle: {type: Sidecar}}]",
            "two containers named a",
        ),
        (
            "containers: [{}, {name: a, lifecycle: {type: Sidecar}}]",
            "no name",
        ),
    ] {
        let mut documents = parse(&format!("kind: Pod\nspec:\n  {text}")).unwrap();
        let error = sentence(&convert(&mut documents, &options(false)).unwrap_err());
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn documents_without_anything_to_convert_stay() {
    let text = "kind: Service\nspec: {deferContainers: [], type: Sidecar}\n---\nkind: Pod\nspec: \
                {containers: [{name: a}]}\n";
    let mut documents = parse(text).unwrap();
    let said = convert(&mut documents, &options(false)).unwrap();
    assert_eq!(documents, parse(text).unwrap());
    assert_eq!(said.len(), 1);
}

#[test]
fn unknown_forms_are_refused() {
    for (text, words) in [
        (
            "pod: {spec: {containers: [{name: a}]}}",
            ["pod", "kind: Pod"],
        ),
        ("spec: {containers: [{name: a}]}", ["kind", "kind: Pod"]),
        (
            "kind: Pod\nspec: {containers: [{name: a}, {name: b, sidecar: true}]}",
            ["b: sidecar", "lifecycle.type: Sidecar"],
        ),
        (
            "kind: Pod\nspec: {containers: [{name: a, dependsOn: b}, {name: b}]}",
            ["a: dependsOn", "lifecycle.type: Sidecar"],
        ),
        (
            "kind: Pod\nspec: {containers: [{name: a, startupOrder: 1}]}",
            ["a: startupOrder", "usher/startup-order"],
        ),
        (
            "kind: Pod\nspec: {containers: [{name: a, shutdownOrder: 1}]}",
            ["a: shutdownOrder", "usher/startup-order"],
        ),
        (
            "kind: Pod\nspec: {containers: [{name: a, StartupPhase: post-init}]}",
            ["a: StartupPhase", "usher/startup-order"],
        ),
        (
            "kind: Pod\nspec: {containers: [{name: a, lifecycle: {type: sidecar}}]}",
            ["a: unknown lifecycle.type", "Sidecar"],
        ),
        (
            "kind: Pod\nspec: {containers: [{name: a}], sidecarContainers: [{name: b}]}",
            ["sidecarContainers", "lifecycle.type: Sidecar"],
        ),
        (
            "kind: Pod\nspec: {containers: [{name: a}], primaryContainer: a}",
            ["primaryContainer", "lifecycle.type: Sidecar"],
        ),
        (
            "kind: Job\nspec: {primaryContainer: a, template: {spec: {containers: [{name: a}]}}}",
            ["primaryContainer", "lifecycle.type: Sidecar"],
        ),
        // The container has an unknown field beside a field that can be converted.
        (
            "kind: Pod\nspec: {containers: [{name: a, dependsOn: b}, {name: b, lifecycle: {type: \
             Sidecar}}]}",
            ["a: dependsOn", "lifecycle.type: Sidecar"],
        ),
    ] {
        let mut documents = parse(text).unwrap();
        let error = sentence(&convert(&mut documents, &options(false)).expect_err(text));
        for word in words {
            assert!(error.contains(word), "{word:?} is missing in: {error}");
        }
        assert!(error.contains("expected"), "{error}");
    }
}

#[test]
fn containers_that_the_shim_stops_get_their_stop_signal_as_an_annotation() {
    let signal = |name: &str| format!("lifecycle: {{stopSignal: {name}}}");
    let text = format!(
        "kind: Pod\nspec:\n  initContainers: [{{name: i, {}}}]\n  containers: [{{name: a, {}}}, \
         {{name: k, {}}}, {{name: p, lifecycle: {{type: Sidecar, stopSignal: SIGQUIT}}}}]\n  \
         deferContainers: [{{name: d, {}}}]\n",
        signal("SIGINT"),
        signal("SIGUSR1"),
        signal("SIGKILL"),
        signal("SIGRTMIN+3"),
    );
    let (pod, notes) = converted(&text, false);
    for (key, value) in [
        ("stop-signal.usher/i", None),
        ("stop-signal.usher/a", Some("SIGUSR1")),
        ("stop-signal.usher/k", None),
        ("stop-signal.usher/p", Some("SIGQUIT")),
        ("stop-signal.usher/d", Some("SIGRTMIN+3")),
    ] {
        assert_eq!(annotation(&pod, key), value, "{key}");
    }
    // The `stopSignal` fields stay in the spec for kubelet.
    assert_eq!(print(&[pod]).unwrap().matches("stopSignal").count(), 5);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("k: its stopSignal SIGKILL"), "{notes:?}");
    let author = "metadata: {annotations: {stop-signal.usher/k: SIGUSR2}}\n";
    let (pod, notes) = converted(&format!("{author}{text}"), false);
    let signal = annotation(&pod, "stop-signal.usher/k");
    assert_eq!((signal, notes.len()), (Some("SIGUSR2"), 0), "{notes:?}");
    // The second warning is about the init container, which runs before the sidecar.
    let said = convert(&mut parse(&text).unwrap(), &options(false)).unwrap();
    assert_eq!(said.len(), 2);
}

#[test]
fn a_sidecars_liveness_probe_becomes_an_annotation_unless_kubelet_restarts_it() {
    let text = |policy: &str| {
        format!(
            "kind: Pod\nspec:\n  restartPolicy: {policy}\n  containers: [{{name: a}}, {{name: p, \
             lifecycle: {{type: Sidecar}}, livenessProbe: {{tcpSocket: {{port: 1}}, \
             terminationGracePeriodSeconds: 1}}}}]\n"
        )
    };
    for (policy, probe) in [
        ("Always", None),
        ("OnFailure", Some(r#"{"tcpSocket":{"port":1}}"#)),
        ("Never", Some(r#"{"tcpSocket":{"port":1}}"#)),
    ] {
        let (pod, notes) = converted(&text(policy), false);
        assert_eq!(
            annotation(&pod, "liveness-probe.usher/p"),
            probe,
            "{policy}"
        );
        let left = print(&[pod]).unwrap().contains("livenessProbe");
        assert_eq!(left, probe.is_none(), "{policy}");
        assert_eq!(notes.len(), usize::from(probe.is_some()), "{notes:?}");
    }
}

#[test]
fn a_converted_readiness_probe_fails_within_the_startup_timeout() {
    for (probe, threshold) in [
        ("periodSeconds: 7", 42),
        ("periodSeconds: 10, initialDelaySeconds: 30", 27),
        ("initialDelaySeconds: 1000", 3),
    ] {
        let text = format!(
            "kind: Pod\nspec: {{containers: [{{name: a}}, {{name: p, lifecycle: {{type: Sidecar}}, \
             readinessProbe: {{tcpSocket: {{port: 1}}, {probe}}}}}]}}"
        );
        let (pod, _) = converted(&text, false);
        let written = annotation(&pod, "startup-probe.usher/p").unwrap();
        let expected = format!("\"failureThreshold\":{threshold}");
        assert!(written.contains(&expected), "{written}");
    }
}

#[test]
fn a_quantity_that_kubernetes_refuses_is_an_error() {
    let text = "kind: Pod\nspec: {containers: [{name: app, resources: {limits: {memory: 1GiB}}}, \
                {name: p, lifecycle: {type: Sidecar}}]}";
    let error = sentence(&convert(&mut parse(text).unwrap(), &options(false)).unwrap_err());
    for word in ["app", "memory", "1GiB", "expected one such as"] {
        assert!(error.contains(word), "{word:?} is missing in: {error}");
    }
}

/// A random pod to convert, with fields that were proposed for Kubernetes.
#[derive(Debug, Clone)]
struct Model {
    init: usize,
    serial: Vec<Starting>,
    /// An item for each container in the order of the manifest: true for a sidecar, false for an
    /// app.
    containers: Vec<bool>,
    defers: usize,
    policy: RestartPolicy,
    essential: bool,
}

fn models() -> impl Strategy<Value = Model> {
    let starting = prop::sample::select(vec![Starting::Init, Starting::Sidecar]);
    let policy = prop::sample::select(vec![
        RestartPolicy::Always,
        RestartPolicy::OnFailure,
        RestartPolicy::Never,
    ]);
    (
        0_usize..3,
        prop::collection::vec(starting, 0..4),
        prop::collection::vec(any::<bool>(), 0..4),
        0_usize..3,
        policy,
        any::<bool>(),
    )
        .prop_map(
            |(init, mut serial, mut containers, defers, policy, essential)| {
                // Init containers before the first sidecar stay init containers, which kubelet
                // runs.
                let first = serial.iter().position(|it| *it == Starting::Sidecar);
                let before = first.unwrap_or(serial.len());
                let serial = serial.split_off(before);
                containers.push(false);
                Model {
                    init: init + before,
                    serial,
                    containers,
                    defers,
                    policy,
                    essential,
                }
            },
        )
}

impl Model {
    fn serial(&self) -> Vec<String> {
        (0..self.serial.len())
            .map(|n| format!("serial-{n}"))
            .collect()
    }

    fn of_kind(&self, sidecar: bool) -> Vec<String> {
        let all = self.containers.iter().enumerate();
        let those = all.filter(|(_, is_sidecar)| **is_sidecar == sidecar);
        those.map(|(n, _)| format!("container-{n}")).collect()
    }

    fn numbered(what: &str, count: usize) -> Vec<String> {
        (0..count).map(|n| format!("{what}-{n}")).collect()
    }

    /// The manifest before the conversion.
    fn manifest(&self) -> String {
        let mut text = format!("kind: Pod\nspec:\n  restartPolicy: {}\n", self.policy);
        text += "  initContainers:\n";
        for name in Model::numbered("init", self.init) {
            text += &format!("  - {{name: {name}, image: x}}\n");
        }
        for (name, kind) in self.serial().iter().zip(&self.serial) {
            let more = match kind {
                Starting::Init => "",
                Starting::Sidecar => ", restartPolicy: Always",
            };
            text += &format!("  - {{name: {name}, image: x{more}}}\n");
        }
        text += "  containers:\n";
        for (n, is_sidecar) in self.containers.iter().enumerate() {
            let mut more = String::new();
            if *is_sidecar {
                more += ", lifecycle: {type: Sidecar}";
            }
            if self.essential && n == 0 {
                more += ", fatalToPod: true";
            }
            text += &format!("  - {{name: container-{n}, image: x{more}}}\n");
        }
        text += "  deferContainers:\n";
        for name in Model::numbered("defer", self.defers) {
            text += &format!("  - {{name: {name}, image: x}}\n");
        }
        text
    }

    fn has_foreign_fields(&self) -> bool {
        !self.serial.is_empty()
            || self.containers.contains(&true)
            || self.defers > 0
            || self.essential
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_converted_pod_has_the_plan_of_the_original(model in models()) {
        let (document, _) = converted(&model.manifest(), true);
        // The printed text is parsed back to the same document.
        let printed = print(std::slice::from_ref(&document)).unwrap();
        prop_assert_eq!(&parse(&printed).unwrap()[0], &document);
        if !model.has_foreign_fields() {
            prop_assert!(annotation(&document, "usher/apps").is_none());
            return Ok(());
        }
        let (owner, node) = pods(&document).remove(0);
        let pod = Pod::read(&owner, &node.json()).unwrap();
        let plan = Plan::parse(&pod.annotations).unwrap();

        let serial = model.serial();
        let sidecars = model.of_kind(true);
        for (name, kind) in serial.iter().zip(&model.serial) {
            let role = match kind {
                Starting::Init => Role::Init,
                Starting::Sidecar => Role::Sidecar,
            };
            prop_assert_eq!(plan.role(name), role);
        }
        prop_assert_eq!(plan.native_init(), Model::numbered("init", model.init));
        let mut stages: Vec<Stage> = serial.iter().map(|it| Stage(vec![it.clone()])).collect();
        match serial.is_empty() {
            true if !sidecars.is_empty() => stages.push(Stage(sidecars.clone())),
            true => {}
            false => stages.extend(sidecars.iter().map(|it| Stage(vec![it.clone()]))),
        }
        prop_assert_eq!(plan.stages(), stages);
        let apps = model.of_kind(false);
        prop_assert_eq!(plan.apps().unwrap().iter().cloned().collect::<Vec<_>>(), apps.clone());
        let defers = Model::numbered("defer", model.defers);
        prop_assert_eq!(plan.pre_exit(), defers.clone());
        prop_assert_eq!(plan.settings().restart_policy, model.policy);
        prop_assert_eq!(plan.settings().essential.len(), usize::from(model.essential));

        // Each container comes after those that it waits for. Only two kinds of warnings are
        // expected: about essential containers, and about init containers before sidecars.
        let order = [serial, sidecars, apps, defers].concat();
        prop_assert_eq!(names(&document, "containers"), order);
        let warnings = Judgement::of(&pod, &Rules::default()).warnings;
        let early = match plan.sidecars() {
            [] => 0,
            _ => model.init,
        };
        let expected = usize::from(model.essential).saturating_add(early);
        prop_assert_eq!(warnings.len(), expected, "{:?}", warnings);
    }
}
