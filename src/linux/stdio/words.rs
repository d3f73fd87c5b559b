//! The shim's own messages to the owner of a container, in the container's output.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::libc;

use super::Paths;
use super::address::Address;
use super::log::LogMessageWriter;
use super::streams::Streams;

/// Maximum length of a line, in bytes. A pipe accepts a write of this length as a whole or not at
/// all (`PIPE_BUF`, pipe(7)).
const LONGEST: usize = 4096;

/// A handle for the shim's own messages on a process's standard error.
#[derive(Debug)]
pub(super) enum MessageWriter {
    /// The non-blocking writing end of a pipe to a logging program.
    Program(File),
    Log(LogMessageWriter),
    /// The caller's FIFO. containerd makes it in a directory in memory, so that no disk can stall
    /// its opening.
    Fifo,
}

/// A write that must be done on a further thread, because a disk can stall it.
pub type Rest = Box<dyn FnOnce() + Send>;

/// Writes a message of the shim to a container's standard error, or to its terminal. Never waits:
/// if the stream has no reader, or is full, the line is lost.
pub fn write_message(streams: Option<&Streams>, paths: &Paths, line: &str) -> Option<Rest> {
    let line = bounded(line, if paths.terminal { "\r\n" } else { "\n" });
    let address = match (paths.terminal, paths.stderr.as_str()) {
        (true, _) | (false, "") => &paths.stdout,
        (false, stderr) => stderr,
    };
    let own = streams.and_then(Streams::message_writer);
    let written = match (own, Address::parse(address)) {
        (Some(MessageWriter::Program(pipe)), _) => (&*pipe).write_all(line.as_bytes()),
        (Some(MessageWriter::Log(log)), _) => log.write_line(line.as_bytes()),
        (Some(MessageWriter::Fifo), Address::Path(path)) => append(Path::new(path), &line),
        (None, Address::Path(path)) if !path.is_empty() => return rest(path.into(), line),
        (None, Address::File(path)) => return rest(path, line),
        // The stream has no destination anymore, or never had one.
        _ => return None,
    };
    report(address, written);
    None
}

fn rest(path: PathBuf, line: String) -> Option<Rest> {
    Some(Box::new(move || {
        report(&path.to_string_lossy(), append(&path, &line));
    }))
}

fn report(address: &str, written: io::Result<()>) {
    if let Err(error) = written {
        tracing::debug!(stream = address, %error, "cannot write a message to a container's stream");
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
    // write_all makes only one system call, because the line is short enough to be written as a
    // whole or not at all.
    stream.and_then(|mut stream| stream.write_all(line.as_bytes()))
}

/// Cuts a line to [`LONGEST`] bytes, including the line end.
fn bounded(line: &str, end: &str) -> String {
    let room = LONGEST.saturating_sub(end.len());
    let mut kept = 0..=room.min(line.len());
    let kept = kept.rfind(|at| line.is_char_boundary(*at)).unwrap_or(0);
    format!("{}{end}", line.get(..kept).unwrap_or_default())
}

/// Opens another writing end of a pipe, in nonblocking mode.
///
/// # Errors
///
/// If the writing end cannot be opened.
#[expect(clippy::disallowed_methods, reason = "/proc")]
pub(super) fn reopen_nonblocking(pipe: &impl AsFd) -> io::Result<File> {
    // A duplicate of the descriptor would share its flags, so the original would no longer block
    // either.
    let path = format!("/proc/self/fd/{}", pipe.as_fd().as_raw_fd());
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)
}

/// Writes a termination message, which kubelet reads after the container has exited.
///
/// The file is in a directory of kubelet, and is mounted into the container. The container may have
/// replaced it by any file, so this function follows no link and opens without blocking. The disk
/// with the file may stall.
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
        tracing::debug!(file = %file.display(), %error, "cannot write the termination message");
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
    fn a_line_on_a_terminal_ends_with_a_carriage_return() {
        let log = tempfile::NamedTempFile::new().unwrap();
        for (is_terminal, line) in [(false, "on a pipe"), (true, "on a terminal")] {
            let rest = write_message(None, &file(is_terminal, log.path()), line);
            rest.expect("a disk may stall")();
        }
        let read = std::fs::read_to_string(log.path()).unwrap();
        assert_eq!(read, "on a pipe\non a terminal\r\n");
    }

    #[test]
    fn a_line_is_cut_to_what_a_pipe_accepts_as_a_whole() {
        let line = bounded(&"ä".repeat(LONGEST), "\r\n");
        assert!(line.len() <= LONGEST && line.len() > LONGEST - 4);
        assert!(line.ends_with("ä\r\n"));
    }

    #[test]
    fn a_full_pipe_is_not_waited_for() {
        let (mut read, write) = pipe2(OFlag::O_CLOEXEC)
            .map(|(r, w)| (File::from(r), w))
            .unwrap();
        let mut words = reopen_nonblocking(&write).unwrap();
        let line = bounded("full", "\n");
        let said = (0..1_000_000).take_while(|_| words.write_all(line.as_bytes()).is_ok());
        assert!(said.count() < 1_000_000);
        drop((write, words));
        let mut all = String::new();
        read.read_to_string(&mut all).unwrap();
        assert!(all.ends_with("full\n"), "the pipe has no part of a line");
    }
}
