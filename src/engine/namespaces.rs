//! The namespaces that a container joins, checked by their inodes, because PIDs are reused.
//!
//! A pod's containers join the namespaces of its sandbox by paths below `/proc/<pid>/ns`. After the
//! sandbox has died another process may get this PID, and then the path leads to that process's
//! namespaces, usually the host's.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use thiserror::Error;

use super::Sandbox;

/// Types of namespaces in the OCI specification (`config-linux.md`) with their files in
/// `/proc/<pid>/ns` (`namespaces(7)`).
const FILES: [(&str, &str); 8] = [
    ("network", "net"),
    ("ipc", "ipc"),
    ("uts", "uts"),
    ("pid", "pid"),
    ("user", "user"),
    ("mount", "mnt"),
    ("cgroup", "cgroup"),
    ("time", "time"),
];

/// Device and inode of a namespace: unique among those that exist at the same time.
type Identity = (u64, u64);

/// Namespaces, by the names of their files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces(Vec<(&'static str, Identity)>);

/// An error: a container would join, or is in, other namespaces than intended.
#[derive(Debug, Error)]
pub enum NamespaceError {
    #[error("the container cannot join {kind} namespace {path}, which is unreadable: {source}")]
    Unreadable {
        kind: String,
        path: String,
        source: io::Error,
    },
    #[error("{kind} namespace {path} is not that of the pod's sandbox, which has ended")]
    NotTheSandboxs { kind: String, path: String },
    #[error("process {pid} is not in the {file} namespace that it was to join, which is gone")]
    Elsewhere { pid: i32, file: &'static str },
}

impl Namespaces {
    /// Reads the namespaces of a process. The caller ensures that the PID cannot have been reused,
    /// for example because the process is a child that is not reaped yet.
    pub fn of(pid: i32) -> Namespaces {
        let found = FILES.iter().filter_map(|(_, file)| {
            let path = format!("/proc/{pid}/ns/{file}");
            Some((*file, identity(Path::new(&path)).ok()?))
        });
        Namespaces(found.collect())
    }

    /// Reads the namespaces that a configuration names by type and path. A path of the pod's
    /// sandbox must still lead to the sandbox's namespace.
    ///
    /// # Errors
    ///
    /// [`NamespaceError`] if a namespace cannot be read, or is not the sandbox's.
    pub fn named<'a>(
        namespaces: impl Iterator<Item = (&'a str, &'a str)>,
        sandbox: Option<&Sandbox>,
    ) -> Result<Namespaces, NamespaceError> {
        let mut named = Vec::new();
        for (kind, path) in namespaces.filter(|(_, path)| !path.is_empty()) {
            let Some((_, file)) = FILES.iter().find(|(word, _)| *word == kind) else {
                // The type is unknown, so the OCI runtime reports the error.
                continue;
            };
            let its = |sandbox: &Sandbox| {
                let is_its = path == format!("/proc/{}/ns/{file}", sandbox.pid);
                sandbox.namespaces.get(file).filter(|_| is_its)
            };
            let found = identity(Path::new(path));
            let found = match (found, sandbox.and_then(its)) {
                (Ok(found), Some(its)) if found != its => {
                    return Err(NamespaceError::NotTheSandboxs {
                        kind: kind.to_owned(),
                        path: path.to_owned(),
                    });
                }
                (found, _) => found,
            };
            let found = found.map_err(|source| NamespaceError::Unreadable {
                kind: kind.to_owned(),
                path: path.to_owned(),
                source,
            })?;
            named.push((*file, found));
        }
        Ok(Namespaces(named))
    }

    /// Checks that a process is in all of these namespaces.
    ///
    /// # Errors
    ///
    /// [`NamespaceError::Elsewhere`] if the process is in another namespace.
    pub fn hold(&self, pid: i32) -> Result<(), NamespaceError> {
        let now = Namespaces::of(pid);
        for (file, wanted) in &self.0 {
            if now.get(file) != Some(*wanted) {
                return Err(NamespaceError::Elsewhere { pid, file });
            }
        }
        Ok(())
    }

    fn get(&self, file: &str) -> Option<Identity> {
        let found = self.0.iter().find(|(name, _)| *name == file);
        found.map(|(_, identity)| *identity)
    }
}

fn identity(path: &Path) -> io::Result<Identity> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> i32 {
        i32::try_from(std::process::id()).unwrap()
    }

    #[test]
    fn namespaces_named_by_path_are_compared_with_those_of_a_process() {
        let path = format!("/proc/{}/ns/ipc", own());
        let named = Namespaces::named([("ipc", path.as_str())].into_iter(), None).unwrap();
        assert!(named.hold(own()).is_ok());
        let elsewhere = Namespaces(vec![("ipc", (0, 0))]);
        assert!(elsewhere.hold(own()).is_err());
        // A new namespace has no path.
        let new = [("ipc", ""), ("pid", "")].into_iter();
        assert_eq!(Namespaces::named(new, None).unwrap(), Namespaces::default());
    }

    #[test]
    fn a_reused_pid_of_the_sandbox_is_rejected() {
        let path = format!("/proc/{}/ns/ipc", own());
        let named = |sandbox| Namespaces::named([("ipc", path.as_str())].into_iter(), sandbox);
        let of = |namespaces| Sandbox {
            pid: own(),
            namespaces,
            own: None,
        };
        let alive = of(Namespaces::of(own()));
        assert!(named(Some(&alive)).is_ok());
        let dead = of(Namespaces(vec![("ipc", (0, 1))]));
        let refused = named(Some(&dead)).unwrap_err().to_string();
        assert!(
            refused.contains("not that of the pod's sandbox"),
            "{refused}"
        );
        let gone = [("network", "/proc/0/ns/net")].into_iter();
        let refused = Namespaces::named(gone, None).unwrap_err().to_string();
        assert!(
            refused.starts_with(
                "the container cannot join network namespace /proc/0/ns/net, which is unreadable: "
            ),
            "{refused}"
        );
    }
}
