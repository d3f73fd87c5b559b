//! What is not made: what libcontainer leaves out, or does weaker than runc.

use std::fs;
use std::path::{Component, Path};

use libcontainer::oci_spec::runtime::{
    Hooks, Linux, LinuxNamespaceType, LinuxPersonality, LinuxResources, LinuxSeccomp,
    LinuxSeccompAction, Mount, Process, Spec,
};

use crate::cgroups;
use crate::error::Failure;
use crate::mounts::{DEV, OVER_PROC, known_options};

/// Refuses it, by the first thing that cannot be given.
///
/// # Errors
///
/// If there is one.
pub fn refuse(spec: &Spec, bundle: &Path, is_systemd: bool) -> Result<(), Failure> {
    let Some(linux) = spec.linux() else {
        return Err(Failure::Refused(
            "config.json has no linux, expected a container of Linux".into(),
        ));
    };
    let mounts = spec.mounts().as_deref().unwrap_or_default();
    let refused = is_systemd
        .then(|| of_scope(linux))
        .flatten()
        .or_else(|| of_linux(linux))
        .or_else(|| of_resources(linux.resources().as_ref()?))
        .or_else(|| of_seccomp(linux.seccomp().as_ref()?))
        .or_else(|| of_hooks(spec.hooks().as_ref()?))
        .or_else(|| mounts.iter().find_map(of_mount))
        .or_else(|| of_cgroup_mount(linux, mounts))
        .or_else(|| of_devices(linux, mounts))
        .or_else(|| of_root(spec, bundle))
        .or_else(|| of_process(spec.process().as_ref()?));
    said(refused)?;
    spec.process().as_ref().map_or(Ok(()), expect_absolute_cwd)
}

/// The same of a process that is executed in a container.
///
/// # Errors
///
/// If there is one.
pub fn refuse_process(process: &Process) -> Result<(), Failure> {
    said(of_process(process))?;
    expect_absolute_cwd(process)
}

/// libcontainer takes any, while the specification, and runc, do not.
fn expect_absolute_cwd(process: &Process) -> Result<(), Failure> {
    let cwd = process.cwd();
    // Without one it is the root, as with runc.
    match cwd.as_os_str().is_empty() || cwd.is_absolute() {
        true => Ok(()),
        false => Err(Failure::Refused(format!(
            "process.cwd is {:?}, expected an absolute path",
            cwd.display()
        ))),
    }
}

fn said(refused: Option<String>) -> Result<(), Failure> {
    match refused {
        None => Ok(()),
        Some(what) => Err(Failure::Refused(format!(
            "{what}: libcontainer cannot give it, use runc"
        ))),
    }
}

fn of_scope(linux: &Linux) -> Option<String> {
    let path = linux.cgroups_path().as_deref().unwrap_or(Path::new(""));
    let is_named = path.as_os_str().is_empty() || cgroups::scope(path).is_some();
    match (cgroups::has_systemd(), is_named) {
        (false, _) => {
            Some("cgroups of systemd's (SystemdCgroup) without it or on cgroup v1".into())
        }
        (_, false) => Some(format!(
            "cgroups of systemd's (SystemdCgroup) at {}, which is no slice:prefix:name",
            path.display()
        )),
        (true, true) => None,
    }
}

fn of_linux(linux: &Linux) -> Option<String> {
    let namespaces = linux.namespaces().as_deref().unwrap_or_default();
    let count = |kind| {
        namespaces
            .iter()
            .filter(|namespace| namespace.typ() == kind)
            .count()
    };
    let has_flags = |personality: &LinuxPersonality| {
        personality
            .flags()
            .as_ref()
            .is_some_and(|flags| !flags.is_empty())
    };
    let path = linux.cgroups_path().as_deref().unwrap_or(Path::new(""));
    let is_odd =
        path == Path::new("/") || path.components().any(|part| part == Component::ParentDir);
    let what = if count(LinuxNamespaceType::User) > 0 {
        // What is executed in it would be in the node's.
        "a user namespace (hostUsers: false)"
    } else if count(LinuxNamespaceType::Mount) == 0 {
        "a container in the node's mount namespace"
    } else if namespaces
        .iter()
        .any(|namespace| count(namespace.typ()) > 1)
    {
        "two namespaces of a kind"
    } else if linux
        .mount_label()
        .as_ref()
        .is_some_and(|label| !label.is_empty())
    {
        "an SELinux label of mounts (linux.mountLabel)"
    } else if linux.intel_rdt().is_some() {
        "Intel RDT (linux.intelRdt)"
    } else if linux.personality().as_ref().is_some_and(has_flags) {
        "flags of a personality (linux.personality.flags)"
    } else if is_odd {
        return Some(format!("a cgroup at {}", path.display()));
    } else {
        return None;
    };
    Some(what.to_owned())
}

fn of_resources(resources: &LinuxResources) -> Option<String> {
    if resources
        .rdma()
        .as_ref()
        .is_some_and(|rdma| !rdma.is_empty())
    {
        return Some("limits of RDMA (linux.resources.rdma)".to_owned());
    }
    if !cgroups::is_unified()
        && resources
            .unified()
            .as_ref()
            .is_some_and(|unified| !unified.is_empty())
    {
        return Some("files of cgroup v2 on cgroup v1 (linux.resources.unified)".to_owned());
    }
    // It would hold for who asks for nothing but what is denied.
    let is_partial = |access: &str| !["r", "w", "m"].iter().all(|letter| access.contains(letter));
    let mut rules = resources.devices().iter().flatten();
    let denies_in_part = rules.any(|rule| {
        let access = rule.access().as_deref().unwrap_or_default();
        access.is_empty() || (!rule.allow() && is_partial(access))
    });
    denies_in_part.then(|| {
        "a rule of devices that denies in part, or nothing (linux.resources.devices)".to_owned()
    })
}

