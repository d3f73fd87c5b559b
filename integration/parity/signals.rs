//! Signals, and which processes get them.

use std::time::Duration;

use serde_json::{Value, json};

use super::api::{bare, outcome};
use super::both;
use crate::harness::{BareShim, Containerd, PATIENCE, TaskApi, eventually, host_pids, move_below};

fn start<'a>(
    host: &'a Containerd,
    runtime: &str,
    args: &[&str],
    edit: fn(&mut Value),
) -> (BareShim<'a>, TaskApi) {
    let shim = BareShim::start(host, runtime, "a", args, edit);
    let api = shim.api();
    api.create(&shim.create_request()).expect("Create");
    api.start("a", "").expect("Start");
    (shim, api)
}

/// Waits until a process runs `sleep`. When containerd's own shim answers Start, the process may
/// still run code of runc, which handles signals in another way.
fn await_sleep(host: &Containerd, pid: u32) {
    if !host.is_reference() {
        return;
    }
    let name = format!("/proc/{pid}/comm");
    eventually("the program is executed", PATIENCE, || {
        std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep")
    });
}

/// A script that starts two processes and writes their process ids to files. One of the processes
/// has a new session.
const FAMILY: &str =
    "sleep 1001 & echo $! > /shared/one; setsid sleep 1002 & echo $! > /shared/two";

/// The process ids of the processes that [`FAMILY`] starts.
fn family(host: &Containerd) -> Vec<u32> {
    let mut pids = Vec::new();
    for name in ["one", "two"] {
        let file = host.shared_dir().join(name);
        eventually("the process was started", PATIENCE, || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            text.trim().parse().map(|pid| pids.push(pid)).is_ok()
        });
    }
    pids
}

fn await_gone(pids: &[u32]) {
    for pid in pids {
        let program = format!("/proc/{pid}/exe");
        eventually("the process is gone", PATIENCE, || {
            std::fs::read_link(&program).is_err()
        });
    }
}

#[test]
fn signals_are_sent_by_number() {
    let seen = both(|host, runtime| {
        let codes = [1, 10, 31, 34, 37, 63, 64].map(|number| {
            let id = format!("s{number}");
            let shim = BareShim::start(host, runtime, &id, &["/bin/sleep", "1000"], host_pids);
            let api = shim.api();
            api.create(&shim.create_request()).expect("Create");
            await_sleep(host, api.start(&id, "").expect("Start").pid);
            api.kill(&id, "", number, false).expect("Kill");
            api.wait(&id, "").expect("Wait").exit_status
        });
        let (shim, api) = start(host, runtime, &["/bin/sleep", "1000"], host_pids);
        api.exec(&shim.exec_request("e", &["/bin/sleep", "1000"]))
            .expect("Exec");
        await_sleep(host, api.start("a", "e").expect("Start of an exec").pid);
        let outcomes = [0, 65, 1000].map(|number| {
            let init = outcome(api.kill("a", "", number, false));
            (init, outcome(api.kill("a", "e", number, false)))
        });
        api.kill("a", "e", 35, false).expect("Kill an exec");
        let code = api.wait("a", "e").expect("Wait").exit_status;
        (codes, outcomes, code)
    });
    let codes = [129, 138, 159, 162, 165, 191, 192];
    let outcomes = [
        ("done", "done"),
        ("refused", "refused"),
        ("refused", "refused"),
    ];
    assert_eq!(seen, (codes, outcomes, 163));
}

#[test]
fn a_real_time_signal_reaches_all_processes() {
    let code = both(|host, runtime| {
        let script = "sleep 1001 & sleep 1002 & wait; wait; exit 5";
        let (_shim, api) = start(host, runtime, &["/bin/sh", "-c", script], |_| ());
        let count = || api.pids("a").expect("Pids").processes.len();
        eventually("three processes run", PATIENCE, || count() == 3);
        // The shell is process 1 of its PID namespace and has no handler for this signal, so the
        // kernel drops the signal.
        api.kill("a", "", 40, true).expect("Kill");
        api.wait("a", "").expect("Wait").exit_status
    });
    assert_eq!(code, 5);
}

#[test]
fn all_processes_of_a_pid_namespace_end_with_its_killed_init() {
    let code = both(|host, runtime| {
        let script = "setsid sleep 1001 & (setsid sleep 1002 &) ; sleep 1000";
        let (_shim, api) = start(host, runtime, &["/bin/sh", "-c", script], |_| ());
        let pids = || -> Vec<u32> {
            let pids = api.pids("a").expect("Pids").processes;
            pids.iter().map(|process| process.pid).collect()
        };
        eventually("all processes run", PATIENCE, || pids().len() >= 3);
        let pids = pids();
        api.kill("a", "", 9, false).expect("Kill");
        let code = api.wait("a", "").expect("Wait").exit_status;
        await_gone(&pids);
        code
    });
    assert_eq!(code, 137);
}

