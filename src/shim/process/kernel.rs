//! The kernel's table of Unix sockets. It shows which paths have a listener or a connection, and
//! reading it wakes no process.

use std::io;
use std::path::Path;

/// `SS_CONNECTED`, the state of a connected socket in `/proc/net/unix`
/// (`include/uapi/linux/net.h`).
const CONNECTED: &str = "03";

/// Reads the table of this network namespace.
///
/// # Errors
///
/// If the table cannot be read.
pub(super) fn sockets() -> io::Result<String> {
    let table = std::fs::read("/proc/net/unix")?;
    Ok(String::from_utf8_lossy(&table).into_owned())
}

/// The paths that sockets are bound to.
pub(super) fn bound(table: &str) -> impl Iterator<Item = &str> {
    entries(table).map(|(_, path)| path)
}

/// True if a client is connected to the listener at `path`, or if the table cannot be read.
pub(super) fn is_talked_to(path: &Path) -> bool {
    sockets().map_or(true, |table| is_talked_to_by(&table, path))
}

fn is_talked_to_by(table: &str, path: &Path) -> bool {
    entries(table).any(|(state, at)| state == CONNECTED && Path::new(at) == path)
}

/// State and path of each socket that has a path: the sixth and the eighth field of a line
/// (`proc(5)`).
fn entries(table: &str) -> impl Iterator<Item = (&str, &str)> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(5);
        Some((fields.next()?, fields.nth(1)?))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn connected_and_bound_sockets_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        assert!(!is_talked_to(&path));
        let listener = UnixListener::bind(&path).unwrap();
        assert!(!is_talked_to(&path));
        let table = sockets().unwrap();
        assert!(bound(&table).any(|at| Path::new(at) == path));
        let caller = UnixStream::connect(&path).unwrap();
        let (end, _) = listener.accept().unwrap();
        assert!(is_talked_to(&path));
        drop((caller, end));
        assert!(!is_talked_to(&path));
    }
}