fn of_seccomp(seccomp: &LinuxSeccomp) -> Option<String> {
    let notifies = |action| action == LinuxSeccompAction::ScmpActNotify;
    let mut rules = seccomp.syscalls().iter().flatten();
    let asks = notifies(seccomp.default_action()) || rules.any(|rule| notifies(rule.action()));
    asks.then(|| "a seccomp agent (SCMP_ACT_NOTIFY)".to_owned())
}

/// They are told of libcontainer's own document, or run without the filter of system calls.
fn of_hooks(hooks: &Hooks) -> Option<String> {
    let kinds = [
        ("prestart", hooks.prestart()),
        ("createRuntime", hooks.create_runtime()),
        ("createContainer", hooks.create_container()),
        ("startContainer", hooks.start_container()),
    ];
    let mut given = kinds
        .iter()
        .filter(|(_, hooks)| hooks.as_ref().is_some_and(|hooks| !hooks.is_empty()));
    given
        .next()
        .map(|(kind, _)| format!("a hook that runs before the program (hooks.{kind})"))
}

fn of_mount(mount: &Mount) -> Option<String> {
    let at = mount.destination();
    let options = mount.options().as_deref().unwrap_or_default();
    let is_bind = mount.typ().as_deref() == Some("bind")
        || options
            .iter()
            .any(|option| option == "bind" || option == "rbind");
    // Devices and links are made there by path, before the container's files are the root.
    if at == Path::new(DEV) && (is_bind || mount.typ().as_deref() != Some("tmpfs")) {
        return Some("a mount at /dev that is no tmpfs".to_owned());
    }
    if !at.is_absolute() {
        return Some(format!("a mount at {at:?}, which is no absolute path"));
    }
    if at == Path::new("/") {
        return Some("a mount at /".to_owned());
    }
    if !at
        .components()
        .all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
    {
        return Some(format!("a mount at {}, which goes up", at.display()));
    }
    if at.starts_with("/proc") {
        let is_proc =
            at == Path::new("/proc") && !is_bind && mount.typ().as_deref() == Some("proc");
        if !is_proc && !OVER_PROC.iter().any(|allowed| at == Path::new(allowed)) {
            return Some(format!("a mount at {}", at.display()));
        }
    }
    let has = |mappings: &Option<Vec<_>>| {
        mappings
            .as_ref()
            .is_some_and(|mappings| !mappings.is_empty())
    };
    if has(mount.uid_mappings()) || has(mount.gid_mappings()) {
        return Some(format!("a mount with other owners, at {}", at.display()));
    }
    let known = known_options();
    let is_lost = |option: &&String| {
        ["sync", "dirsync", "tmpcopyup"].contains(&option.as_str())
            || (is_bind && *option != "nosymfollow" && !known.contains(option))
    };
    let lost = options.iter().find(is_lost);
    lost.map(|option| format!("the option {option:?} of the mount at {}", at.display()))
}

/// libcontainer looks for the container's own cgroups by a process that is another one there.
fn of_cgroup_mount(linux: &Linux, mounts: &[Mount]) -> Option<String> {
    let namespaces = linux.namespaces().as_deref().unwrap_or_default();
    let is_new = |kind| {
        namespaces.iter().any(|namespace| {
            let path = namespace.path().as_deref().unwrap_or(Path::new(""));
            namespace.typ() == kind && path.as_os_str().is_empty()
        })
    };
    let has_cgroups = mounts
        .iter()
        .any(|mount| mount.typ().as_deref() == Some("cgroup"));
    let sees_others = !is_new(LinuxNamespaceType::Cgroup) && !is_new(LinuxNamespaceType::Pid);
    (has_cgroups && sees_others && !cgroups::is_unified()).then(|| {
        "a mount of cgroups in the PID namespace of others, on cgroup v1 without a cgroup namespace".to_owned()
    })
}

fn of_devices(linux: &Linux, mounts: &[Mount]) -> Option<String> {
    let devices = linux.devices().as_deref().unwrap_or_default();
    let is_own = |path: &Path| {
        let mut parts = path.components();
        path.starts_with(DEV)
            && parts.all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
    };
    // Somebody else may change what is mounted there.
    let is_over = |path: &Path| {
        mounts.iter().any(|mount| {
            mount.destination() != Path::new(DEV) && path.starts_with(mount.destination())
        })
    };
    let mut odd = devices
        .iter()
        .filter(|device| !is_own(device.path()) || is_over(device.path()));
    odd.next().map(|device| {
        format!(
            "a device at {}, which is not in the container's own /dev",
            device.path().display()
        )
    })
}

fn of_root(spec: &Spec, bundle: &Path) -> Option<String> {
    let dev = bundle.join(spec.root().as_ref()?.path()).join("dev");
    let is_link = fs::symlink_metadata(dev).is_ok_and(|stat| stat.is_symlink());
    is_link.then(|| "an image whose /dev is a link".to_owned())
}

fn of_process(process: &Process) -> Option<String> {
    let has_label = process
        .selinux_label()
        .as_ref()
        .is_some_and(|label| !label.is_empty());
    has_label.then(|| "an SELinux label (process.selinuxLabel)".to_owned())
}
