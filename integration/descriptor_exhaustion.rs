//! A shim that runs out of file descriptors says so, idles, and continues when descriptors are free
//! again.

use std::fs;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use containerd_shim_protos::api::{Empty, PauseRequest};
use serde_json::{Value, json};

use crate::harness::{
    Answer, BareShim, Containerd, Gates, PATIENCE, TaskApi, eventually, host_pids, processor_ticks,
    run, runtime_under_test, zombies,
};

/// Time for which the test measures the shim's CPU time. The shim may use a fifth of one CPU
/// meanwhile, which is 40 ticks of 10 ms.
const WATCHED: Duration = Duration::from_secs(2);
const TICKS_AT_MOST: u64 = 40;

const SLEEP: [&str; 2] = ["/bin/sleep", "1000"];

/// A shim with a limited number of file descriptors.
struct Scarce<'host> {
    host: &'host Containerd,
    shim: BareShim<'host>,
    api: TaskApi,
    pid: u32,
}

impl<'host> Scarce<'host> {
    fn new(host: &'host Containerd, args: &[&str], edit: fn(&mut Value)) -> Self {
        let shim = BareShim::start(host, &runtime_under_test(), "a", args, edit);
        let api = shim.api();
        api.create(&shim.create_request()).expect("create");
        api.start("a", "").expect("start");
        let pid = api.connect("a").expect("connect").shim_pid;
        // The shim uses a connection of its own to deliver an event; wait until this connection is
        // closed.
        host.await_events("the container was started", |events| {
            events.iter().any(|event| event.topic == "/tasks/start")
        });
        Self {
            host,
            shim,
            api,
            pid,
        }
    }

    /// Limits the shim to `spare` more descriptors.
    fn leave(&self, spare: usize) {
        let is_free =
            |number: &usize| !fs::exists(format!("/proc/{}/fd/{number}", self.pid)).unwrap_or(true);
        // The kernel limits the descriptor numbers, and not the count of descriptors. So leave
        // exactly `spare` free numbers below the limit.
        let first_too_high = (0..).filter(is_free).nth(spare).expect("a number");
        self.limit(first_too_high);
    }

    fn lift_limit(&self) {
        self.limit(1024);
    }

    fn limit(&self, descriptors: usize) {
        let mut prlimit = Command::new("prlimit");
        prlimit.arg(format!("--pid={}", self.pid));
        prlimit.arg(format!("--nofile={descriptors}:"));
        let finished = run(prlimit, PATIENCE);
        assert!(finished.ok(), "prlimit: {}", finished.err());
    }

    fn ticks(&self) -> u64 {
        processor_ticks(self.pid)
    }

    /// Connects while the shim has no descriptor to accept with.
    fn connect(&self) -> UnixStream {
        let address = self.shim.address.trim_start_matches("unix://");
        let path = address.replacen(
            "/run/containerd",
            &self.host.dir().join("run").display().to_string(),
            1,
        );
        UnixStream::connect(path).expect("the socket takes one more")
    }

    fn execute(&self, id: &str) -> Answer<u32> {
        self.api.exec(&self.shim.exec_request(id, &["/bin/true"]))?;
        self.api.start("a", id)?;
        Ok(self.api.wait("a", id)?.exit_status)
    }

    /// Checks that the shim answers a new caller and collects all of its child processes.
    #[track_caller]
    fn check_all_works(&self) {
        let api = self.shim.api();
        assert_eq!(
            format!("{:?}", api.state("a", "").expect("state").status),
            "RUNNING"
        );
        api.stats("a").expect("stats");
        assert_eq!(self.execute("well"), Ok(0));
        api.delete("a", "well").expect("delete of an exec");
        eventually("only init is left", PATIENCE, || {
            api.pids("a").expect("pids").processes.len() == 1
        });
        eventually("every child was collected", PATIENCE, || {
            zombies(self.pid).is_empty()
        });
    }
}

impl Drop for Scarce<'_> {
    fn drop(&mut self) {
        if !std::thread::panicking() || fs::exists(format!("/proc/{}", self.pid)).unwrap_or(false) {
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.lift_limit()));
        }
    }
}

