//! The shim collects every child process and publishes the exits in order, however many happen at
//! once.

use std::fs;

use serde_json::Value;

use crate::harness::{
    BareShim, Containerd, CtrEvent, Gates, PATIENCE, TaskApi, eventually, host_pids,
    runtime_under_test, zombies,
};

fn running<'host>(
    host: &'host Containerd,
    args: &[&str],
    edit: fn(&mut Value),
) -> (BareShim<'host>, TaskApi) {
    let shim = BareShim::start(host, &runtime_under_test(), "a", args, edit);
    let api = shim.api();
    api.create(&shim.create_request()).expect("create");
    api.start("a", "").expect("start");
    (shim, api)
}

fn no_zombies_stay(shim: u32) {
    eventually("every child was collected", PATIENCE, || {
        zombies(shim).is_empty()
    });
}

/// Id and exit code of each exit event.
fn exits(events: &[CtrEvent]) -> Vec<(String, u32)> {
    let exits = events.iter().filter(|event| event.topic == "/tasks/exit");
    let id = |event: &CtrEvent| event.data["id"].as_str().unwrap_or_default().to_owned();
    exits
        .map(|event| (id(event), event.exit_status()))
        .collect()
}

fn the_exits_of_execs_come_before_their_inits(edit: fn(&mut Value)) {
    let host = Containerd::start();
    let (shim, api) = running(&host, &["/bin/sleep", "1000"], edit);
    let ids: Vec<String> = (0..20).map(|number| format!("e{number}")).collect();
    for id in &ids {
        api.exec(&shim.exec_request(id, &["/bin/sleep", "1000"]))
            .expect("exec");
        api.start("a", id).expect("start of an exec");
    }
    api.kill("a", "", 9, false).expect("kill");
    assert_eq!(api.wait("a", "").expect("wait").exit_status, 137);
    host.await_events("the container has exited", |events| {
        exits(events).iter().any(|(id, _)| id == "a")
    });
    let mut seen = exits(&host.events());
    assert_eq!(seen.pop(), Some(("a".to_owned(), 137)));
    seen.sort();
    let mut expected: Vec<_> = ids.into_iter().map(|id| (id, 137)).collect();
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn exec_exits_are_published_before_their_containers_exit() {
    the_exits_of_execs_come_before_their_inits(|_| ());
}

#[test]
fn exec_exits_are_published_before_the_exit_of_a_container_without_pid_namespace() {
    the_exits_of_execs_come_before_their_inits(host_pids);
}

/// Shell code that starts 600 programs. The parent of each program exits at once, so that the
/// program becomes a child of the shim.
const ORPHANS: &str =
    "n=0; while test $n -lt 300; do (/bin/true & (sleep 0.2 &)); n=$((n+1)); done";

#[test]
fn hundreds_of_orphans_are_collected() {
    let host = Containerd::start();
    let script = format!("{ORPHANS}; /bin/witness mark a done; exec sleep 1000");
    let (shim, api) = running(&host, &["/bin/sh", "-c", &script], host_pids);
    let pid = api.connect("a").expect("connect").shim_pid;
    host.await_event("a", "done");
    no_zombies_stay(pid);
    // An exec starts the same number of orphans as the container's init, while other execs start
    // and exit.
    api.exec(&shim.exec_request("many", &["/bin/sh", "-c", ORPHANS]))
        .expect("exec");
    api.start("a", "many").expect("start of an exec");
    for number in 0..10_u32 {
        let (id, script) = (format!("e{number}"), format!("exit {number}"));
        api.exec(&shim.exec_request(&id, &["/bin/sh", "-c", &script]))
            .expect("exec");
        api.start("a", &id).expect("start of an exec");
        assert_eq!(api.wait("a", &id).expect("wait").exit_status, number);
    }
    assert_eq!(api.wait("a", "many").expect("wait").exit_status, 0);
    eventually("only init is left", PATIENCE, || {
        api.pids("a").expect("pids").processes.len() == 1
    });
    no_zombies_stay(pid);
    // Exits of orphans cause no events.
    host.await_events("all execs have ended", |events| exits(events).len() >= 11);
    assert_eq!(exits(&host.events()).len(), 11);
}

#[test]
fn concurrent_short_execs_start_before_they_exit() {
    const SIDE_BY_SIDE: usize = 4;
    const EACH: usize = 40;
    let host = Containerd::start();
    let (shim, api) = running(&host, &["/bin/sleep", "1000"], |_| ());
    std::thread::scope(|scope| {
        for worker in 0..SIDE_BY_SIDE {
            let api = shim.api();
            let shim = &shim;
            scope.spawn(move || {
                for number in 0..EACH {
                    let id = format!("e{worker}-{number}");
                    let script = format!("exit {}", number % 100);
                    api.exec(&shim.exec_request(&id, &["/bin/sh", "-c", &script]))
                        .expect("exec");
                    api.start("a", &id).expect("start of an exec");
                    let exit = api.wait("a", &id).expect("wait").exit_status;
                    assert_eq!(exit as usize, number % 100, "{id}");
                    api.delete("a", &id).expect("delete of an exec");
                }
            });
        }
    });
    let total = SIDE_BY_SIDE * EACH;
    host.await_events("all have exited", |events| exits(events).len() == total);
    let events = host.events();
    let name = |event: &CtrEvent| {
        let id = event.data["exec_id"].as_str().or(event.data["id"].as_str());
        id.unwrap_or_default().to_owned()
    };
    for worker in 0..SIDE_BY_SIDE {
        for number in 0..EACH {
            let id = format!("e{worker}-{number}");
            let own = events.iter().filter(|event| name(event) == id);
            let topics: Vec<_> = own.map(|event| event.topic.as_str()).collect();
            let expected = ["/tasks/exec-added", "/tasks/exec-started", "/tasks/exit"];
            assert_eq!(topics, expected, "{id}");
        }
    }
    no_zombies_stay(api.connect("a").expect("connect").shim_pid);
}

#[test]
fn concurrent_short_containers_start_before_they_exit() {
    const SIDE_BY_SIDE: usize = 4;
    const EACH: usize = 10;
    let host = Containerd::start();
    let in_pod = |config: &mut Value| {
        config["annotations"] = serde_json::json!({ "io.kubernetes.cri.sandbox-id": "pod1" });
    };
    let keeper = BareShim::start(
        &host,
        &runtime_under_test(),
        "a",
        &["/bin/sleep", "1000"],
        in_pod,
    );
    let api = keeper.api();
    api.create(&keeper.create_request()).expect("create");
    api.start("a", "").expect("start");
    std::thread::scope(|scope| {
        for worker in 0..SIDE_BY_SIDE {
            let host = &host;
            scope.spawn(move || {
                for number in 0..EACH {
                    let id = format!("c{worker}-{number}");
                    let args = ["/bin/sh", "-c", &format!("exit {number}")];
                    let shim = BareShim::start(host, &runtime_under_test(), &id, &args, in_pod);
                    let api = shim.api().deadline(3 * PATIENCE);
                    api.create(&shim.create_request()).expect("create");
                    api.start(&id, "").expect("start");
                    let exit = api.wait(&id, "").expect("wait").exit_status;
                    assert_eq!(exit as usize, number, "{id}");
                    api.delete(&id, "").expect("delete");
                }
            });
        }
    });
    host.await_events("all are deleted", |events| {
        let deleted = events.iter().filter(|event| event.topic == "/tasks/delete");
        deleted.count() == SIDE_BY_SIDE * EACH
    });
    for worker in 0..SIDE_BY_SIDE {
        for number in 0..EACH {
            let expected = [
                "/tasks/create".to_owned(),
                "/tasks/start".to_owned(),
                format!("/tasks/exit {number}"),
                format!("/tasks/delete {number}"),
            ];
            assert_eq!(host.topics(&format!("c{worker}-{number}")), expected);
        }
    }
    no_zombies_stay(api.connect("a").expect("connect").shim_pid);
}

#[test]
fn the_exit_of_a_short_exec_survives_thousands_of_exits_of_orphans() {
    let host = Containerd::start();
    let storm = "while ! test -e /shared/go; do sleep 0.05; done; \
                 n=0; while test $n -lt 1500; do (: &); n=$((n+1)); done; \
                 /bin/witness mark a done; exec sleep 1000";
    let args = ["/bin/sh", "-c", storm];
    let shim = BareShim::start(&host, &runtime_under_test(), "a", &args, host_pids);
    let gates = Gates::new(&host);
    let api = shim.api();
    api.create(&gates.with(shim.create_request()))
        .expect("create");
    api.start("a", "").expect("start");
    api.exec(&shim.exec_request("quick", &["/bin/sh", "-c", "exit 7"]))
        .expect("exec");
    // The OCI runtime reports the exec's process id only after very many other processes have
    // exited.
    gates.close("after-exec", "a");
    std::thread::scope(|scope| {
        let start = scope.spawn(|| shim.api().deadline(3 * PATIENCE).start("a", "quick"));
        gates.await_waiting("after-exec");
        std::fs::write(host.shared_dir().join("go"), "").expect("the sign");
        host.await_event("a", "done");
        gates.open("after-exec");
        start.join().expect("no panic").expect("start of an exec");
    });
    assert_eq!(api.wait("a", "quick").expect("wait").exit_status, 7);
}

/// Child processes inherit the signal mask. If the shim blocked a signal, its containers would
/// block the signal too.
#[test]
fn containers_start_without_ignored_or_blocked_signals() {
    let host = Containerd::start();
    let says =
        "grep -E '^Sig(Blk|Ign):' /proc/self/status > /shared/$0.new; mv /shared/$0.new /shared/$0";
    let first = format!("{says}; exec sleep 1000");
    let args = ["/bin/sh", "-c", &first, "first"];
    let (shim, api) = running(&host, &args, |_| ());
    let second = ["/bin/sh", "-c", says, "second"];
    api.exec(&shim.exec_request("e", &second)).expect("Exec");
    api.start("a", "e").expect("Start of an exec");
    for name in ["first", "second"] {
        let file = host.shared_dir().join(name);
        eventually(&format!("{name} prints its masks"), PATIENCE, || {
            file.exists()
        });
        let said = fs::read_to_string(file).expect("the printed masks");
        let none = "0000000000000000";
        assert_eq!(
            said,
            format!("SigBlk:\t{none}\nSigIgn:\t{none}\n"),
            "{name}"
        );
    }
}
