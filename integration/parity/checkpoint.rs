//! Checkpoint and restore by a real criu, on kernels where criu works.

use std::fs;
use std::path::{Path, PathBuf};

use containerd_shim_protos::api::{CheckpointTaskRequest, CreateTaskRequest, Empty};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::CheckpointOptions;
use ttrpc::proto::Code;

use super::both;
use crate::harness::{
    Answer, BareShim, Containerd, CtrEvent, PATIENCE, TaskApi, criu_works, eventually,
    runtime_under_test,
};

/// Starts the shim like [`BareShim::start`], and makes a directory for criu's log.
#[track_caller]
fn start(shim: &mut BareShim<'_>) {
    // containerd makes this directory too.
    fs::create_dir(shim.bundle().join("work")).unwrap();
    let command = shim.command("start");
    shim.try_start(command, &Any::new()).expect("start");
}

/// A script that counts up from one. The number is in memory, and is written to a file.
const COUNT: &str = "i=0; while :; do i=$((i+1)); echo $i > /shared/count; sleep 0.05; done";

fn count(host: &Containerd) -> u64 {
    let count = fs::read_to_string(host.shared_dir().join("count")).unwrap_or_default();
    count.trim().parse().unwrap_or_default()
}

#[track_caller]
fn await_more(host: &Containerd, than: u64) -> u64 {
    eventually("the program continues to count", PATIENCE * 3, || {
        count(host) > than
    });
    count(host)
}

/// A shim with a container whose program counts up. The container uses the host's network
/// namespace, because criu would need iptables for another network namespace.
fn counting<'host>(host: &'host Containerd, runtime: &str, id: &str) -> BareShim<'host> {
    let args = ["/bin/sh", "-c", COUNT];
    let mut shim = BareShim::prepare(host, runtime, id, &args, |config| {
        let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "network");
    });
    start(&mut shim);
    shim
}

fn checkpoint(api: &TaskApi, id: &str, image: &Path, exit: bool) -> Answer<Empty> {
    let mut options = CheckpointOptions::new();
    options.exit = exit;
    let request = CheckpointTaskRequest {
        id: id.to_owned(),
        path: image.display().to_string(),
        options: MessageField::some(Any {
            type_url: "containerd.runc.v1.CheckpointOptions".to_owned(),
            value: options.write_to_bytes().unwrap(),
            ..Any::new()
        }),
        ..Default::default()
    };
    api.call("Checkpoint", &request)
}

fn restoring(request: CreateTaskRequest, image: &Path) -> CreateTaskRequest {
    CreateTaskRequest {
        checkpoint: image.display().to_string(),
        ..request
    }
}

fn state(api: &TaskApi, id: &str) -> (String, bool) {
    let state = api.state(id, "").expect("State");
    (format!("{:?}", state.status), state.pid != 0)
}

#[test]
fn a_restored_container_continues_where_its_checkpoint_was_made() {
    if !criu_works() {
        return;
    }
    let seen = both(|host, runtime| {
        let [kept, image] = ["kept", "image"].map(|name| host.dir().join(name));
        let shim = counting(host, runtime, "a");
        let api = shim.api().deadline(PATIENCE * 3);
        let (request, _output) = shim.create_request_with_stdio();
        api.create(&request).expect("Create");
        api.start("a", "").expect("Start");
        let first = await_more(host, 5);
        checkpoint(&api, "a", &kept, false).expect("Checkpoint");
        let kept_running = state(&api, "a");
        let before = await_more(host, first + 2);
        checkpoint(&api, "a", &image, true).expect("Checkpoint");
        let code = api.wait("a", "").expect("Wait").exit_status;
        api.delete("a", "").expect("Delete");
        drop(shim);

        fs::remove_file(host.shared_dir().join("count")).unwrap();
        fs::remove_dir_all(host.dir().join("bundles/a")).unwrap();
        // The restored container has the same id as the original one, because criu restores the
        // cgroup too.
        let shim = counting(host, runtime, "a");
        let api = shim.api().deadline(PATIENCE * 3);
        let (request, _output) = shim.create_request_with_stdio();
        let created = api.create(&restoring(request, &image)).expect("Create").pid;
        let waits = state(&api, "a");
        let refused = api.kill("a", "", 9, false).expect_err("no process").0;
        let pid = api.start("a", "").expect("Start").pid;
        let runs = state(&api, "a");
        let same_pid = api.state("a", "").expect("State").pid == pid;
        let went_on = await_more(host, 0) >= before;
        let stats = api.stats("a").is_ok();
        api.kill("a", "", 9, false).expect("Kill");
        let end = api.wait("a", "").expect("Wait").exit_status;
        api.delete("a", "").expect("Delete");
        let topics = topics(host, "a", 2);
        (
            (kept_running, code, created, waits, refused),
            (runs, same_pid, went_on, stats, end),
            topics,
        )
    });
    let word = |word: &str, has_pid| (word.to_owned(), has_pid);
    let expected = (
        (
            word("RUNNING", true),
            137,
            0,
            word("CREATED", false),
            Code::NOT_FOUND,
        ),
        (word("RUNNING", true), true, true, true, 137),
        [RUN, RUN].concat().into_iter().map(str::to_owned).collect(),
    );
    assert_eq!(seen, expected);
}

