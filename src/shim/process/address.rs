//! The socket of a pod's shim: its path, and the lock for creating and removing the socket.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use containerd_shim::StartOpts;
use containerd_shim_protos::api::ConnectRequest;
use containerd_shim_protos::shim_async::{Client, TaskClient};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr};
use ttrpc::r#async::transport::Socket;

use usher_linux::files::{self, Replacement};

/// File in each bundle with the shim's address. A restarted containerd reads this file.
const ADDRESS_FILE: &str = "address";

/// Time that the pod's shim has to answer `start`. A shim that takes longer counts as hung, and
/// `start` fails, because an error is better than a Create that is never answered.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// Time for which this process waits for the lock of a socket. One second is ample, because a
/// process that holds the lock makes only a few system calls, none of which blocks. containerd
/// gives `delete` five seconds in all.
const DECIDES_WITHIN: Duration = Duration::from_secs(1);

/// Time limit for the socket of a killed shim to close, which may take a moment on a busy machine.
const CLOSES_WITHIN: Duration = Duration::from_secs(1);

const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) enum Claim {
    /// The address was free; this process listens there now.
    Ours(UnixListener),
    /// The pod's shim listens at the address.
    Taken,
}

/// The listener at the path of a socket.
enum Listener {
    /// There is neither a listener nor a socket.
    None,
    /// A listener, with a connection to it.
    Accepts(UnixStream),
    /// A listener with a full backlog.
    Full,
}

/// The outcome of a call to a shim. The call announces a container, or only tests if the shim runs.
enum Answer {
    Heard,
    /// The shim has answered with an error, for example because it does not know the container.
    Refused,
    /// The shim has not answered in time, or the call has failed.
    None,
}

/// The right to create or remove the socket of one pod. Several processes may want this right at
/// the same time, because containerd runs one `start` for each container. The right is a lock on a
/// file beside the socket; its owner removes the file before unlocking it.
pub(super) struct SocketLock {
    path: PathBuf,
    _lock: Flock<File>,
}

/// The address of a pod's shim. `containerd` is the address at which containerd listens, and
/// `group` is the group of the pod's containers. `directory` is the directory for the socket, if
/// containerd names one.
pub(super) fn of_pod(
    containerd: &str,
    namespace: &str,
    directory: Option<&str>,
    group: &str,
) -> String {
    let options = StartOpts {
        address: containerd.to_owned(),
        namespace: namespace.to_owned(),
        socket_dir: directory.map(str::to_owned),
        ..StartOpts::default()
    };
    options.socket_address(group)
}

/// The file path in an address such as `unix:///run/containerd/s/1f2e`.
pub(super) fn path(address: &str) -> PathBuf {
    PathBuf::from(address.strip_prefix("unix://").unwrap_or(address))
}

/// Listens at `address`. Replaces a socket that a dead shim left. If a shim listens there already,
/// tells that shim to expect container `id`, so that the shim does not end before the container is
/// created. The result is then `Taken`. The result is also `Taken` if the listener refuses the
/// container twice. The listener is then containerd's own shim, not usher's.
///
/// # Errors
///
/// If the directory or the socket cannot be made, or the listener does not answer.
pub(super) fn claim(address: &str, id: &str) -> io::Result<Claim> {
    let path = path(address);
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(directory)?;
    claim_within(ANSWERS_WITHIN, &path, id)
}

