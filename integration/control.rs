//! The `usher` command against real shims: listing, inspecting, releasing and stopping pods.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::harness::{
    Background, ContainerSpec, Containerd, Finished, PATIENCE, eventually, poll, run, scaled,
    shim_dir,
};
use crate::pod::{EXEC_PROBE, Pod};

/// A pod whose sidecar becomes ready when the test makes a file.
const GATED: Pod = Pod(&[
    ("usher/sidecars", "proxy"),
    ("usher/apps", "web"),
    ("usher/start-mode", "Hold"),
    ("startup-probe.usher/proxy", EXEC_PROBE),
]);

pub fn usher(host: &Containerd, arguments: &[&str]) -> Command {
    let mut command = Command::new(shim_dir().join("usher"));
    command.args(arguments);
    host.enter(&mut command);
    command
}

/// Repeats a command until its output contains `what`. On a busy machine the command may give up on
/// a slow shim, and then the shim's pod is missing from the output.
#[track_caller]
fn says(host: &Containerd, arguments: &[&str], what: &str) -> String {
    let mut last = None;
    let found = poll(PATIENCE, || {
        let finished = run(usher(host, arguments), PATIENCE);
        let is_it = finished.ok() && finished.out().contains(what);
        last = Some(finished);
        is_it.then(|| last.as_ref().unwrap().out())
    });
    found.unwrap_or_else(|| panic!("usher {arguments:?} never said {what:?}: {last:?}"))
}

/// Repeats `usher ps` until its JSON for the pod meets the condition, and returns this JSON.
#[track_caller]
fn pod_that(host: &Containerd, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let found = poll(PATIENCE, || {
        let finished = run(usher(host, &["ps", "--all", "-o", "json"]), PATIENCE);
        let facts: Value = serde_json::from_str(&finished.out()).expect("JSON");
        let pods = facts["pods"].as_array().expect("a list of pods");
        last = pods.iter().rev().find(|pod| pod["name"] == "pod1")?.clone();
        condition(&last).then(|| last.clone())
    });
    found.unwrap_or_else(|| panic!("never {what}: {last:#}"))
}

fn container<'a>(pod: &'a Value, name: &str) -> &'a Value {
    let mut containers = pod["containers"].as_array().expect("containers").iter();
    let found = containers.find(|container| container["name"] == name);
    found.unwrap_or_else(|| panic!("{name} is not in {pod:#}"))
}

fn get_ready(host: &Containerd) {
    std::fs::write(host.shared_dir().join("ready-proxy"), "").expect("the mark");
}

#[track_caller]
fn run_gated(host: &Containerd, web: &[&str]) {
    host.run(&GATED.witness("web", web));
    host.run(&GATED.witness("proxy", &[]));
    host.await_event("proxy", "start");
}

/// Stops the pod with `usher stop`. Two separate stop requests could be too far apart to end the
/// pod.
#[track_caller]
fn stop(host: &Containerd) {
    let stopped = run(usher(host, &["stop", "pod1"]), PATIENCE);
    assert!(stopped.ok(), "{stopped:?}");
    for name in ["web", "proxy"] {
        assert_eq!(host.wait_exit(name), 0);
    }
}

