//! `usher check` against real containerds: a node that follows its suggestions becomes ready.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::{
    Background, Finished, PATIENCE, Version, eventually, installed_path, installed_program,
    oci_runtime, run, shim_dir, write_program,
};

/// A node whose containerd has an empty configuration.
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
            // `usher check` looks for a program named `runc`, so a link with this name leads to the
            // OCI runtime under test.
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
        let mut command = self.command("check", &shim_dir());
        command.args(arguments);
        run(command, PATIENCE)
    }

    /// The command `usher VERB` for this node, whose containerd looks for programs in `programs`
    /// first.
    fn command(&self, verb: &str, programs: &Path) -> Command {
        let dir = self.dir.path();
        let path = format!(
            "{}:{}:{}",
            programs.display(),
            dir.display(),
            installed_path()
        );
        let mut command = Command::new(shim_dir().join("usher"));
        command.arg(verb).args(["--path", &path]);
        command.arg("--config").arg(dir.join("config.toml"));
        command
            .arg("--containerd")
            .arg(installed_program("containerd"));
        command.env("USHER_CONFIG", dir.join("usher.toml"));
        command
    }

    /// Installs a fake systemctl that records its arguments.
    fn place_systemctl(&self) {
        let text = format!(
            "#!/bin/sh\n[ $1 != is-system-running ] || exit\necho $* >>{}/asked\n",
            self.dir.path().display()
        );
        write_program(&self.dir.path().join("systemctl"), &text);
    }

    /// Runs `usher install` without `--restart`. Panics if the exit status is not `status`.
    #[track_caller]
    fn install(&self, status: i32) -> String {
        let said = self.install_with(&[]);
        assert_eq!(said.code, Some(status), "{}", said.err());
        said.err()
    }

    /// Installs usher for the containerd that `check` examines.
    fn install_with(&self, arguments: &[&str]) -> Finished {
        let dir = self.dir.path();
        let mut command = self.command("install", &dir.join("usr/bin"));
        command.arg("--prefix").arg(dir.join("usr")).args(arguments);
        command.env("PATH", format!("{}:{}", dir.display(), installed_path()));
        run(command, 6 * PATIENCE)
    }

    fn report(&self) -> (Finished, Value) {
        let said = self.check(&["-o", "json"]);
        let report = serde_json::from_slice(&said.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}{}", said.out(), said.err()));
        (said, report)
    }

    /// Starts the node's containerd. No other containerd uses its directories and sockets.
    fn start_containerd(&self) -> Background {
        let mut command = Command::new(installed_program("containerd"));
        command
            .arg("--config")
            .arg(self.dir.path().join("config.toml"));
        let containerd = Background::spawn(command);
        let has_started = || {
            let (_, report) = self.report();
            let told = report["findings"].as_array().unwrap().iter();
            let mut told = told.filter(|it| it["about"] == "loaded configuration");
            told.any(|it| it["code"] != "cri-silent")
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

/// The finding of `usher check` that has this code.
fn finding<'a>(findings: &'a [Value], code: &str) -> Option<&'a Value> {
    findings.iter().find(|finding| finding["code"] == code)
}

#[test]
fn the_suggested_command_makes_a_node_ready() {
    let node = Node::new();
    let said = node.check(&[]).out();
    assert!(
        said.starts_with("This node is not ready for usher. First run\n\n    usher install "),
        "{said}"
    );
    // If an administrator pasted this table into the configuration, containerd 1 would forget its
    // built-in runtime.
    assert!(!said.contains("runtimes.usher]"), "{said}");
    let (ok, findings) = node.findings();
    assert!(!ok, "a node that knows nothing of usher: {findings:?}");
    assert_eq!(level(&findings, "runtime"), "problem");
    assert_eq!(level(&findings, "shim"), "ok", "{findings:#?}");
    assert_eq!(level(&findings, "containerd"), "warning", "{findings:#?}");
    // No containerd runs, so none has to be restarted.
    node.install(0);
    let (ok, findings) = node.findings();
    let config = fs::read_to_string(node.dir.path().join("config.toml")).unwrap();
    assert!(ok, "{findings:#?}\n{config}");
    for about in [
        "default runtime",
        "runtime",
        "shim",
        "annotations",
        "OCI runtime",
    ] {
        assert_eq!(level(&findings, about), "ok", "{findings:#?}");
    }
}

