//! Terminations of pods of all kinds, and events that look like a termination but are not.

use std::time::Duration;

use serde_json::json;

use crate::cluster::{PATIENCE, pauseless};
use crate::images::STOPPED_BY_USR1;
use crate::pod::{Case, Pod, restarts, with, witness};

/// Two sidecars that start one after another, and an app that takes a while to stop.
fn pod() -> Pod {
    Pod::new("pod")
        .annotation("usher/sidecars", "logs, proxy")
        .annotation("usher/startup-order", "logs, proxy")
        .annotation("usher/apps", "app")
        .container(witness("logs", &["--stop-after", "300ms"]))
        .container(witness("proxy", &["--stop-after", "300ms"]))
        .container(witness("app", &["--stop-after", "1s"]))
}

fn run(case: &Case, pod: &Pod) {
    case.create(pod);
    case.await_event("app", "start");
    case.await_ready("pod");
}

fn assert_ended_in_order(case: &Case) {
    let record = case.await_event("logs", "exit");
    record.assert_before(("app", "exit"), ("proxy", "signal"));
    record.assert_before(("proxy", "exit"), ("logs", "signal"));
    for name in ["app", "proxy", "logs"] {
        assert_eq!(record.all(name, "signal").count(), 1, "{record}");
    }
}

/// KEP draft: "Pod with sidecars terminates non-sidecar containers before sidecars".
pub fn apps_end_before_sidecars(case: &Case) {
    run(case, &pod());
    case.delete("pod", &[]);
    assert_ended_in_order(case);
    case.await_gone("pod");
}

/// KEP draft: "Termination grace period is still respected when terminating a Pod with sidecars".
/// In this case the request to delete the pod contains the grace period, and the pod's annotations
/// do not.
pub fn a_shorter_grace_period_is_kept(case: &Case) {
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .container(witness("proxy", &["--ignore-term", "--beat", "200ms"]))
        .container(witness("app", &["--ignore-term", "--beat", "200ms"]))
        .spec("terminationGracePeriodSeconds", 600);
    run(case, &pod);
    case.delete("pod", &["--grace-period=6"]);
    case.await_gone("pod");
    let record = case.record();
    let last = record.all("proxy", "beat").last().expect("a beat").at_ns;
    let took = Duration::from_nanos(last.saturating_sub(record.at("app", "signal")));
    // The termination took far less than the ten minutes in the spec.
    assert!(took < Duration::from_secs(120), "{record}");
    // The proxy gets its signal six seconds after the app. During these six seconds, the app still
    // runs.
    let (from, to) = (record.at("app", "signal"), record.at("proxy", "signal"));
    let between = |at: u64| from < at && at < to;
    let beats = record.all("app", "beat").filter(|beat| between(beat.at_ns));
    assert!(beats.count() > 2, "{record}");
    assert!(
        !record.has("app", "exit") && !record.has("proxy", "exit"),
        "{record}"
    );
}

pub fn a_forced_deletion_leaves_nothing(case: &Case) {
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .container(witness("proxy", &["--ignore-term"]))
        .container(witness("app", &["--ignore-term"]));
    run(case, &pod);
    let running = case.own_tasks();
    let sandboxes = usize::from(pauseless().is_none());
    assert_eq!(running.len(), 2 + sandboxes, "{running:?}");
    case.delete("pod", &["--force", "--grace-period=0"]);
    case.await_gone("pod");
    case.await_no_task_of(&running);
}

pub fn an_evicted_pod_ends_in_order(case: &Case) {
    run(case, &pod());
    case.evict("pod");
    assert_ended_in_order(case);
    case.await_gone("pod");
}

/// `kubectl rollout restart`: the new pod is ready before the old one ends.
pub fn a_pod_replaced_by_a_rollout_ends_in_order(case: &Case) {
    let pod = pod();
    case.create_deployment(&pod);
    case.await_event("app", "start");
    case.await_rollout("deployment/pod");
    case.kubectl(&["rollout", "restart", "deployment/pod"]);
    case.await_rollout("deployment/pod");
    assert_ended_in_order(case);
    let record = case.record();
    assert_eq!(record.all("app", "start").count(), 2, "{record}");
    let second = record
        .all("app", "start")
        .nth(1)
        .expect("the new one")
        .at_ns;
    assert!(second < record.at("app", "signal"), "{record}");
}

/// A container gets the STOPSIGNAL of its image.
pub fn another_stop_signal_is_delivered(case: &Case) {
    let image = json!({ "image": STOPPED_BY_USR1 });
    assert_stopped_by(case, "10", &image, Pod::new("pod"));
}

/// Runs a pod whose two containers have these fields. Checks that the containers stop in order, and
/// that each gets this signal and no other.
fn assert_stopped_by(case: &Case, signal: &str, fields: &serde_json::Value, pod: Pod) {
    let options = ["--stop-signal", signal, "--stop-after", "1s"];
    let pod = pod
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .container(with(witness("proxy", &options), fields.clone()))
        .container(with(witness("app", &options), fields.clone()));
    run(case, &pod);
    case.delete("pod", &[]);
    let record = case.await_event("proxy", "exit");
    record.assert_before(("app", "exit"), ("proxy", "signal"));
    for name in ["app", "proxy"] {
        let signals: Vec<_> = record.all(name, "signal").map(|e| &*e.detail).collect();
        assert_eq!(signals, [signal], "{record}");
    }
    case.await_gone("pod");
}

