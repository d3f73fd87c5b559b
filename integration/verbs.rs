//! The verbs of the OCI runtime specification, each at its time and at any other: what runc does by itself the one
//! under test does. The cases are those of the specification's own suite (`runtime-tools/validation`) that are about
//! a container's life; what its process sees is in `surroundings`.
//!
//! <https://github.com/opencontainers/runtime-spec/blob/main/runtime.md>

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::harness::{
    Containerd, OciRuntime, PATIENCE, default_config, eventually, oci_runtime, on_v2,
};

/// Says that it runs, and which signals it gets; ends when it gets SIGTERM.
const LISTENS: &str = "
    for name in HUP USR1 USR2 WINCH 37; do trap \"echo $name >> /shared/$0\" $name; done
    trap 'exit 7' TERM
    echo runs >> /shared/$0
    while :; do sleep 0.01; done
";

/// One container, by the runtime alone.
struct Bare<'host> {
    host: &'host Containerd,
    runtime: OciRuntime<'host>,
    id: &'static str,
    config: Value,
}

impl<'host> Bare<'host> {
    fn new(host: &'host Containerd, id: &'static str) -> Self {
        let config = default_config(host, id, &["/bin/sh", "-c", LISTENS, id]);
        Self {
            host,
            runtime: OciRuntime::new(host, &oci_runtime()),
            id,
            config,
        }
    }

    fn bundle(&self) -> PathBuf {
        self.runtime.bundle(self.id, &self.config)
    }

    fn create(&self) -> Result<(), String> {
        self.runtime.create(self.id, &self.bundle())
    }

    /// One that runs its program.
    #[track_caller]
    fn running(&self) {
        self.create().expect("a container");
        self.runtime.must(&["start", self.id]);
        self.says("runs");
    }

    #[track_caller]
    fn says(&self, word: &str) {
        eventually(&format!("{} says {word}", self.id), PATIENCE, || {
            self.said().lines().any(|line| line == word)
        });
    }

    fn said(&self) -> String {
        fs::read_to_string(self.host.shared_dir().join(self.id)).unwrap_or_default()
    }

    fn state(&self) -> Option<Value> {
        let text = self.runtime.ask(&["state", self.id]).ok()?;
        Some(serde_json::from_str(&text).expect("a state in JSON"))
    }

    /// `unknown` if there is no such container.
    fn status(&self) -> String {
        let state = self.state();
        let status = state.and_then(|state| Some(state["status"].as_str()?.to_owned()));
        status.unwrap_or_else(|| "unknown".to_owned())
    }

    #[track_caller]
    fn becomes(&self, status: &str) {
        eventually(&format!("{} is {status}", self.id), PATIENCE, || {
            self.status() == status
        });
    }

    /// It is refused, and changes nothing.
    #[track_caller]
    fn refuses(&self, verb: &[&str]) {
        let before = self.status();
        let answer = self.runtime.ask(verb);
        assert!(answer.is_err(), "{verb:?} of one that is {before}");
        assert_eq!(self.status(), before, "after {verb:?}");
    }

    #[track_caller]
    fn is_gone(&self) {
        assert_eq!(self.status(), "unknown");
        assert!(!self.runtime.root.join(self.id).exists(), "its state");
        let cgroups = PathBuf::from("/sys/fs/cgroup");
        let own = PathBuf::from(&self.host.namespace).join(self.id);
        let hierarchies = fs::read_dir(&cgroups).expect("cgroups").flatten();
        let places = hierarchies.map(|at| at.path().join(&own));
        for place in places.chain([cgroups.join(&own)]) {
            assert!(!place.exists(), "{}", place.display());
        }
    }

    /// Executes a shell's line in it, and does not wait for its end.
    fn exec(&self, script: &str) -> Result<(), String> {
        let mut process = self.config["process"].clone();
        process["args"] = json!(["/bin/sh", "-c", script, self.id]);
        let bundle = self.bundle();
        let file = bundle.join("process.json");
        fs::write(&file, process.to_string()).expect("process.json");
        let [file, pid] = [file, bundle.join("exec-pid")].map(|path| path.display().to_string());
        let verb = ["exec", "--detach", "--process", &file, "--pid-file", &pid];
        self.runtime
            .ask(&[&verb[..], &[self.id]].concat())
            .map(drop)
    }

