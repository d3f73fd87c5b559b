//! Tests with an OCI runtime that hangs at one of its commands. Also tests the environment of
//! containers, the privileges of probes, and the kill of a frozen container.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use containerd_shim_protos::api::{DeleteRequest, Empty, KillRequest, PauseRequest, ResumeRequest};
use serde_json::{Value, json};

use crate::harness::{
    Answer, BareShim, ContainerSpec, Containerd, Gates, PATIENCE, Status, TaskApi,
    add_poststart_hook, eventually, on_v2, process_state, runtime_under_test, scaled,
};
use crate::pod;

const SLEEP: [&str; 2] = ["/bin/sleep", "1000"];

/// Maximum time from a SIGKILL to the exit on two busy processors, whatever hangs.
const SOON: Duration = Duration::from_secs(6);

/// Processes of this containerd's shims, and of commands that the shims have started. Only
/// processes with `word` on their command line count.
fn commands(host: &Containerd, word: &str) -> Vec<u32> {
    let all = host.commands().into_iter();
    let with = all.filter(|(_, words)| words.split_whitespace().any(|one| one == word));
    with.map(|(pid, _)| pid).collect()
}

/// The sidecar replaces `/etc/passwd` by a FIFO, and the OCI runtime hangs when it reads the file.
#[test]
fn a_sidecar_whose_restart_hangs_can_be_killed_and_deleted() {
    let host = Containerd::start();
    let script = "echo run >> /shared/runs; mkdir -p /etc; rm -f /etc/passwd; \
                  mkfifo /etc/passwd; exit 1";
    let proxy = ContainerSpec::new("proxy")
        .in_pod("pod1", "proxy")
        .annotations(&[
            ("usher/sidecars", "proxy"),
            ("restart.usher/proxy", "Always"),
        ])
        .script(script);
    host.run(&proxy);
    // crun does not hang when it reads the FIFO. So under crun the restart succeeds, and the
    // sidecar runs again.
    eventually(
        "the runtime hangs, or the sidecar runs again",
        PATIENCE,
        || {
            let runs = fs::read_to_string(host.shared_dir().join("runs")).unwrap_or_default();
            !commands(&host, "create").is_empty() || runs.lines().count() > 1
        },
    );
    let killed = Instant::now();
    host.kill("proxy", "SIGKILL");
    host.wait_exit("proxy");
    assert!(killed.elapsed() < scaled(SOON), "{:?}", killed.elapsed());
    host.delete("proxy");
    assert!(commands(&host, "create").is_empty());
    fs::remove_file(host.dir().join("rootfs/etc/passwd")).expect("the FIFO");
}

fn bare(host: &Containerd) -> BareShim<'_> {
    BareShim::start(host, &runtime_under_test(), "a", &SLEEP, |_| ())
}

/// The cgroups of the container, one in each hierarchy.
fn cgroups(host: &Containerd) -> Vec<PathBuf> {
    let below = format!("{}/a", host.namespace);
    let hierarchies = fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten();
    let mut roots: Vec<_> = hierarchies.map(|entry| entry.path()).collect();
    roots.push(PathBuf::from("/sys/fs/cgroup"));
    let places = roots.into_iter().map(|root| root.join(&below));
    places.filter(|place| place.is_dir()).collect()
}

#[test]
fn a_create_that_hangs_ends_when_its_caller_gives_up_and_leaves_nothing() {
    for verb in ["create", "after-create"] {
        let host = Containerd::start();
        let gates = Gates::new(&host);
        let shim = bare(&host);
        gates.close(verb, "a");
        let request = gates.with(shim.create_request());
        let limit = Duration::from_millis(500);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                shim.api()
                    .deadline(limit)
                    .create(&request)
                    .expect_err("the call times out")
            });
            gates.await_waiting(verb);
        });
        eventually("the runtime is gone", PATIENCE, || {
            commands(&host, "create").is_empty()
        });
        eventually("the container's cgroups are gone", PATIENCE, || {
            cgroups(&host).is_empty()
        });
        gates.open(verb);
        // The id of the container can be used again.
        eventually("the container can be created again", PATIENCE, || {
            shim.api().create(&request).is_ok()
        });
        shim.api().start("a", "").expect("Start");
    }
}

