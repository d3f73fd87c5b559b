//! A pod's sandbox that is no container: its namespaces, held by a process as small as can be, and its files.
//!
//! Such a sandbox has no image, no root file system and no OCI runtime.
//! containerd asks for it where its configuration says `sandboxer = "shim"` (its Sandbox API).
//!
//! | file | what it is about |
//! |---|---|
//! | `config.rs` | what is wanted, and what is refused |
//! | `files.rs` | the host name, hosts, the resolver's configuration and shared memory |
//! | `maker.rs` | the process that makes all of it, and becomes the holder of its namespaces |
//! | `making.rs` | that process, as the shim sees it |
//! | `init.rs` | the holder, as the actor sees it |
//! | `spec.rs` | a sandbox, as containerd is to know it |

mod config;
mod files;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod init;
pub(crate) mod maker;
mod making;
mod spec;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use async_trait::async_trait;
use tokio::task::spawn_blocking;

use crate::caught::caught;
use crate::cgroup::{self, remains, scores};
use crate::reaper::{Child, Reaper};
use crate::sizing::Size;
use crate::stdio::{self, Streams};

use super::oci::exit;
use super::{
    Beginning, Born, Container, Created, Deletion, EngineError, Facts, Halt, LastLife, Order,
    OwnSandbox, SandboxOrder, Wishes,
};

use config::Wanted;
use init::Holder;
use maker::Making;

pub(super) use files::SHARED_MEMORY;
pub use spec::spec;

/// A sandbox, and what it is to be.
#[derive(Debug)]
struct PodSandbox {
    id: String,
    bundle: PathBuf,
    wanted: Wanted,
    reaper: Reaper,
    /// Set at the creation.
    holder: OnceLock<Arc<Holder>>,
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
        holder: OnceLock::new(),
    };
    Ok((Arc::new(Arc::new(sandbox)), facts))
}

/// True if there is something of a sandbox in `bundle` that [`clear`] removes.
pub fn is_in(bundle: &Path) -> bool {
    files::are_in(bundle)
}

/// Ends and removes what is left in `bundle` of sandbox `id`. Its processes are those in the cgroup that was made
/// for them, whatever they are called; others have ended with their shim's leash.
pub async fn clear(bundle: &Path, id: &str) {
    let noted = beside(bundle, files::noted_cgroup).await;
    remains::raze(&remains::of_container(noted.unwrap_or_default(), None, id)).await;
    beside(bundle, files::remove).await;
}

/// Does what a disk may stall on a thread of its own; none if it has panicked.
async fn beside<T: Send + 'static>(
    bundle: &Path,
    work: impl FnOnce(&Path) -> T + Send + 'static,
) -> Option<T> {
    let bundle = bundle.to_owned();
    let done = spawn_blocking(move || work(&bundle)).await;
    done.inspect_err(|error| tracing::error!(%error, "a sandbox's files"))
        .ok()
}

#[async_trait]
impl Container for Arc<PodSandbox> {
    async fn create(&self, _: &Order, _: Wishes, halt: &Halt) -> Result<Created, EngineError> {
        exit::forget(&self.bundle);
        let born = match caught(self.make(halt)).await {
            Ok(born) => born,
            Err(error) => {
                clear(&self.bundle, &self.id).await;
                return Err(error);
            }
        };
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
        if let (Deletion::Forced, Some(holder)) = (how, self.holder.get()) {
            holder.raze().await;
        }
        clear(&self.bundle, &self.id).await;
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
    /// Makes the files and the namespaces.
    async fn make(&self, halt: &Halt) -> Result<Born, EngineError> {
        let parent = &self.wanted.cgroup_parent;
        let pod = (!parent.is_empty())
            .then(|| cgroup::Cgroup::at(parent))
            .flatten();
        let cgroup = pod.as_ref().map(|pod| pod.directories_below(&self.id));
        let making = Making {
            bundle: self.bundle.clone(),
            namespaces: self.wanted.namespaces.clone(),
            files: self.wanted.files.clone(),
            cgroup: cgroup.unwrap_or_default(),
        };
        let (child, leash) = making::make(&making, &self.reaper, halt).await?;
        let pid = child.as_ref().map_or(0, Child::pid);
        let holder = Holder::new(pid, leash, self.reaper.clone(), pod, self.own(pid));
        let holder = Arc::new(holder);
        let ending = init::ending(&holder, child);
        // It is created once.
        let _ = self.holder.set(Arc::clone(&holder));
        Ok(Born {
            init: holder,
            ending,
        })
    }

    /// The parts that the pod's containers share and containerd is told of.
    fn own(&self, holder: i32) -> OwnSandbox {
        let wanted = &self.wanted.namespaces;
        let made = [
            (wanted.ipc, "ipc"),
            (wanted.uts, "uts"),
            (wanted.pid, "pid"),
            (wanted.is_in_user_namespace, "user"),
        ];
        let made = made.into_iter().filter(|(is_own, _)| *is_own);
        let made = made.map(|(_, kind)| match &wanted.pins {
            // Each is called as its file.
            Some(pins) => (kind, pins.join(kind)),
            None => (kind, PathBuf::from(format!("/proc/{holder}/ns/{kind}"))),
        });
        let network = wanted.network.clone().map(|path| ("network", path));
        OwnSandbox {
            files: self.wanted.files.shared(&self.bundle),
            namespaces: network.into_iter().chain(made).collect(),
            annotations: self.wanted.annotations.clone(),
            hostname: wanted.hostname.clone(),
        }
    }
}
