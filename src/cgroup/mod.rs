//! The cgroup of a container, version 1 and 2: its figures, who lives in it, whom the kernel has
//! killed in it because memory ran out, and whom it would kill first.

mod blkio;
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
pub mod remains;
pub mod scores;
mod v1;
mod v2;
pub mod values;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use cgroups_rs::fs::Controllers;
use cgroups_rs::fs::cgroup::get_cgroups_relative_paths_by_pid;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use nix::errno::Errno;

use crate::packed::Pack;

use hierarchy::Hierarchy;
use v1::V1;
use v2::V2;
use values::Values;

pub use hierarchy::Layout;
pub use join::{enter, join};
pub use oom::OomWatch;
pub use place::Place;
pub use pod::PodCgroup;

/// How many cgroups below a container's own are looked at: a privileged container can make as many
/// as it likes.
const CGROUPS_AT_MOST: usize = 4096;

/// The file of a cgroup that has its processes, and takes others in (`cgroups(7)`).
const MEMBERS: &str = "cgroup.procs";

/// The cgroup that a container was created in. Its init may move on, as systemd does in a privileged
/// container, but this one holds whatever becomes of it.
#[derive(Debug)]
pub struct Cgroup {
    version: Version,
}

#[derive(Debug)]
enum Version {
    V1(V1),
    V2(V2),
}

impl Cgroup {
    /// The cgroup that process `pid` is in now.
    ///
    /// # Errors
    ///
    /// One sentence if it cannot be found out.
    pub fn of(pid: i32) -> Result<Cgroup, String> {
        let failed = |error: &dyn Display| format!("cgroup of process {pid}: {error}");
        let number = u32::try_from(pid).map_err(|error| failed(&error))?;
        let paths = get_cgroups_relative_paths_by_pid(number).map_err(|error| failed(&error))?;
        let version = match Hierarchy::get() {
            Hierarchy::V1(_) => V1::new(&paths).map(Version::V1),
            // The one without a name.
            Hierarchy::V2 => paths.get("").map(|path| Version::V2(V2::new(path))),
        };
        let version = version.ok_or_else(|| failed(&"there is none that is mounted"))?;
        Ok(Cgroup { version })
    }

    /// The one that a container manager calls so: a path from the first cgroup on, or systemd's name of a
    /// slice, as kubelet has it. None if nothing is mounted where it could be.
    pub fn at(name: &str) -> Option<Cgroup> {
        let path = path_of(name);
        let version = match Hierarchy::get() {
            Hierarchy::V1(_) => V1::at(&path).map(Version::V1)?,
            Hierarchy::V2 => Version::V2(V2::new(&path)),
        };
        Some(Cgroup { version })
    }

    /// Its figures, as containerd's metrics of that version.
    ///
    /// # Errors
    ///
    /// One sentence if they cannot be encoded.
    pub fn metrics(&self) -> Result<Any, String> {
        let metrics = match &self.version {
            Version::V1(cgroup) => cgroup.metrics().pack(),
            Version::V2(cgroup) => cgroup.metrics().pack(),
        };
        metrics.map_err(|error| format!("figures of the container's cgroup: {error}"))
    }

    /// The processes in it, and in the cgroups below it.
    ///
    /// # Errors
    ///
    /// One sentence if they cannot be read, as for want of a descriptor; not if it is gone.
    pub fn processes(&self) -> Result<Vec<u32>, String> {
        let mut processes = Vec::new();
        for directory in below(self.directory()) {
            processes.extend(members(&directory)?);
        }
        Ok(processes)
    }

    /// Whether its name is that of a container, as cgroups' are that are made for one.
    pub fn is_named_after(&self, id: &str) -> bool {
        let directory = self.directory();
        directory.is_some_and(|directory| is_named_after(&directory, id))
    }

    /// Lets go on what is frozen in it and in the cgroups below it, whoever has frozen it: in version 1
    /// not even SIGKILL ends it before.
    pub fn thaw(&self) {
        if let Some(directory) = self.freezer() {
            freezer::thaw(&directory);
        }
    }

    /// Kills everything in it and in the cgroups below it. False if something is left after this time.
    pub async fn end_all(&self, within: Duration) -> bool {
        let mut directories: Vec<_> = self.directory().into_iter().chain(self.freezer()).collect();
        directories.dedup();
        kill::until_empty(&directories, within, || true).await
    }

