//! Sidecars that are absent when an app is created, and sidecars that restart.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use containerd_shim_protos::api::ExecProcessRequest;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use serde_json::json;

use crate::harness::{CtrEvent, PATIENCE, Status, eventually};
use crate::pod::TCP_PROBE;

use super::kubelet::{CRASHES, Kubelet};

/// Options of a container that exits by itself. The 300 ms give the test time to see that the
/// container runs.
const SHORT: &[&str] = &["--run-for", "300ms"];

/// Runs a sidecar that exits and is not restarted. Then runs an app, and checks that the app starts
/// without the sidecar.
#[track_caller]
fn app_starts_after(sidecar: &[&str], annotations: &'static [(&'static str, &'static str)]) {
    let pod = Kubelet::run_pod(annotations, 10);
    pod.run("proxy", sidecar);
    pod.ended("proxy");
    pod.run("web", &[]);
    pod.host.await_event("web", "start");
    assert_eq!(pod.starts("proxy"), 1);
}

#[test]
fn under_never_an_app_starts_without_a_sidecar_that_will_not_restart() {
    app_starts_after(
        SHORT,
        &[
            ("usher/sidecars", "proxy"),
            ("usher/restart-policy", "Never"),
            ("restart.usher/proxy", "Never"),
        ],
    );
}

#[test]
fn under_on_failure_an_app_starts_without_a_sidecar_that_succeeded() {
    app_starts_after(
        SHORT,
        &[
            ("usher/sidecars", "proxy"),
            ("usher/restart-policy", "OnFailure"),
            ("restart.usher/proxy", "OnFailure"),
        ],
    );
}

#[test]
fn an_app_starts_without_a_sidecar_that_kubelet_will_restart() {
    app_starts_after(CRASHES, &[("usher/sidecars", "proxy")]);
}

const NEVER: &[(&str, &str)] = &[
    ("usher/sidecars", "proxy"),
    ("usher/restart-policy", "Never"),
];

#[test]
fn an_app_does_not_wait_for_the_restart_of_a_sidecar_in_back_off() {
    let pod = Kubelet::run_pod(NEVER, 10);
    pod.run("proxy", &[]);
    pod.host.await_event("proxy", "start");
    pod.put_into_back_off("proxy");
    pod.run("web", &[]);
    pod.host.await_event("web", "start");
    assert_eq!(pod.starts("proxy"), 2);
    assert!(!pod.has_exited("proxy"));
}

#[test]
fn under_never_a_sidecar_that_exits_before_it_is_ready_ends_the_pod_with_an_error_that_names_it() {
    const POD: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy"),
        ("startup-probe.usher/proxy", TCP_PROBE),
        ("restart.usher/proxy", "Never"),
        ("usher/restart-policy", "Never"),
        ("usher/start-mode", "Hold"),
    ];
    for created_before in [true, false] {
        let pod = Kubelet::run_pod(POD, 10);
        let web = pod.witness("web", &[]);
        pod.run("proxy", &["--run-for", "2s", "--exit", "3"]);
        let web = match created_before {
            true => {
                let web = pod.host.spawn_attached(&web);
                assert_eq!(pod.ended("proxy"), 3);
                web
            }
            false => {
                assert_eq!(pod.ended("proxy"), 3);
                pod.host.spawn_attached(&web)
            }
        };
        let web = web.finish(PATIENCE);
        assert_eq!(web.code, Some(1), "{created_before}: {}", web.err());
        let said = web.err();
        assert!(said.contains("proxy"), "{created_before}: {said}");
        assert!(!pod.host.record().has("web", "start"), "{created_before}");
    }
}

#[test]
fn an_app_that_kubelet_restarts_does_not_wait_for_a_sidecar_that_is_down() {
    let pod = Kubelet::run_pod(&[("usher/sidecars", "proxy")], 10);
    pod.run("proxy", &[]);
    pod.run("web", &[]);
    pod.host.await_event("web", "start");
    for id in ["proxy", "web"] {
        pod.crash(id);
        assert_eq!(pod.ended(id), 137);
    }
    pod.run("web.1", &[]);
    pod.await_starts("web", 2);
    assert_eq!(pod.starts("proxy"), 1);
}

#[test]
fn an_app_that_kubelet_restarts_does_not_wait_for_a_sidecar_in_back_off() {
    const POD: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy"),
        ("usher/restart-policy", "OnFailure"),
    ];
    let pod = Kubelet::run_pod(POD, 10);
    pod.run("proxy", &[]);
    pod.run("web", &[]);
    pod.host.await_event("web", "start");
    pod.put_into_back_off("proxy");
    pod.crash("web");
    assert_eq!(pod.ended("web"), 137);
    pod.run("web.1", &[]);
    pod.await_starts("web", 2);
    assert_eq!(pod.starts("proxy"), 2);
}

#[test]
fn a_sidecar_that_fails_its_liveness_probe_is_stopped_and_restarted() {
    const POD: &[(&str, &str)] = &[
        ("usher/sidecars", "proxy"),
        ("usher/restart-policy", "Never"),
        (
            "liveness-probe.usher/proxy",
            r#"{"exec":{"command":["/bin/test","!","-e","/shared/unwell"]},"periodMilliseconds":500,"timeoutSeconds":15,"failureThreshold":2}"#,
        ),
    ];
    let pod = Kubelet::run_pod(POD, 10);
    let heals = "rm -f /shared/unwell; exec /bin/witness proxy";
    pod.host.run(&pod.witness("proxy", &[]).script(heals));
    pod.run("web", &[]);
    pod.host.await_event("web", "start");
    let unwell = pod.host.shared_dir().join("unwell");
    fs::write(unwell, "").expect("a file");
    pod.await_starts("proxy", 2);
    let record = pod.host.record();
    assert_eq!(record.all("proxy", "signal").count(), 1, "{record}");
    assert!(!record.has("web", "signal"), "{record}");
    assert_eq!(pod.host.status("proxy"), Some(Status::Running));
    assert!(!pod.has_exited("proxy"));
}

