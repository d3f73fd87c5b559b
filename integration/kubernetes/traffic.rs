//! Traffic from outside of a pod to its sidecar. A Service sends traffic only to a sidecar whose
//! readiness probe succeeds.

use serde_json::{Value, json};

use crate::cluster::PATIENCE;
use crate::harness::{Background, poll};
use crate::pod::{Case, Pod, script, with};

/// The script of an app that keeps running after its stop signal, until the test makes a file.
const APP: &str = "trap 'witness mark app signal
        until test -e /shared/may-end; do sleep 0.1; done
        witness mark app exit; exit' TERM
    while :; do sleep 0.1; done";

/// Creates a pod with an app and a sidecar, and a Service for the sidecar's port. Waits until the
/// pod is ready. The sidecar is not ready while the file `not-ready` exists.
fn run(case: &Case) {
    let text = "mkdir -p /tmp/www && echo served > /tmp/www/index.html
        trap 'witness mark proxy told; kill $!; exit 0' TERM
        httpd -f -p 8080 -h /tmp/www & wait";
    let readiness = json!({
        "exec": { "command": ["test", "!", "-e", "/shared/not-ready"] }, "periodSeconds": 1,
        "timeoutSeconds": 30, "failureThreshold": 1,
    });
    let proxy = with(
        script("proxy", text),
        json!({ "readinessProbe": readiness, "ports": [{ "containerPort": 8080 }] }),
    );
    let pod = Pod::new("pod")
        .annotation("usher/sidecars", "proxy")
        .annotation("usher/apps", "app")
        .container(proxy)
        .container(script("app", APP));
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "service", "namespace": case.namespace },
        "spec": { "selector": { "app": "pod" }, "ports": [{ "port": 80, "targetPort": 8080 }] },
    });
    case.cluster.apply(&[service]);
    case.create(&pod);
    case.await_ready("pod");
}

/// The addresses to which the Service forwards.
fn endpoints(case: &Case) -> Vec<String> {
    let text = case.kubectl(&["get", "endpoints", "service", "--output", "json"]);
    let endpoints: Value = serde_json::from_str(&text).expect("endpoints");
    let addresses = endpoints["subsets"][0]["addresses"].as_array().cloned();
    let ip = |address: &Value| address["ip"].as_str().map(str::to_owned);
    addresses.iter().flatten().filter_map(ip).collect()
}

#[track_caller]
fn await_endpoints(case: &Case, number: usize) -> Vec<String> {
    let found = poll(PATIENCE, || {
        Some(endpoints(case)).filter(|all| all.len() == number)
    });
    found.unwrap_or_else(|| panic!("{:?}\n{}", endpoints(case), case.diagnosis()))
}

#[track_caller]
fn await_answer(case: &Case, address: &str) {
    let script = format!(
        "exec 3<>/dev/tcp/{address}/8080 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
    );
    let words = ["timeout", "20", "bash", "-c", &script];
    let ask = || crate::harness::run(case.cluster.on_node(&words), PATIENCE).out();
    let answered = poll(PATIENCE, || ask().ends_with("served\n").then_some(()));
    assert!(answered.is_some(), "{}", case.diagnosis());
}

/// KEP-753: "Pod with sidecar container exposing the port can receive Service traffic to this
/// Port", and "during Pod termination".
pub fn a_sidecar_is_reachable_until_the_apps_have_ended(case: &Case) {
    run(case);
    let addresses = await_endpoints(case, 1);
    await_answer(case, &addresses[0]);
    case.delete("pod", &[]);
    case.await_event("app", "signal");
    await_answer(case, &addresses[0]);
    case.touch("may-end");
    let record = case.await_event("proxy", "told");
    record.assert_before(("app", "exit"), ("proxy", "told"));
    case.await_gone("pod");
}

/// KEP-753: "Pod with sidecar container exposing the port with readiness probe marks the Endpoint
/// not ready when probe fails and switched back on when readiness probe succeed".
pub fn a_sidecar_that_is_not_ready_has_no_endpoint(case: &Case) {
    run(case);
    await_endpoints(case, 1);
    case.touch("not-ready");
    await_endpoints(case, 0);
    std::fs::remove_file(case.shared_dir().join("not-ready")).expect("the file");
    await_endpoints(case, 1);
}

/// To forward a port, containerd enters the network namespace of the pod's sandbox.
pub fn ports_of_a_pod_can_be_forwarded(case: &Case) {
    run(case);
    let words = ["kubectl", "--namespace", &case.namespace];
    let words = [&words[..], &["port-forward", "pod/pod", ":8080"]].concat();
    let forward = Background::spawn(case.cluster.on_machine(&words));
    let port = poll(PATIENCE, || {
        let said = forward.stdout();
        let (port, _) = said.split_once("127.0.0.1:")?.1.split_once(' ')?;
        Some(port.to_owned())
    });
    let port = port.unwrap_or_else(|| panic!("{}\n{}", forward.stderr(), case.diagnosis()));
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port} && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
    );
    let ask = ["timeout", "20", "bash", "-c", &script];
    let answer = crate::harness::run(case.cluster.on_machine(&ask), PATIENCE);
    assert!(answer.out().ends_with("served\n"), "{}", answer.err());
}
