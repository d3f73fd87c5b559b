use super::super::manifest::{parse, pods};
use super::*;

fn explained(text: &str) -> Explanation {
    let document = parse(text).unwrap().remove(0);
    let (owner, pod) = pods(&document).remove(0);
    explain("pod.yaml", &owner, &pod, &Rules::default()).unwrap()
}

/// What is said about a container; of the whole pod under "pod".
fn warnings(text: &str) -> Vec<(String, String)> {
    let about = |warning: &Warning| warning.container.clone().unwrap_or("pod".to_owned());
    let warnings = explained(text).warnings;
    warnings
        .iter()
        .map(|it| (about(it), it.says.clone()))
        .collect()
}

/// Whether exactly one warning about `container` has these words in it, and no other is there.
#[track_caller]
fn only_warning(text: &str, container: &str, words: &str) {
    let warnings = warnings(text);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    let (about, says) = &warnings[0];
    assert_eq!(about, container, "{says}");
    assert!(says.contains(words), "{says}");
}

/// A pod that nothing is to be said about, with more annotations and fields of its spec.
fn pod(annotations: &str, spec: &str, containers: &str) -> String {
    format!(
        "kind: Pod\nmetadata:\n  name: shop\n  annotations: {{usher/sidecars: proxy{annotations}}}\n\
         spec:\n  runtimeClassName: usher\n{spec}  containers:\n{containers}"
    )
}

const BOTH: &str = "  - {name: proxy}\n  - {name: app}\n";
const REVERSED: &str = "  - {name: app}\n  - {name: proxy}\n";

#[test]
fn sidecars_start_first_and_stop_last() {
    let said = explained(&pod("", "", BOTH));
    assert_eq!(said.refused, None);
    assert_eq!(said.warnings, []);
    let start = said.start.unwrap();
    let order: Vec<_> = start
        .iter()
        .map(|it| (it.container.as_str(), it.step))
        .collect();
    assert_eq!(order, [("proxy", Some(1)), ("app", Some(2))]);
    assert_eq!(start[1].waits_for, ["proxy"]);
    assert_eq!(start[1].held, start::Held::Blocked);
    let stop = said.stop.unwrap();
    let steps: Vec<_> = stop
        .steps
        .iter()
        .map(|it| (it.step, it.over_after_seconds))
        .collect();
    assert_eq!(steps, [("apps", 32.0), ("sidecars", 32.0)]);
    assert_eq!(stop.worst_case_seconds, 32.0);
}

#[test]
fn the_grace_period_is_the_annotations_else_the_manifests() {
    let of = |text: &str| explained(text).stop.unwrap().grace_period_seconds;
    assert_eq!(
        of(&pod("", "  terminationGracePeriodSeconds: 60\n", BOTH)),
        60.0
    );
    let both = pod(
        ", usher/grace-period: 45s",
        "  terminationGracePeriodSeconds: 60\n",
        BOTH,
    );
    assert_eq!(of(&both), 45.0);
}

#[test]
fn what_the_shim_refuses_is_refused_in_its_words() {
    let said = explained(&pod(", usher/start-mode: Slow", "", BOTH));
    assert_eq!(
        said.refused.as_deref(),
        Some("usher/start-mode: \"Slow\" is not one of Auto, Block, Hold")
    );
    assert_eq!(said.start, None);
}

#[test]
fn a_nodes_rules_are_the_shims() {
    let text = pod(", usher/startup-timeout: 1h", "", BOTH);
    let document = parse(&text).unwrap().remove(0);
    let (owner, node) = pods(&document).remove(0);
    let rules = config::parse("[limits]\nstartup-timeout = '1m'").unwrap();
    let said = explain("pod.yaml", &owner, &node, &rules).unwrap();
    assert!(said.refused.unwrap().contains("for this node"));
    assert!(said.start.is_some());
}

#[test]
fn a_pod_without_annotations_is_kubelets() {
    let said = explained("kind: Pod\nspec:\n  containers: [{name: a}]\n");
    assert_eq!((said.refused, said.start, said.stop), (None, None, None));
    assert_eq!(said.warnings, []);
}

#[test]
fn an_app_before_its_sidecar_reads_ready_too_early() {
    only_warning(&pod("", "", REVERSED), "app", "reads Ready before it runs");
    let probed = "  - {name: app, readinessProbe: {exec: {command: [a]}}}\n  - {name: proxy}\n";
    only_warning(&pod("", "", probed), "app", "reads Running before it runs");
    let blocked = pod(", usher/start-mode: Block", "", REVERSED);
    only_warning(&blocked, "app", "never does");
}

#[test]
fn a_probe_or_post_start_of_a_held_app_is_warned_of() {
    let app = |more: &str| {
        let containers = format!("  - {{name: app, {more}}}\n  - {{name: proxy}}\n");
        warnings(&pod("", "", &containers)).len()
    };
    assert_eq!(app("livenessProbe: {exec: {command: [a]}}"), 1);
    assert_eq!(app("livenessProbe: {tcpSocket: {port: 1}}"), 2);
    assert_eq!(app("startupProbe: {httpGet: {port: 1}}"), 2);
    assert_eq!(app("lifecycle: {postStart: {exec: {command: [a]}}}"), 2);
}

