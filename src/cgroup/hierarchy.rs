//! Where the machine has its cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cgroups_rs::fs::Controllers;
use cgroups_rs::fs::hierarchies::{UNIFIED_MOUNTPOINT, V1};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// The controllers of version 1 that are read here. In `devices` runc looks for the processes.
const CONTROLLERS: [Controllers; 9] = [
    Controllers::Devices,
    Controllers::Freezer,
    Controllers::Cpu,
    Controllers::CpuAcct,
    Controllers::Mem,
    Controllers::Pids,
    Controllers::BlkIo,
    Controllers::HugeTlb,
    Controllers::Rdma,
];

/// Which versions a machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    V1,
    /// Version 1, and beside its hierarchies one of version 2, which has no controllers.
    Hybrid,
    V2,
}

/// What is mounted, which does not change while the machine runs.
#[derive(Debug)]
pub(super) enum Hierarchy {
    V1(Vec<Mount>),
    V2,
}

/// The hierarchy of one controller.
#[derive(Debug)]
pub(super) struct Mount {
    pub controller: Controllers,
    point: PathBuf,
    /// The cgroup that is seen at the mount point: not the first one in a container.
    root: PathBuf,
}

impl Layout {
    /// What is mounted here; none if nothing is.
    pub fn at(mount: &Path) -> Option<Layout> {
        let is_v2 = |path: &Path| {
            statfs(path).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
        };
        match (is_v2(mount), is_v2(&mount.join("unified"))) {
            (true, _) => Some(Layout::V2),
            (false, true) => Some(Layout::Hybrid),
            (false, false) => mount.join("memory").is_dir().then_some(Layout::V1),
        }
    }

    /// What this machine has.
    pub fn here() -> Option<Layout> {
        Layout::at(unified())
    }
}

impl Hierarchy {
    /// Found out once: the table of mounts is long on a node with many pods.
    pub fn get() -> &'static Hierarchy {
        static HIERARCHY: OnceLock<Hierarchy> = OnceLock::new();
        HIERARCHY.get_or_init(|| match Layout::here() {
            Some(Layout::V2) => Hierarchy::V2,
            _ => {
                let v1 = V1::new();
                let mounts = CONTROLLERS.into_iter().filter_map(|controller| {
                    let (point, root) = v1.get_mount_point(controller.clone())?;
                    Some(Mount {
                        controller,
                        point,
                        root,
                    })
                });
                Hierarchy::V1(mounts.collect())
            }
        })
    }

    /// The mount of a controller of version 1.
    pub fn mount(&self, controller: &Controllers) -> Option<&Mount> {
        match self {
            Hierarchy::V1(mounts) => mounts.iter().find(|mount| mount.controller == *controller),
            Hierarchy::V2 => None,
        }
    }
}

impl Mount {
    /// What comes below the mount point for a path from `/proc/<pid>/cgroup`.
    pub fn below<'a>(&self, path: &'a str) -> &'a Path {
        let path = Path::new(path);
        let below = path.strip_prefix(&self.root);
        below.unwrap_or_else(|_| path.strip_prefix("/").unwrap_or(path))
    }

    pub fn directory(&self, below: &Path) -> PathBuf {
        self.point.join(below)
    }
}

/// The first cgroup of version 2.
pub(super) fn unified() -> &'static Path {
    Path::new(UNIFIED_MOUNTPOINT)
}

/// Where the hierarchies of cgroups are mounted, of either version.
pub(super) fn all_mounted() -> Vec<PathBuf> {
    mounted_in(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

pub(super) fn mounted_in(table: &str) -> Vec<PathBuf> {
    let mounts = table.lines().filter_map(|line| line.split_once(" - "));
    let cgroups = mounts.filter(|(_, what)| what.starts_with("cgroup"));
    cgroups
        .filter_map(|(place, _)| Some(PathBuf::from(place.split(' ').nth(4)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_found_below_what_is_mounted() {
        let mount = |root: &str| Mount {
            controller: Controllers::Mem,
            point: PathBuf::from("/sys/fs/cgroup/memory"),
            root: PathBuf::from(root),
        };
        let expected = Path::new("/sys/fs/cgroup/memory/pod/a");
        for (root, path) in [("/", "/pod/a"), ("/node", "/node/pod/a"), ("/x", "/pod/a")] {
            let mount = mount(root);
            assert_eq!(mount.directory(mount.below(path)), expected);
        }
    }
}
