//! The first hour of an administrator and of a pod's author, on a node with separate namespaces:
//! install, check, a pod in order, five mistakes, a cleanup that hangs, an upgrade, a removal.
//!
//! The test checks names and values in the output, and exit statuses. Other tests compare whole
//! sentences.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::control::usher;
use crate::harness::{
    ContainerSpec, Containerd, Finished, PATIENCE, Version, installed_program, poll, run, shim_dir,
    write_program,
};
use crate::pod::TCP_PROBE;

const SHIM: &str = "containerd-shim-usher-v2";

/// Timeout of an installation: `usher install` starts a containerd once for each change.
const INSTALLATION: Duration = Duration::from_secs(120);

/// A flag that is set on drop, so that a panic sets it too.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A node whose containerd has the CRI plugin, and on which usher is not installed.
struct Node {
    host: Containerd,
    /// containerd's configuration before the installation.
    before: String,
}

impl Node {
    fn new() -> Node {
        let host = Containerd::start();
        host.stop();
        fs::remove_file(host.dir().join("bin").join(SHIM)).expect("the shim of the harness");
        let file = host.dir().join("config.toml");
        let text = fs::read_to_string(&file).expect("the configuration");
        let is_cri = |line: &&str| {
            let plugins = ["grpc.v1.cri", "cri.v1.images", "cri.v1.runtime"];
            plugins
                .iter()
                .any(|plugin| line.trim() == format!("\"io.containerd.{plugin}\","))
        };
        let kept: Vec<&str> = text.lines().filter(|line| !is_cri(line)).collect();
        let network = match Version::of_containerd() {
            Version(..2, _) => "grpc.v1.cri",
            _ => "cri.v1.runtime",
        };
        let before = format!(
            "{}\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  stream_server_port = \"0\"\n\
             [plugins.\"io.containerd.{network}\".cni]\n  conf_dir = \"{}/cni\"\n",
            kept.join("\n"),
            host.dir().display()
        );
        fs::write(&file, &before).expect("the configuration");
        host.start_again();
        let node = Node { host, before };
        node.place_systemctl();
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.dir().join(name)
    }

    fn config(&self) -> String {
        fs::read_to_string(self.path("config.toml")).expect("the configuration")
    }

    /// Installs a fake systemctl whose `restart` waits until the test has restarted containerd.
    fn place_systemctl(&self) {
        let dir = self.path("tools");
        fs::create_dir(&dir).expect("a directory");
        let script = format!(
            "#!/bin/sh\n[ $1 = restart ] || exit 0\ntouch {0}/asked\n\
             until [ -e {0}/restarted ]; do sleep 0.05; done\nrm {0}/restarted\n",
            dir.display()
        );
        write_program(&dir.join("systemctl"), &script);
    }

    /// `usher VERB` with the options that describe this node.
    fn command(&self, verb: &str, words: &[&str]) -> Command {
        let mut command = usher(&self.host, &[verb]);
        command.arg("--config").arg(self.path("config.toml"));
        command
            .arg("--containerd")
            .arg(installed_program("containerd"));
        command.args(["--path", &self.host.path]).args(words);
        let path = format!("{}:{}", self.path("tools").display(), self.host.path);
        command.env("PATH", path).env("TMPDIR", self.path("tmp"));
        command.env("USHER_CONFIG", self.host.usher_config());
        command
    }

    /// Installs usher on this node. Restarts containerd each time the fake systemctl is told to
    /// restart it.
    fn install(&self, words: &[&str]) -> Finished {
        let prefix = self.host.dir().display().to_string();
        let words = [&["--prefix", &prefix], words].concat();
        let command = self.command("install", &words);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let asked = self.path("tools/asked");
                while !is_over.load(Ordering::Relaxed) {
                    if fs::remove_file(&asked).is_ok() {
                        self.host.stop();
                        self.host.start_again();
                        fs::write(self.path("tools/restarted"), "").expect("a mark");
                    }
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let _is_over_on_drop = SetOnDrop(&is_over);
            run(command, INSTALLATION)
        })
    }

    #[track_caller]
    fn must_install(&self, words: &[&str]) {
        let finished = self.install(words);
        assert!(
            finished.ok(),
            "{words:?}: {}{}",
            finished.out(),
            finished.err()
        );
    }

    fn check(&self) -> Finished {
        run(self.command("check", &[]), PATIENCE)
    }

    /// Repeats a command until its output contains all of `names`.
    #[track_caller]
    fn says(&self, words: &[&str], names: &[&str]) -> String {
        let mut last = String::new();
        let found = poll(PATIENCE, || {
            let finished = run(usher(&self.host, words), PATIENCE);
            last = format!("{}{}", finished.out(), finished.err());
            names.iter().all(|name| last.contains(name)).then_some(())
        });
        assert!(found.is_some(), "{words:?} never has {names:?}:\n{last}");
        last
    }

    /// Asserts that a container with these annotations is refused, and that the error contains all
    /// of `names`.
    #[track_caller]
    fn assert_refused(&self, annotations: &[(&str, &str)], names: &[&str]) {
        let refused =
            self.host
                .try_run(&ContainerSpec::witness_of("wrong", "app", annotations, &[]));
        let said = refused.err();
        let are_named = names.iter().all(|name| said.contains(name));
        assert!(!refused.ok() && are_named, "{annotations:?}: {said}");
        self.host.must(&["containers", "delete", "wrong-app"]);
    }
}

