//! Other processes that hang and must not delay a pod's shim: another shim, a client that sends
//! nothing more, a containerd that has died.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use containerd_shim_protos::protobuf::Message;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::{Value, json};

use crate::control::usher;
use crate::harness::{
    Background, BareShim, ContainerSpec, Containerd, PATIENCE, eventually, poll, run,
    runtime_under_test, scaled,
};

const SLEEP: [&str; 2] = ["/bin/sleep", "1000"];

/// Maximum delay that a hung shim or client may cause. It is long, because the machine is busy with
/// other tests.
///
/// Each hung neighbor could delay a shim by a second, or forever if a socket's queue is full. So
/// the shim must limit its waits.
const TOLERANCE: Duration = Duration::from_secs(8);

fn in_pod(config: &mut Value) {
    config["annotations"] = json!({ "io.kubernetes.cri.sandbox-id": "pod1" });
}

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid as i32), signal).expect("a process");
}

/// The path of a shim's socket, outside of the shims' mount namespace.
fn outside(host: &Containerd, path: &str) -> PathBuf {
    let run = host.dir().join("run").display().to_string();
    PathBuf::from(
        path.trim_start_matches("unix://")
            .replacen("/run/containerd", &run, 1),
    )
}

/// Fills the queue of a socket whose owner accepts no connections. Returns the connections in it.
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

/// A shim that has a running container, and is stopped by SIGSTOP.
struct Hung<'host> {
    shim: BareShim<'host>,
    pid: u32,
}

impl<'host> Hung<'host> {
    fn new(host: &'host Containerd) -> Self {
        let shim = BareShim::start(host, &runtime_under_test(), "a", &SLEEP, in_pod);
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

/// Calls the shim's `start` for another container of the same pod, and does not wait for its end.
fn want(shim: &BareShim<'_>) -> Background {
    let mut command = shim.command("start");
    command.env_remove("MAX_SHIM_VERSION");
    let mut start = Background::spawn(command);
    start.try_write(&Any::new().write_to_bytes().expect("a message"));
    start.close_stdin();
    start
}

/// Starts a container of another pod, and returns how long this takes.
#[track_caller]
fn another_pod(host: &Containerd, id: &str) -> Duration {
    let begun = Instant::now();
    host.run(&ContainerSpec::new(id).args(&SLEEP));
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
        BareShim::prepare(&host, &runtime_under_test(), &id, &SLEEP, in_pod)
    };
    let wanted: Vec<_> = (0..16).map(prepare).collect();
    let mut starts: Vec<_> = wanted.iter().map(want).collect();
    // After half a second, all 16 `start` processes are waiting for the hung shim.
    std::thread::sleep(Duration::from_millis(500));
    let took = another_pod(&host, "other");
    eprintln!("another pod runs after {took:?}, usually {usual:?}");
    assert!(
        took < usual + scaled(TOLERANCE),
        "{took:?}, usually {usual:?}"
    );
    assert!(
        starts.iter_mut().any(Background::poll_running),
        "no start waited for the hung shim"
    );
    // The shim answers none of the `start` processes, so all of them time out at about the same
    // time.
    for start in starts {
        let finished = start.finish(2 * PATIENCE);
        assert_eq!(finished.code, Some(1), "{finished:?}");
        let said = finished.err();
        assert!(said.contains("the pod's shim"), "{said}");
        assert!(said.contains("within 10s"), "{said}");
    }
    drop(queue);
    // When the hung shim continues, it still serves its container.
    signal(hung.pid, Signal::SIGCONT);
    let state = hung.shim.api().state("a", "").expect("state").status;
    assert_eq!(format!("{state:?}"), "RUNNING");
    // The `start` processes may have told the shim that 16 containers will come. The shim waits for
    // them for some time, and then exits.
    let pid = hung.pid;
    drop(hung);
    eventually("the process ends", PATIENCE, || !is_running(pid));
}

#[test]
fn a_hung_shim_delays_no_other_pod() {
    costs_no_other_pod_anything(false);
}

#[test]
fn a_hung_shim_with_a_full_queue_delays_no_other_pod() {
    costs_no_other_pod_anything(true);
}

#[test]
fn a_container_of_a_hung_shim_is_deleted_in_time() {
    let host = Containerd::start();
    let hung = Hung::new(&host);
    let _queue = fill(&hung.socket(&host));
    let _people = fill(&host.control_sockets().remove(0));
    // containerd waits five seconds for the `delete` command.
    let deleted = run(hung.shim.command("delete"), Duration::from_millis(4500));
    assert!(deleted.ok(), "{deleted:?}");
    // `delete` does not remove the socket, because its owner still runs.
    assert!(hung.socket(&host).exists());
}

#[test]
fn a_client_that_sends_one_byte_is_disconnected() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("plain").args(&SLEEP));
    let mut client = UnixStream::connect(host.control_sockets().remove(0)).expect("connect");
    client.write_all(&[0]).expect("one byte");
    let limit = scaled(PATIENCE);
    client.set_read_timeout(Some(limit)).expect("a limit");
    let begun = Instant::now();
    let heard = client.read(&mut [0; 16]);
    assert!(
        begun.elapsed() < limit,
        "it stays for as long as it likes: {heard:?}"
    );
}