/// Makes the call for which the shim runs the OCI runtime's command `verb`.
fn ask(api: &TaskApi, verb: &str) -> Answer<Empty> {
    let id = "a".to_owned();
    match verb {
        "pause" => api.call(
            "Pause",
            &PauseRequest {
                id,
                ..PauseRequest::new()
            },
        ),
        "resume" => api.call(
            "Resume",
            &ResumeRequest {
                id,
                ..ResumeRequest::new()
            },
        ),
        "update" => api.update(&pod::resources("a", r#"{"pids":{"limit":100}}"#)),
        "kill" => api.call(
            "Kill",
            &KillRequest {
                id,
                signal: 15,
                all: true,
                ..KillRequest::new()
            },
        ),
        "exec" | "after-exec" => api.start("a", "e").map(|_| Empty::new()),
        "start" => api.start("a", "").map(|_| Empty::new()),
        other => panic!("unknown call {other}"),
    }
}

#[test]
fn a_runtime_that_hangs_at_any_command_keeps_no_container_alive() {
    for verb in [
        "start",
        "exec",
        "after-exec",
        "pause",
        "resume",
        "update",
        "kill",
    ] {
        let host = Containerd::start();
        let gates = Gates::new(&host);
        let hooks = |config: &mut Value| {
            if verb == "start" {
                add_poststart_hook(config);
            }
        };
        let shim = BareShim::start(&host, &runtime_under_test(), "a", &SLEEP, hooks);
        let api = shim.api();
        api.create(&gates.with(shim.create_request()))
            .expect("Create");
        if verb != "start" {
            api.start("a", "").expect("Start");
        }
        api.exec(&shim.exec_request("e", &SLEEP)).expect("Exec");
        if verb == "resume" {
            ask(&api, "pause").expect("Pause");
        }
        gates.close(verb, "a");
        std::thread::scope(|scope| {
            scope.spawn(|| ask(&shim.api(), verb));
            gates.await_waiting(verb);
            let killed = Instant::now();
            api.kill("a", "", 9, false).expect("Kill");
            let exit = api.wait("a", "").expect("Wait").exit_status;
            assert_eq!(exit, 137, "{verb}");
            assert!(
                killed.elapsed() < scaled(SOON),
                "{verb}: {:?}",
                killed.elapsed()
            );
            api.delete("a", "").expect("Delete");
        });
        // The shim has killed the hung command, but the deletion does not wait for the exit of the
        // command.
        eventually("the runtime is gone", PATIENCE, || {
            commands(&host, verb.trim_start_matches("after-")).is_empty()
        });
    }
}

/// The container's program has exited, so SIGKILL finds no process of the container. The shim must
/// end the hung command of the OCI runtime nevertheless.
#[test]
fn a_start_that_hangs_after_its_program_exited_ends_on_sigkill() {
    let host = Containerd::start();
    let gates = Gates::new(&host);
    let args = ["/bin/sh", "-c", ": > /shared/done; exit 3"];
    let shim = BareShim::start(&host, &runtime_under_test(), "a", &args, add_poststart_hook);
    let api = shim.api();
    let created = api.create(&gates.with(shim.create_request()));
    let init = created.expect("Create").pid;
    gates.close("after-start", "a");
    std::thread::scope(|scope| {
        let started = scope.spawn(|| shim.api().start("a", ""));
        gates.await_waiting("after-start");
        // The hung command has already started the program. On a busy machine, the program may not
        // have exited yet.
        eventually("the program has exited", PATIENCE, || {
            process_state(init).is_none_or(|state| state == 'Z')
        });
        let killed = Instant::now();
        // The container has exited already, so the call may fail.
        let _ = api.kill("a", "", 9, true);
        assert_eq!(api.wait("a", "").expect("Wait").exit_status, 3);
        assert!(killed.elapsed() < scaled(SOON), "{:?}", killed.elapsed());
        let _ = started.join();
        api.delete("a", "").expect("Delete");
    });
}

/// containerd allows ten seconds for all work after an exit.
#[test]
fn a_delete_that_hangs_is_answered_and_can_be_repeated() {
    let host = Containerd::start();
    let gates = Gates::new(&host);
    let shim = bare(&host);
    let api = shim.api();
    api.create(&gates.with(shim.create_request()))
        .expect("Create");
    api.start("a", "").expect("Start");
    gates.close("delete", "a");
    api.kill("a", "", 9, false).expect("Kill");
    assert_eq!(api.wait("a", "").expect("Wait").exit_status, 137);
    let (_, why) = api
        .delete("a", "")
        .map(|_| ())
        .expect_err("the runtime does not answer");
    assert!(
        why.contains("OCI runtime delete did not end within 8s"),
        "{why}"
    );
    gates.open("delete");
    let request = DeleteRequest {
        id: "a".to_owned(),
        ..DeleteRequest::new()
    };
    let deleted: Answer<Empty> = api.call("Delete", &request);
    deleted.expect("Delete");
}

/// systemd sets the variable `NOTIFY_SOCKET` for containerd, which sends its readiness message to
/// this socket. If the OCI runtime had the variable too, runc would mount the socket's directory
/// into the container. Each OCI runtime would also wait for a readiness message of the container's
/// program.
#[test]
fn containers_do_not_get_containerds_environment() {
    let host = Containerd::start();
    let socket = host.dir().join("notify");
    let _socket = UnixDatagram::bind(&socket).expect("a socket");
    let script = "env > /shared/env; cat /proc/self/mounts > /shared/mounts; \
                  : > /shared/done; exec sleep 1000";
    let args = ["/bin/sh", "-c", script];
    let mut shim = BareShim::prepare(&host, &runtime_under_test(), "a", &args, add_poststart_hook);
    let mut command = shim.command("start");
    command.env("NOTIFY_SOCKET", &socket);
    shim.try_start(command, &Default::default()).expect("start");
    let api = shim.api();
    api.create(&shim.create_request()).expect("Create");
    api.start("a", "").expect("Start");
    let shared = host.shared_dir();
    eventually("the program has run", PATIENCE, || {
        shared.join("done").exists()
    });
    let seen = |name: &str| fs::read_to_string(shared.join(name)).expect("a file of the container");
    assert!(!seen("env").contains("NOTIFY_SOCKET"), "{}", seen("env"));
    assert!(!seen("mounts").contains("notify"), "{}", seen("mounts"));
}

/// The settings `runAsNonRoot` and `allowPrivilegeEscalation: false` of a container also apply to
/// probes that the shim runs in the container.
#[test]
fn a_probe_has_the_programs_privileges_only() {
    let host = Containerd::start();
    fs::set_permissions(host.shared_dir(), fs::Permissions::from_mode(0o777)).expect("its mode");
    let script = "grep -E '^(Uid|Gid|CapEff|CapBnd|NoNewPrivs):' /proc/self/status > /shared/$1";
    let probe = json!({
        "exec": { "command": ["/bin/sh", "-c", script, "sh", "probe"] },
        "periodMilliseconds": 100, "failureThreshold": 200,
    });
    let own = format!("{script}; exec sleep 1000");
    let args = ["/bin/sh", "-c", &own, "sh", "program"];
    let shim = BareShim::start(&host, &runtime_under_test(), "a", &args, |config| {
        config["annotations"] = json!({
            "usher/sidecars": "a", "startup-probe.usher/a": probe.to_string(),
        });
        config["process"]["user"] = json!({ "uid": 1000, "gid": 1000 });
        config["process"]["capabilities"] = json!({});
        config["process"]["noNewPrivileges"] = json!(true);
    });
    let api = shim.api();
    api.create(&shim.create_request()).expect("Create");
    api.start("a", "").expect("Start");
    let file = |name: &str| fs::read_to_string(host.shared_dir().join(name)).unwrap_or_default();
    eventually("the probe has run", PATIENCE, || {
        file("probe").lines().count() == 5
    });
    assert_eq!(file("probe"), file("program"));
    assert!(
        file("probe").contains("NoNewPrivs:\t1"),
        "{}",
        file("probe")
    );
}

/// With cgroup v1 not even SIGKILL ends a frozen process.
#[test]
fn a_container_frozen_by_another_process_can_be_killed() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("a").args(&SLEEP));
    let pid = host.task_api("a").state("a", "").expect("State").pid;
    let of_process = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its cgroups");
    let path = |controller: &str| {
        let mut lines = of_process.lines();
        let line = lines.find(|line| line.split(':').nth(1) == Some(controller));
        line.and_then(|line| line.rsplit(':').next())
            .expect("a cgroup")
            .to_owned()
    };
    let (file, state) = match on_v2() {
        true => (format!("/sys/fs/cgroup{}/cgroup.freeze", path("")), "1"),
        false => (
            format!("/sys/fs/cgroup/freezer{}/freezer.state", path("freezer")),
            "FROZEN",
        ),
    };
    fs::write(&file, state).expect("frozen");
    eventually("the container is frozen", PATIENCE, || {
        on_v2() || fs::read_to_string(&file).is_ok_and(|state| state.trim() == "FROZEN")
    });
    host.kill("a", "SIGKILL");
    assert_eq!(host.wait_exit("a"), 137);
    assert_eq!(host.status("a"), Some(Status::Stopped));
    host.delete("a");
}
