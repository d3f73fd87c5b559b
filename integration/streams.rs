//! Containers' streams with clients that connect late, vanish, or are many.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use containerd_shim_protos::api::{CreateTaskRequest, ExecProcessRequest};
use nix::libc;

use crate::harness::{
    BareShim, ContainerSpec, Containerd, PATIENCE, Reader, TaskApi, eventually, run,
    runtime_under_test, times,
};

/// Time limit of calls that must not wait for a client of the streams.
const AT_ONCE: Duration = Duration::from_secs(8);

fn shell<'a>(host: &'a Containerd, script: &str) -> BareShim<'a> {
    let args = ["/bin/sh", "-c", script];
    BareShim::start(host, &runtime_under_test(), "a", &args, |_| ())
}

fn with_output(shim: &BareShim) -> CreateTaskRequest {
    CreateTaskRequest {
        stdout: shim.fifo("stdout"),
        ..shim.create_request()
    }
}

fn start(api: &TaskApi, request: &CreateTaskRequest) {
    api.create(request).expect("Create");
    api.start("a", "").expect("Start");
}

#[test]
fn a_reader_that_comes_after_the_exit_gets_the_output() {
    let host = Containerd::start();
    let shim = shell(&host, "echo words");
    let (api, request) = (shim.api(), with_output(&shim));
    start(&api, &request);
    api.wait("a", "").expect("Wait");
    assert_eq!(Reader::of(&request.stdout).finish(), "words\n");
    api.delete("a", "").expect("Delete");
}

#[test]
fn a_missing_reader_delays_no_call() {
    let host = Containerd::start();
    // The output of the first script does not fit into the FIFO and the pipe together. The output
    // of the second script does.
    for script in ["seq 1 40000; sleep 1000", "echo words; sleep 1000"] {
        let shim = shell(&host, script);
        let (api, request) = (shim.api(), with_output(&shim));
        let begun = Instant::now();
        start(&api, &request);
        api.exec(&shim.exec_request("one", &["/bin/true"]))
            .expect("Exec");
        api.start("a", "one").expect("Start of an exec");
        api.wait("a", "one").expect("Wait for it");
        api.kill("a", "", 9, false).expect("Kill");
        api.wait("a", "").expect("Wait");
        api.delete("a", "").expect("Delete");
        assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
        let bundle = shim.bundle().to_owned();
        drop(shim);
        fs::remove_dir_all(bundle).expect("remove the bundle");
    }
}

#[test]
fn readers_of_an_added_exec_do_not_wait_for_its_start() {
    let host = Containerd::start();
    let shim = shell(&host, "sleep 1000");
    let api = shim.api();
    start(&api, &shim.create_request());
    let exec = ExecProcessRequest {
        stdout: shim.fifo("exec-stdout"),
        stderr: shim.fifo("exec-stderr"),
        ..shim.exec_request("one", &["/bin/sh", "-c", "echo out; echo err >&2"])
    };
    let readers = [&exec.stdout, &exec.stderr].map(|path| Reader::of(path));
    api.exec(&exec).expect("Exec");
    readers.iter().for_each(Reader::await_open);
    api.start("a", "one").expect("Start of the exec");
    assert_eq!(api.wait("a", "one").expect("Wait").exit_status, 0);
    assert_eq!(readers.map(Reader::finish), ["out\n", "err\n"]);
}

#[test]
fn an_exec_that_is_deleted_before_its_start_ends_its_output() {
    let host = Containerd::start();
    let shim = shell(&host, "sleep 1000");
    let api = shim.api();
    start(&api, &shim.create_request());
    // The shim opens the FIFOs of only the first few execs in advance.
    let execs: Vec<_> = (0..20)
        .map(|n| ExecProcessRequest {
            stdout: shim.fifo(&format!("stdout-{n}")),
            ..shim.exec_request(&format!("exec-{n}"), &["/bin/echo", "words"])
        })
        .collect();
    for exec in &execs {
        api.exec(exec).expect("Exec");
    }
    let reader = Reader::of(&execs[0].stdout);
    reader.await_open();
    api.delete("a", "exec-0").expect("Delete");
    assert_eq!(reader.finish(), "");
    // The shim has opened the FIFO of the first exec in advance, but not that of the second. Both
    // execs work.
    for exec in [&execs[1], &execs[19]] {
        let reader = Reader::of(&exec.stdout);
        api.start("a", &exec.exec_id).expect("Start of an exec");
        api.wait("a", &exec.exec_id).expect("Wait");
        assert_eq!(reader.finish(), "words\n");
    }
}

