//! The Task API itself: states that `ctr` cannot bring about, and error codes.

use std::time::Duration;

use containerd_shim_protos::api::{Empty, PauseRequest, UpdateTaskRequest, WaitRequest};
use containerd_shim_protos::protobuf::MessageField;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use ttrpc::proto::Code;

use super::both;
use crate::harness::{Answer, BareShim, Containerd, PATIENCE, TaskApi, eventually, times};

pub(super) fn bare<'a>(host: &'a Containerd, runtime: &str, args: &[&str]) -> BareShim<'a> {
    BareShim::start(host, runtime, "a", args, |_| ())
}

/// A shim whose task runs `sleep`.
pub(super) fn running<'a>(host: &'a Containerd, runtime: &str) -> (BareShim<'a>, TaskApi) {
    let shim = bare(host, runtime, &["/bin/sleep", "1000"]);
    let api = shim.api();
    api.create(&shim.create_request()).expect("Create");
    api.start("a", "").expect("Start");
    (shim, api)
}

pub(super) fn code<T>(answer: Answer<T>) -> Code {
    answer.map_or_else(|(code, _)| code, |_| Code::OK)
}

/// The outcome of a call. All errors except NOT_FOUND have the same outcome: containerd's own shim
/// refuses most calls with the code UNKNOWN, and no caller depends on this code.
pub(super) fn outcome<T>(answer: Answer<T>) -> &'static str {
    match code(answer) {
        Code::OK => "done",
        Code::NOT_FOUND => "not found",
        _ => "refused",
    }
}

/// The CRI's test suite passes a cgroup path in systemd's form, even on nodes without systemd.
#[test]
fn the_options_not_the_form_of_the_path_choose_the_cgroup_manager() {
    let path = "usher-test.slice:options:a";
    let seen = both(|host, runtime| {
        let shim = BareShim::start(host, runtime, "a", &["/bin/sleep", "1000"], |config| {
            config["linux"]["cgroupsPath"] = json!(path);
        });
        let mut request = shim.create_request();
        request.options = MessageField::some(Any {
            type_url: "containerd.runc.v1.Options".to_owned(),
            ..Any::new()
        });
        let pid = shim.api().create(&request).expect("Create").pid;
        let cgroups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its cgroups");
        cgroups.lines().any(|line| line.ends_with(path))
    });
    assert!(seen, "the container is in that cgroup");
}

#[test]
fn a_created_task_can_be_killed_and_deleted() {
    let seen = both(|host, runtime| {
        let shim = bare(host, runtime, &["/bin/witness", "a"]);
        let api = shim.api();
        let pid = api.create(&shim.create_request()).expect("Create").pid;
        let state = api.state("a", "").expect("State");
        let listed = api
            .pids("a")
            .expect("Pids")
            .processes
            .iter()
            .any(|p| p.pid == pid);
        let stats = api.stats("a").is_ok();
        api.kill("a", "", 9, false).expect("Kill");
        let waited = api.wait("a", "").expect("Wait").exit_status;
        let deleted = api.delete("a", "").expect("Delete").exit_status;
        let started = host.record().has("a", "start");
        (
            state.pid == pid,
            format!("{:?}", state.status),
            listed,
            stats,
            waited,
            deleted,
            started,
        )
    });
    assert_eq!(
        seen,
        (true, "CREATED".to_owned(), true, true, 137, 137, false)
    );
}

/// containerd's client makes this call for its option `WithProcessKill`. For the client, every
/// error except NOT_FOUND is a failure.
#[test]
fn a_kill_of_all_processes_of_a_container_that_ends_meanwhile_returns_not_found() {
    let seen = both(|host, runtime| {
        let mut odd = Vec::new();
        for _ in 0..times(10, 100) {
            let (shim, api) = running(host, runtime);
            let pid = api.connect("a").expect("Connect").task_pid;
            let init = Pid::from_raw(pid.try_into().expect("a PID"));
            kill(init, Signal::SIGKILL).expect("its init runs");
            let killed = api.kill("a", "", 9, true);
            match code(killed.clone()) {
                Code::OK | Code::NOT_FOUND => {}
                _ => odd.push(killed),
            }
            assert_eq!(api.wait("a", "").expect("Wait").exit_status, 137);
            api.delete("a", "").expect("Delete");
            drop(shim);
            std::fs::remove_dir_all(host.dir().join("bundles/a")).expect("its bundle");
        }
        odd
    });
    assert_eq!(seen, []);
}

#[test]
fn a_created_task_can_be_deleted_without_a_kill() {
    let seen = both(|host, runtime| {
        let shim = bare(host, runtime, &["/bin/witness", "a"]);
        let api = shim.api();
        let pid = api.create(&shim.create_request()).expect("Create").pid;
        let deleted = code(api.delete("a", ""));
        let process = format!("/proc/{pid}/exe");
        eventually("the container's process is gone", PATIENCE, || {
            std::fs::read_link(&process).is_err()
        });
        deleted
    });
    assert_eq!(seen, Code::OK);
}

