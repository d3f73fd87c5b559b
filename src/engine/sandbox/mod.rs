//! A pod's sandbox that is no container: its namespaces, held by a process as small as can be, and its files.
//!
//! What a pause container is for, without one: no image, no root file system, no OCI runtime, no cgroup.
//! containerd asks for it where its configuration says `sandboxer = "shim"` (its Sandbox API).
//!
//! | file | what it is about |
//! |---|---|
//! | `config.rs` | what is wanted, and what is refused |
//! | `files.rs` | the host name, hosts, the resolver's configuration and shared memory |
//! | `maker.rs` | the process that makes the namespaces, and becomes their holder |
//! | `init.rs` | the holder, as the actor sees it |
//! | `spec.rs` | a sandbox without a holder, as containerd is to know it |

mod config;
mod files;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod init;
pub(crate) mod maker;
mod spec;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

use crate::caught::caught;
use crate::cgroup::{self, scores};
use crate::reaper::{Child, Reaper};
use crate::sizing::Size;
use crate::stdio::{self, Streams};
use crate::sys;

use super::oci::exit;
use super::{
    Beginning, Born, Container, Created, Deletion, EngineError, Facts, Halt, LastLife, Order,
    SandboxOrder, Wishes,
};

use config::Wanted;
use init::Holder;
use maker::NOBODYS;

pub(super) use files::{SHARED_MEMORY, shared};
pub use spec::spec;

/// How long the namespaces may take to be made: it is milliseconds, and longer only where the machine has
/// no time for it.
const MADE_WITHIN: Duration = Duration::from_secs(20);

/// The most that the process says that makes them.
const SAID_AT_MOST: u64 = 4096;

/// How long what is left may take to be gone, once it is killed.
const GONE_WITHIN: Duration = Duration::from_secs(1);
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(2);

/// A sandbox, and what it is to be.
#[derive(Debug)]
struct PodSandbox {
    id: String,
    bundle: PathBuf,
    wanted: Wanted,
    reaper: Reaper,
}

/// Reads what is wanted. Nothing is made by it.
///
/// # Errors
///
/// [`EngineError::Invalid`] if it cannot be had.
pub(super) fn read(
    order: &Order,
    sandbox: &SandboxOrder,
    reaper: &Reaper,
) -> Result<(Arc<dyn Container>, Facts), EngineError> {
    let wanted = Wanted::read(&order.id, &order.bundle, sandbox)?;
    let facts = Facts {
        annotations: wanted.annotations.clone(),
        // What is in a process namespace of its own dies with its first process.
        has_own_pid_namespace: true,
        has_poststop_hooks: false,
        oom_score: scores::own(),
        size: Size::UNLIMITED,
    };
    let sandbox = PodSandbox {
        id: order.id.clone(),
        bundle: order.bundle.clone(),
        wanted,
        reaper: reaper.clone(),
    };
    Ok((Arc::new(Arc::new(sandbox)), facts))
}

/// Ends and removes what a shim that has died has left in `bundle`, if that is a sandbox's.
pub fn clear(bundle: &Path) {
    // They are the first that is made, and the last that goes.
    if files::are_in(bundle) {
        end(bundle);
        files::remove(bundle);
    }
}

#[async_trait]
impl Container for Arc<PodSandbox> {
    async fn create(&self, _: &Order, _: Wishes, halt: &Halt) -> Result<Created, EngineError> {
        exit::forget(&self.bundle);
        let made = async {
            let files = &self.wanted.files;
            files.make(&self.bundle).map_err(EngineError::Failed)?;
            self.make(halt).await
        };
        let born = caught(made).await.inspect_err(|_| clear(&self.bundle))?;
        Ok(Created {
            beginning: Beginning::Parked(born),
            streams: Streams::default(),
        })
    }

    async fn create_again(
        &self,
        _: LastLife,
        _: &mut Streams,
        _: &Halt,
    ) -> Result<Born, EngineError> {
        Err(init::not_a_container("made again"))
    }

