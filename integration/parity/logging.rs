//! Output to a file or a logging program instead of a client.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use containerd_shim_protos::api::CreateTaskRequest;
use serde_json::json;

use super::{both, script};
use crate::harness::{
    BareShim, Containerd, PATIENCE, TaskApi, eventually, runtime_under_test, write_program,
};

/// Writes a logging program, and returns its path.
fn program(host: &Containerd, script: &str) -> String {
    let path = host.dir().join("logger");
    let dir = host.dir().display();
    // The shim gives the logging program hardly any environment, and no useful working directory.
    let head = format!("#!/bin/busybox sh\nexport PATH=/usr/bin:/bin\ncd {dir}\necho $$ > pid\n");
    write_program(&path, &format!("{head}{script}"));
    path.display().to_string()
}

/// A logging program that writes both streams to separate files. It exits when both streams have
/// ended.
const KEEPS: &str = "echo \"$CONTAINER_ID $CONTAINER_NAMESPACE $*\" > args\n\
                     env | grep -c = > env\n\
                     cat <&3 3<&- 4<&- 5>&- > out & cat <&4 3<&- 4<&- 5>&- > err &\n\
                     exec 3<&- 4<&- 5>&-\nwait\n";

fn read(host: &Containerd, name: &str) -> String {
    fs::read_to_string(host.dir().join(name)).unwrap_or_default()
}

#[track_caller]
fn program_has_ended(host: &Containerd) {
    let process = format!("/proc/{}", read(host, "pid").trim());
    assert!(
        process.len() > "/proc/".len(),
        "the logging program never ran"
    );
    eventually("the logging program has ended", PATIENCE, || {
        !fs::exists(&process).unwrap_or(true)
    });
}

fn bare<'a>(host: &'a Containerd, runtime: &str, script: &str) -> BareShim<'a> {
    BareShim::start(host, runtime, "a", &["/bin/sh", "-c", script], |_| ())
}

fn logging_to(request: CreateTaskRequest, uri: &str) -> CreateTaskRequest {
    CreateTaskRequest {
        stdout: uri.to_owned(),
        stderr: uri.to_owned(),
        ..request
    }
}

#[test]
fn a_logging_program_gets_the_output() {
    let seen = both(|host, runtime| {
        let uri = format!("binary://{}?id=web%201", program(host, KEEPS));
        let talks = script(runtime, "a", "echo out; seq 1 40000; echo err >&2; exit 3");
        host.run(&talks.option(&["--log-uri", &uri]));
        let code = host.wait_exit("a");
        host.delete("a");
        program_has_ended(host);
        let args = read(host, "args").replace(&host.namespace, "namespace");
        // The logging program has only its own environment variables and those of the shell.
        let is_poor = read(host, "env").trim().parse::<u32>().expect("a number") < 8;
        (code, args, is_poor, read(host, "out"), read(host, "err"))
    });
    let expected: String = (1..=40000).map(|n| format!("{n}\n")).collect();
    assert_eq!(seen.0, 3);
    assert_eq!((seen.1.as_str(), seen.2), ("a namespace id web 1\n", true));
    assert!(seen.3 == format!("out\n{expected}"), "{}", seen.3.len());
    assert_eq!(seen.4, "err\n");
}

#[test]
fn a_logging_program_gets_the_output_of_an_exec() {
    let seen = both(|host, runtime| {
        let shim = bare(host, runtime, "sleep 1000");
        let api = shim.api();
        api.create(&shim.create_request()).expect("Create");
        api.start("a", "").expect("Start");
        let uri = format!("binary://{}", program(host, KEEPS));
        let mut exec = shim.exec_request("one", &["/bin/sh", "-c", "echo out; echo err >&2"]);
        (exec.stdout, exec.stderr) = (uri.clone(), uri);
        api.exec(&exec).expect("Exec");
        api.start("a", "one").expect("Start");
        api.wait("a", "one").expect("Wait");
        api.delete("a", "one").expect("Delete");
        program_has_ended(host);
        let args = read(host, "args").replace(&host.namespace, "namespace");
        (args, read(host, "out"), read(host, "err"))
    });
    let expected = ("one namespace \n", "out\n", "err\n");
    assert_eq!((&*seen.0, &*seen.1, &*seen.2), expected);
}

