//! Defer containers, which run when a pod terminates. Many cases come from the Kubernetes proposal
//! for defer containers.

use std::time::Duration;

use serde_json::{Value, json};

use crate::pod::{Case, Pod, exit_code, script, with, witness};

/// A database with two pre-exit and two post-exit containers, and a sidecar.
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
    for status in pod["status"]["containerStatuses"]
        .as_array()
        .expect("statuses")
    {
        assert_eq!(status["restartCount"], 0, "{}", case.diagnosis());
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

/// The use cases "Cleanup" and "Shutdown sequence" of the proposal: defers run one after another,
/// before and after the end of the app.
pub fn defers_run_in_order_around_the_apps_end(case: &Case) {
    run(case, &with_containers(pod(), defer("flush")));
    case.delete("pod", &[]);
    assert_ended_in_order(case);
    case.await_gone("pod");
}

pub fn defers_run_when_a_pod_is_evicted(case: &Case) {
    run(case, &with_containers(pod(), defer("flush")));
    case.evict("pod");
    assert_ended_in_order(case);
    case.await_gone("pod");
}

/// The use case "StatefulSet down-size" of the proposal: defers run in a pod that is removed
/// because its set gets smaller.
pub fn defers_run_when_a_stateful_set_is_scaled_down(case: &Case) {
    case.create_stateful_set(&with_containers(pod(), defer("flush")), 1);
    case.await_event("app", "start");
    case.await_ready("pod-0");
    case.kubectl(&["scale", "statefulset", "pod", "--replicas=0"]);
    assert_ended_in_order(case);
    case.await_gone("pod-0");
}

/// The use case "Statefulset Upgrading" of the proposal: the pods are replaced "one after the
/// other", and the defers of each pod run.
pub fn defers_run_when_a_stateful_set_is_updated(case: &Case) {
    // All pods of the set record their events in one directory. So each container records its
    // events under a name that contains the name of the pod.
    let of_pod = |name: &str, options: &[&str]| {
        let own_name = format!("$(POD).{name}");
        let field = json!({ "fieldRef": { "fieldPath": "metadata.name" } });
        let env = json!({ "name": "POD", "valueFrom": field });
        let container = witness(&own_name, options);
        with(container, json!({ "name": name, "env": [env] }))
    };
    let pod = Pod::new("pod")
        .annotation("usher/apps", "app")
        .annotation("usher/pre-exit", "rebalance")
        .annotation("usher/post-exit", "clean-up")
        .container(of_pod("app", &["--stop-after", "500ms"]))
        .container(of_pod("rebalance", &["--run-for", "500ms"]))
        .container(of_pod("clean-up", &["--run-for", "500ms"]));
    case.create_stateful_set(&pod, 2);
    case.await_rollout("statefulset/pod");
    case.kubectl(&["rollout", "restart", "statefulset/pod"]);
    case.await_rollout("statefulset/pod");
    let record = case.record();
    for pod in ["pod-0", "pod-1"] {
        let [app, rebalance, clean_up] =
            ["app", "rebalance", "clean-up"].map(|name| format!("{pod}.{name}"));
        record.assert_before((&rebalance, "exit"), (&app, "signal"));
        record.assert_before((&app, "exit"), (&clean_up, "start"));
        assert!(record.has(&clean_up, "exit"), "{record}");
        assert_eq!(record.all(&app, "start").count(), 2, "{record}");
        for name in [&rebalance, &clean_up] {
            assert_eq!(record.all(name, "start").count(), 1, "{record}");
        }
    }
    let again = record.all("pod-1.app", "start").nth(1);
    let again = again.expect("the new one").at_ns;
    assert!(record.at("pod-1.clean-up", "exit") < again, "{record}");
    assert!(again < record.at("pod-0.rebalance", "start"), "{record}");
}

/// A failed defer neither keeps the others from running nor fails the pod.
pub fn a_failed_defer_does_not_stop_the_sequence(case: &Case) {
    let flush = witness("flush", &["--run-for", "500ms", "--exit", "9"]);
    run(case, &with_containers(pod(), flush));
    case.delete("pod", &[]);
    assert_ended_in_order(case);
    case.await_gone("pod");
}

/// The proposal says: "deferContainers should allow us to specify if certain containers in
/// deferContainer list need to be re-started on failures".
pub fn a_failed_defer_runs_again_if_it_has_to_succeed(case: &Case) {
    let text = "witness mark flush tries
        test -e /shared/tried || { touch /shared/tried; exit 9; }
        witness mark flush start; exec witness mark flush exit";
    let pod = pod().annotation("restart.usher/flush", "OnFailure");
    run(case, &with_containers(pod, script("flush", text)));
    case.delete("pod", &[]);
    assert_ended_in_order(case);
    let record = case.record();
    assert_eq!(record.all("flush", "tries").count(), 2, "{record}");
    case.await_gone("pod");
}

/// The proposal says about the end of the grace period: "It will kill currently executing
/// deferContainer and no further deferContainer will be executed".
pub fn a_defer_that_hangs_is_the_last(case: &Case) {
    let pod = with_containers(pod(), witness("flush", &["--ignore-term"]));
    run(case, &pod.spec("terminationGracePeriodSeconds", 8));
    case.delete("pod", &[]);
    case.await_gone("pod");
    let record = case.record();
    record.assert_before(("rebalance", "exit"), ("flush", "start"));
    assert!(!record.has("flush", "exit"), "{record}");
    for name in ["clean-up", "deregister"] {
        assert!(!record.has(name, "start"), "{record}");
    }
}

/// The proposal says: "PreStopHooks will be started (if configured) for all the containers". The
/// first defer container runs "without waiting for preStop hooks to complete".
pub fn defers_do_not_wait_for_pre_stop_handlers(case: &Case) {
    let handler = |name: &str, condition: &str| {
        let text = format!(
            "witness mark {name} asked; until {condition}; do sleep 0.1; done
            witness mark {name} may-end"
        );
        json!({ "lifecycle": { "preStop": { "exec": { "command": ["sh", "-c", text] } } } })
    };
    // The defer container runs until both preStop handlers have begun. The app's handler runs until
    // the defer container has ended.
    let rebalance = script(
        "rebalance",
        "witness mark rebalance start
        until grep -q 'proxy asked' /shared/record && grep -q 'app asked' /shared/record
        do sleep 0.1; done
        witness mark rebalance exit",
    );
    let app = handler("app", "grep -q 'rebalance exit' /shared/record");
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .annotation("usher/pre-exit", "rebalance")
        .container(with(witness("proxy", &[]), handler("proxy", "true")))
        .container(with(witness("app", &[]), app))
        .container(rebalance);
    run(case, &pod);
    case.delete("pod", &[]);
    let record = case.await_event("proxy", "exit");
    record.assert_before(("rebalance", "exit"), ("app", "may-end"));
    record.assert_before(("app", "may-end"), ("app", "signal"));
    record.assert_before(("app", "exit"), ("proxy", "signal"));
    for name in ["proxy", "app"] {
        assert_eq!(record.all(name, "asked").count(), 1, "{record}");
    }
    case.await_gone("pod");
}

/// A deletion without a grace period leaves no time for defers.
///
/// The pod has the restart policy `Never`. Under another policy, kubelet 1.20 may restart some
/// containers before it notices the deletion.
pub fn a_forced_deletion_runs_no_defer(case: &Case) {
    let pod = with_containers(pod(), defer("flush"));
    let pod = pod.annotation("usher/restart-policy", "Never");
    run(case, &pod.spec("restartPolicy", "Never"));
    let tasks = case.own_tasks();
    case.delete("pod", &["--force", "--grace-period=0"]);
    case.await_gone("pod");
    case.await_no_task_of(&tasks);
    let record = case.record();
    for name in ["rebalance", "flush", "clean-up", "deregister"] {
        assert!(!record.has(name, "start"), "{}", case.diagnosis());
    }
}

/// No defer runs when kubelet restarts an app, because the pod does not terminate.
pub fn a_restarted_app_runs_no_defer(case: &Case) {
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

/// The use case "Short running Job / Pod" of the proposal: a defer runs after the app has exited,
/// and the Job completes.
pub fn a_job_runs_its_defers_after_its_app(case: &Case) {
    let pod = Pod::new("job")
        .annotation("usher/apps", "app")
        .annotation("usher/post-exit", "clean-up")
        .annotation("usher/restart-policy", "Never")
        .container(witness("app", &["--run-for", "2s"]))
        .container(defer("clean-up"))
        .spec("restartPolicy", "Never");
    case.create_job(&pod, 0);
    case.await_job("job", "complete");
    let record = case.record();
    record.assert_before(("app", "exit"), ("clean-up", "start"));
    assert!(record.has("clean-up", "exit"), "{record}");
    let pods = case.pods_of("job");
    assert_eq!(exit_code(&pods[0], "clean-up"), Some(0));
}

/// Deletes a pod with a short grace period, and waits until long after the end of that period. The
/// defer container must still run.
fn run_beyond_its_time(case: &Case, pod: Pod, flush: Value) {
    let pod = pod
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .annotation("usher/pre-exit", "flush")
        .container(witness("proxy", &[]))
        .container(witness("app", &[]))
        .container(flush)
        .spec("terminationGracePeriodSeconds", 4);
    case.create(&pod);
    case.await_event("app", "start");
    case.await_ready("pod");
    case.delete("pod", &[]);
    case.await_event("flush", "start");
    // Without the extension, kubelet or usher would wait only four to six seconds.
    std::thread::sleep(Duration::from_secs(12));
    let record = case.record();
    for name in ["flush", "app", "proxy"] {
        assert!(!record.has(name, "signal"), "{record}");
    }
}

fn assert_ended_after_it(case: &Case, last: &str) {
    case.await_gone("pod");
    let record = case.record();
    record.assert_before(("flush", last), ("app", "signal"));
    record.assert_before(("app", "exit"), ("proxy", "signal"));
}

/// "Solution 1" of the proposal: a defer gets more time as long as its liveness probe succeeds.
pub fn a_defer_whose_probe_succeeds_gets_more_time(case: &Case) {
    let probe = json!({
        "exec": { "command": ["test", "!", "-e", "/shared/unwell"] }, "periodSeconds": 1,
        "timeoutSeconds": 30,
    });
    let pod = Pod::new("pod")
        .annotation("usher/grace-extension", r#"{"probe": true}"#)
        .annotation("liveness-probe.usher/flush", probe.to_string());
    run_beyond_its_time(case, pod, witness("flush", &[]));
    case.touch("unwell");
    assert_ended_after_it(case, "signal");
}

/// "Solution 2" of the proposal: a defer gets several extensions of two seconds each.
pub fn a_running_defer_gets_more_time_in_intervals(case: &Case) {
    let extension = r#"{"intervalSeconds": 2, "count": 40}"#;
    let pod = Pod::new("pod").annotation("usher/grace-extension", extension);
    run_beyond_its_time(case, pod, gated_flush());
    case.touch("may-end");
    assert_ended_after_it(case, "exit");
}

/// A defer that exits when the test makes a file.
fn gated_flush() -> Value {
    script(
        "flush",
        "trap 'witness mark flush signal' TERM
        witness mark flush start; until test -e /shared/may-end; do sleep 0.1; done
        witness mark flush exit",
    )
}

fn while_they_run(case: &Case, part: &'static str) {
    run(case, &with_containers(pod(), gated_flush()));
    case.delete("pod", &[]);
    case.await_event("flush", "start");
    case.cluster.restart_part(part, "KILL");
    case.touch("may-end");
    assert_ended_in_order(case);
    case.await_gone("pod");
}

/// Defers run on while kubelet is down.
pub fn defers_continue_while_kubelet_restarts(case: &Case) {
    while_they_run(case, "kubelet");
}

/// Defers run on while containerd is down. The restarted containerd repeats its requests.
pub fn defers_continue_while_containerd_restarts(case: &Case) {
    while_they_run(case, "containerd");
}
