//! Sidecars that the shim restarts in place: the task and its streams remain, and a new process
//! runs.

use std::fs;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{
    BareShim, ContainerSpec, Containerd, Gates, PATIENCE, Reader, Record, Status, eventually,
    zombies,
};
use crate::pod::{self, JOB, MESH, Pod, TCP_PROBE};

/// Kills a process from outside, as the kernel's OOM killer does.
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
fn a_killed_sidecar_restarts_in_place_unnoticed() {
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
    // The zombie of the old process reserves the process id that the caller knows.
    let status = fs::read_to_string(format!("/proc/{first}/status")).expect("a zombie");
    assert!(status.contains("State:\tZ"), "{status}");
    assert!(
        !host
            .topics("proxy")
            .iter()
            .any(|topic| topic.starts_with("/tasks/exit"))
    );
    assert_eq!(starts(&host, "work"), 1);
    assert_eq!(host.exec("proxy", &["/bin/echo", "hello"]).out(), "hello\n");
    assert_eq!(
        host.pids("proxy")
            .iter()
            .map(|(pid, _)| *pid)
            .collect::<Vec<_>>(),
        [second]
    );
    host.kill("work", "SIGTERM");
    host.wait_exit("work");
    host.kill("proxy", "SIGTERM");
    assert_eq!(host.wait_exit("proxy"), 0);
    let shim = host.shims()[0];
    host.delete("proxy");
    assert!(
        !zombies(shim).contains(&first),
        "the first process was not collected"
    );
}

#[test]
fn a_crashed_sidecar_keeps_its_files() {
    let host = Containerd::start();
    let spec = JOB
        .witness("proxy", &[])
        .script("echo run >> /shared/runs; test $(wc -l < /shared/runs) = 2 || exit 1; sleep 1000");
    host.run(&spec);
    let runs = host.shared_dir().join("runs");
    eventually("the proxy has run twice", PATIENCE, || {
        fs::read_to_string(&runs).is_ok_and(|runs| runs == "run\nrun\n")
    });
    assert_eq!(host.status("proxy"), Some(Status::Running));
    host.kill("proxy", "SIGKILL");
    assert_eq!(host.wait_exit("proxy"), 137);
    host.delete("proxy");
}

#[test]
fn output_and_input_survive_a_restart_in_place() {
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
        eventually("the proxy runs", PATIENCE, || begun(1));
        kill(api.state("proxy", "").expect("State").pid);
        eventually("the proxy runs again", PATIENCE, || begun(2));
        assert!(!output.is_over());
        let mut input = fs::OpenOptions::new()
            .write(true)
            .open(&request.stdin)
            .expect("stdin");
        std::io::Write::write_all(&mut input, b"hello\n").expect("write");
        eventually("the proxy reads its input", PATIENCE, || {
            output.text().contains("got hello")
        });
        api.kill("proxy", "", 9, false).expect("Kill");
        assert_eq!(api.wait("proxy", "").expect("Wait").exit_status, 137);
        api.delete("proxy", "").expect("Delete");
        output.finish();
    }
}

#[test]
fn stream_requests_during_a_restart_in_place_reach_the_new_process() {
    for terminal in [false, true] {
        let host = Containerd::start();
        let gates = Gates::new(&host);
        let script = match terminal {
            false => "cat; echo over; exec sleep 1000",
            true => "sleep 0.1; stty size; exec sleep 1000",
        };
        let args = ["/bin/sh", "-c", script];
        let runtime = crate::harness::runtime_under_test();
        let shim = BareShim::start(&host, &runtime, "proxy", &args, |config| {
            config["annotations"] = json!({
                "usher/sidecars": "proxy",
                "restart.usher/proxy": "Always",
            });
            config["process"]["terminal"] = json!(terminal);
        });
        let mut request = gates.with(shim.create_request());
        request.stdin = shim.fifo("stdin");
        request.stdout = shim.fifo("stdout");
        request.terminal = terminal;
        let output = Reader::of(&request.stdout);
        let api = shim.api();
        api.create(&request).expect("Create");
        api.start("proxy", "").expect("Start");
        gates.close("create", "proxy");
        kill(api.state("proxy", "").expect("State").pid);
        gates.await_waiting("create");
        match terminal {
            false => drop(api.close_stdin("proxy", "").expect("CloseIO")),
            true => drop(api.resize("proxy", "", 77, 33).expect("ResizePty")),
        }
        gates.open("create");
        let expected = if terminal { "33 77" } else { "over" };
        eventually("the new process has got the request", PATIENCE, || {
            output.text().contains(expected)
        });
        api.kill("proxy", "", 9, false).expect("Kill");
        api.wait("proxy", "").expect("Wait");
        api.delete("proxy", "").expect("Delete");
        output.finish();
    }
}