#[test]
fn clients_that_cannot_be_accepted_cost_nothing_and_are_served_later() {
    let host = Containerd::start();
    let scarce = Scarce::new(&host, &SLEEP, |_| ());
    scarce.leave(0);
    let outside: Vec<_> = (0..20).map(|_| scarce.connect()).collect();
    let before = scarce.ticks();
    std::thread::sleep(WATCHED);
    let used = scarce.ticks() - before;
    assert!(used < TICKS_AT_MOST, "{used} ticks in {WATCHED:?}");
    // Meanwhile the shim serves the clients that are already connected.
    scarce.api.state("a", "").expect("state");
    let shim = &scarce.shim;
    std::thread::scope(|scope| {
        let call = scope.spawn(|| shim.api().state("a", "").is_ok());
        scarce.lift_limit();
        assert!(call.join().expect("no panic"), "who had to wait is served");
    });
    drop(outside);
    scarce.check_all_works();
    // The shim is idle again: it uses at most two ticks of CPU time.
    let before = scarce.ticks();
    std::thread::sleep(WATCHED);
    assert!(scarce.ticks() - before <= 2);
}

#[test]
fn calls_that_lack_descriptors_fail_and_work_later() {
    let host = Containerd::start();
    let scarce = Scarce::new(&host, &SLEEP, |_| ());
    scarce.leave(0);
    let pause = PauseRequest {
        id: "a".to_owned(),
        ..PauseRequest::new()
    };
    let refused = [
        scarce.execute("e").map(|_| ()),
        scarce.api.call::<Empty>("Pause", &pause).map(|_| ()),
        scarce.api.kill("a", "", 15, true).map(|_| ()),
        // If the shim answered Pids with an empty list, a restarted containerd would believe that
        // the task has leaked.
        scarce.api.pids("a").map(|_| ()),
    ];
    for answer in refused {
        let (_, message) = answer.expect_err("there are no descriptors");
        assert!(message.contains("Too many open files"), "{message}");
    }
    scarce.lift_limit();
    scarce.check_all_works();
}

