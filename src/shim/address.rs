//! The socket of a pod's shim: where it is, and who may make or remove it.

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

/// The file in each bundle that holds the address: containerd reads it when it is restarted.
const ADDRESS_FILE: &str = "address";

/// How long a shim that serves the pod may take to answer who joins it. One that takes longer hangs:
/// to be told that is better than a Create that is never answered.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);

/// How long somebody may take who decides about a socket. It is a few system calls, none of which
/// waits; containerd gives `delete` five seconds.
const DECIDES_WITHIN: Duration = Duration::from_secs(1);

const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// What `claim` found.
#[derive(Debug)]
pub(super) enum Claim {
    /// Nobody listened there; now we do.
    Ours(UnixListener),
    /// The pod's shim listens there.
    Taken,
}

/// What is at the path of a socket.
enum Place {
    /// Nobody was; now we are.
    Ours(UnixListener),
    /// Somebody who listens, and a connection to whom.
    Taken(UnixStream),
    /// Somebody for whom as many wait as the kernel allows.
    Full,
}

/// What somebody said who was told that a container will come.
enum Answer {
    Heard,
    /// That it knows nothing of it.
    Refused,
    /// Nothing, in time.
    None,
}

/// The right to decide about the socket of one pod: containers of a pod may be started at the same
/// moment, each by a process of its own. It is a lock on a file beside the socket; whoever has the
/// right removes the file before it gives the right away.
pub(super) struct Turn {
    path: PathBuf,
    _lock: Flock<File>,
}

/// Where the shim of a pod listens: of its containers' `group` in this namespace of the containerd that
/// listens at `containerd`, and in that directory, if containerd says which.
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

/// The path behind an address as containerd writes it.
pub(super) fn path(address: &str) -> PathBuf {
    PathBuf::from(address.strip_prefix("unix://").unwrap_or(address))
}

/// Listens at `address`, unless somebody does: then that one is told that container `id` will come,
/// so that it does not end before. A socket that was left by a shim that died is replaced.
///
/// # Errors
///
/// If the directory or the socket cannot be made, or who listens there says nothing.
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
        // Nobody else has to wait while the one who listens is asked: one that is about to end lets go
        // of its socket first, and says no to whoever comes then. So its yes holds, and who hears a no
        // finds the socket gone.
        let answer = match look(path)? {
            Place::Ours(listener) => return Ok(Claim::Ours(listener)),
            Place::Taken(shim) => announce(shim, id, left),
            Place::Full => Answer::None,
        };
        match answer {
            Answer::Heard => return Ok(Claim::Taken),
            // It is still there: containerd's own, which knows only what it has created.
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

/// Asks the shim about a task that it does not know yet, which it takes for an announcement.
fn announce(shim: UnixStream, id: &str, limit: Duration) -> Answer {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let Ok(tokio) = tokio else {
        return Answer::None;
    };
    let ask = async {
        let stream = tokio::net::UnixStream::from_std(shim)
            .map_err(|error| ttrpc::Error::Others(error.to_string()))?;
        let shim = TaskClient::new(Client::new(Socket::from(stream)));
        let request = ConnectRequest {
            id: id.to_owned(),
            ..ConnectRequest::new()
        };
        let context = ttrpc::context::with_duration(limit);
        shim.connect(context, &request).await
    };
    match tokio.block_on(async { tokio::time::timeout(limit, ask).await }) {
        Ok(Ok(_)) => Answer::Heard,
        Ok(Err(ttrpc::Error::RpcStatus(_))) => Answer::Refused,
        // It may have died this moment.
        Ok(Err(_)) | Err(_) => Answer::None,
    }
}

/// Connects, or takes the place where nobody listens any more.
fn look(path: &Path) -> io::Result<Place> {
    let _turn = Turn::take(path)?;
    match connect(path) {
        Ok(stream) => return Ok(Place::Taken(stream)),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock => return Ok(Place::Full),
            io::ErrorKind::NotFound => {}
            io::ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
            // Any other error, as of a system short of memory, says nothing of the shim.
            _ => return Err(error),
        },
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(Place::Ours(listener))
}

/// Connects at once or not at all: where as many wait as may, the kernel would let us wait for as long
/// as the one who listens hangs.
///
/// # Errors
///
/// `WouldBlock` if so many wait; `ConnectionRefused` if nobody listens.
pub(super) fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let end = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    socket::connect(end.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(end))
}

