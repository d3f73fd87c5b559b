//! Finds what a shim leaves behind, and removes it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Containerd, Status, cri, poll, run};

/// Time that a shim may take to exit after its last task is deleted.
const SETTLING: Duration = Duration::from_secs(5);

/// Mounts that existed before the test's first container, and leaks that the test tolerates.
pub struct Leftovers {
    mounts: BTreeSet<String>,
    tolerated: Mutex<Vec<String>>,
}

impl Leftovers {
    pub fn new(daemon: u32) -> Self {
        let table = fs::read_to_string(format!("/proc/{daemon}/mountinfo")).unwrap_or_default();
        Self {
            mounts: mount_points(&table),
            tolerated: Mutex::default(),
        }
    }
}

impl Containerd {
    /// Traces of this test's containers: processes, mounts, cgroups and files. The list is empty
    /// when all containers are deleted and the shims have cleaned up.
    pub fn remains(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        found.extend(
            processes(self)
                .into_iter()
                .map(|(pid, what)| format!("process {pid} {what}")),
        );
        let mounts = current_mounts(self);
        found.extend(
            mounts
                .difference(&self.leftovers.mounts)
                .map(|at| format!("mount {at}")),
        );
        found.extend(
            cgroups(&self.name)
                .iter()
                .map(|dir| format!("cgroup {}", dir.display())),
        );
        found.extend(
            files(self)
                .iter()
                .map(|path| format!("file {}", path.display())),
        );
        let tolerated = self.leftovers.tolerated.lock().unwrap();
        found.retain(|what| !tolerated.iter().any(|part| what.contains(part)));
        found
    }

    /// Makes the test accept leaks whose description contains `part`.
    pub fn tolerate(&self, part: &str) {
        self.leftovers
            .tolerated
            .lock()
            .unwrap()
            .push(part.to_owned());
    }

    /// Deletes every task and container. Waits up to `SETTLING` for their traces to disappear, and
    /// returns the traces that remain.
    pub fn delete_all(&self) -> Vec<String> {
        let tasks = self.ctr(&["tasks", "list", "--quiet"]).out();
        // Kill all containers before waiting for the exit of any, as a caller that stops a pod
        // does.
        for id in tasks.lines() {
            self.ctr(&["tasks", "kill", "--all", "--signal", "KILL", id]);
        }
        for id in tasks.lines() {
            self.ctr(&["tasks", "delete", "--force", id]);
        }
        let containers = self.ctr(&["containers", "list", "--quiet"]).out();
        for id in containers.lines() {
            self.ctr(&["containers", "delete", id]);
        }
        poll(SETTLING, || self.remains().is_empty().then_some(()));
        self.remains()
    }
}

/// Deletes the test's containers through containerd. Starts containerd first if it is down. Returns
/// the traces that remain.
pub fn clean(host: &Containerd) -> Vec<String> {
    if host.pid().is_none() {
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| host.start_again()));
        if again.is_err() {
            return vec!["containerd did not start again".to_owned()];
        }
    }
    let mut problems = Vec::new();
    // This runs in a destructor, where a second panic would end all tests.
    for look in [await_no_zombies, Containerd::delete_all] {
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| look(host)));
        problems.extend(found.unwrap_or_else(|_| vec!["containerd does not answer".to_owned()]));
    }
    problems
}

/// Waits until the shims have collected their zombies. Returns the zombies that remain.
fn await_no_zombies(host: &Containerd) -> Vec<String> {
    let zombies = || -> Vec<String> {
        let shims = host.shims().into_iter();
        let reserved_pids = reserved_pids(host);
        let of = |shim| zombies(shim).into_iter().map(move |pid| (shim, pid));
        let text = |(shim, pid)| format!("zombie {pid} of shim {shim}");
        let is_left = |(_, pid): &(u32, u32)| !reserved_pids.contains(pid);
        shims.flat_map(of).filter(is_left).map(text).collect()
    };
    match poll(SETTLING, || zombies().is_empty().then_some(())) {
        Some(()) => Vec::new(),
        None => zombies(),
    }
}

/// Ids of the first processes of containers that the shim has restarted in place. containerd got
/// these ids from Create. The processes have exited, but the shim keeps them as zombies, so that
/// the kernel does not use the ids again.
fn reserved_pids(host: &Containerd) -> Vec<u32> {
    let tasks = host.tasks();
    let events = host.events();
    let created = events.iter().filter(|event| event.topic == "/tasks/create");
    let pids = created.filter_map(|event| {
        let pid = u32::try_from(event.data["pid"].as_u64()?).ok()?;
        let task = tasks.iter().find(|task| task.id == event.container())?;
        let outlived = task.pid != pid || task.status == Status::Running;
        outlived.then_some(pid)
    });
    pids.collect()
}

/// Children of a shim that have exited and were not collected.
pub fn zombies(shim: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{shim}/task/{shim}/children"));
    let children = children.unwrap_or_default();
    let pids = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    pids.filter(|pid| process_state(*pid) == Some('Z'))
        .collect()
}

/// State of a process, as the letter that the kernel shows (`proc_pid_stat(5)`). `None` if the
/// process does not exist.
pub fn process_state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.chars().next()
}

