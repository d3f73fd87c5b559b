//! Finds programs on a PATH, and runs them for a few lines of output.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// Time limit for a program that prints a few lines.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Interval at which this command polls the exit of a program that prints a few lines.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The first program `name` in the directories of `path`; `name` itself if it is a path.
pub(crate) fn find(path: &str, name: &str) -> Option<PathBuf> {
    first(path, name, is_program)
}

/// Finds a file like [`find`], but the file need not be executable.
pub(crate) fn find_file(path: &str, name: &str) -> Option<PathBuf> {
    first(path, name, Path::is_file)
}

fn first(path: &str, name: &str, is_it: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|file| is_it(file));
    }
    path.split(':')
        .filter(|directory| directory.starts_with('/'))
        .map(|directory| Path::new(directory).join(name))
        .find(|file| is_it(file))
}

pub(crate) fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The reason why a program gave no output.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("the program cannot be executed: {0}")]
    NotExecuted(#[source] io::Error),
    #[error("the exit status of the program cannot be read: {0}")]
    NotWaited(#[source] io::Error),
    #[error("the program does not answer within {} s", limit.as_secs_f64())]
    Hangs { limit: Duration },
    /// The program failed. Holds the last line of its standard error.
    #[error("{0}")]
    Complained(String),
    /// The program failed and printed nothing.
    #[error("{0}")]
    Failed(ExitStatus),
}

/// Runs a program to its end and returns its standard output. A program that hangs is killed.
pub(crate) fn output(command: &mut Command) -> Result<String, ProgramError> {
    output_within(command, ANSWERS_WITHIN)
}

fn output_within(command: &mut Command, limit: Duration) -> Result<String, ProgramError> {
    let begin = Instant::now();
    let command = command.stdin(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(ProgramError::NotExecuted)?;
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begin.elapsed() < limit => thread::sleep(LOOK_EVERY),
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(ProgramError::Hangs { limit });
            }
            Err(error) => return Err(ProgramError::NotWaited(error)),
        }
    };
    // A child of the program can hold the pipes open after the program has exited.
    let rest = |stream: Receiver<Vec<u8>>| {
        let bytes = stream.recv_timeout(limit.saturating_sub(begin.elapsed()));
        bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    };
    if status.success() {
        return rest(stdout).map_err(|_| ProgramError::Hangs { limit });
    }
    let said = rest(stderr).unwrap_or_default();
    match said.trim().lines().last() {
        None => Err(ProgramError::Failed(status)),
        Some(line) => Err(ProgramError::Complained(line.to_owned())),
    }
}

/// Reads a pipe to its end in a thread.
fn read(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        let _ = sender.send(bytes);
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hangs_is_killed_and_the_error_says_so() {
        let hangs = |script: &str| {
            let mut command = Command::new("/bin/sh");
            let output = output_within(command.args(["-c", script]), Duration::from_millis(300));
            output.unwrap_err().to_string()
        };
        let expected = "the program does not answer within 0.3 s";
        assert_eq!(hangs("exec sleep 600"), expected);
        // A child of the program keeps the pipe open.
        assert_eq!(hangs("timeout 5 sleep 600 &"), expected);
        let mut fails = Command::new("/bin/sh");
        let said = output(fails.args(["-c", "echo one >&2; echo two >&2; exit 3"]));
        assert_eq!(said.unwrap_err().to_string(), "two");
    }

    #[test]
    fn a_program_is_found_by_its_name_on_a_path_or_by_its_own_path() {
        assert_eq!(find("/nowhere:/bin", "sh"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find("", "/bin/sh"), Some(PathBuf::from("/bin/sh")));
        assert_eq!(find("/bin", "no-such-program"), None);
        // A directory is not a program, and a file without execute permission is not one either.
        assert_eq!(find("/:/etc", "etc"), None);
        assert_eq!(find("/etc", "passwd"), None);
        let file = find_file("/nowhere:/etc", "passwd");
        assert_eq!(file, Some(PathBuf::from("/etc/passwd")));
        assert_eq!(find_file("/:/etc", "etc"), None);
    }
}
