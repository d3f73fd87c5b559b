//! Results for all hostile pods under each grace policy, and under containerd's own shim: how late
//! each pod ended, and how much CPU time was used outside of the pod's cgroup.
//!
//! `scripts/hostile` runs this program. `--quick` tries each pod with one policy. Other arguments
//! select pods by parts of their names. Prints Markdown to standard output.

#![allow(clippy::disallowed_methods, reason = "tests may wait")]

#[path = "../harness/mod.rs"]
mod harness;

mod pods;
mod runner;
mod stage;

use std::time::Duration;

use harness::REFERENCE;
use pods::Pod;
use runner::{Outcome, POLICIES, Side, costliest, cpu_rate, play_all, worst_overrun};

/// Time for which each pod runs before it is ended.
const LIFE: Duration = Duration::from_secs(5);

fn main() {
    let arguments = std::env::args().skip(1).filter(|word| word != "--bench");
    let (options, words): (Vec<_>, Vec<_>) = arguments.partition(|word| word.starts_with('-'));
    let is_quick = options.iter().any(|option| option == "--quick");
    let mut pods = pods::all();
    if !words.is_empty() {
        pods.retain(|pod| words.iter().any(|word| pod.name.contains(word.as_str())));
    }
    let plays = pods.iter().enumerate().flat_map(|(number, pod)| {
        let chosen = POLICIES.iter().enumerate();
        let chosen = chosen.filter(move |(n, _)| !is_quick || *n == number % POLICIES.len());
        let ours = chosen.map(|(_, policy)| Side::Ours(policy));
        let theirs = pod.is_plain.then_some(Side::Reference);
        ours.chain(theirs)
            .map(|side| (*pod, side))
            .collect::<Vec<_>>()
    });
    let outcomes = play_all(&plays.collect::<Vec<_>>(), LIFE);
    print(&pods, &outcomes);
}

fn print(pods: &[&Pod], outcomes: &[Outcome]) {
    println!(
        "| hostile pod | latest end after its worst case | deleted in | CPU outside | {REFERENCE}: end after its grace period | deleted in | CPU outside |"
    );
    println!("|---|---|---|---|---|---|---|");
    for pod in pods {
        let of_pod: Vec<_> = outcomes.iter().filter(|o| o.name == pod.name).collect();
        let (theirs, ours): (Vec<Outcome>, Vec<Outcome>) = of_pod
            .into_iter()
            .cloned()
            .partition(|outcome| outcome.side == Side::Reference);
        println!(
            "| {}: {} | {} | {} |",
            pod.name,
            pod.about,
            cells(&ours),
            cells(&theirs)
        );
    }
    let (theirs, ours): (Vec<Outcome>, Vec<Outcome>) = outcomes
        .iter()
        .cloned()
        .partition(|outcome| outcome.side == Side::Reference);
    println!("\n| | ours | {REFERENCE} |\n|---|---|---|");
    println!(
        "| worst overrun of the table, over {} and {} ends | {} | {} |",
        ours.len(),
        theirs.len(),
        overrun(&ours),
        overrun(&theirs),
    );
    println!(
        "| CPU-seconds outside of the pod's cgroup per second of pod | {} | {} |",
        cost(&ours),
        cost(&theirs),
    );
    let problems = outcomes.iter().filter_map(|outcome| {
        let problem = outcome.problem.as_ref()?;
        Some(format!("{} ({:?}): {problem}", outcome.name, outcome.side))
    });
    for problem in problems {
        println!("\n{problem}");
    }
}

/// The cells of a row: the worst result of each column.
fn cells(outcomes: &[Outcome]) -> String {
    if outcomes.is_empty() {
        return "– | – | –".to_owned();
    }
    if outcomes.iter().any(|outcome| outcome.lived.is_zero()) {
        return "did not start | – | –".to_owned();
    }
    let deleted = outcomes.iter().map(|outcome| outcome.deleted);
    let deleted = deleted
        .collect::<Option<Vec<_>>>()
        .and_then(|times| times.into_iter().max());
    let cpu = outcomes.iter().map(Outcome::cpu_rate).fold(0.0, f64::max);
    format!(
        "{} | {} | {cpu:.3}",
        overrun(outcomes),
        deleted.map_or("never".to_owned(), seconds)
    )
}

/// The longest time by which a termination exceeded its bound, as text. If our shim exceeded its
/// bound, the grace policy follows in parentheses.
fn overrun(outcomes: &[Outcome]) -> String {
    let Some(worst) = worst_overrun(outcomes) else {
        return "–".to_owned();
    };
    let policy = match worst.side {
        Side::Ours(policy) if !worst.overrun().is_zero() => format!(" ({})", policy.name),
        _ => String::new(),
    };
    let over = seconds(worst.overrun());
    match worst.has_ended {
        true => format!("{over}{policy}"),
        false => format!("not within {over}{policy}"),
    }
}

/// The CPU time of all pods together, and the pod that used the most.
fn cost(outcomes: &[Outcome]) -> String {
    let all = cpu_rate(outcomes);
    match costliest(outcomes) {
        Some(worst) => format!("{all:.3}, {:.3} in {}", worst.cpu_rate(), worst.name),
        None => "–".to_owned(),
    }
}

fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
