//! The runs: some hundred nodes with each test, and as many as somebody has the time for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::time::Duration;

use usher_core::simulator::Seen;
use usher_core::simulator::by_hand::{Person, by_hand};
use usher_core::simulator::case::Case;
use usher_core::simulator::kubelet::{Kubelet, Log};

use super::faults::Faults;
use super::invariants::{Account, INVARIANTS};
use super::node::SimulatedNode;

/// What is broken where the run itself panics.
const SOUND: &str = "the simulation goes through";

/// A pod on a node, and all that goes wrong with both.
#[derive(Clone, Debug, PartialEq)]
struct World {
    case: Case,
    faults: Faults,
}

struct Broken {
    invariant: &'static str,
    what: String,
    timeline: String,
}

thread_local! {
    /// Those of the world that this thread is in, if it is in one.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

impl World {
    fn of(seed: u64) -> World {
        let case = Case::random(seed);
        let case = match seed % 10 {
            9 => by_hand(case),
            _ => case,
        };
        let faults = Faults::random(seed);
        World { case, faults }
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
        faults.chain(cases).collect()
    }

    /// Goes through it.
    fn live(&self) -> (SimulatedNode, Account<'_>, Option<String>) {
        note_panics();
        PANICS.set(Some(Vec::new()));
        let mut node = SimulatedNode::new(&self.case, &self.faults);
        let mut log = Log::default();
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            match self.case.by_hand {
                true => Person::new(&self.case, &mut node, &mut log).run(),
                false => Kubelet::new(&self.case, &mut node, &mut log).run(),
            }
            node.calm_down();
            // Whoever has called, and whatever hangs, is over then.
            node.live(Duration::from_secs(3_600));
        }));
        let account = Account {
            case: &self.case,
            story: node.story(),
            told: node.containerd.told(),
            called: node.containerd.called(),
            open: node.containerd.open(),
            left: node.left(),
            tasks: node.containerd.tasks(),
            ended: node.shims.iter().map(|shim| shim.is_finished()).collect(),
            panics: PANICS.take().unwrap_or_default(),
            is_over: log.over.is_some(),
        };
        let panic = outcome.err().map(|panic| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            text.unwrap_or("?").chars().take(200).collect()
        });
        (node, account, panic)
    }

    fn run(&self) -> Vec<Broken> {
        let (node, account, panic) = self.live();
        let broken = |invariant, what| Broken {
            invariant,
            what,
            timeline: timeline(&node, &account),
        };
        if let Some(panic) = panic {
            return vec![broken(SOUND, panic)];
        }
        let verdicts = INVARIANTS
            .iter()
            .map(|(name, holds)| (*name, holds(&account)));
        verdicts
            .filter_map(|(name, verdict)| Some(broken(name, verdict.err()?)))
            .collect()
    }

    /// All that happened.
    fn told(&self) -> String {
        let (node, account, _) = self.live();
        timeline(&node, &account)
    }
}

/// What has happened, for a person.
fn timeline(node: &SimulatedNode, account: &Account<'_>) -> String {
    use usher_core::simulator::Node as _;
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

/// The simplest world that breaks the same.
fn simplest(mut world: World, invariant: &'static str) -> (World, Broken) {
    let breaks = |world: &World| {
        world
            .run()
            .into_iter()
            .find(|broken| broken.invariant == invariant)
    };
    let mut broken = breaks(&world).expect("a world that breaks it");
    for _ in 0..200 {
        let mut simpler = world.simpler().into_iter();
        match simpler.find_map(|next| breaks(&next).map(|broken| (next, broken))) {
            Some(found) => (world, broken) = found,
            None => break,
        }
    }
    (world, broken)
}

/// How often an invariant was broken, and some of the seeds, with what was wrong.
type Finding = (u64, Vec<(u64, String)>);

#[derive(Default)]
struct Findings(BTreeMap<&'static str, Finding>);

fn survey(from: u64, many: u64, threads: u64) -> Findings {
    let survey_some = |thread: u64| {
        let mut found = Findings::default();
        for seed in (from + thread..from + many).step_by(threads as usize) {
            for broken in World::of(seed).run() {
                let (count, first) = found.0.entry(broken.invariant).or_default();
                *count += 1;
                if first.len() < 10 {
                    first.push((seed, broken.what));
                }
            }
        }
        found
    };
    std::thread::scope(|scope| {
        let survey_some = &survey_some;
        let workers: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || survey_some(thread)))
            .collect();
        let mut all = Findings::default();
        for worker in workers {
            for (invariant, (count, first)) in worker.join().unwrap().0 {
                let entry = all.0.entry(invariant).or_default();
                entry.0 += count;
                entry.1.extend(first);
                entry.1.sort();
            }
        }
        all
    })
}

fn report(found: &Findings, shown: usize) -> String {
    let mut text = String::new();
    for (invariant, (count, first)) in &found.0 {
        let _ = writeln!(text, "{count:>7}  {invariant}");
        for (seed, what) in first.iter().take(8) {
            let what: String = what.chars().take(300).collect();
            let _ = writeln!(text, "         {seed}: {what}");
        }
    }
    for (invariant, (_, first)) in found.0.iter().take(shown) {
        let Some((seed, _)) = first.first() else {
            continue;
        };
        let (world, broken) = simplest(World::of(*seed), invariant);
        let World { case, faults } = &world;
        let _ = writeln!(
            text,
            "\n=== {invariant}\n    {seed}, made simpler: {}\n{case}{faults}\n{}",
            broken.what, broken.timeline
        );
    }
    text
}

/// From now on a panic in a world is a finding, not a noise; those that are simulated are none.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_noted = PANICS.with_borrow_mut(|panics| match panics {
                Some(panics) => {
                    let text = panic.to_string();
                    if !text.contains("simulated: ") {
                        panics.push(text);
                    }
                    true
                }
                None => false,
            });
            if !is_noted {
                hook(panic);
            }
        }));
    });
}

fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

fn threads() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

fn check(from: u64, many: u64, shown: usize) {
    let found = survey(from, many, threads());
    assert!(found.0.is_empty(), "\n{}", report(&found, shown));
}

/// The same with each run: `scripts/simulate --node` looks further.
#[test]
fn every_invariant_holds_on_nodes_in_trouble() {
    check(0, 300, 1);
}

/// One seed is one world: the same things happen at the same times.
#[test]
fn a_seed_replays_exactly() {
    for seed in [3, 7, 19, 42] {
        let timelines = [(), ()].map(|()| World::of(seed).told());
        assert!(timelines[0].len() > 1_000, "{seed}");
        assert_eq!(timelines[0], timelines[1], "{seed}");
    }
}

/// `scripts/simulate --node`.
#[test]
#[ignore = "takes as long as it is told to"]
fn simulate() {
    let (from, seeds) = (number("USHER_FROM", 0), number("USHER_SEEDS", 1_000));
    check(from, seeds, number("USHER_SHOW", 1) as usize);
}
