//! What makes, starts, kills, freezes, changes, writes down and removes containers, as the actor sees it.
//!
//! Nobody above this seam knows what runc is, nor that there are processes to fork, files in `/proc` or
//! directories of cgroups. [`oci`] is the real engine: OCI runtimes that are run as commands. `sim` is a
//! model of one for tests; `sandbox` makes what a pod shares without any container. Whoever adds an engine adds a directory here. What every engine has to keep is
//! said where it is asked for, as a law; `docs/engine.md` has all of them on one page, and the same
//! conformance tests hold both engines to them.
//!
//! | handle | what it is |
//! |---|---|
//! | [`Engine`] | reads bundles |
//! | [`Container`] | a bundle and what is made of it, through all lives of the container |
//! | [`Init`] | one life: its first process |
//! | [`Process`] | a further process in it |
//! | [`Cgroup`], [`PodCgroup`] | the container's, and its pod's |

mod error;
mod halt;
#[cfg(test)]
pub(crate) mod laws;
#[expect(clippy::disallowed_methods, reason = "/proc")]
mod namespaces;
pub mod oci;
mod resources;
#[expect(clippy::disallowed_methods, reason = "the bundle and /proc, in memory")]
pub(crate) mod sandbox;
#[cfg(test)]
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

use crate::cri::PodSandboxConfig;
use crate::plan::{Allotment, Hook, Probe, Signal};
use crate::process::ExitStatus;
use crate::sizing::{Limits, Requests, Size};
use crate::stdio::{self, Paths, Streams};

pub use crate::cgroup::Place;
pub use crate::cgroup::scores::{Change, Outcome as ScoreOutcome};
pub use crate::cgroup::values::{Knob, UNLIMITED};
pub use crate::lifecycle::Deletion;
pub use crate::probe::Attempted;
pub use error::EngineError;
pub use halt::Halt;
pub use namespaces::{NamespaceError, Namespaces};
pub use resources::Resources;

/// Work that goes on beside everything else.
pub type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Where containers come from. A shim has one.
pub trait Engine: fmt::Debug + Send + Sync {
    /// Reads the file that an order's options name, which a disk can stall. Returns the options with its
    /// content; `None` if they name no file.
    fn read_options_file(&self, _order: &Order) -> Option<Work<Result<Any, EngineError>>> {
        None
    }

    /// Reads what a caller wants made. Nothing is made or changed by it. `sandbox` is that of the pod, if
    /// it has had one.
    ///
    /// # Errors
    ///
    /// [`EngineError::Invalid`] if it cannot be read, or is not what it should be;
    /// [`EngineError::Precondition`] if the container would be in other namespaces than it is to join.
    fn read(
        &self,
        order: &Order,
        sandbox: Option<&Sandbox>,
    ) -> Result<(Arc<dyn Container>, Facts), EngineError>;

    /// What a container can have whose processes are to have OOM score `wanted` in the place of
    /// `instead_of`: without the right to lower it, nothing below what it would have anyway.
    fn allowed_score(&self, wanted: i32, instead_of: i32) -> i32;

    /// Something is about to be made: what can be done beforehand is done. It never waits, and it is no harm if
    /// nothing comes.
    fn get_ready(&self, _coming: Coming) {}
}

/// What is about to be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    Container,
    Exec,
}

/// What a caller wants made, as its Create says it.
#[derive(Clone, Debug, Default)]
pub struct Order {
    pub id: String,
    pub bundle: PathBuf,
    /// The mounts of its root file system.
    pub rootfs: Vec<Mount>,
    pub paths: Paths,
    /// The engine's own options.
    pub options: Option<Any>,
    /// The directory of a checkpoint to make it from; empty for none.
    pub checkpoint: String,
    /// It is the sandbox of a pod, without a container; its bundle is empty.
    pub sandbox: Option<SandboxOrder>,
}

/// A sandbox that is to be made without a container.
#[derive(Clone, Debug, Default)]
pub struct SandboxOrder {
    pub config: PodSandboxConfig,
    /// The network namespace that was made for it; none for the node's.
    pub netns: Option<PathBuf>,
    /// Its caller joins containers to namespaces by [their paths](Sandbox::paths), and needs no process that
    /// holds them.
    pub takes_paths: bool,
}