#[test]
fn a_hundred_clients_that_send_one_byte_block_no_other_client() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("plain").args(&SLEEP));
    let socket = host.control_sockets().remove(0);
    let clients: Vec<_> = (0..100)
        .map(|_| {
            let mut client = UnixStream::connect(&socket).expect("connect");
            let _ = client.write_all(&[0]);
            client
        })
        .collect();
    let mut last = None;
    let listed = poll(PATIENCE, || {
        let listed = run(usher(&host, &["ps"]), PATIENCE);
        let is_there = listed.out().contains("plain");
        // The command succeeds if its output lists the pod. It fails if a shim did not answer.
        assert_eq!(listed.ok(), is_there, "{listed:?}");
        last = Some(listed);
        is_there.then_some(())
    });
    assert!(listed.is_some(), "{last:?}");
    drop(clients);
}

/// Checks that every command of `usher` reports a shim that does not answer.
#[track_caller]
fn check_silent_shim_is_reported(host: &Containerd, why: &str) {
    let commands: [&[&str]; 9] = [
        &["ps"],
        &["ps", "--all", "-o", "json"],
        &["metrics"],
        &["inspect", "plain"],
        &["timeline", "plain"],
        &["stop", "plain"],
        &["stop", "--all", "--answer-within", "1s"],
        &["release", "plain", "plain"],
        &["release", "plain", "plain", "-o", "json"],
    ];
    for command in commands {
        let said = run(usher(host, command), PATIENCE);
        assert_eq!(said.code, Some(1), "{why}: {command:?}: {said:?}");
        assert!(
            said.err().contains("the shim at "),
            "{why}: {command:?}: {said:?}"
        );
        assert!(!said.err().contains("no pods"), "{why}: {said:?}");
    }
    let figures = run(usher(host, &["metrics"]), PATIENCE).out();
    assert!(
        figures.lines().any(|line| line == "usher_silent_shims 1"),
        "{why}: {figures}"
    );
    let watching = Background::spawn(usher(host, &["ps", "--watch"]));
    eventually(&format!("{why}: who watches is told"), PATIENCE, || {
        watching.stderr().contains("the shim at ")
    });
    // The command must report the shim only once, even if the shim is silent for more than two
    // seconds.
    std::thread::sleep(Duration::from_millis(2500));
    let times = watching.stderr().matches("the shim at ").count();
    assert_eq!(times, 1, "{why}: {}", watching.stderr());
}

#[test]
fn a_hung_shim_is_not_taken_for_an_empty_node() {
    let host = Containerd::start();
    let hung = Hung::new(&host);
    check_silent_shim_is_reported(&host, "it is stopped");
    let queue = fill(&host.control_sockets().remove(0));
    check_silent_shim_is_reported(&host, "its queue of connections is full");
    drop(queue);
    signal(hung.pid, Signal::SIGCONT);
    eventually("usher ps sees all shims again", PATIENCE, || {
        run(usher(&host, &["ps"]), PATIENCE).ok()
    });
}