#[test]
fn the_status_follows_the_pods_phases() {
    let host = Containerd::start();
    run_gated(&host, &["--ignore-term"]);
    let pod = pod_that(&host, "waiting for its sidecar", |pod| {
        pod["status"] == "Sidecar:0/1"
    });
    assert_eq!(
        (&pod["ready"], &pod["total"]),
        (&0.into(), &2.into()),
        "{pod:#}"
    );
    assert_eq!(container(&pod, "web")["state"], "held");
    assert_eq!(pod["containerdNamespace"], host.namespace.as_str());
    get_ready(&host);
    let pod = pod_that(&host, "running", |pod| pod["ready"] == 2);
    assert_eq!(pod["status"], "Running");
    assert_eq!(container(&pod, "proxy")["role"], "sidecar");
    host.await_event("web", "start");
    // Neither stop request is answered yet, because the app ignores its signal.
    host.kill_all(&["web", "proxy"], "SIGTERM");
    pod_that(&host, "terminating", |pod| pod["status"] == "Terminating");
    host.kill("web", "SIGKILL");
    host.wait_exit("proxy");
    pod_that(&host, "terminated", |pod| pod["status"] == "Terminated");
    host.delete("web");
    host.delete("proxy");
    // The shim has exited, but `usher ps` still lists the pod, from the node's history.
    let pod = pod_that(&host, "remembered", |pod| pod["ended"].is_string());
    assert_eq!(container(&pod, "web")["exitCode"], 137, "{pod:#}");
    assert!(!says(&host, &["ps", "-o", "json"], "pods").contains("pod1"));
}

#[test]
fn a_pod_without_annotations_is_listed() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("plain").witness(&[]));
    let table = says(&host, &["ps"], "plain");
    assert!(table.starts_with("NAMESPACE"), "{table}");
    let row = table.lines().find(|line| line.contains("plain")).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        words[..5],
        [&host.namespace, "plain", "1/1", "Running", "0"]
    );
}

#[test]
fn inspect_says_first_what_the_pod_waits_for_and_a_release_ends_the_wait() {
    let host = Containerd::start();
    run_gated(&host, &[]);
    let waits = "waiting for sidecar proxy (not started yet)";
    let text = says(&host, &["inspect", "pod1"], waits);
    let mut lines = text.lines();
    assert!(
        lines.next().unwrap().starts_with("pod1 waits: Sidecar:0/1"),
        "{text}"
    );
    assert!(text.contains("app web is held for"), "{text}");
    assert!(text.contains("usher release pod1 web"), "{text}");
    assert!(!host.record().has("web", "start"));
    let said = says(&host, &["release", "pod1", "web"], "released web of pod1");
    assert!(said.contains("sidecar proxy (not started yet)"), "{said}");
    host.await_event("web", "start");
    let again = run(usher(&host, &["release", "pod1", "web"]), PATIENCE);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.err().contains("expected held"), "{again:?}");
}

#[test]
fn usher_stop_stops_apps_before_sidecars() {
    let host = Containerd::start();
    get_ready(&host);
    host.run(&GATED.witness("web", &["--stop-after", "300ms"]));
    host.run(&GATED.witness("proxy", &["--ready-after", "1000s"]));
    host.await_event("web", "start");
    let stopped = run(
        usher(&host, &["stop", "--all", "--grace-period", "60s"]),
        PATIENCE,
    );
    assert!(stopped.ok(), "{stopped:?}");
    let said = stopped.out();
    assert!(said.contains("pod1: web, proxy to stop within"), "{said}");
    assert!(said.contains("pod1: stopped after"), "{said}");
    let record = host.record();
    record.assert_before(("web", "exit"), ("proxy", "signal"));
    assert_eq!(host.wait_exit("web"), 0);
    let pod = pod_that(&host, "stopped", |pod| pod["status"] == "Stopped");
    assert_eq!(pod["termination"]["cause"], "stopped", "{pod:#}");
    // A container that is created after the termination begins a new run of the pod.
    host.delete("web");
    host.run(&GATED.witness("web", &[]));
    pod_that(&host, "started over", |pod| pod["status"] == "Sidecar:0/1");
}