/// The installer has to put the shim where containerd finds it: containerd 1 finds the shim only on
/// its PATH, but the configuration of containerd 2 can contain the shim's path.
#[test]
fn the_command_that_comes_first_works_for_the_path_that_is_named() {
    let node = Node::new();
    node.place_systemctl();
    let dir = node.dir.path();
    let runc = installed_program(&oci_runtime());
    let path = format!(
        "{}:{}",
        dir.join("srv/bin").display(),
        runc.parent().unwrap().display()
    );
    let check = || {
        let mut command = Command::new(shim_dir().join("usher"));
        command.args(["check", "-o", "json", "--path", &path]);
        command.arg("--config").arg(dir.join("config.toml"));
        command
            .arg("--containerd")
            .arg(installed_program("containerd"));
        command.env("USHER_CONFIG", dir.join("usher.toml"));
        let path = format!(
            "{}:{}:{}",
            dir.display(),
            shim_dir().display(),
            installed_path()
        );
        command.env("PATH", path);
        let said = run(command, PATIENCE);
        serde_json::from_slice::<Value>(&said.stdout)
            .unwrap_or_else(|error| panic!("{error}: {said:?}"))
    };
    let first = check()["first"].as_str().unwrap().to_owned();
    let mut command = Command::new("sh");
    let prefix = match Version::of_containerd() {
        Version(..2, _) => "",
        // The installer writes the programs to the test's directory `srv`, and not to the machine's
        // own directories.
        _ => " --prefix srv",
    };
    command
        .current_dir(dir)
        .args(["-c", &format!("{first}{prefix}")]);
    command.env(
        "PATH",
        format!(
            "{}:{}:{}",
            dir.display(),
            shim_dir().display(),
            installed_path()
        ),
    );
    let said = run(command, 6 * PATIENCE);
    assert!(said.ok(), "{first}: {}", said.err());
    let report = check();
    assert_eq!(report["ok"], true, "{first}: {report:#}");
}

#[test]
fn a_configuration_file_that_is_not_there_is_named_so() {
    let node = Node::new();
    fs::remove_file(node.dir.path().join("config.toml")).unwrap();
    let said = node.check(&[]).out();
    assert!(
        said.starts_with("This node is not ready for usher. First fix config-missing:\n"),
        "{said}"
    );
    assert!(!said.contains("config-refused"), "{said}");
}

/// An administrator has written the runtime's table by hand. `usher check` suggests keys to add to
/// this table.
#[test]
fn a_runtime_without_pod_annotations_is_a_problem_that_names_the_table_to_change() {
    let node = Node::new();
    let cri = match Version::of_containerd() {
        Version(..2, _) => "io.containerd.grpc.v1.cri",
        _ => "io.containerd.cri.v1.runtime",
    };
    let table = format!("plugins.\"{cri}\".containerd.runtimes.usher");
    node.write(
        "config.toml",
        &format!("[{table}]\nruntime_type = \"io.containerd.usher.v2\"\n"),
    );
    let (ok, findings) = node.findings();
    assert!(!ok);
    assert_eq!(level(&findings, "runtime"), "ok", "{findings:#?}");
    let problem = finding(&findings, "pod-annotations").unwrap();
    assert_eq!(problem["table"], table);
    assert_eq!(
        problem["file"],
        node.dir.path().join("config.toml").display().to_string()
    );
    // `usher check` suggests keys without the table's heading, because a second heading would be an
    // error.
    node.write("config.toml", problem["add"].as_str().unwrap());
    let (_, findings) = node.findings();
    assert_eq!(finding(&findings, "pod-annotations"), None, "{findings:#?}");
}