#[test]
fn a_logging_program_gets_the_output_of_a_terminal() {
    let seen = both(|host, runtime| {
        let shim = BareShim::start(
            host,
            runtime,
            "a",
            &["/bin/sh", "-c", "echo out; seq 1 2000"],
            |config| config["process"]["terminal"] = json!(true),
        );
        let uri = format!("binary://{}", program(host, KEEPS));
        let request = CreateTaskRequest {
            terminal: true,
            ..logging_to(shim.create_request(), &uri)
        };
        run(&shim.api(), &request);
        let output = || read(host, "out");
        eventually("all was read", PATIENCE, || {
            output().ends_with("\n2000\r\n")
        });
        if !host.is_reference() {
            // Under containerd's own shim, the logging program may still run.
            program_has_ended(host);
        }
        output()
    });
    let expected: String = (1..=2000).map(|n| format!("{n}\r\n")).collect();
    assert!(seen == format!("out\r\n{expected}"), "{}", seen.len());
}

/// Creates a container with this logging program. Returns the result and how long it took.
#[track_caller]
fn create(host: &Containerd, uri: &str) -> (Result<(), String>, Duration) {
    let shim = bare(host, &runtime_under_test(), "echo words");
    let api = shim.api();
    let files = open_files(shim.pid());
    let begun = Instant::now();
    let created = api.create(&logging_to(shim.create_request(), uri));
    let took = begun.elapsed();
    eventually("no descriptor is left", PATIENCE, || {
        open_files(shim.pid()) == files
    });
    (created.map(drop).map_err(|(_, message)| message), took)
}

fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count)
}

#[test]
fn a_logging_program_that_cannot_start_is_an_error_and_leaves_nothing() {
    let host = Containerd::start();
    let (created, _) = create(&host, "binary:///nowhere/logger");
    let message = created.expect_err("there is no such program");
    assert!(
        message.contains("\"/nowhere/logger\" cannot be run: No such file"),
        "{message}"
    );
}

#[test]
fn a_logging_program_that_exits_before_it_is_ready_is_an_error_and_leaves_nothing() {
    // Only our shim is tested. containerd's own shim continues when the program exits, as if the
    // program had reported that it is ready.
    let host = Containerd::start();
    let uri = format!("binary://{}", program(&host, "exit 7\n"));
    let (created, _) = create(&host, &uri);
    let message = created.expect_err("the logging program failed");
    assert!(
        message.contains("logger\" ended with exit code 7"),
        "{message}"
    );
    program_has_ended(&host);
}

#[test]
fn a_binary_v2_logging_program_must_report_that_it_is_ready() {
    // Only our shim is tested: containerd supports this kind of program since 2.4.
    let host = Containerd::start();
    for (says, is_created) in [("exec 5>&-\n", false), ("echo >&5\n", true)] {
        let uri = format!("binary-v2://{}", program(&host, &format!("{says}{KEEPS}")));
        let shim = bare(&host, &runtime_under_test(), "echo words");
        let created = shim
            .api()
            .create(&logging_to(shim.create_request(), &uri))
            .map_err(|(_, message)| message);
        assert_eq!(created.is_ok(), is_created, "{created:?}");
        let bundle = shim.bundle().to_owned();
        drop(shim);
        program_has_ended(&host);
        fs::remove_dir_all(bundle).expect("remove the bundle");
    }
}

