//! Sidecars that come back in place: same task, same streams, another process.

use std::fs;

use serde_json::json;

use crate::harness::{BareShim, Containerd, PATIENCE, Reader, Status, eventually, zombies};
use crate::pod::{self, MESH, Pod, TCP_PROBE};

/// A sidecar of a pod that the caller restarts nothing of.
const JOB: Pod = Pod(&[
    ("usher/sidecars", "proxy"),
    ("startup-probe.usher/proxy", TCP_PROBE),
    ("usher/apps", "work"),
    ("usher/restart-policy", "Never"),
]);

/// Kills a process behind everybody's back, as the kernel does when memory runs out.
fn kill(pid: u32) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a process id"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("kill");
}

fn pid_of(host: &Containerd, id: &str) -> u32 {
    host.task_api(id).state(id, "").expect("State").pid
}

fn starts(host: &Containerd, name: &str) -> usize {
    host.record().all(name, "start").count()
}

#[test]
fn a_sidecar_that_is_killed_comes_back_and_nobody_notices() {
    let host = Containerd::start();
    JOB.run_proxy(&host, &[]);
    host.run(&JOB.witness("work", &[]));
    host.await_event("work", "start");
    let first = pid_of(&host, "proxy");
    kill(first);
    eventually("the proxy runs again", PATIENCE, || {
        starts(&host, "proxy") == 2
    });
    assert_eq!(host.status("proxy"), Some(Status::Running));
    let second = pid_of(&host, "proxy");
    assert_ne!(first, second);
    // The number that the caller remembers is no other process's.
    let status = fs::read_to_string(format!("/proc/{first}/status")).expect("a zombie");
    assert!(status.contains("State:\tZ"), "{status}");
    assert!(
        !host
            .topics("proxy")
            .iter()
            .any(|topic| topic.starts_with("/tasks/exit"))
    );
    assert_eq!(starts(&host, "work"), 1);
    // Everything works on it as before.
    assert_eq!(host.exec("proxy", &["/bin/echo", "hello"]).out(), "hello\n");
    assert_eq!(
        host.pids("proxy")
            .iter()
            .map(|(pid, _)| *pid)
            .collect::<Vec<_>>(),
        [second]
    );
    host.kill_all(&["work", "proxy"], "SIGTERM");
    host.await_record("both end", |record| record.has("proxy", "exit"));
    assert_eq!(host.wait_exit("proxy"), 0);
    let shim = host.shims()[0];
    host.delete("proxy");
    assert!(!zombies(shim).contains(&first), "it is collected by now");
}

#[test]
fn a_sidecar_that_crashes_keeps_the_files_it_has_written() {
    let host = Containerd::start();
    let spec = JOB.witness("proxy", &[]).script(
        "echo life >> /shared/lives; test $(wc -l < /shared/lives) = 2 || exit 1; sleep 1000",
    );
    host.run(&spec);
    let lives = host.shared_dir().join("lives");
    eventually("it lives twice", PATIENCE, || {
        fs::read_to_string(&lives).is_ok_and(|lives| lives == "life\nlife\n")
    });
    assert_eq!(host.status("proxy"), Some(Status::Running));
    host.kill("proxy", "SIGKILL");
    assert_eq!(host.wait_exit("proxy"), 137);
    host.delete("proxy");
}

#[test]
fn readers_of_its_output_see_no_end_and_its_input_goes_on() {
    for terminal in [false, true] {
        let host = Containerd::start();
        let script = "echo begin; read word; echo got $word; sleep 1000";
        let args = ["/bin/sh", "-c", script];
        let shim = BareShim::start(
            &host,
            &crate::harness::runtime_under_test(),
            "proxy",
            &args,
            |config| {
                config["annotations"] = json!({
                    "usher/sidecars": "proxy",
                    "restart.usher/proxy": "Always",
                });
                config["process"]["terminal"] = json!(terminal);
            },
        );
        let mut request = shim.create_request();
        request.stdin = shim.fifo("stdin");
        request.stdout = shim.fifo("stdout");
        request.terminal = terminal;
        let api = shim.api();
        let output = Reader::of(&request.stdout);
        api.create(&request).expect("Create");
        api.start("proxy", "").expect("Start");
        let begun = |times: usize| output.text().matches("begin").count() == times;
        eventually("it begins", PATIENCE, || begun(1));
        kill(api.state("proxy", "").expect("State").pid);
        eventually("it begins again", PATIENCE, || begun(2));
        assert!(!output.is_over());
        let mut input = fs::OpenOptions::new()
            .write(true)
            .open(&request.stdin)
            .expect("stdin");
        std::io::Write::write_all(&mut input, b"hello\n").expect("write");
        eventually("it reads", PATIENCE, || output.text().contains("got hello"));
        api.kill("proxy", "", 9, false).expect("Kill");
        assert_eq!(api.wait("proxy", "").expect("Wait").exit_status, 137);
        api.delete("proxy", "").expect("Delete");
        output.finish();
    }
}

#[test]
fn what_update_has_changed_holds_in_the_next_life() {
    let host = Containerd::start();
    JOB.run_proxy(&host, &[]);
    let limit = 64 * 1024 * 1024;
    let resources = json!({ "memory": { "limit": limit } });
    let api = host.task_api("proxy");
    api.update(&pod::resources("proxy", &resources.to_string()))
        .expect("Update");
    kill(pid_of(&host, "proxy"));
    eventually("the proxy runs again", PATIENCE, || {
        starts(&host, "proxy") == 2
    });
    let metrics = host.metrics("proxy").to_string();
    assert!(metrics.contains(&limit.to_string()), "{metrics}");
    host.kill("proxy", "SIGKILL");
    host.wait_exit("proxy");
    host.delete("proxy");
}

#[test]
fn a_sidecar_that_is_told_to_stop_does_not_come_back() {
    let host = Containerd::start();
    JOB.run_proxy(&host, &[]);
    host.run(&JOB.witness("work", &[]));
    host.await_event("work", "start");
    host.kill("proxy", "SIGTERM");
    assert_eq!(host.wait_exit("proxy"), 0);
    assert_eq!(starts(&host, "proxy"), 1);
}

#[test]
fn where_the_caller_restarts_the_shim_does_not() {
    let host = Containerd::start();
    MESH.run_proxy(&host, &[]);
    kill(pid_of(&host, "proxy"));
    assert_eq!(host.wait_exit("proxy"), 137);
}

#[test]
fn a_shim_that_dies_between_two_lives_leaves_nothing() {
    let host = Containerd::start();
    // It waits ten seconds for its third life.
    let spec = JOB.witness("proxy", &["--run-for", "10ms", "--exit", "1"]);
    host.run(&spec);
    eventually("it has lived twice", PATIENCE, || {
        host.record().all("proxy", "exit").count() == 2
    });
    assert_eq!(host.status("proxy"), Some(Status::Running));
    kill(host.shims()[0]);
    assert_eq!(host.wait_exit("proxy"), 137);
}
