//! The directory in which an OCI runtime keeps a container's state, `<root>/<id>`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

/// State file of runc, and of runtimes that imitate it.
const RUNC: &str = "state.json";

/// State file of crun.
const CRUN: &str = "status";

/// FIFO at which runc's init process waits to execute the program.
const FIFO: &str = "exec.fifo";

/// All fields of runc's state file, up to runc 1.5 (`State` in `libcontainer/container_linux.go`).
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

/// The fields of the container's configuration that matter for the deletion.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    #[serde(default)]
    net_devices: Option<IgnoredAny>,
    /// True if the cgroups are those of another user's systemd.
    #[serde(default, rename = "rootless_cgroups")]
    has_rootless_cgroups: bool,
}

/// The cgroups in runc's state file; all other fields are ignored.
#[derive(Deserialize)]
struct Cgroups {
    cgroup_paths: BTreeMap<String, PathBuf>,
}

/// True if the container's init runs on this kernel, and not in a VM. The state file of runc or
/// crun shows this.
pub fn is_native(directory: &Path) -> bool {
    directory.join(RUNC).exists() || directory.join(CRUN).exists()
}

/// True if this is a state directory of runc for a container whose program is not executed yet.
pub fn is_parked_by_runc(directory: &Path) -> bool {
    let is_fifo =
        fs::symlink_metadata(fifo(directory)).is_ok_and(|metadata| metadata.file_type().is_fifo());
    is_fifo && directory.join(RUNC).exists() && !directory.join(CRUN).exists()
}

pub fn fifo(directory: &Path) -> PathBuf {
    directory.join(FIFO)
}

/// The cgroups that runc's state file lists. Empty if the file cannot be read.
pub fn cgroups(directory: &Path) -> BTreeSet<PathBuf> {
    noted(&fs::read(directory.join(RUNC)).unwrap_or_default())
}

/// Cgroups listed in the text of runc's state file.
pub(super) fn noted(state: &[u8]) -> BTreeSet<PathBuf> {
    let noted = serde_json::from_slice::<Cgroups>(state).ok();
    let paths = noted.map(|state| state.cgroup_paths.into_values());
    paths.into_iter().flatten().collect()
}

/// Returns the cgroups in runc's state file. Returns `None` if the file cannot be read, or if a
/// deletion may have to do more than remove these cgroups and the state.
pub fn only_cgroups(directory: &Path) -> Option<BTreeSet<PathBuf>> {
    let state = fs::read(directory.join(RUNC)).ok()?;
    let state: State = serde_json::from_slice(&state).ok()?;
    let is_rootless = state.rootless || state.config.has_rootless_cgroups;
    let is_all =
        !is_rootless && state.intel_rdt_path.is_empty() && state.config.net_devices.is_none();
    is_all.then(|| state.cgroup_paths.into_values().collect())
}

/// Removes the directory. The state file is removed last, because the OCI runtime knows the
/// container as long as this file exists.
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
