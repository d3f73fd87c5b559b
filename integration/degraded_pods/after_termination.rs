//! Pods that the shim has terminated. Afterwards the caller creates an app again, or the whole pod.

use crate::harness::{ContainerSpec, Containerd, CtrEvent, PATIENCE, Status, Stopped, eventually};
use crate::pod::Pod;

use super::kubelet::{Kubelet, QUICK, SANDBOX, WINDOW};

macro_rules! essential {
    ($policy:literal) => {
        &[
            ("usher/init", "setup"),
            ("usher/sidecars", "proxy"),
            ("usher/pre-exit", "before"),
            ("usher/essential", "lease"),
            ("usher/restart-policy", $policy),
            (
                "termination-hook.usher/web",
                r#"{"exec":{"command":["/bin/witness","mark","web","hook"]}}"#,
            ),
            WINDOW,
        ]
    };
}

/// Runs a pod until its essential container fails and the shim ends the pod.
#[track_caller]
fn until_its_end(annotations: &'static [(&'static str, &'static str)]) -> Kubelet {
    let pod = Kubelet::run_pod(annotations, 20);
    pod.run("setup", QUICK);
    pod.run("proxy", &[]);
    pod.run("before", &["--run-for", "2s"]);
    pod.run("web", &[]);
    pod.run("lease", &["--run-for", "1s", "--exit", "9"]);
    assert_eq!(pod.ended("lease"), 9);
    // The caller creates the failed container again at once. Its Start fails if the termination is
    // already over.
    let again = pod.host.spawn_run(&pod.witness("lease.1", &[]));
    // When the sandbox exits, kubelet creates a new one.
    assert_eq!(pod.host.wait_exit(SANDBOX), 137);
    again.finish(PATIENCE);
    let record = pod.host.record();
    record.assert_before(("lease", "exit"), ("web", "hook"));
    record.assert_before(("web", "hook"), ("before", "start"));
    record.assert_before(("before", "exit"), ("web", "signal"));
    record.assert_before(("web", "exit"), ("proxy", "signal"));
    assert_eq!(pod.starts("lease"), 1, "{record}");
    let order = pod.host.events();
    let exit = |id: &str| {
        let is_exit = |e: &&_| is_exit_of(e, id);
        order.iter().find(is_exit).map(|e| e.at_ns)
    };
    assert!(exit("proxy").is_some() && exit("proxy") <= exit(SANDBOX));
    eventually("nothing runs", PATIENCE, || {
        let tasks = pod.host.tasks();
        tasks.iter().all(|task| task.status == Status::Stopped)
    });
    pod
}

fn is_exit_of(event: &CtrEvent, id: &str) -> bool {
    event.topic == "/tasks/exit" && event.container() == id && event.is_init()
}

#[test]
fn under_always_a_failed_essential_container_ends_the_pod_and_its_sandbox() {
    until_its_end(essential!("Always"));
}

#[test]
fn under_on_failure_a_failed_essential_container_leaves_no_exit_code_0() {
    let pod = until_its_end(essential!("OnFailure"));
    let told = ["setup", "proxy", "before", "web"].map(|id| (id, pod.host.wait_exit(id)));
    assert!(told.iter().all(|(_, code)| *code != 0), "{told:?}");
}

#[test]
fn without_a_sandbox_the_pod_runs_again_after_an_essential_container_failed() {
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/essential", "lease"),
        ("usher/restart-policy", "Always"),
    ]);
    let host = Containerd::start();
    for (name, options) in [
        ("proxy", &[][..]),
        ("web", &[]),
        ("lease", &["--run-for", "1s", "--exit", "9"]),
    ] {
        host.run(&pod.witness(name, options));
    }
    for name in ["lease", "web", "proxy"] {
        host.wait_exit(name);
    }
    let shim = host.shim("web").pid;
    for name in ["proxy", "web", "lease"] {
        let again = ContainerSpec::new(&format!("{name}.1"));
        let again = again.in_pod("pod1", name).annotations(pod.0);
        host.run(&again.witness(&[]));
    }
    host.await_record("the pod runs again", |record| {
        let twice = |name| record.all(name, "start").count() == 2;
        ["proxy", "web", "lease"].into_iter().all(twice)
    });
    assert_eq!(host.shim("web.1").pid, shim);
    host.kill_all(&["proxy.1", "web.1", "lease.1"], "SIGTERM");
    for id in ["proxy.1", "web.1", "lease.1"] {
        host.wait_exit(id);
    }
}

const JOB: &[(&str, &str)] = &[
    ("usher/sidecars", "proxy"),
    ("usher/apps", "work"),
    ("usher/post-exit", "after"),
    ("usher/restart-policy", "Never"),
];

#[track_caller]
fn failed_job() -> Kubelet {
    let pod = Kubelet::run_pod(JOB, 20);
    pod.run("proxy", &[]);
    pod.run("after", &["--run-for", "3s"]);
    pod.run("work", &["--run-for", "500ms", "--exit", "4"]);
    assert_eq!(pod.ended("work"), 4);
    pod
}

#[test]
fn an_app_recreated_while_its_job_terminates_runs() {
    let pod = failed_job();
    pod.host.await_event("after", "start");
    pod.run("work.1", &[]);
    pod.await_starts("work", 2);
}

#[test]
fn an_app_recreated_after_its_job_ended_runs() {
    let pod = failed_job();
    for name in ["after", "proxy"] {
        assert_eq!(pod.ended(name), 0, "{name}");
    }
    pod.run("work.1", &[]);
    pod.await_starts("work", 2);
    pod.delete(&["work.1"]);
    assert_eq!(pod.starts("after"), 1);
}

#[test]
fn under_on_failure_a_defer_that_runs_when_the_sandbox_dies_does_not_exit_with_0() {
    const POD: &[(&str, &str)] = &[
        ("usher/init", "setup"),
        ("usher/sidecars", "proxy"),
        ("usher/pre-exit", "before"),
        ("usher/restart-policy", "OnFailure"),
        WINDOW,
    ];
    let pod = Kubelet::run_pod(POD, 20);
    pod.run("setup", QUICK);
    pod.run("proxy", &[]);
    pod.run("before", &["--run-for", "2s"]);
    pod.run("web", &[]);
    pod.host.await_event("web", "start");
    pod.crash(SANDBOX);
    pod.host.wait_exit(SANDBOX);
    // kubelet stops the remaining containers of the old sandbox before it creates a new one.
    let stopped = pod.stop(&["setup", "proxy", "before", "web"]);
    let record = pod.host.record();
    assert!(record.has("before", "exit"), "{record}");
    // Each of these containers reports 143, so that the caller runs it again. Only the app may
    // report its own exit code, because this code says whether the app's work is complete.
    let again = |stop: &Stopped| stop.code == 143 || stop.id == "web";
    assert!(stopped.iter().all(again), "{stopped:?}");
}
