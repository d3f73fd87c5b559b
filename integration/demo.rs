//! One pod of a sidecar and an app, ushered in and out; `scripts/demo` runs it.
//!
//! The app is created first, and has to wait for the sidecar's startup probe all the same. Both
//! are told to stop at once, and the sidecar hears of it only when the app has ended. What is
//! shown was recorded by the containers themselves. With `--svg FILE` the picture that `usher timeline`
//! makes of it goes into a file, too.

#[path = "harness/mod.rs"]
mod harness;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use harness::{ContainerSpec, Containerd, PATIENCE, Record, Settings};

const POD: [(&str, &str); 4] = [
    // As Kubernetes would name it: the title of its picture.
    ("io.kubernetes.cri.sandbox-namespace", "demo"),
    ("io.kubernetes.cri.sandbox-name", "shop"),
    ("usher/sidecars", "proxy"),
    (
        "startup-probe.usher/proxy",
        r#"{"tcpSocket":{"port":8080},"periodMilliseconds":100,"failureThreshold":50}"#,
    ),
];

/// Runs one pod of a sidecar and an app, and shows what happened when
#[derive(Parser)]
struct Arguments {
    /// Draws the pod's timeline into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// One line of the timeline.
struct Moment {
    at_ns: u64,
    who: &'static str,
    what: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let mut moments = Vec::new();
    let record = play(&mut moments, arguments.svg.as_deref());
    moments.extend(record.0.iter().filter_map(recorded));
    moments.sort_by_key(|moment| moment.at_ns);
    print(&moments);
    judge(&record)
}

/// Runs the pod from its creation to its end, and has it drawn.
fn play(moments: &mut Vec<Moment>, svg: Option<&Path>) -> Record {
    let host = Containerd::start_with(&Settings {
        log_level: "info",
        ..Settings::default()
    });
    let mut user = |what: &str| {
        moments.push(Moment {
            at_ns: now_ns(),
            who: "user",
            what: what.into(),
        })
    };
    let container = |name: &str, options: &[&str]| {
        ContainerSpec::new(name)
            .in_pod("demo", name)
            .annotations(&POD)
            .witness(options)
    };

    user("ctr run app");
    // In the background, since nobody else could create the sidecar while it waits.
    let mut app = host.spawn_run(&container("app", &["--stop-after", "400ms"]));
    harness::eventually("the app is created", PATIENCE, || {
        host.topics("app").contains(&"/tasks/create".to_owned()) || !app.is_running()
    });

    user("ctr run proxy");
    let proxy = container(
        "proxy",
        &[
            "--listen",
            "8080",
            "--ready-after",
            "1s",
            "--stop-after",
            "200ms",
        ],
    );
    let proxy = host.spawn_run(&proxy);
    for (name, run) in [("app", app), ("proxy", proxy)] {
        let finished = run.finish(PATIENCE);
        assert!(finished.ok(), "{name} did not start: {}", finished.err());
    }
    host.await_event("app", "start");
    host.await_event("proxy", "ready");
    std::thread::sleep(Duration::from_millis(500));

    user("ctr task kill app, ctr task kill proxy");
    host.kill_all(&["app", "proxy"], "SIGTERM");
    for name in ["app", "proxy"] {
        let exit = host.wait_exit_event(name);
        let what = format!("{name} has ended with exit code {}", exit.exit_status());
        moments.push(Moment {
            at_ns: exit.at_ns,
            who: "containerd",
            what,
        });
    }
    if let Some(file) = svg {
        draw(&host, file);
    }
    for name in ["app", "proxy"] {
        host.delete(name);
    }
    host.record()
}

/// Has `usher timeline` draw the pod, as long as its shim is there to be asked.
fn draw(host: &Containerd, file: &Path) {
    // Whoever enters another mount namespace is at its root.
    let file = std::path::absolute(file).expect("a path");
    let mut timeline = Command::new(harness::shim_dir().join("usher"));
    timeline.args(["timeline", "demo/shop", "--svg"]).arg(file);
    host.enter(&mut timeline);
    let drawn = harness::run(timeline, PATIENCE);
    assert!(drawn.ok(), "the timeline is not drawn: {}", drawn.err());
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970")
        .as_nanos() as u64
}

/// A line of the record, in words.
fn recorded(event: &harness::Event) -> Option<Moment> {
    let who = if event.name == "proxy" {
        "proxy"
    } else {
        "app"
    };
    let what = match event.what.as_str() {
        "start" => "program starts".to_owned(),
        "ready" => "listens on port 8080".to_owned(),
        "accepted" => "is probed".to_owned(),
        "signal" => format!("gets signal {}", event.detail),
        "exit" => format!("program ends with {}", event.detail),
        _ => return None,
    };
    Some(Moment {
        at_ns: event.at_ns,
        who,
        what,
    })
}

fn print(moments: &[Moment]) {
    let colours = std::io::stdout().is_terminal();
    let first = moments.first().map_or(0, |moment| moment.at_ns);
    println!("\n        ms  who         what");
    for Moment { at_ns, who, what } in moments {
        let ms = (at_ns - first) as f64 / 1e6;
        let line = format!("{ms:10.1}  {who:<10}  {what}");
        let colour = match *who {
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
