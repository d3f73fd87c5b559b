//! Starts and exits of the machine's processes with their times, from the kernel's process events
//! connector (<https://docs.kernel.org/driver-api/connector.html>, `include/uapi/linux/cn_proc.h`).

use std::fs;
use std::io;
use std::process;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_CONNECTOR;
use netlink_sys::{Socket, SocketAddr};

/// `CN_IDX_PROC` and `CN_VAL_PROC`: process events among the connector's messages.
const PROCESS_EVENTS: [u32; 2] = [1, 1];
/// `PROC_CN_MCAST_LISTEN`.
const LISTEN: u32 = 1;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// Size in bytes of `struct nlmsghdr` and `struct cn_msg`, which precede the event in a message.
const HEADERS: usize = 16 + 20;
/// `PROC_EVENT_EXEC` and `PROC_EVENT_EXIT`.
const EXEC: u32 = 0x0000_0002;
const EXIT: u32 = 0x8000_0000;

/// Size of the receive buffer in bytes, large enough for all events that arrive while the thread
/// handles one message.
const BUFFER: usize = 1 << 22;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// The process executed a program with these arguments. If the process exited before the test
    /// read its arguments, the list is empty.
    Executed(Vec<String>),
    Ended,
}

#[derive(Clone, Debug)]
pub struct Event {
    /// Time on the kernel's monotonic clock.
    pub at: Duration,
    pub pid: u32,
    pub what: What,
}

/// Reads the kernel's process events in a thread, until the value is dropped.
pub struct Processes(Receiver<Event>);

impl Processes {
    /// # Errors
    ///
    /// The kernel's error, if the kernel has no process connector, or if this process is not root.
    pub fn watch() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_CONNECTOR)?;
        socket.bind(&SocketAddr::new(process::id(), PROCESS_EVENTS[0]))?;
        socket.set_rx_buf_sz(BUFFER)?;
        socket.send(&subscription(), 0)?;
        let (sender, receiver) = channel();
        thread::spawn(move || read_along(&socket, &sender));
        Ok(Self(receiver))
    }

    /// All events since the last call of this method, up to the exit of the process `pid`.
    pub fn until_end_of(&self, pid: u32) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            let event = self.0.recv().expect("an event of the kernel");
            let is_last = event.pid == pid && event.what == What::Ended;
            events.push(event);
            if is_last {
                return events;
            }
        }
    }
}

fn subscription() -> Vec<u8> {
    let length = (HEADERS + size_of::<u32>()) as u32;
    let mut message = Vec::new();
    message.extend(length.to_ne_bytes());
    message.extend(DONE.to_ne_bytes());
    message.extend(0u16.to_ne_bytes());
    message.extend(0u32.to_ne_bytes());
    message.extend(process::id().to_ne_bytes());
    for word in PROCESS_EVENTS.into_iter().chain([0, 0]) {
        message.extend(word.to_ne_bytes());
    }
    message.extend((size_of::<u32>() as u16).to_ne_bytes());
    message.extend(0u16.to_ne_bytes());
    message.extend(LISTEN.to_ne_bytes());
    message
}

/// Passes the kernel's events to `sender` until its receiver is dropped.
fn read_along(socket: &Socket, sender: &Sender<Event>) {
    loop {
        let (message, _) = socket.recv_from_full().expect("the kernel's events");
        if let Some(event) = event(&message)
            && sender.send(event).is_err()
        {
            return;
        }
    }
}

/// Parses `struct proc_event`. For an exec or exit it contains the kind of event, the time, and the
/// ids of the thread and the process.
fn event(message: &[u8]) -> Option<Event> {
    let body = message.get(HEADERS..)?;
    let what = u32::from_ne_bytes(bytes(body, 0)?);
    let at = Duration::from_nanos(u64::from_ne_bytes(bytes(body, 8)?));
    let thread = u32::from_ne_bytes(bytes(body, 16)?);
    let pid = u32::from_ne_bytes(bytes(body, 20)?);
    let what = match what {
        EXEC => What::Executed(arguments(pid)),
        EXIT if thread == pid => What::Ended,
        _ => return None,
    };
    Some(Event { at, pid, what })
}

fn bytes<const N: usize>(body: &[u8], at: usize) -> Option<[u8; N]> {
    body.get(at..)?.first_chunk().copied()
}

fn arguments(pid: u32) -> Vec<String> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = words
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty());
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}
