//! Calls that are slow because the OCI runtime is slow. They delay neither calls for other
//! containers of the pod nor other calls for the same container.

use std::time::Duration;

use containerd_shim_protos::api::{Empty, PauseRequest, UpdateTaskRequest};
use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use serde_json::{Value, json};
use ttrpc::proto::Code;

use crate::harness::{
    Answer, BareShim, Containerd, Gates, PATIENCE, TaskApi, add_poststart_hook, eventually,
    runtime_under_test,
};

const SLEEP: [&str; 2] = ["/bin/sleep", "1000"];

/// Deadline of the calls that must not be delayed.
const PROMPTLY: Duration = Duration::from_secs(10);

/// A pod of two containers, `a` and `b`. Gates delay the commands that the OCI runtime executes for
/// `a`.
struct Pair<'host> {
    gates: Gates,
    a: BareShim<'host>,
    b: BareShim<'host>,
}

fn in_pod(config: &mut Value) {
    config["annotations"] = json!({ "io.kubernetes.cri.sandbox-id": "pod1" });
}

impl<'host> Pair<'host> {
    /// Creates and starts `b`. Makes only the bundle of `a`.
    fn new(host: &'host Containerd, edit: impl FnOnce(&mut Value)) -> Self {
        let runtime = runtime_under_test();
        let b = BareShim::start(host, &runtime, "b", &SLEEP, in_pod);
        let a = BareShim::start(host, &runtime, "a", &SLEEP, |config| {
            in_pod(config);
            edit(config);
        });
        assert_eq!(a.address, b.address, "one shim for both");
        b.api().create(&b.create_request()).expect("create b");
        b.api().start("b", "").expect("start b");
        Self {
            gates: Gates::new(host),
            a,
            b,
        }
    }

    /// Starts both containers.
    fn running(host: &'host Containerd) -> Self {
        let pair = Self::new(host, |_| ());
        pair.create().expect("create a");
        pair.a.api().start("a", "").expect("start a");
        pair
    }

    fn create(&self) -> Answer<u32> {
        let request = self.gates.with(self.a.create_request());
        self.a.api().create(&request).map(|created| created.pid)
    }

    fn api(&self) -> TaskApi {
        self.a.api().deadline(PROMPTLY)
    }

    /// Runs `meanwhile` while the call `slow` waits for the OCI runtime's command `verb`. Then lets
    /// the command continue.
    fn during<T: Send>(
        &self,
        verb: &str,
        slow: impl FnOnce(TaskApi) -> T + Send,
        meanwhile: impl FnOnce(TaskApi),
    ) -> T {
        self.during_and_ended_by(verb, slow, meanwhile, |_| self.gates.open(verb))
    }

    /// Does the same as `during`, but does not open the gate. After `meanwhile`, runs `end`, which
    /// has to make the call `slow` return.
    fn during_and_ended_by<T: Send>(
        &self,
        verb: &str,
        slow: impl FnOnce(TaskApi) -> T + Send,
        meanwhile: impl FnOnce(TaskApi),
        end: impl FnOnce(TaskApi),
    ) -> T {
        self.beside(verb, slow, |is_over| {
            meanwhile(self.api());
            assert!(!is_over(), "{verb} did not wait");
            end(self.api());
        })
    }

    /// Runs `meanwhile` while the call `slow` waits for the OCI runtime's command `verb`.
    /// `meanwhile` may make the call return.
    fn beside<T: Send>(
        &self,
        verb: &str,
        slow: impl FnOnce(TaskApi) -> T + Send,
        meanwhile: impl FnOnce(&dyn Fn() -> bool),
    ) -> T {
        self.gates.close(verb, "a");
        std::thread::scope(|scope| {
            let call = scope.spawn(|| slow(self.a.api().deadline(3 * PATIENCE)));
            // Open the gate even if a check fails, so that the call returns.
            let _open = OpenAtTheEnd(&self.gates, verb);
            self.gates.await_waiting(verb);
            self.check_other_container();
            meanwhile(&|| call.is_finished());
            eventually(&format!("{verb} is over"), PATIENCE, || call.is_finished());
            call.join().expect("the slow call")
        })
    }

