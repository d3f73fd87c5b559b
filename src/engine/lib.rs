//! The engine: makes, starts, kills, freezes, updates, checkpoints and removes containers.
//!
//! Code above these traits knows nothing of runc, processes, `/proc` or cgroup directories. The
//! crate `usher-oci` is the real engine, which runs an OCI runtime's commands. `sim` is a simulated
//! engine, for tests. A new engine is a new crate, which only the shim's `main` names. A
//! requirement on engines is called a law, and is stated at its method. `docs/engine.md` lists all
//! laws, and the same conformance tests check both engines.
//!
//! | handle | purpose |
//! |---|---|
//! | [`Engine`] | reads bundles |
//! | [`EngineKind`] | makes engines, and does the engine-specific part of the program's commands |
//! | [`Container`] | a container, from its bundle on, through all its restarts in place |
//! | [`Init`] | the container's current init process |
//! | [`Process`] | an exec in the container |
//! | [`Cgroup`], [`PodCgroup`] | the cgroup of the container, and the cgroup of its pod |

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::restriction, reason = "tests may panic"))]
// Tests may block; only the serving thread must not.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may wait"))]

mod cancel;
mod catch_panic;
mod error;
mod kind;
#[cfg(any(test, feature = "simulator"))]
#[allow(
    clippy::restriction,
    reason = "tests may panic, also when another crate runs them"
)]
pub mod laws;
#[expect(clippy::disallowed_methods, reason = "/proc")]
mod namespaces;
mod resources;
#[cfg(any(test, feature = "simulator"))]
#[allow(
    clippy::restriction,
    reason = "a test may panic, also when another crate runs it"
)]
pub mod sim;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::types::mount::Mount;
use serde_json::Value;
use tokio::sync::{Notify, oneshot};

use usher_api::cri::PodSandboxConfig;
use usher_core::lifecycle::ActionError;
use usher_core::plan::{Allotment, Hook, Probe, Signal};
use usher_core::process::ExitStatus;
use usher_core::sizing::{Limits, Requests, Size};
use usher_linux::stdio::{self, CallerGone, EarlyFifos, Paths, Streams};

pub use cancel::CancelToken;
pub use catch_panic::{Panicked, catch_panic};
pub use error::EngineError;
pub use kind::{EngineKind, RecordedExit, StartOptions};
pub use namespaces::{NamespaceError, Namespaces};
pub use resources::Resources;
pub use usher_core::lifecycle::Deletion;
pub use usher_linux::cgroup::Place;
pub use usher_linux::cgroup::scores::{Change, Outcome as ScoreOutcome};
pub use usher_linux::cgroup::values::{Knob, UNLIMITED};
pub use usher_linux::probe::Attempted;

/// A boxed future, which its receiver can run concurrently with other work.
pub type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// The engine of a shim. It makes a container from each bundle.
pub trait Engine: fmt::Debug + Send + Sync {
    /// Returns a future that reads the file named in the options of a Create. A slow disk can delay
    /// the read. The future returns the options with the content of the file. Returns `None` if the
    /// options name no file.
    fn read_options_file(&self, _order: &Order) -> Option<Work<Result<Any, EngineError>>> {
        None
    }

    /// Reads the bundle of a container that is to be created; changes nothing. `sandbox` is the
    /// pod's sandbox, which may have exited; `None` if the pod never had one.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if the bundle cannot be read or is invalid;
    /// [`EngineError::Precondition`] if the namespaces that the container has to join are gone.
    fn read(
        &self,
        order: &Order,
        sandbox: Option<&Sandbox>,
    ) -> Result<(Arc<dyn Container>, Facts), EngineError>;

    /// Returns the OOM score that the shim can give a process: `wanted`, or a higher score.
    /// `instead_of` is the score that the process would have anyway. A shim without the right to
    /// lower scores cannot go below that score.
    fn allowed_score(&self, wanted: i32, instead_of: i32) -> i32;

    /// Prepares for the creation of a container that is likely to follow. Never waits. Does no harm
    /// if no creation follows.
    fn prepare_for_container(&self) {}
}