#[test]
fn the_first_hour_with_usher_succeeds() {
    let node = Node::new();
    install_and_check(&node);
    run_a_pod_in_order(&node);
    make_mistakes(&node);
    let_a_cleanup_hang(&node);
    let_an_app_hang(&node);
    upgrade_and_remove(&node);
}

fn install_and_check(node: &Node) {
    let checked = node.check();
    assert!(!checked.ok(), "nothing is installed: {}", checked.out());
    node.must_install(&["--restart"]);
    let checked = node.check();
    assert!(checked.ok(), "{}{}", checked.out(), checked.err());
    // A second run has nothing to change, and succeeds.
    node.must_install(&["--restart"]);
}

fn run_a_pod_in_order(node: &Node) {
    let host = &node.host;
    let plan = [
        ("usher/sidecars", "proxy"),
        ("startup-probe.usher/proxy", TCP_PROBE),
    ];
    host.run(&ContainerSpec::witness_of("shop", "app", &plan, &[]));
    node.says(&["inspect", "shop"], &["held", "proxy"]);
    host.run(&ContainerSpec::witness_of(
        "shop",
        "proxy",
        &plan,
        &["--listen", "8080"],
    ));
    host.await_event("app", "start");
    node.says(&["ps"], &["shop", "2/2"]);
    let stopped = run(
        usher(host, &["stop", "shop", "--grace-period", "10s"]),
        PATIENCE,
    );
    assert!(stopped.ok(), "{stopped:?}");
    for name in ["shop-app", "shop-proxy"] {
        host.wait_exit(name);
    }
    let record = host.record();
    assert!(
        record.at("proxy", "ready") < record.at("app", "start"),
        "{record:?}"
    );
    assert!(
        record.at("app", "exit") < record.at("proxy", "signal"),
        "{record:?}"
    );
    for name in ["shop-app", "shop-proxy"] {
        host.delete(name);
    }
}

fn make_mistakes(node: &Node) {
    let host = &node.host;
    // Three mistakes: an unknown key, a value with an unknown unit, and a container name that is
    // misspelled in the list of sidecars but right in the key of its probe.
    node.assert_refused(
        &[("usher/sidecar", "proxy")],
        &["usher/sidecar", "sidecars"],
    );
    node.assert_refused(
        &[("usher/startup-timeout", "2min")],
        &["usher/startup-timeout", "2min"],
    );
    let misspelled = [
        ("usher/sidecars", "proxi"),
        ("usher/apps", "app"),
        ("startup-probe.usher/proxy", TCP_PROBE),
    ];
    node.assert_refused(&misspelled, &["startup-probe.usher/proxy"]);
    // The fourth mistake: a list names a container that does not exist.
    host.run(&ContainerSpec::witness_of(
        "lost",
        "app",
        &[("usher/sidecars", "proxi")],
        &[],
    ));
    node.says(&["inspect", "lost"], &["app", "proxi"]);
    host.kill("lost-app", "SIGKILL");
    host.delete("lost-app");
    // The fifth mistake: a startup probe connects to a port on which no process listens.
    let wrong_port = r#"{"tcpSocket":{"port":9},"periodMilliseconds":100,"failureThreshold":600}"#;
    let plan = [
        ("usher/sidecars", "proxy"),
        ("startup-probe.usher/proxy", wrong_port),
    ];
    host.run(&ContainerSpec::witness_of("late", "app", &plan, &[]));
    host.run(&ContainerSpec::witness_of("late", "proxy", &plan, &[]));
    node.says(&["inspect", "late"], &["proxy", "probe"]);
    host.kill_all(&["late-app", "late-proxy"], "SIGKILL");
    for name in ["late-app", "late-proxy"] {
        host.delete(name);
    }
}