/// The TerminationHook of the draft KEP: the hook runs before any container of the pod stops, and
/// the containers stop only when the hook has ended.
pub fn termination_hooks_come_first(case: &Case) {
    let hook = |name: &str, wait: &str| {
        let text = format!("witness mark {name} hook; {wait}; witness mark {name} hooked");
        json!({ "exec": { "command": ["sh", "-c", text] } }).to_string()
    };
    let gate = "until test -e /shared/may-end; do sleep 0.1; done";
    let pod = pod()
        .annotation("termination-hook.usher/app", hook("app", gate))
        .annotation("termination-hook.usher/proxy", hook("proxy", "true"));
    run(case, &pod);
    case.delete("pod", &[]);
    case.await_event("app", "hook");
    case.await_event("proxy", "hooked");
    case.touch("may-end");
    assert_ended_in_order(case);
    let record = case.record();
    record.assert_before(("app", "hooked"), ("app", "signal"));
    for name in ["app", "proxy"] {
        assert_eq!(record.all(name, "hook").count(), 1, "{record}");
    }
    case.await_gone("pod");
}

/// Sends the D-Bus signal that logind sends before a shutdown, or when a shutdown is canceled.
fn prepare_for_shutdown(case: &Case, begins: bool) {
    let words = [
        "busctl",
        "emit",
        "/org/freedesktop/login1",
        "org.freedesktop.login1.Manager",
        "PrepareForShutdown",
        "b",
        if begins { "true" } else { "false" },
    ];
    let finished = crate::harness::run(case.cluster.on_node(&words), PATIENCE);
    assert!(finished.ok(), "busctl: {}", finished.err());
}

/// A pending shutdown of the node. Dropping it cancels the shutdown.
struct Shutdown<'a>(&'a Case<'a>);

impl Drop for Shutdown<'_> {
    fn drop(&mut self) {
        prepare_for_shutdown(self.0, false);
        self.0.cluster.await_node();
    }
}

/// kubelet's graceful node shutdown (KEP-2000): kubelet delays systemd's shutdown until the pods
/// have ended.
pub fn a_pod_ends_in_order_when_its_node_shuts_down(case: &Case) {
    run(case, &pod());
    let shutdown = Shutdown(case);
    prepare_for_shutdown(case, true);
    assert_ended_in_order(case);
    case.await_pod("pod", "over", |pod| {
        ["Succeeded", "Failed"]
            .iter()
            .any(|phase| pod["status"]["phase"] == *phase)
    });
    drop(shutdown);
}

/// A container gets the stop signal that the pod's spec names (KEP-4960).
pub fn a_pods_own_stop_signal_is_delivered(case: &Case) {
    let signal = json!({ "lifecycle": { "stopSignal": "SIGUSR2" } });
    let pod = Pod::new("pod").spec("os", json!({ "name": "linux" }));
    assert_stopped_by(case, "12", &signal, pod);
}

/// A container whose liveness probe fails while a file exists.
fn with_liveness(name: &str) -> serde_json::Value {
    let command = json!(["test", "!", "-e", format!("/shared/sick-{name}")]);
    let probe = json!({
        "exec": { "command": command }, "periodSeconds": 1, "failureThreshold": 1,
        "timeoutSeconds": 30,
    });
    with(witness(name, &[]), json!({ "livenessProbe": probe }))
}

fn run_with_liveness(case: &Case) {
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .container(with_liveness("proxy"))
        .container(with_liveness("app"));
    run(case, &pod);
}

fn make_sick(case: &Case, names: &[&str]) {
    for name in names {
        case.touch(&format!("sick-{name}"));
    }
    for name in names {
        case.await_event(name, "signal");
        let _ = std::fs::remove_file(case.shared_dir().join(format!("sick-{name}")));
    }
    for name in names {
        case.await_record(&format!("{name} is started again"), |record| {
            record.all(name, "start").count() > 1
        });
        case.await_pod("pod", "seen to be restarted", |pod| restarts(pod, name) > 0);
    }
    case.await_ready("pod");
}

pub fn an_unhealthy_app_is_restarted_alone(case: &Case) {
    run_with_liveness(case);
    make_sick(case, &["app"]);
    let record = case.record();
    assert!(!record.has("proxy", "signal"), "{record}");
}

pub fn an_unhealthy_sidecar_is_restarted_alone(case: &Case) {
    run_with_liveness(case);
    make_sick(case, &["proxy"]);
    let record = case.record();
    assert!(!record.has("app", "signal"), "{record}");
}

/// kubelet stops the app and the sidecar one after the other, because both are unhealthy, and
/// restarts both. usher must not take this for the pod's termination.
pub fn an_app_and_a_sidecar_that_are_unhealthy_are_both_restarted(case: &Case) {
    run_with_liveness(case);
    make_sick(case, &["app", "proxy"]);
    let log = case.cluster.log_tail("containerd", 400);
    let ours: Vec<_> = log
        .lines()
        .filter(|line| line.contains(&case.namespace))
        .collect();
    assert!(
        !ours.iter().any(|line| line.contains("the pod terminates")),
        "{ours:?}"
    );
}
