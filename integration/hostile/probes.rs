//! Servers and commands that misbehave as much as they can when they are probed.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, send, socket};

use crate::harness::{
    ContainerSpec, Containerd, PATIENCE, eventually, processor_ticks, run, scaled,
};

const PORT: u16 = 8080;

/// Duration of a measurement.
const WATCHED: Duration = Duration::from_secs(3);

/// CPU time in ticks of 10 ms. While a server runs, the shim may use this time plus twice its CPU
/// time without a server. The constant allows for the test's own calls and for busy machines.
/// During [`WATCHED`], it is a thirtieth of a CPU.
const SPARE_TICKS: u64 = 10;

/// A probe that runs ten times a second, with a failure threshold that is never reached.
fn probe(check: &str) -> String {
    format!(r#"{{{check},"periodMilliseconds":100,"timeoutSeconds":1,"failureThreshold":1000000}}"#)
}

const HTTP: &str = r#""httpGet":{"port":8080}"#;
const HTTPS: &str = r#""httpGet":{"port":8080,"scheme":"HTTPS"}"#;
const GRPC: &str = r#""grpc":{"port":8080}"#;
const TCP: &str = r#""tcpSocket":{"port":9}"#;

/// An empty SETTINGS frame, which requires an acknowledgment.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];

/// A pod of probed sidecars, each in a network namespace of its own.
struct Probed<'host> {
    host: &'host Containerd,
    /// The annotations of every container.
    annotations: Vec<(String, String)>,
    shim: u32,
}

/// Observations of a shim.
#[derive(Debug)]
struct Seen {
    /// CPU time of the shim without its child processes, in ticks of 10 ms.
    ticks: u64,
    /// The longest time that the shim took to answer a State call.
    slowest_state: Duration,
}

impl<'host> Probed<'host> {
    /// Runs all sidecars, but starts no server in them.
    fn start(host: &'host Containerd, probes: &[(&str, String)]) -> Self {
        let names: Vec<_> = probes.iter().map(|(name, _)| *name).collect();
        let mut annotations = vec![("usher/sidecars".to_owned(), names.join(","))];
        annotations.extend(probes.iter().map(|(name, probe)| {
            let key = format!("startup-probe.usher/{name}");
            (key, probe.clone())
        }));
        Self::run(host, &names, annotations)
    }

    fn run(host: &'host Containerd, names: &[&str], annotations: Vec<(String, String)>) -> Self {
        let mut pod = Self {
            host,
            annotations,
            shim: 0,
        };
        for name in names {
            host.run(&pod.spec(name).args(&["/bin/sleep", "1000"]));
            pod.busybox(name, &["ip", "link", "set", "lo", "up"]);
        }
        pod.shim = host.shim(names[0]).pid;
        pod
    }

    fn spec(&self, name: &str) -> ContainerSpec {
        let spec = ContainerSpec::new(name).in_pod("pod1", name);
        let annotations = self.annotations.iter();
        annotations.fold(spec, |spec, (key, value)| spec.annotation(key, value))
    }

    /// Runs the machine's busybox in the container's network.
    fn busybox(&self, name: &str, args: &[&str]) {
        let finished = self.within(name, || {
            let mut busybox = Command::new("busybox");
            busybox.args(args);
            run(busybox, PATIENCE)
        });
        assert!(finished.ok(), "{args:?}: {}", finished.err());
    }

    /// Runs `work` on a thread in the container's network.
    fn within<T: Send>(&self, name: &str, work: impl FnOnce() -> T + Send) -> T {
        let network = network(self.host, name);
        thread::scope(|scope| {
            let work = scope.spawn(move || {
                setns(network, CloneFlags::CLONE_NEWNET).expect("the container's network");
                work()
            });
            work.join().expect("no panic")
        })
    }

    fn serve(&self, name: &str, serve: fn(TcpStream) -> std::io::Result<()>) -> Server {
        let listener = self.within(name, || TcpListener::bind(("127.0.0.1", PORT)));
        Server::start(listener.expect("a listener"), serve)
    }

