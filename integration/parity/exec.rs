//! Programs executed in a running container (execs).

use super::{both, run_witness, script, witness};
use crate::harness::{PATIENCE, Status, words_for_missing};

#[test]
fn an_exec_reports_its_output_and_exit_code() {
    let seen = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &[]));
        let finished = host.exec("a", &["/bin/sh", "-c", "echo out; echo err >&2; exit 7"]);
        let error = finished.err().lines().next().map(str::to_owned);
        (finished.code, finished.out(), error, host.status("a"))
    });
    let expected = (
        Some(7),
        "out\n".to_owned(),
        Some("err".to_owned()),
        Some(Status::Running),
    );
    assert_eq!(seen, expected);
}

#[test]
fn an_exec_runs_in_the_container() {
    let seen = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &[]));
        host.exec("a", &["/bin/witness", "mark", "b", "here", "it is"]);
        let record = host.record();
        (
            record.first("b", "here").map(|e| e.detail.clone()),
            host.exec("a", &["/bin/ls", "/"]).out(),
        )
    });
    assert_eq!(seen.0.as_deref(), Some("it is"));
    assert!(seen.1.contains("shared"), "{}", seen.1);
}

#[test]
fn execs_publish_their_events() {
    let topics = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &[]));
        host.spawn_exec("a", "one", &["/bin/sh", "-c", "exit 7"])
            .finish(PATIENCE);
        host.await_events("the program has exited", |events| {
            events.iter().any(|e| e.topic == "/tasks/exit")
        });
        host.events()
            .iter()
            .filter(|e| !e.is_init())
            .map(|e| {
                let id = e.data["exec_id"].as_str().or(e.data["id"].as_str());
                (e.topic.clone(), id.map(str::to_owned), e.exit_status())
            })
            .collect::<Vec<_>>()
    });
    let one = Some("one".to_owned());
    let expected = [
        ("/tasks/exec-added".to_owned(), one.clone(), 0),
        ("/tasks/exec-started".to_owned(), one.clone(), 0),
        ("/tasks/exit".to_owned(), one, 7),
    ];
    assert_eq!(topics, expected);
}

#[test]
fn an_exec_is_listed_and_can_be_killed() {
    let seen = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &[]));
        let exec = host.spawn_exec("a", "sleeper", &["/bin/sleep", "1000"]);
        host.await_exec("a", "sleeper");
        let listed = host.pids("a");
        host.must(&[
            "tasks",
            "kill",
            "--exec-id",
            "sleeper",
            "--signal",
            "SIGKILL",
            "a",
        ]);
        let code = exec.finish(PATIENCE).code;
        let ids: Vec<Option<String>> = listed.into_iter().map(|(_, exec_id)| exec_id).collect();
        (code, ids, host.pids("a").len(), host.status("a"))
    });
    let ids = vec![None, Some("sleeper".to_owned())];
    assert_eq!(seen, (Some(137), ids, 1, Some(Status::Running)));
}

#[test]
fn concurrent_execs_keep_their_own_exit_codes() {
    let codes = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &[]));
        let start = |n: usize| {
            let script = format!("echo {n}; exit {n}");
            host.spawn_exec("a", &format!("e{n}"), &["/bin/sh", "-c", &script])
        };
        let running: Vec<_> = (0..8).map(start).collect();
        let finished = running.into_iter().map(|exec| exec.finish(PATIENCE));
        finished.map(|f| (f.code, f.out())).collect::<Vec<_>>()
    });
    assert_eq!(
        codes,
        (0..8)
            .map(|n| (Some(n), format!("{n}\n")))
            .collect::<Vec<_>>()
    );
}

#[test]
fn a_program_that_does_not_exist_is_refused() {
    let seen = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &[]));
        let finished = host.exec("a", &["/bin/nope"]);
        let named = finished.err().contains(&words_for_missing("/bin/nope"));
        assert!(named, "the refusal names the reason: {}", finished.err());
        (finished.ok(), host.status("a"))
    });
    assert_eq!(seen, (false, Some(Status::Running)));
}

#[test]
fn an_exec_ends_with_its_container() {
    let seen = both(|host, runtime| {
        host.run(&script(runtime, "a", "sleep 1000"));
        let exec = host.spawn_exec("a", "sleeper", &["/bin/sleep", "1000"]);
        host.await_exec("a", "sleeper");
        host.kill("a", "SIGKILL");
        (host.wait_exit("a"), exec.finish(PATIENCE).code)
    });
    assert_eq!(seen, (137, Some(137)));
}
