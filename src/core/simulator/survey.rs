//! Surveys of many worlds, each determined by a number. A survey reports the broken promises, and
//! for each of them the simplest world found that breaks it.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use super::Node;
use super::by_hand::{Person, by_hand};
use super::case::Case;
use super::kubelet::{Kubelet, Log};

/// Maximum number of case numbers shown for one broken promise.
const SHOWN_AT_MOST: usize = 8;

/// A simulated world. A survey runs the world, and runs simpler variants if a promise is broken.
pub trait World: Display {
    /// Runs the world. Returns the broken promises.
    fn run(&self) -> Vec<Broken>;

    /// Variants of this world, each of them simpler in one respect.
    fn simpler(&self) -> Vec<Self>
    where
        Self: Sized;
}

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Broken {
    pub promise: &'static str,
    pub what: String,
    /// The timeline of events, to be read by a person.
    pub timeline: String,
}

/// The number of times that a promise was broken, and the first case numbers with their details.
type Finding = (u64, Vec<(u64, String)>);

type Findings = BTreeMap<&'static str, Finding>;

thread_local! {
    /// The panics in the world that this thread runs; `None` if it runs no world.
    static PANICS: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

impl Case {
    /// The case with this number. In every tenth case a person runs the pod, without kubelet.
    pub fn numbered(seed: u64) -> Case {
        let case = Case::random(seed);
        match seed % 10 {
            9 => by_hand(case),
            _ => case,
        }
    }

    /// Runs the case on a node, with kubelet or a person as the caller.
    pub fn live_on(&self, node: &mut dyn Node, log: &mut Log) {
        match self.by_hand {
            true => Person::new(self, node, log).run(),
            false => Kubelet::new(self, node, log).run(),
        }
    }
}

/// Runs the worlds of all `numbers`, in parallel on all CPUs.
///
/// # Panics
///
/// If a promise is broken. The worlds per broken promise are counted on stderr before the search for
/// simpler worlds, which can take hours. The message shows the simplest world for the first `shown`
/// promises.
pub fn check<W: World>(numbers: Range<u64>, shown: usize, world: impl Fn(u64) -> Option<W> + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let found = survey(numbers, threads, &world);
    if !found.is_empty() {
        eprintln!("\n{}", counts(&found));
        panic!("broken promises\n{}", examples(&found, shown, &world));
    }
}

/// A number from an environment variable.
#[expect(
    clippy::disallowed_methods,
    reason = "how much a person wants is no matter of the core"
)]
pub fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Runs `what`. Returns all panics that happened in `what`, and the panic that ended `what`. Panics
/// are results here, so they are not printed.
pub fn noting_panics(what: impl FnOnce()) -> (Vec<String>, Option<String>) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let is_noted = PANICS.with_borrow_mut(|panics| match panics {
                Some(panics) => {
                    panics.push(panic.to_string());
                    true
                }
                None => false,
            });
            if !is_noted {
                hook(panic);
            }
        }));
    });
    PANICS.set(Some(Vec::new()));
    let outcome = catch_unwind(AssertUnwindSafe(what));
    let panics = PANICS.take().unwrap_or_default();
    (panics, outcome.err().map(|panic| words(panic.as_ref())))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let line = text.unwrap_or("?").lines().next().unwrap_or("?");
    line.chars().take(200).collect()
}

fn survey<W: World>(
    numbers: Range<u64>,
    threads: u64,
    world: &(impl Fn(u64) -> Option<W> + Sync),
) -> Findings {
    let survey_some = |thread: u64| {
        let mut found = Findings::new();
        for number in (numbers.start + thread..numbers.end).step_by(threads as usize) {
            let Some(world) = world(number) else { continue };
            for broken in world.run() {
                let (count, first) = found.entry(broken.promise).or_default();
                *count += 1;
                if first.len() < SHOWN_AT_MOST {
                    first.push((number, broken.what));
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
        let mut all = Findings::new();
        for worker in workers {
            for (promise, (count, first)) in worker.join().unwrap() {
                let known = all.entry(promise).or_default();
                known.0 += count;
                known.1.extend(first);
                known.1.sort();
            }
        }
        all
    })
}

fn counts(found: &Findings) -> String {
    let mut text = String::new();
    for (promise, (count, first)) in found {
        let _ = writeln!(text, "{count:>7}  {promise}");
        for (number, what) in first.iter().take(SHOWN_AT_MOST) {
            let what: String = what.chars().take(300).collect();
            let _ = writeln!(text, "         {number}: {what}");
        }
    }
    text
}

fn examples<W: World>(found: &Findings, shown: usize, world: &impl Fn(u64) -> Option<W>) -> String {
    let mut text = String::new();
    for (promise, (_, first)) in found.iter().take(shown) {
        let first = first
            .first()
            .and_then(|(number, _)| Some((number, world(*number)?)));
        let Some((number, world)) = first else {
            continue;
        };
        let (world, broken) = simplest(world, promise);
        let Broken { what, timeline, .. } = broken;
        let _ = writeln!(
            text,
            "\n=== {promise}\n    {number}, made simpler: {what}\n{world}\n{timeline}"
        );
    }
    text
}

/// Simplifies a world step by step, as long as a simpler variant still breaks the promise.
fn simplest<W: World>(mut world: W, promise: &'static str) -> (W, Broken) {
    let breaks = |world: &W| {
        let mut all = world.run().into_iter();
        all.find(|broken| broken.promise == promise)
    };
    let mut broken = breaks(&world).expect("a world that breaks a promise");
    for _ in 0..200 {
        let mut simpler = world.simpler().into_iter();
        let found = simpler.find_map(|next| breaks(&next).map(|broken| (next, broken)));
        match found {
            Some(found) => (world, broken) = found,
            None => break,
        }
    }
    (world, broken)
}
