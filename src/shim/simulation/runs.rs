//! Tests that run simulated nodes. Each test run covers some hundred nodes. `scripts/simulate
//! --node` runs more of them, as many as time allows.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use usher_core::simulator::case::{Case, Fault};
use usher_core::simulator::chance::Dice;
use usher_core::simulator::kubelet::Log;
use usher_core::simulator::promises::PROMISES;
use usher_core::simulator::survey::{self, Broken, check, noting_panics, number};
use usher_core::simulator::trace::Run;
use usher_core::simulator::{Node as _, Seen};

use usher_engine::sim::Happening;

use super::faults::{Faults, SIMULATED, TOOK_TOO_LONG};
use super::invariants::{Account, INVARIANTS};
use super::node::SimulatedNode;

/// The name by which a panic of the simulation itself is reported.
const SOUND: &str = "the simulation goes through";

/// Seeds that have found the bugs of the table below. A seed fails if its bug is in the code again.
/// The tests run these seeds in addition to the first ones.
///
/// Once the simulation draws one more random number, each seed leads to another node, and may no
/// longer find its bug. Then `scripts/simulate --node` looks for another seed. Because of this,
/// each bug also has a test of its own, which fails if the bug comes back:
///
/// | bug | found by | its test |
/// |---|---|---|
/// | a shim that is shut down while its only task cannot be created never ends | seed 2763 | `pod::sim` |
/// | a creation whose caller has gone is not undone | seed 102 | `pod::sim` |
/// | a container that is to be restarted is deleted by a timer that was set before | reading | `pod::sim` |
/// | an exec runs on although its caller had gone before the exec was answered | reading | `pod::sim` |
/// | a Delete that comes while its task is created is answered too early | chaos | `pod::sim`, `integration/vanishing_callers.rs` |
/// | a shim stays when containerd dies, or hangs up, between its start and its Create | chaos | `shim_end`, `integration/shim_death.rs` |
/// | sockets of dead shims, and mounts of a killed create, stay | chaos | `integration/shim_death.rs` |
/// | a shim whose Create has failed keeps the bundle for five minutes | chaos, its seed 77040 | `shim_end` |
/// | a panic in an undone creation leaves its mount and its process | reading | `pod::sim`, `integration/engine.rs` |
/// | a run counts as complete although its app is to run in the next sandbox | seed 26824 | `lifecycle/tests/found.rs` |
/// | a SIGKILL for a container whose Start was never answered is taken for a stop request to the pod | seed 56808 | `lifecycle/tests/found.rs` |
/// | a SIGKILL for a container that was started after its caller had gone is taken for a stop request to the pod | seed 71009 | `lifecycle/tests/found.rs` |
/// | a dead sandbox is forgotten when it is deleted as the last container of its pod | seed 51017534 | `lifecycle/tests/found.rs` |
/// | an Update that ends after a later Update gives the pod the size from before both Updates | reading, seed 772 | `pod::sim` |
/// | a defer container that survives SIGKILL is given up again and again at one moment | seed 2125 | `lifecycle/tests/suspended_rules.rs` |
/// | the success of an init container is withheld from a caller that has sent SIGKILL before | seed 27046 | `lifecycle/tests/init.rs` |
/// | a creation that hangs keeps the pod's cgroup small after its sandbox has died | seed 77531 | `lifecycle/tests/sizes.rs` |
/// | an exec that is never started counts as a running postStart handler | seed 77030 | `lifecycle/tests/post_start.rs` |
/// | the end of a restarted pod does not wait for defer containers that are not created again | seed 376 | `lifecycle/tests/decided_ends.rs` |
/// | an exec is started after the exit of its container was published, and its own exit never is | seed 62244 | `pod::sim` |
///
/// Bugs that the core's own simulated pods have found have their tests in
/// `lifecycle/tests/found.rs` too.
const FOUND: &[u64] = &[
    102, 376, 772, 2_125, 2_763, 26_824, 27_046, 56_808, 71_009, 77_030, 77_531, 51_017_534,
];

/// Numbers of injected faults on all nodes, by kind.
static INJECTED: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// A pod on a node, and the faults of both.
#[derive(Clone, Debug, PartialEq)]
struct World {
    case: Case,
    faults: Faults,
    /// True if the shim makes the sandboxes itself, without pause containers.
    is_pauseless: bool,
}

impl World {
    fn of(seed: u64) -> World {
        let case = Case::numbered(seed);
        // A person who uses `ctr` makes no sandboxes. Draw this with separate dice, so that the
        // other draws of a seed stay the same.
        let is_pauseless = !case.by_hand && Dice::new(seed ^ 0x7061_7573).percent(30);
        World {
            case,
            faults: Faults::random(seed),
            is_pauseless,
        }
    }

    /// Runs the pod on the node until nothing more happens.
    fn live(&self) -> (SimulatedNode, Log, Account<'_>, Option<String>) {
        let mut node = SimulatedNode::new(&self.case, &self.faults, self.is_pauseless);
        let mut log = Log::default();
        let (panics, panic) = noting_panics(|| {
            self.case.live_on(&mut node, &mut log);
            node.calm_down();
            // After this time all calls are over, and all engine calls that hung have failed.
            node.live(Duration::from_secs(3_600));
        });
        let (simulated, panics) = panics
            .into_iter()
            .partition::<Vec<_>, _>(|panic| panic.contains(SIMULATED));
        let account = Account {
            case: &self.case,
            slow: Duration::from_millis(self.faults.slow),
            story: node.story(),
            told: node.containerd.told(),
            read: node.containerd.read(),
            called: node.containerd.called(),
            open: node.containerd.open(),
            left: node.left(),
            tasks: node.containerd.tasks(),
            ended: node.shims.iter().map(|shim| shim.is_finished()).collect(),
            panics,
            lost: simulated.clone(),
            is_over: log.over.is_some(),
        };
        account.count(simulated.len(), self.faults.deaths.len());
        (node, log, account, panic)
    }