fn claim_within(limit: Duration, path: &Path, id: &str) -> io::Result<Claim> {
    let begun = Instant::now();
    let mut was_refused = false;
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        // The lock is released before the call to the shim. This is safe: when a shim of usher
        // ends, it removes its socket before it refuses callers. So a shim that accepts the
        // container stays, and a shim that refuses the container has removed its socket.
        let lock = SocketLock::take(path)?;
        let answer = match find_listener(path, &lock)? {
            Listener::None => {
                let listener = UnixListener::bind(path)?;
                std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
                return Ok(Claim::Ours(listener));
            }
            Listener::Accepts(shim) => {
                drop(lock);
                announce(shim, id, left)
            }
            Listener::Full => {
                drop(lock);
                Answer::None
            }
        };
        match answer {
            Answer::Heard => return Ok(Claim::Taken),
            // The listener has refused the container twice, and its socket still exists. So the
            // listener is containerd's own shim, which knows only the tasks that it created.
            Answer::Refused if was_refused => return Ok(Claim::Taken),
            Answer::Refused => was_refused = true,
            Answer::None => sleep(LOOK_AGAIN_AFTER),
        }
        if begun.elapsed() >= limit {
            let hangs = format!("the pod's shim does not answer within {limit:?}");
            return Err(io::Error::new(io::ErrorKind::TimedOut, hangs));
        }
    }
}

/// Tells the shim that task `id` will be created: sends a Connect for this task, which the shim
/// does not know yet.
fn announce(shim: UnixStream, id: &str, limit: Duration) -> Answer {
    let request = ConnectRequest {
        id: id.to_owned(),
        ..ConnectRequest::new()
    };
    ask(shim, limit, async |shim| {
        let context = ttrpc::context::with_duration(limit);
        let shim = TaskClient::new(shim);
        shim.connect(context, &request).await.map(|_| ())
    })
}

/// Calls a method that no shim has. A running shim answers that it does not know the method, which
/// is [`Answer::Refused`].
fn ask_for_nothing(shim: UnixStream, limit: Duration) -> Answer {
    ask(shim, limit, async |shim| {
        let request = ttrpc::Request {
            service: "containerd.task.v2.Task".to_owned(),
            method: "Nothing".to_owned(),
            ..ttrpc::Request::new()
        };
        shim.request(request).await.map(|_| ())
    })
}

fn ask(
    shim: UnixStream,
    limit: Duration,
    call: impl AsyncFnOnce(Client) -> ttrpc::Result<()>,
) -> Answer {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(tokio) = tokio else {
        return Answer::None;
    };
    let ask = async {
        let stream = tokio::net::UnixStream::from_std(shim)
            .map_err(|error| ttrpc::Error::Others(error.to_string()))?;
        call(Client::new(Socket::from(stream))).await
    };
    match tokio.block_on(async { tokio::time::timeout(limit, ask).await }) {
        Ok(Ok(())) => Answer::Heard,
        Ok(Err(ttrpc::Error::RpcStatus(_))) => Answer::Refused,
        // The shim may have died just now.
        Ok(Err(_)) | Err(_) => Answer::None,
    }
}

/// Looks for a listener at `path`, and removes the socket if its listener has died.
///
/// # Errors
///
/// If the socket cannot be removed, or if it is unknown whether the shim lives, for example for
/// lack of memory.
fn find_listener(path: &Path, _lock: &SocketLock) -> io::Result<Listener> {
    match connect(path) {
        Ok(stream) => Ok(Listener::Accepts(stream)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => Ok(Listener::Full),
            io::ErrorKind::NotFound => Ok(Listener::None),
            io::ErrorKind::ConnectionRefused => std::fs::remove_file(path).map(|()| Listener::None),
            _ => Err(error),
        },
    }
}

/// Connects without blocking, because connect(2) with a full backlog would hang as long as the
/// listener does.
///
/// # Errors
///
/// `WouldBlock` if the backlog is full; `ConnectionRefused` if no process listens.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let end = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(end.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(end))
}