    /// Makes every call for `b` that is allowed while a container runs.
    fn check_other_container(&self) {
        let api = self.api();
        assert_eq!(state(&api, "b", ""), "RUNNING");
        api.pids("b").expect("Pids");
        api.stats("b").expect("Stats");
        api.connect("b").expect("Connect");
        api.kill("b", "", 0, false).expect("Kill 0");
        api.exec(&self.b.exec_request("e", &["/bin/true"]))
            .expect("Exec");
        api.start("b", "e").expect("Start of an exec");
        assert_eq!(api.wait("b", "e").expect("Wait").exit_status, 0);
        api.delete("b", "e").expect("Delete of an exec");
        api.update(&limits("b")).expect("Update");
        freeze(&api, "Pause", "b").expect("Pause");
        freeze(&api, "Resume", "b").expect("Resume");
        api.shutdown("b").expect("Shutdown, which is ignored");
    }
}

struct OpenAtTheEnd<'gates>(&'gates Gates, &'gates str);

impl Drop for OpenAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.open(self.1);
    }
}

fn state(api: &TaskApi, id: &str, exec_id: &str) -> String {
    let state = api.state(id, exec_id).expect("State");
    format!("{:?}", state.status)
}

fn freeze(api: &TaskApi, method: &str, id: &str) -> Answer<Empty> {
    let request = PauseRequest {
        id: id.to_owned(),
        ..PauseRequest::new()
    };
    api.call(method, &request)
}

fn limits(id: &str) -> UpdateTaskRequest {
    let resources = Any {
        type_url: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources".into(),
        value: json!({ "memory": { "limit": 67_108_864 } })
            .to_string()
            .into_bytes(),
        ..Any::new()
    };
    UpdateTaskRequest {
        id: id.to_owned(),
        resources: MessageField::some(resources),
        ..UpdateTaskRequest::new()
    }
}

fn code<T>(answer: Answer<T>) -> Code {
    answer.map_or_else(|(code, _)| code, |_| Code::OK)
}

#[test]
fn a_slow_create_delays_no_other_call() {
    let host = Containerd::start();
    let pair = Pair::new(&host, |_| ());
    let slow = |_| pair.create();
    let created = pair.during("create", slow, |api| {
        // The task does not exist yet.
        assert_eq!(code(api.state("a", "")), Code::NOT_FOUND);
        assert_eq!(code(api.kill("a", "", 9, false)), Code::NOT_FOUND);
        assert_eq!(code(api.wait("a", "")), Code::NOT_FOUND);
        assert_eq!(code(pair.create()), Code::ALREADY_EXISTS);
    });
    assert!(created.is_ok(), "{created:?}");
}

#[test]
fn a_slow_start_delays_no_other_call() {
    let host = Containerd::start();
    let pair = Pair::new(&host, add_poststart_hook);
    let pid = pair.create().expect("create");
    let slow = |api: TaskApi| api.start("a", "").map(|started| started.pid);
    let started = pair.during("start", slow, |api| {
        assert_eq!(state(&api, "a", ""), "CREATED");
        assert_eq!(api.connect("a").expect("Connect").task_pid, pid);
        api.pids("a").expect("Pids");
        api.stats("a").expect("Stats");
        api.update(&limits("a")).expect("Update");
        api.kill("a", "", 0, false).expect("Kill 0");
        assert!(api.start("a", "").is_err(), "a second Start succeeded");
    });
    assert_eq!(started, Ok(pid));
    assert_eq!(state(&pair.api(), "a", ""), "RUNNING");
}

#[test]
fn a_container_can_be_killed_during_a_slow_start() {
    let host = Containerd::start();
    let pair = Pair::new(&host, add_poststart_hook);
    pair.create().expect("create");
    let slow = |api: TaskApi| api.start("a", "").is_err();
    let failed = pair.during("start", slow, |api| {
        api.kill("a", "", 9, false).expect("Kill");
    });
    assert!(failed, "nothing has been started");
    assert_eq!(pair.api().wait("a", "").expect("Wait").exit_status, 137);
    pair.api().delete("a", "").expect("Delete");
}

