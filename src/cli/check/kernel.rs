//! Checks of the kernel: the system calls and files that the shim uses, and that not every kernel
//! has.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, openat2};

use usher_linux::cgroup::Layout;
use usher_linux::reaper::LIST_OF_CHILDREN;
use usher_linux::sys;

use super::finding::{Code, Finding, Group, Subject};

const KERNEL: Subject = Subject::new(Group::Node, "kernel");

/// A part of the kernel's interface that older kernels lack.
struct Feature {
    name: &'static str,
    /// The first version of Linux that has the feature.
    since: &'static str,
    is_missing: fn() -> bool,
}

/// Optional features of the kernel, which the shim uses if they exist. docs/troubleshooting.md says
/// what does not work without each of them.
const FEATURES: [Feature; 4] = [
    Feature {
        name: "pidfd_open",
        since: "5.3",
        is_missing: || sys::hold(std::process::id()).is_err_and(|error| is_unknown(&error)),
    },
    Feature {
        name: "openat2",
        since: "5.6",
        is_missing: || {
            let how = OpenHow::new().flags(OFlag::O_PATH | OFlag::O_CLOEXEC);
            openat2(AT_FDCWD, "/", how).is_err_and(|error| error == Errno::ENOSYS)
        },
    },
    Feature {
        name: "mount_setattr",
        since: "5.12",
        is_missing: || {
            // The call fails on every kernel, because this file is no user namespace. The error
            // tells whether the kernel has the system call.
            fs::File::open("/proc/self/status").is_ok_and(|file| {
                let outcome = sys::mounts::map_owners(file.as_fd(), file.as_fd(), 0);
                outcome.is_err_and(|error| is_unknown(&error))
            })
        },
    },
    Feature {
        name: "cgroup.kill",
        since: "5.14",
        is_missing: || lacks_cgroup_kill(Path::new("/sys/fs/cgroup")),
    },
];

pub(super) fn findings() -> Vec<Finding> {
    let missing = FEATURES
        .iter()
        .filter(|feature| (feature.is_missing)())
        .collect();
    let features = features(&release(), missing);
    features
        .into_iter()
        .chain(list_of_children(Path::new(LIST_OF_CHILDREN)))
        .collect()
}

/// Warns about features that the kernel lacks.
fn features(release: &str, missing: Vec<&Feature>) -> Option<Finding> {
    let newest = missing.last()?.since;
    let names = missing.iter().map(|feature| feature.name);
    let names = names.collect::<Vec<_>>().join(", ");
    let says = format!(
        "Linux {release} lacks {names}: pods run, but the shim cannot do everything; expected Linux \
         {newest} or later"
    );
    Some(KERNEL.warning(Code::Kernel, says))
}

/// Warns if the kernel does not list the children of a thread. `list_of_children` is the path of
/// such a list in /proc.
fn list_of_children(list_of_children: &Path) -> Option<Finding> {
    (!list_of_children.exists()).then(|| {
        KERNEL.warning(
            Code::Kernel,
            format!(
                "{} is missing: pods run, but after a container's first process exits, the pod's shim \
                 searches all processes of the node, at most every 5 s; expected a kernel with \
                 CONFIG_PROC_CHILDREN",
                list_of_children.display()
            ),
        )
    })
}

fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim().to_owned()
}

fn is_unknown(error: &std::io::Error) -> bool {
    Errno::from_raw(error.raw_os_error().unwrap_or_default()) == Errno::ENOSYS
}

/// True if cgroups of version 2 have no file `cgroup.kill`. The root cgroup never has this file.
fn lacks_cgroup_kill(mount: &Path) -> bool {
    if Layout::at(mount) != Some(Layout::V2) {
        return false;
    }
    let entries = fs::read_dir(mount).into_iter().flatten().flatten();
    let mut cgroups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    cgroups
        .next()
        .is_some_and(|cgroup| !cgroup.path().join("cgroup.kill").exists())
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn the_warning_about_a_kernel_without_lists_of_children_names_its_setting() {
        assert_eq!(
            list_of_children(Path::new("/proc/thread-self/status")),
            None
        );
        let finding = list_of_children(Path::new("/proc/thread-self/no-such-list")).unwrap();
        assert_eq!(finding.level, Level::Warning);
        let named = ["/proc/thread-self/no-such-list", "CONFIG_PROC_CHILDREN"];
        assert!(named.iter().all(|name| finding.says.contains(name)));
    }

    #[test]
    fn an_old_kernel_is_a_warning_that_names_the_kernel_to_use() {
        assert_eq!(features("6.1.0", Vec::new()), None);
        let missing = FEATURES.iter().take(2).collect();
        let says = features("4.18.0-553", missing).unwrap().says;
        assert!(
            says.starts_with("Linux 4.18.0-553 lacks pidfd_open, openat2:"),
            "{says}"
        );
        assert!(says.ends_with("expected Linux 5.6 or later"), "{says}");
    }

    #[test]
    fn the_manual_says_what_does_not_work_without_each_feature() {
        let page = include_str!("../../../docs/troubleshooting.md");
        let (_, part) = page.split_once("\n### kernel\n").unwrap();
        let part = part.split("\n### ").next().unwrap();
        for Feature { name, since, .. } in &FEATURES {
            let row = format!("\n| `{name}` | {since} | ");
            assert!(part.contains(&row), "{row}");
        }
    }
}
