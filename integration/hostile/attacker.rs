//! The program of hostile containers, for attacks that need more speed or other system calls than a
//! shell has.
//!
//! Like the [witness](../witness.rs) it is compiled with plain `rustc` into a static program, so it
//! uses only the standard library and the C functions below.
//!
//! ```text
//! attacker forks           fork without end, each child too; ignore stop signals
//! attacker orphans         make orphans as fast as possible
//! attacker eat             allocate memory until killed, as the first choice of the OOM killer
//! attacker serve PORT HOW  bring `lo` up (CAP_NET_ADMIN) and accept; HOW is the answer:
//!                         silent    nothing
//!                         half      the first half of an HTTP answer or HTTP/2 frame
//!                         endless   headers without end
//!                         settings  HTTP/2: frames that require acknowledgment, without end
//!                         goaway    HTTP/2: GOAWAY with 16 kB of noise
//! attacker addresses N     in a user and a network namespace of its own, give `lo` N addresses
//! attacker connect PATH    connect to a Unix socket and hang up, without end
//! attacker namespaces N    in N nested namespaces of each kind; ignore stop signals
//! ```

#![allow(clippy::disallowed_methods, reason = "not a service")]

use std::ffi::c_int;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::process::exit;
use std::thread;
use std::time::Duration;

unsafe extern "C" {
    fn fork() -> c_int;
    fn waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    fn signal(number: c_int, handler: usize) -> usize;
    fn unshare(flags: c_int) -> c_int;
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn ioctl(fd: c_int, request: usize, argument: *mut InterfaceRequest) -> c_int;
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["forks"] => forks(),
        ["orphans"] => orphans(),
        ["eat"] => eat(),
        ["serve", port, how] => serve(number(port), how),
        ["addresses", count] => addresses(number(count)),
        ["connect", path] => connect_endlessly(path),
        ["namespaces", depth] => namespaces(number(depth)),
        _ => fail("see the head of its source"),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> T {
    text.parse()
        .unwrap_or_else(|_| fail(&format!("{text} is not a number in range")))
}

fn fail(problem: &str) -> ! {
    eprintln!("attacker: {problem}");
    exit(64);
}

fn connect_endlessly(path: &str) -> ! {
    loop {
        let _ = std::os::unix::net::UnixStream::connect(path);
    }
}

/// INT, QUIT, TERM.
fn ignore_stop_signals() {
    const IGNORE: usize = 1;
    for number in [2, 3, 15] {
        // SAFETY: no handler is installed.
        unsafe { signal(number, IGNORE) };
    }
}

/// Forks. Returns 0 in the child, and a negative number if the limit of processes is reached.
fn try_fork() -> c_int {
    // SAFETY: the program has one thread wherever this is called.
    unsafe { fork() }
}

fn collect(pid: c_int) {
    // SAFETY: a null pointer means that no status is returned.
    unsafe { waitpid(pid, std::ptr::null_mut(), 0) };
}

fn forks() -> ! {
    ignore_stop_signals();
    loop {
        if try_fork() < 0 {
            // The limit of processes is reached. Wait only briefly, so that a killed process is
            // soon replaced.
            thread::sleep(Duration::from_micros(100));
        }
    }
}

fn orphans() -> ! {
    ignore_stop_signals();
    loop {
        match try_fork() {
            0 => {
                // The child has forked too. Child and grandchild both exit, and the grandchild
                // becomes an orphan.
                try_fork();
                exit(0);
            }
            ..0 => thread::sleep(Duration::from_micros(100)),
            child => collect(child),
        }
    }
}

fn eat() -> ! {
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let mut eaten: Vec<Vec<u8>> = Vec::new();
    loop {
        eaten.push(vec![1; 1 << 20]);
    }
}

fn serve(port: u16, how: &str) -> ! {
    ignore_stop_signals();
    bring_lo_up();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = listener.unwrap_or_else(|e| fail(&format!("listen: {e}")));
    let answer: fn(TcpStream) -> std::io::Result<()> = match how {
        "silent" => silent,
        "half" => half,
        "endless" => endless,
        "settings" => settings,
        "goaway" => goaway,
        _ => fail("no such answer"),
    };
    for stream in listener.incoming().flatten() {
        thread::spawn(move || answer(stream));
    }
    exit(1)
}

/// Reads until the client has gone.
fn silent(mut stream: TcpStream) -> std::io::Result<()> {
    let mut question = [0; 4096];
    while stream.read(&mut question)? > 0 {}
    Ok(())
}

fn half(mut stream: TcpStream) -> std::io::Result<()> {
    let mut question = [0; 4096];
    let length = stream.read(&mut question)?;
    let by_http2 = question[..length].starts_with(b"PRI * HTTP/2");
    let answer: &[u8] = match by_http2 {
        // Empty SETTINGS, then the header of a frame of 100 bytes.
        true => &[0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 100, 4, 0, 0, 0],
        false => b"HTTP/1.1 200 OK\r\nContent-Le",
    };
    stream.write_all(answer)?;
    silent(stream)
}

fn endless(mut stream: TcpStream) -> std::io::Result<()> {
    stream.write_all(b"HTTP/1.1 200 OK\r\n")?;
    let line = format!("X-{}: {}\r\n", "a".repeat(100), "b".repeat(1000));
    loop {
        stream.write_all(line.as_bytes())?;
    }
}

fn settings(mut stream: TcpStream) -> std::io::Result<()> {
    // Another thread reads what the client sends. Otherwise the buffers of both directions would
    // fill, and the flood would stop.
    let reader = stream.try_clone()?;
    thread::spawn(move || silent(reader));
    let frames = [0, 0, 0, 4, 0, 0, 0, 0, 0].repeat(1000);
    loop {
        stream.write_all(&frames)?;
    }
}

fn goaway(mut stream: TcpStream) -> std::io::Result<()> {
    const LENGTH: usize = 16_000;
    let mut answer = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    answer.extend([0, (LENGTH >> 8) as u8, LENGTH as u8, 7, 0, 0, 0, 0, 0]);
    // The last stream is 0, and the error code is ENHANCE_YOUR_CALM.
    answer.extend([0, 0, 0, 0, 0, 0, 0, 11]);
    answer.extend(b"\x1b[2J\n".iter().cycle().take(LENGTH - 8));
    stream.write_all(&answer)?;
    silent(stream)
}

#[repr(C)]
struct InterfaceRequest {
    name: [u8; 16],
    flags: i16,
    rest: [u8; 22],
}

fn bring_lo_up() {
    const SIOCSIFFLAGS: usize = 0x8914;
    const IFF_UP: i16 = 1;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0));
    let socket = socket.unwrap_or_else(|e| fail(&format!("a socket: {e}")));
    let mut request = InterfaceRequest {
        name: [0; 16],
        flags: IFF_UP,
        rest: [0; 22],
    };
    request.name[..2].copy_from_slice(b"lo");
    // SAFETY: the request has the layout of the kernel's struct ifreq.
    unsafe { ioctl(socket.as_raw_fd(), SIOCSIFFLAGS, &mut request) };
}