/// The request to create a container, as in the caller's Create.
#[derive(Clone, Debug, Default)]
pub struct Order {
    pub id: String,
    pub bundle: PathBuf,
    /// Mounts of the container's root file system.
    pub rootfs: Vec<Mount>,
    pub paths: Paths,
    /// Options in the caller's Create. Their form depends on the engine.
    pub options: Option<Any>,
    /// Directory of the checkpoint to restore the container from; empty for none.
    pub checkpoint: String,
    /// The request for a sandbox, if this container is a pod's sandbox without a pause container.
    /// The bundle is then empty.
    pub sandbox: Option<SandboxOrder>,
}

/// The request to create a sandbox without a pause container.
#[derive(Clone, Debug, Default)]
pub struct SandboxOrder {
    pub config: PodSandboxConfig,
    /// The network namespace made for the sandbox; `None` if it uses the node's.
    pub netns: Option<PathBuf>,
    /// True if the caller joins containers to namespaces by [their paths](OwnSandbox::namespaces),
    /// so that no process has to hold the namespaces.
    pub takes_paths: bool,
}

/// The sandbox of a pod: the namespaces and files that the pod's containers share.
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    /// PID of the sandbox's process. The process may have exited. 0 if the sandbox needs no
    /// process.
    pub pid: i32,
    /// The namespaces of the sandbox's process.
    pub namespaces: Namespaces,
    /// The parts of the sandbox that the shim has made; `None` if the pod has a pause container.
    pub own: Option<Arc<OwnSandbox>>,
}