#[test]
fn an_update_still_holds_after_a_restart_in_place() {
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
fn a_stopped_sidecar_does_not_restart() {
    let host = Containerd::start();
    JOB.run_proxy(&host, &[]);
    host.run(&JOB.witness("work", &[]));
    host.await_event("work", "start");
    host.kill("proxy", "SIGTERM");
    assert_eq!(host.wait_exit("proxy"), 0);
    assert_eq!(starts(&host, "proxy"), 1);
}

#[test]
fn the_shim_does_not_restart_a_sidecar_that_its_caller_restarts() {
    let host = Containerd::start();
    MESH.run_proxy(&host, &[]);
    kill(pid_of(&host, "proxy"));
    assert_eq!(host.wait_exit("proxy"), 137);
}

/// A proxy whose program crashes `crashes` times, and then runs well.
fn crashes_first(crashes: usize) -> ContainerSpec {
    let script = format!(
        "echo run >> /shared/runs; test $(wc -l < /shared/runs) -gt {crashes} || exit 1; \
         exec /bin/witness proxy --listen 8080 --ready-after 300ms"
    );
    let spec = JOB.witness("proxy", &["--listen", "8080"]);
    spec.script(&script)
}

fn runs(host: &Containerd) -> usize {
    let runs = fs::read_to_string(host.shared_dir().join("runs"));
    runs.map_or(0, |runs| runs.lines().count())
}

/// The test takes ten seconds, because the sidecar waits that long before its second restart.
#[test]
fn an_app_is_held_until_a_twice_crashed_sidecar_is_ready() {
    let host = Containerd::start();
    let begun = Instant::now();
    host.run(&crashes_first(2));
    host.run(&JOB.witness("work", &[]));
    assert_eq!(host.status("work"), Some(Status::Running));
    let record = host.await_event("work", "start");
    record.assert_before(("proxy", "ready"), ("work", "start"));
    assert!(begun.elapsed() >= Duration::from_secs(10));
    assert_eq!(runs(&host), 3);
    for restart in [
        "1 and is restarted in place in 0ns",
        "1 and is restarted in place in 10s",
    ] {
        let line = format!("proxy ended with {restart}");
        assert!(host.log_tail(2000).contains(&line), "{line}");
    }
    assert!(!has_exited(&host, "proxy"));
}

fn has_exited(host: &Containerd, id: &str) -> bool {
    let topics = host.topics(id);
    topics.iter().any(|topic| topic.starts_with("/tasks/exit"))
}

#[test]
fn an_app_waits_until_its_caller_has_restarted_a_crashing_sidecar_successfully() {
    let host = Containerd::start();
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("startup-probe.usher/proxy", TCP_PROBE),
        ("usher/start-mode", "Hold"),
    ]);
    host.run(&pod.witness("web", &[]));
    for _ in 0..2 {
        host.run(&pod.witness("proxy", &["--run-for", "50ms", "--exit", "1"]));
        assert_eq!(host.wait_exit("proxy"), 1);
        host.delete("proxy");
    }
    assert!(!host.record().has("web", "start"));
    pod.run_proxy(&host, &["--ready-after", "200ms"]);
    let record = host.await_event("web", "start");
    assert_eq!(record.all("proxy", "start").count(), 3);
    record.assert_before(("proxy", "ready"), ("web", "start"));
}

#[test]
fn a_sidecar_killed_for_memory_restarts_and_its_app_continues() {
    let host = Containerd::start();
    let script = "test -e /shared/again && exec /bin/witness proxy --listen 8080; \
                  touch /shared/again; /bin/witness mark proxy eats; exec tail /dev/zero";
    let pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("usher/restart-policy", "Never"),
    ]);
    let spec = pod.witness("proxy", &["--listen", "8080"]).script(script);
    host.run(&pod.witness("work", &["--beat", "100ms"]));
    host.run(&spec.option(&["--memory-limit", "33554432"]));
    host.await_event("work", "start");
    let record = host.await_event("proxy", "ready");
    record.assert_before(("proxy", "eats"), ("proxy", "ready"));
    assert!(host.topics("proxy").contains(&"/tasks/oom".to_owned()));
    assert!(!has_exited(&host, "proxy"));
    let beats = |host: &Containerd| host.record().all("work", "beat").count();
    let before = beats(&host);
    eventually("the app goes on", PATIENCE, || beats(&host) > before);
    // The new process has the container's memory limit too.
    assert!(host.metrics("proxy").to_string().contains("33554432"));
    host.kill_all(&["work", "proxy"], "SIGTERM");
    assert_eq!(host.wait_exit("proxy"), 0);
    assert_eq!(starts(&host, "work"), 1);
}

