//! The simulated machine: processes and PIDs, containers, mounts.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use crate::{CancelToken, EngineError, Knob};
use usher_core::lifecycle::Report;
use usher_core::plan::Signal;
use usher_core::process::ExitStatus;

use super::cgroup::PodValues;
use super::fault::{EngineCall, Fault, FaultPlan, NoFaults};
use super::{OnStop, Program, SimBundle, SimEngine};

/// Exit status of runc's init process if a stop signal comes before the program is executed: Go's
/// runtime then exits with code 2.
const PARKED_ENDS_WITH: ExitStatus = ExitStatus::Code(2);

/// Number of a process. Unlike a PID, the number is never reused.
pub(super) type Serial = u64;

/// The simulated machine: its processes, cgroups and mounts.
#[derive(Debug)]
pub struct Machine {
    pub(super) fault_plan: Box<dyn FaultPlan>,
    pub(super) bundles: BTreeMap<PathBuf, SimBundle>,
    /// Containers that the engine knows, by ID.
    pub(super) containers: BTreeMap<String, Known>,
    pub(super) processes: BTreeMap<Serial, Process>,
    pub(super) mounts: BTreeSet<PathBuf>,
    pub(super) pods: BTreeMap<String, PodValues>,
    /// Events with their times.
    pub story: Vec<(Instant, Happening)>,
    /// Programs of execs that differ from the exec program of the bundle. The key has the IDs of
    /// container and exec.
    pub execs: BTreeMap<(String, String), Program>,
    /// Notified of each event.
    pub(super) happened: Arc<Notify>,
    /// True if the simulated kernel allows that OOM scores are lowered.
    pub may_lower_scores: bool,
    /// True if systemd manages the cgroups of pods.
    pub has_systemd: bool,
    /// True if systemd writes the values that it was told directly after the shim's next value.
    pub systemd_interferes: bool,
    serials: Serial,
    /// Containers whose program was executed at any time.
    executed: BTreeSet<String>,
    /// Free PIDs. The PID that was freed last is at the end.
    free: Vec<i32>,
    /// Highest PID used so far.
    fresh: i32,
    /// For each held PID, the number of holds.
    held: BTreeMap<i32, usize>,
}

/// An event of the machine.
#[derive(Clone, Debug, PartialEq)]
pub enum Happening {
    /// A container's init process was created. It waits to execute the program.
    Parked {
        id: String,
        pid: i32,
    },
    Executed {
        id: String,
    },
    ExecBegan {
        id: String,
        exec_id: String,
        pid: i32,
    },
    /// The init got a signal.
    Signalled {
        id: String,
        signal: Signal,
    },
    /// A process has exited: the init, or an exec.
    Died {
        id: String,
        exec_id: Option<String>,
        pid: i32,
        status: ExitStatus,
    },
    /// The kernel has OOM-killed a process.
    OutOfMemory {
        id: String,
    },
    /// The postStart handler was executed again.
    PostStarted {
        id: String,
    },
    HookBegan {
        id: String,
    },
    HookEnded {
        id: String,
    },
    ExitRecorded {
        id: String,
        pid: i32,
        code: u32,
    },
    Forgotten {
        id: String,
    },
    /// `call` began while another call was in progress that must not overlap with it
    /// ([`Container`](crate::Container)).
    Overlapped {
        call: EngineCall,
        id: String,
    },
    /// The container's memory limit was set to `memory` bytes.
    Limited {
        id: String,
        memory: u64,
    },
    /// A value of the pod's cgroup was written.
    PodSized {
        knob: Knob,
        value: u64,
    },
    /// A message was written to the container's owner.
    MessageWritten {
        id: String,
        words: String,
    },
    /// The core has reported this decision or event.
    Decided(Report),
    /// A call has failed, with this message.
    Failed {
        call: EngineCall,
        id: String,
        why: String,
    },
}

/// A container that the engine knows.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub init: Option<Serial>,
    pub is_frozen: bool,
    pub oom_kills: u64,
    /// Notified of each OOM kill.
    pub killed: Arc<Notify>,
    pub memory_usage: u64,
}

