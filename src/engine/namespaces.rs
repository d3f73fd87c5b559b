//! Which namespaces a container is to join, told by more than a process's number: that may be
//! another's by the time somebody uses it.
//!
//! A pod's containers join those of its sandbox, by paths below `/proc/<pid>/ns`. When the sandbox has
//! died, the number is free, and whatever has it next has namespaces too: the host's, as a rule.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use thiserror::Error;

use super::Sandbox;

/// A namespace's file in `/proc/<pid>/ns`, by its type in the OCI specification
/// (`config-linux.md`, `namespaces(7)`).
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

/// What tells one namespace from every other that there is at the same time: its device and inode.
type Identity = (u64, u64);

/// Some namespaces, each by the name of its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces(Vec<(&'static str, Identity)>);

/// A container would be, or is, in other namespaces than it was to join.
#[derive(Debug, Error)]
pub enum NamespaceError {
    #[error("{kind} namespace {path}: {source}")]
    Unreadable {
        kind: String,
        path: String,
        source: io::Error,
    },
    #[error("{kind} namespace {path} is not that of the pod's sandbox, which has ended")]
    NotTheSandboxs { kind: String, path: String },
    #[error("process {pid} is in another {file} namespace than it was to join, which has gone")]
    Elsewhere { pid: i32, file: &'static str },
}

impl Namespaces {
    /// Those of a process that cannot have been replaced: a child that has not been collected.
    pub fn of(pid: i32) -> Namespaces {
        let found = FILES.iter().filter_map(|(_, file)| {
            let path = format!("/proc/{pid}/ns/{file}");
            Some((*file, identity(Path::new(&path)).ok()?))
        });
        Namespaces(found.collect())
    }

    /// Those that a configuration names by type and path. Where a path leads to the pod's sandbox, they have
    /// to be the sandbox's.
    ///
    /// # Errors
    ///
    /// [`NamespaceError`] if one cannot be looked at, or is another's.
    pub fn named<'a>(
        namespaces: impl Iterator<Item = (&'a str, &'a str)>,
        sandbox: Option<&Sandbox>,
    ) -> Result<Namespaces, NamespaceError> {
        let mut named = Vec::new();
        for (kind, path) in namespaces.filter(|(_, path)| !path.is_empty()) {
            let Some((_, file)) = FILES.iter().find(|(word, _)| *word == kind) else {
                // The runtime will say what it thinks of that.
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

    /// Whether a process is in all of them.
    ///
    /// # Errors
    ///
    /// [`NamespaceError::Elsewhere`] if it is not.
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
    fn a_process_is_in_the_namespaces_that_a_path_leads_to() {
        let path = format!("/proc/{}/ns/ipc", own());
        let named = Namespaces::named([("ipc", path.as_str())].into_iter(), None).unwrap();
        assert!(named.hold(own()).is_ok());
        let elsewhere = Namespaces(vec![("ipc", (0, 0))]);
        assert!(elsewhere.hold(own()).is_err());
        // Those that are made for it are not named.
        let new = [("ipc", ""), ("pid", "")].into_iter();
        assert_eq!(Namespaces::named(new, None).unwrap(), Namespaces::default());
    }

    #[test]
    fn a_number_that_was_the_sandboxs_does_not_lead_to_another_process() {
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
        assert!(refused.starts_with("network namespace /proc/0/ns/net: "));
    }
}
