//! The program that containers of the integration tests run. It records its own events.
//!
//! Each event is one line, written by a single `write` to a file opened with `O_APPEND`. So the
//! lines of all containers that share the directory `/shared` are complete and in order:
//!
//! ```text
//! <nanoseconds since 1970> <name> <event> [detail]
//! ```
//!
//! The test harness compiles this file with plain `rustc` into a static binary, because the root
//! file systems of the tests have no libraries. It uses only the standard library and the five C
//! functions below.
//!
//! ```text
//! witness NAME [option …]           record `start`, then wait for signals
//!   --ready-after D                 record `ready` after D, create /shared/ready-NAME
//!   --listen PORT                   once ready accept on 127.0.0.1 (brings `lo` up: needs
//!                                   CAP_NET_ADMIN), record the first connection as `accepted`
//!   --http PORT                     answer GET there: twice with 503, recorded as `refused`, then
//!                                   with 200, recorded as `ready` before the first such answer
//!   --grpc PORT                     the same for gRPC health checks: NOT_SERVING, SERVING
//!   --beat D                        record `beat` every D
//!   --run-for D                     exit by itself after D
//!   --stop-after D                  time from the first stop signal to the exit (default 0)
//!   --stop-signal N                 a stop signal besides TERM, INT and QUIT
//!   --ignore-term                   record stop signals, but keep running
//!   --exit CODE                     exit code (default 0); `exit CODE` is the last record
//! witness mark NAME EVENT [DETAIL]  record one line
//! ```
//!
//! Durations are `250ms`, `2s`, `1.5s`.

#![allow(clippy::disallowed_methods, reason = "not a service")]

use std::ffi::{c_int, c_void};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::exit;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const SHARED: &str = "/shared";

/// Signals that a witness records: HUP, INT, QUIT, USR1, USR2, TERM, PWR and RTMIN+3. Images choose
/// these as their stop signals.
const RECORDED: [c_int; 8] = [1, 2, 3, 10, 12, 15, 30, 37];
/// The default stop signals: INT, QUIT, TERM.
const STOPS: [c_int; 3] = [2, 3, 15];

fn main() {
    let mut args = std::env::args().skip(1);
    let name = args.next().unwrap_or_else(|| usage("a name is missing"));
    if name == "mark" {
        let words: Vec<String> = args.collect();
        let [name, event, detail @ ..] = &words[..] else {
            usage("mark needs NAME EVENT [DETAIL]")
        };
        Recorder::open(name).write(event, &detail.join(" "));
        return;
    }
    // Signals are blocked before `start` is recorded: a test that sees `start` in the record may
    // send a signal immediately.
    let signals = signals::block(&RECORDED);
    let recorder = Recorder::open(&name);
    recorder.write("start", "");
    let options = Options::parse(args);
    let code = Witness::new(recorder, options).run(&signals);
    exit(code);
}

fn usage(problem: &str) -> ! {
    eprintln!("witness: {problem}");
    exit(64);
}

struct Recorder {
    name: String,
    file: File,
}

impl Recorder {
    fn open(name: &str) -> Self {
        let path = format!("{SHARED}/record");
        let file = OpenOptions::new().append(true).create(true).open(&path);
        let file = file.unwrap_or_else(|e| usage(&format!("{path}: {e}")));
        Self {
            name: name.to_owned(),
            file,
        }
    }

    fn write(&self, event: &str, detail: &str) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .expect("a clock after 1970");
        let line = format!("{} {} {event} {detail}", now.as_nanos(), self.name);
        let line = format!("{}\n", line.trim_end());
        if let Err(e) = (&self.file).write_all(line.as_bytes()) {
            usage(&format!("record: {e}"));
        }
    }
}

#[derive(Default)]
struct Options {
    ready_after: Option<Duration>,
    listen: Option<u16>,
    http: Option<u16>,
    grpc: Option<u16>,
    beat: Option<Duration>,
    run_for: Option<Duration>,
    stop_after: Duration,
    stop_signal: Option<c_int>,
    ignore_term: bool,
    exit: i32,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Self {
        let mut options = Self::default();
        while let Some(key) = args.next() {
            if key == "--ignore-term" {
                options.ignore_term = true;
                continue;
            }
            let value = args
                .next()
                .unwrap_or_else(|| usage(&format!("{key} needs a value")));
            match key.as_str() {
                "--ready-after" => options.ready_after = Some(duration(&value)),
                "--listen" => options.listen = Some(number(&value)),
                "--http" => options.http = Some(number(&value)),
                "--grpc" => options.grpc = Some(number(&value)),
                "--beat" => options.beat = Some(duration(&value)),
                "--run-for" => options.run_for = Some(duration(&value)),
                "--stop-after" => options.stop_after = duration(&value),
                "--stop-signal" => options.stop_signal = Some(number(&value)),
                "--exit" => options.exit = number(&value),
                _ => usage(&format!("unknown option {key}")),
            }
        }
        if options.listen.is_some() && options.ready_after.is_none() {
            options.ready_after = Some(Duration::ZERO);
        }
        options
    }
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse()
        .unwrap_or_else(|_| usage(&format!("{text} is not a number in range")))
}

