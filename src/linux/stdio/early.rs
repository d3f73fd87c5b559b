//! FIFOs of a process's output that the shim opens before it sets up the process's streams.
//!
//! A client opens its ends of the FIFOs before it calls Exec, with calls of `open(2)` that block
//! until the shim has opened the other ends. A blocked thread of a Go program can keep one of the
//! program's processors for 10 ms and more (`retake` in Go's `runtime/proc.go`). On a machine with
//! two processors, the threads for stdout and stderr keep both, so that containerd or its client
//! cannot even read the answer to Exec. So the shim opens the FIFOs of an exec when it receives
//! Exec, and those of a container while it mounts the root file system.

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::{sleep, timeout};

use super::Paths;
use super::address::Address;
use super::destination::Fifo;
use super::fifo;
use crate::offload::Threads;

/// Maximum number of processes of one container whose FIFOs are open early at the same time. The
/// FIFOs of other processes are opened when these processes start.
const PROCESSES_AT_MOST: usize = 8;

/// Time after which the FIFOs of a process that has not started are closed again. Otherwise a
/// client whose Start did not reach the shim would wait for the end of the output forever.
const STARTS_WITHIN: Duration = Duration::from_secs(120);

/// Opens FIFOs for the processes of one container. Has a thread limit of its own, so that a path
/// that stalls delays only the early opening of other FIFOs.
#[derive(Debug)]
pub struct EarlyOpener {
    room: Arc<Semaphore>,
    threads: Threads,
}

/// Time after which the FIFOs are closed once the caller is gone. A client of containerd can start
/// the process through a restarted containerd, and then needs the output.
const RESTARTS_WITHIN: Duration = Duration::from_secs(10);

/// Completes when all connections are closed that the caller of Exec could use for Start.
///
/// If containerd dies between Exec and Start, its client's Start usually fails, and the client
/// waits for the end of the output. With the FIFOs open, the client would wait for minutes.
pub type CallerGone = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The FIFOs of one process, which are being opened. On drop, they are closed.
#[derive(Debug, Default)]
pub struct EarlyFifos(Option<oneshot::Sender<oneshot::Sender<Fifos>>>);

/// The open FIFOs of one process. A FIFO that cannot be opened is `None`.
#[derive(Debug, Default)]
pub(super) struct Fifos {
    pub stdout: Option<Fifo>,
    pub stderr: Option<Fifo>,
    _place: Option<OwnedSemaphorePermit>,
}

impl EarlyOpener {
    /// Starts to open the FIFOs of a process's output. Leaves out addresses that are no FIFOs, and
    /// reports no error, because [`open`](super::open) opens what is missing. Some time after
    /// `caller_gone` has completed, closes the FIFOs of a process that has not started.
    pub fn open(&self, paths: &Paths, caller_gone: CallerGone) -> EarlyFifos {
        let (stdout, stderr) = (path(&paths.stdout), path(&paths.stderr));
        // A terminal has one output.
        let stderr = stderr.filter(|_| !paths.terminal);
        if stdout.is_none() && stderr.is_none() {
            return EarlyFifos::default();
        }
        let Ok(place) = Arc::clone(&self.room).try_acquire_owned() else {
            return EarlyFifos::default();
        };
        let threads = self.threads.clone();
        let (request, requested) = oneshot::channel::<oneshot::Sender<Fifos>>();
        tokio::spawn(async move {
            let opened = threads.run(move || Fifos {
                stdout: opened(stdout.as_deref()),
                stderr: opened(stderr.as_deref()),
                _place: Some(place),
            });
            keep(opened.await.unwrap_or_default(), requested, caller_gone).await;
        });
        EarlyFifos(Some(request))
    }
}

impl Default for EarlyOpener {
    fn default() -> EarlyOpener {
        EarlyOpener {
            room: Arc::new(Semaphore::new(PROCESSES_AT_MOST)),
            threads: Threads::default(),
        }
    }
}

/// Keeps FIFOs open until they are requested, but closes them if the process is deleted, or has not
/// started in time, or if its caller is gone for a while.
async fn keep(
    opened: Fifos,
    requested: oneshot::Receiver<oneshot::Sender<Fifos>>,
    caller_gone: CallerGone,
) {
    if opened.stdout.is_none() && opened.stderr.is_none() {
        return;
    }
    let abandoned = async {
        caller_gone.await;
        sleep(RESTARTS_WITHIN).await;
    };
    tokio::select! {
        // If both are ready, the FIFOs go to the Start.
        biased;
        request = timeout(STARTS_WITHIN, requested) => {
            if let Ok(Ok(reply)) = request {
                let _ = reply.send(opened);
            }
        }
        () = abandoned => {}
    }
}

