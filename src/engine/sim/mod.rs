//! A simulated engine, for tests: without processes and files, and with tokio's clock. With a
//! paused clock and one thread it is deterministic.
//!
//! It obeys the [laws](super), which the same conformance tests check for the real engine.
//! Otherwise it is as adversarial as the laws permit. A free PID goes to the next process, and a
//! frozen container reacts to nothing. A call fails, takes long or hangs if its [`FaultPlan`]
//! decides so.
//!
//! | file | subject |
//! |---|---|
//! | `machine.rs` | the machine: processes and PIDs, containers, mounts |
//! | `program.rs` | behavior of processes |
//! | `fault.rs` | faults |
//! | `container.rs`, `init.rs` | the handles |
//! | `cgroup.rs` | cgroups of containers and pods |

mod cgroup;
mod container;
mod fault;
mod init;
mod machine;
mod program;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use usher_core::sizing::Size;

use super::{
    CancelToken, Container, CreateOptions, Engine, EngineError, Facts, Init, InitialState, Order,
    Sandbox,
};

pub use fault::{EngineCall, Fault, FaultPlan};
pub use machine::{Happening, Left, Machine};
pub use program::{OnStop, Program};

use container::SimContainer;

/// A simulated engine; clones share one machine.
#[derive(Clone, Debug, Default)]
pub struct SimEngine {
    machine: Arc<Mutex<Machine>>,
}

/// A simulated bundle, which has no `config.json`.
#[derive(Clone, Debug)]
pub struct SimBundle {
    pub annotations: BTreeMap<String, String>,
    pub has_own_pid_namespace: bool,
    pub has_poststop_hooks: bool,
    /// True if kill(2) reaches the container's processes. Otherwise a signal needs a command of the
    /// runtime.
    pub is_native: bool,
    pub oom_score: i32,
    pub size: Size,
    /// UID of the pod in whose cgroup the container is.
    pub pod_uid: Option<String>,
    /// Programs of the container's init processes: the first program for the first process, and so
    /// on. Further init processes run the last program.
    pub programs: Vec<Program>,
    /// Program of the container's execs.
    pub exec: Program,
}

impl Default for SimBundle {
    fn default() -> SimBundle {
        SimBundle {
            annotations: BTreeMap::new(),
            has_own_pid_namespace: true,
            has_poststop_hooks: false,
            is_native: true,
            oom_score: 0,
            size: Size::UNLIMITED,
            pod_uid: None,
            programs: vec![Program::default()],
            exec: Program::exits(0),
        }
    }
}

impl SimEngine {
    /// Makes an engine on a machine with these faults.
    pub fn with_fault_plan(fault_plan: impl FaultPlan) -> SimEngine {
        let engine = SimEngine::default();
        engine.lock().fault_plan = Box::new(fault_plan);
        engine
    }

    pub fn put(&self, directory: impl Into<PathBuf>, bundle: SimBundle) {
        self.lock().bundles.insert(directory.into(), bundle);
    }

    /// Creates a container with default settings. Returns its init process, which waits to execute
    /// the program.
    pub async fn parked(&self, id: &str) -> Arc<dyn Init> {
        let order = Order {
            id: id.to_owned(),
            bundle: PathBuf::from(format!("/bundles/{id}")),
            ..Order::default()
        };
        self.put(&order.bundle, SimBundle::default());
        let (container, _) = self.read(&order, None).expect("a bundle");
        let token = CancelToken::default();
        let created = container.create(&order, CreateOptions::default(), &token);
        match created.await.expect("a container").initial_state {
            InitialState::Parked(new_init) => new_init.init,
            InitialState::ToRestore(_) => panic!("{id} has no checkpoint"),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Machine> {
        self.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine for SimEngine {
    fn read(
        &self,
        order: &Order,
        sandbox: Option<&Sandbox>,
    ) -> Result<(Arc<dyn Container>, Facts), EngineError> {
        let mut machine = self.lock();
        // The simulated engine has no namespaces, so the sandbox has no effect.
        let _ = sandbox;
        machine.fault(EngineCall::Read, &order.id).outcome?;
        let bundle = machine.bundles.get(&order.bundle).cloned();
        let bundle = bundle.ok_or_else(|| {
            let path = order.bundle.join("config.json");
            EngineError::Invalid(format!("{}: not found", path.display()))
        })?;
        let facts = Facts {
            annotations: bundle.annotations.clone(),
            has_own_pid_namespace: bundle.has_own_pid_namespace,
            has_poststop_hooks: bundle.has_poststop_hooks,
            oom_score: bundle.oom_score,
            size: bundle.size,
        };
        let container = SimContainer::new(self.clone(), order, bundle);
        Ok((Arc::new(Arc::new(container)), facts))
    }

    fn allowed_score(&self, wanted: i32, instead_of: i32) -> i32 {
        match self.lock().may_lower_scores {
            true => wanted,
            false => wanted.max(instead_of.min(0)),
        }
    }
}