#[test]
fn usher_stop_all_waits_for_a_shim_that_answers_slowly() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("plain").witness(&[]));
    host.await_event("plain", "start");
    let pods = says(&host, &["ps", "-o", "json"], "plain");
    let pods: Value = serde_json::from_str(&pods).expect("JSON");
    let shim = pods["pods"][0]["shimPid"]
        .as_i64()
        .expect("the shim's process");
    let shim = Pid::from_raw(i32::try_from(shim).expect("a process"));
    kill(shim, Signal::SIGSTOP).expect("stop the shim");
    let mut stop = Background::spawn(usher(&host, &["stop", "--all"]));
    // The shim stays stopped for longer than the other `usher` commands wait for an answer.
    std::thread::sleep(scaled(Duration::from_millis(1500)));
    assert!(stop.poll_running(), "{:?}", stop.finish(PATIENCE));
    kill(shim, Signal::SIGCONT).expect("continue the shim");
    let stopped = stop.finish(PATIENCE);
    assert!(stopped.ok(), "{stopped:?}");
    let said = stopped.err();
    assert!(
        said.contains("does not answer within 500ms; retrying for "),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "no more is wrong: {said}");
    assert!(
        stopped.out().contains("plain: stopped after"),
        "{stopped:?}"
    );
    assert_eq!(host.wait_exit("plain"), 0);
}

#[test]
fn usher_stop_reports_a_kill_not_a_stop_signal_for_a_held_container() {
    let host = Containerd::start();
    host.run(&GATED.witness("web", &[]));
    pod_that(&host, "held", |pod| {
        container(pod, "web")["state"] == "held"
    });
    let stopped = run(usher(&host, &["stop", "pod1", "pod1"]), PATIENCE);
    assert!(stopped.ok(), "{stopped:?}");
    let said = stopped.out();
    // A pod that is named twice is asked once.
    assert_eq!(said.matches("to stop within").count(), 1, "{said}");
    assert!(!said.contains("is stopping"), "{said}");
    assert!(
        said.contains("killed: its program was not executed"),
        "{said}"
    );
}

#[test]
fn a_completed_pod_is_listed_as_completed_even_after_its_deletion() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("work").witness(&["--run-for", "0s"]));
    assert_eq!(host.wait_exit("work"), 0);
    let listed = || {
        let pods = says(&host, &["ps", "--all"], "work");
        let row = pods.lines().find(|line| line.contains(" work "));
        let row = row.unwrap_or_else(|| panic!("{pods}"));
        let cells: Vec<_> = row.split_whitespace().skip(2).take(2).collect();
        cells.join(" ")
    };
    // `kubectl get pods` shows the same ready count and status.
    assert_eq!(listed(), "0/1 Completed");
    host.delete("work");
    assert_eq!(listed(), "0/1 Completed");
}

#[test]
fn usher_stop_uses_the_given_grace_period() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("deaf").witness(&["--ignore-term"]));
    host.await_event("deaf", "start");
    let stopped = run(
        usher(&host, &["stop", "deaf", "--grace-period", "100ms"]),
        PATIENCE,
    );
    assert!(stopped.ok(), "{stopped:?}");
    let said = stopped.out();
    assert!(said.contains("deaf: deaf is stopping"), "{said}");
    let killed = "deaf: deaf exited with 137, killed: the grace period was over";
    assert!(said.contains(killed), "{said}");
    assert_eq!(host.wait_exit("deaf"), 137);
    assert!(host.record().has("deaf", "signal"));
    let pod = run(usher(&host, &["inspect", "deaf", "-o", "json"]), PATIENCE);
    let pod: Value = serde_json::from_str(&pod.out()).expect("JSON");
    let kills = &container(&pod, "deaf")["kills"];
    assert_eq!(kills[0]["why"], "grace-over", "{pod:#}");
    assert_eq!(kills[0]["count"], 1, "{pod:#}");
}