/// A sandbox that the shim has made. All annotations of the pod are annotations of this sandbox.
#[derive(Clone, Debug, Default)]
pub struct OwnSandbox {
    /// Files that the pod's containers share: the path in a container, and the path on the node.
    pub files: Vec<(&'static str, PathBuf)>,
    /// The namespaces of the sandbox: for each its type as in the OCI specification, and its path.
    pub namespaces: Vec<(&'static str, PathBuf)>,
    pub annotations: BTreeMap<String, String>,
    /// Host name, if the sandbox has its own.
    pub hostname: Option<String>,
}

/// Properties of a container, read from its bundle, that the shim needs outside the engine.
#[derive(Clone, Debug)]
pub struct Facts {
    pub annotations: BTreeMap<String, String>,
    /// True if all processes of the container die with its init.
    pub has_own_pid_namespace: bool,
    /// True if the container's deletion runs OCI hooks, and takes as long as the hooks do.
    pub has_poststop_hooks: bool,
    /// OOM score of the container's processes.
    pub oom_score: i32,
    /// Requests and limits of the container.
    pub size: Size,
}

/// A container, from the reading of its bundle until it is deleted.
///
/// Laws: a call with a [`CancelToken`] ends soon after the token is canceled, unless a disk has
/// stalled the call, and does not begin if the token was canceled before. Kills and deletions take
/// no token, because they have to be done in any case.
///
/// Two rules bind the caller, because an OCI runtime works on one state directory: while
/// [`forget`](Container::forget) is in progress, neither [`delete`](Container::delete) nor
/// [`create_again`](Container::create_again) begins; `forget` does not begin during a
/// [release](Init::release) or an [exec](Init::exec).
#[async_trait]
pub trait Container: fmt::Debug + Send + Sync {
    /// Creates the container that [`Engine::read`] has read from its bundle, with its root file
    /// system and streams. The container's program is not executed yet: the init process waits for
    /// its release, or the container is still to be restored.
    ///
    /// Law: a failure leaves no process, mount or cgroup behind.
    ///
    /// # Errors
    ///
    /// [`EngineError`], with the engine's message.
    async fn create(
        &self,
        order: &Order,
        options: CreateOptions,
        token: &CancelToken,
    ) -> Result<Created, EngineError>;

    /// Restarts the container in place after its init has exited: with the same root file system
    /// and streams, and with all updates of its resources. The new init waits for its release.
    ///
    /// Laws: no earlier process of the container is left when the new one is created. A failure
    /// leaves no process or cgroup behind. A canceled call returns without further waits, because
    /// the shim publishes the container's exit only after the call.
    ///
    /// # Errors
    ///
    /// [`EngineError`], with the engine's message.
    async fn create_again(
        &self,
        last: PreviousInit,
        streams: &mut Streams,
        token: &CancelToken,
    ) -> Result<NewInit, EngineError>;

    /// Removes the runtime state of a container whose init has exited, but not its root file
    /// system. [`delete`](Container::delete) begins with the same removal.
    ///
    /// Law: idempotent; succeeds for a container that the engine does not know.
    ///
    /// # Errors
    ///
    /// [`EngineError`], with the engine's message; [`EngineError::CutShort`] if it took too long.
    async fn forget(&self) -> Result<(), EngineError>;

    /// Removes all that is left of the container. Returns once the clients have all output of
    /// `streams`.
    ///
    /// Laws: idempotent; succeeds for a container that the engine does not know. Even if the
    /// deletion fails, nothing stays mounted, and no output is lost.
    ///
    /// # Errors
    ///
    /// [`EngineError`], with the engine's message.
    async fn delete(&self, how: Deletion, streams: Vec<Streams>) -> Result<(), EngineError>;

    /// Records the exit status before the caller learns of the exit. If this shim dies before the
    /// container is deleted, the shim's `delete` command reports the recorded status. `pid` is the
    /// PID of the container's init, or 0.
    ///
    /// Law: never waits; a failure does not delay the exit.
    fn record_exit(&self, pid: i32, code: u32, at: SystemTime);

    /// Writes a message for the container's owner to the container's standard error. `streams` are
    /// the streams of the container's init. Never waits; a message that cannot be written is lost.
    ///
    /// If `last_words` is set, the message says why the container is ended. Then the message also
    /// goes into the termination message, which kubelet reads after the exit. A slow disk may delay
    /// that write. So this method returns work that ends when the termination message is written.
    fn write_message(
        &self,
        streams: Option<&Streams>,
        words: &str,
        last_words: bool,
    ) -> Option<Work<()>>;
}

/// Settings for the creation of a container, in addition to those in its bundle.
#[derive(Clone, Copy, Debug, Default)]
pub struct CreateOptions {
    /// OOM score of the container's processes, in place of the score in the bundle. It also applies
    /// after restarts in place.
    pub oom_score: Option<i32>,
    /// True if the container may be restarted in place, with the same streams.
    pub may_restart: bool,
    /// Time until the caller's deadline. Without one, the creation may take ten minutes.
    pub call_timeout: Option<Duration>,
}

/// A created container.
#[derive(Debug)]
pub struct Created {
    pub initial_state: InitialState,
    pub streams: Streams,
}

/// The state in which a container is created.
#[derive(Debug)]
pub enum InitialState {
    /// The init process exists and does not execute its program yet.
    Parked(NewInit),
    /// The container is still to be restored from its checkpoint.
    ToRestore(Box<dyn Restoration>),
}

impl InitialState {
    /// Process id of the init process; zero if there is none yet.
    pub fn pid(&self) -> i32 {
        match self {
            InitialState::Parked(new_init) => new_init.init.pid(),
            InitialState::ToRestore(_) => 0,
        }
    }
}

/// A new init process.
#[derive(Debug)]
pub struct NewInit {
    pub init: Arc<dyn Init>,
    pub exit_future: ExitFuture,
}

/// The exit of a process. Law: the future resolves exactly once, after the process has exited. It
/// resolves for every kind of exit.
pub struct ExitFuture(pub Work<io::Result<ExitStatus>>);

/// Data about the container's previous init process, which a restart in place needs.
#[derive(Debug, Default)]
pub struct PreviousInit {
    /// Cgroup of the container's processes.
    pub cgroup: Option<Arc<dyn Cgroup>>,
    /// True if the container was [forgotten](Container::forget) since the exit.
    pub is_forgotten: bool,
    /// OOM score of the container's processes, if it has changed.
    pub oom_score: Option<i32>,
    /// The caller's updates of the container's resources: the OCI specification's `LinuxResources`.
    pub resources: Option<Value>,
}

/// A created container whose program is to continue from a checkpoint.
#[async_trait]
pub trait Restoration: fmt::Debug + Send {
    /// Restores the container: its program continues. A terminal is connected to the given streams.
    ///
    /// Law: a failure leaves no process.
    ///
    /// # Errors
    ///
    /// [`EngineError`], with the engine's message.
    async fn restore(
        self: Box<Self>,
        terminal: Option<&mut Streams>,
        token: &CancelToken,
    ) -> Result<NewInit, EngineError>;
}

/// An init process of a container, from its creation on. A restart in place makes a new init
/// process.
///
/// Laws: all methods may be called after the exit of the process, and then report the exit. A
/// frozen container reacts to no signal but SIGKILL, and is not released, until it is thawed.
#[async_trait]
pub trait Init: fmt::Debug + Send + Sync {
    /// PID of the process. Another process may get it after the exit, unless it is
    /// [held](Init::hold_pid).
    fn pid(&self) -> i32;

    /// Keeps the PID from being reused after the exit. The process must still be alive at the call.
    fn hold_pid(&self) -> PidHold;

    /// Cgroup of the container's processes; `None` if it cannot be found now.
    fn cgroup(&self) -> Option<Arc<dyn Cgroup>>;

    /// Cgroup of the pod with this UID. `None` if no parent of the container's cgroup has the UID
    /// in its name.
    fn pod_cgroup(&self, uid: &str) -> Option<Arc<dyn PodCgroup>>;

    /// Returns the namespaces and files of this container that the pod's other containers share.
    /// Called only if this container is the pod's sandbox.
    fn shared(&self) -> Sandbox;

    /// Releases the container, and returns once the init process has executed the container's
    /// program. `gone` resolves when the exit of the init was reported. The release then returns
    /// soon.
    ///
    /// Callers must not drop the future early: with runc, that kills the container.
    ///
    /// Success means that the program was executed, and may have exited already. If the container
    /// is frozen, the program is executed only after the thaw, but the release may succeed before.
    ///
    /// # Errors
    ///
    /// If the container cannot be released, for example because the init has died.
    async fn release(
        &self,
        gone: oneshot::Receiver<()>,
        token: &CancelToken,
    ) -> Result<(), EngineError>;

    /// Sends a signal to the init, or to `all` processes of the container.
    ///
    /// Laws: returns [`EngineError::Gone`] after the exit. SIGKILL also ends a frozen container.
    fn kill(&self, signal: Signal, all: bool) -> SignalProgress;

    /// Kills the init at once, even if the container is frozen.
    ///
    /// # Errors
    ///
    /// [`EngineError::Gone`] after the exit.
    fn end(&self) -> Result<(), EngineError>;

    /// Kills the processes that the init has left behind, if the container has no PID namespace of
    /// its own. When the call returns, no process of the container runs.
    async fn end_the_rest(&self);

    /// Freezes all processes of the container.
    ///
    /// # Errors
    ///
    /// [`EngineError`], with the engine's message; then no process is frozen.
    async fn pause(&self, token: &CancelToken) -> Result<(), EngineError>;

    /// Thaws all processes of the container.
    ///
    /// # Errors
    ///
    /// [`EngineError`], with the engine's message.
    async fn resume(&self, token: &CancelToken) -> Result<(), EngineError>;

    /// Updates the container's resources: the OCI specification's `LinuxResources` as JSON.
    ///
    /// # Errors
    ///
    /// [`EngineError`], with the engine's message.
    async fn update(&self, resources: &[u8], token: &CancelToken) -> Result<(), EngineError>;

    /// Writes a checkpoint of the container to files.
    ///
    /// # Errors
    ///
    /// [`EngineError`], with the engine's message. After an error the container is frozen only if
    /// it was frozen before the call.
    async fn checkpoint(
        &self,
        checkpoint: &Checkpoint,
        token: &CancelToken,
    ) -> Result<(), EngineError>;

    /// Prepares for an exec that the caller has added, and whose output goes to `paths`. Never
    /// waits. Does no harm if the exec is never started. Some time after `caller_gone` has
    /// completed, the FIFOs of an exec that is not started are closed.
    fn prepare_for_exec(&self, _paths: &Paths, _caller_gone: CallerGone) -> EarlyFifos {
        EarlyFifos::default()
    }

    /// Executes a process in the container.
    ///
    /// Law: a failure leaves no process.
    ///
    /// # Errors
    ///
    /// [`EngineError`], with the engine's message.
    async fn exec(&self, order: ExecOrder, token: &CancelToken) -> Result<NewExec, EngineError>;

    /// Executes the container's postStart handler again, after a restart in place. `process` is the
    /// process of the exec by which the caller ran the handler. Returns when the handler has
    /// finished. `oom_score` is the upper limit of the handler's OOM score.
    ///
    /// # Errors
    ///
    /// If the handler failed.
    async fn post_start(
        &self,
        process: Vec<u8>,
        oom_score: Option<i32>,
        token: &CancelToken,
    ) -> Result<(), EngineError>;

    /// Makes one attempt of a probe, within the probe's timeout.
    async fn probe(&self, probe: &Probe, from: &ProbeEnvironment, token: &CancelToken)
    -> Attempted;

    /// Runs a hook, for `limit` at most.
    ///
    /// # Errors
    ///
    /// If the hook failed.
    async fn hook(
        &self,
        hook: &Hook,
        limit: Duration,
        from: &ProbeEnvironment,
        token: &CancelToken,
    ) -> Result<(), ActionError>;
}

/// Progress of sending a signal.
pub enum SignalProgress {
    /// The signal was sent, or sending it has failed.
    Done(Result<(), EngineError>),
    /// The signal is still being sent.
    UnderWay(Work<Result<(), EngineError>>),
}

/// Keeps the PID of an init process from being reused until the hold is dropped.
pub struct PidHold {
    pid: i32,
    free: Option<Box<dyn FnOnce() + Send>>,
}

/// An exec of a container.
pub trait Process: fmt::Debug + Send + Sync {
    /// PID of the process. Another process may get it after the exit.
    fn pid(&self) -> i32;

    /// Sends a signal to the process. A signal other than SIGKILL is delayed until the process
    /// executes its own program.
    ///
    /// Law: returns [`EngineError::Gone`] after the exit.
    fn kill(&self, signal: Signal) -> SignalProgress;
}

/// The request to execute a process in a container.
#[derive(Debug, Default)]
pub struct ExecOrder {
    pub exec_id: String,
    /// The OCI specification's process as JSON.
    pub spec: Vec<u8>,
    /// Size of the process's terminal.
    pub size: Option<stdio::Size>,
    /// Upper limit of the process's OOM score.
    pub oom_score: Option<i32>,
    pub paths: Paths,
    /// Output FIFOs at `paths` that were [opened](Init::prepare_for_exec) in advance.
    pub fifos: EarlyFifos,
}

/// A new exec.
#[derive(Debug)]
pub struct NewExec {
    pub process: Arc<dyn Process>,
    pub exit_future: ExitFuture,
    pub streams: Streams,
}

/// The environment in which probes and hooks of a container run.
#[derive(Clone, Debug, Default)]
pub struct ProbeEnvironment {
    /// Cgroup for the processes that probes and hooks start.
    pub place: Option<Place>,
    /// The container's named ports.
    pub ports: BTreeMap<String, u16>,
    /// Upper limit of the OOM score of commands executed in the container.
    pub oom_score: Option<i32>,
}

/// The request for a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// Directory for the files of the checkpoint.
    pub image: PathBuf,
    /// Directory for criu's own files; `None` for a temporary one.
    pub work: Option<PathBuf>,
    /// True if the container is to exit after the checkpoint.
    pub exit: bool,
    pub open_tcp: bool,
    pub external_unix_sockets: bool,
    pub terminal: bool,
    pub file_locks: bool,
    /// Namespaces that are created empty when the container is restored.
    pub empty_namespaces: Vec<String>,
    /// criu's mode for cgroups (`soft`, `full`, `strict`); empty for its default.
    pub cgroups_mode: String,
}

/// Cgroup of a container.
#[async_trait]
pub trait Cgroup: fmt::Debug + Send + Sync {
    /// Returns the metrics, as containerd's message.
    ///
    /// # Errors
    ///
    /// If they cannot be encoded.
    fn metrics(&self) -> Result<Any, EngineError>;

