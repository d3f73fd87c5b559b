//! A shim that dies leaves processes, mounts, sockets and files. The shim's `delete` command
//! removes them.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use containerd_shim_protos::api::{DeleteResponse, PauseRequest, Status};
use containerd_shim_protos::protobuf::Message;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{
    BareShim, ContainerSpec, Containerd, Finished, Gates, PATIENCE, TaskApi, eventually, host_pids,
    poll, run, runtime_under_test, times,
};

fn kill_process(pid: u32) {
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("kill the shim");
}

fn bare<'host>(host: &'host Containerd, args: &[&str], edit: fn(&mut Value)) -> BareShim<'host> {
    BareShim::start(host, &runtime_under_test(), "a", args, edit)
}

/// Kills the shim, and waits until it is gone.
fn end_shim(host: &Containerd, shim: &BareShim<'_>) {
    let pid = shim.api().connect("a").expect("connect").shim_pid;
    kill_process(pid);
    eventually("the shim is gone", PATIENCE, || host.shims().is_empty());
}

/// Runs the shim's `delete` as containerd does.
fn delete(shim: &BareShim<'_>) -> Finished {
    run(shim.command("delete"), PATIENCE)
}

fn answer(finished: &Finished) -> DeleteResponse {
    assert!(finished.ok(), "delete: {}", finished.err());
    DeleteResponse::parse_from_bytes(&finished.stdout).expect("an answer")
}

/// Waits until nothing of the container is left.
fn await_no_remains(host: &Containerd) {
    let mut remains = Vec::new();
    let nothing = poll(PATIENCE, || {
        remains = host.remains();
        remains.is_empty().then_some(())
    });
    assert!(nothing.is_some(), "left behind: {remains:#?}");
}

fn create_and_start(shim: &BareShim<'_>) -> (TaskApi, u32) {
    let api = shim.api();
    api.create(&shim.create_request()).expect("create");
    let pid = api.start("a", "").expect("start").pid;
    (api, pid)
}

const FAMILY: &str =
    "sleep 1001 & setsid sleep 1002 & (setsid sleep 1003 &); /bin/witness mark a up; sleep 1000";

/// A script that starts a process every 50 ms, without end. Each process soon becomes an orphan.
const RESTLESS: &str = "/bin/witness mark a up; while :; do (sleep 0.05 &); done";

fn what_ran_is_killed(script: &str, edit: fn(&mut Value), before: fn(&TaskApi)) {
    let host = Containerd::start();
    let shim = bare(&host, &["/bin/sh", "-c", script], edit);
    let (api, pid) = create_and_start(&shim);
    host.await_event("a", "up");
    before(&api);
    end_shim(&host, &shim);
    let answer = answer(&delete(&shim));
    assert_eq!((answer.exit_status, answer.pid), (137, pid));
    await_no_remains(&host);
}

fn pause(api: &TaskApi) {
    let request = PauseRequest {
        id: "a".to_owned(),
        ..PauseRequest::new()
    };
    let paused = api.call::<containerd_shim_protos::api::Empty>("Pause", &request);
    paused.expect("pause");
}

#[test]
fn all_processes_in_the_pid_namespace_are_killed() {
    what_ran_is_killed(FAMILY, |_| (), |_| ());
}

#[test]
fn all_processes_of_a_container_without_pid_namespace_are_killed() {
    what_ran_is_killed(FAMILY, host_pids, |_| ());
}

#[test]
fn remaining_processes_without_a_pid_namespace_are_killed_after_init_died() {
    let kill_init = |api: &TaskApi| {
        let shim = api.connect("a").expect("connect");
        // The shim is stopped, so that it cannot kill the remaining processes itself.
        kill(Pid::from_raw(shim.shim_pid as i32), Signal::SIGSTOP).expect("stop the shim");
        kill_process(shim.task_pid);
    };
    let host = Containerd::start();
    let shim = bare(&host, &["/bin/sh", "-c", FAMILY], host_pids);
    let (api, _) = create_and_start(&shim);
    host.await_event("a", "up");
    let pid = api.connect("a").expect("connect").shim_pid;
    kill_init(&api);
    kill_process(pid);
    eventually("the shim is gone", PATIENCE, || host.shims().is_empty());
    assert_eq!(answer(&delete(&shim)).exit_status, 137);
    await_no_remains(&host);
}

