//! The maker: the process that makes a pod's sandbox, and then becomes the
//! [holder](usher_linux::sys::holder) of its namespaces, unless bind mounts keep them. The maker is
//! the shim's own program in another mode. The shim cannot make the sandbox itself, because a
//! process can only change its own namespaces.
//!
//! The maker has one thread, and none of the shim's memory. While it works it has the shim's rights
//! and access to the node's files. The holder has no rights and no access. The maker's work is
//! charged to the pod's cgroup. The maker also writes the pod's files, so that a stalled disk does
//! not stall the shim.
//!
//! The standard input of maker and holder is the [leash](usher_linux::sys::holder): if the shim
//! dies, the kernel kills them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use caps::{CapSet, CapsHashSet};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::prctl;
use nix::unistd::{
    Gid, Uid, chdir, dup2_stderr, dup2_stdout, pivot_root, setgroups, sethostname, setresgid,
    setresuid,
};
use serde::{Deserialize, Serialize};

use usher_linux::cgroup;
use usher_linux::{PathError, sys};

use super::config::{Namespaces, is_usual, swapped};
use super::error::MakerError;
use super::files::{self, Files};
use super::scope::Scope;

/// First argument that starts the shim's program as the maker.
const MODE: &str = "make-sandbox";

/// First argument that starts the shim's program as the first process of a new PID namespace.
const FIRST: &str = "make-sandbox-first";

/// Path of this program. It works even after the program's file was replaced.
pub(super) const SELF: &str = "/proc/self/exe";

/// OOM score of the holder, the same as of a pause container. Of the pod's processes, the OOM
/// killer chooses the holder last.
const OOM_SCORE: &str = "-998";

/// UID and GID of the holder, the same as of a pause container. No file belongs to them.
const NOBODY: u32 = 65_535;

/// PID that the maker reports if no process has to hold the namespaces.
pub(super) const NOBODYS: i32 = 0;

/// Directory on which the holder's empty root is mounted. `/proc` is used because every node has
/// this directory. The mount also hides the node's processes, which `/proc` lists.
const COVERED: &str = "/proc";

/// The request to make a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Making {
    pub bundle: PathBuf,
    pub namespaces: Namespaces,
    pub files: Files,
    /// Directories of the cgroup for the maker and the holder; empty if both stay in the shim's
    /// cgroup.
    pub cgroup: BTreeSet<PathBuf>,
    /// The systemd unit of this cgroup, if systemd makes the cgroups.
    pub scope: Option<Scope>,
}

/// Builds the maker's command. The maker writes the PID of the process that holds the namespaces to
/// standard output. It writes 0 if no process has to hold them, and an error message if it fails.
/// Then it closes its output. The maker exits when the pipe `leash` is closed.
pub(super) fn command(making: &Making, leash: OwnedFd) -> serde_json::Result<Command> {
    let mut command = Command::new(SELF);
    command.arg(MODE).arg(serde_json::to_string(making)?);
    command.env_clear().stdin(leash).stderr(Stdio::null());
    Ok(command)
}

/// True if `word`, the program's first argument, starts the program as the maker, or as the first
/// process of a new PID namespace, and not as the shim.
pub fn is_mode(word: &OsStr) -> bool {
    word == MODE || word == FIRST
}

pub fn main(arguments: &[OsString]) {
    let made = match arguments {
        [mode, making] if mode == MODE => make(making),
        [mode] if mode == FIRST => Err(hold()),
        _ => Err(MakerError::Arguments),
    };
    if let Err(error) = made {
        let _ = writeln!(io::stdout(), "{error}");
    }
}