#[test]
fn a_slow_exec_delays_no_other_call() {
    let host = Containerd::start();
    let pair = Pair::running(&host);
    let api = pair.api();
    for exec_id in ["slow", "other", "never"] {
        api.exec(&pair.a.exec_request(exec_id, &SLEEP))
            .expect("Exec");
    }
    let slow = |api: TaskApi| api.start("a", "slow").map(|_| ());
    let started = pair.during("exec", slow, |api| {
        assert_eq!(state(&api, "a", ""), "RUNNING");
        assert_eq!(state(&api, "a", "slow"), "CREATED");
        api.pids("a").expect("Pids");
        api.stats("a").expect("Stats");
        api.update(&limits("a")).expect("Update");
        freeze(&api, "Pause", "a").expect("Pause");
        freeze(&api, "Resume", "a").expect("Resume");
        api.kill("a", "", 0, false).expect("Kill 0");
        assert_ne!(code(api.kill("a", "slow", 9, false)), Code::OK);
        api.delete("a", "never").expect("Delete of another exec");
        api.exec(&pair.a.exec_request("new", &SLEEP)).expect("Exec");
    });
    assert_eq!(started, Ok(()));
    assert_eq!(state(&api, "a", "slow"), "RUNNING");
}

#[test]
fn a_container_killed_during_a_slow_exec_stops_and_can_be_deleted() {
    let host = Containerd::start();
    let pair = Pair::running(&host);
    pair.api()
        .exec(&pair.a.exec_request("slow", &SLEEP))
        .expect("Exec");
    let slow = |api: TaskApi| api.start("a", "slow").is_err();
    let kill = |api: TaskApi| {
        api.kill("a", "", 9, false).expect("Kill");
    };
    // The gate stays closed, so the OCI runtime's exec command does not end. When the container
    // exits, the shim waits briefly for pending execs, and then cancels this command.
    let failed = pair.during_and_ended_by("exec", slow, kill, |api| {
        eventually("the container is stopped", PROMPTLY, || {
            state(&api, "a", "") == "STOPPED"
        });
        assert_eq!(api.state("a", "").expect("State").exit_status, 137);
        let deleted = api.delete("a", "").expect("Delete");
        assert_eq!(deleted.exit_status, 137);
        assert_eq!(code(api.state("a", "")), Code::NOT_FOUND);
    });
    assert!(failed, "there is nothing to execute it in");
    // An event may arrive after the answer to the call that caused the event.
    let end = ["/tasks/exit 137", "/tasks/delete 137"].map(str::to_owned);
    host.await_events("the exit event came last", |_| {
        host.topics("a").ends_with(&end)
    });
}

#[test]
fn a_container_that_ended_during_a_slow_exec_takes_no_further_exec() {
    let host = Containerd::start();
    let pair = Pair::running(&host);
    pair.api()
        .exec(&pair.a.exec_request("slow", &SLEEP))
        .expect("Exec");
    let slow = |api: TaskApi| api.start("a", "slow").is_err();
    // SIGKILL for the container also ends the OCI runtime's command.
    let failed = pair.beside("exec", slow, |_| {
        let api = pair.api();
        api.kill("a", "", 9, false).expect("Kill");
        eventually("no exec is added", PROMPTLY, || {
            let late = api.exec(&pair.a.exec_request("late", &SLEEP));
            late.is_err_and(|(code, _)| code == Code::FAILED_PRECONDITION)
        });
    });
    assert!(failed, "there is nothing to execute it in");
    let api = pair.api();
    assert_eq!(state(&api, "a", "slow"), "CREATED");
    assert_eq!(api.wait("a", "").expect("Wait").exit_status, 137);
    assert_eq!(state(&api, "a", ""), "STOPPED");
    let refused = api.exec(&pair.a.exec_request("never", &SLEEP));
    assert_eq!(code(refused), Code::FAILED_PRECONDITION);
}