    /// The cgroup above it; none if that is the first one.
    pub fn parent(&self) -> Option<Cgroup> {
        let version = match &self.version {
            Version::V1(cgroup) => Version::V1(cgroup.parent()?),
            Version::V2(cgroup) => Version::V2(cgroup.parent()?),
        };
        Some(Cgroup { version })
    }

    /// The directories of the cgroup `name` below this one, one in each hierarchy. Neither need exist.
    pub fn directories_below(&self, name: &str) -> BTreeSet<PathBuf> {
        let own = match &self.version {
            Version::V1(cgroup) => cgroup.directories(),
            Version::V2(cgroup) => BTreeSet::from([cgroup.directory().to_owned()]),
        };
        own.iter().map(|directory| directory.join(name)).collect()
    }

    /// How much memory is charged to it, in bytes; none where that is not accounted for.
    pub fn memory_usage(&self) -> Option<u64> {
        Values::of(self)?.memory_usage()
    }

    /// How many of its processes the kernel has killed because memory ran out; none where memory is
    /// not accounted for. Less than before if cgroups below it are gone (version 1).
    pub fn oom_kills(&self) -> Option<u64> {
        match &self.version {
            // Here a cgroup counts the kills in itself only.
            Version::V1(cgroup) => {
                let memory = cgroup.directory(&Controllers::Mem)?;
                let kills = |directory: PathBuf| {
                    let text = read::text(&directory.join("memory.oom_control"))?;
                    read::value(&text, "oom_kill")
                };
                let counts = below(Some(memory)).filter_map(kills);
                counts.reduce(u64::saturating_add)
            }
            Version::V2(cgroup) => {
                let text = read::text(&cgroup.file("memory.events"))?;
                read::value(&text, "oom_kill")
            }
        }
    }

    fn directory(&self) -> Option<PathBuf> {
        match &self.version {
            Version::V1(cgroup) => [Controllers::Devices, Controllers::Mem, Controllers::Pids]
                .iter()
                .find_map(|controller| cgroup.directory(controller)),
            Version::V2(cgroup) => Some(cgroup.directory().to_owned()),
        }
    }

    /// Where it is frozen and thawed.
    fn freezer(&self) -> Option<PathBuf> {
        match &self.version {
            Version::V1(cgroup) => cgroup.directory(&Controllers::Freezer),
            Version::V2(cgroup) => Some(cgroup.directory().to_owned()),
        }
    }
}

/// The processes that one cgroup names; none if it is gone.
fn members(directory: &Path) -> Result<Vec<u32>, String> {
    let file = directory.join(MEMBERS);
    match fs::read_to_string(&file) {
        Ok(text) => Ok(text.lines().filter_map(|pid| pid.parse().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        // It is being removed.
        Err(error) if error.raw_os_error() == Some(Errno::ENODEV as i32) => Ok(Vec::new()),
        // A threaded one: its processes are the ones of a cgroup above it, which names them.
        Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => Ok(Vec::new()),
        Err(error) => Err(format!("processes in {}: {error}", file.display())),
    }
}

/// Whether a cgroup is named after a container: by its id alone, or behind a prefix where it is
/// systemd's (`cri-containerd-<id>.scope`).
pub fn is_named_after(directory: &Path, id: &str) -> bool {
    let name = directory.file_name().and_then(OsStr::to_str);
    let name = name.map(|name| name.strip_suffix(".scope").unwrap_or(name));
    name.and_then(|name| name.strip_suffix(id))
        .is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('-'))
}

/// Where a cgroup is that a container manager calls so. systemd has each slice in the one that its name
/// begins with: `a-b.slice` in `a.slice` (`systemd.slice(5)`).
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

/// A cgroup's directory and those below it.
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
    fn a_slice_is_below_those_that_its_name_begins_with() {
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
    fn only_a_cgroup_of_its_own_is_a_containers() {
        let is = |path: &str, id| is_named_after(Path::new(path), id);
        assert!(is("/sys/fs/cgroup/pids/kubepods/pod1/abc", "abc"));
        assert!(is("/x.slice/cri-containerd-abc.scope", "abc"));
        assert!(!is("/webapps", "web"));
        assert!(!is("/web/apps", "web"));
        assert!(!is("/kubepods", "pod"));
        assert!(!is("/", ""));
    }
}