#[test]
fn the_timeline_shows_a_pod_that_has_ended() {
    let host = Containerd::start();
    run_gated(&host, &[]);
    get_ready(&host);
    host.await_event("web", "start");
    stop(&host);
    host.delete("web");
    host.delete("proxy");
    pod_that(&host, "over", |pod| pod["ended"].is_string());
    let facts = says(&host, &["timeline", "pod1", "-o", "json"], "events");
    let pod: Value = serde_json::from_str(&facts).expect("JSON");
    let events = pod["events"].as_array().expect("events");
    let position = |container: &str, what: &str| {
        let found = events
            .iter()
            .position(|event| event["container"] == container && event["what"] == what);
        found.unwrap_or_else(|| panic!("{container} {what} is not in {pod:#}"))
    };
    let order = [
        ("web", "created"),
        ("web", "held"),
        ("proxy", "executed"),
        ("proxy", "ready"),
        ("web", "executed"),
        ("", "terminating"),
        ("web", "exited"),
        ("proxy", "signalled"),
        ("proxy", "exited"),
        ("proxy", "gone"),
    ];
    let positions: Vec<_> = order
        .iter()
        .map(|(name, what)| position(name, what))
        .collect();
    assert!(positions.is_sorted(), "{positions:?} {pod:#}");
    let text = says(&host, &["timeline", "pod1", "--width", "80"], "proxy");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    let file = host.dir().join("timeline.svg");
    let drawn = run(
        usher(
            &host,
            &["timeline", "pod1", "--svg", file.to_str().unwrap()],
        ),
        PATIENCE,
    );
    assert!(drawn.ok(), "{drawn:?}");
    let picture = std::fs::read_to_string(file).expect("the picture");
    assert!(
        picture.starts_with("<svg") && picture.contains("proxy: ready"),
        "{picture}"
    );
}

#[test]
fn a_container_stopped_with_its_own_stop_signal_is_drawn_as_stopping() {
    const RESIZED: Pod = Pod(&[
        ("usher/sidecars", "proxy"),
        ("stop-signal.usher/web", "SIGWINCH"),
    ]);
    let host = Containerd::start();
    host.run(&RESIZED.witness("proxy", &[]));
    // SIGWINCH, the container's stop signal, does not end the container.
    host.run(&RESIZED.witness("web", &[]));
    host.await_event("web", "start");
    let asked = run(usher(&host, &["stop", "pod1", "--no-wait"]), PATIENCE);
    assert!(asked.ok(), "{asked:?}");
    pod_that(&host, "stopping", |pod| {
        container(pod, "web")["state"] == "stopping"
    });
    host.kill("web", "SIGKILL");
    assert_eq!(host.wait_exit("web"), 137);
    let facts = says(&host, &["timeline", "pod1", "-o", "json"], "exited");
    let pod: Value = serde_json::from_str(&facts).expect("JSON");
    let events = pod["events"].as_array().expect("events").iter();
    let signals: Vec<_> = events
        .filter(|event| event["container"] == "web")
        .filter(|event| event["what"] == "signalled" || event["what"] == "killed")
        .map(|event| (&event["number"], &event["why"]))
        .collect();
    let expected = [(28, "turn"), (9, "caller")];
    let expected = expected.map(|(number, why)| (number.into(), why.into()));
    let expected: Vec<(&Value, &Value)> = expected.iter().map(|(one, two)| (one, two)).collect();
    assert_eq!(signals, expected, "{pod:#}");
    assert_eq!(container(&pod, "web")["kills"][0]["why"], "caller");
    let file = host.dir().join("timeline.svg");
    let file = file.to_str().expect("a path of ours");
    let drawn = run(usher(&host, &["timeline", "pod1", "--svg", file]), PATIENCE);
    assert!(drawn.ok(), "{drawn:?}");
    let picture = std::fs::read_to_string(file).expect("the picture");
    assert!(picture.contains("web: stopping"), "{picture}");
    assert!(
        picture.contains("signal SIGWINCH: its turn has come"),
        "{picture}"
    );
}

