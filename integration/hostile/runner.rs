//! Runs a hostile pod for a while, and ends the pod as kubelet does. Measures how late the pod
//! ended, and how much CPU time it cost its node.

// The tests and the program `figures` each use only a part of this module.
#![allow(dead_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::pods::Pod;
use super::stage::Stage;
use crate::harness::{Background, REFERENCE, Shims, TaskApi, runtime_under_test, scaled};

const SECOND: Duration = Duration::from_secs(1);

/// Time that kubelet adds to the grace period to get the deadline of a stop request
/// (`runtimeRequestTimeout`).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Time for which the test goes on observing a termination that has exceeded its bound.
const LATE: Duration = Duration::from_secs(15);

/// Time limit for the deletion of an ended pod. If a container's logging program hangs, its
/// deletion takes 14 seconds.
const DELETED_WITHIN: Duration = Duration::from_secs(30);

/// Number of successive steps in a termination. A busy machine may delay each of them. A step is,
/// for example, a wake-up or a command.
const STEPS: u32 = 10;

/// Time between a pod's start and the beginning of the measurement.
const SETTLING: Duration = Duration::from_millis(500);

/// A grace policy, with the grace period for which it is tested.
#[derive(Debug, PartialEq)]
pub struct Policy {
    pub name: &'static str,
    grace: Duration,
    /// Maximum time from the end of the grace period to the end of the termination.
    beyond: Duration,
}

pub const POLICIES: [Policy; 5] = [
    Policy::new("Shared", 3, 2),
    Policy::new("Reserve", 6, 2),
    Policy::new("Overrun", 3, 8),
    Policy::new("SkipHooks", 3, 4),
    Policy::new("Strict", 3, 0),
];

/// The shim that runs a pod.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    /// The shim under test, with a policy.
    Ours(&'static Policy),
    /// containerd's own shim, which has no grace policies.
    Reference,
}

/// The result of one pod.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub name: &'static str,
    pub side: Side,
    /// The upper bound that the grace policy promises, from the first stop request to the last exit
    /// that the caller sees.
    pub bound: Duration,
    /// Time from the first stop request until the caller and the kernel have seen the exit of the
    /// last process. If the pod did not end, the time for which it was observed.
    pub took: Duration,
    pub has_ended: bool,
    /// Time for which `cpu` was measured. The measurement begins shortly after the last container's
    /// start. It ends with the termination, or when the termination has exceeded its bound by
    /// `LATE`.
    pub lived: Duration,
    /// Delay caused by the machine. During the termination, a program that does nothing is run
    /// repeatedly. The delay is the longest time that one run took.
    pub delay: Duration,
    /// CPU time used outside of the pod's cgroup.
    pub cpu: Duration,
    /// Time that the deletion of all containers took. `None` if a deletion was not answered.
    pub deleted: Option<Duration>,
    /// Any other problem.
    pub problem: Option<String>,
}

impl Policy {
    const fn new(name: &'static str, grace: u64, beyond: u64) -> Self {
        Self {
            name,
            grace: Duration::from_secs(grace),
            beyond: Duration::from_secs(beyond),
        }
    }
}

impl Side {
    fn grace(self) -> Duration {
        match self {
            Self::Ours(policy) => policy.grace,
            Self::Reference => 3 * SECOND,
        }
    }

    /// The promised upper bound of the time from the first stop request to the exit of the last
    /// process.
    pub fn bound(self) -> Duration {
        match self {
            Self::Ours(policy) => policy.grace + policy.beyond,
            Self::Reference => self.grace(),
        }
    }
}

impl Outcome {
    fn new(pod: &Pod, side: Side) -> Self {
        let told_late = match side {
            Side::Ours(_) => pod.told_late,
            Side::Reference => Duration::ZERO,
        };
        Self {
            name: pod.name,
            side,
            bound: side.bound() + told_late,
            took: Duration::ZERO,
            has_ended: false,
            lived: Duration::ZERO,
            delay: Duration::ZERO,
            cpu: Duration::ZERO,
            deleted: None,
            problem: None,
        }
    }

