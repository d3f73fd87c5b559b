//! Calls for a running task.

use super::{both, run_witness, script, witness};
use crate::harness::{ContainerSpec, PATIENCE, Status, eventually};

#[test]
fn a_paused_container_does_nothing() {
    let seen = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &["--beat", "10ms"]));
        host.await_event("a", "beat");
        host.must(&["tasks", "pause", "a"]);
        let paused = host.status("a");
        let before = host.record().all("a", "beat").count();
        std::thread::sleep(std::time::Duration::from_millis(200));
        let while_paused = host.record().all("a", "beat").count() - before;
        host.must(&["tasks", "resume", "a"]);
        host.await_record("the container beats again", |r| {
            r.all("a", "beat").count() > before
        });
        (paused, while_paused, host.status("a"))
    });
    assert_eq!(seen, (Some(Status::Paused), 0, Some(Status::Running)));
}

#[test]
fn pause_and_resume_publish_events() {
    let topics = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &[]));
        host.must(&["tasks", "pause", "a"]);
        host.must(&["tasks", "resume", "a"]);
        host.await_events("the container was resumed", |events| {
            events.iter().any(|e| e.topic == "/tasks/resumed")
        });
        host.topics("a")[3..].to_vec()
    });
    assert_eq!(topics, ["/tasks/paused", "/tasks/resumed"]);
}

#[test]
fn all_processes_are_listed() {
    let count = both(|host, runtime| {
        host.run(&script(runtime, "a", "sleep 1000 & sleep 1000 & wait"));
        eventually("three processes run", PATIENCE, || {
            host.pids("a").len() == 3
        });
        let task = host
            .tasks()
            .into_iter()
            .find(|task| task.id == "a")
            .expect("the task");
        let pids = host.pids("a");
        assert!(
            pids.iter().any(|(pid, _)| *pid == task.pid),
            "{task:?} among {pids:?}"
        );
        pids.len()
    });
    assert_eq!(count, 3);
}

#[test]
fn metrics_count_memory_processor_and_processes() {
    let keys = both(|host, runtime| {
        let limit = ["--memory-limit", "67108864"];
        run_witness(
            host,
            &witness(runtime, "a", &["--beat", "5ms"]).option(&limit),
        );
        host.await_record("the container beats", |r| r.all("a", "beat").count() > 5);
        let metrics = host.metrics("a");
        let v1 = [
            ("memory used", "/memory/usage/usage"),
            ("memory limit", "/memory/usage/limit"),
            ("processor time", "/cpu/usage/total"),
            ("processes", "/pids/current"),
        ];
        let v2 = [
            ("memory used", "/memory/usage"),
            ("memory limit", "/memory/usage_limit"),
            ("processor time", "/cpu/usage_usec"),
            ("processes", "/pids/current"),
        ];
        let paths = if metrics.pointer(v1[0].1).is_some() {
            v1
        } else {
            v2
        };
        let value = |path| metrics.pointer(path).and_then(serde_json::Value::as_u64);
        assert_eq!(value(paths[1].1), Some(67_108_864), "{metrics}");
        assert_eq!(value(paths[3].1), Some(1), "{metrics}");
        let counted =
            |(name, path): (&'static str, _)| value(path).is_some_and(|n| n > 0).then_some(name);
        paths.into_iter().filter_map(counted).collect::<Vec<_>>()
    });
    assert_eq!(
        keys,
        ["memory used", "memory limit", "processor time", "processes"]
    );
}

#[test]
fn a_running_task_cannot_be_deleted() {
    let seen = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &[]));
        let delete = host.ctr(&["tasks", "delete", "a"]);
        (delete.ok(), host.status("a"))
    });
    assert_eq!(seen, (false, Some(Status::Running)));
}

#[test]
fn a_second_task_of_a_container_is_refused_and_the_first_continues() {
    let seen = both(|host, runtime| {
        host.create(&witness(runtime, "a", &[]));
        let first = host.try_start("a");
        assert!(first.ok(), "{}", first.err());
        let second = host.try_start("a");
        host.kill("a", "SIGTERM");
        (
            second.ok(),
            second.err().contains("already exists"),
            host.wait_exit("a"),
        )
    });
    assert_eq!(seen, (false, true, 0));
}

#[test]
fn a_container_can_have_a_task_again() {
    let codes = both(|host, runtime| {
        host.create(
            &ContainerSpec::new("a")
                .runtime(runtime)
                .args(&["/bin/false"]),
        );
        [(); 2].map(|()| {
            let start = host.try_start("a");
            assert!(start.ok(), "{}", start.err());
            let code = host.wait_exit("a");
            host.await_status("a", Some(Status::Stopped));
            host.ctr(&["tasks", "delete", "a"]);
            host.await_status("a", None);
            code
        })
    });
    assert_eq!(codes, [1, 1]);
}

#[test]
fn unknown_tasks_are_not_found() {
    let found = both(|host, runtime| {
        // The shim of another container runs, and does not know this task.
        run_witness(host, &witness(runtime, "a", &[]));
        host.create(&witness(runtime, "b", &[]));
        [
            &["tasks", "kill", "b"][..],
            &["tasks", "pause", "b"],
            &["tasks", "ps", "b"],
            &["tasks", "metrics", "b"],
        ]
        .map(|command| host.ctr(command).err().contains("not found"))
    });
    assert_eq!(found, [true; 4]);
}

#[test]
fn a_container_removed_at_its_exit_leaves_nothing() {
    let seen = both(|host, runtime| {
        let spec = script(runtime, "a", "echo hello").option(&["--rm"]);
        let finished = host.run_attached(&spec);
        eventually("nothing remains", PATIENCE, || host.remains().is_empty());
        (
            finished.code,
            finished.out(),
            host.must(&["containers", "list", "--quiet"]),
        )
    });
    assert_eq!(seen, (Some(0), "hello\n".to_owned(), String::new()));
}
