//! What libcontainer leaves out of mounts, done when all of them are there and the container's files are the root.
//!
//! It does not say with whom a mount shares what is mounted below it later, and mounts cgroups of v1, and `/dev`, to be
//! written whatever is asked for.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libcontainer::oci_spec::runtime::{Linux, Mount, Spec};
use libcontainer::syscall::linux::MountOption;
use nix::libc;

use crate::error::Failure;
use crate::sys;

/// Where devices are.
pub const DEV: &str = "/dev";

/// What may be mounted over files of `/proc`: runc's list, for what shows a container its own figures.
pub const OVER_PROC: [&str; 10] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/uptime",
    "/proc/loadavg",
    "/proc/slabinfo",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/crypto/fips_enabled",
];

/// Options that say who shares later mounts (`mount_namespaces(7)`): the word, its number, and whether it is meant for
/// all that is mounted below as well.
const PROPAGATIONS: [(&str, libc::c_ulong, bool); 8] = [
    ("private", libc::MS_PRIVATE, false),
    ("rprivate", libc::MS_PRIVATE, true),
    ("slave", libc::MS_SLAVE, false),
    ("rslave", libc::MS_SLAVE, true),
    ("shared", libc::MS_SHARED, false),
    ("rshared", libc::MS_SHARED, true),
    ("unbindable", libc::MS_UNBINDABLE, false),
    ("runbindable", libc::MS_UNBINDABLE, true),
];

/// Options that keep something from being done through a mount (`mount_setattr(2)`).
const ATTRIBUTES: [(&str, u64); 4] = [
    ("ro", libc::MOUNT_ATTR_RDONLY),
    ("nosuid", libc::MOUNT_ATTR_NOSUID),
    ("nodev", libc::MOUNT_ATTR_NODEV),
    ("noexec", libc::MOUNT_ATTR_NOEXEC),
];

/// Options that mean all that is mounted below as well (`mount_setattr(2)`), which libcontainer does not list.
const RECURSIVE: [&str; 7] = [
    "rro",
    "rnosuid",
    "rnodev",
    "rnoexec",
    "rnodiratime",
    "rnoatime",
    "rnosymfollow",
];

/// All options of mounts that mean something; of others a file system may know some.
pub fn known_options() -> Vec<String> {
    let mut known = MountOption::known_options();
    known.retain(|option| !OF_OTHER_OWNERS.contains(&option.as_str()));
    known.extend(RECURSIVE.map(str::to_owned));
    known
}

/// Options that ask for other owners, which only user namespaces do.
const OF_OTHER_OWNERS: [&str; 2] = ["idmap", "ridmap"];

/// What is to be done to a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    at: CString,
    attributes: u64,
    propagation: u64,
    recursive: bool,
}

impl Change {
    /// Does it, in the container.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub fn make(&self) -> Result<(), Failure> {
        let changed =
            sys::change_mount(&self.at, self.recursive, self.attributes, self.propagation);
        changed.map_err(|error| Failure::Library(format!("mount at {:?}: {error}", self.at)))
    }
}

/// What is to be done in a container of `spec`, in this order.
///
/// # Errors
///
/// If a path cannot be one.
pub fn changes(spec: &Spec) -> Result<Vec<Change>, Failure> {
    spec.mounts()
        .iter()
        .flatten()
        .flat_map(changes_of)
        .collect()
}

fn changes_of(mount: &Mount) -> Vec<Result<Change, Failure>> {
    let options = mount.options().iter().flatten();
    let at = mount.destination();
    let change = |attributes, propagation, recursive| {
        let at = CString::new(at.as_os_str().as_bytes()).map_err(|error| {
            Failure::Refused(format!(
                "mount at {}: {error}",
                mount.destination().display()
            ))
        })?;
        Ok(Change {
            at,
            attributes,
            propagation,
            recursive,
        })
    };
    let is_cgroup = mount.typ().as_deref() == Some("cgroup");
    let mut changes = Vec::new();
    if is_cgroup || at == Path::new(DEV) {
        let known = ATTRIBUTES
            .iter()
            .filter(|(word, _)| options.clone().any(|option| option == word));
        let attributes = known.fold(0, |all, (_, attribute)| all | attribute);
        if attributes != 0 {
            // Each hierarchy of cgroups is a mount of its own below.
            changes.push(change(attributes, 0, is_cgroup));
        }
    }
    for option in options {
        if let Some((_, number, recursive)) =
            PROPAGATIONS.iter().find(|(word, _, _)| word == option)
        {
            changes.push(change(0, *number, *recursive));
        }
    }
    changes
}