    /// Time by which the termination exceeded its bound. If the pod did not end, the real time is
    /// longer.
    pub fn overrun(&self) -> Duration {
        self.took.saturating_sub(self.bound)
    }

    /// CPU time used outside of the pod's cgroup, in seconds for each second of the pod's run.
    pub fn cpu_rate(&self) -> f64 {
        match self.lived {
            Duration::ZERO => 0.0,
            lived => self.cpu.as_secs_f64() / lived.as_secs_f64(),
        }
    }

    /// True if this pod's termination and deletion did not exceed their bounds. The CPU time is
    /// checked for all pods together.
    pub fn is_in_time(&self) -> bool {
        self.has_ended
            && self.overrun() < scaled(SECOND) + STEPS * self.delay
            && self.deleted.is_some()
            && self.problem.is_none()
    }
}

pub fn worst_overrun(outcomes: &[Outcome]) -> Option<&Outcome> {
    outcomes.iter().max_by_key(|outcome| outcome.overrun())
}

/// The pod that used the most CPU time per second outside of its cgroup.
pub fn costliest(outcomes: &[Outcome]) -> Option<&Outcome> {
    outcomes
        .iter()
        .max_by(|one, other| one.cpu_rate().total_cmp(&other.cpu_rate()))
}

/// CPU time used outside of the pods' cgroups, divided by the pods' running times. Both times are
/// sums over all pods.
pub fn cpu_rate(outcomes: &[Outcome]) -> f64 {
    let cpu: f64 = outcomes.iter().map(|o| o.cpu.as_secs_f64()).sum();
    let lived: f64 = outcomes.iter().map(|o| o.lived.as_secs_f64()).sum();
    if lived > 0.0 { cpu / lived } else { 0.0 }
}

/// Runs all pods and returns the outcomes in the order of `plays`. The number of pods that run at
/// the same time is the number of CPUs plus one. Most pods may use only a quarter of a CPU.
pub fn play_all(plays: &[(&'static Pod, Side)], life: Duration) -> Vec<Outcome> {
    let lanes = thread::available_parallelism().map_or(2, |cpus| cpus.get() + 1);
    let (next, outcomes) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some((pod, side)) = plays.get(number) else {
                        return;
                    };
                    let outcome = play(pod, *side, life);
                    eprintln!("{}", line(&outcome));
                    outcomes.lock().unwrap().push((number, outcome));
                }
            });
        }
    });
    let mut outcomes = outcomes.into_inner().unwrap();
    outcomes.sort_by_key(|(number, _)| *number);
    outcomes.into_iter().map(|(_, outcome)| outcome).collect()
}

/// A line that reports progress.
fn line(outcome: &Outcome) -> String {
    let side = match outcome.side {
        Side::Ours(policy) => policy.name,
        Side::Reference => REFERENCE,
    };
    let took = outcome.took.as_secs_f64();
    let deleted = outcome.deleted.map_or("never".to_owned(), |time| {
        format!("{:.1} s", time.as_secs_f64())
    });
    format!(
        "{}, {side}: {} after {took:.2} s of {:.0} s (delay {:.2} s), deleted in {deleted}, {:.3} CPUs outside{}",
        outcome.name,
        if outcome.has_ended {
            "ended"
        } else {
            "NOT ENDED"
        },
        outcome.bound.as_secs_f64(),
        outcome.delay.as_secs_f64(),
        outcome.cpu_rate(),
        match &outcome.problem {
            Some(problem) => format!("; {}", problem.replace('\n', "; ")),
            None => String::new(),
        }
    )
}

