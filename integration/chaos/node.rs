//! Finds a pod's processes on the node by `/proc`.

use std::fs;
use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::Containerd;

/// True if the id is that of the pod or of one of its containers.
pub fn is_of(id: &str, pod: &str) -> bool {
    let rest = id.strip_prefix(pod);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

fn words(pid: u32) -> Vec<String> {
    let words = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    words.split_terminator('\0').map(str::to_owned).collect()
}

/// The process id of the shim that serves a pod. Processes of the shim's `start` and `delete`
/// commands do not count.
pub fn shim(host: &Containerd, pod: &str) -> Option<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(|pid| is_shim(host, *pid, pod))
}

pub fn is_shim(host: &Containerd, pid: u32, pod: &str) -> bool {
    let words = words(pid);
    let program = words.first().and_then(|path| path.rsplit('/').next());
    program.is_some_and(|name| name.starts_with("containerd-shim-"))
        && words.contains(&host.namespace)
        && !words.iter().any(|word| word == "start" || word == "delete")
        && words
            .windows(2)
            .any(|pair| pair[0] == "-id" && is_of(&pair[1], pod))
}

/// The process id of an OCI runtime's command that the shim has started.
pub fn runtime_of(shim: u32) -> Option<u32> {
    let children = fs::read_to_string(format!("/proc/{shim}/task/{shim}/children"));
    let children = children.unwrap_or_default();
    let mut pids = children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok());
    pids.find(|pid| {
        let words = words(*pid);
        let program = words.first().and_then(|path| path.rsplit('/').next());
        matches!(program, Some("runc" | "crun")) && words.iter().all(|word| word != "init")
    })
}

/// The first process of a container's PID namespace.
pub fn init(host: &Containerd, id: &str) -> Option<u32> {
    let root = Path::new("/sys/fs/cgroup");
    let files = ["pids", "", "unified"].map(|hierarchy| {
        let dir = root.join(hierarchy).join(&host.namespace).join(id);
        fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default()
    });
    let members = files.iter().flat_map(|text| text.lines());
    members
        .filter_map(|pid| pid.parse().ok())
        .find(|pid| is_first(*pid))
}

fn is_first(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let namespaces = status.lines().find(|line| line.starts_with("NSpid:"));
    namespaces.is_some_and(|line| line.split_whitespace().count() > 2 && line.ends_with("\t1"))
}

/// Sends a signal. Returns false if the process does not exist.
pub fn send(pid: u32, signal: Signal) -> bool {
    kill(Pid::from_raw(pid as i32), signal).is_ok()
}