/// Makes the sandbox. If this process has to hold the namespaces, it becomes the holder, and the
/// function returns only if that fails. Otherwise the function returns when the sandbox is made, or
/// with an error.
fn make(making: &OsStr) -> Result<(), MakerError> {
    sys::close_all_from(3);
    let mut making: Making =
        serde_json::from_slice(making.as_bytes()).map_err(|error| MakerError::Request {
            request: making.to_owned(),
            error,
        })?;
    obey_the_shim()?;
    // Without the right to lower the score, the process keeps its score.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    enter_cgroup(&mut making)?;
    let Making {
        bundle,
        namespaces: wanted,
        files,
        ..
    } = making;
    files.make(&bundle)?;
    enter(&wanted)?;
    if let Some(hostname) = &wanted.hostname {
        sethostname(hostname).map_err(|error| MakerError::Hostname {
            hostname: hostname.clone(),
            error: error.into(),
        })?;
    }
    set(&wanted.sysctls)?;
    if let Some(pins) = &wanted.pins {
        pin(&wanted, pins)?;
        return say(NOBODYS);
    }
    if !wanted.pid {
        say(std::process::id())?;
        return Err(hold());
    }
    unshare(CloneFlags::CLONE_NEWPID).map_err(MakerError::cannot("make a PID namespace"))?;
    let mut first = Command::new(SELF);
    first.arg(FIRST).env_clear();
    let first = sys::spawn(&mut first).map_err(MakerError::cannot(
        "start the first process of a PID namespace",
    ))?;
    say(first.id())
}

/// Moves this process into the cgroup for the maker and the holder. If the cgroup is a systemd
/// scope, this process executes its own program again inside the scope, and the function does not
/// return.
fn enter_cgroup(making: &mut Making) -> Result<(), MakerError> {
    let cgroup = mem::take(&mut making.cgroup);
    if cgroup.is_empty() {
        return Ok(());
    }
    files::note_cgroup(&making.bundle, &cgroup)?;
    if let Some(scope) = making.scope.take() {
        let error = scope.execute(&[MODE, &serde_json::to_string(making)?]);
        if error.kind() != ErrorKind::NotFound {
            return Err(MakerError::Scope {
                name: scope.name,
                error,
            });
        }
        // The node has no systemd-run, so enter the cgroup without systemd.
    }
    Ok(cgroup::enter(&cgroup)?)
}

/// Makes the kernel kill this process when the shim is gone.
fn obey_the_shim() -> Result<(), MakerError> {
    let obeys = sys::holder::obey(io::stdin().as_fd());
    obeys.map_err(MakerError::cannot("use the shim's leash"))
}

/// Mounts the new namespaces, so that they stay after this process has exited.
fn pin(wanted: &Namespaces, directory: &Path) -> Result<(), MakerError> {
    let made = [(wanted.ipc, "ipc"), (wanted.uts, "uts")];
    fs::create_dir_all(directory).map_err(PathError::cannot("make", directory))?;
    for (_, name) in made.into_iter().filter(|(is_own, _)| *is_own) {
        let path = directory.join(name);
        File::create(&path).map_err(PathError::cannot("make", &path))?;
        let namespace = Path::new("/proc/self/ns").join(name);
        let none: Option<&str> = None;
        mount(Some(&namespace), &path, none, MsFlags::MS_BIND, none)
            .map_err(PathError::cannot("mount a namespace at", &path))?;
    }
    Ok(())
}

fn say(pid: impl Display) -> Result<(), MakerError> {
    writeln!(io::stdout(), "{pid}").map_err(MakerError::cannot("answer"))
}

fn enter(wanted: &Namespaces) -> Result<(), MakerError> {
    if let Some(path) = &wanted.network {
        const ENTER: &str = "enter network namespace";
        let network = File::open(path).map_err(PathError::cannot(ENTER, path))?;
        if wanted.is_in_user_namespace {
            let owner = sys::owner_of_namespace(network.as_fd());
            owner
                .and_then(|owner| Ok(become_root_in(&owner)?))
                .map_err(|error| MakerError::UserNamespace {
                    path: path.clone(),
                    error,
                })?;
        }
        setns(&network, CloneFlags::CLONE_NEWNET).map_err(PathError::cannot(ENTER, path))?;
    }
    let own = [
        (wanted.ipc, CloneFlags::CLONE_NEWIPC),
        (wanted.uts, CloneFlags::CLONE_NEWUTS),
        // If the namespaces are mounted, the mounts must be visible to other processes. So in that
        // case the maker stays in the node's mount namespace.
        (wanted.pins.is_none(), CloneFlags::CLONE_NEWNS),
    ];
    let own = own.into_iter().filter(|(is_own, _)| *is_own);
    let own: CloneFlags = own.map(|(_, flag)| flag).collect();
    unshare(own).map_err(MakerError::cannot("make namespaces"))
}

fn become_root_in(namespace: &OwnedFd) -> nix::Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWUSER)?;
    setresgid(Gid::from_raw(0), Gid::from_raw(0), Gid::from_raw(0))?;
    setresuid(Uid::from_raw(0), Uid::from_raw(0), Uid::from_raw(0))
}

