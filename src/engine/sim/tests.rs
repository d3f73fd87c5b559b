//! Tests that the simulated engine obeys the laws.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::ExecOrder;
use crate::laws::{self, Runs, Testbed};
use usher_core::process::ExitStatus;

/// The simulated program with the behavior `runs`.
fn program(runs: Runs) -> Program {
    let told = OnStop::Ends(Duration::ZERO, ExitStatus::Code(7));
    match runs {
        Runs::UntilTold => Program {
            on_stop: told,
            ..Program::default()
        },
        Runs::UntilKilled => Program::deaf(),
        Runs::AndExits(code) => Program::exits(code),
    }
}

#[derive(Debug)]
struct Broken;

impl FaultPlan for Broken {
    fn of(&mut self, call: EngineCall, id: &str) -> Fault {
        match (call, id) {
            (EngineCall::Create, "broken") => {
                Fault::failure(Duration::from_secs(1), "it is broken")
            }
            _ => Fault::delay(Duration::from_millis(1)),
        }
    }
}

struct Simulated(SimEngine);

impl Testbed for Simulated {
    fn engine(&self) -> Arc<dyn Engine> {
        Arc::new(self.0.clone())
    }

    fn order(&self, id: &str, has_own_pid_namespace: bool, runs: Runs, execs: Runs) -> Order {
        let directory = PathBuf::from(format!("/bundles/{id}"));
        let bundle = SimBundle {
            has_own_pid_namespace,
            programs: vec![program(runs)],
            exec: program(execs),
            annotations: BTreeMap::new(),
            ..SimBundle::default()
        };
        self.0.put(&directory, bundle);
        Order {
            id: id.to_owned(),
            bundle: directory,
            ..Order::default()
        }
    }

    fn broken_order(&self, id: &str) -> Order {
        self.order(id, true, Runs::UntilTold, Runs::UntilTold)
    }

    fn exec(&self, exec_id: &str, _: Runs) -> ExecOrder {
        ExecOrder {
            exec_id: exec_id.to_owned(),
            ..ExecOrder::default()
        }
    }

    fn was_executed(&self, id: &str) -> bool {
        self.0.lock().was_executed(id)
    }

    fn is_there(&self, pid: i32) -> bool {
        self.0.lock().is_taken(pid)
    }

    fn left_of(&self, id: &str) -> String {
        let left = self.0.lock().left();
        let mut found = Vec::new();
        let processes = left.processes.iter().filter(|(whose, _)| whose == id);
        found.extend(processes.map(|(_, pid)| format!("process {pid}")));
        let containers = left.containers.iter().filter(|whose| *whose == id);
        found.extend(containers.map(|id| format!("container {id}")));
        let mounts = left.mounts.iter().filter(|at| at.ends_with(id));
        found.extend(mounts.map(|at| format!("mount {}", at.display())));
        found.join(", ")
    }
}

#[tokio::test(start_paused = true)]
async fn the_simulated_engine_obeys_the_laws() {
    laws::check_all(&Simulated(SimEngine::with_fault_plan(Broken))).await;
}

#[tokio::test(start_paused = true)]
async fn a_free_pid_is_reused_by_the_next_process() {
    let engine = SimEngine::default();
    let running = || machine::State::Running(Program::default());
    let (serial, first, _end) = engine.lock().spawn("a", None, true, 0, running());
    engine.dies(serial, ExitStatus::Code(0));
    let (_, second, _end) = engine.lock().spawn("b", None, true, 0, running());
    assert_eq!(first, second);
    let killed = engine.signal(serial, usher_core::plan::Signal::KILL);
    assert!(matches!(killed, Err(EngineError::Gone(_))), "{killed:?}");
    assert_eq!(engine.lock().members("b").len(), 1);
}
