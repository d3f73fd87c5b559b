//! Init containers, and pods that end by themselves.

use containerd_shim_protos::protobuf::well_known_types::any::Any;

use crate::harness::{Containerd, PATIENCE, Status, eventually};
use crate::pod::{Pod, TCP_PROBE, resources};

#[test]
fn init_containers_and_sidecars_start_in_the_annotated_order() {
    let pod = Pod(&[
        ("usher/init", "one two"),
        ("usher/sidecars", "net proxy"),
        ("usher/startup-order", "one net two proxy"),
        ("startup-probe.usher/proxy", TCP_PROBE),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("web", &[]));
    for name in ["two", "one"] {
        host.run(&pod.witness(name, &["--run-for", "300ms"]));
    }
    host.run(&pod.witness("proxy", &["--listen", "8080", "--ready-after", "300ms"]));
    host.run(&pod.witness("net", &[]));
    let record = host.await_event("web", "start");
    record.assert_before(("one", "exit"), ("net", "start"));
    record.assert_before(("net", "start"), ("two", "start"));
    record.assert_before(("two", "exit"), ("proxy", "start"));
    record.assert_before(("proxy", "ready"), ("web", "start"));
}

#[test]
fn the_exit_of_a_successful_init_container_is_withheld_from_a_caller_that_would_restart_it() {
    let pod = Pod(&[("usher/init", "setup")]);
    let host = Containerd::start();
    host.run(&pod.witness("setup", &["--run-for", "100ms"]));
    host.run(&pod.witness("web", &[]));
    host.await_event("web", "start");
    assert_eq!(host.status("setup"), Some(Status::Running));
    let number = host
        .task_api("setup")
        .state("setup", "")
        .expect("State")
        .pid;
    assert_eq!(host.pids("setup"), [(number, None)]);
    // The zombie of the exited process reserves the process id that the caller knows.
    let pid = host
        .task_api("setup")
        .state("setup", "")
        .expect("State")
        .pid;
    let process = format!("/proc/{pid}");
    let status = std::fs::read_to_string(format!("{process}/status")).expect("a zombie");
    assert!(status.contains("State:\tZ"), "{status}");
    let figures = host.metrics("setup");
    assert!(figures.is_object() || figures.is_array(), "{figures}");
    let api = host.task_api("setup");
    api.update(&resources("setup", r#"{"cpu":{"shares":100}}"#))
        .expect("Update");
    let (code, _) = api
        .exec(&containerd_shim_protos::api::ExecProcessRequest {
            id: "setup".into(),
            exec_id: "late".into(),
            spec: Some(Any {
                value: br#"{"args":["/bin/true"],"cwd":"/"}"#.to_vec(),
                ..Any::default()
            })
            .into(),
            ..Default::default()
        })
        .expect_err("nothing runs there any more");
    assert_eq!(code, ttrpc::Code::FAILED_PRECONDITION);
    // A restarted containerd does not delete the task.
    host.crash();
    host.start_again();
    assert_eq!(host.status("setup"), Some(Status::Running));
    host.kill("setup", "SIGTERM");
    let exit = host.wait_exit_event("setup");
    assert_eq!(exit.exit_status(), 0);
    assert_eq!(host.status("web"), Some(Status::Running));
    host.delete("setup");
    assert!(
        !std::path::Path::new(&process).exists(),
        "the orphan was not collected"
    );
}

#[test]
fn a_failed_init_container_is_recreated_by_the_caller() {
    let pod = Pod(&[
        ("usher/init", "setup"),
        ("usher/restart-policy", "OnFailure"),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("setup", &["--run-for", "100ms", "--exit", "3"]));
    host.run(&pod.witness("web", &[]));
    assert_eq!(host.wait_exit("setup"), 3);
    host.delete("setup");
    host.await_status("setup", None);
    assert!(!host.record().has("web", "start"));
    let again = pod.witness("setup", &["--run-for", "100ms"]);
    host.run(&again);
    let record = host.await_event("web", "start");
    assert_eq!(record.all("setup", "start").count(), 2);
}

#[test]
fn under_never_a_failed_init_container_ends_the_pod_with_an_error_that_names_it() {
    let pod = Pod(&[
        ("usher/init", "setup"),
        ("usher/restart-policy", "Never"),
        ("usher/start-mode", "Hold"),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("setup", &["--run-for", "300ms", "--exit", "3"]));
    let web = host.spawn_attached(&pod.witness("web", &[]));
    assert_eq!(host.wait_exit("setup"), 3);
    let web = web.finish(PATIENCE);
    assert_eq!(web.code, Some(1));
    assert!(web.err().contains("setup failed with 3"), "{}", web.err());
    assert!(!host.record().has("web", "start"));
}

#[test]
fn a_job_whose_sidecar_runs_forever_completes() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("startup-probe.usher/proxy", TCP_PROBE),
        ("usher/apps", "work"),
        ("usher/restart-policy", "Never"),
    ]);
    let host = Containerd::start();
    pod.run_proxy(&host, &[]);
    host.run(&pod.witness("work", &["--run-for", "500ms"]));
    assert_eq!(host.wait_exit("work"), 0);
    assert_eq!(host.wait_exit("proxy"), 0);
    host.record()
        .assert_before(("work", "exit"), ("proxy", "signal"));
}

#[test]
fn the_failure_of_an_essential_container_ends_the_pod() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/essential", "lease"),
        ("usher/restart-policy", "Never"),
    ]);
    let host = Containerd::start();
    host.run(&pod.witness("proxy", &[]));
    host.run(&pod.witness("web", &["--stop-after", "300ms"]));
    host.run(&pod.witness("lease", &["--run-for", "500ms", "--exit", "9"]));
    host.await_record("all have ended", |record| record.has("proxy", "exit"));
    assert_eq!(host.wait_exit("lease"), 9);
    assert_eq!(host.wait_exit("proxy"), 0);
    host.record()
        .assert_before(("web", "exit"), ("proxy", "signal"));
    eventually("the pod ends", PATIENCE, || {
        host.tasks()
            .iter()
            .all(|task| task.status == Status::Stopped)
    });
}
