//! The pod of `scripts/demo`, which the manual shows too.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::harness::{
    ContainerSpec, Containerd, Event, PATIENCE, Record, Settings, eventually, run, shim_dir,
};

const POD: [(&str, &str); 4] = [
    // The title of the pod's picture is the name that Kubernetes would give the pod.
    ("io.kubernetes.cri.sandbox-namespace", "demo"),
    ("io.kubernetes.cri.sandbox-name", "shop"),
    ("usher/sidecars", "proxy"),
    (
        "startup-probe.usher/proxy",
        r#"{"tcpSocket":{"port":8080},"periodMilliseconds":100,"failureThreshold":50}"#,
    ),
];

pub struct Moment {
    pub at_ns: u64,
    pub who: &'static str,
    pub what: String,
}

pub const TITLES: &str = "        ms  who         what";

impl Moment {
    /// Formats this moment as a line of the demo's output, with the milliseconds since `first`.
    pub fn line(&self, first: &Moment) -> String {
        let ms = (self.at_ns - first.at_ns) as f64 / 1e6;
        format!("{ms:10.1}  {:<10}  {}", self.who, self.what)
    }
}

/// Starts the containerd on which the pod runs.
pub fn stage() -> Containerd {
    Containerd::start_with(&Settings {
        log_level: "info",
        ..Settings::default()
    })
}

/// Runs the pod from its creation to its end, and draws it. Calls `visit` between the last start
/// and the end. Returns the moments of the pod and the record of its containers.
pub fn play(
    host: &Containerd,
    svg: Option<&Path>,
    visit: impl FnOnce(&Containerd),
) -> (Vec<Moment>, Record) {
    let mut moments = Vec::new();
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
    // Run in the background, because the app waits for the sidecar, which is created next.
    let mut app = host.spawn_run(&container("app", &["--stop-after", "400ms"]));
    eventually("the app is created", PATIENCE, || {
        host.creations("app") > 0 || !app.poll_running()
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
    visit(host);

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
        draw(host, file);
    }
    for name in ["app", "proxy"] {
        host.delete(name);
    }
    let record = host.record();
    moments.extend(record.0.iter().filter_map(recorded));
    moments.sort_by_key(|moment| moment.at_ns);
    (moments, record)
}

/// Commands for another terminal that show the running pod, each with its purpose.
pub fn to_try(host: &Containerd) -> [(String, &'static str); 3] {
    let usher = shim_dir().join("usher");
    // The sockets of the shims are in containerd's own mount namespace.
    let enter = format!(
        "nsenter --target {} --mount {}",
        host.pid().unwrap_or_default(),
        usher.display()
    );
    [
        (
            format!("{enter} ps"),
            "the pods of this node, and how far they are",
        ),
        (
            format!("{enter} inspect shop"),
            "each container's role and state",
        ),
        (format!("{enter} timeline shop"), "what happened when"),
    ]
}

/// Draws the pod by `usher timeline`, while the pod's shim still runs.
fn draw(host: &Containerd, file: &Path) {
    // `usher` is run in another mount namespace, with `/` as its working directory. So the path
    // must be absolute.
    let file = std::path::absolute(file).expect("a path");
    let mut timeline = Command::new(shim_dir().join("usher"));
    timeline.args(["timeline", "demo/shop", "--svg"]).arg(file);
    host.enter(&mut timeline);
    let drawn = run(timeline, PATIENCE);
    assert!(drawn.ok(), "the timeline is not drawn: {}", drawn.err());
}

fn now_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a clock after 1970")
        .as_nanos() as u64
}

/// A line of the record in plain words.
fn recorded(event: &Event) -> Option<Moment> {
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