/// Runs a pod for `life`, and ends it.
pub fn play(pod: &'static Pod, side: Side, life: Duration) -> Outcome {
    let mut outcome = Outcome::new(pod, side);
    let shims = match side {
        Side::Ours(_) => Shims::Ours,
        Side::Reference => Shims::Reference,
    };
    let problem = match catch_unwind(|| Stage::new(shims)) {
        Ok(stage) => {
            let acted = catch_unwind(AssertUnwindSafe(|| act(&stage, pod, life, &mut outcome)));
            stage.unblock();
            // Dropping `stage` panics if a trace of the pod is left.
            let cleaned = catch_unwind(AssertUnwindSafe(|| drop(stage)));
            acted.and(cleaned).err()
        }
        Err(panic) => Some(panic),
    };
    outcome.problem = problem.map(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        text.unwrap_or_else(|| "a panic without a message".to_owned())
    });
    outcome
}

fn act(stage: &Stage, pod: &Pod, life: Duration, outcome: &mut Outcome) {
    let side = outcome.side;
    stage.make_pod_cgroup(pod.cpu_millis);
    if !pod.hangs.is_empty() {
        stage.prepare_to_hang();
    }
    let (runtime, annotations) = match side {
        Side::Ours(policy) => (runtime_under_test(), annotations(pod, policy)),
        Side::Reference => (REFERENCE.to_owned(), Vec::new()),
    };
    for container in pod.containers {
        stage.run(&runtime, container, &annotations);
    }
    thread::sleep(SETTLING);
    let ids: Vec<&'static str> = pod
        .containers
        .iter()
        .map(|container| container.name)
        .collect();
    let (began, cpu) = (Instant::now(), stage.cpu_outside());
    (pod.meanwhile)(stage);
    thread::sleep(life);

    (pod.at_its_end)(stage);
    stage.hang(pod.hangs);
    std::fs::write(stage.host.shared_dir().join("end"), "").expect("a file");
    let longest = outcome.bound + scaled(LATE);
    let delays = DelayMeter::start();
    let end = End::of(stage, &ids, side.grace(), longest);
    while end.asked.elapsed() < longest && !outcome.has_ended {
        thread::sleep(Duration::from_millis(5));
        outcome.has_ended = end.is_over() && stage.processes().is_empty();
    }
    outcome.took = end.asked.elapsed();
    outcome.delay = delays.longest();
    outcome.lived = began.elapsed();
    outcome.cpu = stage.cpu_outside().saturating_sub(cpu);

    stage.signal_containerd(nix::sys::signal::Signal::SIGCONT);
    let answered = delete(stage, &ids, outcome.has_ended);
    stage.unblock();
    // While the OCI runtime hangs, a deletion may fail. When the hang is over, a second deletion
    // must succeed.
    outcome.deleted = answered.and_then(|Answered { after, refused }| {
        let hung = refused && !pod.hangs.is_empty();
        let is_gone = !refused || hung && delete(stage, &ids, false).is_some_and(|a| !a.refused);
        is_gone.then_some(after)
    });
    if outcome.deleted.is_none() {
        // A deletion that failed leaves traces, so ignore them.
        stage.host.tolerate("");
        stage.kill_shims();
    }
    stage.remove_pod_cgroup();
}

