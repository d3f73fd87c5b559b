//! The runs: some thousand pods at random, every small pod with each fault at each of its moments, and
//! as many as somebody has the time for.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::simulator::by_hand::{Person, by_hand};
use crate::simulator::case::{Case, Deletion};
use crate::simulator::kubelet::{Kubelet, Log};
use crate::simulator::promises::PROMISES;
use crate::simulator::trace::Run;
use crate::simulator::{Seen, World};

/// What the world itself checks, and the core: an action that was forgotten, an exit that is told twice.
const SOUND: &str = "nothing panics";

/// A promise that was broken.
#[derive(Clone, Debug)]
struct Broken {
    promise: &'static str,
    what: String,
    timeline: String,
}

fn run(case: &Case) -> Vec<Broken> {
    let mut world = World::with_plan(case.plan());
    let mut log = Log::default();
    let outcome = catch_unwind(AssertUnwindSafe(|| match case.by_hand {
        true => Person::new(case, &mut world, &mut log).run(),
        false => Kubelet::new(case, &mut world, &mut log).run(),
    }));
    let broken = |promise, what| Broken {
        promise,
        what,
        timeline: timeline(&world),
    };
    if let Err(panic) = outcome {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let line = text.unwrap_or("?").lines().next().unwrap_or("?");
        return vec![broken(SOUND, line.chars().take(200).collect())];
    }
    let run = Run::new(case, &world, &log);
    let verdicts = PROMISES
        .iter()
        .map(|(promise, holds)| (*promise, holds(&run)));
    verdicts
        .filter_map(|(promise, verdict)| Some(broken(promise, verdict.err()?)))
        .collect()
}

/// What has happened, for a person.
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
            Seen::KillAnswered(_, _) | Seen::Probed(..) => continue,
            Seen::Told(id, message) => format!("    {id} is told: {message}"),
            Seen::HookBegan(id, kind) => format!("    {kind} of {id} begins"),
            Seen::HookEnded(id, kind) => format!("    {kind} of {id} is over"),
            Seen::PostStarted(id) => format!("    postStart of {id} once more"),
            Seen::Restarting(id) => format!("    {id} is restarted in place"),
            Seen::Reported(report) => format!("        {report}"),
        };
        let _ = writeln!(text, "{:>10}  {line}", at.to_string());
    }
    text
}

/// The simplest case that breaks the same promise.
fn simplest(mut case: Case, promise: &'static str) -> (Case, Broken) {
    let breaks = |case: &Case| {
        run(case)
            .into_iter()
            .find(|broken| broken.promise == promise)
    };
    let mut broken = breaks(&case).expect("a case that breaks a promise");
    // Each is simpler than the one before by one thing, and there are not so many.
    for _ in 0..200 {
        let mut simpler = case.simpler().into_iter();
        let found = simpler.find_map(|next| breaks(&next).map(|broken| (next, broken)));
        match found {
            Some(found) => (case, broken) = found,
            None => break,
        }
    }
    (case, broken)
}

/// How many cases broke a promise, and the first of them.
struct Finding {
    count: u64,
    number: u64,
    case: Case,
    what: String,
    /// Some that follow.
    others: Vec<u64>,
}

type Findings = BTreeMap<&'static str, Finding>;

/// Runs each case that a number below `many` has, on so many threads.
fn survey(many: u64, threads: u64, case: impl Fn(u64) -> Option<Case> + Sync) -> Findings {
    let survey_some = |thread: u64| {
        let mut found = Findings::new();
        for number in (thread..many).step_by(threads as usize) {
            let Some(case) = case(number) else { continue };
            for broken in run(&case) {
                let finding = found.entry(broken.promise).or_insert_with(|| Finding {
                    count: 0,
                    number,
                    case: case.clone(),
                    what: broken.what,
                    others: Vec::new(),
                });
                if finding.count > 0 && finding.others.len() < 8 {
                    finding.others.push(number);
                }
                finding.count += 1;
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
            for (promise, finding) in worker.join().unwrap() {
                let count = finding.count;
                let known = all.get(promise).map_or(0, |known| known.count);
                let is_first = all
                    .get(promise)
                    .is_none_or(|known| finding.number < known.number);
                if is_first {
                    all.insert(promise, finding);
                }
                if let Some(entry) = all.get_mut(promise) {
                    entry.count = known + count;
                }
            }
        }
        all
    })
}

/// What was broken, and of so many promises the simplest pod that breaks it.
fn report(found: &Findings, shown: usize) -> String {
    let mut text = String::new();
    for (promise, finding) in found {
        let Finding {
            count,
            number,
            what,
            others,
            ..
        } = finding;
        let _ = writeln!(
            text,
            "{count:>7}  {promise}\n         {number}: {what}\n         also {others:?}"
        );
    }
    for (promise, finding) in found.iter().take(shown) {
        let (case, broken) = simplest(finding.case.clone(), promise);
        let _ = writeln!(
            text,
            "\n=== {promise}\n    {}, made simpler: {}\n{case}\n{}",
            finding.number, broken.what, broken.timeline
        );
    }
    text
}

/// Small pods with one fault each: the shape, the fault and its moment by a number.
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

/// In the middle between each two things that happen in a pod in which nothing goes wrong, in
/// milliseconds.
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

/// A panic is a finding, not a noise.
fn quietly<T>(what: impl FnOnce() -> T) -> T {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = what();
    std::panic::set_hook(hook);
    result
}

#[expect(
    clippy::disallowed_methods,
    reason = "how much a person wants is no matter of the core"
)]
fn number(variable: &str, otherwise: u64) -> u64 {
    let text = std::env::var(variable).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// The pod of a number: one in ten is a person's.
fn pod(seed: u64) -> Case {
    let case = Case::random(seed);
    match seed % 10 {
        9 => by_hand(case),
        _ => case,
    }
}

fn threads() -> u64 {
    std::thread::available_parallelism().map_or(1, |n| n.get() as u64)
}

fn check(find: impl FnOnce() -> Findings, shown: usize) {
    let text = quietly(|| {
        let found = find();
        (!found.is_empty()).then(|| report(&found, shown))
    });
    if let Some(text) = text {
        panic!("\n{text}");
    }
}

/// The same with each run: `scripts/simulate` looks further.
#[test]
fn every_promise_holds_for_pods_in_trouble() {
    check(|| survey(2_000, threads(), |n| Some(pod(n))), 1);
}

#[test]
fn every_promise_holds_for_every_small_pod_with_one_fault_at_any_moment() {
    check(
        || {
            let all = one_fault_each();
            survey(all.len() as u64, threads(), |n| {
                all.get(n as usize).cloned()
            })
        },
        number("USHER_SHOW", 1) as usize,
    );
}

/// `scripts/simulate`.
#[test]
#[ignore = "takes as long as it is told to"]
fn simulate() {
    let (from, seeds) = (number("USHER_FROM", 0), number("USHER_SEEDS", 1_000));
    let shown = number("USHER_SHOW", 1) as usize;
    let find = || {
        let mut found = survey(seeds, threads(), |n| Some(pod(from + n)));
        for finding in found.values_mut() {
            finding.number += from;
            finding.others.iter_mut().for_each(|other| *other += from);
        }
        found
    };
    check(find, shown);
}