/// The path of a FIFO, unless the address is empty or a URI.
fn path(text: &str) -> Option<PathBuf> {
    match Address::parse(text) {
        Address::Path(path) if !path.is_empty() => Some(PathBuf::from(path)),
        _ => None,
    }
}

/// Opens a FIFO, and no other kind of file: to open a device can change the device.
fn opened(path: Option<&Path>) -> Option<Fifo> {
    let path = path.filter(|path| matches!(fifo::is_fifo(path), Ok(true)));
    Fifo::open(path?).ok()
}

impl EarlyFifos {
    /// Waits until the FIFOs are open.
    pub(super) async fn opened(self) -> Fifos {
        let (reply, fifos) = oneshot::channel();
        match self.0.map(|request| request.send(reply)) {
            Some(Ok(())) => fifos.await.unwrap_or_default(),
            // Nothing was opened, or the FIFOs are closed again.
            Some(Err(_)) | None => Fifos::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;

    use nix::libc;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    fn fifo(directory: &Path, name: &str) -> String {
        let path = directory.join(name);
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn on_stdout(path: &str) -> Paths {
        Paths {
            stdout: path.to_owned(),
            ..Paths::default()
        }
    }

    /// A caller that stays.
    fn stays() -> CallerGone {
        Box::pin(std::future::pending())
    }

    #[tokio::test]
    async fn only_fifos_are_opened_early() {
        let directory = tempfile::tempdir().unwrap();
        let log = directory.path().join("log");
        let file = directory.path().join("file");
        File::create(&file).unwrap();
        let opener = EarlyOpener::default();
        let paths = Paths {
            stderr: file.to_str().unwrap().to_owned(),
            ..on_stdout(&fifo(directory.path(), "stdout"))
        };
        let fifos = opener.open(&paths, stays()).opened().await;
        assert!(fifos.stdout.is_some());
        assert!(fifos.stderr.is_none());
        let paths = Paths {
            stderr: "/no/such/fifo".to_owned(),
            ..on_stdout(&format!("file://{}", log.display()))
        };
        let fifos = opener.open(&paths, stays()).opened().await;
        assert!(fifos.stdout.is_none() && fifos.stderr.is_none());
        assert!(!log.exists());
    }

    #[tokio::test]
    async fn dropped_fifos_are_closed_and_make_room() {
        let directory = tempfile::tempdir().unwrap();
        let path = fifo(directory.path(), "stdout");
        let (opener, paths) = (EarlyOpener::default(), on_stdout(&path));
        let mut all = Vec::new();
        for _ in 0..PROCESSES_AT_MOST {
            all.push(opener.open(&paths, stays()).opened().await);
        }
        assert!(all.iter().all(|fifos| fifos.stdout.is_some()));
        let more = opener.open(&paths, stays()).opened().await;
        assert!(more.stdout.is_none());
        let mut options = File::options();
        let options = options.read(true).custom_flags(libc::O_NONBLOCK);
        let mut reader = options.open(&path).unwrap();
        let mut bytes = [0; 1];
        let error = reader.read(&mut bytes).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
        drop(all);
        assert_eq!(reader.read(&mut bytes).unwrap(), 0);
        assert!(opener.open(&paths, stays()).opened().await.stdout.is_some());
    }

    /// Keeps an open FIFO for a process. Returns the reader of the FIFO and the way to request it.
    async fn kept(caller_gone: CallerGone) -> (File, oneshot::Sender<oneshot::Sender<Fifos>>) {
        let directory = tempfile::tempdir().unwrap();
        let path = fifo(directory.path(), "stdout");
        let fifos = EarlyOpener::default().open(&on_stdout(&path), stays());
        let fifos = fifos.opened().await;
        let reader = File::open(path).unwrap();
        let (request, requested) = oneshot::channel();
        tokio::spawn(keep(fifos, requested, caller_gone));
        (reader, request)
    }

    #[tokio::test(start_paused = true)]
    async fn the_fifos_of_a_process_that_never_starts_are_closed_after_a_while() {
        let (mut reader, request) = kept(stays()).await;
        tokio::time::sleep(STARTS_WITHIN + Duration::from_secs(1)).await;
        assert!(request.is_closed());
        assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0);
        assert!(EarlyFifos(Some(request)).opened().await.stdout.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn the_fifos_of_a_caller_that_is_gone_are_closed_if_no_start_comes_soon() {
        let (mut reader, request) = kept(Box::pin(std::future::ready(()))).await;
        tokio::time::sleep(RESTARTS_WITHIN - Duration::from_secs(1)).await;
        assert!(!request.is_closed());
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0);
        assert!(EarlyFifos(Some(request)).opened().await.stdout.is_none());
    }
}