#[test]
fn exits_are_noticed_and_published_without_free_descriptors() {
    let host = Containerd::start();
    let scarce = Scarce::new(&host, &SLEEP, |_| ());
    for id in ["one", "two"] {
        let request = scarce.shim.exec_request(id, &SLEEP);
        scarce.api.exec(&request).expect("exec");
        scarce.api.start("a", id).expect("start of an exec");
    }
    scarce.leave(0);
    scarce.api.kill("a", "one", 9, false).expect("kill an exec");
    assert_eq!(scarce.api.wait("a", "one").expect("wait").exit_status, 137);
    scarce.api.kill("a", "", 9, false).expect("kill");
    assert_eq!(scarce.api.wait("a", "").expect("wait").exit_status, 137);
    scarce.lift_limit();
    scarce.api.delete("a", "").expect("delete");
    let exits = |events: &[crate::harness::CtrEvent]| -> Vec<String> {
        let exits = events.iter().filter(|event| event.topic == "/tasks/exit");
        exits
            .map(|event| event.data["id"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    host.await_events("all exits have come", |events| exits(events).len() == 3);
    assert_eq!(exits(&host.events()), ["one", "two", "a"]);
}

#[test]
fn remaining_processes_without_a_pid_namespace_are_killed_once_descriptors_are_free() {
    let host = Containerd::start();
    let script = "setsid sleep 1001 & echo $! > /shared/child; exec sleep 1000";
    let scarce = Scarce::new(&host, &["/bin/sh", "-c", script], host_pids);
    let file = host.shared_dir().join("child");
    eventually("the child was started", PATIENCE, || {
        fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n'))
    });
    let child = fs::read_to_string(&file).expect("a number");
    scarce.leave(0);
    scarce.api.kill("a", "", 9, false).expect("kill");
    // The shim reports the exit only after it has killed the container's remaining processes.
    std::thread::sleep(Duration::from_millis(500));
    let state = scarce.api.state("a", "").expect("state").status;
    assert_eq!(format!("{state:?}"), "RUNNING", "the rest is still there");
    scarce.lift_limit();
    assert_eq!(scarce.api.wait("a", "").expect("wait").exit_status, 137);
    let program = format!("/proc/{}/exe", child.trim());
    eventually("the child has ended", PATIENCE, || {
        fs::read_link(&program).is_err()
    });
    scarce.api.delete("a", "").expect("delete");
}

#[test]
fn a_created_process_is_not_lost_for_lack_of_descriptors() {
    let host = Containerd::start();
    let in_pod = |config: &mut Value| {
        config["annotations"] = json!({ "io.kubernetes.cri.sandbox-id": "pod1" });
    };
    let scarce = Scarce::new(&host, &SLEEP, in_pod);
    let b = BareShim::start(&host, &runtime_under_test(), "b", &SLEEP, in_pod);
    let gates = Gates::new(&host);
    // Makes a call, and holds up the OCI runtime during the call. Before the runtime reports the
    // process that it has created, the test takes all descriptors from the shim.
    let short_after = |verb: &str, call: &(dyn Fn(TaskApi) -> bool + Sync)| {
        gates.close(verb, "b");
        std::thread::scope(|scope| {
            let call = scope.spawn(|| call(b.api()));
            gates.await_waiting(verb);
            scarce.leave(0);
            gates.open(verb);
            std::thread::sleep(Duration::from_millis(500));
            scarce.lift_limit();
            assert!(call.join().expect("no panic"), "{verb}");
        });
    };
    let create = gates.with(b.create_request());
    short_after("after-create", &|api| api.create(&create).is_ok());
    scarce.api.start("b", "").expect("start");
    scarce.api.stats("b").expect("stats");
    let request = b.exec_request("e", &SLEEP);
    scarce.api.exec(&request).expect("exec");
    short_after("after-exec", &|api| api.start("b", "e").is_ok());
    scarce.api.kill("b", "e", 9, false).expect("kill an exec");
    assert_eq!(scarce.api.wait("b", "e").expect("wait").exit_status, 137);
    scarce.check_all_works();
}

#[test]
fn an_exec_that_lacks_descriptors_leaves_nothing_half_made() {
    let host = Containerd::start();
    let scarce = Scarce::new(&host, &SLEEP, |_| ());
    let mut outcomes = Vec::new();
    for spare in 0..16 {
        let id = format!("e{spare}");
        scarce.leave(spare);
        let request = scarce.shim.exec_request(&id, &SLEEP);
        scarce.api.exec(&request).expect("exec");
        let started = scarce.api.start("a", &id);
        scarce.lift_limit();
        if started.is_ok() {
            scarce.api.kill("a", &id, 9, false).expect("kill an exec");
            assert_eq!(scarce.api.wait("a", &id).expect("wait").exit_status, 137);
        }
        scarce.api.delete("a", &id).expect("delete of an exec");
        outcomes.push(started.is_ok());
        scarce.check_all_works();
    }
    assert!(!outcomes[0] && outcomes[15], "{outcomes:?}");
}

#[test]
fn a_create_that_lacks_descriptors_leaves_nothing_half_made() {
    let host = Containerd::start();
    let in_pod = |config: &mut Value| {
        config["annotations"] = json!({ "io.kubernetes.cri.sandbox-id": "pod1" });
    };
    let scarce = Scarce::new(&host, &SLEEP, in_pod);
    let mut outcomes = Vec::new();
    for spare in 0..16 {
        let id = format!("b{spare}");
        let b = BareShim::start(&host, &runtime_under_test(), &id, &SLEEP, in_pod);
        let (request, output) = b.create_request_with_stdio();
        scarce.leave(spare);
        let created = scarce.api.create(&request);
        let started = created.and_then(|_| scarce.api.start(&id, ""));
        scarce.lift_limit();
        let state = scarce.api.state(&id, "");
        if state.is_ok() {
            scarce.api.kill(&id, "", 9, false).expect("kill");
            scarce.api.wait(&id, "").expect("wait");
            scarce.api.delete(&id, "").expect("delete");
        }
        drop(output);
        outcomes.push(started.is_ok());
        let own = format!("/{id}");
        let mut remains = Vec::new();
        let nothing = crate::harness::poll(PATIENCE, || {
            remains = host.remains();
            remains.retain(|trace| trace.ends_with(&own));
            remains.is_empty().then_some(())
        });
        assert!(nothing.is_some(), "{spare}: {remains:?}");
        scarce.check_all_works();
    }
    assert!(!outcomes[0] && outcomes[15], "{outcomes:?}");
}
