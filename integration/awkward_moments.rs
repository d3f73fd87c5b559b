//! Calls at awkward moments, sent directly to the shim without containerd. A slow OCI runtime is
//! imitated by a script that sleeps and then runs runc.

use std::time::{Duration, Instant};

use containerd_shim_protos::api::{CreateTaskRequest, Empty, ExecProcessRequest, PauseRequest};
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::Options;

use crate::harness::{
    BareShim, Containerd, PATIENCE, Reader, add_poststart_hook, eventually, host_pids, move_below,
    run, runtime_under_test, write_program,
};

const MS: Duration = Duration::from_millis(1);
const SLEEP: [&str; 2] = ["/bin/sleep", "1000"];

fn bare<'host>(host: &'host Containerd, args: &[&str]) -> BareShim<'host> {
    BareShim::start(host, &runtime_under_test(), "a", args, |_| ())
}

/// A create request with a slow OCI runtime: a script that sleeps before it runs the runc command
/// `verb`.
fn with_slow(
    host: &Containerd,
    shim: &BareShim<'_>,
    verb: &str,
    seconds: &str,
) -> CreateTaskRequest {
    let done = slow_is_done(host);
    let instead = format!(
        "sleep {seconds}; runc \"$@\"; code=$?; touch {}; exit $code",
        done.display()
    );
    with_script(host, shim, verb, &instead)
}

/// A create request whose OCI runtime is a script. For the runc command `verb` it runs the shell
/// code `instead`, for every other command runc itself.
fn with_script(
    host: &Containerd,
    shim: &BareShim<'_>,
    verb: &str,
    instead: &str,
) -> CreateTaskRequest {
    let path = host.dir().join("scripted-runc");
    let script =
        format!("#!/bin/sh\ncase \"$*\" in *' {verb} '*) {instead};; esac\nexec runc \"$@\"\n");
    write_program(&path, &script);
    let options = Options {
        binary_name: path.display().to_string(),
        ..Options::new()
    };
    CreateTaskRequest {
        options: MessageField::some(packed(&options)),
        ..shim.create_request()
    }
}

fn packed(options: &Options) -> Any {
    Any {
        type_url: "containerd.runc.v1.Options".to_owned(),
        value: options.write_to_bytes().expect("a message"),
        ..Any::new()
    }
}

/// Path of a file that appears once the slow command has finished.
fn slow_is_done(host: &Containerd) -> std::path::PathBuf {
    host.dir().join("slow-is-done")
}

/// The OCI runtime's `create` and `exec` write more to their standard error than a pipe can hold.
#[test]
fn an_oci_runtime_with_much_output_does_not_block() {
    let host = Containerd::start();
    let shim = bare(&host, &SLEEP);
    let says_much = "head -c 120000 /dev/zero | tr '\\0' x >&2";
    let scripted = with_script(&host, &shim, "create '*|*' exec", says_much);
    // No client reads the container's output.
    let (with_stdio, _output) = shim.create_request_with_stdio();
    let api = shim.api();
    let create = CreateTaskRequest {
        options: scripted.options,
        ..with_stdio
    };
    api.create(&create).expect("create");
    api.start("a", "").expect("start");
    let stderr = shim.fifo("exec-stderr");
    let _open = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&stderr);
    let exec = shim.exec_request("e", &["/bin/true"]);
    api.exec(&ExecProcessRequest { stderr, ..exec })
        .expect("exec");
    api.start("a", "e").expect("start of an exec");
    assert_eq!(api.wait("a", "e").expect("wait").exit_status, 0);
}

