//! A pod's sandbox without a pause container: namespaces, held by a minimal process or by bind
//! mounts, and files.
//!
//! Such a sandbox has no image, root file system or OCI runtime. containerd requests it with
//! `sandboxer = "shim"` in its configuration (its Sandbox API).
//!
//! | file | subject |
//! |---|---|
//! | `config.rs` | reads and checks kubelet's configuration |
//! | `files.rs` | hostname, hosts, resolv.conf and shared memory |
//! | `maker.rs` | the maker process, which makes the sandbox and then usually holds its namespaces |
//! | `making.rs` | starts the maker and waits for its answer |
//! | `scope.rs` | the cgroup of maker and holder, if systemd makes the cgroups |
//! | `init.rs` | the holder, as an init process |

mod config;
mod error;
mod files;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod init;
pub mod maker;
mod making;
mod scope;

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use async_trait::async_trait;
use tokio::task::spawn_blocking;

use usher_core::sizing::Size;
use usher_engine::catch_panic;
use usher_linux::cgroup::{self, cleanup, scores};
use usher_linux::reaper::{Child, Reaper};
use usher_linux::stdio::{self, Streams};

use crate::exit;
use usher_engine::{
    CancelToken, Container, CreateOptions, Created, Deletion, EngineError, Facts, InitialState,
    NewInit, Order, OwnSandbox, PreviousInit, SandboxOrder, Work,
};

use config::Wanted;
use init::Holder;
use maker::Making;
use scope::Scope;

pub(crate) use files::SHARED_MEMORY;

/// The sandbox of a pod. This value exists already before the sandbox is created.
#[derive(Debug)]
struct PodSandbox {
    id: String,
    bundle: PathBuf,
    wanted: Wanted,
    reaper: Reaper,
    /// The process that holds the sandbox's namespaces; empty before the sandbox is created.
    holder: OnceLock<Arc<Holder>>,
}

/// Reads the request for a sandbox; changes nothing.
///
/// # Errors
///
/// [`EngineError::Invalid`] if the sandbox is not supported.
pub(crate) fn read(
    order: &Order,
    sandbox: &SandboxOrder,
    reaper: &Reaper,
) -> Result<(Arc<dyn Container>, Facts), EngineError> {
    let wanted = Wanted::read(&order.id, &order.bundle, sandbox)?;
    let facts = Facts {
        annotations: wanted.annotations.clone(),
        // Nothing is left to kill when the holder has exited: in a PID namespace, all processes die
        // with the first one.
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
    Ok((Arc::new(sandbox), facts))
}

/// True if `bundle` has parts of a sandbox. [`clear`] removes them.
pub fn is_in(bundle: &Path) -> bool {
    files::are_in(bundle)
}

/// Removes the leftovers of sandbox `id` in `bundle`, and kills the processes in the cgroup that
/// was made for the sandbox. If no cgroup was made, no process is left, because the kernel ends the
/// sandbox's processes when the shim dies.
pub async fn clear(bundle: &Path, id: &str) {
    let noted = beside(bundle, files::noted_cgroup).await;
    cleanup::kill_and_remove(&cleanup::of_container(noted.unwrap_or_default(), None, id)).await;
    beside(bundle, files::remove).await;
}

/// Runs work on a thread of its own, because a disk may stall it. `None` if the work has panicked.
async fn beside<T: Send + 'static>(
    bundle: &Path,
    work: impl FnOnce(&Path) -> T + Send + 'static,
) -> Option<T> {
    let bundle = bundle.to_owned();
    let done = spawn_blocking(move || work(&bundle)).await;
    done.inspect_err(
        |error| tracing::error!(%error, "internal error in the work on a sandbox's files"),
    )
    .ok()
}

#[async_trait]
impl Container for PodSandbox {
    async fn create(
        &self,
        _: &Order,
        _: CreateOptions,
        token: &CancelToken,
    ) -> Result<Created, EngineError> {
        exit::forget(&self.bundle);
        let new_init = match catch_panic(self.make(token)).await {
            Ok(new_init) => new_init,
            Err(error) => {
                clear(&self.bundle, &self.id).await;
                return Err(error);
            }
        };
        Ok(Created {
            initial_state: InitialState::Parked(new_init),
            streams: Streams::default(),
        })
    }

    async fn create_again(
        &self,
        _: PreviousInit,
        _: &mut Streams,
        _: &CancelToken,
    ) -> Result<NewInit, EngineError> {
        Err(init::not_a_container("restarted in place"))
    }

    async fn forget(&self) -> Result<(), EngineError> {
        Ok(())
    }

    async fn delete(&self, how: Deletion, streams: Vec<Streams>) -> Result<(), EngineError> {
        if let (Deletion::Forced, Some(holder)) = (how, self.holder.get()) {
            holder.kill_and_wait().await;
        }
        clear(&self.bundle, &self.id).await;
        stdio::drain(streams).await;
        Ok(())
    }

    fn record_exit(&self, pid: i32, code: u32, at: SystemTime) {
        exit::record(&self.bundle, &self.id, pid, code, at);
    }

    fn write_message(&self, _: Option<&Streams>, words: &str, _: bool) -> Option<Work<()>> {
        tracing::info!(sandbox = self.id, "{words}");
        None
    }
}

impl PodSandbox {
    /// Makes the files and the namespaces.
    async fn make(&self, token: &CancelToken) -> Result<NewInit, EngineError> {
        let parent = &self.wanted.cgroup_parent;
        let pod = (!parent.is_empty())
            .then(|| cgroup::Cgroup::at(parent))
            .flatten();
        let scope = Scope::below(parent, &self.id);
        let name = scope.as_ref().map_or(&self.id, |scope| &scope.name);
        let cgroup = pod.as_ref().map(|pod| pod.directories_below(name));
        let making = Making {
            bundle: self.bundle.clone(),
            namespaces: self.wanted.namespaces.clone(),
            files: self.wanted.files.clone(),
            cgroup: cgroup.unwrap_or_default(),
            scope,
        };
        let (child, leash) = making::make(&making, &self.reaper, token).await?;
        let pid = child.as_ref().map_or(0, Child::pid);
        let holder = Holder::new(pid, leash, self.reaper.clone(), pod, self.own(pid));
        let holder = Arc::new(holder);
        let exit_future = init::exit_future(&holder, child);
        // Cannot fail, because a sandbox is created once.
        let _ = self.holder.set(Arc::clone(&holder));
        Ok(NewInit {
            init: holder,
            exit_future,
        })
    }

    /// Returns the parts of the sandbox that all containers of the pod share: namespaces, files and
    /// the hostname. `holder` is the PID of the process that holds the namespaces.
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
            // The namespace is mounted on a file with the name of its type.
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
