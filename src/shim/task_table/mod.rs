//! The actor's table of tasks: their processes, the engine's handles of them, and the callers that
//! wait for them.

pub mod carryover;
pub mod handles;
pub mod outcome;
mod process;
mod score;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
use std::{iter, mem};

use usher_core::plan::{Allotment, KubeletFacts};
use usher_engine::{Container, Order};
use usher_linux::stdio::Streams;

use crate::calls::{CallError, Deleted, Figures, Kind, Members, Waiting};

use carryover::RestartCarryover;
use handles::Handles;

pub use process::{Exec, Execution, Process};
pub use score::{Score, ScoreLog};

/// A container and its processes.
#[derive(Debug)]
pub struct Task {
    pub bundle: PathBuf,
    pub created_at: SystemTime,
    pub container: Arc<dyn Container>,
    pub facts: Facts,
    /// The container's init process, as the caller knows it.
    pub init: Process,
    pub execs: BTreeMap<String, Exec>,
    pub handles: Handles,
    pub score: Score,
    pub carryover: RestartCarryover,
    /// Callers that wait for the deletion of the task.
    pub deleters: Waiting<Deleted>,
}

/// Facts from the bundle that are needed after the creation.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The container's named ports.
    pub ports: BTreeMap<String, u16>,
    /// Only for a sandbox: the resources allotted to the pod's containers.
    pub allotment: Allotment,
}

impl From<&KubeletFacts> for Facts {
    fn from(facts: &KubeletFacts) -> Facts {
        Facts {
            ports: facts.ports.clone(),
            allotment: facts.allotment,
        }
    }
}

impl Task {
    /// Creates the entry of a container that is about to be created.
    pub fn new(
        order: &Order,
        container: Arc<dyn Container>,
        created_at: SystemTime,
        facts: Facts,
        score: Score,
    ) -> Task {
        Task {
            bundle: order.bundle.clone(),
            created_at,
            container,
            facts,
            init: Process::new(order.paths.clone()),
            execs: BTreeMap::new(),
            handles: Handles::default(),
            score,
            carryover: RestartCarryover::default(),
            deleters: Waiting::default(),
        }
    }

    /// The init process, or an exec if `exec_id` is not empty. `None` if the exec does not exist.
    pub fn process(&self, exec_id: &str) -> Option<&Process> {
        match exec_id {
            "" => Some(&self.init),
            exec_id => self.execs.get(exec_id).map(|exec| &exec.process),
        }
    }

    pub fn process_mut(&mut self, exec_id: &str) -> Option<&mut Process> {
        match exec_id {
            "" => Some(&mut self.init),
            exec_id => self.execs.get_mut(exec_id).map(|exec| &mut exec.process),
        }
    }

    /// Takes the streams of all processes, for the deletion, which passes on the rest of the
    /// output.
    pub fn take_streams(&mut self) -> Vec<Streams> {
        let execs = self.execs.values_mut().map(|exec| &mut exec.process);
        let processes = iter::once(&mut self.init).chain(execs);
        let streams = processes.map(|process| mem::take(&mut process.streams));
        streams.collect()
    }

    /// The source of the task's metrics.
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`] if the task's cgroup is unknown.
    pub fn figures(&self, id: &str) -> Result<Figures, CallError> {
        self.handles.figures().ok_or_else(|| {
            let message = format!("task {id} has no metrics: its cgroup is unknown");
            CallError::new(Kind::NotFound, message)
        })
    }

    /// The cgroup from which the processes of the running task are read, and the ids of its execs.
    ///
    /// # Errors
    ///
    /// [`Kind::FailedPrecondition`] if the task's cgroup is unknown.
    pub fn members(&self, id: &str) -> Result<Members, CallError> {
        let cgroup = self.handles.cgroup().cloned().ok_or_else(|| {
            let message = format!("cannot list processes of task {id}: its cgroup is unknown");
            CallError::new(Kind::FailedPrecondition, message)
        })?;
        let execs = self.execs.iter();
        let execs = execs.map(|(id, exec)| (exec.process.pid, id.clone()));
        Ok(Members {
            cgroup: Some(cgroup),
            execs: execs.collect(),
            known_pid: self.init.known_pid(),
        })
    }

    /// Answers all open Wait and Delete calls for the task and its execs with the error `why`.
    /// Called when the task is removed.
    pub fn fail_waits_and_deletes(&mut self, why: &CallError) {
        self.init.answer_waits(Err(why.clone()));
        self.deleters.answer(&Err(why.clone()));
        for exec in self.execs.values_mut() {
            exec.process.answer_waits(Err(why.clone()));
        }
    }
}
