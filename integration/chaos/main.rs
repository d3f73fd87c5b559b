//! Injects faults on a real node. Pods of all roles are created and deleted at the same time on a
//! private containerd. At random moments the shim, containerd, the OCI runtime's commands,
//! containers or callers are killed or stopped. After each round no trace may be left, and each
//! exit code that containerd reports must match the container's record.
//!
//! `scripts/chaos` runs this program. It prints a table to standard output. To standard error it
//! prints the findings, each with the seed of its round. `--seed` repeats the choices, but not the
//! machine's timing.

#![allow(clippy::disallowed_methods, reason = "tests may wait")]

#[path = "../harness/mod.rs"]
mod harness;

mod inject;
mod judge;
mod node;
mod plan;
mod play;
mod random;
mod round;
mod table;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use harness::{Containerd, Settings, Shims};
use round::{Round, State};
use table::Table;

/// Number of rounds for which one containerd is used. Then a new one takes over, because the list
/// of a containerd's events grows with each round.
const ROUNDS_A_NODE: usize = 20;

struct Options {
    lasts: Duration,
    rounds: usize,
    seed: u64,
    is_reference: bool,
    is_verbose: bool,
}

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::from(2);
        }
    };
    let begun = Instant::now();
    let mut table = Table::default();
    let mut node = None;
    for number in 0..options.rounds {
        if begun.elapsed() > options.lasts {
            break;
        }
        let host = node.get_or_insert_with(|| Containerd::start_with(&settings(&options)));
        let seed = options.seed.wrapping_add(number as u64);
        let is_clean = one(host, number, seed, &options, &mut table);
        if !is_clean || number % ROUNDS_A_NODE == ROUNDS_A_NODE - 1 {
            leave(node.take());
        }
        if number % 10 == 9 {
            eprintln!(
                "{:.0?}: {} rounds, {} faults, {} findings",
                begun.elapsed(),
                table.rounds,
                table.faults(),
                table.findings
            );
        }
    }
    leave(node);
    table.print();
    match table.findings {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn settings(options: &Options) -> Settings {
    Settings {
        log_level: "debug",
        shims: match options.is_reference {
            true => Shims::Reference,
            false => Shims::Ours,
        },
        ..Settings::default()
    }
}

/// Removes the remaining files, mounts and processes of the node. The findings already name them.
fn leave(node: Option<Containerd>) {
    let Some(node) = node else { return };
    node.tolerate("");
    let left = catch_unwind(AssertUnwindSafe(|| drop(node)));
    if left.is_err() {
        eprintln!("the node did not end in order");
    }
}

/// Plays one round. Returns true if there are no findings.
fn one(host: &Containerd, number: usize, seed: u64, options: &Options, table: &mut Table) -> bool {
    let pods = plan::pods(number, seed, options.is_reference);
    let round = Round::new(host);
    play::play(&round, &pods);
    judge::forgotten(&round);
    play::clear(&round);
    table.late += usize::from(judge::leftovers(&round));
    let mut state = round.into_state();
    let judged = judge::codes(host, &pods, &mut state);
    play::sweep(host);
    table.rounds += 1;
    table.pods += pods.len();
    table.codes += judged.codes;
    table.containerds += state.containerds;
    table.killed_by_cleanup += judged.killed_by_cleanup;
    table.add(&state.faults, &state.findings);
    report(host, number, seed, &state, options.is_verbose);
    state.findings.is_empty()
}

fn report(host: &Containerd, number: usize, seed: u64, state: &State, is_verbose: bool) {
    if state.findings.is_empty() && !is_verbose {
        return;
    }
    eprintln!("round {number}, --seed {seed} --rounds 1:");
    for finding in &state.findings {
        let pod = finding.pod.as_deref().unwrap_or("-");
        eprintln!("  {:?} {pod}: {}", finding.what, finding.text);
    }
    let pods: Vec<&str> = state
        .findings
        .iter()
        .filter_map(|f| f.pod.as_deref())
        .collect();
    let concerns = |pod: &str| pods.is_empty() || pods.contains(&pod);
    for done in state.faults.iter().filter(|done| concerns(&done.pod)) {
        let at = done.at;
        let lived = if done.lived { ", lived on" } else { "" };
        eprintln!(
            "    {at:.3?} {} {:?} during {:?}{lived}",
            done.pod, done.kind, done.during
        );
    }
    if is_verbose && !state.findings.is_empty() {
        let file = std::env::temp_dir().join(format!("chaos-{seed}.log"));
        let _ = std::fs::copy(host.dir().join("containerd.log"), &file);
        eprintln!("    log: {}", file.display());
    }
}

impl Options {
    fn parse() -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut options = Self {
            lasts: Duration::from_secs(600),
            rounds: usize::MAX,
            seed: now.map_or(1, |now| now.as_secs()),
            is_reference: false,
            is_verbose: false,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut number = |what: &str| {
                let value = words.next().and_then(|value| value.parse::<u64>().ok());
                value.ok_or_else(|| format!("{what} wants a number"))
            };
            match word.as_str() {
                "--bench" => {}
                "--minutes" => options.lasts = Duration::from_secs(number("--minutes")? * 60),
                "--seed" => options.seed = number("--seed")?,
                "--rounds" => options.rounds = number("--rounds")? as usize,
                "--reference" => options.is_reference = true,
                "--verbose" => options.is_verbose = true,
                other => return Err(format!("unknown option {other}")),
            }
        }
        eprintln!("--seed {}", options.seed);
        Ok(options)
    }
}