/// A process, until its exit is reported.
#[derive(Debug)]
pub(super) struct Process {
    pub pid: i32,
    pub container: String,
    /// ID of the exec; `None` for the init.
    pub exec_id: Option<String>,
    pub state: State,
    /// Time at which the process executed its program.
    pub since: Option<Instant>,
    pub oom_score: i32,
    own_pid_namespace: bool,
    exit: Option<oneshot::Sender<ExitStatus>>,
    /// Signals that arrived, and timers that expired, while the process was frozen.
    pending: Vec<Pending>,
    /// Notified of each change of the process.
    pub changed: Arc<Notify>,
}

#[derive(Debug)]
pub(super) enum State {
    Parked,
    Running(Program),
    Ended,
}

#[derive(Clone, Copy, Debug)]
enum Pending {
    Signal(Signal),
    End(ExitStatus),
}

/// The living processes, containers, mounts and held PIDs on the machine. All lists are empty if
/// everything was deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Container and PID of each living process.
    pub processes: Vec<(String, i32)>,
    pub containers: Vec<String>,
    pub mounts: Vec<PathBuf>,
    pub held: Vec<i32>,
}

impl Default for Machine {
    fn default() -> Machine {
        Machine {
            fault_plan: Box::new(NoFaults),
            bundles: BTreeMap::new(),
            containers: BTreeMap::new(),
            processes: BTreeMap::new(),
            mounts: BTreeSet::new(),
            pods: BTreeMap::new(),
            story: Vec::new(),
            execs: BTreeMap::new(),
            happened: Arc::default(),
            may_lower_scores: true,
            has_systemd: false,
            systemd_interferes: false,
            serials: 0,
            executed: BTreeSet::new(),
            free: Vec::new(),
            fresh: 100,
            held: BTreeMap::new(),
        }
    }
}

impl Machine {
    /// Returns all that is left on the machine: nothing if everything was deleted.
    pub fn left(&self) -> Left {
        let alive = self.processes.values().filter(|process| process.is_alive());
        Left {
            processes: alive
                .map(|process| (process.container.clone(), process.pid))
                .collect(),
            containers: self.containers.keys().cloned().collect(),
            mounts: self.mounts.iter().cloned().collect(),
            held: self.held.keys().copied().collect(),
        }
    }

    /// PID of a container's init process, if alive.
    pub fn init_of(&self, id: &str) -> Option<i32> {
        let serial = self.containers.get(id)?.init?;
        let init = self.processes.get(&serial)?;
        init.is_alive().then_some(init.pid)
    }

    pub fn is_running(&self, id: &str) -> bool {
        let init = self.containers.get(id).and_then(|known| known.init);
        let init = init.and_then(|serial| self.processes.get(&serial));
        init.is_some_and(|init| matches!(init.state, State::Running(_)))
    }

    /// True if the program of a container was executed at any time.
    pub fn was_executed(&self, id: &str) -> bool {
        self.executed.contains(id)
    }

    pub fn scores_of(&self, id: &str) -> Vec<i32> {
        let members = self.members(id).into_iter();
        let processes = members.filter_map(|serial| self.processes.get(&serial));
        processes.map(|process| process.oom_score).collect()
    }

    /// Sets the memory usage of a container.
    pub fn uses_memory(&mut self, id: &str, bytes: u64) {
        if let Some(known) = self.containers.get_mut(id) {
            known.memory_usage = bytes;
        }
    }

    /// True if a process has this PID, or if [`hold_pid`](crate::Init::hold_pid) keeps the PID from
    /// being reused.
    pub fn is_taken(&self, pid: i32) -> bool {
        let is_somebodys = self.processes.values().any(|process| process.pid == pid);
        is_somebodys || self.held.contains_key(&pid)
    }

    pub fn is_anything_alive(&self) -> bool {
        self.processes.values().any(Process::is_alive)
    }

    pub fn note(&mut self, happening: Happening) {
        self.story.push((Instant::now(), happening));
        self.happened.notify_one();
    }