#[test]
fn an_exec_whose_start_failed_can_be_deleted_and_added_again() {
    let host = Containerd::start();
    let shim = bare(&host, &SLEEP);
    let api = shim.api();
    api.create(&shim.create_request()).expect("create");
    api.start("a", "").expect("start");
    api.exec(&shim.exec_request("e", &["/bin/nope"]))
        .expect("exec");
    api.start("a", "e").expect_err("there is no such program");
    api.wait("a", "e").expect_err("the exec will never start");
    let again = api.start("a", "e").expect_err("a second Start is refused");
    assert!(again.1.contains("was started before"), "{again:?}");
    api.delete("a", "e").expect("delete");
    api.exec(&shim.exec_request("e", &["/bin/true"]))
        .expect("the id is free");
    api.start("a", "e").expect("start");
    assert_eq!(api.wait("a", "e").expect("wait").exit_status, 0);
}

#[test]
fn an_exec_whose_caller_gave_up_during_start_is_killed() {
    let host = Containerd::start();
    let shim = bare(&host, &SLEEP);
    let api = shim.api();
    // The process starts, but the runc command that started it hangs.
    let hangs = format!(
        "runc \"$@\"; touch {}; sleep 1000; exit 1",
        slow_is_done(&host).display()
    );
    api.create(&with_script(&host, &shim, "exec", &hangs))
        .expect("create");
    api.start("a", "").expect("start");
    api.exec(&shim.exec_request("e", &SLEEP)).expect("exec");
    std::thread::scope(|scope| {
        let start = || shim.api().deadline(2000 * MS).start("a", "e");
        let started = scope.spawn(start);
        eventually("the exec starts", PATIENCE, || slow_is_done(&host).exists());
        started.join().unwrap().expect_err("too late");
    });
    api.delete("a", "e").expect("delete");
    let pids = || api.pids("a").expect("pids").processes.len();
    eventually("only init is left", PATIENCE, || pids() == 1);
}

#[test]
fn the_exit_of_a_container_waits_for_an_exec_that_is_being_started() {
    let host = Containerd::start();
    let shim = bare(&host, &SLEEP);
    let api = shim.api();
    api.create(&with_slow(&host, &shim, "exec", "0.5"))
        .expect("create");
    api.start("a", "").expect("start");
    api.exec(&shim.exec_request("e", &["/bin/true"]))
        .expect("exec");
    std::thread::scope(|scope| {
        let start = scope.spawn(|| shim.api().start("a", "e"));
        eventually("the exec is being started", PATIENCE, || {
            api.start("a", "e")
                .is_err_and(|(_, m)| m.contains("was started before"))
        });
        api.kill("a", "", 9, false).expect("kill");
        assert_eq!(api.wait("a", "").expect("wait").exit_status, 137);
        // The container has exited, so the exec's Start has returned or will return an error.
        assert!(start.is_finished() || start.join().unwrap().is_err());
    });
}

#[test]
fn a_program_that_exits_before_the_runtimes_start_returns_counts_as_started() {
    let host = Containerd::start();
    let args = ["/bin/sh", "-c", "exit 3"];
    let shim = BareShim::start(&host, &runtime_under_test(), "a", &args, add_poststart_hook);
    let api = shim.api();
    let slow = "runc \"$@\"; code=$?; sleep 0.5; exit $code";
    api.create(&with_script(&host, &shim, "start", slow))
        .expect("create");
    api.start("a", "").expect("start");
    assert_eq!(api.wait("a", "").expect("wait").exit_status, 3);
    api.delete("a", "").expect("delete");
    host.await_events("all events of the task", |events| {
        events.iter().any(|event| event.topic == "/tasks/delete")
    });
    let expected = [
        "/tasks/create",
        "/tasks/start",
        "/tasks/exit 3",
        "/tasks/delete 3",
    ];
    assert_eq!(host.topics("a"), expected);
}

#[test]
fn a_shim_exits_after_its_only_create_is_abandoned() {
    let host = Containerd::start();
    let shim = bare(&host, &["/bin/cat"]);
    let request = with_slow(&host, &shim, "create", "1");
    shim.api()
        .deadline(300 * MS)
        .create(&request)
        .expect_err("too late");
    // containerd also calls Delete and Shutdown after a Create that timed out.
    shim.api()
        .delete("a", "")
        .expect_err("the container was never created");
    shim.api().shutdown("a").expect("shutdown");
    eventually("the shim ends", PATIENCE, || host.shims().is_empty());
}