#[test]
fn all_processes_of_a_paused_container_are_killed() {
    what_ran_is_killed(FAMILY, |_| (), pause);
}

#[test]
fn all_processes_of_a_paused_container_without_pid_namespace_are_killed() {
    what_ran_is_killed(FAMILY, host_pids, pause);
}

#[test]
fn endlessly_forking_processes_are_killed() {
    what_ran_is_killed(RESTLESS, host_pids, |_| ());
}

#[test]
fn a_container_that_was_never_started_is_killed() {
    let host = Containerd::start();
    let shim = bare(&host, &["/bin/sleep", "1000"], |_| ());
    let created = shim.api().create(&shim.create_request()).expect("create");
    end_shim(&host, &shim);
    assert_eq!(answer(&delete(&shim)).pid, created.pid);
    await_no_remains(&host);
}

#[test]
fn a_runtime_command_that_outlives_the_shim_leaves_nothing() {
    for verb in ["create", "after-create", "exec", "after-exec"] {
        let host = Containerd::start();
        let shim = bare(&host, &["/bin/sleep", "1000"], host_pids);
        let gates = Gates::new(&host);
        let api = shim.api();
        let create = gates.with(shim.create_request());
        let create = || shim.api().create(&create);
        std::thread::scope(|scope| {
            if verb.ends_with("exec") {
                create().expect("create");
                api.start("a", "").expect("start");
                api.exec(&shim.exec_request("e", &["/bin/sleep", "1000"]))
                    .expect("exec");
                gates.close(verb, "a");
                scope.spawn(|| shim.api().start("a", "e"));
            } else {
                gates.close(verb, "a");
                scope.spawn(create);
            }
            gates.await_waiting(verb);
            end_shim(&host, &shim);
            let deleting = scope.spawn(|| delete(&shim));
            std::thread::sleep(Duration::from_millis(100));
            gates.open(verb);
            assert_eq!(answer(&deleting.join().expect("delete")).exit_status, 137);
        });
        await_no_remains(&host);
    }
}

#[test]
fn delete_does_not_wait_for_a_runtime_command_that_hangs() {
    let host = Containerd::start();
    let shim = bare(&host, &["/bin/sleep", "1000"], |_| ());
    let gates = Gates::new(&host);
    gates.close("create", "a");
    std::thread::scope(|scope| {
        scope.spawn(|| shim.api().create(&gates.with(shim.create_request())));
        gates.await_waiting("create");
        end_shim(&host, &shim);
        // containerd waits five seconds for the `delete` command.
        let deleted = run(shim.command("delete"), Duration::from_millis(4500));
        assert_eq!(answer(&deleted).exit_status, 137);
    });
    await_no_remains(&host);
}

#[test]
fn delete_names_a_missing_runtime_and_still_kills_the_processes() {
    let host = Containerd::start();
    let shim = bare(&host, &["/bin/sh", "-c", FAMILY], host_pids);
    let gates = Gates::new(&host);
    let api = shim.api();
    api.create(&gates.with(shim.create_request()))
        .expect("create");
    api.start("a", "").expect("start");
    host.await_event("a", "up");
    let rootfs = mount_in(&host, &shim, &["rootfs"]);
    end_shim(&host, &shim);
    let elsewhere = gates.binary().with_extension("moved");
    fs::rename(gates.binary(), &elsewhere).expect("move the runtime away");
    let failed = delete(&shim);
    assert!(
        !failed.ok(),
        "the OCI runtime cannot have forgotten the container"
    );
    let name = gates.binary().display().to_string();
    assert!(failed.err().contains(&name), "{}", failed.err());
    let is_left = |what: &&String| what.starts_with("process") || what.starts_with("mount");
    eventually("nothing runs, nothing is mounted", PATIENCE, || {
        !host.remains().iter().any(|what| is_left(&what))
    });
    drop(rootfs);
    // When the OCI runtime can be executed again, a second `delete` removes everything.
    fs::rename(&elsewhere, gates.binary()).expect("move the runtime back");
    assert_eq!(answer(&delete(&shim)).exit_status, 137);
    await_no_remains(&host);
}

/// Makes each of these directories in the bundle, and mounts a tmpfs on each.
fn mount_in(host: &Containerd, shim: &BareShim<'_>, below: &[&str]) -> Vec<String> {
    let mut mounted = Vec::new();
    for path in below {
        let target = shim.bundle().join(path);
        let mut mount = Command::new("/bin/busybox");
        let script = "mkdir -p \"$0\" && mount -t tmpfs none \"$0\"";
        mount.args(["sh", "-c", script]).arg(&target);
        host.enter(&mut mount);
        assert!(run(mount, PATIENCE).ok(), "mount {path}");
        mounted.push(format!("mount {}", target.display()));
    }
    mounted
}