    /// Process ids of the shim's probers.
    fn probers(&self) -> Vec<u32> {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.shim));
        let children = children.unwrap_or_default();
        let pids = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        pids.filter(|pid| is_prober(*pid)).collect()
    }

    /// Observes the shim twice: while the container has no server, and while it has one. Checks
    /// that the server neither costs the shim much CPU time nor delays the shim's answers.
    #[track_caller]
    fn compare<T>(&self, name: &str, containers: usize, serve: impl FnOnce() -> T) -> T {
        let before = self.watch(name, containers);
        let served = serve();
        let meanwhile = self.watch(name, containers);
        eprintln!("{meanwhile:?}, before: {before:?}");
        assert!(
            meanwhile.ticks <= 2 * before.ticks + SPARE_TICKS,
            "{meanwhile:?}, before: {before:?}"
        );
        let slow = scaled(Duration::from_secs(1)) + 2 * before.slowest_state;
        assert!(
            meanwhile.slowest_state < slow,
            "{meanwhile:?}, before: {before:?}"
        );
        served
    }

    /// Calls State for a container again and again, and checks the probers meanwhile.
    #[track_caller]
    fn watch(&self, name: &str, containers: usize) -> Seen {
        let api = self.host.task_api(name);
        let mut slowest = Duration::ZERO;
        let mut seen: BTreeMap<u32, Instant> = BTreeMap::new();
        let (begun, before) = (Instant::now(), processor_ticks(self.shim));
        while begun.elapsed() < WATCHED {
            let asked = Instant::now();
            api.state(name, "").expect("State");
            slowest = slowest.max(asked.elapsed());
            let probers = self.probers();
            assert!(probers.len() <= containers, "{} probers", probers.len());
            seen.retain(|pid, _| probers.contains(pid));
            for pid in probers {
                let since = *seen.entry(pid).or_insert_with(Instant::now);
                assert!(
                    since.elapsed() < scaled(Duration::from_secs(3)),
                    "prober {pid} stays"
                );
            }
            thread::sleep(Duration::from_millis(10));
        }
        Seen {
            ticks: processor_ticks(self.shim) - before,
            slowest_state: slowest,
        }
    }

    /// Returns the log's lines about a container. Checks that every line of the log is short and
    /// printable.
    #[track_caller]
    fn said_of(&self, name: &str) -> Vec<String> {
        let log = self.host.log_tail(usize::MAX);
        for line in log.lines() {
            assert!(line.len() < 4096, "a line of {} bytes", line.len());
            let turns = |c| matches!(c, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}');
            assert!(
                !line.contains(|c: char| c.is_control() || turns(c)),
                "{line:?}"
            );
        }
        let about = format!("container={name} ");
        let own = log.lines().filter(|line| line.contains(&about));
        own.map(str::to_owned).collect()
    }

    #[track_caller]
    fn await_failure(&self, name: &str, words: &str) {
        eventually(&format!("an attempt failed: {words}"), PATIENCE, || {
            self.said_of(name).iter().any(|line| line.contains(words))
        });
    }
}

fn network(host: &Containerd, name: &str) -> File {
    let (pid, _) = host.pids(name)[0];
    File::open(format!("/proc/{pid}/ns/net")).expect("the container's network")
}

fn is_prober(pid: u32) -> bool {
    let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.ends_with("\0prober\0")
}

/// A server that accepts connections until it is dropped. Dropping it closes no open connection.
struct Server {
    connections: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl Server {
    fn start(listener: TcpListener, serve: fn(TcpStream) -> std::io::Result<()>) -> Self {
        let (connections, is_over) = (Arc::default(), Arc::default());
        let server = Self {
            connections: Arc::clone(&connections),
            is_over: Arc::clone(&is_over),
        };
        listener.set_nonblocking(true).expect("a listener");
        thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let Ok((stream, _)) = listener.accept() else {
                    thread::sleep(Duration::from_millis(5));
                    continue;
                };
                connections.fetch_add(1, Ordering::Relaxed);
                thread::spawn(move || {
                    let _ = stream.set_nonblocking(false);
                    // The prober may close the connection during the answer.
                    let _ = serve(stream);
                });
            }
        });
        server
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Reads until the client has gone.
fn listen(mut stream: TcpStream) -> std::io::Result<()> {
    let mut ignored = [0; 4096];
    while stream.read(&mut ignored)? > 0 {}
    Ok(())
}

fn pour(mut stream: TcpStream, begin: &[u8], more: &[u8]) -> std::io::Result<()> {
    stream.write_all(begin)?;
    loop {
        stream.write_all(more)?;
    }
}

fn flood_with_settings(stream: TcpStream) -> std::io::Result<()> {
    pour(stream, SETTINGS, &SETTINGS.repeat(1000))
}

/// Sends several GOAWAY frames of the greatest size that a client accepts. Their text clears a
/// screen, reverses the writing direction, and imitates a line of the log.
fn go_away_with_words(mut stream: TcpStream) -> std::io::Result<()> {
    let words = "\x1b[2J\u{202e}\r\n\0time=\"now\" level=info msg=forged\n\u{9b}";
    let words: Vec<u8> = words.bytes().cycle().take(16_000).collect();
    let mut frame = ((words.len() + 8) as u32).to_be_bytes()[1..].to_vec();
    // GOAWAY for the whole connection, with the last stream 0 and the error ENHANCE_YOUR_CALM.
    frame.extend([7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 11]);
    frame.extend(words);
    stream.write_all(SETTINGS)?;
    stream.write_all(&frame.repeat(4))?;
    listen(stream)
}