    /// The same, which has it say a word.
    #[track_caller]
    fn executes(&self, word: &str) {
        let script = format!("echo {word} >> /shared/$0");
        self.exec(&script).expect("an exec");
        self.says(word);
    }
}

impl Drop for Bare<'_> {
    fn drop(&mut self) {
        // It is gone already if all went well.
        let _ = self.runtime.ask(&["delete", "--force", self.id]);
    }
}

#[test]
fn a_container_is_created_started_stopped_and_deleted() {
    let host = Containerd::start();
    let bare = Bare::new(&host, "life");
    bare.create().expect("a container");
    let state = bare.state().expect("a state");
    let pid = fs::read_to_string(bare.bundle().join("pid")).expect("its process id");
    assert_eq!(state["id"], "life");
    assert_eq!(state["status"], "created");
    assert_eq!(state["pid"].to_string(), pid.trim());
    assert_eq!(state["bundle"], json!(bare.bundle()));
    assert!(state["ociVersion"].is_string(), "{state}");
    assert_eq!(bare.said(), "", "its program has not been executed");

    bare.runtime.must(&["start", "life"]);
    bare.says("runs");
    assert_eq!(bare.status(), "running");
    bare.runtime.must(&["kill", "life", "TERM"]);
    bare.becomes("stopped");
    bare.runtime.must(&["delete", "life"]);
    bare.is_gone();

    // The name is free again.
    bare.running();
    bare.runtime.must(&["delete", "--force", "life"]);
    bare.is_gone();
}

#[test]
fn what_comes_at_the_wrong_time_is_refused_and_changes_nothing() {
    let host = Containerd::start();
    let bare = Bare::new(&host, "untimely");
    let bundle = bare.bundle().display().to_string();
    let create = ["create", "--bundle", &bundle, "untimely"];
    for verb in [
        &["start", "untimely"] as &[&str],
        &["kill", "untimely", "KILL"],
        &["delete", "untimely"],
        &["pause", "untimely"],
        &["ps", "--format", "json", "untimely"],
    ] {
        bare.refuses(verb);
    }
    bare.running();
    bare.refuses(&create);
    bare.refuses(&["start", "untimely"]);
    bare.refuses(&["delete", "untimely"]);
    bare.refuses(&["resume", "untimely"]);
    bare.refuses(&["kill", "untimely", "NOSUCHSIGNAL"]);
    bare.runtime.must(&["kill", "untimely", "KILL"]);
    bare.becomes("stopped");
    bare.refuses(&create);
    bare.refuses(&["start", "untimely"]);
    bare.refuses(&["kill", "untimely", "TERM"]);
    bare.refuses(&["pause", "untimely"]);
    assert!(bare.exec("true").is_err(), "an exec in one that is stopped");
    bare.runtime.must(&["delete", "untimely"]);
    bare.refuses(&["delete", "untimely"]);
    bare.is_gone();
}

#[test]
fn one_that_waits_for_its_start_can_be_ended() {
    let host = Containerd::start();
    let bare = Bare::new(&host, "waits");
    bare.create().expect("a container");
    bare.runtime.must(&["kill", "waits", "KILL"]);
    bare.becomes("stopped");
    bare.refuses(&["start", "waits"]);
    bare.runtime.must(&["delete", "waits"]);
    bare.is_gone();
    bare.create().expect("a container");
    bare.runtime.must(&["delete", "--force", "waits"]);
    bare.is_gone();
    assert_eq!(bare.said(), "", "its program was never executed");
}