#[test]
fn mounts_below_the_root_file_system_are_unmounted() {
    let host = Containerd::start();
    for below in [
        &["rootfs", "rootfs", "rootfs/one", "rootfs/one/two"][..],
        // In this case the root file system itself is not mounted.
        &["rootfs/one", "rootfs/one/two", "rootfs/a b"],
    ] {
        let shim = BareShim::prepare(&host, &runtime_under_test(), "a", &["/bin/true"], |_| ());
        for mount in mount_in(&host, &shim, below) {
            let remains = host.remains();
            assert!(
                remains.iter().any(|what| what.starts_with("mount")),
                "{mount}"
            );
        }
        answer(&delete(&shim));
        await_no_remains(&host);
        fs::remove_dir_all(shim.bundle()).expect("remove the bundle");
    }
}

/// For a moment, `runc create` mounts its own program on a file in runc's state directory. If runc
/// is killed during this moment, the mount remains.
#[test]
fn a_killed_creates_mount_in_the_runtimes_state_is_unmounted() {
    let host = Containerd::start();
    let shim = BareShim::prepare(&host, &runtime_under_test(), "a", &["/bin/true"], |_| ());
    let target = format!("/run/containerd/runc/{}/a/runc.z0R0l5", host.namespace);
    let mut mount = Command::new("/bin/busybox");
    let script = "mkdir -p \"$0\" && mount -t tmpfs none \"$0\"";
    mount.args(["sh", "-c", script, &target]);
    host.enter(&mut mount);
    assert!(run(mount, PATIENCE).ok(), "mount {target}");
    answer(&delete(&shim));
    await_no_remains(&host);
}

#[test]
fn delete_works_on_an_incomplete_bundle() {
    let host = Containerd::start();
    // The first `delete` finds neither the configuration nor the options. The second `delete` finds
    // these files, but cannot parse them.
    let shim = BareShim::prepare(&host, &runtime_under_test(), "a", &["/bin/true"], |_| ());
    fs::remove_file(shim.bundle().join("config.json")).expect("remove the configuration");
    let deleted = answer(&delete(&shim));
    assert_eq!((deleted.exit_status, deleted.pid), (137, 0));
    for name in [
        "config.json",
        "options.json",
        "init.pid",
        "address",
        "exit.json",
    ] {
        fs::write(shim.bundle().join(name), "{ nonsense").expect("nonsense");
    }
    let deleted = answer(&delete(&shim));
    assert_eq!((deleted.exit_status, deleted.pid), (137, 0));
}

#[test]
fn an_ended_container_keeps_its_exit_code_when_its_shim_dies() {
    let host = Containerd::start();
    let spec = |id: &str, args: &[&str]| ContainerSpec::new(id).args(args).in_pod("pod1", id);
    let ended = [("a", 0), ("b", 42), ("c", 255)];
    host.run(&spec("d", &["/bin/sleep", "1000"]));
    for (id, code) in ended {
        host.run(&spec(id, &["/bin/sh", "-c", &format!("exit {code}")]));
        assert_eq!(host.wait_exit(id), code);
    }
    kill_process(host.shim("d").pid);
    for (id, code) in ended.into_iter().chain([("d", 137)]) {
        host.await_events("the task was deleted", |events| {
            let mut deleted = events.iter().filter(|e| e.topic == "/tasks/delete");
            deleted.any(|e| e.container() == id)
        });
        let exit = format!("/tasks/exit {code}");
        let mut expected = vec![exit.clone(), format!("/tasks/delete {code}")];
        // This container had exited before, so the shim had already published its exit.
        if id != "d" {
            expected.insert(0, exit);
        }
        let mut topics = host.topics(id);
        topics
            .retain(|topic| topic.starts_with("/tasks/exit") || topic.ends_with(char::is_numeric));
        assert_eq!(topics, expected, "{id}");
    }
    await_no_remains(&host);
}