/// Removes all traces of the test by force, after containerd has exited.
pub fn raze(host: &Containerd) {
    for _ in 0..50 {
        let alive = processes(host);
        if alive.is_empty() {
            break;
        }
        for (pid, _) in alive {
            let _ = signal(pid, Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    // Unmount in the test's mount namespace, the deepest mount first, because a process that
    // remains may keep this namespace and its mounts alive.
    let mounts = current_mounts(host);
    let ours: Vec<&String> = mounts.difference(&host.leftovers.mounts).collect();
    for mount in ours.into_iter().rev() {
        run(host.umount(mount), Duration::from_secs(5));
    }
    for dir in cgroups(&host.name).iter().rev() {
        let _ = fs::remove_dir(dir);
    }
    for root in cgroup_roots() {
        let _ = fs::remove_dir(root.join(&host.name));
    }
}

pub fn signal(pid: u32, signal: Signal) -> Result<(), Errno> {
    kill(Pid::from_raw(pid as i32), signal)
}

/// Processes of this containerd's shims and containers. Shims and runc are found by the test's
/// mount namespace. Processes of containers, and processes that hold a pod's namespaces, are found
/// by the test's cgroups.
pub fn processes(host: &Containerd) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    let in_cgroup = format!("/{}/", host.name);
    for entry in fs::read_dir("/proc").expect("/proc").flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        if Some(pid) == host.pid() {
            continue;
        }
        let dir = entry.path();
        let namespace = fs::read_link(dir.join("ns/mnt")).unwrap_or_default();
        let cgroup = fs::read_to_string(dir.join("cgroup")).unwrap_or_default();
        let words = fs::read_to_string(dir.join("cmdline")).unwrap_or_default();
        let is_near = namespace.as_os_str() == host.mount_ns.link.as_str();
        if is_near || cgroup.contains(&in_cgroup) {
            // A process without a command line is a zombie, which only its parent can remove.
            if !words.is_empty() {
                found.push((pid, words.replace('\0', " ")));
            }
        }
    }
    found
}

fn current_mounts(host: &Containerd) -> BTreeSet<String> {
    if let Some(pid) = host.pid()
        && let Ok(table) = fs::read_to_string(format!("/proc/{pid}/mountinfo"))
    {
        return mount_points(&table);
    }
    // containerd has exited, so a process of the test enters the mount namespace to read the mount
    // table.
    let mut cat = Command::new("cat");
    cat.arg("/proc/self/mountinfo");
    host.enter(&mut cat);
    mount_points(&run(cat, Duration::from_secs(5)).out())
}

fn mount_points(table: &str) -> BTreeSet<String> {
    table
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(str::to_owned)
        .collect()
}

/// Possible roots of cgroup hierarchies: `/sys/fs/cgroup` with cgroup v2, and its subdirectories
/// with v1.
fn cgroup_roots() -> Vec<PathBuf> {
    let root = PathBuf::from("/sys/fs/cgroup");
    let controllers = fs::read_dir(&root).into_iter().flatten().flatten();
    let mut roots: Vec<PathBuf> = controllers
        .map(|e| e.path())
        .filter(|p| p.is_dir())
        .collect();
    roots.push(root);
    roots
}

/// Cgroups that remain of the test, parents first: those below the test's own cgroup, and those of
/// systemd with the test's name. The test's own cgroup is left out, because runc makes it and does
/// not remove it.
fn cgroups(namespace: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    if Path::new("/run/systemd/system").exists() {
        descend(&PathBuf::from("/sys/fs/cgroup/system.slice"), &mut |path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.contains(namespace) {
                found.push(path.to_owned());
            }
            path.is_dir()
        });
    }
    for root in cgroup_roots() {
        descend(&root.join(namespace), &mut |path| {
            if path.is_dir() {
                found.push(path.to_owned());
            }
            true
        });
    }
    found
}

/// Files that remain of shims, runc and pods: sockets, states, bundles, working directories,
/// temporary files.
fn files(host: &Containerd) -> Vec<PathBuf> {
    let (dir, namespace) = (host.dir(), &host.namespace);
    let mut found = Vec::new();
    let runc = dir.join("run/runc");
    // History of pods that have ended, kept for an hour.
    let ended = dir.join("run/usher/ended");
    // These directories may remain if nothing else is in them. With containerd's own shim, the
    // first two remain too.
    let usual = [
        dir.join("run/s"),
        dir.join("run/fifo"),
        dir.join("run/usher"),
        dir.join("run/usher/root"),
        ended.clone(),
        // crun 1.28 makes this empty directory, and mounts it over directories to hide them from a
        // container.
        runc.join(namespace).join(".empty-directory"),
        runc.join(namespace),
        runc,
    ];
    descend(&dir.join("run"), &mut |path| {
        let is_usual = usual.iter().any(|dir| dir == path);
        if !is_usual && path.parent() != Some(&ended) {
            found.push(path.to_owned());
        }
        is_usual
    });
    descend(&dir.join("tmp"), &mut |path| {
        found.push(path.to_owned());
        false
    });
    // containerd's directories for bundles, for bundles of pods without a pause container, and for
    // the CRI plugin's state.
    let kept = [
        Path::new("io.containerd.runtime.v2.task").join(namespace),
        Path::new("io.containerd.sandbox.controller.v1.shim").join(namespace),
        Path::new(cri::PLUGIN).join("sandboxes"),
        Path::new(cri::PLUGIN).join("containers"),
        Path::new(cri::PLUGIN).join("netns"),
    ];
    for part in ["state", "root"] {
        for kept in &kept {
            descend(&dir.join(part).join(kept), &mut |path| {
                found.push(path.to_owned());
                false
            });
        }
    }
    found
}

/// Visits the entries of a directory, parents first. Goes into a directory if `visit` returns true
/// for it. Follows no links, and does nothing if the directory does not exist.
fn descend(dir: &Path, visit: &mut dyn FnMut(&Path) -> bool) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if visit(&entry.path()) && is_dir {
            descend(&entry.path(), visit);
        }
    }
}