/// Makes the first process of a container without a PID namespace exit. Checks that the shim then
/// ends all other processes at once and publishes the exits of execs.
fn run_until_init_ends(edit: fn(&mut Value), script: &str, end: fn(&TaskApi)) -> (u32, u32) {
    both(|host, runtime| {
        let args = ["/bin/sh", "-c", &format!("{FAMILY}; {script}")];
        let (shim, api) = start(host, runtime, &args, edit);
        let pids = family(host);
        api.exec(&shim.exec_request("e", &["/bin/sleep", "1003"]))
            .expect("Exec");
        api.start("a", "e").expect("Start of an exec");
        end(&api);
        std::fs::write(host.shared_dir().join("end"), "").expect("a sign");
        let code = api.wait("a", "").expect("Wait").exit_status;
        let exec = api.wait("a", "e").expect("Wait").exit_status;
        await_gone(&pids);
        host.await_events("both exits were published", |events| {
            events.iter().filter(|e| e.topic == "/tasks/exit").count() == 2
        });
        api.delete("a", "").expect("Delete");
        (code, exec)
    })
}

const UNTIL_TOLD: &str = "while ! test -e /shared/end; do sleep 0.05; done; exit 4";

#[test]
fn without_a_pid_namespace_all_processes_end_with_a_killed_init() {
    let kill = |api: &TaskApi| drop(api.kill("a", "", 9, false).expect("Kill"));
    let seen = run_until_init_ends(host_pids, "sleep 1000", kill);
    assert_eq!(seen, (137, 137));
}

#[test]
fn without_a_pid_namespace_all_processes_end_with_an_init_that_exits() {
    let seen = run_until_init_ends(host_pids, UNTIL_TOLD, |_| ());
    assert_eq!(seen, (4, 137));
}

#[test]
fn without_a_pid_namespace_all_processes_end_even_in_cgroups_below() {
    let move_all = |api: &TaskApi| {
        // The script's short `sleep` may have ended meanwhile.
        let processes = api.pids("a").expect("Pids").processes;
        let moved = processes.iter().filter(|process| move_below(process.pid));
        assert!(moved.count() >= 4, "init, what it started, an exec");
    };
    let seen = run_until_init_ends(host_pids, UNTIL_TOLD, move_all);
    assert_eq!(seen, (4, 137));
}

#[test]
fn in_a_shared_pid_namespace_a_containers_processes_end_with_its_init() {
    let seen = both(|host, runtime| {
        let first = bare(host, runtime, &["/bin/sleep", "1000"]);
        let api = first.api();
        api.create(&first.create_request()).expect("Create");
        let pid = api.start("a", "").expect("Start").pid;
        let args = ["/bin/sh", "-c", &format!("{FAMILY}; sleep 1000")];
        let second = BareShim::start(host, runtime, "b", &args, |config| {
            let namespaces = config["linux"]["namespaces"].as_array_mut();
            for namespace in namespaces.expect("a list") {
                if namespace["type"] == "pid" {
                    namespace["path"] = json!(format!("/proc/{pid}/ns/pid"));
                }
            }
        });
        let b = second.api();
        b.create(&second.create_request()).expect("Create");
        b.start("b", "").expect("Start");
        // The files contain process ids of the pod's PID namespace. The ids outside of this
        // namespace are in the shim's answer.
        family(host);
        let count = || b.pids("b").expect("Pids").processes.len();
        eventually("all processes run", PATIENCE, || count() >= 3);
        let pids: Vec<u32> = b
            .pids("b")
            .expect("Pids")
            .processes
            .iter()
            .map(|p| p.pid)
            .collect();
        b.kill("b", "", 9, false).expect("Kill");
        let code = b.wait("b", "").expect("Wait").exit_status;
        await_gone(&pids);
        let deleted = outcome(b.delete("b", ""));
        (
            code,
            deleted,
            format!("{:?}", api.state("a", "").expect("State").status),
        )
    });
    assert_eq!(seen, (137, "done", "RUNNING".to_owned()));
}

#[test]
fn without_a_pid_namespace_execs_of_a_created_container_end_with_its_delete() {
    let seen = both(|host, runtime| {
        let args = ["/bin/sleep", "1000"];
        let shim = BareShim::start(host, runtime, "a", &args, host_pids);
        let api = shim.api();
        api.create(&shim.create_request()).expect("Create");
        let exec = ["/bin/sh", "-c", &format!("{FAMILY}; sleep 1003")];
        api.exec(&shim.exec_request("e", &exec)).expect("Exec");
        api.start("a", "e").expect("Start of an exec");
        let pids = family(host);
        let deleted = outcome(shim.api().deadline(Duration::from_secs(15)).delete("a", ""));
        await_gone(&pids);
        deleted
    });
    assert_eq!(seen, "done");
}
