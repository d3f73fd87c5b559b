//! Cgroups v1 and v2 of containers and pods: metrics, processes, OOM kills, OOM scores and limits.

mod blkio;
pub mod cleanup;
mod devices;
mod freezer;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod hierarchy;
mod join;
mod kill;
pub mod moves;
mod oom;
pub mod place;
pub mod pod;
mod read;
pub mod scores;
mod v1;
mod v2;
pub mod values;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use cgroups_rs::fs::Controllers;
use cgroups_rs::fs::cgroup::get_cgroups_relative_paths_by_pid;
use containerd_shim_protos::protobuf;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use nix::errno::Errno;

use crate::PathError;
use crate::any::Pack;

use hierarchy::Hierarchy;
use v1::V1;
use v2::V2;
use values::Values;

pub use hierarchy::Layout;
pub use join::{JoinError, enter, join};
pub use oom::OomWatch;
pub use place::Place;
pub use pod::PodCgroup;

/// Maximum number of cgroups that are read below a container's cgroup. A privileged container can
/// make any number of cgroups.
const CGROUPS_AT_MOST: usize = 4096;

/// File of a cgroup with the PIDs of its processes; writing a PID to the file moves that process
/// into the cgroup (`cgroups(7)`).
const MEMBERS: &str = "cgroup.procs";

/// A cgroup, such as the one that a container was created in. A container's init may move to a
/// cgroup below it, as systemd does in a privileged container.
#[derive(Debug)]
pub struct Cgroup {
    version: Version,
}

