//! Injects a fault at its planned moment.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::node;
use crate::plan::{During, Fault, Kind, PodPlan, What};
use crate::round::{Done, Round, Wrong};

/// Maximum time to search for the process that the fault hits.
const LOOKS_FOR: Duration = Duration::from_millis(400);

/// Time limits for a fault that is to hit a container's start. The first limit is for the container
/// to be created, the second for the container to be started.
const CREATED_WITHIN: Duration = Duration::from_secs(2);
const STARTED_WITHIN: Duration = Duration::from_millis(40);

/// A pod, its current step, and the process ids of the commands that call containerd for the pod.
pub struct Stage<'a> {
    pub pod: &'a PodPlan,
    pub now: Mutex<(What, Vec<u32>)>,
}

impl Stage<'_> {
    fn what(&self) -> What {
        self.now.lock().unwrap().0
    }

    fn caller(&self) -> Option<u32> {
        self.now.lock().unwrap().1.first().copied()
    }

    fn during(&self, round: &Round) -> During {
        match self.what() {
            What::Run(member) => {
                let bundle = round.host.bundle_dir(&self.pod.members[member].id);
                match bundle.join("init.pid").exists() {
                    true => During::Start,
                    false => During::Create,
                }
            }
            What::Exec(_) => During::Exec,
            What::Crash(_) => During::Restart,
            What::Kill(..) => During::Kill,
            What::Live => During::Life,
            What::End => During::Termination,
            What::Delete(_) => During::Delete,
        }
    }

    /// The first process of the step's container. If the container has no process, the first
    /// process of another container of the pod.
    fn init(&self, round: &Round) -> Option<u32> {
        let meant = match self.what() {
            What::Run(at) | What::Exec(at) | What::Crash(at) => at,
            What::Kill(at, _) | What::Delete(at) => at,
            What::Live | What::End => self.pod.members.len() - 1,
        };
        let members = &self.pod.members;
        let mut ids = members[meant..].iter().chain(&members[..meant]);
        ids.find_map(|member| node::init(round.host, &member.id))
    }
}

/// Injects a fault. If the fault stops a process, lets the process continue afterwards.
pub fn inject(round: &Round, stage: &Stage, fault: Fault) {
    await_moment(round, stage, fault);
    if matches!(fault.kind, Kind::ContainerdKilled | Kind::ContainerdStopped) {
        return hit_containerd(round, stage, fault);
    }
    let Some(pid) = target(round, stage, fault.kind) else {
        return;
    };
    let shim = node::shim(round.host, &stage.pod.name);
    let during = stage.during(round);
    if fault.kind == Kind::ShimKilled {
        let pod = &stage.pod.name;
        let mut state = round.state();
        state.known.retain(|id| !node::is_of(id, pod));
        state.shimless.insert(pod.clone());
    }
    let signal = match fault.kind.is_stop() {
        true => Signal::SIGSTOP,
        false => Signal::SIGKILL,
    };
    if !node::send(pid, signal) {
        return;
    }
    note(round, stage, fault.kind, during, shim);
    if fault.kind.is_stop() {
        sleep(fault.stopped_for);
        node::send(pid, Signal::SIGCONT);
    }
}

fn await_moment(round: &Round, stage: &Stage, fault: Fault) {
    match stage.what() {
        What::Run(member) if fault.is_for_start => {
            let bundle = round.host.bundle_dir(&stage.pod.members[member].id);
            let created = bundle.join("init.pid");
            let begun = Instant::now();
            while !created.exists() && begun.elapsed() < CREATED_WITHIN {
                sleep(Duration::from_millis(1));
            }
            sleep(STARTED_WITHIN.mul_f64(fault.moment));
        }
        what => sleep(what.takes().mul_f64(fault.moment)),
    }
}

fn note(round: &Round, stage: &Stage, kind: Kind, during: During, shim: Option<u32>) {
    let mut state = round.state();
    let of_pod = |id: &&String| node::is_of(id, &stage.pod.name);
    let known = state.known.iter().filter(of_pod).cloned().collect();
    let done = Done {
        at: round.begun.elapsed(),
        pod: stage.pod.name.clone(),
        kind,
        during,
        shim,
        known,
        lived: false,
    };
    state.faults.push(done);
}

/// Waits until the process that the fault hits exists, and returns its id.
fn target(round: &Round, stage: &Stage, kind: Kind) -> Option<u32> {
    let begun = Instant::now();
    let mut shim = None;
    while begun.elapsed() < LOOKS_FOR {
        let found = match kind {
            Kind::CallerKilled | Kind::CallerStopped => stage.caller(),
            Kind::InitKilled | Kind::InitStopped => stage.init(round),
            _ => {
                shim = shim.or_else(|| node::shim(round.host, &stage.pod.name));
                match kind {
                    Kind::RuntimeKilled | Kind::RuntimeStopped => shim.and_then(node::runtime_of),
                    _ => shim,
                }
            }
        };
        if found.is_some() {
            return found;
        }
        let pause = if shim.is_some() { 1 } else { 10 };
        sleep(Duration::from_millis(pause));
    }
    None
}

fn hit_containerd(round: &Round, stage: &Stage, fault: Fault) {
    let Ok(_alone) = round.containerd.try_lock() else {
        return;
    };
    let during = stage.during(round);
    let shim = node::shim(round.host, &stage.pod.name);
    if fault.kind == Kind::ContainerdStopped {
        if let Some(pid) = round
            .host
            .pid()
            .filter(|pid| node::send(*pid, Signal::SIGSTOP))
        {
            note(round, stage, fault.kind, during, shim);
            sleep(fault.stopped_for);
            node::send(pid, Signal::SIGCONT);
        }
        return;
    }
    let known = round.state().known.clone();
    round.host.crash();
    note(round, stage, fault.kind, during, shim);
    sleep(fault.stopped_for / 4);
    let again = catch_unwind(AssertUnwindSafe(|| round.host.start_again()));
    if again.is_err() {
        round.find(
            None,
            Wrong::Other,
            "containerd did not start again".to_owned(),
        );
        return;
    }
    let listed = round.list("tasks").unwrap_or_default();
    let state = round.state();
    let forgotten: Vec<String> = state
        .known
        .intersection(&known)
        .filter(|id| !listed.contains(*id))
        .cloned()
        .collect();
    drop(state);
    for id in forgotten {
        let pod = id.split('-').next();
        let text = format!("containerd does not know {id} after its restart");
        round.find(pod, Wrong::Other, text);
    }
}