fn duration(text: &str) -> Duration {
    let (digits, unit) = match text.strip_suffix("ms") {
        Some(digits) => (digits, 0.001),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    Duration::from_secs_f64(number::<f64>(digits) * unit)
}

struct Witness {
    recorder: Arc<Recorder>,
    options: Options,
    ready_at: Option<Instant>,
    beat_at: Option<Instant>,
    exit_at: Option<Instant>,
}

impl Witness {
    fn new(recorder: Recorder, options: Options) -> Self {
        let now = Instant::now();
        Self {
            ready_at: options.ready_after.map(|after| now + after),
            beat_at: options.beat.map(|every| now + every),
            exit_at: options.run_for.map(|after| now + after),
            recorder: Arc::new(recorder),
            options,
        }
    }

    fn run(mut self, signals: &signals::Set) -> i32 {
        self.serve(self.options.http, answers::http);
        self.serve(self.options.grpc, answers::grpc);
        loop {
            let now = Instant::now();
            if self.exit_at.is_some_and(|at| at <= now) {
                self.recorder.write("exit", &self.options.exit.to_string());
                return self.options.exit;
            }
            if self.ready_at.is_some_and(|at| at <= now) {
                self.ready_at = None;
                self.become_ready();
            }
            if let Some(every) = self
                .options
                .beat
                .filter(|_| self.beat_at.is_some_and(|at| at <= now))
            {
                self.recorder.write("beat", "");
                self.beat_at = Some(now + every);
            }
            let next = [self.exit_at, self.ready_at, self.beat_at]
                .into_iter()
                .flatten()
                .min();
            let wait = next.map_or(Duration::from_secs(3600), |at| {
                at.saturating_duration_since(now)
            });
            if let Some(signal) = signals::wait(signals, wait) {
                self.on_signal(signal);
            }
        }
    }

    fn become_ready(&self) {
        // As soon as the witness listens, a probe can succeed and release other containers. Their
        // records have to follow this one.
        self.recorder.write("ready", "");
        if let Some(listener) = self.listen(self.options.listen) {
            let recorder = Arc::clone(&self.recorder);
            thread::spawn(move || accept_for_ever(&listener, &recorder));
        }
        let _ = File::create(format!("{SHARED}/ready-{}", self.recorder.name));
    }

    fn listen(&self, port: Option<u16>) -> Option<TcpListener> {
        let port = port?;
        if let Err(e) = loopback::up() {
            self.recorder.write("error", &format!("lo: {e}"));
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        listener
            .inspect_err(|e| self.recorder.write("error", &format!("listen: {e}")))
            .ok()
    }

    fn serve(&self, port: Option<u16>, answer: fn(bool) -> Vec<u8>) {
        let Some(listener) = self.listen(port) else {
            return;
        };
        let recorder = Arc::clone(&self.recorder);
        thread::spawn(move || serve_for_ever(&listener, &recorder, answer));
    }

    fn on_signal(&mut self, signal: c_int) {
        self.recorder.write("signal", &signal.to_string());
        let stops = STOPS.contains(&signal) || self.options.stop_signal == Some(signal);
        if stops && !self.options.ignore_term {
            let exit_at = Instant::now() + self.options.stop_after;
            self.exit_at = Some(self.exit_at.map_or(exit_at, |at| at.min(exit_at)));
        }
    }
}

/// Accepts connections without end. If the witness stopped accepting, the backlog would fill and
/// later probes would fail.
fn accept_for_ever(listener: &TcpListener, recorder: &Recorder) {
    for (n, _connection) in listener.incoming().enumerate() {
        if n == 0 {
            recorder.write("accepted", "");
        }
    }
}

/// Serves one connection after another, because a probe sends one request and closes the connection
/// after the answer.
fn serve_for_ever(listener: &TcpListener, recorder: &Recorder, answer: fn(bool) -> Vec<u8>) {
    const REFUSED: usize = 2;
    for (n, stream) in listener.incoming().enumerate() {
        match n {
            0..REFUSED => recorder.write("refused", ""),
            REFUSED => recorder.write("ready", ""),
            _ => {}
        }
        let Ok(mut stream) = stream else { continue };
        let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = answer_one(&mut stream, &answer(n >= REFUSED));
    }
}

/// Answers a request, and then reads until the client closes the connection. If the witness closed
/// a socket that has unread data, the client would lose the answer.
fn answer_one(stream: &mut TcpStream, answer: &[u8]) -> std::io::Result<()> {
    let mut question = [0; 4096];
    if stream.read(&mut question)? > 0 {
        stream.write_all(answer)?;
        while stream.read(&mut question)? > 0 {}
    }
    Ok(())
}

/// Answers that do not depend on the request.
mod answers {
    pub fn http(ready: bool) -> Vec<u8> {
        let status = if ready { "200 OK" } else { "503 Not Yet" };
        format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").into_bytes()
    }

    /// HTTP/2 frames on the first stream: empty settings, an acknowledgment of the client's
    /// settings, headers, a HealthCheckResponse, trailers.
    pub fn grpc(ready: bool) -> Vec<u8> {
        const STATUS_200: u8 = 0x88;
        const NEW_FIELD: u8 = 0;
        let mut headers = vec![STATUS_200];
        let mut trailers = vec![];
        let fields = [
            (&mut headers, "content-type", "application/grpc"),
            (&mut trailers, "grpc-status", "0"),
        ];
        for (block, name, value) in fields {
            block.push(NEW_FIELD);
            for text in [name, value] {
                block.push(text.len() as u8);
                block.extend(text.bytes());
            }
        }
        let serving_status = if ready { 1 } else { 2 };
        let response = [0, 0, 0, 0, 2, 8, serving_status];
        let (settings, acknowledge, end_headers, end_stream) = (4, 1, 4, 1);
        [
            frame(settings, 0, 0, &[]),
            frame(settings, acknowledge, 0, &[]),
            frame(1, end_headers, 1, &headers),
            frame(0, 0, 1, &response),
            frame(1, end_headers | end_stream, 1, &trailers),
        ]
        .concat()
    }

    fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0, 0, payload.len() as u8, kind, flags, 0, 0, 0, stream];
        frame.extend(payload);
        frame
    }
}

