//! Child processes with a time limit, so that a process that hangs does not hang the test. Their
//! output is always read, so that they do not block on a full pipe.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::poll;

/// A process that has ended.
#[derive(Debug)]
pub struct Finished {
    /// Exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl Finished {
    pub fn ok(&self) -> bool {
        self.code == Some(0)
    }

    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

/// A process in the background. Killed on drop.
pub struct Background {
    title: String,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: Sink,
    stderr: Sink,
}

/// The output that a process has written so far.
struct Sink {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Background {
    #[track_caller]
    pub fn spawn(mut command: Command) -> Self {
        let title = format!("{command:?}");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|e| panic!("{title}: {e}"));
        Self {
            title,
            stdin: child.stdin.take(),
            stdout: Sink::of(child.stdout.take()),
            stderr: Sink::of(child.stderr.take()),
            child,
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes to standard input, which stays open.
    #[track_caller]
    pub fn write(&mut self, bytes: &[u8]) {
        let stdin = self.stdin.as_mut().expect("stdin is still open");
        stdin
            .write_all(bytes)
            .unwrap_or_else(|e| panic!("{}: stdin: {e}", self.title));
    }

    /// Does the same as `write` for a process that may have exited.
    pub fn try_write(&mut self, bytes: &[u8]) {
        if let Some(stdin) = &mut self.stdin {
            let _ = stdin.write_all(bytes);
        }
    }

    pub fn close_stdin(&mut self) {
        self.stdin = None;
    }

    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    pub fn poll_running(&mut self) -> bool {
        self.try_wait().is_none()
    }

    /// Closes standard input, and waits for the exit. Fails the test if the process still runs
    /// after `deadline`.
    #[track_caller]
    pub fn finish(mut self, deadline: Duration) -> Finished {
        self.stdin = None;
        let Some(status) = poll(deadline, || self.try_wait()) else {
            let _ = self.child.kill();
            let (out, err) = (self.stdout(), self.stderr());
            panic!(
                "{} still ran after {deadline:?}; stdout: {out:?} stderr: {err:?}",
                self.title
            );
        };
        Finished {
            code: status.code(),
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
        }
    }

    fn try_wait(&mut self) -> Option<ExitStatus> {
        self.child
            .try_wait()
            .unwrap_or_else(|e| panic!("{}: wait: {e}", self.title))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Sink {
    fn of(source: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&bytes);
        let mut source = source.expect("the stream is piped");
        let reader = std::thread::spawn(move || {
            let mut chunk = [0; 8192];
            while let Ok(n @ 1..) = source.read(&mut chunk) {
                to.lock().unwrap().extend_from_slice(&chunk[..n]);
            }
        });
        Self {
            bytes,
            reader: Some(reader),
        }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap()).into_owned()
    }

    fn finish(&mut self) -> Vec<u8> {
        // A process that has inherited the pipe may keep the pipe open. So wait for the end of the
        // pipe only for a limited time.
        let reader = self.reader.take().expect("finish is called once");
        if poll(Duration::from_secs(2), || {
            reader.is_finished().then_some(())
        })
        .is_some()
        {
            let _ = reader.join();
        }
        std::mem::take(&mut self.bytes.lock().unwrap())
    }
}

/// Runs a command with empty standard input, and waits for its exit.
#[track_caller]
pub fn run(command: Command, deadline: Duration) -> Finished {
    Background::spawn(command).finish(deadline)
}