    /// PIDs of the processes in the cgroup and in the cgroups below it; empty if the cgroup is
    /// gone.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    fn processes(&self) -> Result<Vec<u32>, EngineError>;

    /// Bytes of memory charged to the cgroup; `None` without memory accounting.
    fn memory_usage(&self) -> Option<u64>;

    /// Calls `tell` whenever the kernel has OOM-killed a process in the cgroup, until the returned
    /// watch is dropped. `None` without memory accounting.
    fn watch_oom(self: Arc<Self>, tell: Box<dyn Fn() + Send + Sync>) -> Option<Box<dyn OomWatch>>;

    /// Sets the OOM score of all processes in the cgroup, including processes that start meanwhile.
    /// The caller notifies `superseded` if another change follows. Then this change ends early.
    ///
    /// # Errors
    ///
    /// If the processes cannot be listed.
    async fn change_scores(
        &self,
        change: Change,
        superseded: &Notify,
    ) -> Result<ScoreOutcome, EngineError>;
}

/// Watches for OOM kills.
pub trait OomWatch: fmt::Debug + Send {
    /// Checks for OOM kills now. Law: when the exit of a process is known, this check finds an OOM
    /// kill that caused the exit.
    fn look(&self);
}

/// Cgroup of a pod, whose limits the shim sets.
#[async_trait]
pub trait PodCgroup: fmt::Debug + Send + Sync {
    /// A cgroup for commands whose CPU time is charged to the pod. The cgroup exists while a clone
    /// of the returned value is held.
    fn place(&self) -> Option<Place>;

