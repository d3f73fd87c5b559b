//! `usher check` against real containerds: whoever follows its advice has a node that is ready.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{
    Background, Finished, PATIENCE, Version, eventually, installed_path, installed_program,
    oci_runtime, run, shim_dir,
};

/// A node whose containerd has a configuration file with nothing in it.
struct Node {
    dir: TempDir,
}

impl Node {
    fn new() -> Node {
        let dir = tempfile::tempdir().unwrap();
        let layout = match Version::of_containerd() {
            Version(..2, _) => 2,
            _ => 3,
        };
        let node = Node { dir };
        node.write("config.toml", &format!("version = {layout}\n"));
        node.write("usher.toml", "");
        if oci_runtime() != "runc" {
            // The name of what there is does not matter here.
            let there = installed_program(&oci_runtime());
            std::os::unix::fs::symlink(there, node.dir.path().join("runc")).unwrap();
        }
        node
    }

    fn write(&self, name: &str, text: &str) {
        let mut file = OpenOptions::new();
        let file = file.create(true).append(true);
        let mut file = file.open(self.dir.path().join(name)).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn check(&self, arguments: &[&str]) -> Finished {
        let path = format!(
            "{}:{}:{}",
            shim_dir().display(),
            self.dir.path().display(),
            installed_path()
        );
        let mut command = Command::new(shim_dir().join("usher"));
        command.arg("check").args(["--path", &path]).args(arguments);
        command
            .arg("--config")
            .arg(self.dir.path().join("config.toml"));
        command
            .arg("--containerd")
            .arg(installed_program("containerd"));
        command.env("USHER_CONFIG", self.dir.path().join("usher.toml"));
        run(command, PATIENCE)
    }

    fn report(&self) -> (Finished, Value) {
        let said = self.check(&["-o", "json"]);
        let report = serde_json::from_slice(&said.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", said.out(), said.err()));
        (said, report)
    }

    /// Starts its containerd, on directories and sockets of its own.
    fn start_containerd(&self) -> Background {
        let mut command = Command::new(installed_program("containerd"));
        command
            .arg("--config")
            .arg(self.dir.path().join("config.toml"));
        let containerd = Background::spawn(command);
        let has_started = || {
            let (_, report) = self.report();
            let told = report["findings"].as_array().unwrap().iter();
            let mut told = told.filter(|it| it["about"] == "kubelet is told");
            let is_silent = told.any(|it| it["says"].as_str().unwrap().contains("does not say"));
            report["containerd"]["pid"].is_u64() && !is_silent
        };
        eventually("containerd answers", 4 * PATIENCE, has_started);
        containerd
    }

    fn findings(&self) -> (bool, Vec<Value>) {
        let (said, report) = self.report();
        let ok = report["ok"].as_bool().unwrap();
        assert_eq!(said.ok(), ok, "{}", said.out());
        (ok, report["findings"].as_array().unwrap().clone())
    }
}

fn level<'a>(findings: &'a [Value], about: &str) -> &'a str {
    let finding = findings.iter().find(|finding| finding["about"] == about);
    finding.map_or("none", |finding| finding["level"].as_str().unwrap())
}

#[test]
fn whoever_follows_its_advice_has_a_node_that_is_ready() {
    let node = Node::new();
    let (ok, findings) = node.findings();
    assert!(!ok, "a node that knows nothing of usher: {findings:?}");
    assert_eq!(level(&findings, "runtime"), "problem");
    assert_eq!(level(&findings, "shim"), "ok", "{findings:?}");
    // One round for the runtime; on 1.x another one, for what its own entry has made containerd lose.
    for _ in 0..2 {
        let (_, findings) = node.findings();
        for finding in findings.iter().filter(|it| it["level"] == "problem") {
            let add = finding["add"].as_str();
            node.write("config.toml", add.unwrap_or_else(|| panic!("{finding}")));
            node.write("config.toml", "\n");
        }
    }
    let (ok, findings) = node.findings();
    let config = fs::read_to_string(node.dir.path().join("config.toml")).unwrap();
    assert!(ok, "{findings:#?}\n{config}");
    for about in [
        "containerd",
        "runtime",
        "shim",
        "annotations",
        "OCI runtime",
    ] {
        assert_eq!(level(&findings, about), "ok", "{findings:#?}");
    }
}

#[test]
fn annotations_that_are_not_passed_on_are_a_problem() {
    let node = Node::new();
    let (_, findings) = node.findings();
    let runtime = findings.iter().find(|it| it["about"] == "runtime").unwrap();
    let lines = runtime["add"].as_str().unwrap();
    let without: Vec<_> = lines
        .lines()
        .filter(|line| !line.contains("pod_"))
        .collect();
    node.write("config.toml", &without.join("\n"));
    let (ok, findings) = node.findings();
    assert!(!ok);
    assert_eq!(level(&findings, "runtime"), "ok", "{findings:#?}");
    assert_eq!(level(&findings, "annotations"), "problem", "{findings:#?}");
}

#[test]
fn what_kubelet_is_told_is_asked_of_the_containerd_that_runs() {
    let node = Node::new();
    let (_, findings) = node.findings();
    assert_eq!(level(&findings, "kubelet is told"), "none");
    let runtime = findings.iter().find(|it| it["about"] == "runtime").unwrap();
    let runtime = runtime["add"].as_str().unwrap().to_owned();
    let dir = node.dir.path().display();
    let own = format!(
        "root = \"{dir}/root\"\nstate = \"{dir}/state\"\nimports = []\n\
         disabled_plugins = [\"io.containerd.nri.v1.nri\"]\n\
         [grpc]\naddress = \"{dir}/c.sock\"\n[ttrpc]\naddress = \"{dir}/c.ttrpc\"\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{dir}/opt\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nstream_server_port = \"0\"\n"
    );
    node.write("config.toml", &own);
    // containerd 1 tells nothing of its runtimes.
    let told = |of_2| match Version::of_containerd() {
        Version(..2, _) => "none",
        _ => of_2,
    };
    let containerd = node.start_containerd();
    node.write("config.toml", &format!("{runtime}\n"));
    let (_, findings) = node.findings();
    assert_eq!(
        level(&findings, "kubelet is told"),
        told("warning"),
        "{findings:#?}"
    );
    // Without it containerd 1 has no CRI plugin.
    let runc = findings.iter().find(|it| it["about"] == "default runtime");
    node.write("config.toml", runc.unwrap()["add"].as_str().unwrap_or(""));
    drop(containerd);
    let _containerd = node.start_containerd();
    let (_, findings) = node.findings();
    assert_eq!(
        level(&findings, "kubelet is told"),
        told("ok"),
        "{findings:#?}"
    );
}

#[test]
fn a_broken_configuration_is_a_problem_in_one_line() {
    let node = Node::new();
    node.write("usher.toml", "[limits]\nnames = 'many'\n");
    let said = node.check(&[]);
    assert!(!said.ok());
    let out = said.out();
    let line = out.lines().find(|line| line.contains("usher.toml"));
    let line = line.unwrap_or_else(|| panic!("{out}"));
    assert!(line.starts_with("PROBLEM"), "{line}");
    assert!(line.contains("line 2"), "{line}");
    // No terminal, no colours.
    assert!(!out.contains('\x1b'), "{out}");
}
