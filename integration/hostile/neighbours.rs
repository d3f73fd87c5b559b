//! A neighbour that hangs: another shim.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::harness::{
    Background, BareShim, ContainerSpec, Containerd, PATIENCE, eventually, run, runtime_under_test,
    scaled,
};

const FOR_EVER: [&str; 2] = ["/bin/sleep", "1000"];

/// What a hung neighbour may cost at most, on a machine that is busy with other tests: before, each
/// of those who wanted something of it cost a second, and with a full queue all of them for ever.
const NOTHING: Duration = Duration::from_secs(4);

fn in_pod(config: &mut Value) {
    config["annotations"] = json!({ "io.kubernetes.cri.sandbox-id": "pod1" });
}

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal).expect("a process");
}

/// Where a socket of the shims lies for the test.
fn outside(host: &Containerd, path: &str) -> PathBuf {
    let run = host.dir().join("run").display().to_string();
    PathBuf::from(
        path.trim_start_matches("unix://")
            .replacen("/run/containerd", &run, 1),
    )
}

/// Fills the queue of a socket that nobody is let in by.
fn fill(path: &Path) -> Vec<UnixStream> {
    let mut prlimit = Command::new("prlimit");
    prlimit.arg(format!("--pid={}", std::process::id()));
    prlimit.arg("--nofile=20000:");
    let raised = run(prlimit, PATIENCE);
    assert!(raised.ok(), "prlimit: {}", raised.err());
    let address = UnixAddr::new(path).expect("an address");
    let mut queue = Vec::new();
    loop {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let end = socket(AddressFamily::Unix, SockType::Stream, flags, None).expect("a socket");
        match connect(end.as_raw_fd(), &address) {
            Ok(()) => queue.push(UnixStream::from(end)),
            Err(Errno::EAGAIN) => return queue,
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }
}

/// A shim that has a running container and does nothing any more.
struct Hung<'host> {
    shim: BareShim<'host>,
    pid: u32,
}

impl<'host> Hung<'host> {
    fn new(host: &'host Containerd) -> Self {
        let shim = BareShim::start(host, &runtime_under_test(), "a", &FOR_EVER, in_pod);
        let api = shim.api();
        api.create(&shim.create_request()).expect("create");
        api.start("a", "").expect("start");
        let pid = shim.pid();
        drop(api);
        signal(pid, Signal::SIGSTOP);
        Self { shim, pid }
    }

    fn socket(&self, host: &Containerd) -> PathBuf {
        outside(host, &self.shim.address)
    }
}

impl Drop for Hung<'_> {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.pid as i32), Signal::SIGCONT);
    }
}

/// Starts the shim for another container of the same pod, without waiting.
fn want(shim: &BareShim<'_>) -> Background {
    let mut command = shim.command("start");
    command.env_remove("MAX_SHIM_VERSION");
    let mut start = Background::spawn(command);
    start.try_write(&Any::new().write_to_bytes().expect("a message"));
    start.close_stdin();
    start
}

/// How long another pod takes to run.
#[track_caller]
fn another_pod(host: &Containerd, id: &str) -> Duration {
    let begun = Instant::now();
    host.run(&ContainerSpec::new(id).args(&FOR_EVER));
    begun.elapsed()
}

fn costs_no_other_pod_anything(is_full: bool) {
    let host = Containerd::start();
    let usual = another_pod(&host, "before");
    let hung = Hung::new(&host);
    let queue = match is_full {
        true => fill(&hung.socket(&host)),
        false => Vec::new(),
    };
    let prepare = |number| {
        let id = format!("b{number}");
        BareShim::prepare(&host, &runtime_under_test(), &id, &FOR_EVER, in_pod)
    };
    let wanted: Vec<_> = (0..8).map(prepare).collect();
    let mut starts: Vec<_> = wanted.iter().map(want).collect();
    // They are under way: each has got as far as it gets.
    std::thread::sleep(Duration::from_millis(500));
    let took = another_pod(&host, "other");
    assert!(
        took < usual + scaled(NOTHING),
        "{took:?}, usually {usual:?}"
    );
    assert!(
        starts.iter_mut().any(Background::is_running),
        "nobody waited for the shim that hangs"
    );
    // Those who want something of it are told, all at about the same time.
    for start in starts {
        let finished = start.finish(PATIENCE);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let said = finished.err();
        assert!(said.contains("the pod's shim"), "{said}");
        assert!(said.contains("within 10s"), "{said}");
    }
    drop(queue);
    // Nor has it harmed the one that hung.
    signal(hung.pid, Signal::SIGCONT);
    let state = hung.shim.api().state("a", "").expect("state").status;
    assert_eq!(format!("{state:?}"), "RUNNING");
    // What it was told while it hung it believes, for as long as such a container may take to come.
    let pid = hung.pid;
    drop(hung);
    eventually("it ends", PATIENCE, || !lives(pid));
}

#[test]
fn a_shim_that_hangs_costs_no_other_pod_anything() {
    costs_no_other_pod_anything(false);
}

#[test]
fn a_shim_that_hangs_with_a_full_queue_costs_no_other_pod_anything() {
    costs_no_other_pod_anything(true);
}

#[test]
fn a_container_whose_shim_hangs_is_deleted_in_time() {
    let host = Containerd::start();
    let hung = Hung::new(&host);
    let _queue = fill(&hung.socket(&host));
    let _people = fill(&control_socket(&host));
    // containerd gives it five seconds.
    let deleted = run(hung.shim.command("delete"), Duration::from_millis(4500));
    assert!(deleted.ok(), "{deleted:?}");
    // Whoever has the socket has it still.
    assert!(hung.socket(&host).exists());
}

// === people ===

/// The socket for people of the only shim.
#[track_caller]
fn control_socket(host: &Containerd) -> PathBuf {
    let entries = fs::read_dir(host.dir().join("run/usher")).expect("the directory");
    let mut sockets = entries.flatten().map(|entry| entry.path());
    let found = sockets.find(|path| !path.ends_with("ended"));
    found.expect("a socket")
}

// === containerd ===

/// Whether a shim still runs.
fn lives(pid: u32) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    !words.is_empty()
}