/// containerd's own shim records the exit of a container in `exit.json` from version 2.4 on. An
/// administrator may replace this shim by usher while the container exists, so usher's `delete`
/// reads the record.
#[test]
fn delete_reports_an_exit_recorded_by_another_shim() {
    let host = Containerd::start();
    let shim = BareShim::prepare(&host, &runtime_under_test(), "a", &["/bin/true"], |_| ());
    let theirs = r#"{"Timestamp":"2026-11-22T22:08:09.5+01:30","Pid":4242,"Status":0}"#;
    fs::write(shim.bundle().join("exit.json"), theirs).expect("the exit");
    let deleted = answer(&delete(&shim));
    assert_eq!((deleted.exit_status, deleted.pid), (0, 4242));
    let at = deleted.exited_at;
    assert_eq!((at.seconds, at.nanos), (1_795_379_889, 500_000_000));
}

#[test]
fn an_exit_that_cannot_be_recorded_is_still_published() {
    let host = Containerd::start();
    let shim = bare(&host, &["/bin/sh", "-c", "exit 3"], |_| ());
    let api = shim.api();
    api.create(&shim.create_request()).expect("create");
    fs::create_dir(shim.bundle().join("exit.json")).expect("a directory in place of the file");
    let pid = api.start("a", "").expect("start").pid;
    assert_eq!(api.wait("a", "").expect("wait").exit_status, 3);
    end_shim(&host, &shim);
    let deleted = answer(&delete(&shim));
    assert_eq!((deleted.exit_status, deleted.pid), (137, pid));
}

#[test]
fn a_container_whose_bundle_has_lost_its_files_is_killed() {
    let host = Containerd::start();
    let shim = bare(&host, &["/bin/sh", "-c", FAMILY], host_pids);
    create_and_start(&shim);
    host.await_event("a", "up");
    end_shim(&host, &shim);
    for name in ["config.json", "init.pid"] {
        fs::remove_file(shim.bundle().join(name)).expect("remove it");
    }
    assert_eq!(answer(&delete(&shim)).exit_status, 137);
    await_no_remains(&host);
}

fn in_pod(config: &mut Value) {
    config["annotations"] = json!({ "io.kubernetes.cri.sandbox-id": "first" });
}

/// Starts a container of the pod `first`.
fn member<'host>(
    host: &'host Containerd,
    id: &str,
    args: &[&str],
    edit: fn(&mut Value),
) -> BareShim<'host> {
    let shim = BareShim::start(host, &runtime_under_test(), id, args, edit);
    shim.api().create(&shim.create_request()).expect("create");
    shim.api().start(id, "").expect("start");
    shim
}

#[test]
fn delete_for_the_first_container_of_a_living_shim_spares_the_others() {
    let host = Containerd::start();
    let [first, _other] =
        ["first", "other"].map(|id| member(&host, id, &["/bin/sleep", "1000"], in_pod));
    let api = first.api();
    api.kill("first", "", 9, true).expect("kill");
    api.wait("first", "").expect("wait");
    api.delete("first", "").expect("delete");
    answer(&delete(&first));
    let state = api.state("other", "").expect("state");
    assert_eq!(state.status.enum_value_or_default(), Status::RUNNING);
}

/// containerd 2.3 runs `delete` only for the sandbox, and removes the bundles of the pod's other
/// containers itself.
#[test]
fn delete_for_the_first_container_deletes_the_others_of_its_shim() {
    let with_host_pids = |config: &mut Value| {
        host_pids(config);
        in_pod(config);
    };
    for bundle_is_left in [true, false] {
        let host = Containerd::start();
        let script = ["/bin/sh", "-c", FAMILY];
        let [first, a] = ["first", "a"].map(|id| member(&host, id, &script, with_host_pids));
        host.await_event("a", "up");
        end_shim(&host, &a);
        if !bundle_is_left {
            fs::remove_dir_all(a.bundle()).expect("remove the bundle");
        }
        answer(&delete(&first));
        await_no_remains(&host);
    }
}