#[test]
fn a_restart_in_place_needs_no_containerd() {
    let host = Containerd::start();
    JOB.run_proxy(&host, &[]);
    let first = pid_of(&host, "proxy");
    host.crash();
    kill(first);
    eventually("the proxy runs again", PATIENCE, || {
        starts(&host, "proxy") == 2
    });
    host.start_again();
    assert_eq!(host.status("proxy"), Some(Status::Running));
    let known = host.tasks().into_iter().map(|task| task.pid);
    assert_eq!(known.collect::<Vec<_>>(), [pid_of(&host, "proxy")]);
    assert_eq!(host.exec("proxy", &["/bin/echo", "hello"]).out(), "hello\n");
    host.kill("proxy", "SIGTERM");
    assert_eq!(host.wait_exit("proxy"), 0);
}

#[test]
fn a_containerd_started_during_back_off_sees_the_sidecar_running() {
    let host = Containerd::start();
    host.run(&JOB.witness("proxy", &["--run-for", "10ms", "--exit", "1"]));
    let ended = |times| move |record: &Record| record.all("proxy", "exit").count() == times;
    host.await_record("the proxy has run twice", ended(2));
    host.crash();
    host.start_again();
    assert_eq!(host.status("proxy"), Some(Status::Running));
    // containerd would delete a task that reports no process.
    assert_eq!(host.pids("proxy").len(), 1);
    host.metrics("proxy");
    // The sidecar waits for its restart. A stop request ends the sidecar, so it is not restarted.
    host.kill("proxy", "SIGTERM");
    assert_eq!(host.wait_exit("proxy"), 0);
    host.delete("proxy");
    assert_eq!(host.record().all("proxy", "start").count(), 2);
}

#[test]
fn pause_exec_and_delete_are_refused_during_back_off() {
    let host = Containerd::start();
    host.run(&JOB.witness("proxy", &["--run-for", "10ms", "--exit", "1"]));
    host.await_record("the proxy has run twice", |record| {
        record.all("proxy", "exit").count() == 2
    });
    for command in ["pause", "resume"] {
        let refused = host.ctr(&["tasks", command, "proxy"]);
        assert!(!refused.ok(), "{command}: {}", refused.out());
        assert_eq!(host.status("proxy"), Some(Status::Running), "{command}");
    }
    let exec = host.exec("proxy", &["/bin/true"]);
    assert!(!exec.ok());
    let (code, _) = host
        .task_api("proxy")
        .delete("proxy", "")
        .expect_err("Delete is refused");
    assert_eq!(code, ttrpc::Code::FAILED_PRECONDITION);
    host.await_record("the proxy runs again", |record| {
        record.all("proxy", "start").count() == 3
    });
    assert!(!has_exited(&host, "proxy"));
}

#[test]
fn execs_end_with_the_process_that_is_restarted() {
    for args in [&[][..], &["--with-ns", "pid:/proc/self/ns/pid"]] {
        let host = Containerd::start();
        let spec = JOB.witness("proxy", &["--listen", "8080"]).option(args);
        host.run(&spec);
        host.await_event("proxy", "start");
        let exec = host.spawn_exec("proxy", "sleeper", &["/bin/sleep", "1000"]);
        host.await_exec("proxy", "sleeper");
        kill(pid_of(&host, "proxy"));
        assert_eq!(exec.finish(PATIENCE).code, Some(137));
        eventually("the proxy runs again", PATIENCE, || {
            starts(&host, "proxy") == 2
        });
        assert_eq!(host.exec("proxy", &["/bin/echo", "hello"]).out(), "hello\n");
        host.kill("proxy", "SIGKILL");
        assert_eq!(host.wait_exit("proxy"), 137);
    }
}

#[test]
fn a_sidecar_killed_while_paused_restarts_unpaused() {
    let host = Containerd::start();
    JOB.run_proxy(&host, &[]);
    host.must(&["tasks", "pause", "proxy"]);
    kill(pid_of(&host, "proxy"));
    // With cgroup v1 the kernel ends the frozen process only on Resume.
    host.ctr(&["tasks", "resume", "proxy"]);
    eventually("the proxy runs again", PATIENCE, || {
        starts(&host, "proxy") == 2
    });
    assert_eq!(host.status("proxy"), Some(Status::Running));
    for (command, status) in [("pause", Status::Paused), ("resume", Status::Running)] {
        host.must(&["tasks", command, "proxy"]);
        assert_eq!(host.status("proxy"), Some(status));
    }
    host.kill("proxy", "SIGKILL");
    assert_eq!(host.wait_exit("proxy"), 137);
}

#[test]
fn a_shim_that_dies_during_back_off_leaves_nothing() {
    let host = Containerd::start();
    // The proxy waits ten seconds before its third run.
    let spec = JOB.witness("proxy", &["--run-for", "10ms", "--exit", "1"]);
    host.run(&spec);
    eventually("the proxy has run twice", PATIENCE, || {
        host.record().all("proxy", "exit").count() == 2
    });
    assert_eq!(host.status("proxy"), Some(Status::Running));
    kill(host.shims()[0]);
    assert_eq!(host.wait_exit("proxy"), 137);
}