#[test]
fn what_cannot_be_created_leaves_nothing() {
    let host = Containerd::start();
    let mut bare = Bare::new(&host, "broken");
    let whole = bare.config.clone();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut config = whole.clone();
        change(&mut config);
        config
    };
    for (what, config) in [
        ("no program", with(&|c| c["process"]["args"] = json!([]))),
        (
            "a program that is not there",
            with(&|c| c["process"]["args"] = json!(["/no/such"])),
        ),
        (
            "a relative directory to begin in",
            with(&|c| c["process"]["cwd"] = json!("bin")),
        ),
        (
            "no root file system",
            with(&|c| c["root"]["path"] = json!("/no/such")),
        ),
        (
            "a limit that there is not",
            with(&|c| {
                c["process"]["rlimits"] = json!([{ "type": "RLIMIT_NONE", "hard": 1, "soft": 1 }]);
            }),
        ),
        (
            "a sysctl of the node's",
            with(&|c| c["linux"]["sysctl"] = json!({ "vm.overcommit_memory": "1" })),
        ),
        (
            "a mount of what is not there",
            with(&|c| {
                let mount = json!({ "destination": "/x", "type": "bind", "source": "/no/such", "options": ["bind"] });
                c["mounts"].as_array_mut().expect("mounts").push(mount);
            }),
        ),
        ("no document", json!("nothing")),
    ] {
        bare.config = config;
        let said = bare.create().expect_err(what);
        assert!(!said.trim().is_empty(), "{what}: it says why");
        bare.is_gone();
    }
    // A terminal needs somebody who takes it.
    bare.config = with(&|c| c["process"]["terminal"] = json!(true));
    bare.create().expect_err("no console socket");
    bare.is_gone();
    let socket = host.dir().join("nobody").display().to_string();
    let bundle = bare.bundle().display().to_string();
    let create = [
        "create",
        "--bundle",
        &bundle,
        "--console-socket",
        &socket,
        "broken",
    ];
    bare.refuses(&create);
    bare.is_gone();
    let empty = host.dir().join("empty");
    fs::create_dir(&empty).expect("a directory");
    let empty = empty.display().to_string();
    bare.refuses(&["create", "--bundle", &empty, "broken"]);
    bare.config = whole;
    bare.bundle();
    for id in ["", "..", "a/b"] {
        bare.refuses(&["create", "--bundle", &bundle, id]);
    }
}

#[test]
fn signals_reach_the_process_by_name_and_number() {
    let host = Containerd::start();
    let bare = Bare::new(&host, "signals");
    bare.running();
    for (signal, heard) in [
        ("HUP", "HUP"),
        ("SIGUSR1", "USR1"),
        ("12", "USR2"),
        ("SIGWINCH", "WINCH"),
        ("37", "37"),
    ] {
        bare.runtime.must(&["kill", "signals", signal]);
        bare.says(heard);
    }
    assert_eq!(bare.status(), "running");
    bare.runtime.must(&["kill", "--all", "signals", "KILL"]);
    bare.becomes("stopped");
    bare.runtime.must(&["delete", "signals"]);
    bare.is_gone();
}

#[test]
fn hooks_after_the_start_and_the_end_are_told_the_state() {
    let host = Containerd::start();
    let mut bare = Bare::new(&host, "hooks");
    let hook = |name: &str| {
        let file = host.shared_dir().join(name);
        json!([{ "path": "/bin/bash", "args": ["bash", "-c", format!("cat > {}", file.display())] }])
    };
    bare.config["hooks"] =
        json!({ "poststart": hook("after-start"), "poststop": hook("after-end") });
    let told = |name: &str| -> Option<Value> {
        let text = fs::read_to_string(host.shared_dir().join(name)).ok()?;
        Some(serde_json::from_str(&text).expect("a state in JSON"))
    };
    bare.create().expect("a container");
    let pid = bare.state().expect("a state")["pid"].clone();
    assert_eq!(told("after-end"), None);
    bare.runtime.must(&["start", "hooks"]);
    bare.says("runs");
    let state = told("after-start").expect("start waits for its hook");
    assert_eq!((&state["id"], &state["pid"]), (&json!("hooks"), &pid));
    bare.runtime.must(&["kill", "hooks", "TERM"]);
    bare.becomes("stopped");
    assert_eq!(told("after-end"), None);
    bare.runtime.must(&["delete", "hooks"]);
    let state = told("after-end").expect("the deletion waits for its hook");
    assert_eq!(state["id"], "hooks");
    bare.is_gone();
}

