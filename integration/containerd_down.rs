//! Events and tasks survive while containerd is down or hangs: the shim delivers every event
//! afterwards, in order and once.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{
    Background, BareShim, ContainerSpec, Containerd, CtrEvent, PATIENCE, Status, TaskApi, Version,
    run, runtime_under_test,
};

/// A symbolic link to containerd's event socket. The shim sends its events to the link, and the
/// test can remove the link.
struct EventsLink {
    link: PathBuf,
    socket: PathBuf,
}

impl EventsLink {
    fn new(host: &Containerd) -> Self {
        let socket = PathBuf::from(format!("{}.ttrpc", host.socket().display()));
        let link = host.dir().join("events");
        let events_link = Self { link, socket };
        events_link.create();
        events_link
    }

    fn create(&self) {
        symlink(&self.socket, &self.link).expect("the link");
    }

    fn remove(&self) {
        std::fs::remove_file(&self.link).expect("no link");
    }
}

/// A running container whose shim sends its events through `events_link`.
fn running<'host>(host: &'host Containerd, events_link: &EventsLink) -> (BareShim<'host>, TaskApi) {
    let args = ["/bin/sleep", "1000"];
    let mut shim = BareShim::prepare(host, &runtime_under_test(), "a", &args, |_| ());
    let mut start = shim.command("start");
    start.env("TTRPC_ADDRESS", &events_link.link);
    let started = run(start, PATIENCE);
    assert!(started.ok(), "start: {}", started.err());
    shim.address = started.out().trim().to_owned();
    let api = shim.api();
    api.create(&shim.create_request()).expect("create");
    api.start("a", "").expect("start");
    host.await_events("the container was started", |events| {
        events.iter().any(|event| event.topic == "/tasks/start")
    });
    (shim, api)
}

/// The topic of an event, and the id of its exec or container.
fn topic_and_id(event: &CtrEvent) -> String {
    let id = event.data["exec_id"].as_str().or(event.data["id"].as_str());
    format!("{} {}", event.topic, id.unwrap_or("-"))
}

fn task_events(host: &Containerd) -> Vec<String> {
    let events = host.events();
    let tasks = events
        .iter()
        .filter(|event| event.topic.starts_with("/tasks/"));
    tasks.map(topic_and_id).collect()
}

/// Adds execs without starting them. Returns the events that this causes.
fn add_execs(shim: &BareShim<'_>, api: &TaskApi, prefix: &str, count: usize) -> Vec<String> {
    let add = |number| {
        let id = format!("{prefix}{number}");
        api.exec(&shim.exec_request(&id, &["/bin/true"]))
            .expect("exec");
        format!("/tasks/exec-added {id}")
    };
    (0..count).map(add).collect()
}

fn run_exec(api: &TaskApi, id: &str) -> Vec<String> {
    api.start("a", id).expect("start of an exec");
    api.wait("a", id).expect("wait");
    vec![
        format!("/tasks/exec-started {id}"),
        format!("/tasks/exit {id}"),
    ]
}

fn expect_events(host: &Containerd, expected: &[String]) {
    host.await_events("all events have come", |events| {
        let tasks = events
            .iter()
            .filter(|event| event.topic.starts_with("/tasks/"));
        tasks.count() >= expected.len()
    });
    assert_eq!(task_events(host), expected);
}

fn begun() -> Vec<String> {
    ["/tasks/create -", "/tasks/start -"]
        .map(str::to_owned)
        .to_vec()
}

#[test]
fn hundreds_of_events_reach_a_restarted_containerd_in_order() {
    let host = Containerd::start();
    let events_link = EventsLink::new(&host);
    let (shim, api) = running(&host, &events_link);
    let mut expected = begun();
    events_link.remove();
    host.crash();
    expected.extend(add_execs(&shim, &api, "e", 400));
    for id in ["e7", "e3", "e399"] {
        expected.extend(run_exec(&api, id));
    }
    api.kill("a", "", 9, false).expect("kill");
    assert_eq!(api.wait("a", "").expect("wait").exit_status, 137);
    api.delete("a", "").expect("delete");
    expected.extend(["/tasks/exit a", "/tasks/delete -"].map(str::to_owned));
    // containerd drops events that have no subscriber. So the test first subscribes to the events,
    // which `start_again` does. Then the test restores the link through which the shim sends them.
    host.start_again();
    events_link.create();
    let opened = Instant::now();
    expect_events(&host, &expected);
    // The limit allows for the longest pause between two attempts of the shim to connect, and for
    // the delivery of hundreds of events.
    let took = opened.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    // An event carries the time when it happened, not when containerd received it.
    let events = host.events();
    let tasks = events
        .iter()
        .filter(|event| event.topic.starts_with("/tasks/"));
    assert!(tasks.is_sorted_by_key(|event| event.at_ns));
}