#[test]
fn a_container_can_be_deleted_while_its_checkpoint_ends_it() {
    if !criu_works() {
        return;
    }
    let whole = both(|host, runtime| {
        let image = host.dir().join("image");
        let shim = counting(host, runtime, "a");
        let api = shim.api().deadline(PATIENCE * 3);
        let (request, _output) = shim.create_request_with_stdio();
        api.create(&request).expect("Create");
        api.start("a", "").expect("Start");
        await_more(host, 1);
        let written = std::thread::scope(|scope| {
            let writer = shim.api().deadline(PATIENCE * 3);
            let image = &image;
            let written = scope.spawn(move || checkpoint(&writer, "a", image, true).is_ok());
            api.wait("a", "").expect("Wait");
            api.delete("a", "").expect("Delete");
            written.join().unwrap()
        });
        (written, image.join("inventory.img").exists())
    });
    assert_eq!(whole, (true, true));
}

#[test]
fn a_held_container_is_restored_on_release() {
    if !criu_works() {
        return;
    }
    let host = Containerd::start();
    let image = host.dir().join("image");
    let runtime = runtime_under_test();
    let shim = counting(&host, &runtime, "app");
    let api = shim.api().deadline(PATIENCE * 3);
    let (request, _output) = shim.create_request_with_stdio();
    api.create(&request).expect("Create");
    api.start("app", "").expect("Start");
    let before = await_more(&host, 5);
    checkpoint(&api, "app", &image, true).expect("Checkpoint");
    api.wait("app", "").expect("Wait");
    drop(shim);
    fs::remove_dir_all(host.dir().join("bundles/app")).unwrap();
    fs::remove_file(host.shared_dir().join("count")).unwrap();

    let edit = |config: &mut serde_json::Value| {
        let annotations = [
            ("io.kubernetes.cri.sandbox-id", "pod"),
            ("usher/sidecars", "b"),
            ("usher/start-mode", "Hold"),
        ];
        config["annotations"] = serde_json::json!(std::collections::BTreeMap::from(annotations));
        let namespaces = config["linux"]["namespaces"].as_array_mut().unwrap();
        namespaces.retain(|namespace| namespace["type"] != "network");
    };
    let started = |id: &str, args: &[&str]| {
        let mut shim = BareShim::prepare(&host, &runtime, id, args, edit);
        start(&mut shim);
        shim
    };
    let app = started("app", &["/bin/sh", "-c", COUNT]);
    let api = app.api().deadline(PATIENCE * 3);
    let (request, _output) = app.create_request_with_stdio();
    api.create(&restoring(request, &image)).expect("Create");
    let held = api.start("app", "").expect("Start").pid;
    let refused = api.exec(&app.exec_request("x", &["/bin/true"])).is_err();
    let sidecar = started("b", &["/bin/sleep", "1000"]);
    assert_eq!((held, refused, count(&host)), (0, true, 0));
    api.create(&sidecar.create_request()).expect("Create");
    api.start("b", "").expect("Start");
    assert!(await_more(&host, 0) >= before);
    // The restored program starts to count before the OCI runtime reports the program's process to
    // the shim.
    eventually("the restored process is known", PATIENCE, || {
        state(&api, "app") == ("RUNNING".to_owned(), true)
    });
    api.kill("app", "", 9, false).expect("Kill");
    assert_eq!(api.wait("app", "").expect("Wait").exit_status, 137);
}

