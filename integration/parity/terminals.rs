//! Programs with a terminal.

use std::fs::{self, File};
use std::io::Write;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use containerd_shim_protos::api::{CreateTaskRequest, ExecProcessRequest};
use serde_json::json;

use super::{both, script};
use crate::harness::{
    Background, BareShim, Containerd, PATIENCE, Reader, TaskApi, eventually, runtime_under_test,
    words_for_missing,
};

/// A shim with a task that runs a shell script in a terminal.
fn in_terminal<'a>(
    host: &'a Containerd,
    runtime: &str,
    script: &str,
) -> (BareShim<'a>, CreateTaskRequest) {
    let shim = BareShim::start(host, runtime, "a", &["/bin/sh", "-c", script], |config| {
        config["process"]["terminal"] = json!(true);
        config["process"]["consoleSize"] = json!({ "height": 11, "width": 22 });
    });
    let request = CreateTaskRequest {
        stdin: shim.fifo("stdin"),
        stdout: shim.fifo("stdout"),
        terminal: true,
        ..shim.create_request()
    };
    (shim, request)
}

/// A shim whose task runs `sleep`.
fn sleeping<'a>(host: &'a Containerd, runtime: &str) -> (BareShim<'a>, TaskApi) {
    let shim = BareShim::start(host, runtime, "a", &["/bin/sleep", "1000"], |_| ());
    let api = shim.api();
    api.create(&shim.create_request()).expect("Create");
    api.start("a", "").expect("Start");
    (shim, api)
}

/// A request to execute a shell script in a terminal. The request says that the exec has a
/// terminal, but the process spec does not.
fn exec_in_terminal(shim: &BareShim, exec_id: &str, script: &str) -> ExecProcessRequest {
    ExecProcessRequest {
        stdin: shim.fifo(&format!("{exec_id}-stdin")),
        stdout: shim.fifo(&format!("{exec_id}-stdout")),
        terminal: true,
        ..shim.exec_request(exec_id, &["/bin/sh", "-c", script])
    }
}

/// Runs an exec in a terminal to its end, and deletes it. Returns its output and exit code.
#[track_caller]
fn run(shim: &BareShim, api: &TaskApi, exec_id: &str, script: &str) -> (String, u32) {
    let request = exec_in_terminal(shim, exec_id, script);
    let output = Reader::of(&request.stdout);
    api.exec(&request).expect("Exec");
    api.start("a", exec_id).expect("Start");
    let code = api.wait("a", exec_id).expect("Wait").exit_status;
    output.await_open();
    api.delete("a", exec_id).expect("Delete");
    (output.finish(), code)
}

fn open_input(path: &str) -> File {
    // The FIFO is opened for reading, too, so that opening it does not wait for the shim, and the
    // FIFO stays open.
    File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("the input")
}

#[test]
fn a_program_owns_its_terminal() {
    let seen = both(|host, runtime| {
        let asks = "tty; stty size; read line; echo got $line > /dev/tty; echo no >&2; exit 3";
        let (shim, request) = in_terminal(host, runtime, asks);
        let api = shim.api();
        let output = Reader::of(&request.stdout);
        api.create(&request).expect("Create");
        let state = api.state("a", "").expect("State");
        api.start("a", "").expect("Start");
        eventually("the program prints its size", PATIENCE, || {
            output.text().contains("11 22")
        });
        open_input(&request.stdin)
            .write_all(b"words\n")
            .expect("write");
        let code = api.wait("a", "").expect("Wait").exit_status;
        output.await_open();
        api.delete("a", "").expect("Delete");
        (state.terminal, code, output.finish())
    });
    let output = "/dev/pts/0\r\n11 22\r\nwords\r\ngot words\r\nno\r\n";
    assert_eq!(seen, (true, 3, output.to_owned()));
}

#[test]
fn an_exec_owns_its_terminal() {
    let seen = both(|host, runtime| {
        let (shim, api) = sleeping(host, runtime);
        run(&shim, &api, "one", "tty; echo got > /dev/tty; exit 3")
    });
    assert_eq!(seen, ("/dev/pts/0\r\ngot\r\n".to_owned(), 3));
}

/// A script that prints the terminal's size when it starts, and after each change of the size.
const SAYS_SIZES: &str = "trap 'stty size' WINCH; stty size; while sleep 0.05; do :; done";

#[test]
fn a_terminal_can_be_resized() {
    let seen = both(|host, runtime| {
        let (shim, request) = in_terminal(host, runtime, SAYS_SIZES);
        let api = shim.api();
        let output = Reader::of(&request.stdout);
        api.create(&request).expect("Create");
        api.resize("a", "", 80, 24).expect("ResizePty before Start");
        api.start("a", "").expect("Start");
        let says = |words: &str| {
            eventually(words, PATIENCE, || output.text().contains(words));
        };
        says("24 80");
        api.resize("a", "", 120, 40).expect("ResizePty");
        says("40 120");
        api.kill("a", "", 9, false).expect("Kill");
        api.wait("a", "").expect("Wait");
        let afterwards = api.resize("a", "", 90, 30).is_ok();
        output.await_open();
        api.delete("a", "").expect("Delete");
        (output.finish(), afterwards)
    });
    assert_eq!(seen, ("24 80\r\n40 120\r\n".to_owned(), true));
}