#[test]
fn a_containerd_that_hangs_gets_each_event_once() {
    let host = Containerd::start();
    let events_link = EventsLink::new(&host);
    let (shim, api) = running(&host, &events_link);
    let mut expected = begun();
    let daemon = Pid::from_raw(host.pid().expect("containerd runs") as i32);
    kill(daemon, Signal::SIGSTOP).expect("stop containerd");
    expected.extend(add_execs(&shim, &api, "e", 100));
    expected.extend(run_exec(&api, "e7"));
    // containerd's own shim sends an event again if it gets no answer in time. These seven seconds
    // are longer than that time.
    std::thread::sleep(Duration::from_secs(7));
    expected.extend(add_execs(&shim, &api, "f", 10));
    kill(daemon, Signal::SIGCONT).expect("let containerd go on");
    expect_events(&host, &expected);
    // If an event were sent twice, its duplicate would arrive before these later events.
    expected.extend(add_execs(&shim, &api, "g", 10));
    expect_events(&host, &expected);
}

#[test]
fn a_containerd_killed_repeatedly_gets_all_events() {
    let host = Containerd::start();
    let events_link = EventsLink::new(&host);
    let (shim, api) = running(&host, &events_link);
    let mut expected = begun();
    for round in 0..3 {
        // containerd dies while it receives some of these events, so its answer to the shim may be
        // lost.
        expected.extend(add_execs(&shim, &api, &format!("lost{round}-"), 50));
        host.crash();
        let _ = std::fs::remove_file(&events_link.link);
        expected.extend(add_execs(&shim, &api, &format!("kept{round}-"), 50));
        host.start_again();
        events_link.create();
        host.await_events("the last event has come", |events| {
            events
                .iter()
                .any(|event| topic_and_id(event) == *expected.last().expect("events"))
        });
    }
    let mut seen = task_events(&host);
    // An event is lost if containerd accepts the event and dies before a client subscribes. The
    // shim cannot prevent this. Events that happened while containerd was down must all arrive, in
    // order and once.
    seen.retain(|event| event.contains("kept"));
    expected.retain(|event| event.contains("kept"));
    assert_eq!(seen, expected);
}

#[test]
fn a_restarted_containerd_sees_the_current_state_of_its_tasks() {
    let host = Containerd::start();
    let witness =
        |id: &str, options: &[&str]| ContainerSpec::new(id).in_pod("pod1", id).witness(options);
    for id in ["stays", "paused"] {
        host.run(&witness(id, &[]));
        host.await_event(id, "start");
    }
    host.run(&witness("ends", &["--exit", "3", "--run-for", "1s"]));
    host.must(&["tasks", "pause", "paused"]);
    let attached = host.spawn_attached(&witness("attached", &["--exit", "5"]));
    host.await_event("attached", "start");
    let exec = host.spawn_exec("stays", "one", &["/bin/sleep", "1000"]);
    // Wait until the exec's Start is answered: if the caller vanishes before, the shim ends the
    // exec.
    host.await_events("the exec runs", |events| {
        let started = |event: &CtrEvent| event.topic == "/tasks/exec-started";
        events.iter().any(started)
    });
    let api = host.task_api("stays");
    host.crash();
    host.await_event("ends", "exit");
    // While containerd is down, another client of the shim kills the exec.
    api.kill("stays", "one", 9, false).expect("kill an exec");
    assert_eq!(api.wait("stays", "one").expect("wait").exit_status, 137);
    host.start_again();
    let states = ["stays", "paused", "ends", "attached"].map(|id| host.status(id));
    let (running, paused) = (Some(Status::Running), Some(Status::Paused));
    let is_deleted = Version::of_containerd().deletes_what_has_ended(false);
    let ended = (!is_deleted).then_some(Status::Stopped);
    assert_eq!(states, [running, paused, ended, running]);
    // The restarted containerd waits for the tasks' exits again.
    let waiting = Background::spawn(host.ctr_command(&["tasks", "attach", "paused"]));
    host.must(&["tasks", "resume", "paused"]);
    host.kill("paused", "SIGKILL");
    assert_eq!(waiting.finish(PATIENCE).code, Some(137));
    assert_eq!(host.exec("stays", &["/bin/echo", "alive"]).out(), "alive\n");
    host.kill("attached", "SIGTERM");
    assert_eq!(host.wait_exit("attached"), 5);
    // Killing containerd has ended the connections of these two `ctr` commands.
    drop((exec, attached));
}