#[test]
fn killing_the_remaining_processes_spares_the_next_container_with_the_same_id() {
    let host = Containerd::start();
    let args = [
        "/bin/sh",
        "-c",
        "sleep 0.2; test -e /shared/again && exec sleep 1000",
    ];
    // In the host's PID namespace the container's other processes survive its first process, and
    // the shim has to kill them.
    let shim = BareShim::start(&host, &runtime_under_test(), "a", &args, host_pids);
    let api = shim.api();
    let request = with_slow(&host, &shim, "kill", "1");
    api.create(&request).expect("create");
    api.start("a", "").expect("start");
    api.wait("a", "").expect("wait");
    api.delete("a", "").expect("delete");
    std::fs::write(host.shared_dir().join("again"), "").expect("the sign");
    api.create(&request).expect("create again");
    api.start("a", "").expect("start again");
    let wait = shim.api().deadline(2500 * MS).wait("a", "");
    assert!(wait.is_err(), "it was killed: {wait:?}");
}

#[test]
fn stdin_can_be_closed_before_the_start() {
    let host = Containerd::start();
    let shim = bare(&host, &["/bin/cat"]);
    let api = shim.api();
    let (request, _output) = shim.create_request_with_stdio();
    api.create(&request).expect("create");
    api.close_stdin("a", "").expect("close");
    api.start("a", "").expect("start");
    assert_eq!(api.wait("a", "").expect("wait").exit_status, 0);
}

#[test]
fn a_task_that_was_not_started_cannot_be_paused() {
    let host = Containerd::start();
    let shim = bare(&host, &["/bin/cat"]);
    let api = shim.api();
    api.create(&shim.create_request()).expect("create");
    let pause = PauseRequest {
        id: "a".to_owned(),
        ..PauseRequest::new()
    };
    assert!(api.call::<Empty>("Pause", &pause).is_err());
    api.delete("a", "").expect("delete");
}

#[test]
fn unread_output_delays_a_delete_once_not_per_stream() {
    let host = Containerd::start();
    let much = "head -c 120000 /dev/zero; head -c 120000 /dev/zero >&2; \
                /bin/witness mark a full; exec sleep 1000";
    let shim = bare(&host, &["/bin/sh", "-c", much]);
    let api = shim.api();
    let (request, _output) = shim.create_request_with_stdio();
    api.create(&request).expect("create");
    api.start("a", "").expect("start");
    // The output exceeds the capacity of the unread FIFOs, so the rest stays in the pipes.
    host.await_event("a", "full");
    api.kill("a", "", 9, false).expect("kill");
    api.wait("a", "").expect("wait");
    let asked = Instant::now();
    api.delete("a", "").expect("delete");
    assert!(asked.elapsed() < 15_000 * MS, "{:?}", asked.elapsed());
}

