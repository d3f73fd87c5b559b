//! The socket of a pod's shim: where it is, and who may make or remove it.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use containerd_shim_protos::api::ConnectRequest;
use containerd_shim_protos::shim_async::{Client, TaskClient};
use nix::fcntl::{Flock, FlockArg};

/// The file in each bundle that holds the address: containerd reads it when it is restarted.
const ADDRESS_FILE: &str = "address";

/// How long a shim that serves the pod may take to answer who joins it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// What `claim` found.
#[derive(Debug)]
pub(super) enum Claim {
    /// Nobody listened there; now we do.
    Ours(UnixListener),
    /// The pod's shim listens there.
    Taken,
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
/// If the directory or the socket cannot be made.
pub(super) fn claim(address: &str, id: &str) -> io::Result<Claim> {
    let path = path(address);
    let _lock = lock_directory_of(&path, FlockArg::LockExclusive)?;
    if is_served(&path)? {
        let announced = announce(address, id);
        // One that cannot be told may have died this moment, or be containerd's own.
        if announced.is_ok() || is_served(&path)? {
            return Ok(Claim::Taken);
        }
    }
    bind(&path).map(Claim::Ours)
}

/// Asks the shim about a task that it does not know yet, which it takes for an announcement.
fn announce(address: &str, id: &str) -> Result<(), String> {
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let ask = async {
        let shim = TaskClient::new(Client::connect(address).await?);
        let request = ConnectRequest {
            id: id.to_owned(),
            ..ConnectRequest::new()
        };
        let context = ttrpc::context::with_duration(ANSWERS_WITHIN);
        shim.connect(context, &request).await
    };
    match tokio.block_on(async { tokio::time::timeout(ANSWERS_WITHIN, ask).await }) {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(late) => Err(late.to_string()),
    }
}

/// Whether somebody listens at `path`. The socket of one who does not any more is removed.
fn is_served(path: &Path) -> io::Result<bool> {
    match UnixStream::connect(path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map(|()| false)
        }
        // Any other error, as of a system short of memory, says nothing of the shim.
        Err(error) => Err(error),
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Removes the socket of a shim that has died. One that somebody listens on stays.
pub(super) fn remove_dead(address: &str) {
    let path = path(address);
    if !path.exists() {
        return;
    }
    let removed =
        lock_directory_of(&path, FlockArg::LockExclusive).and_then(|_lock| is_served(&path));
    if let Err(error) = removed {
        tracing::debug!(path = %path.display(), %error, "a dead shim's socket is left");
    }
}

/// Removes our own socket, if `is_over` once nobody can be told of it any more: from now on a
/// container of the pod gets a shim of its own. False if that has to be tried again later: it is not
/// over, or somebody is just finding out who serves the pod, and may have a question for us.
pub(super) fn give_up(path: &Path, is_over: impl FnOnce() -> bool) -> bool {
    let removed = match lock_directory_of(path, FlockArg::LockExclusiveNonblock) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
        Ok(_lock) => match is_over() {
            true => std::fs::remove_file(path),
            false => return false,
        },
        Err(error) => Err(error),
    };
    if let Err(error) = removed {
        tracing::warn!(path = %path.display(), %error, "the socket is left");
    }
    true
}

/// Containers of one pod may be started at the same moment, each by a process of its own: one at a
/// time decides who serves the pod.
fn lock_directory_of(path: &Path, how: FlockArg) -> io::Result<Flock<File>> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o711)
        .create(directory)?;
    let directory = File::open(directory)?;
    Flock::lock(directory, how).map_err(|(_, errno)| errno.into())
}

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
    use super::*;

    #[test]
    fn the_first_to_claim_an_address_serves_it_and_the_next_joins() {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("unix://{}/s/socket", dir.path().display());
        let Claim::Ours(listener) = claim(&address, "a").unwrap() else {
            panic!("nobody was there")
        };
        assert!(matches!(claim(&address, "b").unwrap(), Claim::Taken));
        drop(listener);
        // Its file is still there, as after a shim that was killed.
        assert!(path(&address).exists());
        assert!(matches!(claim(&address, "c").unwrap(), Claim::Ours(_)));
    }

    #[test]
    fn only_the_socket_of_a_dead_shim_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let address = format!("unix://{}/socket", dir.path().display());
        let Claim::Ours(listener) = claim(&address, "a").unwrap() else {
            panic!("nobody was there")
        };
        remove_dead(&address);
        assert!(path(&address).exists());
        drop(listener);
        remove_dead(&address);
        assert!(!path(&address).exists());
    }
}
