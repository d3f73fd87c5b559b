//! Exit codes and exit events of containers.

use super::{both, run_witness, script, witness};
use crate::harness::{ContainerSpec, PATIENCE, Status, Version, eventually, words_for_missing};

/// Options of `ctr` that put the container into the host's PID namespace. The container's program
/// then is not process 1, so a signal without a handler kills the program.
const HOST_PIDS: &[&str] = &["--with-ns", "pid:/proc/self/ns/pid"];

#[test]
fn exit_codes_of_programs_are_reported() {
    let codes = both(|host, runtime| {
        [0, 1, 3, 127, 255].map(|code| {
            let id = format!("exit-{code}");
            let finished = host.run_attached(&script(runtime, &id, &format!("exit {code}")));
            if host.is_reference() && !Version::of_containerd().tells_every_exit() {
                return (finished.code, code);
            }
            (finished.code, host.wait_exit(&id))
        })
    });
    let expected = [0, 1, 3, 127, 255].map(|code| (Some(code), code as u32));
    assert_eq!(codes, expected);
}

#[test]
fn a_death_by_signal_reports_128_plus_the_signal() {
    let codes = both(|host, runtime| {
        ["SIGTERM", "SIGKILL", "SIGSEGV"].map(|signal| {
            let id = signal.to_lowercase();
            let spec = script(runtime, &id, "echo > /shared/up; exec sleep 1000");
            let up = host.shared_dir().join("up");
            host.run(&spec.option(HOST_PIDS));
            eventually("the container runs", PATIENCE, || up.exists());
            std::fs::remove_file(&up).expect("remove the sign");
            host.kill(&id, signal);
            host.wait_exit(&id)
        })
    });
    assert_eq!(codes, [143, 137, 139]);
}

#[test]
fn signals_reach_the_program() {
    let seen = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &["--exit", "7"]));
        for signal in ["SIGHUP", "SIGUSR1", "SIGTERM"] {
            host.kill("a", signal);
        }
        let code = host.wait_exit("a");
        let record = host.record();
        let signals: Vec<String> = record
            .all("a", "signal")
            .map(|e| e.detail.clone())
            .collect();
        (code, signals)
    });
    assert_eq!(
        seen,
        (7, vec!["1".to_owned(), "10".to_owned(), "15".to_owned()])
    );
}

#[test]
fn kill_all_reaches_every_process() {
    let code = both(|host, runtime| {
        host.run(&script(
            runtime,
            "a",
            "sleep 1000 & sleep 1000 & wait; wait; exit 5",
        ));
        eventually("three processes run", PATIENCE, || {
            host.pids("a").len() == 3
        });
        // The shell is process 1 of its PID namespace and has no handler for SIGTERM, so the kernel
        // drops the signal.
        host.must(&["tasks", "kill", "--all", "--signal", "SIGTERM", "a"]);
        host.wait_exit("a")
    });
    assert_eq!(code, 5);
}

#[test]
fn child_processes_without_a_pid_namespace_end_with_their_container() {
    let seen = both(|host, runtime| {
        // If a container exits before Start is answered, containerd's own shim of containerd 1.7
        // and 2.x does not kill the other processes. So under that shim, the container exits only
        // when a file exists.
        let first = if host.is_reference() {
            "until test -e /shared/go; do sleep 0.01; done"
        } else {
            ":"
        };
        let script = format!("sleep 1000 & echo $! > /shared/child; {first}; exit 4");
        host.run(&self::script(runtime, "a", &script).option(HOST_PIDS));
        std::fs::write(host.shared_dir().join("go"), "").expect("the sign to go on");
        let code = host.wait_exit("a");
        let child = std::fs::read_to_string(host.shared_dir().join("child")).expect("a PID");
        let program = format!("/proc/{}/exe", child.trim());
        eventually("the child has ended", PATIENCE, || {
            std::fs::read_link(&program).is_err()
        });
        code
    });
    assert_eq!(seen, 4);
}

#[test]
fn events_arrive_in_order_with_one_exit_status() {
    let topics = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &["--exit", "9"]));
        host.kill("a", "SIGTERM");
        host.wait_exit("a");
        host.delete("a");
        host.await_events("the container was deleted", |events| {
            events.iter().any(|e| e.topic == "/containers/delete")
        });
        let events = host.events();
        let tasks = events.iter().filter(|e| e.topic.starts_with("/tasks/"));
        assert!(
            tasks.is_sorted_by_key(|e| e.at_ns),
            "by their own times as well"
        );
        host.topics("a")
    });
    let expected = [
        "/containers/create",
        "/tasks/create",
        "/tasks/start",
        "/tasks/exit 9",
        "/tasks/delete 9",
        "/containers/delete",
    ];
    assert_eq!(topics, expected);
}

#[test]
fn a_very_short_program_starts_before_it_exits() {
    let topics = both(|host, runtime| {
        (0..10)
            .map(|n| {
                let id = format!("short-{n}");
                host.run(
                    &ContainerSpec::new(&id)
                        .runtime(runtime)
                        .args(&["/bin/true"]),
                );
                host.wait_exit(&id);
                host.topics(&id)
            })
            .collect::<Vec<_>>()
    });
    let expected = [
        "/containers/create",
        "/tasks/create",
        "/tasks/start",
        "/tasks/exit 0",
    ];
    assert!(
        topics.iter().all(|topics| *topics == expected),
        "{topics:?}"
    );
}

#[test]
fn a_program_that_does_not_exist_is_refused_and_leaves_nothing() {
    let seen = both(|host, runtime| {
        let spec = ContainerSpec::new("a")
            .runtime(runtime)
            .args(&["/bin/nope"]);
        let finished = host.try_run(&spec);
        let named = finished.err().contains(&words_for_missing("/bin/nope"));
        assert!(named, "the refusal names the reason: {}", finished.err());
        eventually("nothing remains", PATIENCE, || host.remains().is_empty());
        (finished.ok(), host.status("a"))
    });
    assert_eq!(seen, (false, None));
}

#[test]
fn a_stopped_task_stays_stopped_until_its_deletion() {
    let seen = both(|host, runtime| {
        host.run(&script(runtime, "a", "exit 0"));
        host.wait_exit("a");
        host.await_status("a", Some(Status::Stopped));
        let kill = host.ctr(&["tasks", "kill", "a"]);
        let refused = kill.err().contains("not found");
        host.delete("a");
        (refused, host.status("a"))
    });
    assert_eq!(seen, (true, None));
}