#[test]
fn a_shim_start_short_of_descriptors_keeps_the_running_shims_socket() {
    let host = Containerd::start();
    let shim = bare(&host, &SLEEP);
    shim.api().create(&shim.create_request()).expect("create");
    // `start` may open four file descriptors: the three standard streams and one more.
    let mut command = shim.command("start");
    let program = command.get_program().to_owned();
    let args: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
    let mut limited = std::process::Command::new("/bin/sh");
    limited.args(["-c", "ulimit -n 4; exec \"$0\" \"$@\""]);
    limited.arg(program).args(args);
    limited.current_dir(command.get_current_dir().expect("the bundle"));
    limited.envs(
        command
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    host.enter(&mut limited);
    command.current_dir("/");
    let finished = run(limited, PATIENCE);
    assert!(
        !finished.ok(),
        "four descriptors were enough: {}",
        finished.out()
    );
    shim.api().state("a", "").expect("the shim is still found");
}

#[test]
fn the_error_names_a_missing_oci_runtime() {
    let host = Containerd::start();
    let shim = bare(&host, &SLEEP);
    let request = shim.create_request();
    let options = Options {
        binary_name: "no-runc".to_owned(),
        ..Options::new()
    };
    let (_, message) = shim
        .api()
        .create(&CreateTaskRequest {
            options: MessageField::some(packed(&options)),
            ..request
        })
        .expect_err("there is none of that name");
    assert!(message.contains("\"no-runc\""), "{message}");
    shim.api().shutdown("a").expect("shutdown");
    eventually("the shim ends", PATIENCE, || host.shims().is_empty());
}

/// The error contains the reason if the runtime's log does. Otherwise the reason is only in the
/// container's stderr. The log has the format of crun 1.28.
#[test]
fn a_failed_runtime_gives_its_reason_exactly_once() {
    let logged = r#"printf '{\n  "msg": "out of order",\n  "level": "error"\n}\n' > "$4"; "#;
    for (log, in_error, in_stream) in [
        (logged, "OCI runtime create failed: out of order", ""),
        (
            "",
            "OCI runtime create failed: exited with 7",
            "out of order\n",
        ),
    ] {
        let host = Containerd::start();
        let shim = bare(&host, &SLEEP);
        let instead = format!("{log}echo out of order >&2; exit 7");
        let request = CreateTaskRequest {
            stderr: shim.fifo("stderr"),
            ..with_script(&host, &shim, "create", &instead)
        };
        let stream = Reader::of(&request.stderr);
        let (_, message) = shim.api().create(&request).expect_err("Create fails");
        assert!(message.contains(in_error), "{message}");
        stream.await_open();
        assert_eq!(stream.finish(), in_stream);
    }
}

#[test]
fn signal_zero_tests_whether_the_process_exists() {
    let host = Containerd::start();
    let shim = bare(&host, &SLEEP);
    let api = shim.api();
    api.create(&shim.create_request()).expect("create");
    api.start("a", "").expect("start");
    api.kill("a", "", 0, false).expect("the container exists");
    api.kill("a", "", 9, false).expect("kill");
    api.wait("a", "").expect("wait");
    api.kill("a", "", 0, false)
        .expect_err("the container has exited");
}

#[test]
fn processes_in_cgroups_below_the_containers_belong_to_it() {
    let host = Containerd::start();
    let shim = bare(&host, &["/bin/sh", "-c", "sleep 1000 & wait"]);
    let api = shim.api();
    api.create(&shim.create_request()).expect("create");
    let init = api.start("a", "").expect("start").pid;
    let count = || api.pids("a").expect("pids").processes.len();
    eventually("both processes are there", PATIENCE, || count() == 2);
    // An init system in a container also moves itself to a cgroup below the container's cgroup.
    assert!(move_below(init));
    assert_eq!(count(), 2);
    assert!(api.stats("a").is_ok());
}

#[test]
fn an_exec_fails_and_is_killed_if_the_runtime_sends_no_terminal() {
    let host = Containerd::start();
    let shim = bare(&host, &SLEEP);
    let api = shim.api();
    let sends_none = "while [ \"$1\" != --pid-file ]; do shift; done; \
                      sleep 1000 > /dev/null 2>&1 & echo $! > \"$2\"; exit 0";
    let request = with_script(&host, &shim, "exec", sends_none);
    api.create(&request).expect("Create");
    api.start("a", "").expect("Start");
    let exec = ExecProcessRequest {
        terminal: true,
        ..shim.exec_request("one", &["/bin/true"])
    };
    api.exec(&exec).expect("Exec");
    let (_, message) = api.start("a", "one").expect_err("the exec has no terminal");
    assert!(
        message.contains("terminal: the OCI runtime sent none within 5s"),
        "{message}"
    );
    let console = |name: &str| name.ends_with(".console");
    let names = std::fs::read_dir(shim.bundle()).expect("the bundle");
    let names = names.map(|entry| entry.expect("an entry").file_name());
    assert!(
        !names
            .into_iter()
            .any(|name| console(&name.to_string_lossy()))
    );
}