/// What the containers of a pod share.
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    /// Its process, which may have ended; zero where it needs none.
    pub pid: i32,
    /// Those that this was in.
    pub namespaces: Namespaces,
    /// The parts that the shim has made; none where a pause container stands for the sandbox.
    pub own: Option<Arc<OwnSandbox>>,
}

/// A sandbox that the shim has made. The annotations of its pod were read from all there are.
#[derive(Clone, Debug, Default)]
pub struct OwnSandbox {
    /// The files that its containers share: where a container has each, and where that is on the node.
    pub files: Vec<(&'static str, PathBuf)>,
    /// The namespaces that are its own: the OCI specification's type of each, and its path.
    pub namespaces: Vec<(&'static str, PathBuf)>,
    pub annotations: BTreeMap<String, String>,
    /// The host name of its own.
    pub hostname: Option<String>,
}

/// What a bundle says that others than the engine have to know.
#[derive(Clone, Debug)]
pub struct Facts {
    pub annotations: BTreeMap<String, String>,
    /// Everything in the container dies with its init.
    pub has_own_pid_namespace: bool,
    /// Its deletion runs programs of the container's owner, and takes as long as they do.
    pub has_poststop_hooks: bool,
    /// The OOM score of its processes.
    pub oom_score: i32,
    /// What it asks for and may use.
    pub size: Size,
}

/// A container, from the reading of its bundle until it is deleted.
///
/// Laws: what is asked under a [`Halt`] ends soon after that is called, and what is asked under one that
/// was called does not begin. Kills and deletions are under none: what there is of it is to go.
#[async_trait]
pub trait Container: fmt::Debug + Send + Sync {
    /// Makes the container as it was [read](Engine::read), with its root file system and its streams. Its
    /// program is not executed: its
    /// init process is parked, or it waits to be restored.
    ///
    /// Law: what fails leaves nothing behind, neither a process nor a mount nor a cgroup.
    ///
    /// # Errors
    ///
    /// [`EngineError`], in the engine's own words.
    async fn create(
        &self,
        order: &Order,
        wishes: Wishes,
        halt: &Halt,
    ) -> Result<Created, EngineError>;

    /// Makes it anew after its init has ended, in the same root file system, with the streams of before,
    /// and with what was changed of its resources since. Its init is parked.
    ///
    /// Law: no process of the last life is there any more when the next begins. What fails leaves neither
    /// a process nor a cgroup. Halted it waits for nothing else: the container's exit waits for it.
    ///
    /// # Errors
    ///
    /// [`EngineError`], in the engine's own words.
    async fn create_again(
        &self,
        last: LastLife,
        streams: &mut Streams,
        halt: &Halt,
    ) -> Result<Born, EngineError>;

    /// Forgets a container whose init has ended, but for its root file system: what
    /// [`delete`](Container::delete) would have to do first.
    ///
    /// Law: idempotent; a container that is not known is forgotten.
    ///
    /// # Errors
    ///
    /// [`EngineError`], in the engine's own words; [`EngineError::CutShort`] if it took too long.
    async fn forget(&self) -> Result<(), EngineError>;

    /// Removes what there is of it, when all output of these streams has been passed on.
    ///
    /// Law: idempotent; a container that is not known has been deleted. Whatever comes of it, nothing stays
    /// mounted, and no output is lost.
    ///
    /// # Errors
    ///
    /// [`EngineError`], in the engine's own words.
    async fn delete(&self, how: Deletion, streams: Vec<Streams>) -> Result<(), EngineError>;

    /// Writes down how it has ended, as its caller is about to be told, for whoever removes what is left
    /// should this shim die before its deletion. `pid` is that of its init; none is zero.
    ///
    /// Law: it does not wait for anybody, and what cannot be written down is no reason to keep the exit.
    fn record_exit(&self, pid: i32, code: u32, at: SystemTime);

    /// Says something to the owner of the container, in the stream for its errors; `last_words`, why it
    /// was ended, are left where its caller reads them as well. It never waits, and what nobody can hear
    /// is lost. `streams` are those of its init. What is given back ends when last words are left that a
    /// disk may stall: the caller reads them when it hears of the exit.
    fn tell(&self, streams: Option<&Streams>, words: &str, last_words: bool) -> Option<Work<()>>;
}

/// What a container is to be created with, beside what its bundle says.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes {
    /// The OOM score of its processes, where it is not the bundle's; in all its lives.
    pub oom_score: Option<i32>,
    /// It may be created again, with the streams of its first life.
    pub may_live_again: bool,
    /// How long the caller waits has a bound of its own. Without, ten minutes are one.
    pub has_deadline: bool,
}

/// What a container has been made.
#[derive(Debug)]
pub struct Created {
    pub beginning: Beginning,
    pub streams: Streams,
}

/// How a container begins.
#[derive(Debug)]
pub enum Beginning {
    /// Its init process is there.
    Parked(Born),
    /// It is still to be restored.
    ToRestore(Box<dyn Restoration>),
}

/// A life that has begun.
#[derive(Debug)]
pub struct Born {
    pub init: Arc<dyn Init>,
    pub ending: Ending,
}

/// How a process ends. Law: told once, to whoever has this; that it is a future which is consumed sees to
/// that. It is told after the process has ended, whatever ended it, and never stays away.
pub struct Ending(pub Work<io::Result<ExitStatus>>);

/// What a container's next life is to have of the one before.
#[derive(Debug, Default)]
pub struct LastLife {
    /// Where its processes were.
    pub cgroup: Option<Arc<dyn Cgroup>>,
    /// It has been [forgotten](Container::forget).
    pub is_forgotten: bool,
    /// The OOM score of its processes, where it has changed.
    pub oom_score: Option<i32>,
    /// What its caller has changed of its resources: the OCI specification's `LinuxResources`.
    pub resources: Option<Value>,
}

/// A container that is made from a checkpoint, when its turn comes.
#[async_trait]
pub trait Restoration: fmt::Debug + Send {
    /// Restores it: its program goes on. A terminal comes with the process, to the streams that are given
    /// for it.
    ///
    /// Law: what fails leaves no process.
    ///
    /// # Errors
    ///
    /// [`EngineError`], in the engine's own words.
    async fn restore(
        self: Box<Self>,
        terminal: Option<&mut Streams>,
        halt: &Halt,
    ) -> Result<Born, EngineError>;
}

/// One life of a container, from the moment that its init process is there.
///
/// Laws: its verbs can be asked for after its end, and say so then. A container that is frozen answers no
/// signal but SIGKILL, and is not released, until it is thawed.
#[async_trait]
pub trait Init: fmt::Debug + Send + Sync {
    /// The number of its process; another process may have it as soon as it has ended, unless it is
    /// [held](Init::hold_pid).
    fn pid(&self) -> i32;