#[test]
fn states_follow_the_calls_for_a_task() {
    let states = both(|host, runtime| {
        let shim = bare(host, runtime, &["/bin/sleep", "1000"]);
        let api = shim.api();
        let state = |api: &TaskApi| format!("{:?}", api.state("a", "").expect("State").status);
        let mut states = Vec::new();
        api.create(&shim.create_request()).expect("Create");
        states.push(state(&api));
        api.start("a", "").expect("Start");
        states.push(state(&api));
        let pause = PauseRequest {
            id: "a".into(),
            ..Default::default()
        };
        api.call::<Empty>("Pause", &pause).expect("Pause");
        states.push(state(&api));
        api.call::<Empty>("Resume", &pause).expect("Resume");
        states.push(state(&api));
        api.kill("a", "", 9, false).expect("Kill");
        api.wait("a", "").expect("Wait");
        states.push(state(&api));
        states
    });
    assert_eq!(
        states,
        ["CREATED", "RUNNING", "PAUSED", "RUNNING", "STOPPED"]
    );
}

#[test]
fn every_wait_gets_the_exit_even_a_later_one() {
    let seen = both(|host, runtime| {
        let (shim, api) = running(host, runtime);
        let waiters: Vec<_> = (0..3).map(|_| shim.api()).collect();
        let waiting: Vec<_> = waiters
            .into_iter()
            .map(|api| std::thread::spawn(move || api.wait("a", "").expect("Wait")))
            .collect();
        // While the Waits are pending, other calls are answered.
        api.state("a", "").expect("State");
        api.kill("a", "", 9, false).expect("Kill");
        let mut answers: Vec<_> = waiting
            .into_iter()
            .map(|w| w.join().expect("an answer"))
            .collect();
        answers.push(api.wait("a", "").expect("a later Wait"));
        let state = api.state("a", "").expect("State");
        assert!(
            answers
                .iter()
                .all(|answer| answer.exited_at == state.exited_at),
            "{answers:?}"
        );
        answers
            .iter()
            .map(|answer| answer.exit_status)
            .collect::<Vec<_>>()
    });
    assert_eq!(seen, [137; 4]);
}

#[test]
fn calls_for_an_unknown_task_are_refused() {
    let codes = both(|host, runtime| {
        let (shim, api) = running(host, runtime);
        let mut exec = shim.exec_request("one", &["/bin/true"]);
        exec.id = "unknown".into();
        vec![
            ("Start", code(api.start("unknown", ""))),
            ("State", code(api.state("unknown", ""))),
            ("Kill", code(api.kill("unknown", "", 9, false))),
            ("Wait", code(api.wait("unknown", ""))),
            ("Delete", code(api.delete("unknown", ""))),
            ("Exec", code(api.exec(&exec))),
            ("Pids", code(api.pids("unknown"))),
            ("Stats", code(api.stats("unknown"))),
            ("CloseIO", code(api.close_stdin("unknown", ""))),
        ]
    });
    assert!(
        codes.iter().all(|(_, code)| *code == Code::NOT_FOUND),
        "{codes:?}"
    );
}

#[test]
fn calls_for_an_unknown_exec_are_refused() {
    let codes = both(|host, runtime| {
        let (_shim, api) = running(host, runtime);
        vec![
            ("Start", code(api.start("a", "unknown"))),
            ("State", code(api.state("a", "unknown"))),
            ("Kill", code(api.kill("a", "unknown", 9, false))),
            ("Wait", code(api.wait("a", "unknown"))),
            ("Delete", code(api.delete("a", "unknown"))),
        ]
    });
    assert!(
        codes.iter().all(|(_, code)| *code == Code::NOT_FOUND),
        "{codes:?}"
    );
}

#[test]
fn calls_in_the_wrong_state_are_refused_and_the_task_continues() {
    let seen = both(|host, runtime| {
        let (shim, api) = running(host, runtime);
        let outcomes = vec![
            ("Create again", outcome(api.create(&shim.create_request()))),
            ("Start again", outcome(api.start("a", ""))),
            ("Delete while it runs", outcome(api.delete("a", ""))),
        ];
        let state = format!("{:?}", api.state("a", "").expect("State").status);
        (outcomes, state)
    });
    assert!(
        seen.0.iter().all(|(_, outcome)| *outcome == "refused"),
        "{seen:?}"
    );
    assert_eq!(seen.1, "RUNNING");
}