const NEW_NET: c_int = 0x4000_0000;
const NEW_USER: c_int = 0x1000_0000;
const NEW_PID: c_int = 0x2000_0000;
const NEW_IPC: c_int = 0x0800_0000;
const NEW_UTS: c_int = 0x0400_0000;
const NEW_CGROUP: c_int = 0x0200_0000;
const NEW_MOUNT: c_int = 0x0002_0000;

fn leave(namespaces: c_int) {
    // SAFETY: the program has one thread wherever this is called.
    if unsafe { unshare(namespaces) } != 0 {
        let error = std::io::Error::last_os_error();
        fail(&format!("unshare: {error}"));
    }
}

fn addresses(count: u32) -> ! {
    ignore_stop_signals();
    leave(NEW_USER | NEW_NET);
    bring_lo_up();
    const NETLINK: c_int = 16;
    const RAW: c_int = 3;
    // SAFETY: all arguments are numbers.
    let socket = unsafe { socket(NETLINK, RAW, 0) };
    if socket < 0 {
        fail("a socket of netlink");
    }
    // SAFETY: the socket was just opened, and has no other owner.
    let mut socket = unsafe { File::from_raw_fd(socket) };
    let first = u32::from(Ipv4Addr::new(10, 0, 0, 1));
    let numbers: Vec<u32> = (first..first + count).collect();
    for some in numbers.chunks(100) {
        let messages: Vec<u8> = some.iter().flat_map(|n| new_address(*n)).collect();
        if let Err(e) = socket.write_all(&messages) {
            fail(&format!("new addresses: {e}"));
        }
    }
    println!("there");
    sleep_for_ever()
}

/// A message that adds an address to the first interface, `lo`.
fn new_address(address: u32) -> Vec<u8> {
    const LENGTH: u32 = 40;
    const NEW: u16 = 20;
    const REQUEST_CREATE_EXCLUSIVE: u16 = 1 | 0x400 | 0x200;
    let mut message = Vec::with_capacity(LENGTH as usize);
    message.extend(LENGTH.to_ne_bytes());
    message.extend(NEW.to_ne_bytes());
    message.extend(REQUEST_CREATE_EXCLUSIVE.to_ne_bytes());
    message.extend([0; 8]);
    // The fields of `ifaddrmsg`: IPv4, a prefix of 32 bits, no flags, scope universe, and the
    // number of the first interface.
    message.extend([2, 32, 0, 0]);
    message.extend(1_u32.to_ne_bytes());
    // The attributes IFA_LOCAL and IFA_ADDRESS.
    for attribute in [2_u16, 1] {
        message.extend(8_u16.to_ne_bytes());
        message.extend(attribute.to_ne_bytes());
        message.extend(address.to_be_bytes());
    }
    message
}

fn namespaces(depth: u32) -> ! {
    ignore_stop_signals();
    for _ in 0..depth {
        leave(NEW_USER | NEW_NET | NEW_PID | NEW_IPC | NEW_UTS | NEW_CGROUP | NEW_MOUNT);
        match try_fork() {
            0 => {}
            ..0 => fail("fork"),
            child => {
                collect(child);
                sleep_for_ever()
            }
        }
    }
    sleep_for_ever()
}

fn sleep_for_ever() -> ! {
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}