fn set(sysctls: &BTreeMap<String, String>) -> Result<(), MakerError> {
    for (name, value) in sysctls {
        let path = Path::new("/proc/sys").join(swapped(name));
        match fs::write(&path, value) {
            Ok(()) => {}
            // A kernel without IPv6 or unprivileged pings does not have all default sysctls.
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_usual(name) => {}
            Err(error) => {
                return Err(MakerError::Sysctl {
                    name: name.clone(),
                    value: value.clone(),
                    error,
                });
            }
        }
    }
    Ok(())
}

/// Gives up the rights and files that the holder does not need, and replaces this process by the
/// holder. Returns only if a step fails, with the error.
fn hold() -> MakerError {
    let held = confine().and_then(|()| {
        // Call this function after `confine`, which changes the user. The kernel sends SIGIO with
        // the rights that the process has at this call.
        obey_the_shim()?;
        let said = io::stdout().as_fd().try_clone_to_owned();
        let mut said = said.map(File::from).map_err(silence())?;
        let null = open_nothing().map_err(silence())?;
        let silent = dup2_stdout(&null).and_then(|()| dup2_stderr(&null));
        silent.map_err(silence())?;
        let error = sys::holder::become_holder();
        let error = not_held(MakerError::cannot("execute the holder")(error));
        // Standard output has been replaced, so write the error to `said`, which still leads to the
        // shim.
        let _ = writeln!(said, "{error}");
        Ok::<_, MakerError>(error)
    });
    held.unwrap_or_else(not_held)
}

fn not_held(error: MakerError) -> MakerError {
    MakerError::NotHeld(Box::new(error))
}

fn silence<E: Into<io::Error>>() -> impl Fn(E) -> MakerError {
    MakerError::cannot("close its output")
}

/// Opens a descriptor that is connected to nothing, not even to a device of the node.
fn open_nothing() -> io::Result<OwnedFd> {
    let (end, _) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    Ok(end)
}

/// Gives up access to the node's files, and root's rights.
fn confine() -> Result<(), MakerError> {
    let no_root = || MakerError::cannot("make an empty root");
    let none: Option<&str> = None;
    let own = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
    mount(none, "/", none, own, none).map_err(MakerError::cannot("have mounts of its own"))?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC | MsFlags::MS_RDONLY;
    mount(
        Some("none"),
        COVERED,
        Some("tmpfs"),
        flags,
        Some("mode=555,size=4k,nr_inodes=1"),
    )
    .map_err(no_root())?;
    chdir(COVERED).map_err(no_root())?;
    // This call puts the old root over the new root. The next call unmounts the old root
    // (`pivot_root(2)`).
    pivot_root(".", ".").map_err(no_root())?;
    umount2(".", MntFlags::MNT_DETACH).map_err(MakerError::cannot("give up the node's files"))?;
    chdir("/").map_err(no_root())?;
    drop_root()
}

fn drop_root() -> Result<(), MakerError> {
    let ids = || MakerError::cannot("become nobody");
    for capability in caps::read(None, CapSet::Bounding)? {
        caps::drop(None, CapSet::Bounding, capability)?;
    }
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    setgroups(&[]).map_err(ids())?;
    setresgid(group, group, group).map_err(ids())?;
    setresuid(user, user, user).map_err(ids())?;
    let none = CapsHashSet::new();
    for set in [
        CapSet::Ambient,
        CapSet::Effective,
        CapSet::Permitted,
        CapSet::Inheritable,
    ] {
        caps::set(None, set, &none)?;
    }
    prctl::set_no_new_privs().map_err(ids())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_survives_the_makers_command_line() {
        let making = Making {
            bundle: PathBuf::from("/run/b/s1"),
            namespaces: Namespaces {
                network: Some("/run/netns/a".into()),
                hostname: Some("web-0".to_owned()),
                ipc: true,
                ..Namespaces::default()
            },
            files: Files::default(),
            cgroup: BTreeSet::from([PathBuf::from("/sys/fs/cgroup/pod/s1")]),
            scope: None,
        };
        let command = command(&making, open_nothing().unwrap()).unwrap();
        let words: Vec<&OsStr> = command.get_args().collect();
        let read: Making = serde_json::from_slice(words[1].as_bytes()).unwrap();
        assert_eq!(read, making);
    }
}
