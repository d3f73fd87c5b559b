//! The process that makes the namespaces of a pod, and becomes their [holder](crate::sys::holder): this
//! shim's own program in a mode for it, since a process can only leave its own namespaces.
//!
//! It has one thread, and nothing of the shim's memory. As long as it does its work it has the shim's rights
//! and the node's files; the holder has neither.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};

use caps::{CapSet, Capability, CapsHashSet};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::unistd::{
    Gid, Uid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, pivot_root, setgroups, sethostname,
    setresgid, setresuid,
};

use crate::sys;

use super::config::{Namespaces, is_usual, swapped};

/// The first argument of the shim's program that is to make a pod's namespaces.
const MODE: &str = "make-sandbox";

/// The same, for the process that was made as the first one of a process namespace.
const FIRST: &str = "make-sandbox-first";

/// This program, also when its file has been replaced.
const SELF: &str = "/proc/self/exe";

/// As a pause container has it: ended last of all that a pod has.
const OOM_SCORE: &str = "-998";

/// Who it is: nobody who owns anything, as a pause container's program is.
const NOBODY: u32 = 65_535;

/// What is said where no process holds the namespaces.
pub(super) const NOBODYS: u32 = 0;

/// Where a process namespace's own processes would be seen; the holder's root is mounted here, which every
/// node has.
const COVERED: &str = "/proc";