    /// Bytes of memory charged to the pod's cgroup and to all cgroups below it.
    fn memory_usage(&self) -> Option<u64>;

    /// Reads the current value of a knob (a limit or weight of the cgroup). Returns `None` if the
    /// kernel has no such value.
    fn read(&self, knob: Knob) -> Option<u64>;

    /// Rounds a value up to one that the kernel and the cgroup manager keep unchanged. A value that
    /// [`read`](PodCgroup::read) has returned needs no rounding.
    fn rounded(&self, knob: Knob, value: u64) -> u64;

    /// Sets the value of a knob. The value must be rounded.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    fn write(&self, knob: Knob, value: u64) -> io::Result<()>;

    /// Lowers the memory limit to a rounded value. The kernel first reclaims memory above the new
    /// limit, which a disk can stall.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    async fn lower_memory(&self, bytes: u64) -> io::Result<()>;

    /// The pod's overhead, in the unit of `knob`: the current value for the whole pod, minus the
    /// total of its containers in `allotment`.
    fn overhead(&self, knob: Knob, allotment: &Allotment) -> u64;

    /// The CPU quota and the CPU weight that result from these limits and requests.
    fn cpu_values(&self, limits: &Limits, requests: &Requests) -> Option<(u64, u64)>;

    /// True if a cgroup manager (systemd) may overwrite the shim's values with older ones. The
    /// manager then has to be [notified](PodCgroup::notify_manager) of changes.
    fn is_managed(&self) -> bool;

