//! Carries out the steps of a pod as a caller does. A call may fail.

use std::process::Command;
use std::sync::Mutex;
use std::thread::{Scope, scope, sleep};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::{Containerd, poll};
use crate::inject::{Stage, inject};
use crate::judge::note_sockets;
use crate::node;
use crate::plan::{PodPlan, What};
use crate::round::Round;

/// Time between the stop requests and SIGKILL.
const GRACE: Duration = Duration::from_secs(3);

/// Maximum downtime of containerd.
const BACK_WITHIN: Duration = Duration::from_secs(10);

/// Carries out the steps of all pods of a round, all pods at the same time.
pub fn play(round: &Round, pods: &[PodPlan]) {
    let stages: Vec<Stage> = pods
        .iter()
        .map(|pod| Stage {
            pod,
            now: Mutex::new((What::Live, Vec::new())),
        })
        .collect();
    scope(|all| {
        for stage in &stages {
            all.spawn(move || live(all, round, stage));
        }
    });
}

fn live<'scope>(
    all: &'scope Scope<'scope, '_>,
    round: &'scope Round<'_>,
    stage: &'scope Stage<'_>,
) {
    for step in &stage.pod.steps {
        round.check_shims(&stage.pod.name);
        // Before the next step, wait until containerd runs again after a fault.
        poll(BACK_WITHIN, || round.host.pid().map(drop));
        stage.now.lock().unwrap().0 = step.what;
        for &fault in &step.faults {
            all.spawn(move || inject(round, stage, fault));
        }
        take(round, stage, step.what);
        note_sockets(round, stage.pod);
    }
    round.check_shims(&stage.pod.name);
    stage.now.lock().unwrap().0 = What::Live;
}

fn take(round: &Round, stage: &Stage, what: What) {
    let host = round.host;
    let members = &stage.pod.members;
    match what {
        What::Run(member) => {
            let member = &members[member];
            let fifos = host.dir().join("fifo").display().to_string();
            let words = ["run", "--detach", "--fifo-dir", &fifos];
            if call(round, stage, member.spec.ctr_command(host, &words)) {
                let mut state = round.state();
                // If a fault killed the shim during the call, the container may be lost. Then
                // containerd need not know the container.
                if !state.shimless.contains(&stage.pod.name) {
                    state.known.insert(member.id.clone());
                }
            }
        }
        What::Exec(member) => {
            let fifos = host.dir().join("fifo").display().to_string();
            let words = ["tasks", "exec", "--exec-id", "e", "--fifo-dir", &fifos];
            let program = [&members[member].id, "/bin/sleep", "0.1"];
            call(
                round,
                stage,
                host.ctr_command(&[&words[..], &program].concat()),
            );
        }
        What::Crash(member) => {
            let init = node::init(host, &members[member].id);
            init.map(|pid| node::send(pid, Signal::SIGKILL));
            sleep(what.takes());
        }
        What::Kill(member, signal) => kill(round, stage, &members[member].id, signal),
        What::Live => sleep(what.takes()),
        What::End => end(round, stage),
        What::Delete(member) => {
            let id = &members[member].id;
            round.state().known.remove(id);
            kill(round, stage, id, "SIGKILL");
            poll(GRACE, || node::init(host, id).is_none().then_some(()));
            round.delete_task(id, |pid| enter(stage, pid));
            leave(stage);
            call(
                round,
                stage,
                host.ctr_command(&["containers", "delete", id]),
            );
        }
    }
}

/// Stops all containers at once, and kills the sandbox when the others have exited.
fn end(round: &Round, stage: &Stage) {
    let is_asked = |id: &&str| *id != stage.pod.name;
    let ids: Vec<&str> = stage.pod.members.iter().map(|m| m.id.as_str()).collect();
    let asked: Vec<&str> = ids.iter().copied().filter(is_asked).collect();
    kill_all(round, stage, &asked, "SIGTERM");
    let live = |id: &&str| node::init(round.host, id).is_some();
    let are_over = || (!asked.iter().any(live)).then_some(());
    if poll(GRACE, are_over).is_none() {
        kill_all(round, stage, &asked, "SIGKILL");
    }
    if ids.len() > asked.len() {
        kill(round, stage, &stage.pod.name, "SIGKILL");
    }
}

fn kill_all(round: &Round, stage: &Stage, ids: &[&str], signal: &str) {
    scope(|kills| {
        for id in ids {
            kills.spawn(move || kill(round, stage, id, signal));
        }
    });
}

fn kill(round: &Round, stage: &Stage, id: &str, signal: &str) {
    let words = ["tasks", "kill", "--signal", signal, id];
    call(round, stage, round.host.ctr_command(&words));
}

/// Runs a command that calls containerd. Returns true if the command succeeded.
fn call(round: &Round, stage: &Stage, command: Command) -> bool {
    let mut own = 0;
    let called = round.call(command, |pid| {
        own = pid;
        enter(stage, pid);
    });
    stage.now.lock().unwrap().1.retain(|pid| *pid != own);
    called.code == Some(0)
}

fn enter(stage: &Stage, pid: u32) {
    stage.now.lock().unwrap().1.push(pid);
}

fn leave(stage: &Stage) {
    stage.now.lock().unwrap().1.clear();
}

/// Deletes all tasks and containers as a user would, and records those that cannot be deleted.
pub fn clear(round: &Round) {
    let is_clear = || {
        let tasks = round.list("tasks")?;
        for id in &tasks {
            round.ctr(&["tasks", "kill", "--signal", "SIGKILL", id]);
        }
        for id in &tasks {
            let over = || node::init(round.host, id).is_none().then_some(());
            poll(Duration::from_secs(1), over);
            round.delete_task(id, |_| ());
        }
        let containers = round.list("containers")?;
        if !containers.is_empty() {
            let ids = containers.iter().map(String::as_str);
            let words: Vec<&str> = ["containers", "delete"].into_iter().chain(ids).collect();
            round.ctr(&words);
        }
        let nothing = round.list("tasks")?.is_empty() && round.list("containers")?.is_empty();
        nothing.then_some(())
    };
    if poll(Duration::from_secs(30), is_clear).is_some() {
        return;
    }
    let left = format!(
        "cannot be deleted: tasks {:?}, containers {:?}",
        round.list("tasks"),
        round.list("containers")
    );
    round.find(None, crate::round::Wrong::Leftover, left);
}

/// Removes the FIFOs of killed callers, and empties the record of the containers.
pub fn sweep(host: &Containerd) {
    for entry in std::fs::read_dir(host.dir().join("fifo"))
        .into_iter()
        .flatten()
        .flatten()
    {
        let path = entry.path();
        let _ = std::fs::remove_dir_all(&path).or_else(|_| std::fs::remove_file(&path));
    }
    let _ = std::fs::write(host.shared_dir().join("record"), "");
}