/// The first mount of a process, as `/proc/PID/mountinfo` tells them (`proc(5)`), that is at or below `/proc` and not to
/// be there: a link in an image may have led one there.
pub fn stray_over_proc<'a>(mountinfo: &'a str, linux: &Linux) -> Option<&'a str> {
    let covered = [linux.masked_paths(), linux.readonly_paths()];
    let covered: Vec<&Path> = covered
        .into_iter()
        .flatten()
        .flatten()
        .map(Path::new)
        .collect();
    mountinfo.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let at = Path::new(before.split(' ').nth(4)?);
        let is_proc = at == Path::new("/proc") && after.starts_with("proc ");
        let is_meant = OVER_PROC.iter().any(|over| at == Path::new(over)) || covered.contains(&at);
        (at.starts_with("/proc") && !is_proc && !is_meant).then_some(at.to_str()?)
    })
}

/// The directories at `/dev` in which devices are made: libcontainer leaves them to be written by anybody.
pub fn directories_of_devices(spec: &Spec) -> Vec<PathBuf> {
    let linux = spec.linux().as_ref();
    let devices = linux
        .and_then(|linux| linux.devices().as_deref())
        .unwrap_or_default();
    let above = devices
        .iter()
        .flat_map(|device| device.path().ancestors().skip(1));
    let below_dev = above.filter(|path| path.starts_with(DEV) && *path != Path::new(DEV));
    let directories: BTreeSet<_> = below_dev.map(Path::to_owned).collect();
    directories.into_iter().collect()
}

/// The word that libcontainer has for a propagation of all mounts; it means those below as well.
pub fn word_for(propagation: &str) -> &str {
    match propagation {
        "rprivate" => "private",
        "rslave" => "slave",
        "rshared" => "shared",
        "runbindable" => "unbindable",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(mount: serde_json::Value) -> Vec<Change> {
        let spec = json!({ "ociVersion": "1.1.0", "mounts": [mount] });
        changes(&serde_json::from_value(spec).unwrap()).unwrap()
    }

    fn change(at: &str, attributes: u64, propagation: u64, recursive: bool) -> Change {
        Change {
            at: CString::new(at).unwrap(),
            attributes,
            propagation,
            recursive,
        }
    }

    #[test]
    fn directories_of_devices_are_those_between_them_and_dev() {
        let of = |path: &str| {
            let device = json!({ "path": path, "type": "c", "major": 1, "minor": 3 });
            let spec = json!({ "ociVersion": "1.1.0", "linux": { "devices": [device] } });
            directories_of_devices(&serde_json::from_value(spec).unwrap())
        };
        assert_eq!(of("/dev/null"), Vec::<PathBuf>::new());
        assert_eq!(of("/dev/a/b/c"), ["/dev/a", "/dev/a/b"].map(PathBuf::from));
    }

    #[test]
    fn what_a_link_has_brought_over_proc_is_found() {
        let linux = json!({ "maskedPaths": ["/proc/keys"], "readonlyPaths": ["/proc/sys"] });
        let linux: Linux = serde_json::from_value(linux).unwrap();
        let usual = "1 2 0:1 / / rw - overlay overlay rw\n3 2 0:2 / /proc rw shared:1 - proc proc rw\n\
             4 3 0:3 /sys /proc/sys ro - proc proc rw\n5 3 0:4 /null /proc/keys rw - tmpfs tmpfs rw\n\
             6 3 0:5 / /proc/meminfo rw - fuse lxcfs rw\n7 2 0:6 / /process rw - tmpfs tmpfs rw\n";
        assert_eq!(stray_over_proc(usual, &linux), None);
        for stray in ["/proc/self/attr", "/proc"] {
            let more = format!("{usual}8 3 0:7 / {stray} rw - tmpfs tmpfs rw\n");
            assert_eq!(stray_over_proc(&more, &linux), Some(stray));
        }
    }

    #[test]
    fn what_is_left_out_is_done() {
        for (mount, expected) in [
            (
                json!({ "destination": "/data", "type": "bind", "source": "/a", "options": ["rbind", "rprivate", "ro"] }),
                vec![change("/data", 0, libc::MS_PRIVATE, true)],
            ),
            (
                json!({ "destination": "/data", "source": "/a", "options": ["bind", "shared"] }),
                vec![change("/data", 0, libc::MS_SHARED, false)],
            ),
            (
                json!({ "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["nosuid", "ro"] }),
                vec![change(
                    "/sys/fs/cgroup",
                    libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID,
                    0,
                    true,
                )],
            ),
            (
                json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["ro"] }),
                vec![change("/dev", libc::MOUNT_ATTR_RDONLY, 0, false)],
            ),
            (
                json!({ "destination": "/proc", "type": "proc", "source": "proc", "options": ["ro"] }),
                vec![],
            ),
            (
                json!({ "destination": "/run", "type": "tmpfs", "source": "tmpfs" }),
                vec![],
            ),
        ] {
            assert_eq!(of(mount), expected);
        }
    }
}
