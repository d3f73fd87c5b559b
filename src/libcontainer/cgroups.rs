//! The cgroups of a container: those that libcontainer leaves to us, and what is to be done before it removes its own.
//!
//! On cgroup v1 it manages the hierarchies of controllers. runc's containers have a cgroup in the others as well:
//! that of systemd, and on machines with both versions that of v2.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::Failure;

/// Where cgroups are.
const ROOT: &str = "/sys/fs/cgroup";

/// Hierarchies of cgroup v1, or beside it, without a controller.
const WITHOUT_CONTROLLERS: [&str; 2] = ["systemd", "unified"];

/// How long what has died may hold a cgroup.
const GONE_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Puts this process, and those that it makes, into the container's cgroups in the hierarchies that libcontainer leaves
/// alone.
///
/// # Errors
///
/// If the kernel refuses it.
pub fn join(path: &Path, is_systemd: bool) -> Result<(), Failure> {
    if is_unified() || is_systemd {
        return Ok(());
    }
    for hierarchy in WITHOUT_CONTROLLERS.map(|name| Path::new(ROOT).join(name)) {
        if hierarchy.join("cgroup.procs").exists() {
            let own = hierarchy.join(relative(path));
            fs::create_dir_all(&own).map_err(|source| Failure::io(&own, source))?;
            let members = own.join("cgroup.procs");
            fs::write(&members, "0").map_err(|source| Failure::io(&members, source))?;
        }
    }
    Ok(())
}

/// Where a container's own cgroups may be; none where systemd makes and removes them.
pub fn own(path: &Path, is_systemd: bool) -> Vec<PathBuf> {
    if is_systemd {
        return Vec::new();
    }
    if is_unified() {
        return vec![Path::new(ROOT).join(relative(path))];
    }
    let hierarchies = fs::read_dir(ROOT).into_iter().flatten().flatten();
    let own = hierarchies.map(|hierarchy| hierarchy.path().join(relative(path)));
    own.filter(|own| own.is_dir()).collect()
}

/// Whether cgroups are v2 alone.
pub fn is_unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Removes what a container has made below its own cgroups.
///
/// # Errors
///
/// If something lives there.
pub fn remove_below(own: &[PathBuf]) -> Result<(), Failure> {
    own.iter()
        .try_for_each(|cgroup| remove(&children_of(cgroup)))
}

/// Removes cgroups, with those below.
///
/// # Errors
///
/// If something lives there.
pub fn remove(cgroups: &[PathBuf]) -> Result<(), Failure> {
    cgroups.iter().try_for_each(|cgroup| {
        remove(&children_of(cgroup))?;
        remove_alone(cgroup)
    })
}

fn children_of(cgroup: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cgroup).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}

fn remove_alone(cgroup: &Path) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        match fs::remove_dir(cgroup) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(_) if began.elapsed() < GONE_WITHIN => sleep(LOOK_EVERY),
            removed => return removed.map_err(|source| Failure::io(cgroup, source)),
        }
    }
}