    pub(super) fn fault(&mut self, call: EngineCall, id: &str) -> Fault {
        let fault = self.fault_plan.of(call, id);
        if let Err(error) = &fault.outcome {
            let (id, why) = (id.to_owned(), error.to_string());
            self.note(Happening::Failed { call, id, why });
        }
        fault
    }

    pub(super) fn spawn(
        &mut self,
        container: &str,
        exec_id: Option<&str>,
        own_pid_namespace: bool,
        oom_score: i32,
        state: State,
    ) -> (Serial, i32, oneshot::Receiver<ExitStatus>) {
        // A freed PID is reused as soon as possible.
        let pid = self.free.pop().unwrap_or_else(|| {
            self.fresh += 1;
            self.fresh
        });
        self.serials += 1;
        let (exit, exit_future) = oneshot::channel();
        let process = Process {
            pid,
            container: container.to_owned(),
            exec_id: exec_id.map(str::to_owned),
            state,
            since: None,
            oom_score,
            own_pid_namespace,
            exit: Some(exit),
            pending: Vec::new(),
            changed: Arc::default(),
        };
        self.processes.insert(self.serials, process);
        (self.serials, pid, exit_future)
    }

    pub(super) fn hold(&mut self, pid: i32) {
        *self.held.entry(pid).or_default() += 1;
    }

    pub(super) fn unhold(&mut self, pid: i32) {
        let Some(count) = self.held.get_mut(&pid) else {
            return;
        };
        *count -= 1;
        if *count == 0 {
            self.held.remove(&pid);
            self.free_if_unused(pid);
        }
    }

    fn free_if_unused(&mut self, pid: i32) {
        if !self.is_taken(pid) && !self.free.contains(&pid) {
            self.free.push(pid);
        }
    }

    pub(super) fn is_alive(&self, serial: Serial) -> bool {
        self.processes.get(&serial).is_some_and(Process::is_alive)
    }

    fn is_frozen(&self, serial: Serial) -> bool {
        let container = self
            .processes
            .get(&serial)
            .map(|process| &process.container);
        let known = container.and_then(|container| self.containers.get(container));
        known.is_some_and(|known| known.is_frozen)
    }

    /// Living processes of a container.
    pub(super) fn members(&self, id: &str) -> Vec<Serial> {
        let members = self.processes.iter();
        let members = members.filter(|(_, process)| process.is_alive() && process.container == id);
        members.map(|(serial, _)| *serial).collect()
    }
}

impl Process {
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, State::Ended)
    }
}

impl SimEngine {
    /// Waits for the delay of an engine call, and returns the call's outcome. `token` ends the wait
    /// early.
    pub(super) async fn meet(
        &self,
        call: EngineCall,
        id: &str,
        token: Option<&CancelToken>,
    ) -> Result<(), EngineError> {
        let cut_short = || EngineError::CutShort(format!("{call:?} canceled"));
        if token.is_some_and(CancelToken::is_canceled) {
            return Err(cut_short());
        }
        let Fault { after, outcome } = self.lock().fault(call, id);
        if !after.is_zero() {
            tokio::select! {
                biased;
                () = canceled(token) => return Err(cut_short()),
                () = sleep(after) => {}
            }
        }
        outcome
    }

    /// Sleeps as long as the fault plan delays the answer to a call.
    pub(super) async fn answer(&self, call: EngineCall, id: &str) {
        let after = self.lock().fault_plan.answers_after(call, id);
        if !after.is_zero() {
            sleep(after).await;
        }
    }

    /// Waits for an event of the machine.
    pub async fn happening(&self) {
        let happened = Arc::clone(&self.lock().happened);
        happened.notified().await;
    }

    pub(super) fn signal(&self, serial: Serial, signal: Signal) -> Result<(), EngineError> {
        let mut machine = self.lock();
        let is_frozen = machine.is_frozen(serial);
        let process = machine.processes.get_mut(&serial);
        let Some(process) = process.filter(|process| process.is_alive()) else {
            return Err(EngineError::Gone("no such process".to_owned()));
        };
        if signal != Signal::KILL && is_frozen {
            process.pending.push(Pending::Signal(signal));
            return Ok(());
        }
        drop(machine);
        self.deliver(serial, signal);
        Ok(())
    }