#[test]
fn fields_of_the_proposals_are_warned_of() {
    let text = "kind: Pod\nspec: {containers: [{name: a}, {name: b, lifecycle: {type: Sidecar}}]}";
    only_warning(text, "pod", "usher convert");
}

#[test]
fn a_restart_policy_that_usher_does_not_know_is_warned_of() {
    let job = |policy: &str| {
        format!(
            "kind: Job\nmetadata: {{name: j}}\nspec:\n  template:\n    metadata:\n      annotations: \
             {{usher/sidecars: proxy, usher/apps: app{policy}}}\n    spec:\n      \
             runtimeClassName: usher\n      restartPolicy: Never\n      containers: [{{name: proxy}}, \
             {{name: app}}]\n"
        )
    };
    only_warning(&job(""), "pod", "usher/restart-policy is missing");
    only_warning(
        &job(", usher/restart-policy: OnFailure"),
        "pod",
        "expected the same",
    );
    assert_eq!(warnings(&job(", usher/restart-policy: Never")), []);
}

#[test]
fn reserve_needs_six_seconds_of_the_manifest_too() {
    let text = pod(
        ", usher/grace-policy: Reserve",
        "  terminationGracePeriodSeconds: 5\n",
        BOTH,
    );
    only_warning(&text, "pod", "too short for the grace policy Reserve");
}

#[test]
fn a_grace_period_beyond_kubelets_is_warned_of() {
    only_warning(
        &pod(", usher/grace-period: 1m", "", BOTH),
        "pod",
        "kubelet kills",
    );
}

#[test]
fn a_missing_runtime_class_is_warned_of() {
    let text = pod("", "", BOTH).replace("  runtimeClassName: usher\n", "");
    only_warning(&text, "pod", "runtimeClassName is missing");
}

#[test]
fn names_that_do_not_fit_the_manifest_are_warned_of() {
    only_warning(
        &pod("", "  initContainers: [{name: setup}]\n", BOTH),
        "setup",
        "not in usher/native-init",
    );
    let native = pod(
        ", usher/native-init: setup",
        "  initContainers: [{name: setup}]\n",
        BOTH,
    );
    assert_eq!(warnings(&native), []);
    only_warning(&pod("", "", "  - {name: app}\n"), "proxy", "not in the pod");
    only_warning(
        &pod(
            "",
            "  initContainers: [{name: proxy}]\n",
            "  - {name: app}\n",
        ),
        "proxy",
        "among the containers",
    );
    only_warning(
        &pod(", usher/native-init: setup", "", BOTH),
        "setup",
        "no init container",
    );
    let guest = "  - {name: proxy}\n  - {name: app}\n  - {name: debug}\n";
    only_warning(&pod(", usher/apps: app", "", guest), "debug", "a guest");
}

#[test]
fn a_startup_probe_that_usher_does_not_see_is_warned_of() {
    let containers = "  - {name: proxy, startupProbe: {tcpSocket: {port: 1}}}\n  - {name: app}\n";
    only_warning(
        &pod("", "", containers),
        "proxy",
        "startup-probe.usher/proxy",
    );
}

#[test]
fn sizes_are_those_of_each_phase() {
    let said = explained(
        r#"
kind: Pod
metadata: {annotations: {usher/sidecars: proxy, usher/native-init: setup, usher/post-exit: bye}}
spec:
  overhead: {cpu: 10m, memory: 1Mi}
  initContainers:
  - {name: setup, resources: {requests: {cpu: 1, memory: 1Gi}, limits: {cpu: 1, memory: 1Gi}}}
  containers:
  - {name: proxy, resources: {limits: {cpu: 100m, memory: 64Mi}}}
  - {name: app, resources: {limits: {cpu: 500m, memory: 128Mi}}}
  - {name: bye, resources: {limits: {cpu: 2, memory: 1Mi}}}
"#,
    );
    let phases: Vec<_> = said
        .resources
        .phases
        .iter()
        .map(|it| {
            (
                it.phase.as_str(),
                it.limits.cpu_millis,
                it.limits.memory_bytes,
            )
        })
        .collect();
    let mi = |n: u64| Some(n << 20);
    assert_eq!(
        phases,
        [
            ("start of setup", Some(1000), mi(1024)),
            ("start of proxy", Some(100), mi(64)),
            ("running", Some(600), mi(192)),
            ("post-exit", Some(2100), mi(65)),
            ("effective", Some(2110), mi(1025)),
        ]
    );
    assert_eq!(said.resources.qos_class, "Guaranteed");
}

#[test]
fn the_qos_class_is_kubelets() {
    let of = |resources: &str| {
        let containers =
            format!("  - {{name: proxy}}\n  - {{name: app, resources: {resources}}}\n");
        explained(&pod("", "", &containers)).resources.qos_class
    };
    assert_eq!(of("{}"), "BestEffort");
    assert_eq!(of("{requests: {cpu: 0}}"), "BestEffort");
    assert_eq!(of("{limits: {cpu: 1, memory: 1Mi}}"), "Burstable");
}

#[test]
fn the_text_has_everything_in_it() {
    let said = explained(&pod("", "", REVERSED));
    let text = anstream::adapter::strip_str(&said.text()).to_string();
    for part in [
        "Pod shop",
        "STEP",
        "after proxy; it is held",
        "at worst 32s",
        "QoS class",
        "app: is",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}
