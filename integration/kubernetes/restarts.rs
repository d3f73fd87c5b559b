//! Restarts of kubelet, containerd and the whole node in each phase of a pod.

use serde_json::{Value, json};

use crate::harness::Record;
use crate::pod::{Case, Pod, exit_code, restarts, script, with, witness};

/// A pod with an init container, two sidecars and an app that takes a while to stop. The second
/// sidecar becomes ready when the test makes a file.
fn pod() -> Pod {
    pod_with(witness("init", &["--run-for", "500ms"]))
}

fn pod_with(init: Value) -> Pod {
    Pod::new("pod")
        .annotation("usher/init", "init")
        .annotation("usher/sidecars", "logs, proxy")
        .annotation("usher/startup-order", "init, logs, proxy")
        .annotation("usher/apps", "app")
        .probed("proxy")
        .container(init)
        .container(witness("logs", &[]))
        .container(witness("proxy", &[]))
        .container(witness("app", &["--stop-after", "5s"]))
}

fn run(case: &Case) {
    case.create(&pod());
    case.touch("ready-proxy");
    case.await_event("app", "start");
    case.await_ready("pod");
}

/// Checks that each program started only once. kubelet may still count one restart, because it
/// repeats a Start that was interrupted before the program ran.
fn assert_started_once(case: &Case) {
    let pod = case.await_ready("pod");
    let record = case.record();
    assert_eq!(
        record.order("start")[..4],
        ["init", "logs", "proxy", "app"],
        "{record}"
    );
    for name in ["init", "logs", "proxy", "app"] {
        assert_eq!(record.all(name, "start").count(), 1, "{record}");
        assert!(restarts(&pod, name) <= 1, "{}", case.diagnosis());
    }
}

fn assert_ended_in_order(case: &Case) {
    let record = case.await_event("logs", "exit");
    record.assert_before(("app", "exit"), ("proxy", "signal"));
    record.assert_before(("proxy", "exit"), ("logs", "signal"));
    for name in ["init", "logs", "proxy", "app"] {
        assert_eq!(record.all(name, "start").count(), 1, "{record}");
    }
    case.await_gone("pod");
}

fn while_an_init_container_runs(case: &Case, part: &'static str) {
    let text = "witness mark init start; until test -e /shared/may-end; do sleep 0.1; done
        witness mark init exit";
    case.create(&pod_with(script("init", text)));
    case.touch("ready-proxy");
    case.await_event("init", "start");
    case.await_container("logs");
    case.cluster.restart_part(part, "TERM");
    case.touch("may-end");
    case.await_event("app", "start");
    assert_started_once(case);
    let record = case.record();
    record.assert_before(("init", "exit"), ("logs", "start"));
}

fn while_sidecars_start(case: &Case, part: &'static str) {
    case.create(&pod());
    case.await_event("proxy", "start");
    case.await_container("app");
    case.cluster.restart_part(part, "TERM");
    case.touch("ready-proxy");
    case.await_event("app", "start");
    assert_started_once(case);
}

/// KEP-753: "It should not restart any completed init containers after the kubelet restart".
fn while_a_pod_runs(case: &Case, part: &'static str) {
    run(case);
    case.cluster.restart_part(part, "KILL");
    // Wait until another pod has started. By then, kubelet has also checked the first pod again.
    case.create(&Pod::new("other").container(witness("other", &[])));
    case.await_event("other", "start");
    case.kubectl(&["exec", "pod", "--container=app", "--", "/bin/true"]);
    assert_started_once(case);
    let record = case.record();
    assert!(
        !record.has("app", "signal") && !record.has("proxy", "signal"),
        "{record}"
    );
}

fn while_a_pod_ends(case: &Case, part: &'static str) {
    run(case);
    case.delete("pod", &[]);
    case.await_event("app", "signal");
    case.cluster.restart_part(part, "KILL");
    assert_ended_in_order(case);
}

pub fn kubelet_restarted_while_an_init_container_runs(case: &Case) {
    while_an_init_container_runs(case, "kubelet");
}

pub fn kubelet_restarted_while_sidecars_start(case: &Case) {
    while_sidecars_start(case, "kubelet");
}

pub fn kubelet_restarted_while_a_pod_runs(case: &Case) {
    while_a_pod_runs(case, "kubelet");
}

pub fn kubelet_restarted_while_a_pod_ends(case: &Case) {
    while_a_pod_ends(case, "kubelet");
}

pub fn containerd_restarted_while_an_init_container_runs(case: &Case) {
    while_an_init_container_runs(case, "containerd");
}

pub fn containerd_restarted_while_sidecars_start(case: &Case) {
    while_sidecars_start(case, "containerd");
}

pub fn containerd_restarted_while_a_pod_runs(case: &Case) {
    while_a_pod_runs(case, "containerd");
}

pub fn containerd_restarted_while_a_pod_ends(case: &Case) {
    while_a_pod_ends(case, "containerd");
}

/// An app that exits with 42 when the test makes a file. A rule makes kubelet restart the app
/// because of this exit code. After the restart the app runs the program `again`.
fn app_under_a_rule(action: &str, again: &str) -> Value {
    let rule = json!({
        "action": action, "exitCodes": { "operator": "In", "values": [42] },
    });
    let text = format!(
        "test -e /shared/again && exec {again}
        witness mark app start; touch /shared/again; until test -e /shared/go; do sleep 0.1; done
        witness mark app exit; exit 42"
    );
    with(
        script("app", &text),
        json!({ "restartPolicy": "Never", "restartPolicyRules": [rule] }),
    )
}

/// The names of the containers in the order in which their programs started.
fn starts(record: &Record) -> Vec<&str> {
    let starts = record.0.iter().filter(|event| event.what == "start");
    starts.map(|event| &*event.name).collect()
}