/// Removes the socket of a dead shim, and a lock file that a killed process has left. Waits for a
/// moment, because a shim that was just killed may still listen. Keeps the socket if a process goes
/// on listening. Returns true if there is no socket any more. Returns false if a process listens,
/// or if the lock cannot be taken or the socket cannot be removed.
pub(super) fn remove_dead(path: &Path) -> bool {
    // A process that was killed while it held the lock has left the lock file, even if there is no
    // socket.
    if !path.exists() && !lock_file(path).exists() {
        return true;
    }
    let begun = Instant::now();
    loop {
        let found = SocketLock::take(path).and_then(|lock| find_listener(path, &lock));
        let listener = match found {
            Ok(Listener::Accepts(listener)) => listener,
            Ok(Listener::None) => return true,
            Ok(Listener::Full) => return false,
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "cannot remove a dead shim's socket");
                return false;
            }
        };
        let left = CLOSES_WITHIN.saturating_sub(begun.elapsed());
        match ask_for_nothing(listener, left) {
            Answer::None if begun.elapsed() < CLOSES_WITHIN => sleep(LOOK_AGAIN_AFTER),
            Answer::None | Answer::Heard | Answer::Refused => return false,
        }
    }
}

/// Removes this shim's own socket when the shim ends, so that the next container of the pod gets a
/// new shim. This needs no [`SocketLock`], because no other process removes a socket with a
/// listener.
pub(super) fn give_up(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove the socket");
    }
}

impl SocketLock {
    /// Waits until no other process has the lock of the socket at this path, and takes the lock.
    ///
    /// # Errors
    ///
    /// If another process holds the lock for too long, or the lock file cannot be made.
    pub fn take(socket: &Path) -> io::Result<SocketLock> {
        let path = lock_file(socket);
        let begun = Instant::now();
        loop {
            let file = File::options()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(&path)?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) if is_at(&lock, &path)? => return Ok(SocketLock { path, _lock: lock }),
                // The previous owner has removed this lock file in the meantime, so locking the
                // file does not exclude other processes.
                Ok(_) => {}
                Err((_, Errno::EWOULDBLOCK)) if begun.elapsed() < DECIDES_WITHIN => {
                    sleep(LOOK_AGAIN_AFTER);
                }
                Err((_, Errno::EWOULDBLOCK)) => {
                    let path = path.display();
                    let why = format!("{path} has been locked for {DECIDES_WITHIN:?}");
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Err((_, errno)) => return Err(errno.into()),
            }
        }
    }
}

impl Drop for SocketLock {
    fn drop(&mut self) {
        // Remove the file while it is still locked.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The lock file for a socket.
fn lock_file(socket: &Path) -> PathBuf {
    socket.with_extension("lock")
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let file = file.metadata()?;
    match std::fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (file.dev(), file.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Writes the address into a bundle.
///
/// # Errors
///
/// If the file cannot be written.
pub(super) fn leave_in(bundle: &Path, address: &str) -> io::Result<()> {
    let file = bundle.join(ADDRESS_FILE);
    files::replace(&file, address.as_bytes(), Replacement::with_mode(0o644))
}

/// The address in a bundle; `None` if the bundle has no address file, or is gone.
pub(super) fn of_bundle(bundle: &Path) -> Option<String> {
    std::fs::read_to_string(bundle.join(ADDRESS_FILE)).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Time limit far above the time that `claim` needs, and far below the time that a caller
    /// waits.
    const SHORTLY: Duration = Duration::from_millis(300);

    /// Time limit for work that always succeeds, long enough for a slow machine.
    const AMPLE: Duration = Duration::from_secs(30);

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        (dir, path)
    }

    fn listen(path: &Path) -> UnixListener {
        match claim_within(AMPLE, path, "a").unwrap() {
            Claim::Ours(listener) => listener,
            Claim::Taken => panic!("the address was free"),
        }
    }

    fn names(dir: &tempfile::TempDir) -> Vec<std::ffi::OsString> {
        let entries = std::fs::read_dir(dir.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect()
    }

    fn is_hung(claimed: io::Result<Claim>) -> bool {
        claimed.is_err_and(|error| error.to_string().contains("does not answer within 300ms"))
    }

    #[test]
    fn the_first_to_claim_an_address_serves_it_and_the_next_learns_if_no_one_answers() {
        let (dir, path) = place();
        let listener = listen(&path);
        assert!(is_hung(claim_within(SHORTLY, &path, "b")));
        drop(listener);
        // The socket's file still exists, as if a shim had been killed.
        assert_eq!(names(&dir), ["socket"]);
        drop(listen(&path));
        assert_eq!(names(&dir), ["socket"]);
    }

    #[test]
    fn a_full_backlog_is_not_waited_for_forever() {
        let (_dir, path) = place();
        let _listener = {
            let flags = SockFlag::SOCK_CLOEXEC;
            let end = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
            socket::bind(end.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
            socket::listen(&end, socket::Backlog::new(0).unwrap()).unwrap();
            end
        };
        let mut queue = Vec::new();
        while let Ok(stream) = connect(&path) {
            queue.push(stream);
        }
        assert!(is_hung(claim_within(SHORTLY, &path, "b")));
        remove_dead(&path);
        assert!(path.exists());
    }

    #[test]
    fn a_shim_that_closes_its_socket_has_died_and_is_replaced() {
        let (_dir, path) = place();
        let listener = listen(&path);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut caller, _) = listener.accept().unwrap();
                // The caller has begun to send its request.
                caller.read_exact(&mut [0; 1]).unwrap();
                drop(listener);
            });
            let limit = Duration::from_secs(30);
            let claimed = claim_within(limit, &path, "b").unwrap();
            assert!(matches!(claimed, Claim::Ours(_)));
        });
    }