    fn deliver(&self, serial: Serial, signal: Signal) {
        let container = {
            let machine = self.lock();
            let process = machine.processes.get(&serial);
            process
                .filter(|process| process.exec_id.is_none() && process.is_alive())
                .map(|process| process.container.clone())
        };
        if let Some(id) = container {
            self.lock().note(Happening::Signalled { id, signal });
        }
        let stops = [Signal::TERM, Signal::INT, Signal::QUIT, Signal::PWR];
        let state = {
            let machine = self.lock();
            match machine.processes.get(&serial).map(|process| &process.state) {
                None | Some(State::Ended) => return,
                Some(State::Parked) => None,
                Some(State::Running(program)) => match program.heeds {
                    Some(own) if own != signal => Some(OnStop::Ignores),
                    _ => Some(program.on_stop),
                },
            }
        };
        match (signal, state) {
            (Signal::KILL, _) => self.dies(serial, ExitStatus::Signal(signal.number())),
            (signal, _) if !stops.contains(&signal) && signal != Signal::RTMIN_3 => {}
            (_, None) => self.dies(serial, PARKED_ENDS_WITH),
            (_, Some(OnStop::Ends(after, status))) => self.ends_after(serial, after, status),
            (signal, Some(OnStop::Dies)) => self.dies(serial, ExitStatus::Signal(signal.number())),
            (_, Some(OnStop::Ignores)) => {}
        }
    }

    /// Makes a process execute this program.
    pub(super) fn execute(&self, serial: Serial, program: Program) {
        let ends = program.ends;
        {
            let mut machine = self.lock();
            let process = machine.processes.get_mut(&serial);
            let Some(process) = process.filter(|process| process.is_alive()) else {
                return;
            };
            process.state = State::Running(program);
            process.since = Some(Instant::now());
            process.changed.notify_waiters();
            let (id, pid) = (process.container.clone(), process.pid);
            let init = process.exec_id.is_none().then(|| id.clone());
            let happening = match process.exec_id.clone() {
                None => Happening::Executed { id },
                Some(exec_id) => Happening::ExecBegan { id, exec_id, pid },
            };
            machine.executed.extend(init);
            machine.note(happening);
        }
        if let Some((after, status)) = ends {
            self.ends_after(serial, after, status);
        }
    }

    fn ends_after(&self, serial: Serial, after: Duration, status: ExitStatus) {
        let engine = self.clone();
        tokio::spawn(async move {
            sleep(after).await;
            let mut machine = engine.lock();
            let is_frozen = machine.is_frozen(serial);
            match machine.processes.get_mut(&serial) {
                Some(process) if is_frozen => process.pending.push(Pending::End(status)),
                _ => {
                    drop(machine);
                    engine.dies(serial, status);
                }
            }
        });
    }

    /// Makes a process exit. If it is the first process of a PID namespace, all other processes in
    /// the namespace die.
    pub(super) fn dies(&self, serial: Serial, status: ExitStatus) {
        let mut machine = self.lock();
        let process = machine.processes.get_mut(&serial);
        let Some(process) = process.filter(|process| process.is_alive()) else {
            return;
        };
        process.state = State::Ended;
        process.changed.notify_waiters();
        let container = process.container.clone();
        let mut dead = vec![serial];
        let known = machine.containers.get(&container);
        let is_init = known.is_some_and(|known| known.init == Some(serial));
        let process = machine.processes.get(&serial);
        if is_init && process.is_some_and(|process| process.own_pid_namespace) {
            for member in machine.members(&container) {
                if let Some(process) = machine.processes.get_mut(&member) {
                    process.state = State::Ended;
                    process.changed.notify_waiters();
                }
                dead.push(member);
            }
        }
        for member in &dead {
            let Some(process) = machine.processes.get(member) else {
                continue;
            };
            let happening = Happening::Died {
                id: container.clone(),
                exec_id: process.exec_id.clone(),
                pid: process.pid,
                status: match *member == serial {
                    true => status,
                    false => ExitStatus::Signal(Signal::KILL.number()),
                },
            };
            machine.note(happening);
        }
        let after = machine.fault(EngineCall::Collect, &container).after;
        drop(machine);
        for (index, member) in dead.into_iter().enumerate() {
            let status = match index {
                0 => status,
                _ => ExitStatus::Signal(Signal::KILL.number()),
            };
            self.collect_after(member, after, status);
        }
    }

