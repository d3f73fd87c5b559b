//! Defer containers, in the uses that their proposal names.

use serde_json::{Value, json};

use crate::pod::{Case, Pod, exit_code, restarts, script, with, witness};

/// A database with everything around it: two defers before its end, two behind it, and a sidecar.
fn pod() -> Pod {
    Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .annotation("usher/pre-exit", "rebalance, flush")
        .annotation("usher/post-exit", "clean-up, deregister")
}

fn defer(name: &str) -> Value {
    witness(name, &["--run-for", "500ms"])
}

fn with_containers(pod: Pod, flush: Value) -> Pod {
    pod.container(witness("proxy", &[]))
        .container(witness("app", &["--stop-after", "500ms"]))
        .container(defer("rebalance"))
        .container(flush)
        .container(defer("clean-up"))
        .container(defer("deregister"))
}

fn run(case: &Case, pod: &Pod) {
    case.create(pod);
    case.await_event("app", "start");
    let pod = case.await_ready("pod");
    assert!(
        !case.record().has("rebalance", "start"),
        "{}",
        case.record()
    );
    for name in ["app", "rebalance", "flush", "clean-up", "deregister"] {
        assert_eq!(restarts(&pod, name), 0, "{}", case.diagnosis());
    }
}

fn assert_ended_in_order(case: &Case) {
    let record = case.await_event("proxy", "exit");
    let order = [
        (("rebalance", "exit"), ("flush", "start")),
        (("flush", "exit"), ("app", "signal")),
        (("app", "exit"), ("clean-up", "start")),
        (("clean-up", "exit"), ("deregister", "start")),
        (("deregister", "exit"), ("proxy", "signal")),
    ];
    for (earlier, later) in order {
        record.assert_before(earlier, later);
    }
    for name in ["rebalance", "flush", "clean-up", "deregister"] {
        assert_eq!(record.all(name, "start").count(), 1, "{record}");
    }
}

/// "Cleanup", "Shutdown sequence": one after another, before and behind the app's end.
pub fn they_run_in_order_around_the_apps_end(case: &Case) {
    run(case, &with_containers(pod(), defer("flush")));
    case.delete("pod", &[]);
    assert_ended_in_order(case);
    case.await_gone("pod");
}

pub fn they_run_when_a_pod_is_evicted(case: &Case) {
    run(case, &with_containers(pod(), defer("flush")));
    case.evict("pod");
    assert_ended_in_order(case);
    case.await_gone("pod");
}

/// "StatefulSet down-size".
pub fn they_run_when_a_stateful_set_is_scaled_down(case: &Case) {
    case.create_stateful_set(&with_containers(pod(), defer("flush")));
    case.await_event("app", "start");
    case.await_ready("pod-0");
    case.kubectl(&["scale", "statefulset", "pod", "--replicas=0"]);
    assert_ended_in_order(case);
    case.await_gone("pod-0");
}

/// One that fails does not keep the others from running, and does not fail the pod.
pub fn one_that_fails_does_not_stop_the_sequence(case: &Case) {
    let flush = witness("flush", &["--run-for", "500ms", "--exit", "9"]);
    run(case, &with_containers(pod(), flush));
    case.delete("pod", &[]);
    assert_ended_in_order(case);
    case.await_gone("pod");
}

/// Without any time there is none for them.
pub fn a_forced_deletion_runs_none(case: &Case) {
    run(case, &with_containers(pod(), defer("flush")));
    let tasks = case.tasks();
    case.delete("pod", &["--force", "--grace-period=0"]);
    case.await_gone("pod");
    case.await_no_task_of(&tasks);
    let record = case.record();
    for name in ["rebalance", "flush", "clean-up", "deregister"] {
        assert!(!record.has(name, "start"), "{record}");
    }
}

/// An app that is started over has not ended for good.
pub fn an_app_that_is_restarted_runs_none(case: &Case) {
    let command = json!(["test", "!", "-e", "/shared/sick"]);
    let probe = json!({ "exec": { "command": command }, "periodSeconds": 1, "failureThreshold": 1,
        "timeoutSeconds": 30 });
    let app = with(witness("app", &[]), json!({ "livenessProbe": probe }));
    let pod = pod().container(witness("proxy", &[])).container(app);
    let pod = pod.container(defer("rebalance")).container(defer("flush"));
    let pod = pod
        .container(defer("clean-up"))
        .container(defer("deregister"));
    run(case, &pod);
    case.touch("sick");
    case.await_event("app", "signal");
    std::fs::remove_file(case.shared_dir().join("sick")).expect("the file");
    let record = case.await_record("the app is started again", |record| {
        record.all("app", "start").count() > 1
    });
    assert!(!record.has("rebalance", "start"), "{record}");
    case.delete("pod", &[]);
    case.await_event("deregister", "exit");
    case.await_gone("pod");
}

/// "Short running Job / Pod": they act as post-exit triggers, and do not keep it from being complete.
pub fn a_job_runs_them_when_its_app_has_ended(case: &Case) {
    let pod = Pod::new("job")
        .annotation("usher/apps", "app")
        .annotation("usher/post-exit", "clean-up")
        .annotation("usher/restart-policy", "Never")
        .container(witness("app", &["--run-for", "2s"]))
        .container(defer("clean-up"))
        .spec("restartPolicy", "Never");
    case.create_job(&pod, 0);
    case.kubectl(&[
        "wait",
        "--for=condition=complete",
        "--timeout=3m",
        "job/job",
    ]);
    let record = case.record();
    record.assert_before(("app", "exit"), ("clean-up", "start"));
    assert!(record.has("clean-up", "exit"), "{record}");
    let pods = case.pods_of("job");
    assert_eq!(exit_code(&pods[0], "clean-up"), Some(0));
}

/// Kubelet does not have to be there.
pub fn they_run_on_while_kubelet_is_restarted(case: &Case) {
    let flush = script(
        "flush",
        "witness mark flush start; until test -e /shared/may-end; do sleep 0.1; done
        witness mark flush exit",
    );
    run(case, &with_containers(pod(), flush));
    case.delete("pod", &[]);
    case.await_event("flush", "start");
    case.cluster.restart_part("kubelet", "KILL");
    case.touch("may-end");
    assert_ended_in_order(case);
    case.await_gone("pod");
}