/// The command that makes these namespaces, and is found by the `bundle` in its arguments. It says on its
/// standard output the process that holds them, zero where none has to, or in one sentence why there is none, and closes it.
pub(super) fn command(namespaces: &Namespaces, bundle: &Path) -> serde_json::Result<Command> {
    let mut command = Command::new(SELF);
    command.arg(MODE).arg(serde_json::to_string(namespaces)?);
    command.arg(bundle).env_clear();
    command.stdin(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}

/// Whether these are the arguments of a process that makes or holds the namespaces of the sandbox in
/// `bundle`, as `/proc/<pid>/cmdline` has them.
pub(super) fn is_one(cmdline: &[u8], bundle: &Path) -> bool {
    let mut words = cmdline.split(|byte| *byte == 0);
    let first = words.next();
    let bundle = bundle.as_os_str().as_bytes();
    let is_holder = first == Some(sys::holder::NAME.to_bytes());
    let is_maker = first == Some(SELF.as_bytes())
        && words
            .next()
            .is_some_and(|mode| [MODE.as_bytes(), FIRST.as_bytes()].contains(&mode));
    (is_holder || is_maker) && words.any(|word| word == bundle)
}

/// Whether the first argument of the shim's program has it make namespaces.
pub(crate) fn is_mode(word: &OsStr) -> bool {
    word == MODE || word == FIRST
}

/// Makes the namespaces that the arguments say, as the process's only work.
pub(crate) fn main(arguments: &[OsString]) {
    let made = match arguments {
        [mode, namespaces, bundle] => make(mode == FIRST, namespaces, bundle),
        _ => Err("expected namespaces and a bundle; this is started by usher's shim".to_owned()),
    };
    if let Err(error) = made {
        let _ = writeln!(io::stdout(), "{error}");
    }
}

/// Comes back only if a process of its own holds them, or with why there is none.
fn make(is_first: bool, namespaces: &OsStr, bundle: &OsStr) -> Result<(), String> {
    sys::close_all_from(3);
    let wanted: Namespaces = serde_json::from_slice(namespaces.as_bytes())
        .map_err(|error| format!("namespaces {namespaces:?}: {error}"))?;
    if is_first {
        return Err(hold(true, bundle));
    }
    // Where it may not be lowered it stays what it is.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    enter(&wanted)?;
    if let Some(hostname) = &wanted.hostname {
        sethostname(hostname).map_err(|error| format!("host name {hostname:?}: {error}"))?;
    }
    set(&wanted.sysctls)?;
    if let Some(pins) = &wanted.pins {
        pin(&wanted, pins)?;
        return say(NOBODYS);
    }
    if !wanted.pid {
        say(std::process::id())?;
        return Err(hold(false, bundle));
    }
    unshare(CloneFlags::CLONE_NEWPID).map_err(|error| format!("a process namespace: {error}"))?;
    let mut first = Command::new(SELF);
    first.arg(FIRST).args([namespaces, bundle]).env_clear();
    say(sys::spawn(&mut first)
        .map_err(|error| format!("the first process of a namespace: {error}"))?
        .id())
}

/// Mounts the namespaces that were made, so that they stay when this process has ended.
fn pin(wanted: &Namespaces, directory: &Path) -> Result<(), String> {
    let made = [(wanted.ipc, "ipc"), (wanted.uts, "uts")];
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    for (_, name) in made.into_iter().filter(|(is_own, _)| *is_own) {
        let path = directory.join(name);
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        File::create(&path).map_err(|error| failed(&error))?;
        let namespace = Path::new("/proc/self/ns").join(name);
        let none: Option<&str> = None;
        mount(Some(&namespace), &path, none, MsFlags::MS_BIND, none)
            .map_err(|error| failed(&error))?;
    }
    Ok(())
}

fn say(pid: u32) -> Result<(), String> {
    writeln!(io::stdout(), "{pid}").map_err(|error| error.to_string())
}

fn enter(wanted: &Namespaces) -> Result<(), String> {
    if let Some(path) = &wanted.network {
        let failed = |error: &dyn std::fmt::Display| {
            format!("network namespace {}: {error}", path.display())
        };
        let network = File::open(path).map_err(|error| failed(&error))?;
        if wanted.is_in_user_namespace {
            let owner = sys::owner_of_namespace(network.as_fd());
            become_root_in(&owner.map_err(|error| failed(&error))?)
                .map_err(|error| format!("the user namespace of {}: {error}", path.display()))?;
        }
        setns(&network, CloneFlags::CLONE_NEWNET).map_err(|error| failed(&error))?;
    }
    let own = [
        (wanted.ipc, CloneFlags::CLONE_NEWIPC),
        (wanted.uts, CloneFlags::CLONE_NEWUTS),
        // What is mounted for others to find is mounted where they look.
        (wanted.pins.is_none(), CloneFlags::CLONE_NEWNS),
    ];
    let own = own.into_iter().filter(|(is_own, _)| *is_own);
    let own: CloneFlags = own.map(|(_, flag)| flag).collect();
    unshare(own).map_err(|error| format!("namespaces of its own: {error}"))
}

fn become_root_in(namespace: &OwnedFd) -> nix::Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWUSER)?;
    setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0))?;
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0))
}

fn set(sysctls: &BTreeMap<String, String>) -> Result<(), String> {
    for (name, value) in sysctls {
        let path = Path::new("/proc/sys").join(swapped(name));
        match fs::write(&path, value) {
            Ok(()) => {}
            // Kernels without IPv6, or without pings for everybody, have pods all the same.
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_usual(name) => {}
            Err(error) => return Err(format!("sysctl {name} cannot be {value:?}: {error}")),
        }
    }
    Ok(())
}

/// Gives up all that the holder does not need, and becomes it. Comes back with why that was not possible.
fn hold(is_first: bool, bundle: &OsStr) -> String {
    let held = confine(is_first).and_then(|()| {
        let bundle = CString::new(bundle.as_bytes()).map_err(|error| error.to_string())?;
        let said = io::stdout().as_fd().try_clone_to_owned();
        let mut said = said.map(File::from).map_err(|error| error.to_string())?;
        let null = open_nothing().map_err(|error| error.to_string())?;
        let silent = dup2_stdin(&null)
            .and_then(|()| dup2_stdout(&null))
            .and_then(|()| dup2_stderr(&null));
        silent.map_err(|error| error.to_string())?;
        let error = sys::holder::become_holder(&bundle);
        let _ = writeln!(said, "the holder of the pod's namespaces: {error}");
        Ok::<_, String>(String::new())
    });
    held.unwrap_or_else(|error| format!("the holder of the pod's namespaces: {error}"))
}