    #[test]
    fn the_socket_of_a_shim_that_is_about_to_close_it_is_removed() {
        let (dir, path) = place();
        let listener = listen(&path);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut caller, _) = listener.accept().unwrap();
                caller.read_exact(&mut [0; 1]).unwrap();
                drop(listener);
            });
            remove_dead(&path);
        });
        assert!(names(&dir).is_empty());
    }

    #[test]
    fn exactly_one_of_many_concurrent_starts_replaces_a_dead_shim() {
        let (dir, path) = place();
        for _ in 0..20 {
            drop(listen(&path));
            let listeners: Vec<_> = std::thread::scope(|scope| {
                let claim = || claim_within(SHORTLY, &path, "a");
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(claim)).collect();
                let claims = threads.into_iter().map(|thread| thread.join().unwrap());
                claims
                    .filter_map(|claimed| match claimed {
                        Ok(Claim::Ours(listener)) => Some(listener),
                        _ => None,
                    })
                    .collect()
            });
            assert_eq!(listeners.len(), 1);
            assert_eq!(names(&dir), ["socket"]);
        }
    }

    #[test]
    fn a_lock_on_another_socket_or_the_directory_delays_no_one() {
        let (dir, path) = place();
        let _other = SocketLock::take(&dir.path().join("other")).unwrap();
        // Earlier versions of usher locked the directory. Such a lock must not delay this version.
        let directory = File::open(dir.path()).unwrap();
        let _all = Flock::lock(directory, FlockArg::LockExclusive).unwrap();
        let begun = Instant::now();
        drop(listen(&path));
        assert!(begun.elapsed() < DECIDES_WITHIN);
    }

    #[test]
    fn a_lock_whose_owner_is_stopped_is_reported_in_time() {
        let (_dir, path) = place();
        let lock = SocketLock::take(&path).unwrap();
        let error = claim_within(SHORTLY, &path, "b").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("socket.lock has been locked for 1s"),
            "{error}"
        );
        drop(lock);
        drop(listen(&path));
    }

    #[test]
    fn only_the_socket_of_a_dead_shim_is_removed() {
        let (dir, path) = place();
        let listener = listen(&path);
        remove_dead(&path);
        assert_eq!(names(&dir), ["socket"]);
        drop(listener);
        remove_dead(&path);
        assert!(names(&dir).is_empty());
        // A shim that is killed between two steps leaves this file.
        std::fs::write(lock_file(&path), "").unwrap();
        remove_dead(&path);
        assert!(names(&dir).is_empty());
    }
}