#[test]
fn the_terminal_of_an_exec_can_be_resized() {
    let seen = both(|host, runtime| {
        let (shim, api) = sleeping(host, runtime);
        let request = exec_in_terminal(&shim, "one", SAYS_SIZES);
        let output = Reader::of(&request.stdout);
        api.exec(&request).expect("Exec");
        api.resize("a", "one", 80, 24)
            .expect("ResizePty before Start");
        api.start("a", "one").expect("Start");
        api.resize("a", "one", 120, 40).expect("ResizePty");
        eventually("the program prints the new size", PATIENCE, || {
            output.text().contains("40 120")
        });
        api.kill("a", "one", 9, false).expect("Kill");
        api.wait("a", "one").expect("Wait");
        if !host.is_reference() {
            // containerd's own shim refuses this call. That is why `ctr` reports an error for a
            // program that exits at once.
            api.resize("a", "one", 90, 30)
                .expect("ResizePty afterwards");
        }
        output.await_open();
        api.delete("a", "one").expect("Delete");
        output.finish().ends_with("40 120\r\n")
    });
    assert!(seen);
}

#[test]
fn a_size_set_before_the_start_applies_when_the_program_runs() {
    // Only our shim is tested, because containerd's own shim does not keep a terminal's size that
    // is set before the start.
    let host = Containerd::start();
    let (shim, api) = sleeping(&host, &runtime_under_test());
    let request = exec_in_terminal(&shim, "one", "stty size");
    let output = Reader::of(&request.stdout);
    api.exec(&request).expect("Exec");
    api.resize("a", "one", 81, 25).expect("ResizePty");
    api.start("a", "one").expect("Start");
    api.wait("a", "one").expect("Wait");
    output.await_open();
    api.delete("a", "one").expect("Delete");
    assert_eq!(output.finish(), "25 81\r\n");
}

#[test]
fn resizing_a_program_without_a_terminal_is_no_error() {
    let seen = both(|host, runtime| {
        let (shim, api) = sleeping(host, runtime);
        api.exec(&shim.exec_request("one", &["/bin/sleep", "1000"]))
            .expect("Exec");
        api.start("a", "one").expect("Start");
        [
            api.resize("a", "", 80, 24).is_ok(),
            api.resize("a", "one", 80, 24).is_ok(),
            api.resize("a", "unknown", 80, 24).is_ok(),
        ]
    });
    assert_eq!(seen, [true, true, false]);
}

#[test]
fn the_end_of_input_hangs_up_the_terminal() {
    let seen = both(|host, runtime| {
        let (shim, api) = sleeping(host, runtime);
        let request = exec_in_terminal(&shim, "one", "echo up; exec cat");
        let output = Reader::of(&request.stdout);
        api.exec(&request).expect("Exec");
        api.start("a", "one").expect("Start");
        let mut input = File::options()
            .write(true)
            .open(&request.stdin)
            .expect("the input");
        input.write_all(b"words\n").expect("write");
        eventually("the words come back", PATIENCE, || {
            output.text().matches("words\r\n").count() == 2
        });
        drop(input);
        let state = format!("{:?}", api.state("a", "one").expect("State").status);
        api.close_stdin("a", "one").expect("CloseIO");
        let code = api.wait("a", "one").expect("Wait").exit_status;
        output.await_open();
        api.delete("a", "one").expect("Delete");
        output.finish();
        (state, code)
    });
    assert_eq!(seen, ("RUNNING".to_owned(), 129));
}

#[test]
fn a_terminal_ends_with_its_program_even_if_other_processes_have_it_open() {
    let seen = both(|host, runtime| {
        let (shim, api) = sleeping(host, runtime);
        let begun = Instant::now();
        let leaves = "echo words; setsid sleep 30 & sleep 0.1; exit 4";
        let seen = run(&shim, &api, "one", leaves);
        (seen, begun.elapsed() < Duration::from_secs(9))
    });
    assert_eq!(seen, (("words\r\n".to_owned(), 4), true));
}

#[test]
fn a_terminal_that_is_closed_and_reopened_continues() {
    let seen = both(|host, runtime| {
        let (shim, api) = sleeping(host, runtime);
        let reopens = "echo one; tty=$(tty); exec < /dev/null > /dev/null 2>&1; \
                       sleep 0.2; exec < $tty > $tty 2>&1; echo two";
        run(&shim, &api, "one", reopens)
    });
    assert_eq!(seen, ("one\r\ntwo\r\n".to_owned(), 0));
}

fn lines(count: usize) -> String {
    (1..=count).map(|n| format!("{n}\r\n")).collect()
}