#[test]
fn a_container_whose_last_hook_fails_is_gone_all_the_same() {
    let host = Containerd::start();
    let mut bare = Bare::new(&host, "fails");
    bare.config["hooks"] = json!({ "poststop": [{ "path": "/bin/false" }] });
    bare.running();
    bare.runtime.must(&["kill", "fails", "KILL"]);
    bare.becomes("stopped");
    // The specification has it warn, and runc says that it has failed.
    let _ = bare.runtime.ask(&["delete", "fails"]);
    bare.is_gone();
}

#[test]
fn processes_are_executed_listed_and_frozen() {
    let host = Containerd::start();
    let bare = Bare::new(&host, "processes");
    bare.create().expect("a container");
    // Before its start, too.
    bare.executes("early");
    bare.runtime.must(&["start", "processes"]);
    bare.says("runs");
    bare.executes("late");
    let pids = bare.runtime.must(&["ps", "--format", "json", "processes"]);
    let pids: Vec<u32> = serde_json::from_str(&pids).expect("numbers");
    let init = bare.state().expect("a state")["pid"].as_u64();
    assert!(
        pids.iter().any(|pid| Some(u64::from(*pid)) == init),
        "{pids:?}"
    );

    bare.runtime.must(&["pause", "processes"]);
    assert_eq!(bare.status(), "paused");
    assert!(bare.exec("true").is_err(), "an exec in one that is paused");
    bare.refuses(&["pause", "processes"]);
    bare.runtime.must(&["resume", "processes"]);
    assert_eq!(bare.status(), "running");
    bare.executes("again");

    // Whoever has frozen it.
    let freezer = match on_v2() {
        true => (format!("{}/processes/cgroup.freeze", host.namespace), "1"),
        false => (
            format!("freezer/{}/processes/freezer.state", host.namespace),
            "FROZEN",
        ),
    };
    fs::write(PathBuf::from("/sys/fs/cgroup").join(freezer.0), freezer.1).expect("a freezer");
    bare.becomes("paused");
    bare.runtime.must(&["resume", "processes"]);
    assert_eq!(bare.status(), "running");
    bare.executes("thawed");
    bare.runtime.must(&["delete", "--force", "processes"]);
    bare.is_gone();
}

#[test]
fn limits_are_changed_while_it_runs() {
    let host = Containerd::start();
    let bare = Bare::new(&host, "limits");
    bare.running();
    let file = bare.bundle().join("resources.json");
    let resources = json!({ "memory": { "limit": 64 << 20 }, "pids": { "limit": 50 } });
    fs::write(&file, resources.to_string()).expect("resources.json");
    let file = file.display().to_string();
    bare.runtime
        .must(&["update", "--resources", &file, "limits"]);
    let own = format!("{}/limits", host.namespace);
    let (memory, pids) = match on_v2() {
        true => (format!("{own}/memory.max"), format!("{own}/pids.max")),
        false => (
            format!("memory/{own}/memory.limit_in_bytes"),
            format!("pids/{own}/pids.max"),
        ),
    };
    let value = |file: &str| {
        let text = fs::read_to_string(PathBuf::from("/sys/fs/cgroup").join(file));
        text.expect("a limit").trim().to_owned()
    };
    assert_eq!(value(&memory), (64 << 20).to_string());
    assert_eq!(value(&pids), "50");
    if !on_v2() {
        let devices = value(&format!("devices/{own}/devices.list"));
        assert!(!devices.contains("c 5:1 "), "the node's console: {devices}");
    }
    bare.runtime.must(&["delete", "--force", "limits"]);
    bare.is_gone();
}
