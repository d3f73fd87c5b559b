//! Standard input, output and error through FIFOs.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::chown;

use super::terminals::ctr_in_terminal;
use super::{both, script};
use crate::harness::{
    BareShim, ContainerSpec, Containerd, PATIENCE, add_user_namespace, default_config, eventually,
    runtime_under_test,
};

#[test]
fn output_and_errors_are_kept_apart() {
    let seen = both(|host, runtime| {
        let finished = host.run_attached(&script(runtime, "a", "echo out; echo err >&2; exit 3"));
        let error: Vec<String> = finished.err().lines().map(str::to_owned).collect();
        (finished.code, finished.out(), error[0].clone())
    });
    assert_eq!(seen, (Some(3), "out\n".to_owned(), "err".to_owned()));
}

#[test]
fn large_output_arrives_completely() {
    let seen = both(|host, runtime| {
        // The script writes more to both streams than a pipe can hold.
        let script = script(runtime, "a", "seq 1 40000; seq 1 40000 >&2");
        let finished = host.run_attached(&script);
        (finished.code, finished.stdout, finished.stderr)
    });
    let expected: String = (1..=40000).map(|n| format!("{n}\n")).collect();
    assert!(expected.len() > 200_000);
    assert_eq!(seen.0, Some(0));
    assert!(
        seen.1 == expected.as_bytes(),
        "{} bytes of output",
        seen.1.len()
    );
    assert!(
        seen.2 == expected.as_bytes(),
        "{} bytes of errors",
        seen.2.len()
    );
}

#[test]
fn the_last_output_of_short_programs_arrives() {
    let outputs = both(|host, runtime| {
        let output = |n| {
            let script = script(runtime, &format!("short-{n}"), &format!("echo word {n}"));
            host.run_attached(&script).out()
        };
        (0..10).map(output).collect::<Vec<_>>()
    });
    assert_eq!(
        outputs,
        (0..10).map(|n| format!("word {n}\n")).collect::<Vec<_>>()
    );
}

#[test]
fn input_reaches_the_program() {
    let seen = both(|host, runtime| {
        let mut container = host.spawn_attached(&script(
            runtime,
            "a",
            "read first; echo got $first; read second; echo then $second",
        ));
        container.write(b"one\n");
        eventually("the first line is answered", PATIENCE, || {
            container.stdout() == "got one\n"
        });
        container.write(b"two\n");
        let finished = container.finish(PATIENCE);
        (finished.code, finished.out())
    });
    assert_eq!(seen, (Some(0), "got one\nthen two\n".to_owned()));
}

#[test]
fn large_input_reaches_the_program() {
    let seen = both(|host, runtime| {
        let mut container =
            host.spawn_attached(&script(runtime, "a", "head -c 200000 | sha256sum"));
        container.write(&[b'x'; 200_000]);
        container.finish(PATIENCE).out()
    });
    // Output of the command: head -c 200000 /dev/zero | tr '\0' x | sha256sum
    let expected = "91e3faafd322bcdf160f3f0ce886acb092b9b9e2a1e8526b40f21a8898a8700b  -\n";
    assert_eq!(seen, expected);
}

#[test]
fn the_end_of_input_reaches_an_exec() {
    let seen = both(|host, runtime| {
        host.run(&script(runtime, "a", "sleep 1000"));
        let mut cat = host.spawn_exec("a", "cat", &["/bin/cat"]);
        cat.write(b"one\ntwo\n");
        // Closing the input lets `cat` exit.
        let finished = cat.finish(PATIENCE);
        (finished.code, finished.out())
    });
    assert_eq!(seen, (Some(0), "one\ntwo\n".to_owned()));
}

#[test]
fn the_end_of_input_reaches_a_container() {
    let seen = both(|host, runtime| {
        let mut cat = host.spawn_attached(&script(runtime, "a", "cat; echo over"));
        cat.write(b"one\ntwo\n");
        // With containerd's own shim, the input must stay open until `ctr` knows the task.
        eventually("cat answers", PATIENCE, || cat.stdout() == "one\ntwo\n");
        // `finish` closes the input.
        let finished = cat.finish(PATIENCE);
        (finished.code, finished.out())
    });
    assert_eq!(seen, (Some(0), "one\ntwo\nover\n".to_owned()));
}