/// Up to 2.2, containerd runs `delete` for the sandbox and for each container of the pod.
/// containerd gives each of these commands five seconds. So no command may wait for another.
#[test]
fn delete_for_the_first_container_skips_a_container_that_another_delete_has_locked() {
    let host = Containerd::start();
    let [first, a, b] =
        ["first", "a", "b"].map(|id| member(&host, id, &["/bin/sleep", "1000"], in_pod));
    let pid = |shim: &BareShim<'_>, id: &str| shim.api().state(id, "").expect("state").pid;
    let [pid_of_a, pid_of_b] = [pid(&a, "a"), pid(&b, "b")];
    end_shim(&host, &a);
    // Holds the lock until its standard input is closed.
    let mut lock = Command::new("flock");
    let state = format!("/run/containerd/runc/{}/a", host.namespace);
    lock.args([&state, "sh", "-c", "echo locked; cat"]);
    lock.stdin(Stdio::piped()).stdout(Stdio::piped());
    host.enter(&mut lock);
    let mut lock = lock.spawn().expect("flock");
    let mut said = [0; 7];
    let output = lock.stdout.as_mut().expect("a pipe");
    output.read_exact(&mut said).expect("a locked directory");
    answer(&delete(&first));
    let lives = |pid: u32| kill(Pid::from_raw(pid as i32), None).is_ok();
    eventually("b is killed", PATIENCE, || !lives(pid_of_b));
    assert!(lives(pid_of_a));
    drop(lock.stdin.take());
    assert!(lock.wait().expect("wait").success());
    answer(&delete(&a));
    await_no_remains(&host);
}

/// If containerd gives up a container, it may remove the container's bundle before it runs
/// `delete`.
#[test]
fn delete_removes_the_sockets_of_a_dead_shim_without_a_bundle() {
    let in_pod = |config: &mut Value| {
        config["annotations"] = json!({ "io.kubernetes.cri.sandbox-id": "pod1" });
    };
    // In the second round the sockets are named after the pod. `delete` cannot infer the pod's name
    // from the container's id.
    for edit in [|_: &mut Value| (), in_pod] {
        let host = Containerd::start();
        let shim = bare(&host, &["/bin/sleep", "1000"], edit);
        let (api, pid) = create_and_start(&shim);
        drop(api);
        end_shim(&host, &shim);
        kill_process(pid);
        for name in ["config.json", "options.json", "init.pid", "address"] {
            let _ = fs::remove_file(shim.bundle().join(name));
        }
        answer(&delete(&shim));
        await_no_remains(&host);
    }
}

#[test]
fn the_next_container_removes_the_sockets_of_an_abandoned_shim() {
    let host = Containerd::start();
    let args = ["/bin/sleep", "1000"];
    let mut dead = BareShim::start(&host, &runtime_under_test(), "dead", &args, |_| ());
    let pid = dead.pid();
    kill_process(pid);
    eventually("the shim is gone", PATIENCE, || host.shims().is_empty());
    dead.address.clear();
    let other = bare(&host, &args, |_| ());
    let (api, _) = create_and_start(&other);
    let socket = |what: &&String| what.contains("/run/s/") || what.contains("/run/usher/");
    // The shim may have died before it made the second of its control sockets.
    let left = host.remains();
    let counted = left.iter().filter(socket).count();
    assert!((5..=6).contains(&counted), "{left:#?}");
    answer(&delete(&BareShim::prepare(
        &host,
        &runtime_under_test(),
        "gone",
        &args,
        |_| (),
    )));
    // Another shim still runs. `delete` must not remove the sockets of this shim.
    let left = host.remains();
    assert_eq!(left.iter().filter(socket).count(), 3, "{left:#?}");
    api.state("a", "").expect("the other is there");
}

#[test]
fn delete_leaves_the_rest_of_the_pod_alone() {
    let host = Containerd::start();
    let in_pod = |config: &mut Value| {
        config["annotations"] = json!({ "io.kubernetes.cri.sandbox-id": "pod1" });
    };
    let args = ["/bin/sleep", "1000"];
    let runtime = runtime_under_test();
    let b = BareShim::start(&host, &runtime, "b", &args, in_pod);
    let a = BareShim::start(&host, &runtime, "a", &args, in_pod);
    for shim in [&b, &a] {
        shim.api().create(&shim.create_request()).expect("create");
        shim.api().start(&shim.id, "").expect("start");
    }
    let api = b.api();
    api.kill("a", "", 9, false).expect("kill");
    api.wait("a", "").expect("wait");
    api.delete("a", "").expect("delete");
    api.shutdown("a").expect("shutdown");
    answer(&delete(&a));
    let state = b.api().state("b", "").expect("the shim is found");
    assert_eq!(format!("{:?}", state.status), "RUNNING");
    // The shim does not know the container `c`. So `delete` for `c` must not affect the pod.
    let c = BareShim::start(&host, &runtime, "c", &args, in_pod);
    answer(&delete(&c));
    let state = b.api().state("b", "").expect("the shim is found");
    assert_eq!(format!("{:?}", state.status), "RUNNING");
    assert_eq!(host.shims().len(), 1);
}