#[test]
fn a_running_containerd_is_asked_for_its_loaded_configuration_and_its_report_to_kubelet() {
    let node = Node::new();
    let (_, findings) = node.findings();
    assert_eq!(level(&findings, "features for kubelet"), "none");
    let dir = node.dir.path().display();
    let own = format!(
        "root = \"{dir}/root\"\nstate = \"{dir}/state\"\nimports = []\n\
         disabled_plugins = [\"io.containerd.nri.v1.nri\"]\n\
         [grpc]\naddress = \"{dir}/c.sock\"\n[ttrpc]\naddress = \"{dir}/c.ttrpc\"\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{dir}/opt\"\n\
         [plugins.\"io.containerd.grpc.v1.cri\"]\nstream_server_port = \"0\"\n"
    );
    node.write("config.toml", &own);
    let containerd = node.start_containerd();
    let (_, findings) = node.findings();
    assert_eq!(
        level(&findings, "loaded configuration"),
        "ok",
        "{findings:#?}"
    );
    // Without `--restart`, the administrator has to restart containerd. Until then, each run of the
    // installer asks for the restart.
    for _ in 0..2 {
        let said = node.install(3);
        assert!(said.contains("restart containerd"), "{said}");
        assert!(!said.contains("is installed; in Kubernetes"), "{said}");
    }
    let headline = node.check(&[]).out();
    assert!(
        headline.starts_with("This node is not ready for usher. First "),
        "{headline}"
    );
    let (ok, findings) = node.findings();
    assert!(!ok, "{findings:#?}");
    let stale = finding(&findings, "containerd-stale").unwrap();
    let says = stale["says"].as_str().unwrap();
    assert!(says.contains("it lacks the runtime usher"), "{says}");
    // With `--restart` the installer calls systemctl. The fake systemctl does not restart
    // containerd, and the installer notices this.
    node.place_systemctl();
    let finished = node.install_with(&["--restart"]);
    let said = finished.err();
    assert!(!finished.ok() && said.contains("needs no change"), "{said}");
    assert!(said.contains("#containerd-stale"), "{said}");
    let asked = fs::read_to_string(node.dir.path().join("asked")).unwrap_or_default();
    assert_eq!(asked, "restart containerd\n", "{said}");
    drop(containerd);
    let _containerd = node.start_containerd();
    let (ok, findings) = node.findings();
    assert!(ok, "{findings:#?}");
    assert_eq!(
        level(&findings, "loaded configuration"),
        "ok",
        "{findings:#?}"
    );
    node.install(0);
    // containerd 1 does not report the features of its runtimes.
    let told = match Version::of_containerd() {
        Version(..2, _) => "none",
        _ => "ok",
    };
    assert_eq!(
        level(&findings, "features for kubelet"),
        told,
        "{findings:#?}"
    );
}

/// If the configuration contains any runtime, containerd 1 forgets its built-in runtime. containerd
/// 2 keeps it.
#[test]
fn a_containerd_without_its_cri_plugin_is_a_problem() {
    let node = Node::new();
    let dir = node.dir.path().display();
    let own = format!(
        "root = \"{dir}/root\"\nstate = \"{dir}/state\"\nimports = []\n\
         disabled_plugins = [\"io.containerd.nri.v1.nri\", \"io.containerd.grpc.v1.cri\"]\n\
         [grpc]\naddress = \"{dir}/c.sock\"\n[ttrpc]\naddress = \"{dir}/c.ttrpc\"\n\
         [plugins.\"io.containerd.internal.v1.opt\"]\npath = \"{dir}/opt\"\n"
    );
    node.write("config.toml", &own);
    let _containerd = node.start_containerd();
    let (ok, findings) = node.findings();
    assert!(!ok);
    let failed = finding(&findings, "cri-failed");
    let says = failed.map(|it| it["says"].as_str().unwrap());
    assert!(
        says.is_some_and(|says| says.contains("has no CRI plugin")),
        "{findings:#?}"
    );
}

#[test]
fn an_invalid_configuration_is_a_one_line_problem() {
    let node = Node::new();
    node.write("usher.toml", "[limits]\nnames = 'many'\n");
    let said = node.check(&[]);
    assert!(!said.ok());
    let out = said.out();
    let line = out.lines().find(|line| line.contains("usher.toml"));
    let line = line.unwrap_or_else(|| panic!("{out}"));
    assert!(line.starts_with("PROBLEM"), "{line}");
    assert!(line.contains("line 2"), "{line}");
    // Without a terminal the output has no colors.
    assert!(!out.contains('\x1b'), "{out}");
}

#[test]
fn both_programs_print_their_usage() {
    for word in ["--help", "-h"] {
        let mut command = Command::new(shim_dir().join("containerd-shim-usher-v2"));
        command.arg(word);
        let said = run(command, PATIENCE);
        assert!(said.ok() && said.out().contains("Usage:"), "{said:?}");
    }
    let mut command = Command::new(shim_dir().join("usher"));
    command.args(["help", "nosuch"]);
    let said = run(command, PATIENCE);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err().contains("usher has no command"), "{said:?}");
}
