//! Tests of Wait at different moments of a task, and of calls for a paused task.

use std::time::Duration;

use containerd_shim_protos::api::{Empty, PauseRequest};

use super::api::{bare, code, outcome, running};
use super::both;
use crate::harness::{Answer, TaskApi};

/// Time for which the test waits, to see that no answer arrives.
const MOMENT: Duration = Duration::from_millis(300);

fn freeze(api: &TaskApi, method: &str) -> Answer<Empty> {
    let request = PauseRequest {
        id: "a".into(),
        ..Default::default()
    };
    api.call(method, &request)
}

fn state(api: &TaskApi, exec_id: &str) -> String {
    format!("{:?}", api.state("a", exec_id).expect("State").status)
}

#[test]
fn a_wait_for_a_paused_task_waits() {
    let seen = both(|host, runtime| {
        let (shim, api) = running(host, runtime);
        freeze(&api, "Pause").expect("Pause");
        let answered = shim.api().deadline(MOMENT).wait("a", "").is_ok();
        let waiting = std::thread::spawn({
            let api = shim.api();
            move || api.wait("a", "").expect("Wait").exit_status
        });
        let paused = state(&api, "");
        freeze(&api, "Resume").expect("Resume");
        api.kill("a", "", 9, false).expect("Kill");
        (answered, paused, waiting.join().expect("an answer"))
    });
    assert_eq!(seen, (false, "PAUSED".to_owned(), 137));
}

#[test]
fn a_paused_task_can_be_killed() {
    let seen = both(|host, runtime| {
        let (_shim, api) = running(host, runtime);
        freeze(&api, "Pause").expect("Pause");
        api.kill("a", "", 9, false).expect("Kill");
        let code = api.wait("a", "").expect("Wait").exit_status;
        (code, state(&api, ""), outcome(api.delete("a", "")))
    });
    assert_eq!(seen, (137, "STOPPED".to_owned(), "done"));
}

#[test]
fn a_paused_task_refuses_exec_start_and_delete() {
    let seen = both(|host, runtime| {
        let (shim, api) = running(host, runtime);
        let exec = |id: &str| api.exec(&shim.exec_request(id, &["/bin/sleep", "1000"]));
        exec("runs").expect("Exec");
        exec("waits").expect("Exec");
        api.start("a", "runs").expect("Start of an exec");
        let resumed = outcome(freeze(&api, "Resume"));
        freeze(&api, "Pause").expect("Pause");
        let states = ["", "runs", "waits"].map(|exec_id| state(&api, exec_id));
        let outcomes = [
            resumed,
            outcome(freeze(&api, "Pause")),
            outcome(exec("new")),
            outcome(api.start("a", "")),
            outcome(api.delete("a", "")),
            outcome(api.delete("a", "runs")),
        ];
        freeze(&api, "Resume").expect("Resume");
        (states, outcomes, state(&api, "runs"))
    });
    let paused = ["PAUSED", "PAUSED", "PAUSED"].map(str::to_owned);
    assert_eq!(seen, (paused, ["refused"; 6], "RUNNING".to_owned()));
}

#[test]
fn wait_may_precede_start() {
    let codes = both(|host, runtime| {
        let shim = bare(host, runtime, &["/bin/sh", "-c", "exit 3"]);
        let api = shim.api();
        api.create(&shim.create_request()).expect("Create");
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let api = shim.api();
                std::thread::spawn(move || api.wait("a", "").expect("Wait").exit_status)
            })
            .collect();
        let early = shim.api().deadline(MOMENT).wait("a", "").is_ok();
        assert!(!early, "a Wait returned before Start");
        api.start("a", "").expect("Start");
        let mut codes: Vec<_> = waiting
            .into_iter()
            .map(|waiting| waiting.join().expect("an answer"))
            .collect();
        codes.push(api.wait("a", "").expect("a later Wait").exit_status);
        codes.push(api.wait("a", "").expect("a later Wait").exit_status);
        codes
    });
    assert_eq!(codes, [3; 5]);
}

#[test]
fn wait_for_an_exec_may_come_at_any_time() {
    let seen = both(|host, runtime| {
        let (shim, api) = running(host, runtime);
        api.exec(&shim.exec_request("e", &["/bin/sh", "-c", "sleep 0.2; exit 6"]))
            .expect("Exec");
        let wait = || {
            let api = shim.api();
            std::thread::spawn(move || api.wait("a", "e").expect("Wait").exit_status)
        };
        let before = wait();
        let early = shim.api().deadline(MOMENT).wait("a", "e").is_ok();
        api.start("a", "e").expect("Start");
        let during = wait();
        let codes = [before, during].map(|waiting| waiting.join().expect("an answer"));
        let after = api.wait("a", "e").expect("Wait").exit_status;
        let deleted = api.delete("a", "e").expect("Delete").exit_status;
        (early, codes, after, deleted, code(api.wait("a", "e")))
    });
    let not_found = ttrpc::Code::NOT_FOUND;
    assert_eq!(seen, (false, [6, 6], 6, 6, not_found));
}