    /// Tells the cgroup manager the current values.
    ///
    /// # Errors
    ///
    /// If the cgroup manager rejects the values.
    async fn notify_manager(&self, values: Vec<(Knob, u64)>) -> Result<(), EngineError>;

    /// Writes a note into a bundle: the values that the cgroup had `before` the shim's changes. If
    /// this shim dies, the shim's `delete` command restores these values.
    ///
    /// # Errors
    ///
    /// If the note cannot be written.
    fn leave_note(&self, bundle: &Path, before: &[(Knob, u64)]) -> io::Result<()>;

    /// Removes the note that [`leave_note`](PodCgroup::leave_note) wrote.
    fn remove_note(&self, bundle: &Path);
}

impl fmt::Debug for ExitFuture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExitFuture").finish_non_exhaustive()
    }
}

impl PidHold {
    /// Holds a PID. `free` is called when the returned value is dropped.
    pub fn new(pid: i32, free: impl FnOnce() + Send + 'static) -> PidHold {
        PidHold {
            pid,
            free: Some(Box::new(free)),
        }
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }
}

impl Drop for PidHold {
    fn drop(&mut self) {
        if let Some(free) = self.free.take() {
            free();
        }
    }
}

impl fmt::Debug for PidHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PidHold").field(&self.pid).finish()
    }
}