#[test]
fn a_logging_program_that_is_never_ready_is_killed_and_an_error() {
    // Only our shim is tested: containerd's own shim waits forever.
    let host = Containerd::start();
    let uri = format!("binary://{}", program(&host, "exec sleep 1000\n"));
    let (created, took) = create(&host, &uri);
    let message = created.expect_err("the logging program was not ready");
    assert!(message.contains("was not ready within 10s"), "{message}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    program_has_ended(&host);
}

#[test]
fn a_logging_program_ends_when_its_container_cannot_be_created() {
    let host = Containerd::start();
    let shim = BareShim::start(&host, &runtime_under_test(), "a", &["/bin/nope"], |_| ());
    let uri = format!("binary://{}", program(&host, KEEPS));
    let refused = shim.api().create(&logging_to(shim.create_request(), &uri));
    let message = refused.expect_err("there is no such program").1;
    assert!(message.contains("/bin/nope"), "{message}");
    program_has_ended(&host);
}

#[test]
fn a_logging_program_that_outlives_its_container_gets_sigterm_and_may_finish() {
    let seen = both(|host, runtime| {
        let shim = bare(host, runtime, "echo words");
        let goes_on = "trap 'echo told > told; exit 0' TERM\nexec 5>&-\ncat <&3 > out\n\
                       while sleep 0.05; do :; done\n";
        let uri = format!("binary://{}", program(host, goes_on));
        run(&shim.api(), &logging_to(shim.create_request(), &uri));
        program_has_ended(host);
        read(host, "told")
    });
    assert_eq!(seen, "told\n");
}

/// Runs the task to its end and deletes it.
#[track_caller]
fn run(api: &TaskApi, request: &CreateTaskRequest) {
    api.create(request).expect("Create");
    api.start("a", "").expect("Start");
    api.wait("a", "").expect("Wait");
    api.delete("a", "").expect("Delete");
}

#[test]
fn a_log_file_is_created_and_appended_to() {
    let seen = both(|host, runtime| {
        let log = host.dir().join("logs/of a/container.log");
        let uri = format!("file://{}", log.display()).replace(' ', "%20");
        for _ in 0..2 {
            let shim = bare(host, runtime, "echo out; echo err >&2");
            let api = shim.api();
            run(&api, &logging_to(shim.create_request(), &uri));
            let bundle = shim.bundle().to_owned();
            drop(shim);
            fs::remove_dir_all(bundle).expect("remove the bundle");
        }
        let mode = fs::metadata(&log).expect("the log").permissions().mode();
        let mut lines: Vec<_> = fs::read_to_string(&log)
            .expect("the log")
            .lines()
            .map(str::to_owned)
            .collect();
        lines.sort();
        (mode & 0o777, lines)
    });
    assert_eq!(seen.0, 0o644);
    assert_eq!(seen.1, ["err", "err", "out", "out"]);
}

#[test]
fn output_is_appended_to_an_existing_file() {
    let seen = both(|host, runtime| {
        let log = host.dir().join("container.log");
        fs::write(&log, "before\n").expect("the log");
        let shim = bare(host, runtime, "echo out");
        let request = logging_to(shim.create_request(), &log.display().to_string());
        run(&shim.api(), &request);
        fs::read_to_string(&log).expect("the log")
    });
    assert_eq!(seen, "before\nout\n");
}

#[test]
fn a_terminals_output_can_go_to_a_file() {
    // Only our shim is tested: the shim of containerd 1.6 takes the file's URI for the path of a
    // FIFO.
    let host = Containerd::start();
    let args = ["/bin/sh", "-c", "seq 1 2000"];
    let shim = BareShim::start(&host, &runtime_under_test(), "a", &args, |config| {
        config["process"]["terminal"] = json!(true);
    });
    let log = host.dir().join("container.log");
    let request = CreateTaskRequest {
        terminal: true,
        ..logging_to(shim.create_request(), &format!("file://{}", log.display()))
    };
    run(&shim.api(), &request);
    let expected: String = (1..=2000).map(|n| format!("{n}\r\n")).collect();
    assert!(fs::read_to_string(&log).expect("the log") == expected);
}

#[test]
fn a_full_disk_does_not_end_the_container() {
    let host = Containerd::start();
    let shim = bare(&host, &runtime_under_test(), "seq 1 100000; exit 6");
    let api = shim.api();
    api.create(&logging_to(shim.create_request(), "file:///dev/full"))
        .expect("Create");
    api.start("a", "").expect("Start");
    assert_eq!(api.wait("a", "").expect("Wait").exit_status, 6);
}

#[test]
fn other_schemes_and_missing_files_are_refused() {
    let seen = both(|host, runtime| {
        let shim = bare(host, runtime, "echo words");
        let api = shim.api();
        let refusal = |stdout: &str| {
            let request = CreateTaskRequest {
                stdout: stdout.to_owned(),
                ..shim.create_request()
            };
            let message = api.create(&request).expect_err("refused").1;
            (
                message.contains("unknown STDIO scheme http"),
                message.contains("/nowhere/fifo"),
            )
        };
        let refused = refusal("http://localhost/");
        if !host.is_reference() {
            // If a stream cannot be opened, containerd's own shim fails the Create, but does not
            // delete the container.
            assert_eq!(refusal("/nowhere/fifo"), (false, true));
        }
        refused
    });
    assert_eq!(seen, (true, false));
}