/// If containerd dies between Exec and Start, its client waits for the end of the exec's output. The
/// shim ends the output after ten seconds.
#[test]
fn an_exec_whose_callers_are_gone_before_its_start_ends_its_output() {
    let host = Containerd::start();
    let shim = shell(&host, "sleep 1000");
    let (api, other) = (shim.api(), shim.api());
    start(&other, &shim.create_request());
    let exec = ExecProcessRequest {
        stdout: shim.fifo("exec-stdout"),
        ..shim.exec_request("one", &["/bin/echo", "words"])
    };
    api.exec(&exec).expect("Exec");
    let reader = Reader::of(&exec.stdout);
    reader.await_open();
    drop(api);
    // The shim does not know who will start the exec, so any connection that was open before counts.
    // These calls give the shim the time to notice that one has been closed.
    let later = shim.api();
    for api in [&other, &later] {
        api.state("a", "one").expect("State");
    }
    assert!(!reader.is_over());
    drop(other);
    assert_eq!(reader.finish(), "");
    // A late Start works.
    let reader = Reader::of(&exec.stdout);
    later.start("a", "one").expect("Start of the exec");
    assert_eq!(later.wait("a", "one").expect("Wait").exit_status, 0);
    assert_eq!(reader.finish(), "words\n");
}

#[test]
fn a_new_reader_continues_after_one_that_vanished() {
    let host = Containerd::start();
    let script = "echo one; read go; seq 1 5000; read go; echo two; exit 3";
    let shim = shell(&host, script);
    let request = CreateTaskRequest {
        stdin: shim.fifo("stdin"),
        ..with_output(&shim)
    };
    let api = shim.api();
    // The first reader opens the FIFO before the shim does.
    let mut first = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&request.stdout)
        .expect("the output");
    start(&api, &request);
    let mut word = [0; 4];
    eventually("the first word is read", PATIENCE, || {
        first.read_exact(&mut word).is_ok()
    });
    drop(first);
    let mut input = File::options()
        .write(true)
        .open(&request.stdin)
        .expect("the input");
    input.write_all(b"go\n").expect("write");
    let second = Reader::of(&request.stdout);
    eventually("the numbers are read", PATIENCE, || {
        second.text().ends_with("\n5000\n")
    });
    input.write_all(b"go\n").expect("write");
    assert_eq!(api.wait("a", "").expect("Wait").exit_status, 3);
    let numbers: String = (1..=5000).map(|n| format!("{n}\n")).collect();
    assert!(second.finish() == format!("{numbers}two\n"));
    assert_eq!(&word, b"one\n");
    api.delete("a", "").expect("Delete");
}

#[test]
fn a_delete_waits_for_a_reader_but_not_forever() {
    let host = Containerd::start();
    let shim = shell(&host, "sleep 1000");
    let api = shim.api();
    start(&api, &shim.create_request());
    // This output is larger than the FIFO. So when the program exits, the rest of the output is
    // still in the shim's pipe.
    let args = ["/bin/sh", "-c", "seq 1 20000"];
    let request = ExecProcessRequest {
        stdout: shim.fifo("one"),
        ..shim.exec_request("one", &args)
    };
    // This client keeps the FIFO open, but reads only at the end.
    let mut idle = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&request.stdout)
        .expect("the output");
    api.exec(&request).expect("Exec");
    api.start("a", "one").expect("Start");
    api.wait("a", "one").expect("Wait");
    let begun = Instant::now();
    api.delete("a", "one").expect("Delete");
    let took = begun.elapsed();
    let bounds = Duration::from_secs(9)..Duration::from_secs(15);
    assert!(bounds.contains(&took), "{took:?}");
    let mut found = [0; 4];
    idle.read_exact(&mut found).expect("the unread output");
    assert_eq!(&found, b"1\n2\n");
}

#[test]
fn stdin_closed_before_the_start_of_an_exec_reads_as_end_of_file() {
    let host = Containerd::start();
    let shim = shell(&host, "sleep 1000");
    let api = shim.api();
    start(&api, &shim.create_request());
    let request = ExecProcessRequest {
        stdin: shim.fifo("input"),
        ..shim.exec_request("cat", &["/bin/cat"])
    };
    api.exec(&request).expect("Exec");
    api.close_stdin("a", "cat").expect("CloseIO");
    api.start("a", "cat").expect("Start");
    let api = api.deadline(PATIENCE);
    assert_eq!(api.wait("a", "cat").expect("Wait").exit_status, 0);
}