fn slowly(mut stream: TcpStream, begin: &[u8], more: &[u8]) -> std::io::Result<()> {
    stream.write_all(begin)?;
    loop {
        stream.write_all(more)?;
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_flood_of_settings_costs_the_shim_nothing() {
    let host = Containerd::start();
    let pod = Probed::start(&host, &[("proxy", probe(GRPC))]);
    let server = pod.compare("proxy", 1, || pod.serve("proxy", flood_with_settings));
    pod.await_failure("proxy", "no answer from 127.0.0.1:8080: ");
    eventually("the probe runs again", PATIENCE, || {
        server.connections() >= 3
    });
}

#[test]
fn a_servers_goaway_is_logged_short_and_escaped() {
    let host = Containerd::start();
    let pod = Probed::start(&host, &[("proxy", probe(GRPC))]);
    let _server = pod.serve("proxy", go_away_with_words);
    pod.await_failure("proxy", "detected excessive load");
    for line in pod.said_of("proxy") {
        assert!(line.len() < 2500, "{} bytes: {line}", line.len());
    }
}

#[test]
fn servers_that_never_finish_an_answer_delay_no_call() {
    type Serve = fn(TcpStream) -> std::io::Result<()>;
    let cases: [(&str, &str, Serve, &str); 7] = [
        ("silent", HTTP, listen, "no answer within 1s"),
        (
            "half",
            HTTP,
            |mut stream| {
                stream.write_all(b"HTTP/1.1 200 OK\r\nX-A: ")?;
                listen(stream)
            },
            "no answer within 1s",
        ),
        (
            "headers",
            HTTP,
            |stream| pour(stream, b"HTTP/1.1 200 OK\r\n", &b"X-A: b\r\n".repeat(1000)),
            "no answer from 127.0.0.1:8080: ",
        ),
        (
            "body",
            HTTP,
            |stream| slowly(stream, b"HTTP/1.1 200 OK\r\n\r\n", b"a"),
            "no answer within 1s",
        ),
        (
            "interim",
            HTTP,
            |stream| {
                pour(
                    stream,
                    b"",
                    &b"HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1000),
                )
            },
            "no answer from 127.0.0.1:8080: ",
        ),
        (
            "garbage",
            HTTPS,
            |stream| pour(stream, b"", &[0x16, 3, 3, 0x40, 0, 2, 0xff].repeat(1000)),
            "TLS with 127.0.0.1:8080: ",
        ),
        (
            "stuck",
            HTTPS,
            |stream| slowly(stream, b"", &[0x16]),
            "TLS with 127.0.0.1:8080: ",
        ),
    ];
    let host = Containerd::start();
    let probes = cases.map(|(name, check, ..)| (name, probe(check)));
    let pod = Probed::start(&host, &probes);
    let servers = pod.compare("silent", cases.len(), || {
        cases.map(|(name, _, serve, _)| pod.serve(name, serve))
    });
    for ((name, _, _, words), server) in cases.iter().zip(&servers) {
        pod.await_failure(name, words);
        eventually(&format!("{name} is asked again"), PATIENCE, || {
            server.connections() >= 3
        });
    }
    // When all containers have exited, no prober may remain.
    for (name, ..) in &cases {
        host.kill(name, "SIGKILL");
    }
    eventually("no prober is left", PATIENCE, || pod.probers().is_empty());
}

#[test]
fn a_prober_has_no_privileges_and_ends_with_its_shim() {
    let host = Containerd::start();
    let patient = probe(HTTP).replace(r#""timeoutSeconds":1"#, r#""timeoutSeconds":1000"#);
    let pod = Probed::start(&host, &[("proxy", patient)]);
    let server = pod.serve("proxy", listen);
    eventually("the probe connects", PATIENCE, || server.connections() > 0);
    let probers = pod.probers();
    let [prober] = probers[..] else {
        panic!("{probers:?}");
    };
    let status = fs::read_to_string(format!("/proc/{prober}/status")).expect("the prober runs");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let words = line.unwrap_or_else(|| panic!("{name}: {status}"));
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for (name, expected) in [
        ("Uid:", "65534 65534 65534 65534"),
        ("Gid:", "65534 65534 65534 65534"),
        ("Groups:", ""),
        ("CapInh:", "0000000000000000"),
        ("CapPrm:", "0000000000000000"),
        ("CapEff:", "0000000000000000"),
        ("CapBnd:", "0000000000000000"),
        ("CapAmb:", "0000000000000000"),
        ("NoNewPrivs:", "1"),
        ("Seccomp:", "2"),
        ("Threads:", "1"),
    ] {
        assert_eq!(field(name), expected, "{name}");
    }
    let (init, _) = host.pids("proxy")[0];
    let link = |pid| fs::read_link(format!("/proc/{pid}/ns/net")).expect("the process runs");
    assert_eq!(link(prober), link(init));
    // The prober has only its standard streams, a connection, and the descriptors that its async
    // runtime needs for waiting. It has none of the shim's descriptors.
    let mut open = Vec::new();
    for entry in fs::read_dir(format!("/proc/{prober}/fd")).expect("the prober runs") {
        let target = fs::read_link(entry.expect("a descriptor").path()).expect("a descriptor");
        open.push(target.display().to_string());
    }
    let is_usual = |target: &String| {
        let usual = ["socket:[", "anon_inode:[event", "/dev/null"];
        usual.iter().any(|part| target.starts_with(part))
    };
    assert!(open.iter().all(is_usual), "{open:?}");
    let said = host.log_tail(usize::MAX);
    assert!(!said.contains("probers keep rights"), "{said}");
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(pod.shim as i32),
        nix::sys::signal::Signal::SIGKILL,
    )
    .expect("kill the shim");
    eventually("the prober has ended", PATIENCE, || !is_prober(prober));
}

#[test]
fn an_unanswered_hook_leaves_no_prober() {
    let host = Containerd::start();
    let annotations = [
        ("usher/sidecars", "proxy"),
        (
            "termination-hook.usher/proxy",
            r#"{"httpGet":{"port":8080}}"#,
        ),
        ("usher/grace-period", "4s"),
    ];
    let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let pod = Probed::run(&host, &["proxy", "web"], annotations.into());
    let server = pod.serve("proxy", listen);
    host.kill_all(&["web", "proxy"], "SIGTERM");
    eventually("the probe connects", PATIENCE, || server.connections() > 0);
    host.wait_exit("proxy");
    eventually("no prober is left", PATIENCE, || pod.probers().is_empty());
}

#[test]
fn thousands_of_addresses_cost_the_shim_nothing() {
    let host = Containerd::start();
    let often = probe(TCP).replace(r#""periodMilliseconds":100"#, r#""periodMilliseconds":50"#);
    let pod = Probed::start(&host, &[("proxy", often)]);
    pod.compare("proxy", 0, || {
        pod.within("proxy", || add_addresses(8_000));
    });
    pod.await_failure("proxy", "connection to 127.0.0.1:9: ");
}

/// Adds addresses to `lo`, from 10.0.0.1 on (`rtnetlink(7)`, RTM_NEWADDR).
fn add_addresses(count: u32) {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    );
    let netlink = netlink.expect("a socket");
    for number in 1..=count {
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + number);
        let mut message = Vec::new();
        message.extend(32_u32.to_ne_bytes());
        // The message type RTM_NEWADDR, and the flags NLM_F_REQUEST and NLM_F_CREATE.
        message.extend([20_u16.to_ne_bytes(), 0x401_u16.to_ne_bytes()].concat());
        message.extend([0; 8]);
        // IPv4, a prefix of 32 bits, scope universe, interface 1, and then the attribute IFA_LOCAL.
        message.extend([2, 32, 0, 0]);
        message.extend(1_u32.to_ne_bytes());
        message.extend([8_u16.to_ne_bytes(), 2_u16.to_ne_bytes()].concat());
        message.extend(address.octets());
        send(netlink.as_raw_fd(), &message, MsgFlags::empty()).expect("a message");
    }
}

#[test]
fn a_server_outside_loopback_is_found_with_and_without_a_default_route() {
    let host = Containerd::start();
    let tcp = TCP.replace('9', "8080");
    let probes = [
        ("near", probe(HTTP)),
        ("far", probe(HTTP)),
        ("bare", probe(&tcp)),
    ];
    let pod = Probed::start(&host, &probes);
    for (name, _) in &probes {
        // Make two interfaces, and bring up only the second.
        for interface in ["a0", "b0"] {
            pod.busybox(name, &["ip", "link", "add", interface, "type", "bridge"]);
        }
        pod.busybox(name, &["ip", "addr", "add", "10.7.0.1/24", "dev", "a0"]);
        pod.busybox(name, &["ip", "addr", "add", "10.9.8.7/24", "dev", "b0"]);
        pod.busybox(name, &["ip", "link", "set", "b0", "up"]);
    }
    pod.busybox("far", &["ip", "route", "add", "default", "via", "10.9.8.1"]);
    let servers = probes.each_ref().map(|(name, _)| {
        let listener = pod.within(name, || TcpListener::bind(("10.9.8.7", PORT)));
        Server::start(listener.expect("a listener"), |mut stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")?;
            listen(stream)
        })
    });
    for ((name, _), server) in probes.iter().zip(&servers) {
        eventually(&format!("{name} is asked"), PATIENCE, || {
            server.connections() > 0
        });
    }
    host.run(&pod.spec("app").witness(&[]));
    // The app starts when all sidecars are ready.
    host.await_event("app", "start");
}