/// Blocks signals, and fetches them without signal handlers. The kernel drops signals for process 1
/// of a PID namespace unless the process blocks or handles them. Code that fetches signals need not
/// be safe in a signal handler.
mod signals {
    use super::*;

    #[repr(C)]
    pub struct Set([u64; 16]);

    #[repr(C)]
    struct Timespec {
        seconds: i64,
        nanoseconds: i64,
    }

    unsafe extern "C" {
        fn sigemptyset(set: *mut Set) -> c_int;
        fn sigaddset(set: *mut Set, signal: c_int) -> c_int;
        fn sigprocmask(how: c_int, set: *const Set, old: *mut Set) -> c_int;
        fn sigtimedwait(set: *const Set, info: *mut c_void, timeout: *const Timespec) -> c_int;
    }

    const SIG_BLOCK: c_int = 0;

    pub fn block(wanted: &[c_int]) -> Set {
        let mut set = Set([0; 16]);
        // SAFETY: `Set` has the size and alignment of the C library's sigset_t on Linux.
        unsafe {
            sigemptyset(&mut set);
            for &signal in wanted {
                sigaddset(&mut set, signal);
            }
            sigprocmask(SIG_BLOCK, &set, std::ptr::null_mut());
        }
        set
    }

    pub fn wait(set: &Set, longest: Duration) -> Option<c_int> {
        let timeout = Timespec {
            seconds: longest.as_secs() as i64,
            nanoseconds: longest.subsec_nanos().into(),
        };
        // SAFETY: both pointers are valid for the call; no siginfo is requested.
        let signal = unsafe { sigtimedwait(set, std::ptr::null_mut(), &timeout) };
        (signal > 0).then_some(signal)
    }
}

/// Brings up `lo`, which is down in the network namespace that `ctr` gives to each container.
mod loopback {
    use super::*;
    use std::io;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    #[repr(C)]
    struct InterfaceRequest {
        name: [u8; 16],
        flags: i16,
        rest: [u8; 22],
    }

    unsafe extern "C" {
        fn ioctl(fd: c_int, request: usize, argument: *mut InterfaceRequest) -> c_int;
    }

    const SIOCGIFFLAGS: usize = 0x8913;
    const SIOCSIFFLAGS: usize = 0x8914;
    const IFF_UP: i16 = 1;

    pub fn up() -> io::Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let mut request = InterfaceRequest {
            name: [0; 16],
            flags: 0,
            rest: [0; 22],
        };
        request.name[..2].copy_from_slice(b"lo");
        let call = |number, request: &mut InterfaceRequest| {
            // SAFETY: the request has the layout of the kernel's struct ifreq.
            match unsafe { ioctl(socket.as_raw_fd(), number, request) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        call(SIOCGIFFLAGS, &mut request)?;
        if request.flags & IFF_UP != 0 {
            return Ok(());
        }
        request.flags |= IFF_UP;
        call(SIOCSIFFLAGS, &mut request)
    }
}