#[test]
fn a_slow_kill_delays_no_other_call() {
    let host = Containerd::start();
    let pair = Pair::running(&host);
    // The container has a separate PID namespace. The shim can send SIGKILL to all of its processes
    // without the OCI runtime, but needs the OCI runtime for SIGTERM.
    let slow = |api: TaskApi| code(api.kill("a", "", 15, true));
    let killed = pair.during("kill", slow, |api| {
        assert_eq!(state(&api, "a", ""), "RUNNING");
        api.pids("a").expect("Pids");
        api.stats("a").expect("Stats");
        api.exec(&pair.a.exec_request("e", &["/bin/true"]))
            .expect("Exec");
        api.start("a", "e").expect("Start of an exec");
        assert_eq!(api.wait("a", "e").expect("Wait").exit_status, 0);
        freeze(&api, "Pause", "a").expect("Pause");
        freeze(&api, "Resume", "a").expect("Resume");
        // For SIGKILL to the first process, the shim does not need the OCI runtime.
        api.kill("a", "", 9, false).expect("Kill");
        assert_eq!(api.wait("a", "").expect("Wait").exit_status, 137);
    });
    // The container's processes may have exited before the OCI runtime signals them.
    assert!([Code::OK, Code::NOT_FOUND].contains(&killed), "{killed:?}");
}

#[test]
fn a_slow_pause_or_resume_delays_no_other_call() {
    let host = Containerd::start();
    let pair = Pair::running(&host);
    let meanwhile = |api: TaskApi| {
        api.pids("a").expect("Pids");
        api.stats("a").expect("Stats");
        api.update(&limits("a")).expect("Update");
        api.kill("a", "", 0, false).expect("Kill 0");
    };
    let pause = |api: TaskApi| freeze(&api, "Pause", "a").map(|_| ());
    let paused = pair.during("pause", pause, |api| {
        assert_eq!(state(&api, "a", ""), "PAUSING");
        meanwhile(api);
    });
    assert_eq!(paused, Ok(()));
    let resume = |api: TaskApi| freeze(&api, "Resume", "a").map(|_| ());
    let resumed = pair.during("resume", resume, |api| {
        assert_eq!(state(&api, "a", ""), "PAUSED");
        meanwhile(api);
    });
    assert_eq!(resumed, Ok(()));
    assert_eq!(state(&pair.api(), "a", ""), "RUNNING");
}

#[test]
fn a_container_can_be_killed_during_a_slow_pause() {
    let host = Containerd::start();
    let pair = Pair::running(&host);
    let pause = |api: TaskApi| freeze(&api, "Pause", "a").is_ok();
    // SIGKILL also cancels the OCI runtime's `pause`, so the Pause call may return at any moment.
    pair.beside("pause", pause, |_| {
        let api = pair.api();
        api.kill("a", "", 9, false).expect("Kill");
        assert_eq!(api.wait("a", "").expect("Wait").exit_status, 137);
        assert_eq!(state(&api, "a", ""), "STOPPED");
    });
    assert_eq!(state(&pair.api(), "a", ""), "STOPPED");
    pair.api().delete("a", "").expect("Delete");
}

#[test]
fn a_container_that_ends_during_a_pause_can_be_deleted() {
    let host = Containerd::start();
    let pair = Pair::running(&host);
    let api = pair.a.api();
    pair.gates.close("delete", "a");
    api.kill("a", "", 9, false).expect("kill");
    api.wait("a", "").expect("wait");
    pair.gates.await_waiting("delete");
    // The test freezes the container directly, as if an OCI runtime's pause command had just done
    // so.
    let v1 = format!("/sys/fs/cgroup/freezer/{}/a/freezer.state", host.namespace);
    let v2 = format!("/sys/fs/cgroup/{}/a/cgroup.freeze", host.namespace);
    std::fs::write(v1, "FROZEN")
        .or_else(|_| std::fs::write(v2, "1"))
        .expect("freeze");
    pair.gates.open("delete");
    api.delete("a", "").expect("delete");
}

