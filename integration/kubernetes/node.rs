//! Static pods, which kubelet creates from files, and kubelet's metrics.

use serde_json::Value;

use crate::cluster::{NODE, PATIENCE};
use crate::harness::poll;
use crate::pod::{Case, Pod, witness};

fn pod() -> Pod {
    Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .probed("proxy")
        .container(witness("app", &["--stop-after", "500ms"]))
        .container(witness("proxy", &["--ready-after", "500ms"]))
}

/// A static pod starts before the API server knows it, and ends when its file is removed.
pub fn a_static_pod_starts_and_ends_in_order(case: &Case) {
    let file = case.create_static(&pod());
    let record = case.await_event("app", "start");
    record.assert_before(("proxy", "ready"), ("app", "start"));
    let name = file.name.clone();
    case.await_ready(&name);
    drop(file);
    let record = case.await_event("proxy", "exit");
    record.assert_before(("app", "exit"), ("proxy", "signal"));
    case.await_gone(&name);
}

/// kubelet's summary has metrics of the pressure on a container and its pod (KEP-4205): the time
/// spent waiting for CPU, memory and disk.
pub fn pressure_is_measured(case: &Case) {
    case.create(&pod());
    case.await_ready("pod");
    let path = format!("/api/v1/nodes/{NODE}/proxy/stats/summary");
    let measured = || {
        let text = case.kubectl(&["get", "--raw", &path]);
        let summary: Value = serde_json::from_str(&text).expect("a summary");
        let pods = summary["pods"].as_array()?.clone();
        let is_ours = |pod: &Value| pod["podRef"]["namespace"] == *case.namespace;
        let pod = pods.into_iter().find(is_ours)?;
        let containers = pod["containers"].as_array()?;
        let has_all = |of: &Value| {
            let all = ["cpu", "memory", "io"];
            all.iter().all(|what| of[what]["psi"]["some"].is_object())
        };
        (containers.len() == 2 && has_all(&pod) && containers.iter().all(has_all)).then_some(())
    };
    assert!(
        poll(PATIENCE, measured).is_some(),
        "{}",
        case.kubectl(&["get", "--raw", &path])
    );
}