#[test]
fn calls_after_the_exit_return_the_expected_codes() {
    let outcomes = both(|host, runtime| {
        let (shim, api) = running(host, runtime);
        api.kill("a", "", 9, false).expect("Kill");
        api.wait("a", "").expect("Wait");
        [
            ("Kill", outcome(api.kill("a", "", 15, false))),
            ("Kill 9", outcome(api.kill("a", "", 9, false))),
            (
                "Exec",
                outcome(api.exec(&shim.exec_request("one", &["/bin/true"]))),
            ),
            ("Start", outcome(api.start("a", ""))),
            ("Delete", outcome(api.delete("a", ""))),
            ("Delete again", outcome(api.delete("a", ""))),
        ]
    });
    let expected = [
        "not found",
        "not found",
        "refused",
        "refused",
        "done",
        "not found",
    ];
    assert_eq!(outcomes.map(|(_, outcome)| outcome), expected);
}

#[test]
fn an_exec_goes_through_its_states() {
    let seen = both(|host, runtime| {
        let (shim, api) = running(host, runtime);
        let request = shim.exec_request("one", &["/bin/sleep", "1000"]);
        api.exec(&request).expect("Exec");
        let twice = code(api.exec(&request));
        let state = || format!("{:?}", api.state("a", "one").expect("State").status);
        let mut states = vec![state()];
        api.start("a", "one").expect("Start");
        states.push(state());
        api.kill("a", "one", 9, false).expect("Kill");
        let waited = api.wait("a", "one").expect("Wait").exit_status;
        states.push(state());
        let deleted = api.delete("a", "one").expect("Delete").exit_status;
        (twice, states, waited, deleted, code(api.state("a", "one")))
    });
    let states = ["CREATED", "RUNNING", "STOPPED"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(
        seen,
        (Code::ALREADY_EXISTS, states, 137, 137, Code::NOT_FOUND)
    );
}

#[test]
fn an_update_changes_the_limits() {
    let limit = both(|host, runtime| {
        let (shim, api) = running(host, runtime);
        let resources = Any {
            type_url: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources".into(),
            value: json!({ "memory": { "limit": 67_108_864 } })
                .to_string()
                .into_bytes(),
            ..Default::default()
        };
        let request = UpdateTaskRequest {
            id: shim.id.clone(),
            resources: MessageField::some(resources),
            ..Default::default()
        };
        api.update(&request).expect("Update");
        let cgroup = format!("{}/{}", host.namespace, shim.id);
        let v1 = format!("/sys/fs/cgroup/memory/{cgroup}/memory.limit_in_bytes");
        let v2 = format!("/sys/fs/cgroup/{cgroup}/memory.max");
        let limit = std::fs::read_to_string(v1).or_else(|_| std::fs::read_to_string(v2));
        limit.expect("a memory cgroup").trim().to_owned()
    });
    assert_eq!(limit, "67108864");
}

#[test]
fn close_io_ends_the_input() {
    let seen = both(|host, runtime| {
        let shim = bare(
            host,
            runtime,
            &["/bin/sh", "-c", "cat > /shared/copy; exit 8"],
        );
        let api = shim.api();
        let (create, _output) = shim.create_request_with_stdio();
        api.create(&create).expect("Create");
        api.start("a", "").expect("Start");
        std::fs::write(&create.stdin, "words\n").expect("write the input");
        // The client has closed the FIFO. Another client may open the FIFO later, so the
        // container's input stays open until CloseIO.
        let copy = host.shared_dir().join("copy");
        let arrived = || std::fs::read_to_string(&copy).is_ok_and(|text| text == "words\n");
        eventually("the words have arrived", PATIENCE, arrived);
        let state = format!("{:?}", api.state("a", "").expect("State").status);
        api.close_stdin("a", "").expect("CloseIO");
        (state, api.wait("a", "").expect("Wait").exit_status)
    });
    assert_eq!(seen, ("RUNNING".to_owned(), 8));
}

#[test]
fn shutdown_is_ignored_while_a_task_exists() {
    let seen = both(|host, runtime| {
        let (shim, api) = running(host, runtime);
        api.shutdown("a").expect("Shutdown");
        let state = shim.api().state("a", "").expect("State").status;
        format!("{state:?}")
    });
    assert_eq!(seen, "RUNNING");
}

#[test]
fn a_caller_that_vanishes_during_wait_does_no_harm() {
    let seen = both(|host, runtime| {
        let (shim, api) = running(host, runtime);
        let wait = WaitRequest {
            id: "a".into(),
            ..Default::default()
        };
        shim.api()
            .call_and_vanish("Wait", &wait, Duration::from_millis(50));
        let state = format!("{:?}", api.state("a", "").expect("State").status);
        api.kill("a", "", 9, false).expect("Kill");
        (state, api.wait("a", "").expect("Wait").exit_status)
    });
    assert_eq!(seen, ("RUNNING".to_owned(), 137));
}
