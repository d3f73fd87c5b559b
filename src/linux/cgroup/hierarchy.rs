//! The cgroup hierarchies of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cgroups_rs::fs::Controllers;
use cgroups_rs::fs::hierarchies::UNIFIED_MOUNTPOINT;
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

/// Controllers of cgroup v1 whose hierarchies the shim uses. `devices` is one of them because runc
/// looks there for a container's processes.
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

/// The cgroup versions of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    V1,
    /// v1, with an additional v2 hierarchy that has no controllers.
    Hybrid,
    V2,
}

/// The mounted hierarchies, which do not change while the machine runs.
#[derive(Debug)]
pub(super) enum Hierarchy {
    /// The v1 controllers, each with its mount.
    V1(Vec<(Controllers, Mount)>),
    V2,
}

/// The mount of a cgroup hierarchy, v1 or v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    point: PathBuf,
    /// The cgroup that the mount point shows. Inside a container this is not the root cgroup.
    root: PathBuf,
    /// Controllers and other mount options, separated by commas.
    options: String,
}

impl Layout {
    /// Detects the layout at a mount point; `None` without cgroups. Recognizes v1 by the hierarchy
    /// `devices`, because `memory` is missing with the kernel option `cgroup_disable=memory`.
    pub fn at(mount: &Path) -> Option<Layout> {
        let is_v2 = |path: &Path| {
            statfs(path).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
        };
        match (is_v2(mount), is_v2(&mount.join("unified"))) {
            (true, _) => Some(Layout::V2),
            (false, true) => Some(Layout::Hybrid),
            (false, false) => mount.join("devices").is_dir().then_some(Layout::V1),
        }
    }

    /// True if the hierarchy at a mount point is mounted with this option.
    pub fn has_option(mount: &Path, option: &str) -> bool {
        let mut mounts = mounted().into_iter();
        mounts.any(|found| found.point == mount && found.has(option))
    }

    pub fn here() -> Option<Layout> {
        Layout::at(unified())
    }
}

impl Hierarchy {
    /// Returns the hierarchies. They are read only once, because the table of mounts is long on a
    /// node with many pods.
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

    /// Mount of a v1 controller.
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
    /// Converts a path in `/proc/<pid>/cgroup` to a path relative to the mount point.
    pub fn below<'a>(&self, path: &'a str) -> &'a Path {
        let path = Path::new(path);
        let below = path.strip_prefix(&self.root);
        below.unwrap_or_else(|_| path.strip_prefix("/").unwrap_or(path))
    }

    /// Directory of a cgroup with this path relative to the mount point.
    pub fn directory(&self, below: &Path) -> PathBuf {
        self.point.join(below)
    }

    fn has(&self, controller: &str) -> bool {
        self.options.split(',').any(|option| option == controller)
    }
}

/// Root of the v2 hierarchy.
pub(super) fn unified() -> &'static Path {
    Path::new(UNIFIED_MOUNTPOINT)
}

/// Reads the mounts of all hierarchies.
pub(super) fn mounted() -> Vec<Mount> {
    mounted_in(&fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
}

/// Parses `/proc/<pid>/mountinfo` (`proc_pid_mountinfo(5)`).
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
    fn a_cgroups_directory_is_found_below_the_mounted_root() {
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
    fn mounts_of_both_versions_are_parsed() {
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
