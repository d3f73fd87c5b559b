//! Pods that complete without a deletion.

use crate::pod::{Case, Pod, exit_code, restarts, script, witness};

/// A Job's pod with a proxy that runs until it is stopped, and an app that exits by itself.
fn job(policy: &str, app: &[&str]) -> Pod {
    Pod::new("job")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .annotation("usher/restart-policy", policy)
        .probed("proxy")
        // The Job must complete whatever the proxy's own exit code is.
        .container(witness("proxy", &["--ready-after", "1s", "--exit", "143"]))
        .container(witness("app", app))
        .spec("restartPolicy", policy)
}

/// KEP draft: "Pod with sidecars terminates sidecars once non-sidecars have completed when
/// `restartPolicy` != `Always`", "Pod phase should be `Succeeded` if all containers, including
/// sidecars, exit with success".
pub fn a_job_completes_when_its_apps_do(case: &Case) {
    case.create_job(&job("Never", &["--run-for", "2s"]), 0);
    case.await_job("job", "complete");
    let record = case.record();
    record.assert_before(("proxy", "ready"), ("app", "start"));
    record.assert_before(("app", "exit"), ("proxy", "signal"));
    let pods = case.pods_of("job");
    assert_eq!(pods.len(), 1);
    assert_eq!(pods[0]["status"]["phase"], "Succeeded");
    assert_eq!(exit_code(&pods[0], "proxy"), Some(0));
    assert_eq!(exit_code(&pods[0], "app"), Some(0));
}

pub fn an_on_failure_job_completes_when_its_apps_succeeded(case: &Case) {
    case.create_job(&job("OnFailure", &["--run-for", "2s"]), 3);
    case.await_job("job", "complete");
    let record = case.record();
    record.assert_before(("app", "exit"), ("proxy", "signal"));
    assert_eq!(record.all("app", "start").count(), 1, "{record}");
}

pub fn a_job_fails_when_its_app_does(case: &Case) {
    case.create_job(&job("Never", &["--run-for", "2s", "--exit", "7"]), 0);
    case.await_job("job", "failed");
    let record = case.record();
    record.assert_before(("app", "exit"), ("proxy", "signal"));
    let pods = case.pods_of("job");
    assert_eq!(pods[0]["status"]["phase"], "Failed");
    assert_eq!(exit_code(&pods[0], "app"), Some(7));
    assert_eq!(exit_code(&pods[0], "proxy"), Some(0));
}

/// KEP-753: "Restartable init containers should restart always", even under restart policies under
/// which kubelet restarts no container. The restart is visible only in the containers' records.
pub fn a_sidecar_that_ends_is_restarted_in_place(case: &Case) {
    let app = "witness mark app start; until test -e /shared/may-end; do sleep 0.1; done
        exec witness mark app exit";
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .annotation("usher/restart-policy", "Never")
        .container(witness("proxy", &["--run-for", "1s"]))
        .container(script("app", app))
        .spec("restartPolicy", "Never");
    case.create(&pod);
    case.await_record("proxy has started twice", |record| {
        record.all("proxy", "start").count() >= 2
    });
    let pod = case.await_ready("pod");
    assert_eq!(restarts(&pod, "proxy"), 0, "{}", case.diagnosis());
    case.touch("may-end");
    let pod = case.await_phase("pod", "Succeeded");
    assert_eq!(exit_code(&pod, "proxy"), Some(0));
}

/// KEP draft: "Pod phase should be `Failed` if any sidecar exits in failure when `restartPolicy` !=
/// `Always`". In this case the sidecar fails by itself, and is not restarted.
pub fn a_pod_with_a_failed_sidecar_has_failed(case: &Case) {
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .annotation("usher/restart-policy", "Never")
        .annotation("restart.usher/proxy", "Never")
        .container(witness("proxy", &["--run-for", "1s", "--exit", "3"]))
        .container(witness("app", &["--run-for", "3s"]))
        .spec("restartPolicy", "Never");
    case.create(&pod);
    let pod = case.await_phase("pod", "Failed");
    assert_eq!(exit_code(&pod, "proxy"), Some(3));
    assert_eq!(exit_code(&pod, "app"), Some(0));
}