#[test]
fn the_last_output_in_an_execs_terminal_is_never_lost() {
    let host = Containerd::start();
    let (shim, api) = sleeping(&host, &runtime_under_test());
    let expected = lines(100_000);
    for n in 0..10 {
        let (output, code) = run(&shim, &api, &format!("e{n}"), "seq 1 100000");
        assert_eq!((output.len(), code), (expected.len(), 0), "the {n}th");
        assert!(output == expected, "the {n}th");
    }
    // The programs in this loop are short. So the shim reads all of their output at once, in its
    // last read.
    for n in 0..50 {
        let (output, _) = run(&shim, &api, &format!("s{n}"), "seq 1 500");
        assert!(output == lines(500), "the {n}th short one: {output:?}");
    }
}

#[test]
fn the_last_output_in_a_terminal_waits_for_a_slow_reader() {
    let host = Containerd::start();
    let (shim, api) = sleeping(&host, &runtime_under_test());
    let request = exec_in_terminal(&shim, "one", "seq 1 10000");
    // The client reads nothing until the exit is reported.
    let (told, is_told) = mpsc::channel::<()>();
    let output = Reader::with(&request.stdout, move |_| {
        // No message is sent: `recv` returns when the sender is dropped.
        let _ = is_told.recv();
    });
    api.exec(&request).expect("Exec");
    api.start("a", "one").expect("Start");
    output.await_open();
    api.wait("a", "one").expect("Wait");
    assert_eq!(output.text(), "");
    drop(told);
    api.delete("a", "one").expect("Delete");
    assert!(output.finish() == lines(10_000));
}

#[test]
fn the_last_output_in_a_containers_terminal_is_never_lost() {
    let host = Containerd::start();
    for n in 0..3 {
        let (shim, request) = in_terminal(&host, &runtime_under_test(), "seq 1 100000");
        let api = shim.api();
        let output = Reader::of(&request.stdout);
        api.create(&request).expect("Create");
        api.start("a", "").expect("Start");
        api.wait("a", "").expect("Wait");
        output.await_open();
        api.delete("a", "").expect("Delete");
        assert!(output.finish() == lines(100_000), "the {n}th");
        let bundle = shim.bundle().to_owned();
        drop(shim);
        fs::remove_dir_all(bundle).expect("remove the bundle");
    }
}

/// Runs `ctr` in a terminal, which `--tty` requires.
pub(super) fn ctr_in_terminal(command: &Command) -> Background {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let quoted: Vec<String> = words
        .map(|word| format!("'{}'", word.to_str().expect("text").replace('\'', r"'\''")))
        .collect();
    let mut script = Command::new("script");
    script
        .args(["--quiet", "--return", "--command", &quoted.join(" ")])
        .arg("/dev/null");
    Background::spawn(script)
}

#[test]
fn ctr_runs_programs_in_terminals() {
    let seen = both(|host, runtime| {
        let fifos = host.dir().join("fifo").display().to_string();
        let spec = script(runtime, "a", "tty; read line; echo got $line; exit 5");
        let run = spec.ctr_command(host, &["run", "--tty", "--fifo-dir", &fifos]);
        let mut run = ctr_in_terminal(&run);
        eventually("the program runs", PATIENCE, || {
            run.stdout().contains("/dev/pts/0")
        });
        let exec = [
            "tasks",
            "exec",
            "--tty",
            "--fifo-dir",
            &fifos,
            "--exec-id",
            "one",
            "a",
            "/bin/tty",
        ];
        let exec = ctr_in_terminal(&host.ctr_command(&exec)).finish(PATIENCE);
        run.write(b"words\n");
        eventually("the program answers", PATIENCE, || {
            run.stdout().contains("got words")
        });
        let run = run.finish(PATIENCE);
        // With containerd's own shim, `ctr` prints an error too, because it cannot set the
        // terminal's size after the exit of the program.
        let has_its_own = exec.out().contains("/dev/pts/1");
        (exec.code, has_its_own, run.code)
    });
    assert_eq!(seen, (Some(0), true, Some(5)));
}

#[test]
fn no_console_is_left_when_the_runtime_fails() {
    let seen = both(|host, runtime| {
        let (shim, api) = sleeping(host, runtime);
        let request = exec_in_terminal(&shim, "one", "true");
        let before = fs::read_dir(shim.bundle()).expect("the bundle").count();
        let mut broken = request.clone();
        let process = json!({
            "args": ["/bin/nope"], "cwd": "/", "env": ["PATH=/bin"], "user": { "uid": 0, "gid": 0 },
        });
        broken.spec.as_mut().expect("a spec").value = process.to_string().into_bytes();
        api.exec(&broken).expect("Exec");
        let refused = api.start("a", "one").expect_err("no such program").1;
        api.delete("a", "one").expect("Delete");
        let after = fs::read_dir(shim.bundle()).expect("the bundle").count();
        // containerd's own shim leaves a log file.
        let named = refused.contains(&words_for_missing("/bin/nope"));
        (named, after <= before + 1)
    });
    assert_eq!(seen, (true, true));
}
