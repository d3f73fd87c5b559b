use super::super::manifest::{parse, pods};
use super::*;
use usher_core::judgement::Held;

pub(super) fn explained(text: &str) -> Explanation {
    let document = parse(text).unwrap().remove(0);
    let (owner, pod) = pods(&document).remove(0);
    explain("pod.yaml", &owner, &pod, &Rules::default()).unwrap()
}

/// The warnings, each with its container, or with "pod" if it is about the whole pod.
pub(super) fn warnings(text: &str) -> Vec<(String, String)> {
    let about = |warning: &Warning| warning.container.clone().unwrap_or("pod".to_owned());
    let warnings = explained(text).warnings;
    warnings
        .iter()
        .map(|it| (about(it), it.says.clone()))
        .collect()
}

/// Checks that there is exactly one warning, and that it is about `container` and has these words.
#[track_caller]
fn only_warning(text: &str, container: &str, words: &str) {
    let warnings = warnings(text);
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    let (about, says) = &warnings[0];
    assert_eq!(about, container, "{says}");
    assert!(says.contains(words), "{says}");
}

/// A pod that causes no warning, with further annotations and fields of its spec.
pub(super) fn pod(annotations: &str, spec: &str, containers: &str) -> String {
    format!(
        "kind: Pod\nmetadata:\n  name: shop\n  annotations: {{usher/sidecars: proxy{annotations}}}\n\
         spec:\n  runtimeClassName: usher\n{spec}  containers:\n{containers}"
    )
}

pub(super) const BOTH: &str = "  - {name: proxy}\n  - {name: app}\n";
pub(super) const REVERSED: &str = "  - {name: app}\n  - {name: proxy}\n";

#[test]
fn an_author_who_annotates_a_controller_is_told_to_annotate_its_pod_template() {
    let text = "{kind: Deployment, metadata: {annotations: {usher/sidecars: a}}, \
        spec: {template: {spec: {containers: [{name: a}]}}}}";
    let text = explained(text).text(None);
    assert!(text.contains("the Deployment's pod template"), "{text}");
    let pod = "{kind: Pod, spec: {containers: [{name: a}]}}";
    assert!(!explained(pod).text(None).contains("template"));
}

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
    assert_eq!(start[1].held, Held::Blocked);
    let stop = said.stop.unwrap();
    let steps: Vec<_> = stop
        .steps
        .iter()
        .map(|it| (it.step.as_str(), it.over_after_seconds))
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
fn a_refusal_has_the_shims_words() {
    let said = explained(&pod(", usher/start-mode: Slow", "", BOTH));
    assert_eq!(
        said.refused.as_deref(),
        Some("usher/start-mode: \"Slow\" is not one of Auto, Block, Hold")
    );
    assert_eq!(said.start, None);
}

#[test]
fn a_nodes_rules_apply() {
    let text = pod(", usher/startup-timeout: 1h", "", BOTH);
    let document = parse(&text).unwrap().remove(0);
    let (owner, node) = pods(&document).remove(0);
    let rules = usher_core::config::parse("[limits]\nstartup-timeout = '1m'").unwrap();
    let said = explain("pod.yaml", &owner, &node, &rules).unwrap();
    assert!(said.refused.unwrap().contains("for this node"));
    assert!(said.start.is_some());
}

#[test]
fn a_pod_without_annotations_has_no_plan() {
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
    only_warning(&blocked, "app", "only after this Start");
}