    /// Runs the world. Returns the timeline of all events.
    fn told(&self) -> String {
        let (node, _, account, _) = self.live();
        timeline(&node, &account)
    }
}

impl Account<'_> {
    /// Adds the faults that have occurred to the counts by kind.
    fn count(&self, panics: usize, deaths: usize) {
        let mut injected = INJECTED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut note = |kind, count: usize| *injected.entry(kind).or_default() += count as u64;
        let hangs = |why: &str| why.contains(TOOK_TOO_LONG);
        for (_, happening) in &self.story {
            match happening {
                Happening::Failed { why, .. } if hangs(why) => note("calls of the engine hung", 1),
                Happening::Failed { .. } => note("calls of the engine failed", 1),
                Happening::OutOfMemory { .. } => note("memory ran out", 1),
                _ => {}
            }
        }
        let cut = self.called.iter().filter(|called| called.is_cut).count();
        note("calls of the engine panicked", panics);
        note("containerd died", deaths);
        note("calls were given up, or lost with containerd", cut);
        let faults = self.case.faults.iter().chain(&self.case.late);
        for (_, fault) in faults {
            let kind = match fault {
                Fault::Crash(..) => "containers crashed",
                Fault::Unhealthy(_) => "containers were unhealthy to kubelet",
                Fault::Image(_) => "images were changed",
                Fault::SandboxDies => "sandboxes died",
                Fault::Restart(_) => "kubelet was away",
                Fault::Hurry(_) => "deletions were hurried",
            };
            note(kind, 1);
        }
    }
}

impl survey::World for World {
    fn run(&self) -> Vec<Broken> {
        let (node, log, account, panic) = self.live();
        let broken = |promise, what| Broken {
            promise,
            what,
            timeline: timeline(&node, &account),
        };
        if let Some(panic) = panic {
            return vec![broken(SOUND, panic)];
        }
        let verdicts = INVARIANTS
            .iter()
            .map(|(name, holds)| (*name, holds(&account)));
        let run = Run::new(
            &self.case,
            &log,
            account.for_promises(&self.faults, node.seen()),
        );
        let promises = PROMISES.iter().map(|(name, holds)| (*name, holds(&run)));
        verdicts
            .chain(promises)
            .filter_map(|(name, verdict)| Some(broken(name, verdict.err()?)))
            .collect()
    }

    fn simpler(&self) -> Vec<World> {
        let cases = self.case.simpler().into_iter();
        let cases = cases.map(|case| World {
            case,
            ..self.clone()
        });
        let faults = self.faults.simpler().into_iter();
        let faults = faults.map(|faults| World {
            faults,
            ..self.clone()
        });
        let with_pause = self.is_pauseless.then(|| World {
            is_pauseless: false,
            ..self.clone()
        });
        with_pause.into_iter().chain(faults).chain(cases).collect()
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.case, self.faults)?;
        match self.is_pauseless {
            true => f.write_str("\n    without a pause container"),
            false => Ok(()),
        }
    }
}

/// The timeline of a run, for a person to read.
fn timeline(node: &SimulatedNode, account: &Account<'_>) -> String {
    let mut lines: Vec<(Duration, String)> = Vec::new();
    for (at, seen) in node.seen() {
        let text = match seen {
            Seen::Did(what) => what.clone(),
            other => format!("  kubelet sees {other:?}"),
        };
        lines.push((at.since_origin(), text));
    }
    for (at, happening) in &account.story {
        lines.push((*at, format!("        {happening:?}")));
    }
    for (at, id, notice) in &account.told {
        lines.push((*at, format!("    event of {id}: {notice:?}")));
    }
    for called in &account.called {
        let text = format!(
            "    {} of {} {}: {:?} after {:?}",
            called.call, called.id, called.exec_id, called.outcome, called.took
        );
        lines.push((called.at + called.took, text));
    }
    lines.sort_by_key(|(at, _)| *at);
    let mut text = String::new();
    for (at, line) in lines {
        let _ = writeln!(text, "{:>10.3}  {line}", at.as_secs_f64());
    }
    text
}

/// Runs the same seeds every time. `scripts/simulate --node` runs other seeds.
#[test]
fn every_invariant_holds_on_nodes_in_trouble() {
    check(0..300, 1, |seed| Some(World::of(seed)));
}

#[test]
fn what_a_seed_has_found_it_finds_no_more() {
    for seed in FOUND {
        check(*seed..seed + 1, 1, |seed| Some(World::of(seed)));
    }
}

/// A seed always yields the same run: the same events at the same times.
#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 7, 19, 42] {
        let timelines = [(), ()].map(|()| World::of(seed).told());
        assert!(timelines[0].len() > 1_000, "{seed}");
        assert_eq!(timelines[0], timelines[1], "{seed}");
    }
}

/// Runs the seeds of `scripts/simulate --node`.
#[test]
#[ignore = "takes as long as it is told to"]
fn simulate() {
    let (from, seeds) = (number("USHER_FROM", 0), number("USHER_SEEDS", 1_000));
    let shown = number("USHER_SHOW", 1) as usize;
    check(from..from + seeds, shown, |seed| Some(World::of(seed)));
    for (kind, count) in &*INJECTED.lock().unwrap_or_else(PoisonError::into_inner) {
        println!("injected: {count:>9}  {kind}");
    }
}
