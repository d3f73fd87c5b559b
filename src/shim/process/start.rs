//! `start`: finds the shim of the container's pod, or starts one.

use std::io::{IsTerminal, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use containerd_shim::Flags;
use containerd_shim::cgroup::adjust_oom_score;

use usher_api::config;
use usher_core::plan::identity;
use usher_engine::EngineKind;
use usher_linux::sys;

use super::address::{self, Claim};
use super::bootstrap::{Bootstrap, Environment, TTRPC_ADDRESS};
use super::error::ShimError;
use super::starter::{self, Starter};
use super::{control, placement};

/// Limit for containerd's input on stdin, in bytes.
const STDIN_AT_MOST: u64 = 10 * 1024 * 1024;

/// Ensures that a shim serves the container's pod, and returns the answer for containerd.
///
/// # Errors
///
/// If the input is invalid, or no shim can be started.
pub(super) fn start(flags: &Flags, kind: &dyn EngineKind) -> Result<Vec<u8>, ShimError> {
    if flags.id.is_empty() {
        return Err(ShimError::NoId);
    }
    let said = Bootstrap::understand(&read_stdin()?, flags, Environment::read(), kind)?;
    let directory = bundle_directory(flags)?;
    let annotations = kind.annotations(&directory)?;
    let group = identity::group(&annotations).unwrap_or(&flags.id);
    let directory_of_sockets = said.socket_dir.as_deref();
    let address = address::of_pod(&said.address, &flags.namespace, directory_of_sockets, group);
    control::mark(&address::path(&address));
    let claim = address::claim(&address, &flags.id).map_err(|error| ShimError::NotClaimed {
        address: address.clone(),
        error,
    })?;
    // Read the rules before the shim starts, so that `start` fails if they are invalid. A running
    // shim keeps its rules.
    if let Claim::Ours(listener) = claim
        && let Err(error) = config::read()
            .map_err(ShimError::from)
            .and_then(|_| spawn(flags, &said, &directory, listener.into()))
    {
        let socket = address::path(&address);
        address::remove_dead(&socket);
        // If `spawn` has started the shim and killed it, the shim may have left its control socket.
        control::remove_dead(&socket);
        return Err(ShimError::NotStarted(Box::new(error)));
    }
    address::leave_in(&directory, &address).map_err(|error| ShimError::NoAddressFile {
        bundle: directory,
        error,
    })?;
    said.answer(&address)
}

/// The bundle: the directory in the flags, or else the working directory, which containerd sets.
pub(super) fn bundle_directory(flags: &Flags) -> Result<PathBuf, ShimError> {
    match flags.bundle.as_str() {
        "" => std::env::current_dir().map_err(ShimError::cannot("find the working directory")),
        bundle => Ok(PathBuf::from(bundle)),
    }
}

pub(super) fn read_stdin() -> Result<Vec<u8>, ShimError> {
    let stdin = std::io::stdin();
    let mut said = Vec::new();
    if !stdin.is_terminal() {
        let mut stdin = stdin.lock().take(STDIN_AT_MOST);
        stdin
            .read_to_end(&mut said)
            .map_err(ShimError::cannot("read stdin"))?;
    }
    Ok(said)
}

/// Environment variable that asks for a core scheduling group for the containers.
const SCHED_CORE: &str = "SCHED_CORE";

/// Starts the process that serves the pod. The process gets the socket as its standard input, as
/// from inetd, so that no descriptor number has to be agreed on, and no other process inherits the
/// socket.
fn spawn(
    flags: &Flags,
    said: &Bootstrap,
    directory: &Path,
    socket: OwnedFd,
) -> Result<(), ShimError> {
    let program = std::env::current_exe().map_err(ShimError::cannot("find its program"))?;
    let mut command = Command::new(program);
    command.args([
        "-namespace",
        &flags.namespace,
        "-id",
        &flags.id,
        "-address",
        &said.address,
    ]);
    if !flags.publish_binary.is_empty() {
        command.args(["-publish-binary", &flags.publish_binary]);
    }
    if said.debug {
        command.arg("-debug");
    }
    if !said.ttrpc_address.is_empty() {
        command.env(TTRPC_ADDRESS, &said.ttrpc_address);
    }
    // systemd gives this variable to containerd, to report readiness. The shim must not use it.
    command.env_remove("NOTIFY_SOCKET");
    if let Some(starter) = Starter::of_this_start() {
        command.env(starter::VARIABLE, starter.to_string());
    }
    command.current_dir(directory).process_group(0);
    command
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if std::env::var_os(SCHED_CORE).is_some_and(|value| !value.is_empty()) {
        placement::begin_core_scheduling()?;
    }
    let mut child = sys::spawn(&mut command).map_err(ShimError::cannot("execute its program"))?;
    let shim_cgroup = said.options.shim_cgroup.as_str();
    if !shim_cgroup.is_empty()
        && let Err(error) = placement::join_cgroup(child.id(), shim_cgroup)
    {
        // Kill the shim: it has just been started, and no caller knows its address yet.
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    // The OOM score is just above containerd's, as for containerd's own shim: when memory runs out,
    // the kernel kills containers first, then shims, then containerd. If the change is not allowed,
    // the score stays.
    let _ = adjust_oom_score(child.id());
    Ok(())
}