    /// Keeps the number from being another process's when this one has ended. Asked for while it lives.
    fn hold_pid(&self) -> PidHold;

    /// Where its processes are; none if that cannot be found out now.
    fn cgroup(&self) -> Option<Arc<dyn Cgroup>>;

    /// The cgroup of its pod, if there is one that carries this UID in its name.
    fn pod_cgroup(&self, uid: &str) -> Option<Arc<dyn PodCgroup>>;

    /// What other containers have of it, if it is the sandbox of their pod.
    fn shared(&self) -> Sandbox;

    /// Lets its program be executed, and gives back when it has been. `gone` ends when it was told that
    /// the init has ended: this ends soon after.
    ///
    /// Laws: it is not cancelled. While the container is frozen its program is not executed. Where this
    /// succeeds the program has been executed, also if it has ended by then, or will be as soon as the
    /// container is thawed.
    ///
    /// # Errors
    ///
    /// One sentence if it cannot be released, as when its init process has died.
    async fn release(&self, gone: oneshot::Receiver<()>, halt: &Halt) -> Result<(), String>;

    /// Sends a signal to its init, or to `all` of its processes.
    ///
    /// Laws: of one that has ended it says [`EngineError::Gone`]. SIGKILL ends it, whoever has frozen it.
    fn kill(&self, signal: Signal, all: bool) -> Killing;

    /// Kills its init at once, whoever has frozen it.
    ///
    /// # Errors
    ///
    /// [`EngineError::Gone`] if it has ended.
    fn end(&self) -> Result<(), EngineError>;

