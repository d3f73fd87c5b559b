//! A model of an engine: no process, no file, no directory, and tokio's time for everything that takes
//! some. With a paused clock and one thread it does the same each time.
//!
//! It keeps the [laws](super), which the conformance tests hold it to beside the real one, and is as bad as
//! they let it be: a number that is free is the next process's, a frozen container answers nothing, and
//! whatever may fail, take long or hang does so when its [`Fates`] say it.
//!
//! | file | what it is about |
//! |---|---|
//! | `machine.rs` | what there is: processes and their numbers, containers, mounts |
//! | `program.rs` | what a process does when it is executed, told to stop, left alone |
//! | `fate.rs` | what goes wrong |
//! | `container.rs`, `init.rs` | the handles |
//! | `cgroup.rs` | cgroups of containers and pods |

mod cgroup;
mod container;
mod fate;
mod init;
mod machine;
mod program;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sizing::Size;

use super::{Beginning, Container, Engine, EngineError, Facts, Halt, Init, Order, Sandbox, Wishes};

pub use fate::{Deed, Fate, Fates};
pub use machine::{Happening, Left, Machine};
pub use program::{OnStop, Program};

use container::SimContainer;

/// A simulated engine. Clones share one machine.
#[derive(Clone, Debug, Default)]
pub struct SimEngine {
    machine: Arc<Mutex<Machine>>,
}

/// What a bundle says, in the place of a `config.json`.
#[derive(Clone, Debug)]
pub struct SimBundle {
    pub annotations: BTreeMap<String, String>,
    pub has_own_pid_namespace: bool,
    pub has_poststop_hooks: bool,
    /// A plain kill(2) reaches its processes; else its signals go the long way.
    pub is_native: bool,
    pub oom_score: i32,
    pub size: Size,
    /// The UID of the pod whose cgroup it is in.
    pub pod_uid: Option<String>,
    /// What it executes in each of its lives; in those after the last one that.
    pub lives: Vec<Program>,
    /// What a further process in it does.
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
            lives: vec![Program::default()],
            exec: Program::exits(0),
        }
    }
}

impl SimEngine {
    /// An engine on a machine whose faults are these.
    pub fn with_fates(fates: impl Fates) -> SimEngine {
        let engine = SimEngine::default();
        engine.lock().fates = Box::new(fates);
        engine
    }

    /// Puts a bundle where a Create will look for it.
    pub fn put(&self, directory: impl Into<PathBuf>, bundle: SimBundle) {
        self.lock().bundles.insert(directory.into(), bundle);
    }

    /// The init process of a new container with nothing special about it, parked.
    pub async fn parked(&self, id: &str) -> Arc<dyn Init> {
        let order = Order {
            id: id.to_owned(),
            bundle: PathBuf::from(format!("/bundles/{id}")),
            ..Order::default()
        };
        self.put(&order.bundle, SimBundle::default());
        let (container, _) = self.read(&order, None).expect("a bundle");
        let halt = Halt::default();
        let created = container.create(&order, Wishes::default(), &halt);
        match created.await.expect("a container").beginning {
            Beginning::Parked(born) => born.init,
            Beginning::ToRestore(_) => panic!("{id} is from no checkpoint"),
        }
    }

    /// What there is now.
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
        // Which namespaces it joins nobody here can tell.
        let _ = sandbox;
        machine.fate(Deed::Read, &order.id).outcome?;
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
