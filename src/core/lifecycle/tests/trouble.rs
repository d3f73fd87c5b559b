//! Simulated pods with faults: some thousand random pods, and every small pod with each fault at
//! each moment. `scripts/simulate` runs as many more pods as time allows.

use std::fmt::Write as _;

use crate::simulator::case::{Case, Deletion};
use crate::simulator::kubelet::{Kubelet, Log};
use crate::simulator::promises::{PROMISES, Promise};
use crate::simulator::survey::{self, Broken, check, noting_panics, number};
use crate::simulator::trace::Run;
use crate::simulator::{Seen, World};

/// The name of the promise that a panic breaks. The core and the simulated world panic if, for
/// example, an action is forgotten or an exit is reported twice.
const SOUND: &str = "nothing panics";

/// The promises that the pod breaks, among `PROMISES` and `others`.
pub(super) fn broken_promises(case: &Case, others: &[(&'static str, Promise)]) -> Vec<Broken> {
    let mut world = World::with_plan(case.plan());
    let mut log = Log::default();
    let (_, panic) = noting_panics(|| case.live_on(&mut world, &mut log));
    let broken = |promise, what| Broken {
        promise,
        what,
        timeline: timeline(&world),
    };
    if let Some(panic) = panic {
        return vec![broken(SOUND, panic)];
    }
    let run = Run::new(case, &log, world.account());
    let verdicts = PROMISES.iter().chain(others);
    let verdicts = verdicts.map(|(promise, holds)| (*promise, holds(&run)));
    verdicts
        .filter_map(|(promise, verdict)| Some(broken(promise, verdict.err()?)))
        .collect()
}

impl survey::World for Case {
    fn run(&self) -> Vec<Broken> {
        broken_promises(self, &[])
    }

    fn simpler(&self) -> Vec<Case> {
        Case::simpler(self)
    }
}

/// The timeline of events, to be read by a person.
fn timeline(world: &World) -> String {
    let mut text = String::new();
    for (at, seen) in &world.seen {
        let line = match seen {
            Seen::Did(what) => what.clone(),
            Seen::CreateRefused(id, why) => format!("    Create of {id} is refused: {why}"),
            Seen::Released(id) => format!("    {id} is released"),
            Seen::Executed(id) => format!("    {id} runs"),
            Seen::Signalled(id, signal) => format!("    {signal} to {id}"),
            Seen::Died(id, status) => format!("    {id} dies: {status:?}"),
            Seen::ExitReported(id, code) => format!("    {id} reads exited, {code}"),
            Seen::StartAnswered(id, Ok(())) => format!("    {id} reads running"),
            Seen::StartAnswered(id, Err(why)) => format!("    Start of {id} fails: {why}"),
            Seen::StartFailed(id, why) => format!("    Start of {id} fails: {why}"),
            Seen::ExitSaid(..) | Seen::KillAnswered(_, _) | Seen::Probed(..) => continue,
            Seen::MessageWritten(id, message) => format!("    {id} is told: {message}"),
            Seen::HookBegan(id, kind) => format!("    {kind} of {id} begins"),
            Seen::HookEnded(id, kind) => format!("    {kind} of {id} is over"),
            Seen::PostStarted(id) => format!("    postStart of {id} once more"),
            Seen::Restarting(id) => format!("    {id} is restarted in place"),
            Seen::PostStartOver(id, has_succeeded) => {
                format!("    {id}: its postStart is over, success {has_succeeded:?}")
            }
            Seen::Reported(report) => format!("        {report}"),
        };
        let _ = writeln!(text, "{:>10}  {line}", at.to_string());
    }
    text
}

/// Small pods with one fault each: every pod with every fault at every moment.
fn one_fault_each() -> Vec<Case> {
    let mut all = Vec::new();
    for shape in Case::small() {
        let (early, late) = shape.all_faults();
        let deleted = shape.deleted.0;
        for moment in moments(&shape) {
            if moment < deleted {
                for fault in &early {
                    all.push(Case {
                        faults: vec![(moment, *fault)],
                        deleted: (moment + 2_700, shape.deleted.1),
                        ..shape.clone()
                    });
                }
                for deletion in [Deletion::Usual, Deletion::Within(2), Deletion::Kill] {
                    all.push(Case {
                        deleted: (moment, deletion),
                        ..shape.clone()
                    });
                }
            } else {
                for fault in &late {
                    all.push(Case {
                        late: vec![(moment - deleted, *fault)],
                        ..shape.clone()
                    });
                }
            }
        }
    }
    all
}

/// The moments at which faults are tried, in milliseconds. The pod first runs without faults. Each
/// moment is halfway between two successive events of that run.
fn moments(case: &Case) -> Vec<u64> {
    let mut world = World::with_plan(case.plan());
    let mut log = Log::default();
    Kubelet::new(case, &mut world, &mut log).run();
    let times = world
        .seen
        .iter()
        .map(|(at, _)| at.since_origin().as_millis() as u64);
    let mut times: Vec<_> = times.collect();
    times.dedup();
    let between = times.windows(2).filter(|pair| pair[1] - pair[0] > 1);
    between
        .map(|pair| pair[0] + (pair[1] - pair[0]) / 2)
        .collect()
}

/// Runs the same cases every time. `scripts/simulate` runs further ones.
#[test]
fn every_promise_holds_for_pods_in_trouble() {
    check(0..2_000, 1, |seed| Some(Case::numbered(seed)));
}

#[test]
fn every_promise_holds_for_every_small_pod_with_one_fault_at_any_moment() {
    let all = one_fault_each();
    let shown = number("USHER_SHOW", 1) as usize;
    check(0..all.len() as u64, shown, |n| all.get(n as usize).cloned());
}

/// Runs the cases of `scripts/simulate`.
#[test]
#[ignore = "takes as long as it is told to"]
fn simulate() {
    let (from, seeds) = (number("USHER_FROM", 0), number("USHER_SEEDS", 1_000));
    let shown = number("USHER_SHOW", 1) as usize;
    check(from..from + seeds, shown, |seed| Some(Case::numbered(seed)));
}
