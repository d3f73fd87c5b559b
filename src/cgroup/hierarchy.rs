//! Where the machine has its cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cgroups_rs::fs::Controllers;
use cgroups_rs::fs::hierarchies::UNIFIED_MOUNTPOINT;
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
    /// Of each controller that is mounted where.
    V1(Vec<(Controllers, Mount)>),
    V2,
}

/// A hierarchy that is mounted, of either version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    point: PathBuf,
    /// The cgroup that is seen at the mount point: not the first one in a container.
    root: PathBuf,
    /// Its controllers and whatever else it was mounted with, separated by commas.
    options: String,
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
                let mounts = mounted();
                let mounts = CONTROLLERS.into_iter().filter_map(|controller| {
                    let name = controller.to_string();
                    let mount = mounts.iter().find(|mount| mount.has(&name))?;
                    Some((controller, mount.clone()))
                });
                Hierarchy::V1(mounts.collect())
            }
        })
    }

    /// The mount of a controller of version 1.
    pub fn mount(&self, controller: &Controllers) -> Option<&Mount> {
        match self {
            Hierarchy::V1(mounts) => {
                let mut mounts = mounts.iter();
                let found = mounts.find(|(its, _)| its == controller);
                found.map(|(_, mount)| mount)
            }
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

    /// The directory of a cgroup that is so far below the mount point.
    pub fn directory(&self, below: &Path) -> PathBuf {
        self.point.join(below)
    }

    fn has(&self, controller: &str) -> bool {
        self.options.split(',').any(|option| option == controller)
    }
}

/// The first cgroup of version 2.
pub(super) fn unified() -> &'static Path {
    Path::new(UNIFIED_MOUNTPOINT)
}

/// The hierarchies that are mounted now.
pub(super) fn mounted() -> Vec<Mount> {
    mounted_in(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// The same from the text of `/proc/<pid>/mountinfo` (`proc_pid_mountinfo(5)`).
pub(super) fn mounted_in(table: &str) -> Vec<Mount> {
    let mount = |line: &str| {
        let (place, what) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (place.next()?, place.next()?);
        let mut what = what.split(' ');
        what.next()
            .filter(|kind| matches!(*kind, "cgroup" | "cgroup2"))?;
        Some(Mount {
            point: PathBuf::from(point),
            root: PathBuf::from(root),
            options: what.nth(1).unwrap_or_default().to_owned(),
        })
    };
    table.lines().filter_map(mount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_is_found_below_what_is_mounted() {
        let mount = |root: &str| Mount {
            point: PathBuf::from("/sys/fs/cgroup/memory"),
            root: PathBuf::from(root),
            options: "rw,memory".to_owned(),
        };
        let expected = Path::new("/sys/fs/cgroup/memory/pod/a");
        for (root, path) in [("/", "/pod/a"), ("/node", "/node/pod/a"), ("/x", "/pod/a")] {
            let mount = mount(root);
            assert_eq!(mount.directory(mount.below(path)), expected);
        }
    }

    #[test]
    fn the_table_of_mounts_tells_hierarchies_of_both_versions() {
        let table = "\
            31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            32 31 0:29 /node /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
            40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
            41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n\
            cut off";
        let found = mounted_in(table);
        let points: Vec<_> = found
            .iter()
            .map(|mount| mount.directory(Path::new("a")))
            .collect();
        let expected = ["cpu,cpuacct", "systemd", "unified"];
        let expected = expected.map(|name| Path::new("/sys/fs/cgroup").join(name).join("a"));
        assert_eq!(points, expected);
        assert_eq!(found[0].below("/node/a"), Path::new("a"));
        let having = |name| found.iter().position(|mount| mount.has(name));
        assert_eq!(having("cpuacct"), Some(0));
        assert_eq!(having("name=systemd"), Some(1));
        assert_eq!(having("memory"), None);
    }
}