/// KEP-5532: because of an exit code, kubelet restarts all containers of a pod in the same sandbox.
/// All of them are stopped, and start again in order.
pub fn a_rule_restarts_all_containers_in_order(case: &Case) {
    let app = app_under_a_rule("RestartAllContainers", "witness app");
    let pod = Pod::new("pod")
        .annotation("usher/init", "init")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .probed("proxy")
        .container(witness("init", &["--run-for", "500ms"]))
        .container(witness("proxy", &["--ready-after", "200ms"]))
        .container(app);
    case.create(&pod);
    case.await_ready("pod");
    case.touch("go");
    let record = case.await_record("all have started twice", |record| {
        let twice = |name: &&str| record.all(name, "start").count() == 2;
        ["init", "proxy", "app"].iter().all(twice)
    });
    record.assert_before(("app", "exit"), ("proxy", "signal"));
    let order = ["init", "proxy", "app"];
    assert_eq!(starts(&record), [order, order].concat(), "{record}");
    case.await_ready("pod");
}

/// A pod with a sidecar, an app that a rule restarts once, and a pre-exit container. The pod's
/// restart policy is `Never`.
fn with_a_restarted_app() -> Pod {
    Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .annotation("usher/pre-exit", "flush")
        .annotation("usher/restart-policy", "Never")
        .probed("proxy")
        .container(witness(
            "proxy",
            &["--ready-after", "200ms", "--exit", "143"],
        ))
        .container(app_under_a_rule("Restart", "witness app --run-for 1s"))
        .container(witness("flush", &["--run-for", "500ms"]))
        .spec("restartPolicy", "Never")
}

/// Time of a container's last event of this kind, in nanoseconds.
fn last(record: &Record, name: &str, what: &str) -> Option<u64> {
    record.all(name, what).last().map(|event| event.at_ns)
}

/// KEP-5307: because of an exit code, kubelet restarts one container of a pod. The pod's restart
/// policy is `Never`.
///
/// usher does not know the rule, so it takes the app's exit for the end of the pod's work, and runs
/// the pod's termination. After that, the app runs again without the other containers.
pub fn an_app_restarted_by_a_rule_runs_after_the_termination(case: &Case) {
    let pod = with_a_restarted_app()
        .annotation("usher/post-exit", "clean-up")
        // The container `clean-up` runs longer than kubelet's back-off. So kubelet creates the app
        // again while `clean-up` runs.
        .container(witness("clean-up", &["--run-for", "15s"]));
    case.create(&pod);
    case.await_ready("pod");
    case.touch("go");
    let pod = case.await_phase("pod", "Succeeded");
    let record = case.record();
    // `assert_before` compares the first events of containers. The last events of app and proxy are
    // compared below.
    for (earlier, later) in [
        (("proxy", "ready"), ("app", "start")),
        (("app", "exit"), ("flush", "start")),
        (("flush", "exit"), ("clean-up", "start")),
        (("clean-up", "exit"), ("proxy", "signal")),
    ] {
        record.assert_before(earlier, later);
    }
    assert_eq!(
        starts(&record),
        ["proxy", "app", "flush", "clean-up", "app"],
        "{record}"
    );
    assert!(
        last(&record, "proxy", "exit") < last(&record, "app", "start"),
        "{record}"
    );
    assert_eq!(restarts(&pod, "app"), 1, "{}", case.diagnosis());
    for name in ["proxy", "app", "flush", "clean-up"] {
        assert_eq!(exit_code(&pod, name), Some(0), "{}", case.diagnosis());
    }
}

/// KEP-5307, with usher's annotation that repeats the rule: the app's first exit does not complete
/// the pod's run. So the app starts again beside its sidecar, and the defer containers run after
/// the app's second exit.
pub fn an_app_restarted_by_a_rule_that_usher_knows_keeps_its_sidecar(case: &Case) {
    case.create(&with_a_restarted_app().annotation("caller-restarts.usher/app", "42"));
    case.await_ready("pod");
    case.touch("go");
    let pod = case.await_phase("pod", "Succeeded");
    let record = case.record();
    assert_eq!(
        starts(&record),
        ["proxy", "app", "app", "flush"],
        "{record}"
    );
    assert!(
        last(&record, "app", "exit") < last(&record, "flush", "start"),
        "{record}"
    );
    record.assert_before(("flush", "exit"), ("proxy", "signal"));
    assert_eq!(restarts(&pod, "app"), 1, "{}", case.diagnosis());
    for name in ["proxy", "app", "flush"] {
        assert_eq!(exit_code(&pod, name), Some(0), "{}", case.diagnosis());
    }
}

/// KEP-753: "It should restart the containers in the right order after the node reboot".
pub fn a_node_that_lost_power_starts_its_pods_in_order(case: &Case) {
    run(case);
    let before = case.record();
    // Remove the file that makes the proxy ready. After the reboot, the proxy is ready only when
    // the test makes the file again.
    std::fs::remove_file(case.shared_dir().join("ready-proxy")).expect("the file");
    case.cluster.switch_off();
    case.cluster.boot();
    let again = |name: &str, what: &str| {
        case.await_record(&format!("{name} recorded {what} once more"), |record| {
            record.all(name, what).count() > before.all(name, what).count()
        })
    };
    again("proxy", "start");
    case.touch("ready-proxy");
    let record = again("app", "start");
    let second: Vec<_> = record.0[before.0.len()..].to_vec();
    let second = crate::harness::Record(second);
    assert_eq!(
        second.order("start"),
        ["init", "logs", "proxy", "app"],
        "{record}"
    );
    second.assert_before(("init", "exit"), ("logs", "start"));
    case.await_ready("pod");
}
