//! Signals by name and number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::error::{Problem, quote};

/// A signal for a process, 1 to 64. Linux numbers signals like this on all architectures except
/// MIPS, SPARC, Alpha and PA-RISC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Signal(i32);

/// Error for a text that names no signal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Hash, Serialize, Deserialize)]
#[error("{0} is not a signal such as SIGTERM, TERM, 15 or SIGRTMIN+3")]
pub struct ParseSignalError(String);

/// The number of SIGRTMIN: the first real-time signal that glibc and musl leave to programs.
const RTMIN: i32 = 34;
const RTMAX: i32 = 64;

/// Names without `SIG`; of two names for one number, the first is displayed.
const NAMES: &[(&str, i32)] = &[
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("IOT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
    ("RTMIN", RTMIN),
    ("RTMAX", RTMAX),
];

impl Signal {
    pub const INT: Signal = Signal(2);
    pub const QUIT: Signal = Signal(3);
    /// SIGKILL, which no process can catch.
    pub const KILL: Signal = Signal(9);
    /// SIGTERM, the usual stop signal.
    pub const TERM: Signal = Signal(15);
    /// SIGPWR, with which some init systems are stopped.
    pub const PWR: Signal = Signal(30);
    /// SIGRTMIN+3, with which systemd is stopped in a container.
    pub const RTMIN_3: Signal = Signal(37);

    /// The signal of this number, or `None` outside of 1 to 64.
    pub fn new(number: i32) -> Option<Signal> {
        (1..=RTMAX).contains(&number).then_some(Signal(number))
    }

    /// The number, 1 to 64.
    pub fn number(self) -> i32 {
        self.0
    }

    fn from_name(name: &str) -> Option<Signal> {
        let from_end = |end: i32, away: fn(i32, i32) -> Option<i32>, distance: &str| {
            let number = away(end, decimal(distance)?)?;
            (RTMIN..=RTMAX).contains(&number).then_some(Signal(number))
        };
        if let Some(distance) = name.strip_prefix("RTMIN+") {
            return from_end(RTMIN, i32::checked_add, distance);
        }
        if let Some(distance) = name.strip_prefix("RTMAX-") {
            return from_end(RTMAX, i32::checked_sub, distance);
        }
        NAMES
            .iter()
            .find(|(other, _)| *other == name)
            .map(|&(_, number)| Signal(number))
    }
}

/// Parses a number that has only digits. Rust's own parser also accepts a sign.
fn decimal(text: &str) -> Option<i32> {
    text.chars()
        .all(|c| c.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

/// Reads a name with or without `SIG`, or a number.
impl FromStr for Signal {
    type Err = ParseSignalError;

    fn from_str(text: &str) -> Result<Signal, ParseSignalError> {
        let signal = match decimal(text) {
            Some(number) => Signal::new(number),
            None => Signal::from_name(text.strip_prefix("SIG").unwrap_or(text)),
        };
        signal.ok_or_else(|| ParseSignalError(quote(text)))
    }
}

/// The name, such as `SIGTERM` or `SIGRTMIN+3`, or the number of a signal without a name.
impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0;
        if let Some((name, _)) = NAMES.iter().find(|(_, other)| *other == number) {
            return f.pad(&format!("SIG{name}"));
        }
        match number.checked_sub(RTMIN) {
            Some(distance) if distance > 0 => f.pad(&format!("SIGRTMIN+{distance}")),
            _ => f.pad(&number.to_string()),
        }
    }
}

/// Reads the signal that stops a container.
///
/// # Errors
///
/// An unknown signal, and SIGKILL. SIGKILL cannot be a stop signal, because usher delays a stop
/// signal until it is the container's turn to stop, and never delays SIGKILL.
pub(super) fn parse_stop_signal(text: &str) -> Result<Signal, Problem> {
    match text.parse() {
        Ok(Signal::KILL) => Err(Problem::new(
            "is no stop signal; expected any other than SIGKILL",
        )),
        Ok(signal) => Ok(signal),
        Err(ParseSignalError(_)) => Err(Problem::new(
            "is not a signal; expected one such as SIGTERM, TERM, 15, SIGRTMIN+3",
        )),
    }
}
