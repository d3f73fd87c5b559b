//! What the shim itself has to say to the owner of a container.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

use super::Paths;
use super::address::Address;
use super::log::LogVoice;
use super::streams::Streams;

/// The longest line: what a pipe takes at once, and never a part of it (`PIPE_BUF`, pipe(7)).
const LONGEST: usize = 4096;

/// The shim's own way to whoever takes the errors of a process.
#[derive(Debug)]
pub(super) enum Voice {
    /// A pipe to a logging program, which is not waited for.
    Program(File),
    Log(LogVoice),
    /// The FIFO that the caller has given: its directory is containerd's own, in memory, and no disk can
    /// keep it from being opened.
    Fifo,
}

/// What is left to do on a thread, since a disk can stall it.
pub type Rest = Box<dyn FnOnce() + Send>;

/// Writes a line of the shim's own into the errors of a container, or to its terminal. Never waits: where
/// nobody listens, or nobody takes what is there already, it is lost.
pub fn tell(streams: Option<&Streams>, paths: &Paths, line: &str) -> Option<Rest> {
    let line = bounded(line, if paths.terminal { "\r\n" } else { "\n" });
    let voice = match (paths.terminal, paths.stderr.as_str()) {
        (true, _) | (false, "") => &paths.stdout,
        (false, stderr) => stderr,
    };
    let own = streams.and_then(Streams::voice);
    let written = match (own, Address::parse(voice)) {
        (Some(Voice::Program(pipe)), _) => (&*pipe).write_all(line.as_bytes()),
        (Some(Voice::Log(log)), _) => log.say(line.as_bytes()),
        (Some(Voice::Fifo), Address::Path(path)) => append(Path::new(path), &line),
        (None, Address::Path(path)) if !path.is_empty() => return rest(path.into(), line),
        (None, Address::File(path)) => return rest(path, line),
        // Nobody takes its output, or not any more.
        _ => return None,
    };
    report(voice, written);
    None
}

fn rest(path: PathBuf, line: String) -> Option<Rest> {
    Some(Box::new(move || {
        report(&path.to_string_lossy(), append(&path, &line));
    }))
}

fn report(voice: &str, written: io::Result<()>) {
    if let Err(error) = written {
        tracing::debug!(stream = voice, %error, "a container's stream could not be written to");
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a FIFO in containerd's own directory, in memory, or on a thread"
)]
fn append(path: &Path, line: &str) -> io::Result<()> {
    let stream = OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path);
    // One call: what would be left of it waits.
    stream.and_then(|mut stream| stream.write_all(line.as_bytes()))
}

/// As much of a line as is written at once, with its end.
fn bounded(line: &str, end: &str) -> String {
    let room = LONGEST.saturating_sub(end.len());
    let mut kept = 0..=room.min(line.len());
    let kept = kept.rfind(|at| line.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{end}", line.get(..kept).unwrap_or_default())
}

/// Another way into a pipe, which is not waited for.
///
/// # Errors
///
/// If it cannot be opened.
#[expect(clippy::disallowed_methods, reason = "/proc")]
pub(super) fn voice(pipe: &impl AsFd) -> io::Result<File> {
    // A copy of the descriptor would share whether it blocks with whoever has the pipe.
    let path = format!("/proc/self/fd/{}", pipe.as_fd().as_raw_fd());
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

/// Leaves a message in the file that the kubelet reads when a container has ended.
///
/// The file lies in a directory that is kubelet's alone, but it is mounted into the container: what
/// is behind its name may be anything by now, so nothing is followed and no reader is waited for. Its disk may
/// stall.
#[expect(clippy::disallowed_methods, reason = "on a thread of its own")]
pub fn leave_message(file: &Path, message: &str) {
    let written = OpenOptions::new()
        .append(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(file)
        .and_then(|mut file| match file.metadata()?.is_file() {
            true => writeln!(file, "{message}"),
            false => Err(io::Error::other("not a regular file")),
        });
    if let Err(error) = written {
        tracing::debug!(file = %file.display(), %error, "no termination message was left");
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use nix::fcntl::OFlag;
    use nix::unistd::pipe2;

    use super::*;

    fn file(terminal: bool, path: &Path) -> Paths {
        let address = format!("file://{}", path.display());
        let (stdout, stderr) = match terminal {
            true => (address, String::new()),
            false => (String::new(), address),
        };
        Paths {
            stdout,
            stderr,
            terminal,
            ..Paths::default()
        }
    }

    #[test]
    fn a_line_on_a_terminal_begins_where_the_next_one_does() {
        let log = tempfile::NamedTempFile::new().unwrap();
        for (is_terminal, line) in [(false, "on a pipe"), (true, "on a terminal")] {
            let rest = tell(None, &file(is_terminal, log.path()), line);
            rest.expect("a disk may stall")();
        }
        let read = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(read, "on a pipe\non a terminal\r\n");
    }

    #[test]
    fn a_line_is_no_longer_than_what_a_pipe_takes_at_once() {
        let line = bounded(&"ä".repeat(LONGEST), "\r\n");
        assert!(line.len() <= LONGEST && line.len() > LONGEST - 4);
        assert!(line.ends_with("ä\r\n"));
    }

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for() {
        let (mut read, write) = pipe2(OFlag::O_CLOEXEC)
            .map(|(r, w)| (File::from(r), w))
            .unwrap();
        let mut words = voice(&write).unwrap();
        let line = bounded("full", "\n");
        let said = (0..1_000_000).take_while(|_| words.write_all(line.as_bytes()).is_ok());
        assert!(said.count() < 1_000_000);
        drop((write, words));
        let mut all = String::new();
        read.read_to_string(&mut all).unwrap();
        assert!(all.ends_with("full\n"), "no part of a line is in it");
    }
}
