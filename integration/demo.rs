//! A pod with a sidecar and an app, started and stopped in order; `scripts/demo` runs it.
//!
//! The app is created first, but has to wait for the sidecar's startup probe. Both get a stop
//! request at once, but the sidecar gets its signal only after the app has ended. The output shows
//! what the containers themselves recorded. `--svg FILE` also writes the picture that `usher
//! timeline` draws. `--keep` keeps the pod running until standard input has a line or ends.

#![allow(clippy::disallowed_methods, reason = "not a service")]

mod demo_pod;
#[path = "harness/mod.rs"]
mod harness;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use demo_pod::{Moment, TITLES, play, stage, to_try};
use harness::{Containerd, Record};

/// Runs one pod with a sidecar and an app, and shows what happened when
#[derive(Parser)]
struct Arguments {
    /// Draws the pod's timeline into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Keeps the pod running until Enter, and prints commands to try on it
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    eprintln!("=== starting a private containerd and one pod: a proxy, and an app that needs it");
    let host = stage();
    let visit = |host: &Containerd| {
        if arguments.keep {
            keep(host);
        }
        eprintln!("=== stopping the pod");
    };
    let (moments, record) = play(&host, arguments.svg.as_deref(), visit);
    print(&moments);
    let code = judge(&record);
    if !arguments.keep {
        println!("\nto inspect the running pod: scripts/demo --keep");
    }
    code
}

/// Prints commands that inspect the running pod. Returns when standard input has a line or ends.
fn keep(host: &Containerd) {
    println!("\nThe pod runs. In another terminal, as root:\n");
    for (command, comment) in to_try(host) {
        println!("    # {comment}\n    {command}");
    }
    println!("\nEnter ends the pod.");
    // A read error ends the pod too.
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn print(moments: &[Moment]) {
    let colors = std::io::stdout().is_terminal();
    println!("\n{TITLES}");
    for moment in moments {
        let line = moment.line(&moments[0]);
        let color = match moment.who {
            "proxy" => 36,
            "app" => 32,
            "user" => 1,
            _ => 2,
        };
        if colors {
            println!("\x1b[{color}m{line}\x1b[0m");
        } else {
            println!("{line}");
        }
    }
    println!();
}

/// Checks the order that the demo promises.
fn judge(record: &Record) -> ExitCode {
    let promises = [
        (
            "the app's program started after the proxy was ready",
            ("proxy", "ready"),
            ("app", "start"),
        ),
        (
            "the proxy got its stop signal after the app had ended",
            ("app", "exit"),
            ("proxy", "signal"),
        ),
    ];
    let mut code = ExitCode::SUCCESS;
    for (promise, earlier, later) in promises {
        let (from, to) = (record.at(earlier.0, earlier.1), record.at(later.0, later.1));
        let ms = (to as f64 - from as f64) / 1e6;
        if ms > 0.0 {
            println!("kept:   {promise}, by {ms:.1} ms");
        } else {
            println!("broken: {promise}; it was {:.1} ms earlier", -ms);
            code = ExitCode::FAILURE;
        }
    }
    code
}