/// A descriptor that leads nowhere, not even to a device of the node.
fn open_nothing() -> io::Result<OwnedFd> {
    let (end, _) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    Ok(end)
}

/// Leaves the node's files behind, and the rights of root.
fn confine(is_first: bool) -> Result<(), String> {
    let failed = |what: &'static str| move |error: nix::Error| format!("{what}: {error}");
    let none: Option<&str> = None;
    let own = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(none, "/", none, own, none).map_err(failed("mounts of its own"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY;
    mount(
        Some("none"),
        COVERED,
        Some("tmpfs"),
        flags,
        Some("mode=555,size=4k,nr_inodes=1"),
    )
    .map_err(failed("an empty root"))?;
    chdir(COVERED).map_err(failed("an empty root"))?;
    // The old root comes to lie on the new one, and goes (`pivot_root(2)`).
    pivot_root(".", ".").map_err(failed("an empty root"))?;
    umount2(".", MntFlags::MNT_DETACH).map_err(failed("the node's files"))?;
    chdir("/").map_err(failed("an empty root"))?;
    become_nobody(is_first)
}

/// Whoever is the first process of a namespace may send signals to all in it.
fn become_nobody(is_first: bool) -> Result<(), String> {
    let kept: CapsHashSet = is_first
        .then_some(Capability::CAP_KILL)
        .into_iter()
        .collect();
    let caps = |error: caps::errors::CapsError| format!("capabilities: {error}");
    let ids = |error: nix::Error| format!("user {NOBODY}: {error}");
    for capability in caps::read(None, CapSet::Bounding)
        .map_err(caps)?
        .difference(&kept)
    {
        caps::drop(None, CapSet::Bounding, *capability).map_err(caps)?;
    }
    prctl::set_keepcaps(true).map_err(ids)?;
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[]).map_err(ids)?;
    setresgid(group, group, group).map_err(ids)?;
    setresuid(user, user, user).map_err(ids)?;
    // What is inheritable has to be permitted, and what is ambient both (`capabilities(7)`).
    caps::set(None, CapSet::Effective, &kept).map_err(caps)?;
    caps::set(None, CapSet::Permitted, &kept).map_err(caps)?;
    caps::set(None, CapSet::Inheritable, &kept).map_err(caps)?;
    caps::set(None, CapSet::Ambient, &kept).map_err(caps)?;
    prctl::set_no_new_privs().map_err(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maker_and_a_holder_are_told_by_their_bundle() {
        let bundle = Path::new("/run/b/s1");
        let is = |cmdline: &[u8]| is_one(cmdline, bundle);
        assert!(is(b"usher-sandbox\0/run/b/s1\0"));
        assert!(is(b"/proc/self/exe\0make-sandbox\0{}\0/run/b/s1\0"));
        assert!(is(b"/proc/self/exe\0make-sandbox-first\0{}\0/run/b/s1\0"));
        assert!(!is(b"usher-sandbox\0/run/b/s2\0"));
        assert!(!is(b"runc\0--bundle\0/run/b/s1\0"));
        assert!(!is(b""));
    }

    #[test]
    fn it_is_told_all_that_is_wanted() {
        let namespaces = Namespaces {
            network: Some("/run/netns/a".into()),
            hostname: Some("web-0".to_owned()),
            ipc: true,
            ..Namespaces::default()
        };
        let command = command(&namespaces, Path::new("/run/b/s1")).unwrap();
        let words: Vec<&OsStr> = command.get_args().collect();
        let read: Namespaces = serde_json::from_slice(words[1].as_bytes()).unwrap();
        assert_eq!(read, namespaces);
        assert_eq!(words[2], "/run/b/s1");
    }
}