/// All events of a task, from its creation to its deletion. SIGKILL ends the container, so its exit
/// code is 137.
const RUN: [&str; 4] = [
    "/tasks/create",
    "/tasks/start",
    "/tasks/exit 137",
    "/tasks/delete 137",
];

/// Waits until the task has been deleted `times` times, and returns the topics of the task's
/// events.
#[track_caller]
fn topics(host: &Containerd, id: &str, times: usize) -> Vec<String> {
    host.await_events("the task is deleted", |events| {
        let deleted = |event: &&CtrEvent| event.topic == "/tasks/delete" && event.container() == id;
        events.iter().filter(deleted).count() == times
    });
    host.topics(id)
}

fn empty_image(host: &Containerd) -> PathBuf {
    let image = host.dir().join("no-image");
    fs::create_dir_all(&image).unwrap();
    image
}

#[test]
fn a_failed_restore_gives_its_reason_and_the_task_can_be_deleted() {
    let seen = both(|host, runtime| {
        let shim = counting(host, runtime, "a");
        let api = shim.api();
        let (request, _output) = shim.create_request_with_stdio();
        api.create(&restoring(request, &empty_image(host)))
            .expect("Create");
        let (code, message) = api.start("a", "").expect_err("nothing to restore");
        let again = api.start("a", "").is_err();
        let waits = state(&api, "a");
        let deleted = api.delete("a", "").expect("Delete").pid;
        // The error says either that the image is empty or that criu is missing.
        let reason = ["open", "CRIU version check failed"]
            .iter()
            .any(|reason| message.contains(&format!("OCI runtime restore failed: {reason}")));
        (code, reason, again, waits, deleted, topics(host, "a", 1))
    });
    let events = ["/tasks/create", "/tasks/delete 0"].map(str::to_owned);
    let waits = ("CREATED".to_owned(), false);
    assert_eq!(seen, (Code::UNKNOWN, true, true, waits, 0, events.to_vec()));
}

#[test]
fn a_failed_checkpoint_names_the_log_of_criu_and_the_task_continues() {
    let seen = both(|host, runtime| {
        let shim = counting(host, runtime, "a");
        let api = shim.api();
        let (request, _output) = shim.create_request_with_stdio();
        api.create(&request).expect("Create");
        let early = checkpoint(&api, "a", &empty_image(host), false).is_err();
        api.start("a", "").expect("Start");
        let image = Path::new("/dev/null/image");
        let (code, message) = checkpoint(&api, "a", image, true).expect_err("no directory");
        let log = format!("path= {}", shim.bundle().join("criu-dump.log").display());
        let said = message.contains(&log) && message.lines().count() == 1;
        (early, code, said, state(&api, "a"))
    });
    let running = ("RUNNING".to_owned(), true);
    assert_eq!(seen, (true, Code::UNKNOWN, true, running));
}

#[test]
fn a_container_held_before_its_restore_can_be_killed() {
    let host = Containerd::start();
    let annotations = [
        ("io.kubernetes.cri.sandbox-id", "pod"),
        ("usher/sidecars", "proxy"),
        ("usher/start-mode", "Hold"),
    ];
    let runtime = runtime_under_test();
    let shim = BareShim::start(&host, &runtime, "a", &["/bin/true"], |config| {
        config["annotations"] = serde_json::json!(std::collections::BTreeMap::from(annotations));
    });
    let api = shim.api();
    let request = restoring(shim.create_request(), &empty_image(&host));
    api.create(&request).expect("Create");
    api.start("a", "").expect("Start");
    api.kill("a", "", 9, false).expect("Kill");
    assert_eq!(api.wait("a", "").expect("Wait").exit_status, 137);
    api.delete("a", "").expect("Delete");
    assert_eq!(topics(&host, "a", 1), RUN);
}