fn annotations(pod: &Pod, policy: &Policy) -> Vec<(String, String)> {
    let given = pod
        .annotations
        .iter()
        .map(|(key, value)| (*key, (*value).to_owned()));
    let grace = format!("{}s", policy.grace.as_secs());
    let chosen = [
        ("usher/grace-policy", policy.name.to_owned()),
        ("usher/grace-period", grace),
    ];
    let all = given.chain(chosen);
    all.map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Measures how much the machine itself delays programs.
struct DelayMeter {
    longest: Arc<Mutex<Duration>>,
}

impl DelayMeter {
    /// Starts a thread. The thread runs a program that does nothing, again and again, until the
    /// returned value is dropped.
    fn start() -> Self {
        let longest = Arc::new(Mutex::new(Duration::ZERO));
        let known = Arc::downgrade(&longest);
        thread::spawn(move || {
            while let Some(longest) = known.upgrade() {
                let begun = Instant::now();
                let _ = Command::new("busybox").arg("true").status();
                let took = begun.elapsed();
                let mut longest = longest.lock().unwrap();
                *longest = took.max(*longest);
                drop(longest);
                thread::sleep(Duration::from_millis(50));
            }
        });
        Self { longest }
    }

    fn longest(&self) -> Duration {
        *self.longest.lock().unwrap()
    }
}

/// A termination in progress.
struct End {
    /// Time of the first stop request.
    asked: Instant,
    /// For each container, true once the caller has seen its exit.
    ended: Vec<Arc<AtomicBool>>,
}

impl End {
    /// Stops all containers as kubelet does. All get a stop request at the same time. A container
    /// that still runs one grace period after the answer to its request gets SIGKILL. When a
    /// container has exited, its other processes get SIGKILL. A stop request has kubelet's
    /// deadline. Every other call has the time limit `longest`.
    #[track_caller]
    fn of(stage: &Stage, ids: &[&'static str], grace: Duration, longest: Duration) -> Self {
        // Each call uses a separate connection: on one connection, this client would make one call
        // after another.
        let api = |id: &str, deadline| stage.host.task_api(id).deadline(deadline);
        let connected = ids.iter().map(|id| {
            let apis = [REQUEST_TIMEOUT + grace, longest, longest].map(|time| api(id, time));
            (*id, apis)
        });
        let connected: Vec<(&'static str, [TaskApi; 3])> = connected.collect();
        let asked = Instant::now();
        let ended = connected
            .into_iter()
            .map(|(id, [asking, waiting, killing])| {
                let ended = Arc::new(AtomicBool::new(false));
                let (told, seen) = (Arc::clone(&ended), Arc::clone(&ended));
                thread::spawn(move || {
                    if waiting.wait(id, "").is_ok() {
                        told.store(true, Ordering::Relaxed);
                        let _ = waiting.kill(id, "", 9, true);
                    }
                });
                thread::spawn(move || {
                    let _ = asking.kill(id, "", 15, false);
                    let answered = Instant::now();
                    while !seen.load(Ordering::Relaxed) {
                        if answered.elapsed() >= grace {
                            let _ = killing.kill(id, "", 9, false);
                            return;
                        }
                        thread::sleep(Duration::from_millis(5));
                    }
                });
                ended
            });
        Self {
            ended: ended.collect(),
            asked,
        }
    }

    fn is_over(&self) -> bool {
        self.ended.iter().all(|ended| ended.load(Ordering::Relaxed))
    }
}

/// The result of deleting all containers.
struct Answered {
    after: Duration,
    /// True if at least one deletion failed.
    refused: bool,
}

/// Deletes all containers at the same time, by force if they have not ended. Returns `None` if a
/// deletion got no answer.
fn delete(stage: &Stage, ids: &[&str], has_ended: bool) -> Option<Answered> {
    let begun = Instant::now();
    let command: &[&str] = match has_ended {
        true => &["tasks", "delete"],
        false => &["tasks", "delete", "--force"],
    };
    let deletions = ids
        .iter()
        .map(|id| Background::spawn(stage.host.ctr_command(&[command, &[id]].concat())));
    let mut deletions: Vec<Background> = deletions.collect();
    let mut refused = false;
    while begun.elapsed() < scaled(DELETED_WITHIN) && !deletions.is_empty() {
        deletions.retain_mut(|deletion| {
            let goes_on = deletion.poll_running();
            // `ctr` exits with the task's exit code, so only its error output shows a failed
            // deletion. If the task is not found, it was deleted earlier, which is no failure.
            let said = deletion.stderr();
            refused |= !goes_on && said.contains("level=error") && !said.contains("not found");
            goes_on
        });
        thread::sleep(Duration::from_millis(5));
    }
    let after = begun.elapsed();
    deletions.is_empty().then_some(Answered { after, refused })
}