    /// Reaps an exited process after a delay: reports its exit, and frees its PID.
    fn collect_after(&self, serial: Serial, after: Duration, status: ExitStatus) {
        let engine = self.clone();
        let collect = move || {
            let mut machine = engine.lock();
            let Some(mut process) = machine.processes.remove(&serial) else {
                return;
            };
            machine.free_if_unused(process.pid);
            drop(machine);
            if let Some(exit) = process.exit.take() {
                // The receiver of the exit may be gone.
                let _ = exit.send(status);
            }
        };
        match after.is_zero() {
            true => collect(),
            false => drop(tokio::spawn(async move {
                sleep(after).await;
                collect();
            })),
        }
    }

    /// Makes the kernel OOM-kill a process of a container. Returns false if the container has no
    /// process.
    pub fn memory_runs_out(&self, id: &str) -> bool {
        let victim = {
            let mut machine = self.lock();
            let Some(victim) = machine.members(id).last().copied() else {
                return false;
            };
            let known = machine.containers.entry(id.to_owned()).or_default();
            known.oom_kills += 1;
            known.killed.notify_one();
            let id = id.to_owned();
            machine.note(Happening::OutOfMemory { id });
            victim
        };
        self.dies(victim, ExitStatus::Signal(Signal::KILL.number()));
        true
    }

    /// Makes the init of a container die, by itself or killed by a process outside the container.
    pub fn init_dies(&self, id: &str, status: ExitStatus) {
        let init = self.lock().containers.get(id).and_then(|known| known.init);
        if let Some(init) = init {
            self.dies(init, status);
        }
    }

    /// Makes an exec exit by itself.
    pub fn exec_dies(&self, id: &str, exec_id: &str, status: ExitStatus) {
        let serial = self.lock().processes.iter().find_map(|(serial, process)| {
            let is_it = process.container == id && process.exec_id.as_deref() == Some(exec_id);
            is_it.then_some(*serial)
        });
        if let Some(serial) = serial {
            self.dies(serial, status);
        }
    }

    pub(super) fn freeze(&self, id: &str) {
        if let Some(known) = self.lock().containers.get_mut(id) {
            known.is_frozen = true;
        }
    }

    /// Thaws a container. Signals and timers that were pending take effect.
    pub(super) fn thaw(&self, id: &str) {
        let mut machine = self.lock();
        let Some(known) = machine.containers.get_mut(id) else {
            return;
        };
        known.is_frozen = false;
        let mut due = Vec::new();
        for serial in machine.members(id) {
            if let Some(process) = machine.processes.get_mut(&serial) {
                process.changed.notify_waiters();
                let pending = process.pending.drain(..);
                due.extend(pending.map(|pending| (serial, pending)));
            }
        }
        drop(machine);
        for (serial, pending) in due {
            match pending {
                Pending::Signal(signal) => self.deliver(serial, signal),
                Pending::End(status) => self.dies(serial, status),
            }
        }
    }

    /// Waits until a process is thawed or dead; true if it is alive.
    pub(super) async fn thawed(&self, serial: Serial) -> bool {
        loop {
            let changed = {
                let machine = self.lock();
                if !machine.is_alive(serial) {
                    return false;
                }
                if !machine.is_frozen(serial) {
                    return true;
                }
                let process = machine.processes.get(&serial);
                process.map(|process| Arc::clone(&process.changed))
            };
            let Some(changed) = changed else { return false };
            changed.notified().await;
        }
    }
}

async fn canceled(token: Option<&CancelToken>) {
    match token {
        Some(token) => token.canceled().await,
        None => std::future::pending().await,
    }
}

/// Waits for the exit of a process.
pub(super) async fn exit_future(end: oneshot::Receiver<ExitStatus>) -> io::Result<ExitStatus> {
    end.await
        .map_err(|_| io::Error::other("the machine is gone"))
}