/// The container `clean-up` ignores its stop signal. The shim kills the container at the end of the
/// grace period.
fn let_a_cleanup_hang(node: &Node) {
    let host = &node.host;
    let plan = [("usher/sidecars", "logs"), ("usher/post-exit", "clean-up")];
    let names = ["hung-logs", "hung-app", "hung-clean-up"];
    host.run(&ContainerSpec::witness_of("hung", "logs", &plan, &[]));
    host.run(&ContainerSpec::witness_of("hung", "app", &plan, &[]));
    host.run(&ContainerSpec::witness_of(
        "hung",
        "clean-up",
        &plan,
        &["--ignore-term"],
    ));
    node.says(&["ps"], &["hung", "2/2"]);
    let asked = ["stop", "hung", "--no-wait", "--grace-period", "5s"];
    assert!(run(usher(host, &asked), PATIENCE).ok());
    host.await_event("clean-up", "start");
    let sentence = [
        "clean-up (post-exit) has run for ",
        " of its ",
        "; logs waits for it; ",
        "killed in ",
    ];
    node.says(&["inspect", "hung"], &sentence);
    // The shim reports 0 for a defer container whatever its exit code (usher/defer-exit-code); the
    // timeline shows the real one.
    assert_eq!(names.map(|name| host.wait_exit(name)), [0, 0, 0]);
    node.says(&["timeline", "hung"], &["clean-up", "137"]);
    for name in names {
        host.delete(name);
    }
}

/// An app ignores its stop signal, and no time is left for the cleanup that follows it.
fn let_an_app_hang(node: &Node) {
    let host = &node.host;
    let plan = [("usher/apps", "app"), ("usher/post-exit", "flush")];
    host.run(&ContainerSpec::witness_of(
        "stuck",
        "app",
        &plan,
        &["--ignore-term"],
    ));
    host.run(&ContainerSpec::witness_of("stuck", "flush", &plan, &[]));
    host.await_event("app", "start");
    let asked = ["stop", "stuck", "--no-wait", "--grace-period", "4s"];
    assert!(run(usher(host, &asked), PATIENCE).ok());
    let sentences = [
        "app app is stopping for ",
        "it gets a last signal, and SIGKILL within two seconds",
        "post-exit flush is held for ",
        "its turn to run; it is now the turn of the apps",
        "its program is never executed",
    ];
    node.says(&["inspect", "stuck"], &sentences);
    node.says(
        &["inspect", "stuck"],
        &["app app is stopping for ", "it is killed"],
    );
    for name in ["stuck-app", "stuck-flush"] {
        host.wait_exit(name);
    }
    assert!(host.record().first("flush", "start").is_none());
    for name in ["stuck-app", "stuck-flush"] {
        host.delete(name);
    }
}

fn upgrade_and_remove(node: &Node) {
    let host = &node.host;
    host.run(&ContainerSpec::witness_of(
        "old",
        "app",
        &[("usher/apps", "app")],
        &[],
    ));
    // The programs of the next version are one byte longer than those of this version.
    let next = node.path("next");
    fs::create_dir(&next).expect("a directory");
    for program in ["usher", SHIM] {
        let mut copy = Command::new("sh");
        copy.args(["-c", r#"cat "$0" >"$1" && echo >>"$1" && chmod 755 "$1""#]);
        copy.args([shim_dir().join(program), next.join(program)]);
        assert!(run(copy, PATIENCE).ok(), "{program} is not copied");
    }
    let length = |path: PathBuf| fs::metadata(path).expect("a program").len();
    let binaries = next.display().to_string();
    node.must_install(&["--restart", "--binaries", &binaries]);
    assert_eq!(length(node.path("bin").join(SHIM)), length(next.join(SHIM)));
    node.says(&["inspect", "old"], &["app", "running"]);
    host.run(&ContainerSpec::witness_of(
        "new",
        "app",
        &[("usher/apps", "app")],
        &[],
    ));
    node.says(&["ps"], &["old", "new"]);

    let refused = node.install(&["--remove"]);
    assert!(
        !refused.ok(),
        "pods run: {}{}",
        refused.out(),
        refused.err()
    );
    for name in ["old-app", "new-app"] {
        host.kill(name, "SIGKILL");
        host.delete(name);
    }
    let removed = poll(PATIENCE, || {
        node.install(&["--remove", "--restart"]).ok().then_some(())
    });
    assert!(removed.is_some(), "it stays, without a pod");
    assert_eq!(node.config(), node.before);
    assert!(!node.path("bin").join(SHIM).exists());
    assert!(!node.check().ok());
}
