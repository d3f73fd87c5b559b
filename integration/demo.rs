//! One pod of a sidecar and an app, ushered in and out; `scripts/demo` runs it.
//!
//! The app is created first, and has to wait for the sidecar's startup probe all the same. Both
//! are told to stop at once, and the sidecar hears of it only when the app has ended. What is
//! shown was recorded by the containers themselves. With `--svg FILE` the picture that `usher timeline`
//! makes of it goes into a file, too. With `--keep` the pod runs until standard input ends or has a line.

#![allow(clippy::disallowed_methods, reason = "it serves nobody")]

mod demo_pod;
#[path = "harness/mod.rs"]
mod harness;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use demo_pod::{Moment, TITLES, play, stage, to_try};
use harness::{Containerd, Record};

/// Runs one pod of a sidecar and an app, and shows what happened when
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
        println!("\nto look into such a pod while it runs: scripts/demo --keep");
    }
    code
}

/// Leaves the pod to the reader, with commands that see it, until standard input ends or has a line.
fn keep(host: &Containerd) {
    println!("\nThe pod runs. In another terminal, as root:\n");
    for (command, comment) in to_try(host) {
        println!("    # {comment}\n    {command}");
    }
    println!("\nEnter ends the pod.");
    // An error ends it as well.
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn print(moments: &[Moment]) {
    let colours = std::io::stdout().is_terminal();
    println!("\n{TITLES}");
    for moment in moments {
        let line = moment.line(&moments[0]);
        let colour = match moment.who {
            "proxy" => 36,
            "app" => 32,
            "user" => 1,
            _ => 2,
        };
        if colours {
            println!("\x1b[{colour}m{line}\x1b[0m");
        } else {
            println!("{line}");
        }
    }
    println!();
}

/// Was the promise kept?
fn judge(record: &Record) -> ExitCode {
    let promises = [
        (
            "the app's program started after the proxy was ready",
            ("proxy", "ready"),
            ("app", "start"),
        ),
        (
            "the proxy was told to stop after the app had ended",
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