/// A cgroup that cannot be found or read.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    #[error("cannot find the cgroup of process {pid}: {error}")]
    Unread {
        pid: i32,
        #[source]
        error: io::Error,
    },
    #[error("cannot find the cgroup of process {pid}: none of its cgroup hierarchies is mounted")]
    NotMounted { pid: i32 },
    #[error("cannot encode cgroup metrics: {0}")]
    Unencoded(#[source] protobuf::Error),
    #[error(transparent)]
    File(#[from] PathError),
}

#[derive(Debug)]
enum Version {
    V1(V1),
    V2(V2),
}

impl Cgroup {
    /// Finds the current cgroup of process `pid`.
    ///
    /// # Errors
    ///
    /// If the cgroup cannot be found.
    pub fn of(pid: i32) -> Result<Cgroup, CgroupError> {
        let unread = |error| CgroupError::Unread { pid, error };
        let number = u32::try_from(pid).map_err(|error| unread(io::Error::other(error)))?;
        let paths = get_cgroups_relative_paths_by_pid(number)
            .map_err(|error| unread(io::Error::other(error)))?;
        let version = match Hierarchy::get() {
            Hierarchy::V1(_) => V1::new(&paths).map(Version::V1),
            // The v2 hierarchy has no name.
            Hierarchy::V2 => paths.get("").map(|path| Version::V2(V2::new(path))),
        };
        let version = version.ok_or(CgroupError::NotMounted { pid })?;
        Ok(Cgroup { version })
    }

    /// Returns the cgroup with a name in kubelet's form: a path from the root cgroup, or the name
    /// of a systemd slice. `None` if no hierarchy is mounted.
    pub fn at(name: &str) -> Option<Cgroup> {
        let path = path_of(name);
        let version = match Hierarchy::get() {
            Hierarchy::V1(_) => V1::at(&path).map(Version::V1)?,
            Hierarchy::V2 => Version::V2(V2::new(&path)),
        };
        Some(Cgroup { version })
    }

    /// Returns the metrics, as containerd's message for the cgroup version.
    ///
    /// # Errors
    ///
    /// If the metrics cannot be encoded.
    pub fn metrics(&self) -> Result<Any, CgroupError> {
        let metrics = match &self.version {
            Version::V1(cgroup) => cgroup.metrics().pack(),
            Version::V2(cgroup) => cgroup.metrics().pack(),
        };
        metrics.map_err(CgroupError::Unencoded)
    }

    /// PIDs of the processes in this cgroup and in the cgroups below it; empty if this cgroup was
    /// removed.
    ///
    /// # Errors
    ///
    /// If the PIDs cannot be read, for example because no descriptor is free.
    pub fn processes(&self) -> Result<Vec<u32>, CgroupError> {
        let mut processes = Vec::new();
        for directory in below(self.directory()) {
            processes.extend(members(&directory)?);
        }
        Ok(processes)
    }

    /// True if this cgroup's name shows that it was made for container `id`.
    pub fn is_named_after(&self, id: &str) -> bool {
        let directory = self.directory();
        directory.is_some_and(|directory| is_named_after(&directory, id))
    }

    /// Thaws this cgroup and the cgroups below it, whichever program has frozen them. In v1 a
    /// frozen process does not even die of SIGKILL.
    pub fn thaw(&self) {
        if let Some(directory) = self.freezer() {
            freezer::thaw(&directory);
        }
    }

    /// Kills all processes in this cgroup and in the cgroups below it; returns false if some are
    /// left after `within`.
    pub async fn end_all(&self, within: Duration) -> bool {
        let mut directories: Vec<_> = self.directory().into_iter().chain(self.freezer()).collect();
        directories.dedup();
        kill::until_empty(&directories, within, || true).await
    }

    /// Returns the parent of this cgroup, or `None` if the parent is the root cgroup.
    pub fn parent(&self) -> Option<Cgroup> {
        let version = match &self.version {
            Version::V1(cgroup) => Version::V1(cgroup.parent()?),
            Version::V2(cgroup) => Version::V2(cgroup.parent()?),
        };
        Some(Cgroup { version })
    }

    /// Directories of a cgroup `name` below this cgroup, one in each hierarchy. The directories
    /// need not exist.
    pub fn directories_below(&self, name: &str) -> BTreeSet<PathBuf> {
        let own = match &self.version {
            Version::V1(cgroup) => cgroup.directories(),
            Version::V2(cgroup) => BTreeSet::from([cgroup.directory().to_owned()]),
        };
        own.iter().map(|directory| directory.join(name)).collect()
    }

    /// Bytes of memory charged to this cgroup; `None` without memory accounting.
    pub fn memory_usage(&self) -> Option<u64> {
        Values::of(self)?.memory_usage()
    }

    fn directory(&self) -> Option<PathBuf> {
        match &self.version {
            Version::V1(cgroup) => [Controllers::Devices, Controllers::Mem, Controllers::Pids]
                .iter()
                .find_map(|controller| cgroup.directory(controller)),
            Version::V2(cgroup) => Some(cgroup.directory().to_owned()),
        }
    }

    /// Directory whose files freeze and thaw this cgroup.
    fn freezer(&self) -> Option<PathBuf> {
        match &self.version {
            Version::V1(cgroup) => cgroup.directory(&Controllers::Freezer),
            Version::V2(cgroup) => Some(cgroup.directory().to_owned()),
        }
    }
}

/// PIDs of the processes of one cgroup, without the cgroups below it; empty if the cgroup was
/// removed.
fn members(directory: &Path) -> Result<Vec<u32>, PathError> {
    let file = directory.join(MEMBERS);
    match fs::read_to_string(&file) {
        Ok(text) => Ok(text.lines().filter_map(|pid| pid.parse().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        // The cgroup is being removed.
        Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => Ok(Vec::new()),
        // This is a threaded cgroup: the kernel lists its processes in a cgroup above it.
        Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => Ok(Vec::new()),
        Err(error) => Err(PathError::cannot("read", &file)(error)),
    }
}

/// True if a cgroup has the name of a container: its ID alone, or with systemd's prefix and suffix
/// (`cri-containerd-<id>.scope`).
pub fn is_named_after(directory: &Path, id: &str) -> bool {
    let name = directory.file_name().and_then(OsStr::to_str);
    let name = name.map(|name| name.strip_suffix(".scope").unwrap_or(name));
    name.and_then(|name| name.strip_suffix(id))
        .is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('-'))
}

/// Returns the last part of a cgroup's name if that part is a systemd slice, and otherwise `None`.
/// kubelet's name of a cgroup may be the slice alone, or the slice's path.
pub fn slice_of(name: &str) -> Option<&str> {
    let (_, last) = name.rsplit_once('/').unwrap_or(("", name));
    Some(last).filter(|last| last.ends_with(".slice"))
}

/// Converts kubelet's name of a cgroup to a path. The part of a slice's name before a dash names
/// its parent: systemd puts `a-b.slice` into `a.slice` (`systemd.slice(5)`).
fn path_of(name: &str) -> String {
    let Some(words) = name
        .strip_suffix(".slice")
        .filter(|words| !words.contains('/'))
    else {
        return format!("/{}", name.trim_start_matches('/'));
    };
    let ends = words
        .match_indices('-')
        .map(|(end, _)| end)
        .chain([words.len()]);
    let slices = ends.filter_map(|end| words.get(..end).filter(|words| !words.is_empty()));
    slices.map(|words| format!("/{words}.slice")).collect()
}

/// Iterates over a cgroup's directory and the directories below it.
fn below(directory: Option<PathBuf>) -> impl Iterator<Item = PathBuf> {
    let mut coming: Vec<PathBuf> = directory.into_iter().collect();
    let all = std::iter::from_fn(move || {
        let directory = coming.pop()?;
        let entries = fs::read_dir(&directory).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        coming.extend(directories.map(|entry| entry.path()));
        Some(directory)
    });
    all.take(CGROUPS_AT_MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_is_below_the_slices_in_its_name() {
        assert_eq!(
            path_of("/kubepods/burstable/pod1-2"),
            "/kubepods/burstable/pod1-2"
        );
        assert_eq!(path_of("kubepods/pod1"), "/kubepods/pod1");
        let path = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice";
        assert_eq!(path_of("kubepods-burstable-pod1_2.slice"), path);
        assert_eq!(path_of("kubepods.slice"), "/kubepods.slice");
    }

    #[test]
    fn a_slice_may_be_named_by_its_path() {
        let pod = "kubepods-burstable-pod1_2.slice";
        let path = format!("/kubepods.slice/kubepods-burstable.slice/{pod}");
        assert_eq!((slice_of(pod), slice_of(&path)), (Some(pod), Some(pod)));
        assert_eq!(slice_of("/kubepods/burstable/pod1-2"), None);
    }

    #[test]
    fn a_containers_cgroup_is_recognized_by_its_name() {
        let is = |path: &str, id| is_named_after(Path::new(path), id);
        assert!(is("/sys/fs/cgroup/pids/kubepods/pod1/abc", "abc"));
        assert!(is("/x.slice/cri-containerd-abc.scope", "abc"));
        assert!(!is("/webapps", "web"));
        assert!(!is("/web/apps", "web"));
        assert!(!is("/kubepods", "pod"));
        assert!(!is("/", ""));
    }
}