    /// Kills what its init has left behind, where that had no PID namespace of its own. When it gives
    /// back, nothing of it runs.
    async fn end_the_rest(&self);

    /// Freezes all its processes.
    ///
    /// # Errors
    ///
    /// [`EngineError`], in the engine's own words. None is frozen then.
    async fn pause(&self, halt: &Halt) -> Result<(), EngineError>;

    /// Thaws them.
    ///
    /// # Errors
    ///
    /// [`EngineError`], in the engine's own words.
    async fn resume(&self, halt: &Halt) -> Result<(), EngineError>;

    /// Changes its resources: the OCI specification's `LinuxResources` as JSON.
    ///
    /// # Errors
    ///
    /// [`EngineError`], in the engine's own words.
    async fn update(&self, resources: &[u8], halt: &Halt) -> Result<(), EngineError>;

    /// Writes it to files, with which it ends if that is asked for.
    ///
    /// # Errors
    ///
    /// [`EngineError`], in the engine's own words. Nothing is frozen then that was not before.
    async fn checkpoint(&self, checkpoint: &Checkpoint, halt: &Halt) -> Result<(), EngineError>;

    /// Executes a further process in it.
    ///
    /// Law: what fails leaves no process.
    ///
    /// # Errors
    ///
    /// [`EngineError`], in the engine's own words.
    async fn exec(&self, order: ExecOrder, halt: &Halt) -> Result<Executed, EngineError>;

    /// Executes once more in it what was executed as its postStart handler, with an OOM score that is no
    /// higher than this, and gives back when that is over.
    ///
    /// # Errors
    ///
    /// Why it has failed, in one sentence.
    async fn post_start(
        &self,
        process: Vec<u8>,
        oom_score: Option<i32>,
        halt: &Halt,
    ) -> Result<(), String>;

    /// Makes one attempt of a probe, bounded by the probe's timeout.
    async fn probe(&self, probe: &Probe, from: &Vantage, halt: &Halt) -> Attempted;

    /// Runs a hook, bounded by `limit`.
    ///
    /// # Errors
    ///
    /// Why it has failed, in one sentence.
    async fn hook(
        &self,
        hook: &Hook,
        limit: Duration,
        from: &Vantage,
        halt: &Halt,
    ) -> Result<(), String>;
}

/// What has become of a signal.
pub enum Killing {
    /// It was sent, or could not be.
    Done(Result<(), EngineError>),
    /// It takes a moment.
    UnderWay(Work<Result<(), EngineError>>),
}

/// Keeps the number of a process from being another's as long as it is there.
pub struct PidHold {
    pid: i32,
    free: Option<Box<dyn FnOnce() + Send>>,
}

/// A further process in a container, that was executed.
pub trait Process: fmt::Debug + Send + Sync {
    /// Its number; another process may have it as soon as it has ended.
    fn pid(&self) -> i32;

    /// Sends a signal to it: but for SIGKILL not before it executes its own program.
    ///
    /// Law: of one that has ended it says [`EngineError::Gone`].
    fn kill(&self, signal: Signal) -> Killing;
}

/// A process that is to be executed in a container.
#[derive(Clone, Debug, Default)]
pub struct ExecOrder {
    /// What its caller knows it by.
    pub exec_id: String,
    /// The OCI specification's process as JSON.
    pub spec: Vec<u8>,
    /// What its terminal is to have.
    pub size: Option<stdio::Size>,
    /// Its OOM score is to be no higher.
    pub oom_score: Option<i32>,
    pub paths: Paths,
}

/// A process that was executed.
#[derive(Debug)]
pub struct Executed {
    pub process: Arc<dyn Process>,
    pub ending: Ending,
    pub streams: Streams,
}

/// Where probes and hooks of a container come from.
#[derive(Clone, Debug, Default)]
pub struct Vantage {
    /// Where what is started for them runs.
    pub place: Option<Place>,
    /// The container's named ports.
    pub ports: BTreeMap<String, u16>,
    /// The OOM score of what is executed in the container for them is to be no higher.
    pub oom_score: Option<i32>,
}

/// What is to be written of a container, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The directory for the files.
    pub image: PathBuf,
    /// The directory for criu's own files; none for one that is removed afterwards.
    pub work: Option<PathBuf>,
    /// The container ends with it.
    pub exit: bool,
    pub open_tcp: bool,
    pub external_unix_sockets: bool,
    pub terminal: bool,
    pub file_locks: bool,
    /// Namespaces that are made empty when it is restored.
    pub empty_namespaces: Vec<String>,
    /// How cgroups are treated (`soft`, `full`, `strict`); empty for criu's own way.
    pub cgroups_mode: String,
}