/// A request for an exec as kubelet makes it for a postStart handler. Some arguments contain
/// spaces. The exec's user and environment differ from those of the container.
fn post_start(code: u32) -> ExecProcessRequest {
    let script = "echo $(id -u) $(id -g) $WORD $0 \"$@\" >> /shared/hook-$(id -u)";
    let script = format!("{script}; exit {code}");
    let process = json!({
        "args": ["/bin/sh", "-c", script, "a b", "c"],
        "env": ["PATH=/bin", "WORD=hello"],
        "cwd": "/",
        "user": { "uid": 1234, "gid": 4321 },
    });
    let process = Any {
        type_url: "types.containerd.io/opencontainers/runtime-spec/1/Process".to_owned(),
        value: process.to_string().into_bytes(),
        ..Any::default()
    };
    ExecProcessRequest {
        id: "proxy".to_owned(),
        exec_id: "post-start".to_owned(),
        spec: Some(process).into(),
        ..ExecProcessRequest::default()
    }
}

/// Runs a sidecar, and then its postStart handler, which exits with `code`. Returns false if the
/// handler was executed so late that the shim may have taken it for another exec.
#[track_caller]
fn run_post_start(pod: &Kubelet, code: u32) -> bool {
    let all = fs::Permissions::from_mode(0o777);
    fs::set_permissions(pod.host.shared_dir(), all).expect("its mode");
    let starting = pod.host.spawn_run(&pod.witness("proxy", &[]));
    let is_start = |e: &CtrEvent| e.topic == "/tasks/start" && e.container() == "proxy";
    pod.host
        .await_events("the proxy is started", |events| events.iter().any(is_start));
    let events = pod.host.events();
    let started = events.iter().find(|event| is_start(event));
    let started = Duration::from_nanos(started.map_or(0, |event| event.at_ns));
    // An exec of a postStart handler has no deadline. An exec of a probe has one.
    let api = pod.host.task_api("proxy").deadline(Duration::ZERO);
    api.exec(&post_start(code)).expect("Exec");
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("now");
    api.start("proxy", "post-start").expect("Start");
    let exit = api.wait("proxy", "post-start").expect("Wait");
    assert_eq!(exit.exit_status, code);
    api.delete("proxy", "post-start").expect("Delete");
    assert!(starting.finish(PATIENCE).ok());
    now < started + Duration::from_secs(1)
}

/// A pod whose sidecar's postStart handler has succeeded. `None` if the handler was executed too
/// late for the shim to recognize it.
#[track_caller]
fn post_started() -> Option<Kubelet> {
    let pod = Kubelet::run_pod(NEVER, 10);
    run_post_start(&pod, 0).then_some(pod)
}

/// A pod with an app that was created before its sidecar. The sidecar's postStart handler has
/// failed. `None` if the handler was executed too late for the shim to recognize it.
#[track_caller]
fn post_start_failed() -> Option<Kubelet> {
    let pod = Kubelet::run_pod(&[("usher/sidecars", "proxy")], 10);
    pod.run("web", &[]);
    run_post_start(&pod, 1).then_some(pod)
}

#[test]
fn an_app_waits_for_the_next_sidecar_after_a_failed_post_start() {
    let pod = (0..5).find_map(|_| post_start_failed());
    let pod = pod.expect("an exec within a second of the start");
    let stopped = pod.stop(&["proxy"]);
    assert!(!stopped[0].killed, "{stopped:?}");
    let record = pod.host.record();
    assert!(!record.has("web", "start"), "{record}");
    pod.run("proxy.1", &[]);
    let record = pod.host.await_event("web", "start");
    let second = record.all("proxy", "start").nth(1);
    let second = second.expect("the second proxy").at_ns;
    assert!(second < record.at("web", "start"), "{record}");
}

#[test]
fn a_sidecar_in_back_off_restarts_while_its_app_drains() {
    let pod = Kubelet::run_pod(NEVER, 20);
    pod.run("proxy", &[]);
    pod.run("web", &["--stop-after", "2s"]);
    pod.host.await_event("web", "start");
    pod.put_into_back_off("proxy");
    pod.delete(&["proxy", "web"]);
    let record = pod.host.record();
    let third = record.all("proxy", "start").nth(2);
    let third = third.unwrap_or_else(|| panic!("the third proxy: {record}"));
    assert!(third.at_ns < record.at("web", "exit"), "{record}");
}

#[test]
fn a_restarted_sidecar_gets_its_post_start_again() {
    let pod = (0..5).find_map(|_| post_started());
    let pod = pod.expect("an exec within a second of the start");
    pod.run("web", &[]);
    pod.host.await_event("web", "start");
    let file = pod.host.shared_dir().join("hook-1234");
    let said = || fs::read_to_string(&file).unwrap_or_default();
    let once = "1234 4321 hello a b c\n";
    assert_eq!(said(), once);
    pod.crash("proxy");
    pod.await_starts("proxy", 2);
    eventually("the hook runs again", PATIENCE, || said() == once.repeat(2));
    assert!(!pod.has_exited("proxy"));
}