    async fn forget(&self) -> Result<(), EngineError> {
        Ok(())
    }

    async fn delete(&self, how: Deletion, streams: Vec<Streams>) -> Result<(), EngineError> {
        if how == Deletion::ByForce {
            end(&self.bundle);
        }
        files::remove(&self.bundle);
        stdio::drain(streams).await;
        Ok(())
    }

    fn record_exit(&self, pid: i32, code: u32, at: SystemTime) {
        exit::record(&self.bundle, &self.id, pid, code, at);
    }

    fn tell(&self, _: Option<&Streams>, words: &str, _: bool) -> Option<super::Work<()>> {
        tracing::info!(sandbox = self.id, "{words}");
        None
    }
}

impl PodSandbox {
    /// Makes the namespaces.
    async fn make(self: &Arc<Self>, halt: &Halt) -> Result<Born, EngineError> {
        let made = tokio::time::timeout(MADE_WITHIN, self.spawn());
        let held = tokio::select! {
            biased;
            () = halt.called() => return Err(too_late("were called off")),
            made = made => made.map_err(|_| too_late("took longer than 20 s"))??,
        };
        let parent = &self.wanted.cgroup_parent;
        let cgroup = (!parent.is_empty())
            .then(|| cgroup::Cgroup::at(parent))
            .flatten();
        let network = self.wanted.namespaces.network.clone();
        let reaper = self.reaper.clone();
        Ok(Holder::born(&self.bundle, held, reaper, cgroup, network))
    }

    /// The process that holds them, as the one says that makes them; none where none has to.
    async fn spawn(&self) -> Result<Option<Child>, EngineError> {
        let failed = |error: &dyn std::fmt::Display| {
            EngineError::Failed(format!("the pod's namespaces: {error}"))
        };
        let (says, said) = pipe::pipe().map_err(|error| failed(&error))?;
        let mut command = maker::command(&self.wanted.namespaces, &self.bundle)
            .map_err(|error| failed(&error))?;
        command.stdout(says.into_blocking_fd().map_err(|error| failed(&error))?);
        let expectation = self.reaper.expect();
        let maker = self
            .reaper
            .spawn_self(&mut command)
            .map_err(|error| failed(&error))?;
        // With its own end of the pipe.
        drop(command);
        let mut words = String::new();
        let read = said.take(SAID_AT_MOST).read_to_string(&mut words).await;
        read.map_err(|error| failed(&error))?;
        match words.trim().parse::<u32>() {
            Ok(NOBODYS) => Ok(None),
            Ok(pid) => match i32::try_from(pid).map_err(|error| failed(&error))? {
                pid if pid == maker.pid() => Ok(Some(maker)),
                pid => Ok(Some(expectation.claim(pid))),
            },
            Err(_) if words.trim().is_empty() => Err(failed(&"nothing was said of them")),
            Err(_) => Err(failed(&words.trim())),
        }
    }
}

fn too_late(what: &str) -> EngineError {
    EngineError::CutShort(format!("the pod's namespaces {what}"))
}

/// Kills whoever makes or holds the namespaces of the sandbox in `bundle`, until nobody does.
fn end(bundle: &Path) {
    let begun = Instant::now();
    loop {
        let processes = processes(bundle);
        if processes.is_empty() {
            return;
        }
        if begun.elapsed() > GONE_WITHIN {
            return tracing::warn!(?processes, "the holder of a pod's namespaces does not end");
        }
        processes.into_iter().for_each(sys::end);
        sleep(LOOK_AGAIN_AFTER);
    }
}

/// One that has ended has no words any more.
fn processes(bundle: &Path) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_one = |pid: &u32| {
        let mut words = Vec::new();
        let file = fs::File::open(format!("/proc/{pid}/cmdline"));
        let read = file.and_then(|file| file.take(SAID_AT_MOST).read_to_end(&mut words));
        read.is_ok() && maker::is_one(&words, bundle)
    };
    pids.filter(is_one).collect()
}