#[test]
fn a_client_can_wait_until_its_input_is_opened() {
    let seen = both(|host, runtime| {
        let heard = "read line; echo $line > /shared/heard";
        let shim = BareShim::start(host, runtime, "a", &["/bin/sh", "-c", heard], |_| ());
        let (request, _output) = shim.create_request_with_stdio();
        let stdin = request.stdin.clone();
        let client = std::thread::spawn(move || {
            // Opening the FIFO for writing blocks until the shim has opened it for reading.
            let mut input = std::fs::File::options().write(true).open(stdin)?;
            input.write_all(b"words\n")
        });
        let api = shim.api();
        api.create(&request).expect("Create");
        std::thread::sleep(std::time::Duration::from_millis(50));
        api.start("a", "").expect("Start");
        client.join().expect("the client").expect("write the input");
        api.wait("a", "").expect("Wait");
        std::fs::read_to_string(host.shared_dir().join("heard")).expect("the program's input")
    });
    assert_eq!(seen, "words\n");
}

#[test]
fn output_continues_after_the_reader_has_gone() {
    let beats = both(|host, runtime| {
        // `ctr` reads the FIFO, and exits before the container writes. Writing must then neither
        // fail nor block.
        let lines = "n=0; while [ $n -lt 300 ]; do echo $n; n=$((n + 1)); done";
        host.run(&script(
            runtime,
            "a",
            &format!("sleep 0.2; {lines}; echo done > /shared/done"),
        ));
        let code = host.wait_exit("a");
        let mut sign = String::new();
        let file = std::fs::File::open(host.shared_dir().join("done"));
        file.expect("the sign")
            .read_to_string(&mut sign)
            .expect("text");
        (code, sign)
    });
    assert_eq!(beats, (0, "done\n".to_owned()));
}

#[test]
fn output_can_go_to_a_file() {
    let seen = both(|host, runtime| {
        let log = host.dir().join("container.log");
        let script = script(runtime, "a", "echo out; seq 1 20000");
        host.run(&script.option(&["--log-uri", &format!("file://{}", log.display())]));
        host.wait_exit("a");
        host.delete("a");
        std::fs::read_to_string(log).expect("the log")
    });
    let expected: String = (1..=20000).map(|n| format!("{n}\n")).collect();
    assert_eq!(seen, format!("out\n{expected}"));
}

/// The number of lines that name the missing program.
fn namings(said: &str) -> usize {
    said.lines()
        .filter(|line| line.contains("/bin/nope"))
        .count()
}

#[test]
fn a_missing_program_is_named_once() {
    let seen = both(|host, runtime| {
        let spec = |id: &str| ContainerSpec::new(id).runtime(runtime).args(&["/bin/nope"]);
        let run = host.run_attached(&spec("a"));
        let fifos = host.dir().join("fifo").display().to_string();
        let run_in_terminal = ["run", "--tty", "--fifo-dir", &fifos];
        let in_terminal = ctr_in_terminal(&spec("b").ctr_command(host, &run_in_terminal));
        let in_terminal = in_terminal.finish(PATIENCE);
        host.run(&script(runtime, "c", "sleep 1000"));
        let exec = host.exec("c", &["/bin/nope"]);
        let outcomes = [run, in_terminal, exec];
        outcomes.map(|done| (done.ok(), namings(&done.out()) + namings(&done.err())))
    });
    assert_eq!(seen, [(false, 1); 3]);
}

/// The container has a user namespace. The client does not say to which user the pipes should
/// belong.
#[test]
fn a_container_in_a_user_namespace_can_reopen_its_output_without_a_named_owner() {
    let host = Containerd::start();
    for directory in ["rootfs", "shared"] {
        chown(host.dir().join(directory), Some(100_000), Some(200_000)).unwrap();
    }
    let script = "echo out > /dev/stdout && echo err > /dev/stderr";
    let mut config = default_config(&host, "a", &["/bin/sh", "-c", script]);
    add_user_namespace(&mut config, 100_000, 200_000);
    let file = host.dir().join("a.json").display().to_string();
    fs::write(&file, config.to_string()).unwrap();
    let fifos = host.dir().join("fifo").display().to_string();
    let runtime = runtime_under_test();
    let run = ["run", "--rm", "--fifo-dir", &fifos, "--runtime", &runtime];
    let finished = host.ctr(&[&run[..], &["--config", &file, "a"]].concat());
    assert_eq!(
        (finished.out(), finished.err(), finished.code),
        ("out\n".to_owned(), "err\n".to_owned(), Some(0))
    );
}