/// Runs `ctr run` with a reader of its output that begins late. Returns the number of bytes that
/// the reader gets.
fn bytes_read_late(host: &Containerd, spec: &ContainerSpec) -> String {
    let fifos = host.dir().join("fifo").display().to_string();
    let ctr = spec.ctr_command(host, &["run", "--rm", "--fifo-dir", &fifos]);
    let mut command = Command::new("sh");
    command
        .args(["-c", r#""$@" | (sleep .2; cat) | wc -c"#, "sh"])
        .arg(ctr.get_program())
        .args(ctr.get_args());
    for (key, value) in ctr.get_envs() {
        command.env(key, value.unwrap_or_default());
    }
    run(command, PATIENCE).out().trim().to_owned()
}

#[test]
fn a_client_that_reads_late_loses_no_output() {
    let host = Containerd::start();
    for n in 0..times(5, 20) {
        // When `ctr` sees the exit, it closes its end of the FIFO.
        let spec = ContainerSpec::new(&format!("c{n}")).script("exec seq 1 40000");
        assert_eq!(bytes_read_late(&host, &spec), "228894", "run {n}");
    }
}

#[test]
fn the_output_of_short_programs_always_arrives() {
    let host = Containerd::start();
    for n in 0..times(30, 300) {
        let spec = ContainerSpec::new(&format!("c{n}"))
            .script(&format!("echo word {n}"))
            .option(&["--rm"]);
        let finished = host.run_attached(&spec);
        assert_eq!(finished.out(), format!("word {n}\n"), "{}", finished.err());
    }
}

/// Amounts of a process's resources. A leak would increase them.
#[derive(Debug)]
struct Holdings {
    files: usize,
    threads: usize,
    children: usize,
    /// Private memory in kB.
    memory: usize,
}

impl Holdings {
    fn of(pid: u32) -> Self {
        let count = |what: &str| {
            let dir = fs::read_dir(format!("/proc/{pid}/{what}"));
            dir.expect("the shim runs").count()
        };
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("its memory");
        let memory = rollup
            .lines()
            .filter_map(|line| line.strip_prefix("Private_Dirty:"))
            .filter_map(|line| line.split_whitespace().next()?.parse::<usize>().ok());
        let children = format!("/proc/{pid}/task/{pid}/children");
        let children = fs::read_to_string(children).expect("its children");
        Self {
            files: count("fd"),
            threads: count("task"),
            children: children.split_whitespace().count(),
            memory: memory.sum(),
        }
    }
}

/// Runs a program as an exec that has all three streams, and deletes the exec.
#[track_caller]
fn exec(shim: &BareShim, api: &TaskApi, exec_id: &str, terminal: bool) {
    let names = ["stdin", "stdout", "stderr"].map(|stream| format!("{exec_id}-{stream}"));
    let [stdin, stdout, stderr] = names.map(|name| shim.fifo(&name));
    let script = "read line; echo got $line";
    let request = ExecProcessRequest {
        stdin: stdin.clone(),
        stdout: stdout.clone(),
        stderr: match terminal {
            true => String::new(),
            false => stderr.clone(),
        },
        terminal,
        ..shim.exec_request(exec_id, &["/bin/sh", "-c", script])
    };
    let output = Reader::of(&stdout);
    api.exec(&request).expect("Exec");
    api.start("a", exec_id).expect("Start");
    let mut input = File::options().write(true).open(&stdin).expect("the input");
    input.write_all(b"words\n").expect("write");
    assert_eq!(api.wait("a", exec_id).expect("Wait").exit_status, 0);
    output.await_open();
    api.delete("a", exec_id).expect("Delete");
    let output = output.finish();
    assert!(output.contains("got words"), "{exec_id}: {output:?}");
    for fifo in [stdin, stdout, stderr] {
        fs::remove_file(fifo).expect("remove the FIFO");
    }
}

fn nothing_leaks(terminal: bool) {
    let host = Containerd::start();
    let shim = shell(&host, "sleep 1000");
    let api = shim.api();
    start(&api, &shim.create_request());
    let pid = shim.pid();
    let run = |from: usize, to: usize| {
        for n in from..to {
            exec(&shim, &api, &format!("e{n}"), terminal);
        }
        let usual = Holdings::of(pid);
        (
            usual,
            fs::read_dir(shim.bundle()).expect("the bundle").count(),
        )
    };
    let (before, names) = run(0, 50);
    let (after, names_after) = run(50, 50 + times(150, 1000));
    let told = format!("{before:?}, then {after:?}");
    assert_eq!(before.files, after.files, "{told}");
    assert_eq!(
        (after.threads, after.children),
        (1, before.children),
        "{told}"
    );
    assert!(after.memory < before.memory + 300, "{told}");
    assert_eq!(names, names_after);
}

#[test]
fn execs_leak_nothing() {
    nothing_leaks(false);
}

#[test]
fn execs_with_terminals_leak_nothing() {
    nothing_leaks(true);
}
