//! The [engine](usher_engine) for OCI runtimes: runc, and runtimes with the same command line.
//!
//! | file | subject |
//! |---|---|
//! | `runtime.rs`, `command.rs` | the runtime's commands, one method per verb |
//! | `limits.rs`, `error.rs`, `log.rs` | the time limits and errors of these commands |
//! | `bundle.rs`, `config.rs` | the bundle's configuration, read and changed |
//! | `options.rs`, `exit.rs` | files of the bundle: containerd's options, the recorded exit |
//! | `shim_path.rs` | file of the bundle: the path of the shim |
//! | `joined.rs` | files of the first container's bundle: the pod's other containers |
//! | `container.rs` | a container: created, restarted in place, removed |
//! | `restoration.rs` | a container that is restored from a checkpoint |
//! | `forget.rs`, `state.rs` | the runtime's state of a container: removed and read |
//! | `init.rs`, `release.rs` | the init process: released, killed, frozen, updated |
//! | `exec.rs` | execs |
//! | `checkpoint.rs` | checkpoints by criu |
//! | `cgroup.rs` | the cgroups of the container and its pod |
//! | `kind.rs`, `leftovers.rs` | the engine's part of the shim's commands, such as `delete` |
//! | `sandbox` | a pod's shared resources without a pause container |

// clippy.toml has the limit. Tests may exceed it.
#![cfg_attr(not(test), deny(clippy::large_futures))]
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::restriction, reason = "tests may panic"))]
// Tests may block; only the serving thread must not.
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests may wait"))]

#[cfg(test)]
mod agreement;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle and the OCI runtime's state: containerd's own directories, in memory"
)]
mod bundle;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle, in memory, and a process that serves nothing"
)]
mod cgroup;
mod checkpoint;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle and the OCI runtime's state: containerd's own directories, in memory"
)]
mod command;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle and the OCI runtime's state: containerd's own directories, in memory"
)]
mod config;
mod container;
mod error;
mod exec;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle and the OCI runtime's state: containerd's own directories, in memory"
)]
pub mod exit;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle and the OCI runtime's state: containerd's own directories, in memory"
)]
mod forget;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod init;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle, in memory, and a process that serves nothing"
)]
mod joined;
#[expect(clippy::disallowed_methods, reason = "a process that serves nothing")]
mod kind;
#[expect(clippy::disallowed_methods, reason = "a process that serves nothing")]
mod leftovers;
mod limits;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle and the OCI runtime's state: containerd's own directories, in memory"
)]
mod log;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle, in memory; a file that options name is read on a thread"
)]
pub mod options;
#[expect(
    clippy::disallowed_methods,
    reason = "the OCI runtime's state is in memory; sleeps take a fraction of a millisecond"
)]
mod release;
mod restoration;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle and the OCI runtime's state: containerd's own directories, in memory"
)]
mod runtime;
#[expect(clippy::disallowed_methods, reason = "the bundle and /proc, in memory")]
pub mod sandbox;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle and the OCI runtime's state: containerd's own directories, in memory"
)]
mod shim_path;
#[expect(
    clippy::disallowed_methods,
    reason = "the bundle and the OCI runtime's state: containerd's own directories, in memory"
)]
mod state;
mod words;

use std::sync::Arc;

use containerd_shim_protos::protobuf::well_known_types::any::Any;

use usher_core::plan::termination_message_path;
use usher_core::sizing::Size;
use usher_linux::cgroup::{moves, scores};
use usher_linux::offload::Threads;
use usher_linux::reaper::Reaper;
use usher_linux::stdio::EarlyOpener;

use usher_engine::{Container, Engine, EngineError, Facts, Namespaces, Order, Sandbox, Work};

pub use bundle::{Bundle, BundleError};
pub use cgroup::{OciPodCgroup, restore_pod_cgroup};
pub use command::is_command_log;
pub use error::{RuntimeError, Verb};
pub(crate) use init::kill;
pub use kind::Oci;
pub use options::Options;
pub use runtime::{OciRuntime, retry_on_exhaustion};

use container::{Handle, OciContainer};
use words::Words;

/// The engine that runs containers with OCI runtimes. The options of a container name its runtime.
#[derive(Clone, Debug)]
pub struct OciEngine {
    namespace: String,
    reaper: Reaper,
    /// The thread that reads a file named in the options. Only one such thread runs at a time. So
    /// if a disk stalls a read, repeated requests start no further threads.
    options_files: Threads,
}

impl OciEngine {
    /// Makes an engine for containers of containerd's `namespace`; `reaper` reaps their processes.
    pub fn new(namespace: &str, reaper: Reaper) -> OciEngine {
        OciEngine {
            namespace: namespace.to_owned(),
            reaper,
            options_files: Threads::one_at_a_time(),
        }
    }
}

impl Engine for OciEngine {
    fn read_options_file(&self, order: &Order) -> Option<Work<Result<Any, EngineError>>> {
        let options = order.options.clone()?;
        let threads = self.options_files.clone();
        options::name_a_file(&options).then(|| -> Work<_> {
            Box::pin(async move {
                let read = threads.run(move || options::with_file(options)).await;
                let read = read.map_err(EngineError::failed)?;
                read.map_err(EngineError::invalid)
            })
        })
    }

    fn read(
        &self,
        order: &Order,
        sandbox: Option<&Sandbox>,
    ) -> Result<(Arc<dyn Container>, Facts), EngineError> {
        if let Some(wanted) = &order.sandbox {
            return sandbox::read(order, wanted, &self.reaper);
        }
        let given = order.options.as_ref();
        let options = options::from_any(given);
        let mut options = options.map_err(EngineError::invalid)?;
        let bundle = Bundle::read(&order.bundle);
        let bundle = bundle.map_err(EngineError::invalid)?;
        options.systemd_cgroup |= options::implies_systemd_cgroup(given, &options, &bundle);
        let joins = Namespaces::named(bundle.namespaces(), sandbox)
            .map_err(|error| EngineError::Precondition(error.to_string()))?;
        let reaper = self.reaper.with_own_threads();
        let runtime = OciRuntime::new(&options, &self.namespace, &order.bundle, reaper.clone());
        let message = termination_message_path(&bundle.annotations);
        let message = message.and_then(|path| bundle.mount_source(path));
        let container = OciContainer {
            id: order.id.clone(),
            namespace: self.namespace.clone(),
            bundle: order.bundle.clone(),
            paths: order.paths.clone(),
            owner: options.owner(&bundle),
            options,
            runtime,
            early: EarlyOpener::default(),
            reaper,
            words: Words::default(),
            joins,
            shares: sandbox.and_then(|sandbox| sandbox.own.clone()),
            termination_message: message.map(ToOwned::to_owned),
            has_own_pid_namespace: bundle.has_own_pid_namespace(),
            has_poststart_hooks: bundle.has_poststart_hooks(),
            has_poststop_hooks: bundle.has_poststop_hooks(),
        };
        let facts = Facts {
            has_own_pid_namespace: container.has_own_pid_namespace,
            has_poststop_hooks: container.has_poststop_hooks,
            oom_score: bundle.oom_score().unwrap_or_else(scores::own),
            size: bundle.resources().change(Size::UNLIMITED),
            annotations: bundle.annotations,
        };
        Ok((Arc::new(Handle(Arc::new(container))), facts))
    }

    fn allowed_score(&self, wanted: i32, instead_of: i32) -> i32 {
        scores::allowed(wanted, instead_of)
    }

    fn prepare_for_container(&self) {
        moves::prepare_for_container();
    }
}