#[test]
fn an_unhealthy_sidecar_is_restarted_and_the_failed_probe_is_named() {
    const WATCHED: Pod = Pod(&[
        ("usher/sidecars", "proxy"),
        (
            "liveness-probe.usher/proxy",
            r#"{"exec":{"command":["/bin/test","!","-e","/shared/unwell"]},"periodSeconds":1,"failureThreshold":2,"timeoutSeconds":15}"#,
        ),
    ]);
    let host = Containerd::start();
    host.run(&WATCHED.witness("proxy", &[]));
    host.run(&WATCHED.witness("web", &[]));
    host.await_event("web", "start");
    std::fs::write(host.shared_dir().join("unwell"), "").expect("the mark");
    let pod = pod_that(&host, "restarted", |pod| {
        container(pod, "proxy")["restarts"].as_u64() > Some(0)
    });
    assert_eq!(container(&pod, "web")["restarts"], 0, "{pod:#}");
    let facts = says(&host, &["timeline", "pod1", "-o", "json"], "probe-failed");
    let pod: Value = serde_json::from_str(&facts).expect("JSON");
    let events = pod["events"].as_array().expect("events").iter();
    let events: Vec<_> = events
        .filter(|event| event["container"] == "proxy")
        .collect();
    let failures = events
        .iter()
        .filter(|event| event["what"] == "probe-failed");
    let failures: Vec<_> = failures
        .take(2)
        .map(|event| (&event["probe"], &event["number"], &event["threshold"]))
        .collect();
    let reason = &container(&pod, "proxy")["failedProbe"]["reason"];
    let reason = reason.as_str().unwrap_or_default();
    assert!(reason.contains("the command exited with 1"), "{pod:#}");
    let (liveness, once, twice) = ("liveness".into(), 1.into(), 2.into());
    let expected = [(&liveness, &once, &twice), (&liveness, &twice, &twice)];
    assert_eq!(failures, expected, "{pod:#}");
    let signalled = events.iter().find(|event| event["what"] == "signalled");
    let signalled = signalled.expect("a stop signal");
    assert_eq!(signalled["why"], "liveness-probe-failed", "{pod:#}");
    assert_eq!(signalled["stops"], true);
}

#[test]
fn a_client_outside_roots_group_is_read_only() {
    let host = Containerd::start();
    run_gated(&host, &[]);
    says(&host, &["ps"], "Sidecar:0/1");
    let read_only = |words: &[&str]| {
        let command = host.without_rights(&shim_dir().join("usher"), words);
        run(command, PATIENCE)
    };
    let looked = read_only(&["inspect", "pod1"]);
    assert!(looked.ok(), "{looked:?}");
    assert!(looked.out().contains("waits: Sidecar:0/1"), "{looked:?}");
    for words in [&["stop", "pod1"][..], &["release", "pod1", "web"]] {
        let refused = read_only(words);
        assert!(!refused.ok(), "{refused:?}");
        assert!(refused.err().contains("may only look"), "{refused:?}");
    }
    let pod = pod_that(&host, "as it was", |pod| pod["status"] == "Sidecar:0/1");
    assert_eq!(container(&pod, "web")["state"], "held", "{pod:#}");
    get_ready(&host);
    host.await_event("web", "start");
    stop(&host);
}

#[test]
fn metrics_are_printed_and_served() {
    let host = Containerd::start();
    get_ready(&host);
    run_gated(&host, &[]);
    host.await_event("web", "start");
    says(&host, &["metrics"], "usher_pods{phase=\"Running\"} 1");
    let text = says(&host, &["metrics"], "usher_pod_ready_seconds");
    assert!(
        text.contains("usher_container_held_seconds{container=\"web\""),
        "{text}"
    );
    let server = Background::spawn(usher(&host, &["metrics", "--listen", "127.0.0.1:0"]));
    let address = poll(PATIENCE, || {
        let said = server.stderr();
        let address = said.split("http://").nth(1)?.split('/').next()?;
        Some(address.to_owned())
    });
    let address = address.expect("the server says where it listens");
    let get = |path: &str| {
        let mut stream = TcpStream::connect(&address).expect("connect");
        let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).expect("ask");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    };
    eventually("the metrics are served", PATIENCE, || {
        get("/metrics").contains("usher_pods{phase=\"Running\"} 1")
    });
    assert!(get("/").starts_with("HTTP/1.1 404"));
    let pid = Pid::from_raw(server.pid().cast_signed());
    kill(pid, Signal::SIGTERM).expect("a signal");
    let finished = server.finish(PATIENCE);
    assert!(finished.ok(), "{finished:?}");
}

