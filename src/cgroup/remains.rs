//! What is left of a container's cgroups when nobody knows them any more: after a command of the OCI
//! runtime that was ended, or a shim that has died.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use tokio::time::{Instant, sleep};

use crate::plan::Signal;
use crate::sys;

/// How long killed processes may take to be gone.
const PROCESSES_END_WITHIN: Duration = Duration::from_secs(1);

const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);

/// Of the state that runc keeps of a container only where its cgroups are.
#[derive(Deserialize)]
struct RuncState {
    cgroup_paths: std::collections::BTreeMap<String, PathBuf>,
}

/// The directories of a container's cgroups: as runc has noted them in its state directory, or as the
/// bundle wants them, for one that was being created.
pub fn of_container(state_dir: &Path, wanted: Option<&str>) -> BTreeSet<PathBuf> {
    let state = fs::read(state_dir.join("state.json")).unwrap_or_default();
    let mut cgroups = noted(&state);
    // Of systemd's form is what does not begin so: those are systemd's to remove.
    if let Some(path) = wanted.and_then(|path| path.strip_prefix('/')) {
        let path = Path::new(path);
        let is_plain = |part| matches!(part, Component::Normal(_));
        if path.components().next().is_some() && path.components().all(is_plain) {
            cgroups.extend(hierarchies().into_iter().map(|root| root.join(path)));
        }
    }
    cgroups.retain(|directory| directory.is_dir());
    cgroups
}

/// What runc has noted, in the text of its `state.json`.
pub(super) fn noted(state: &[u8]) -> BTreeSet<PathBuf> {
    let noted = serde_json::from_slice::<RuncState>(state).ok();
    let paths = noted.map(|state| state.cgroup_paths.into_values());
    paths.into_iter().flatten().collect()
}

/// Where the hierarchies of cgroups are mounted, of either version.
fn hierarchies() -> Vec<PathBuf> {
    hierarchies_in(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

pub(super) fn hierarchies_in(table: &str) -> Vec<PathBuf> {
    let mounts = table.lines().filter_map(|line| line.split_once(" - "));
    let cgroups = mounts.filter(|(_, what)| what.starts_with("cgroup"));
    cgroups
        .filter_map(|(place, _)| Some(PathBuf::from(place.split(' ').nth(4)?)))
        .collect()
}

/// Kills everything in these cgroups and those below them, and removes them.
pub async fn raze(cgroups: &BTreeSet<PathBuf>) {
    let begun = Instant::now();
    loop {
        let mut processes = BTreeSet::new();
        // What forks must not outrun us. (The names are those of version 1; in version 2 what is
        // frozen can be killed.)
        freeze(cgroups, "FROZEN");
        for cgroup in cgroups {
            visit(cgroup, &mut |directory| {
                processes.extend(members(directory))
            });
        }
        kill(&processes.iter().copied().collect::<Vec<_>>());
        freeze(cgroups, "THAWED");
        let removed = processes.is_empty()
            && cgroups.iter().fold(true, |all, cgroup| {
                visit(cgroup, &mut |directory| drop(fs::remove_dir(directory)));
                all && !cgroup.exists()
            });
        if removed {
            return;
        }
        if begun.elapsed() > PROCESSES_END_WITHIN {
            return tracing::warn!(?cgroups, "cgroups are left behind");
        }
        sleep(LOOK_AGAIN_AFTER).await;
    }
}

fn freeze(cgroups: &BTreeSet<PathBuf>, state: &str) {
    for cgroup in cgroups {
        let file = cgroup.join("freezer.state");
        if file.exists()
            && let Err(error) = fs::write(&file, state)
        {
            tracing::debug!(file = %file.display(), %error, "not set");
        }
    }
}

/// Visits a directory and those below it, the deepest first.
fn visit(directory: &Path, each: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            visit(&entry.path(), each);
        }
    }
    each(directory);
}

fn members(cgroup: &Path) -> Vec<i32> {
    let members = fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    let own = i32::try_from(std::process::id()).ok();
    let members = members.lines().filter_map(|pid| pid.parse().ok());
    // Zero stands for one of another PID namespace.
    members
        .filter(|pid| *pid > 0 && Some(*pid) != own)
        .collect()
}

/// Kills processes that may have ended already.
pub fn kill(processes: &[i32]) {
    for pid in processes {
        match sys::kill(*pid, Signal::KILL.number()) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::debug!(pid, %error, "not killed"),
        }
    }
}