/// Marsaglia's xorshift: good enough to choose random moments that a seed can repeat.
struct Random(u64);

impl Random {
    /// A generator with the seed in `USHER_TEST_SEED`. If the variable is not set, the clock gives
    /// the seed. Prints the seed, so that a failed test can be repeated.
    fn new() -> Self {
        let given = std::env::var("USHER_TEST_SEED").ok();
        let clock = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map(|since| since.as_nanos())
        };
        let seed = given.and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| clock().map_or(1, |nanos| nanos as u64 | 1));
        eprintln!("USHER_TEST_SEED={seed}");
        Self(seed)
    }

    fn below(&mut self, limit: Duration) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        Duration::from_nanos(self.0 % limit.as_nanos() as u64)
    }
}

/// Process ids of the shims that serve calls. Processes of the shim's `start` command are left out.
fn serving(host: &Containerd) -> Vec<u32> {
    let mut shims = host.shims();
    shims.retain(|pid| {
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        !words.split('\0').any(|word| word == "start")
    });
    shims
}

/// True if containerd is connected to the shim of a task. If any shim dies before containerd
/// connects, containerd forgets the shim without running `delete`, and the shim's socket remains.
fn is_connected(host: &Containerd, id: &str) -> bool {
    let address = fs::read_to_string(host.bundle_dir(id).join("address")).unwrap_or_default();
    let path = address.trim_start_matches("unix://");
    let sockets = fs::read_to_string("/proc/net/unix").expect("the sockets");
    // State 03 is "connected" (`include/uapi/linux/net.h`).
    let mut sockets = sockets.lines().map(|line| line.split_whitespace());
    sockets.any(|mut fields| {
        let state = fields.nth(5);
        !path.is_empty() && state == Some("03") && fields.nth(1) == Some(path)
    })
}

#[test]
fn a_shim_that_dies_at_any_moment_leaves_nothing() {
    let mut random = Random::new();
    let host = Containerd::start();
    for number in 0..30 {
        let id = format!("a{number}");
        let spec = ContainerSpec::new(&id).args(&["/bin/sleep", "1000"]);
        let ctr = host.spawn_run(&spec);
        let mut shims = Vec::new();
        eventually("there is a shim", PATIENCE, || {
            shims = serving(&host);
            !shims.is_empty()
        });
        eventually("containerd talks to it", PATIENCE, || {
            is_connected(&host, &id)
        });
        let moment = random.below(Duration::from_millis(150));
        std::thread::sleep(moment);
        for pid in shims {
            // The shim may have exited already.
            let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
        }
        ctr.finish(2 * PATIENCE);
        host.ctr(&["tasks", "delete", "--force", &id]);
        eventually(&format!("{id} can be removed"), PATIENCE, || {
            host.ctr(&["containers", "delete", &id]).ok()
                || !host.must(&["containers", "list", "--quiet"]).contains(&id)
        });
        let mut remains = Vec::new();
        let nothing = poll(PATIENCE, || {
            remains = host.remains();
            remains.is_empty().then_some(())
        });
        assert!(
            nothing.is_some(),
            "{number}, after {moment:?}: {remains:#?}"
        );
    }
}

/// If the caller vanishes during a Create, containerd kills the shim's `start` command. containerd
/// then does not know the shim that `start` has started.
#[test]
fn a_caller_that_dies_while_its_shim_starts_leaves_nothing() {
    let mut random = Random::new();
    let host = Containerd::start();
    for number in 0..times(20, 60) {
        let id = format!("a{number}");
        let ctr = host.spawn_run(&ContainerSpec::new(&id).args(&["/bin/sleep", "1000"]));
        let bundle = host.bundle_dir(&id);
        eventually("there is a bundle", PATIENCE, || bundle.exists());
        let moment = random.below(Duration::from_millis(40));
        std::thread::sleep(moment);
        // Dropping `ctr` kills it with SIGKILL.
        drop(ctr);
    }
    host.delete_all();
    // A shim that gets no calls checks every ten seconds if it may end. The shim of the next
    // container removes all other leftovers that containerd does not know.
    let next = || {
        host.run(&ContainerSpec::new("next"));
        host.delete_all().is_empty()
    };
    eventually("nothing is left behind", 3 * PATIENCE, next);
}