#[test]
fn a_slow_update_delays_no_other_call() {
    let host = Containerd::start();
    let pair = Pair::running(&host);
    let slow = |api: TaskApi| api.update(&limits("a")).map(|_| ());
    let updated = pair.during("update", slow, |api| {
        assert_eq!(state(&api, "a", ""), "RUNNING");
        api.pids("a").expect("Pids");
        api.stats("a").expect("Stats");
        freeze(&api, "Pause", "a").expect("Pause");
        freeze(&api, "Resume", "a").expect("Resume");
        api.kill("a", "", 0, false).expect("Kill 0");
    });
    assert_eq!(updated, Ok(()));
}

#[test]
fn a_slow_delete_delays_no_other_call() {
    let host = Containerd::start();
    let pair = Pair::running(&host);
    let slow = |api: TaskApi| {
        // Kill the container only here, after `during` has closed the gate: the shim runs the OCI
        // runtime's `delete` as soon as the container exits.
        api.kill("a", "", 9, false).expect("Kill");
        api.wait("a", "").expect("Wait");
        api.delete("a", "").map(|deleted| deleted.exit_status)
    };
    let deleted = pair.during("delete", slow, |api| {
        assert_eq!(api.wait("a", "").expect("Wait").exit_status, 137);
        assert_eq!(state(&api, "a", ""), "STOPPED");
        assert_eq!(code(api.kill("a", "", 9, false)), Code::NOT_FOUND);
        api.connect("a").expect("Connect");
    });
    assert_eq!(deleted, Ok(137));
    assert_eq!(code(pair.api().state("a", "")), Code::NOT_FOUND);
}

/// containerd stops waiting for a Delete after ten seconds, and calls Delete again. The shim must
/// not start a new deletion for each of these calls.
#[test]
fn a_repeated_delete_continues_the_one_that_timed_out() {
    let host = Containerd::start();
    let pair = Pair::running(&host);
    let api = pair.a.api().deadline(3 * PATIENCE);
    pair.gates.close("delete", "a");
    api.kill("a", "", 9, false).expect("Kill");
    api.wait("a", "").expect("Wait");
    let (_, late) = api.delete("a", "").expect_err("delete hangs");
    assert!(late.contains("delete did not end within 8s"), "{late}");
    std::thread::scope(|scope| {
        let deleting = scope.spawn(|| api.delete("a", "").map(|deleted| deleted.exit_status));
        let _open = OpenAtTheEnd(&pair.gates, "delete");
        // The OCI runtime takes ten seconds to delete the container.
        std::thread::sleep(Duration::from_secs(10));
        assert!(!deleting.is_finished(), "the delete did not wait");
        pair.gates.open("delete");
        assert_eq!(deleting.join().expect("the delete"), Ok(137));
    });
    assert_eq!(code(pair.api().state("a", "")), Code::NOT_FOUND);
}

#[test]
fn a_pause_or_resume_whose_caller_vanished_leaves_the_container_usable() {
    let host = Containerd::start();
    let pair = Pair::running(&host);
    for (verb, method) in [("pause", "Pause"), ("resume", "Resume")] {
        pair.gates.close(verb, "a");
        let request = PauseRequest {
            id: "a".to_owned(),
            ..PauseRequest::new()
        };
        pair.api()
            .call_and_vanish(method, &request, Duration::from_millis(200));
        pair.gates.await_waiting(verb);
        pair.gates.open(verb);
        let done = match verb {
            "pause" => "PAUSED",
            _ => "RUNNING",
        };
        eventually("the call has taken effect", PATIENCE, || {
            state(&pair.api(), "a", "") == done
        });
    }
    pair.api().kill("a", "", 9, false).expect("Kill");
    assert_eq!(pair.api().wait("a", "").expect("Wait").exit_status, 137);
}