/// Removes the socket of a shim that has died. One that somebody listens on stays.
pub(super) fn remove_dead(path: &Path) {
    // The file of a turn is there if whoever had it was killed meanwhile.
    if !path.exists() && !turn(path).exists() {
        return;
    }
    let removed = Turn::take(path).and_then(|_turn| match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        _ => Ok(()),
    });
    if let Err(error) = removed {
        tracing::debug!(path = %path.display(), %error, "a dead shim's socket is left");
    }
}

/// Removes our own socket: from now on a container of the pod gets a shim of its own. It needs no
/// [`Turn`]: nobody else removes a socket that somebody listens on.
pub(super) fn give_up(path: &Path) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!(path = %path.display(), %error, "the socket is left");
    }
}

// === impl Turn ===

impl Turn {
    /// Waits until nobody else decides about the socket at this path.
    ///
    /// # Errors
    ///
    /// If that takes longer than it can, or the file cannot be made.
    pub fn take(socket: &Path) -> io::Result<Turn> {
        let path = turn(socket);
        let begun = Instant::now();
        loop {
            let file = File::options()
                .create(true)
                .append(true)
                .mode(0o600)
                .open(&path)?;
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) if is_at(&lock, &path)? => return Ok(Turn { path, _lock: lock }),
                // Whoever had it has removed the file meanwhile: that lock keeps nobody out.
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

impl Drop for Turn {
    fn drop(&mut self) {
        // It is still locked.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The file that is locked by whoever decides about a socket.
fn turn(socket: &Path) -> PathBuf {
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

// === bundles ===

/// Leaves the address in a bundle.
///
/// # Errors
///
/// If the file cannot be written.
pub(super) fn leave_in(bundle: &Path, address: &str) -> io::Result<()> {
    // Renamed into place: containerd must not read half of it.
    let temporary = bundle.join(".address");
    std::fs::write(&temporary, address)?;
    std::fs::rename(temporary, bundle.join(ADDRESS_FILE))
}

/// The address left in a bundle.
pub(super) fn of_bundle(bundle: &Path) -> Option<String> {
    std::fs::read_to_string(bundle.join(ADDRESS_FILE)).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    /// Far more than a look takes, far less than anybody has the patience for.
    const SHORTLY: Duration = Duration::from_millis(300);

    /// For what nobody hinders, however slow the machine is.
    const AMPLE: Duration = Duration::from_secs(30);

    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        (dir, path)
    }

    fn listen(path: &Path) -> UnixListener {
        match claim_within(AMPLE, path, "a").unwrap() {
            Claim::Ours(listener) => listener,
            Claim::Taken => panic!("nobody was there"),
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
    fn the_first_to_claim_an_address_serves_it_and_the_next_is_told_if_nobody_answers() {
        let (dir, path) = place();
        let listener = listen(&path);
        assert!(is_hung(claim_within(SHORTLY, &path, "b")));
        drop(listener);
        // Its file is still there, as after a shim that was killed.
        assert_eq!(names(&dir), ["socket"]);
        drop(listen(&path));
        assert_eq!(names(&dir), ["socket"]);
    }

    #[test]
    fn a_queue_that_is_full_is_not_waited_in_for_ever() {
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
    fn who_hangs_up_for_good_has_died_and_is_replaced() {
        let (_dir, path) = place();
        let listener = listen(&path);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut caller, _) = listener.accept().unwrap();
                // The caller has begun to ask.
                caller.read_exact(&mut [0; 1]).unwrap();
                drop(listener);
            });
            let limit = Duration::from_secs(30);
            let claimed = claim_within(limit, &path, "b").unwrap();
            assert!(matches!(claimed, Claim::Ours(_)));
        });
    }

    #[test]
    fn one_of_many_that_come_at_once_gets_the_place_of_a_dead_shim() {
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
    fn who_decides_about_another_socket_or_all_of_them_keeps_nobody_waiting() {
        let (dir, path) = place();
        let _other = Turn::take(&dir.path().join("other")).unwrap();
        // As earlier versions did.
        let directory = File::open(dir.path()).unwrap();
        let _all = Flock::lock(directory, FlockArg::LockExclusive).unwrap();
        let begun = Instant::now();
        drop(listen(&path));
        assert!(begun.elapsed() < DECIDES_WITHIN);
    }

    #[test]
    fn who_is_stopped_while_it_decides_is_named_in_time() {
        let (_dir, path) = place();
        let turn = Turn::take(&path).unwrap();
        let error = claim_within(SHORTLY, &path, "b").unwrap_err();
        assert!(
            error
                .to_string()
                .contains("socket.lock has been locked for 1s"),
            "{error}"
        );
        drop(turn);
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
        // What a shim leaves that was killed between two steps.
        std::fs::write(turn(&path), "").unwrap();
        remove_dead(&path);
        assert!(names(&dir).is_empty());
    }
}