#[test]
fn a_probe_or_post_start_handler_of_a_held_app_is_a_warning() {
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
fn fields_of_the_proposed_api_are_a_warning() {
    let text = "kind: Pod\nspec: {containers: [{name: a}, {name: b, lifecycle: {type: Sidecar}}]}";
    only_warning(text, "pod", "usher convert");
}

#[test]
fn a_missing_or_different_restart_policy_is_a_warning() {
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
fn reserve_needs_six_seconds_of_the_manifests_grace_period() {
    let text = pod(
        ", usher/grace-policy: Reserve",
        "  terminationGracePeriodSeconds: 5\n",
        BOTH,
    );
    only_warning(&text, "pod", "too short for the grace policy Reserve");
}

#[test]
fn a_grace_period_longer_than_kubelets_is_a_warning() {
    only_warning(
        &pod(", usher/grace-period: 1m", "", BOTH),
        "pod",
        "kubelet kills",
    );
}

#[test]
fn a_missing_runtime_class_is_a_warning() {
    let text = pod("", "", BOTH).replace("  runtimeClassName: usher\n", "");
    only_warning(&text, "pod", "runtimeClassName is missing");
}

#[test]
fn names_that_do_not_fit_the_manifest_are_warnings() {
    only_warning(
        &pod("", "  initContainers: [{name: setup}]\n", BOTH),
        "setup",
        "not in usher/native-init",
    );
    let native = pod(
        ", usher/native-init: setup",
        "  initContainers: [{name: setup, restartPolicy: Always}]\n",
        BOTH,
    );
    assert_eq!(warnings(&native), []);
    only_warning(
        &pod("", "", "  - {name: app}\n"),
        "proxy",
        "no such container",
    );
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
        "no such init container",
    );
    let guest = "  - {name: proxy}\n  - {name: app}\n  - {name: debug}\n";
    only_warning(&pod(", usher/apps: app", "", guest), "debug", "a guest");
}

#[test]
fn a_startup_probe_without_its_annotation_is_a_warning() {
    let containers = "  - {name: proxy, startupProbe: {tcpSocket: {port: 1}}}\n  - {name: app}\n";
    only_warning(
        &pod("", "", containers),
        "proxy",
        "startup-probe.usher/proxy",
    );
}

#[test]
fn each_phase_has_its_size() {
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
fn the_qos_class_is_computed_as_by_kubelet() {
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
fn the_text_has_all_parts() {
    let said = explained(&pod("", "", REVERSED));
    let text = anstream::adapter::strip_str(&said.text(None)).to_string();
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

/// The row of a container in the table, with single spaces.
fn row(text: &str, container: &str) -> String {
    let text = anstream::adapter::strip_str(&explained(text).text(None)).to_string();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut lines = text.lines().map(words);
    let is_its = |line: &String| line.contains(&format!(" {container} "));
    lines
        .find(is_its)
        .unwrap_or_else(|| panic!("{container} is not in:\n{text}"))
}

#[test]
fn an_unlisted_init_container_never_starts_and_its_row_names_the_missing_annotation() {
    let init = "  initContainers: [{name: fetch}, {name: migrate}]\n";
    assert_eq!(
        row(&pod("", init, BOTH), "migrate"),
        "2 migrate app never: it is held for proxy, and kubelet waits for it (starts at once \
         if the pod has the annotation usher/native-init: fetch, migrate) when it has exited with 0"
    );
    let one = pod(", usher/native-init: fetch", init, BOTH);
    let start = explained(&one).start.unwrap();
    let held: Vec<_> = start
        .iter()
        .map(|it| (it.container.as_str(), it.held))
        .collect();
    use Held::{Blocked, InVain, No};
    assert_eq!(
        held,
        [
            ("fetch", No),
            ("migrate", InVain),
            ("proxy", No),
            ("app", Blocked)
        ]
    );
    let missing = Some("usher/native-init: fetch, migrate");
    assert_eq!(start[1].remedy.as_deref(), missing);
    // If the pod lists its apps, an init container that is in no list has the role guest. If no
    // container starts before the apps, an init container waits for no other container.
    let listed = pod(", usher/apps: app", init, BOTH);
    assert!(row(&listed, "fetch").starts_with("1 fetch guest at once"));
    let nothing_before = "kind: Pod\nmetadata: {annotations: {usher/post-exit: bye}}\nspec:\n  \
        initContainers: [{name: fetch}]\n  containers: [{name: app}, {name: bye}]\n";
    assert!(row(nothing_before, "fetch").starts_with("1 fetch app at once"));
}

#[test]
fn an_init_container_that_usher_has_to_hold_never_starts() {
    let text = |annotations: &str| {
        format!(
            "kind: Pod\nmetadata: {{annotations: {{{annotations}}}}}\nspec:\n  \
             initContainers: [{{name: fetch}}, {{name: proxy, restartPolicy: Always}}]\n  \
             containers: [{{name: migrate}}, {{name: app}}]\n"
        )
    };
    let behind = text("usher/init: migrate, usher/sidecars: proxy, usher/native-init: fetch");
    assert!(row(&behind, "proxy").contains("never: it is held for migrate, and kubelet waits"));
    let cleanup = text("usher/post-exit: fetch, usher/native-init: proxy");
    assert!(row(&cleanup, "fetch").contains("never: it is held until the pod terminates"));
    // kubelet creates the containers in the order in which usher starts them.
    let before = text("usher/sidecars: proxy, usher/native-init: fetch");
    assert!(row(&before, "proxy").starts_with("2 proxy sidecar at once"));
}

#[test]
fn a_container_added_later_waits_and_its_row_names_the_missing_annotation() {
    assert_eq!(
        row(&pod("", "", BOTH), "(added later)"),
        "- (added later) app after proxy; its Start waits (starts at once if the pod has the \
         annotation usher/apps: app) -"
    );
    let later = explained(&pod("", "", BOTH)).added_later.unwrap();
    assert_eq!(later.waits_for, ["proxy"]);
    for nothing_to_say in [
        pod(", usher/apps: app", "", BOTH),
        "kind: Pod\nmetadata: {annotations: {usher/post-exit: a}}\nspec: {containers: [{name: a}]}\n"
            .to_owned(),
    ] {
        assert_eq!(explained(&nothing_to_say).added_later, None);
    }
}

#[test]
fn the_table_shows_when_a_run_is_complete() {
    let done = |annotations: &str, policy: &str| {
        let annotations = format!(", usher/restart-policy: {policy}{annotations}");
        let spec = format!("  restartPolicy: {policy}\n");
        let start = explained(&pod(&annotations, &spec, BOTH)).start.unwrap();
        start[1].done.clone()
    };
    assert_eq!(done("", "Always"), None);
    let all = "the run, when all apps have exited";
    assert_eq!(done(", usher/apps: app", "Never").unwrap(), all);
    let succeeded = format!("{all} with 0");
    assert_eq!(done(", usher/apps: app", "OnFailure").unwrap(), succeeded);
    let late = " and no container was created for 30s (usher/apps: app makes it at once)";
    assert_eq!(done("", "Never").unwrap(), format!("{all}{late}"));
}

/// The warnings about one container, or about the whole pod under "pod".
fn said_of(text: &str, container: &str) -> Vec<String> {
    let warnings = warnings(text).into_iter();
    warnings
        .filter_map(|(about, says)| (about == container).then_some(says))
        .collect()
}

/// Checks that exactly one warning about `container` has all these words.
#[track_caller]
fn says(text: &str, container: &str, words: &[&str]) {
    let said = said_of(text, container);
    let with = said
        .iter()
        .filter(|says| words.iter().all(|word| says.contains(word)));
    assert_eq!(with.count(), 1, "{words:?} in {said:#?}");
}

/// A pod that lists its apps and has these annotations. A further annotation repeats the pod's
/// restart policy.
fn listed(annotations: &str, policy: &str, spec: &str, containers: &str) -> String {
    format!(
        "kind: Pod\nmetadata:\n  name: shop\n  annotations: {{usher/apps: app, \
         usher/restart-policy: {policy}, {annotations}}}\nspec:\n  runtimeClassName: usher\n  \
         restartPolicy: {policy}\n{spec}  containers:\n{containers}"
    )
}

#[test]
fn probes_and_post_start_handlers_of_an_app_behind_an_init_container_are_warnings() {
    let app = |mode: &str, more: &str| {
        let containers = format!("  - {{name: setup}}\n  - {{name: app{more}}}\n");
        listed(
            &format!("usher/init: setup, usher/start-mode: {mode}"),
            "Always",
            "",
            &containers,
        )
    };
    let http = "{httpGet: {port: 1}}";
    for (more, words) in [
        (
            format!(", livenessProbe: {http}"),
            ["livenessProbe", "setup", "expected an exec probe"],
        ),
        (
            format!(", startupProbe: {http}"),
            ["startupProbe", "setup", "expected an exec probe"],
        ),
        (
            ", lifecycle: {postStart: {exec: {command: [a]}}}".to_owned(),
            ["postStart", "setup", "never ends"],
        ),
        (
            format!(", lifecycle: {{postStart: {http}}}"),
            ["postStart", "setup", "fails"],
        ),
    ] {
        let text = app("Auto", &more);
        says(&text, "app", &words);
        assert_eq!(warnings(&text).len(), 1, "{more}");
        // With start mode Block, usher answers the `Start` request for the app only when the app
        // may start, and kubelet runs no probe before the answer.
        assert_eq!(warnings(&app("Block", &more)), [], "{more}");
    }
    for harmless in [
        "",
        ", livenessProbe: {exec: {command: [a]}}",
        ", lifecycle: {postStart: {sleep: {seconds: 1}}}",
        ", readinessProbe: {httpGet: {port: 1}}",
    ] {
        assert_eq!(warnings(&app("Auto", harmless)), [], "{harmless}");
    }
}

#[test]
fn a_grace_period_of_two_seconds_is_too_short_for_defers() {
    let pod = |annotations: &str, seconds: u32| {
        listed(
            &format!("usher/post-exit: bye{annotations}"),
            "Always",
            &format!("  terminationGracePeriodSeconds: {seconds}\n"),
            "  - {name: app}\n  - {name: bye}\n",
        )
    };
    for short in [pod("", 2), pod("", 0), pod(", usher/grace-period: 1s", 30)] {
        says(&short, "bye", &["never runs", "expected 3 s or more"]);
    }
    assert_eq!(warnings(&pod("", 3)), []);
}

#[test]
fn the_effect_of_a_failed_essential_container_is_shown() {
    let pod = |policy: &str| {
        listed(
            "usher/essential: app, usher/sidecars: proxy",
            policy,
            "",
            BOTH,
        )
    };
    for policy in ["Always", "OnFailure"] {
        says(
            &pod(policy),
            "app",
            &["essential", "in order", "sandbox is killed", "starts again"],
        );
    }
    says(&pod("Never"), "app", &["essential", "the pod has failed"]);
    assert_eq!(warnings(&pod("Never")).len(), 1);
}

#[test]
fn a_liveness_probe_with_which_kubelet_stops_a_sidecar_for_good_is_a_warning() {
    let pod = |annotation: &str, policy: &str| {
        listed(
            &format!("usher/sidecars: proxy{annotation}"),
            policy,
            "",
            "  - {name: proxy, livenessProbe: {tcpSocket: {port: 1}}}\n  - {name: app}\n",
        )
    };
    let annotation = r#", liveness-probe.usher/proxy: '{"tcpSocket": {"port": 1}}'"#;
    let never = ["for good", "Never", "expected liveness-probe.usher/proxy"];
    says(&pod("", "Never"), "proxy", &never);
    says(&pod(annotation, "Never"), "proxy", &["for good", "alone"]);
    let unknown = pod("", "OnFailure").replace("usher/restart-policy: OnFailure, ", "");
    says(&unknown, "proxy", &["for good", "OnFailure"]);
    for policy in ["Always", "OnFailure"] {
        assert_eq!(warnings(&pod("", policy)), [], "{policy}");
    }
}

#[test]
fn a_startup_probe_longer_than_the_startup_timeout_is_a_warning() {
    let pod = |timeout: &str| {
        let probe = r#"{"tcpSocket": {"port": 1}, "initialDelaySeconds": 10, "periodSeconds": 10}"#;
        listed(
            &format!(
                "usher/sidecars: proxy, usher/startup-timeout: {timeout}, \
                 startup-probe.usher/proxy: '{probe}'"
            ),
            "Always",
            "",
            BOTH,
        )
    };
    says(
        &pod("39s"),
        "proxy",
        &["startup probe", "40s", "39s", "expected"],
    );
    assert_eq!(warnings(&pod("40s")), []);
}

/// Restart rules. With `RULES`, kubelet restarts a container only after exit code 42. With
/// `RULES_FOR_ALL`, kubelet restarts it after every exit code except 0 and 300.
const RULES: &str = ", restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: \
                     {operator: In, values: [42]}}]";
const RULES_FOR_ALL: &str = ", restartPolicy: Never, restartPolicyRules: [{action: \
                             RestartAllContainers, exitCodes: {operator: NotIn, values: [0, 1, 300]}}, \
                             {action: Restart, exitCodes: {operator: In, values: [1, -1]}}]";

#[test]
fn a_containers_own_restart_policy_is_a_warning_until_an_annotation_repeats_it() {
    let pod = |annotations: &str, policy: &str, app: &str, proxy: &str| {
        listed(
            &format!("usher/sidecars: proxy{annotations}"),
            policy,
            "",
            &format!("  - {{name: proxy{proxy}}}\n  - {{name: app{app}}}\n"),
        )
    };
    let own = |policy: &str| format!(", restartPolicy: {policy}");
    for (policy, app, annotation) in [
        ("Never", &*own("Always"), "restart-policy.usher/app: Always"),
        (
            "Never",
            &own("OnFailure"),
            "restart-policy.usher/app: OnFailure",
        ),
        (
            "OnFailure",
            &own("Never"),
            "restart-policy.usher/app: Never",
        ),
        ("Always", &own("Never"), "restart-policy.usher/app: Never"),
        ("Never", RULES, "caller-restarts.usher/app: \"42\""),
        ("Never", RULES_FOR_ALL, "caller-restarts.usher/app: \"!0\""),
    ] {
        let words = ["does not see", "when the run is complete", annotation];
        says(&pod("", policy, app, ""), "app", &words);
        let repeated = pod(&format!(", {annotation}"), policy, app, "");
        assert_eq!(warnings(&repeated), [], "{annotation}");
        // The annotation is about a restart policy or rules of the container, but its spec has
        // none.
        let other = pod(&format!(", {annotation}"), policy, "", "");
        says(
            &other,
            "app",
            &["differs from", "expected no such annotation"],
        );
    }
    for (more, field) in [
        (&*own("Always"), "its own restartPolicy"),
        (RULES, "restartPolicyRules"),
    ] {
        let words = [field, "does not see", "restart.usher/proxy"];
        says(&pod("", "OnFailure", "", more), "proxy", &words);
        let instead = pod(", restart.usher/proxy: Always", "OnFailure", "", more);
        assert_eq!(warnings(&instead), [], "{more}");
    }
    for same in ["Always", "OnFailure", "Never"] {
        assert_eq!(
            warnings(&pod("", same, &own(same), &own(same))),
            [],
            "{same}"
        );
    }
}

#[test]
fn an_init_container_that_kubelet_never_starts_again_is_a_warning() {
    let pod = |policy: &str, setup: &str| {
        listed(
            "usher/init: setup",
            policy,
            "",
            &format!("  - {{name: setup{setup}}}\n  - {{name: app}}\n"),
        )
    };
    let never = ", restartPolicy: Never";
    for policy in ["Always", "OnFailure"] {
        let words = ["does not start it again", "wait for it never run"];
        says(&pod(policy, never), "setup", &words);
        // With these rules kubelet restarts the container after some failures, but not after all.
        says(&pod(policy, RULES), "setup", &words);
        assert_eq!(said_of(&pod(policy, ""), "setup"), Vec::<String>::new());
    }
}

#[test]
fn the_examples_cause_no_warnings() {
    let directory = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../scripts/kubernetes/examples"
    );
    let files = std::fs::read_dir(directory).unwrap();
    let files = files.map(|file| file.unwrap().path()).collect::<Vec<_>>();
    assert!(files.len() >= 6, "{files:?}");
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        let said = explained(&text);
        assert_eq!((said.refused, said.warnings), (None, vec![]), "{file:?}");
        assert!(said.start.is_some(), "{file:?}");
    }
}

#[test]
fn the_table_shows_with_which_exit_codes_a_run_is_complete() {
    let done = |annotations: &str, policy: &str| {
        let text = format!(
            "kind: Pod\nmetadata: {{annotations: {{usher/apps: \"app, report\", \
             usher/restart-policy: {policy}{annotations}}}}}\nspec: {{restartPolicy: {policy}, \
             containers: [{{name: app}}, {{name: report}}]}}\n"
        );
        explained(&text).start.unwrap()[0].done.clone()
    };
    let rules = ", caller-restarts.usher/app: '42', caller-restarts.usher/report: '42'";
    assert_eq!(
        done(rules, "Never").unwrap(),
        "the run, when all apps have exited with any code but 42"
    );
    assert_eq!(
        done(", restart-policy.usher/report: OnFailure", "Never").unwrap(),
        "the run, when all apps have ended (app: exited; report: exited with 0)"
    );
    assert_eq!(
        done(", caller-restarts.usher/app: '!0, 3'", "Never").unwrap(),
        "the run, when all apps have ended (app: exited with 0, 3; report: exited)"
    );
    // With these annotations kubelet restarts the container after every exit, so the run is never
    // complete.
    assert_eq!(done(", restart-policy.usher/report: Always", "Never"), None);
    assert_eq!(done(", caller-restarts.usher/app: '!'", "OnFailure"), None);
    assert_eq!(done(", restart-policy.usher/report: Never", "Always"), None);
}

/// Returns the name of each termination step, and after how many seconds it is over at the latest.
/// The annotations limit the time of single containers.
fn ends(annotations: &str, containers: &str) -> Vec<(String, f64)> {
    let text = listed(
        &format!("usher/sidecars: 'proxy, logs', usher/post-exit: 'save, bye'{annotations}"),
        "Always",
        "",
        containers,
    );
    let steps = explained(&text).stop.unwrap().steps.into_iter();
    steps.map(|it| (it.step, it.over_after_seconds)).collect()
}

const FIVE: &str =
    "  - {name: proxy}\n  - {name: logs}\n  - {name: app}\n  - {name: save}\n  - {name: bye}\n";

#[test]
fn caps_shorten_the_worst_case() {
    let of = |annotations: &str| {
        let ends = ends(annotations, FIVE).into_iter();
        ends.map(|(_, end)| end).collect::<Vec<_>>()
    };
    assert_eq!(of(""), [32.0, 32.0, 32.0]);
    // The grace period of a defer container limits the time from its release to its stop signal.
    // The step takes two more seconds for each defer container, because they run one after another.
    let app = ", grace-period.usher/app: 5s";
    let both = ", grace-period.usher/save: 4s, grace-period.usher/bye: 1s";
    assert_eq!(of(app), [5.0, 32.0, 32.0]);
    assert_eq!(of(&format!("{app}{both}")), [5.0, 14.0, 32.0]);
    let one = ", grace-period.usher/save: 4s";
    assert_eq!(of(&format!("{app}{one}")), [5.0, 32.0, 32.0]);
    // Sidecars stop one after another by default, or all at the same time under `Parallel`.
    let sidecars = ", grace-period.usher/proxy: 3s, grace-period.usher/logs: 2s";
    let all = format!("{app}{both}{sidecars}");
    assert_eq!(of(&all), [5.0, 14.0, 19.0]);
    let parallel = format!("{all}, usher/sidecar-stop-order: Parallel");
    assert_eq!(of(&parallel), [5.0, 14.0, 17.0]);
    // The app's own grace period begins with its stop signal, after the preStop handler. So the
    // step of the apps may last as long as without that grace period.
    let handler = FIVE.replace(
        "{name: app}",
        "{name: app, lifecycle: {preStop: {sleep: {seconds: 9}}}}",
    );
    assert_eq!(ends(app, &handler)[0].1, 32.0);
}

#[test]
fn a_defer_container_that_is_run_again_shows_its_time() {
    let pod = |annotations: &str| {
        listed(
            &format!(
                "usher/sidecars: proxy, usher/pre-exit: save, usher/post-exit: bye{annotations}"
            ),
            "Always",
            "",
            "  - {name: proxy}\n  - {name: app}\n  - {name: save}\n  - {name: bye}\n",
        )
    };
    let said = |annotations: &str| {
        let text = explained(&pod(annotations)).text(None);
        let text = anstream::adapter::strip_str(&text).to_string();
        let lines = text.lines().filter(|line| line.contains("is run again"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for policy in ["OnFailure", "Always"] {
        let line = "save is run again while it fails, after 0, 1, 2, then every 4 s, until 22s have \
                    passed (reserving 2s each for its last run, bye, the apps, the sidecars)";
        let save = format!(", restart.usher/save: {policy}");
        assert_eq!(said(&save), [line]);
        let line = "bye is run again while it fails, after 0, 1, 2, then every 4 s, until 26s have \
                    passed, and for 9s at most (reserving 2s each for its last run, the sidecars)";
        let bye = format!(", restart.usher/bye: {policy}, grace-period.usher/bye: 9s");
        assert_eq!(said(&bye), [line]);
        assert_eq!(warnings(&pod(&save)), []);
    }
    assert_eq!(said(", restart.usher/save: Never"), [""; 0]);
}

#[test]
fn a_container_that_keeps_a_complete_pod_running_is_a_warning() {
    let pod = |policy: &str, annotations: &str| {
        listed(
            &format!("usher/sidecars: proxy{annotations}"),
            policy,
            "",
            "  - {name: proxy}\n  - {name: app}\n  - {name: agent}\n",
        )
    };
    for policy in ["Never", "OnFailure"] {
        let words = [
            "keeps the pod running",
            "role guest",
            "expected agent in usher/sidecars",
        ];
        says(&pod(policy, ""), "agent", &words);
        let native = pod(policy, ", usher/native-init: agent");
        says(
            &native,
            "agent",
            &["keeps the pod running", "role native-init"],
        );
    }
    // Under restart policy Always a run is never complete.
    let said = said_of(&pod("Always", ""), "agent");
    assert!(!said.concat().contains("keeps the pod running"), "{said:?}");
}

#[test]
fn an_init_container_that_runs_before_the_sidecars_is_a_warning() {
    let pod = |annotations: &str, init: &str, containers: &str| {
        pod(
            &format!(", usher/native-init: 'redirect, fetch'{annotations}"),
            &format!(
                "  initContainers:\n  - {{name: redirect, securityContext: {{capabilities: \
                 {{add: [NET_ADMIN]}}}}}}\n  - {{name: fetch{init}}}\n"
            ),
            containers,
        )
    };
    only_warning(
        &pod("", "", BOTH),
        "fetch",
        "runs before proxy: if it needs proxy, it fails, and so does the pod; expected in that case \
         proxy ahead of it in initContainers (restartPolicy: Always) and in usher/native-init, or fetch \
         among the containers, with usher/init: fetch and usher/startup-order: proxy, fetch",
    );
    let setup = format!("  - {{name: setup}}\n{BOTH}");
    only_warning(
        &pod(", usher/init: setup", "", &setup),
        "fetch",
        "with usher/init: setup, fetch and usher/startup-order: setup, proxy, fetch",
    );
    assert_eq!(warnings(&pod("", ", restartPolicy: Always", BOTH)), []);
}

#[test]
fn resources_of_the_whole_pod_count() {
    let said = |annotations: &str, pod: &str, app: &str| {
        let text = format!(
            "kind: Pod\nmetadata: {{annotations: {{{annotations}}}}}\nspec:\n  runtimeClassName: \
             usher\n  overhead: {{cpu: 10m}}\n  resources: {pod}\n  containers:\n  - {{name: app, \
             resources: {app}}}\n  - {{name: proxy}}\n"
        );
        explained(&text).resources
    };
    let both = "{cpu: 2, memory: 1Gi}";
    for annotations in ["", "usher/sidecars: proxy"] {
        // No container has requests, so the pod's limits are also its requests.
        let whole = said(annotations, &format!("{{limits: {both}}}"), "{}");
        assert_eq!(whole.qos_class, "Guaranteed");
        let effective = whole.phases.last().unwrap();
        assert_eq!(effective.requests.cpu_millis, Some(2010));
        assert_eq!(effective.limits.cpu_millis, Some(2010));
        assert_eq!(effective.limits.memory_bytes, Some(1 << 30));
        // The limits in a phase are at most the pod's limits.
        let running = whole
            .phases
            .iter()
            .find(|it| it.phase == "running")
            .unwrap();
        assert_eq!(running.limits.cpu_millis, Some(2000));
        // The request of a container takes precedence over the limit of the pod.
        let asked = said(
            annotations,
            &format!("{{limits: {both}}}"),
            "{requests: {cpu: 1}}",
        );
        assert_eq!(asked.qos_class, "Burstable");
        let effective = asked.phases.last().unwrap();
        assert_eq!(effective.requests.cpu_millis, Some(1010));
        assert_eq!(effective.requests.memory_bytes, Some(1 << 30));
        let requests = said(annotations, &format!("{{requests: {both}}}"), "{}");
        assert_eq!(requests.qos_class, "Burstable");
        let effective = requests.phases.last().unwrap();
        assert_eq!(effective.requests.cpu_millis, Some(2010));
        assert_eq!(effective.limits.cpu_millis, None);
    }
}

#[test]
fn a_cpu_request_of_the_whole_pod_that_usher_lowers_is_a_warning() {
    let pod = |annotations: &str, resources: &str| {
        listed(
            &format!("usher/init: setup, usher/sidecars: proxy{annotations}"),
            "Always",
            &format!("  resources: {resources}\n"),
            "  - {name: setup, resources: {requests: {cpu: 1}}}\n  - {name: proxy}\n  \
             - {name: app, resources: {requests: {cpu: 1}}}\n",
        )
    };
    let two = "{requests: {cpu: 2}}";
    says(
        &pod("", two),
        "pod",
        &["spec.resources", "2", "any time, 1", "cgroup-sizing"],
    );
    assert_eq!(warnings(&pod(", usher/cgroup-sizing: \"Off\"", two)), []);
    // The pod's request is larger than its containers' requests, so usher does not lower it.
    assert_eq!(warnings(&pod("", "{requests: {cpu: 3}}")), []);
    // The pod has no request of its own, so usher has no request to lower.
    assert_eq!(warnings(&pod("", "{limits: {cpu: 2}}")), []);
}

#[test]
fn a_quantity_that_kubernetes_refuses_is_an_error() {
    let amount = "{limits: {memory: 1GiB}}";
    for (text, place) in [
        (
            format!("containers: [{{name: app, resources: {amount}}}]"),
            "app",
        ),
        (
            format!("initContainers: [{{name: app, resources: {amount}}}]"),
            "app",
        ),
        (format!("resources: {amount}"), "spec"),
        ("overhead: {memory: 1GiB}".to_owned(), "overhead"),
    ] {
        let document = parse(&format!("kind: Pod\nspec: {{{text}}}")).unwrap();
        let (owner, pod) = pods(&document[0]).remove(0);
        let explained = explain("pod.yaml", &owner, &pod, &Rules::default());
        let Err(Failure::Because(sentence)) = explained else {
            panic!("{text} is explained");
        };
        for word in [place, "memory", "1GiB", "expected one such as"] {
            assert!(sentence.contains(word), "{word:?} is missing in {sentence}");
        }
    }
}

#[test]
fn liveness_probes_of_usher_are_shown() {
    let probe = r#"{"tcpSocket": {"port": 1}, "periodSeconds": 5}"#;
    let text = listed(
        &format!(
            "usher/sidecars: proxy, usher/post-exit: bye, usher/grace-extension: '{{\"probe\": \
             true}}', liveness-probe.usher/proxy: '{probe}', liveness-probe.usher/bye: '{probe}'"
        ),
        "Never",
        "",
        "  - {name: proxy}\n  - {name: app}\n  - {name: bye}\n",
    );
    let said = explained(&text);
    let text = anstream::adapter::strip_str(&said.text(None)).to_string();
    for part in [
        "proxy is restarted in place unless :1 accepts connections (asked every 5s, fails at 3 in a row)",
        "bye goes on past the grace period while :1 accepts connections (asked every 5s, at most 1m40s)",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    assert_eq!(said.refused, None);
}

#[test]
fn unknown_forms_are_a_warning() {
    let text = "kind: Pod\nspec: {containers: [{name: a}, {name: b, sidecar: true}]}";
    only_warning(text, "pod", "sidecar");
}
