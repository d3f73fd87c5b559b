//! The directory in which an OCI runtime keeps what it knows of a container, `<root>/<id>`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

/// What runc notes there, and whoever is to be taken for runc.
const RUNC: &str = "state.json";

/// The same of crun.
const CRUN: &str = "status";

/// What runc's init process waits at until the container is started.
const FIFO: &str = "exec.fifo";

/// All that runc notes of a container, up to 1.5 (`State` in `libcontainer/container_linux.go`).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    #[serde(rename = "id")]
    _id: IgnoredAny,
    #[serde(rename = "init_process_pid")]
    _init_process_pid: IgnoredAny,
    #[serde(rename = "init_process_start")]
    _init_process_start: IgnoredAny,
    #[serde(rename = "created")]
    _created: IgnoredAny,
    config: Config,
    #[serde(default)]
    rootless: bool,
    cgroup_paths: BTreeMap<String, PathBuf>,
    #[serde(rename = "namespace_paths")]
    _namespace_paths: IgnoredAny,
    #[serde(default, rename = "external_descriptors")]
    _external_descriptors: IgnoredAny,
    #[serde(default)]
    intel_rdt_path: String,
}

/// What it was created with, as far as its deletion is concerned.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    #[serde(default)]
    net_devices: Option<IgnoredAny>,
    /// Of another user's systemd, if it is of one.
    #[serde(default, rename = "rootless_cgroups")]
    has_rootless_cgroups: bool,
}

/// Of the same only where its cgroups are, whatever else there is.
#[derive(Deserialize)]
struct Cgroups {
    cgroup_paths: BTreeMap<String, PathBuf>,
}

/// Whether the container's init process is a process of this kernel: runc and crun leave their mark.
pub fn is_native(directory: &Path) -> bool {
    directory.join(RUNC).exists() || directory.join(CRUN).exists()
}

/// Whether it is runc's, of a container that is still to be started.
pub fn is_parked_by_runc(directory: &Path) -> bool {
    let is_fifo =
        fs::symlink_metadata(fifo(directory)).is_ok_and(|metadata| metadata.file_type().is_fifo());
    is_fifo && directory.join(RUNC).exists() && !directory.join(CRUN).exists()
}

/// The FIFO that runc's init process waits at.
pub fn fifo(directory: &Path) -> PathBuf {
    directory.join(FIFO)
}

/// The cgroups that runc has noted; none where nothing can be read.
pub fn cgroups(directory: &Path) -> BTreeSet<PathBuf> {
    noted(&fs::read(directory.join(RUNC)).unwrap_or_default())
}

/// The same, in the text of what it notes.
pub(super) fn noted(state: &[u8]) -> BTreeSet<PathBuf> {
    let noted = serde_json::from_slice::<Cgroups>(state).ok();
    let paths = noted.map(|state| state.cgroup_paths.into_values());
    paths.into_iter().flatten().collect()
}

/// The cgroups that runc has noted, if deleting the container means to remove them and its state, and nothing else.
pub fn only_cgroups(directory: &Path) -> Option<BTreeSet<PathBuf>> {
    let state = fs::read(directory.join(RUNC)).ok()?;
    let state: State = serde_json::from_slice(&state).ok()?;
    let is_rootless = state.rootless || state.config.has_rootless_cgroups;
    let is_all =
        !is_rootless && state.intel_rdt_path.is_empty() && state.config.net_devices.is_none();
    is_all.then(|| state.cgroup_paths.into_values().collect())
}

/// Removes the directory of a container's state, the state itself last: as long as that is there its OCI runtime knows
/// it.
pub fn remove(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() != RUNC {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_file(directory.join(RUNC))?;
    fs::remove_dir(directory)
}