#[test]
fn usher_ps_lists_the_other_pods_when_a_shim_hangs_or_is_dead() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("plain").witness(&[]));
    let sockets = host.dir().join("run/usher");
    let silent = UnixListener::bind(sockets.join("silent")).expect("a socket");
    drop(UnixListener::bind(sockets.join("dead")).expect("a socket"));
    let listed = poll(PATIENCE, || {
        let listed = run(usher(&host, &["ps"]), PATIENCE);
        listed.out().contains("plain").then_some(listed)
    });
    let listed = listed.expect("a list with the pod whose shim answers");
    // The output lists every pod except that of the silent shim.
    assert_eq!(listed.code, Some(1), "{listed:?}");
    assert!(
        listed.err().contains("usher/silent does not answer"),
        "{listed:?}"
    );
    assert!(!listed.err().contains("dead"), "{listed:?}");
    drop(silent);
    for name in ["silent", "dead"] {
        std::fs::remove_file(sockets.join(name)).expect("its file");
    }
}

#[test]
fn usher_ps_works_without_containerd() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("plain").witness(&[]));
    host.stop();
    // Outside containerd's mount namespace, `usher` finds the sockets if an environment variable
    // names their directory.
    let listed: Option<Finished> = poll(PATIENCE, || {
        let mut command = Command::new(shim_dir().join("usher"));
        command
            .arg("ps")
            .env("USHER_SOCKETS", host.dir().join("run/usher"));
        Some(run(command, PATIENCE)).filter(|listed| listed.out().contains("plain"))
    });
    assert!(listed.is_some());
    host.start_again();
}

#[test]
fn the_control_socket_is_only_for_root_and_is_removed_with_the_pod() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("plain").witness(&["--run-for", "100ms"]));
    host.wait_exit("plain");
    let socket = host.control_sockets().pop().expect("a socket");
    let mode = std::fs::metadata(&socket)
        .expect("its mode")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    // The second socket, in the directory `root`, has mode 0. So a process needs more than the user
    // id of root to connect: it needs the capability to ignore file modes.
    let name = socket.file_name().expect("its name");
    let roots = socket.with_file_name("root").join(name);
    let mode = std::fs::metadata(&roots)
        .expect("its mode")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0);
    host.delete("plain");
    eventually("the sockets are gone", PATIENCE, || {
        host.control_sockets().is_empty() && !roots.exists()
    });
}

#[test]
fn clients_that_flood_hang_or_vanish_do_not_harm_the_pod() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("plain").witness(&["--beat", "20ms"]));
    let socket = host.control_sockets().pop().expect("a socket");
    // The test opens more connections than the shim admits, and sends nothing.
    let silent: Vec<_> = (0..64)
        .map(|_| UnixStream::connect(&socket).expect("connect"))
        .collect();
    // In spite of these connections, the shim answers containerd.
    assert!(host.task_api("plain").state("plain", "").is_ok());
    drop(silent);
    for _ in 0..20 {
        let mut stream = UnixStream::connect(&socket).expect("connect");
        // The shim may close the connection while the client still writes.
        let _ = stream.write_all(&[0x55; 1 << 16]);
    }
    says(&host, &["ps"], "plain");
    let beats = host.record().all("plain", "beat").count();
    host.await_record("the container goes on", |record| {
        record.all("plain", "beat").count() > beats
    });
}

#[test]
fn usher_ps_watch_shows_every_change() {
    let host = Containerd::start();
    run_gated(&host, &[]);
    let watching = Background::spawn(usher(&host, &["ps", "--watch"]));
    eventually("the pod waits", PATIENCE, || {
        watching.stdout().contains("Sidecar:0/1")
    });
    get_ready(&host);
    eventually("the pod runs", PATIENCE, || {
        watching.stdout().contains("2/2")
    });
    stop(&host);
    eventually("the pod has ended", PATIENCE, || {
        watching.stdout().contains("Stopped")
    });
}