#[test]
fn a_shim_that_closes_connections_is_not_taken_for_an_empty_node() {
    let host = Containerd::start();
    let path = host.dir().join("run/usher/closing");
    fs::create_dir_all(path.parent().expect("a directory")).expect("the directory");
    let listener = UnixListener::bind(&path).expect("a socket");
    std::thread::spawn(move || listener.incoming().for_each(drop));
    check_silent_shim_is_reported(&host, "it closes connections");
    fs::remove_file(path).expect("its file");
}

#[test]
fn usher_ps_watch_reports_a_shim_that_falls_silent() {
    let host = Containerd::start();
    host.run(&ContainerSpec::new("plain").args(&SLEEP));
    let shim = host.shim("plain").pid;
    let watching = Background::spawn(usher(&host, &["ps", "--watch"]));
    eventually("usher watch shows the pod", PATIENCE, || {
        watching.stdout().contains("plain")
    });
    signal(shim, Signal::SIGSTOP);
    let told = poll(2 * PATIENCE, || {
        watching.stderr().contains("the shim at ").then_some(())
    });
    signal(shim, Signal::SIGCONT);
    assert!(told.is_some(), "{:?}", watching.stderr());
    // The command must not have taken the shim's silence for the end of the pod.
    assert!(!watching.stdout().contains("Stopped"));
}

fn is_running(pid: u32) -> bool {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    !words.is_empty()
}

/// Process ids of the shims that serve calls. Processes of `start` are left out.
fn serving(host: &Containerd) -> Vec<u32> {
    let mut shims = host.shims();
    shims.retain(|pid| {
        let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        !words.split('\0').any(|word| word == "start")
    });
    shims
}

#[test]
fn a_shim_exits_soon_if_its_containerd_died_before_the_create() {
    let host = Containerd::start();
    let spec = ContainerSpec::new("never").args(&SLEEP);
    // `start` reads this file just before it forks the process that serves. The file is replaced by
    // a FIFO, so the read blocks as long as the FIFO has a writer.
    let config = host.usher_config();
    fs::remove_file(&config).expect("the configuration");
    mkfifo(&config, Mode::S_IRUSR | Mode::S_IWUSR).expect("a FIFO");
    let both = fs::OpenOptions::new().read(true).write(true).open(&config);
    let ctr = host.spawn_run(&spec);
    // The `start` process gets its parameters from containerd before it opens the FIFO. So the
    // test can stop containerd as soon as the FIFO is open.
    let reads = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"))
            .into_iter()
            .flatten();
        let mut links = open.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.any(|link| link == config)
    };
    let start = poll(PATIENCE, || host.shims().into_iter().find(reads));
    let start = start.expect("the start of a shim");
    signal(host.pid().expect("containerd runs"), Signal::SIGSTOP);
    let usual = config.with_extension("usual");
    fs::write(&usual, "").expect("a configuration");
    fs::rename(usual, &config).expect("a configuration");
    drop(both.expect("both ends of the FIFO"));
    let shim = poll(PATIENCE, || {
        let is_over = !is_running(start);
        serving(&host).pop().filter(|_| is_over)
    });
    let shim = shim.expect("a shim");
    host.crash();
    drop(ctr);
    let died = Instant::now();
    // The shim has half a minute to exit; an earlier version took five minutes.
    let ended = poll(Duration::from_secs(30), || {
        (!is_running(shim)).then_some(())
    });
    assert!(ended.is_some(), "it still waits after {:?}", died.elapsed());
    host.start_again();
}

#[test]
fn a_shim_waits_for_a_late_create_of_a_living_containerd() {
    let host = Containerd::start();
    let shim = BareShim::start(&host, &runtime_under_test(), "a", &SLEEP, |_| ());
    // This connection stands for containerd, which stays connected to a shim after `start`.
    let containerd = shim.api();
    // If containerd had died, the shim would exit within this time.
    std::thread::sleep(Duration::from_secs(25));
    containerd.create(&shim.create_request()).expect("create");
    containerd.start("a", "").expect("start");
}