/// The cgroup of a container.
#[async_trait]
pub trait Cgroup: fmt::Debug + Send + Sync {
    /// Its figures, as containerd's metrics.
    ///
    /// # Errors
    ///
    /// One sentence if they cannot be encoded.
    fn metrics(&self) -> Result<Any, String>;

    /// The processes in it, and in the cgroups below it.
    ///
    /// # Errors
    ///
    /// One sentence if they cannot be read; not if it is gone.
    fn processes(&self) -> Result<Vec<u32>, String>;

    /// How much memory is charged to it, in bytes; none where that is not accounted for.
    fn memory_usage(&self) -> Option<u64>;

    /// Has `tell` called when the kernel has killed a process in it because memory ran out, until what is
    /// given back is dropped. None where memory is not accounted for.
    fn watch_oom(self: Arc<Self>, tell: Box<dyn Fn() + Send + Sync>) -> Option<Box<dyn OomWatch>>;

    /// Gives all its processes an OOM score, also those that come meanwhile; `superseded` ends it early.
    ///
    /// # Errors
    ///
    /// One sentence if it cannot be found out which processes there are.
    async fn change_scores(
        &self,
        change: Change,
        superseded: &Notify,
    ) -> Result<ScoreOutcome, String>;
}

/// Watches for kills for want of memory.
pub trait OomWatch: fmt::Debug + Send {
    /// Looks now. Law: when the end of a process is known, so is whether this was the reason.
    fn look(&self);
}

/// The cgroup of a pod, which is the shim's to size.
#[async_trait]
pub trait PodCgroup: fmt::Debug + Send + Sync {
    /// Where commands run whose CPU time is to be the pod's; there as long as somebody has it.
    fn place(&self) -> Option<Place>;

    /// How much memory is charged to it and to all below it, in bytes.
    fn memory_usage(&self) -> Option<u64>;

    /// The value that is in force; none if there is no such value.
    fn read(&self, knob: Knob) -> Option<u64>;

    /// Puts a value in force.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    fn write(&self, knob: Knob, value: u64) -> io::Result<()>;

    /// Lowers the limit of memory. The kernel first reclaims what is above it, which may have to reach a disk.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    async fn lower_memory(&self, bytes: u64) -> io::Result<()>;

    /// How much of a value that was found is for none of the pod's containers, in its own unit.
    fn overhead(&self, knob: Knob, found: u64, allotment: &Allotment) -> u64;

    /// What of CPU is to be in force for these limits and requests: a quota and a weight.
    fn cpu_values(&self, limits: &Limits, requests: &Requests) -> Option<(u64, u64)>;

    /// Somebody else, systemd, puts in force again what it knows, and has to be
    /// [told](PodCgroup::tell_manager).
    fn is_managed(&self) -> bool;

    /// Has that know what is in force.
    ///
    /// # Errors
    ///
    /// One sentence if it does not take it.
    async fn tell_manager(&self, values: Vec<(Knob, u64)>) -> Result<(), String>;

    /// Leaves a note in a bundle, for whoever comes when this shim has died: of these values, in force now,
    /// what they were before.
    ///
    /// # Errors
    ///
    /// If it cannot be written.
    fn leave_note(&self, bundle: &Path, before: &[(Knob, u64)]) -> io::Result<()>;

    /// Removes it again.
    fn remove_note(&self, bundle: &Path);
}

// === impl Ending ===

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Ending").finish_non_exhaustive()
    }
}

// === impl PidHold ===

impl PidHold {
    /// Holds a number until `free` is called, which it is when this is dropped.
    pub fn new(pid: i32, free: impl FnOnce() + Send + 'static) -> PidHold {
        PidHold {
            pid,
            free: Some(Box::new(free)),
        }
    }

    /// The number.
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
