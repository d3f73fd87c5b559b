//! `usher install`: what it makes of a node's configuration, on the containerd that is tested with.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::harness::{
    Background, Finished, Version, copy_program, installed_program, run, shim_dir, write_program,
};

/// It starts a containerd once each time that something changes.
const PATIENCE: Duration = Duration::from_secs(120);

/// A configuration as nodes have it, with what containerd says nothing about of itself.
const USUAL: &str = r#"# what Debian's package brings
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni" # Debian's
"#;

/// The parts of a node that the installer is told of.
struct Node {
    dir: tempfile::TempDir,
}

// === impl Node ===

impl Node {
    fn new() -> Self {
        let prefix = std::env::var("USHER_TEST_PREFIX").unwrap_or_else(|_| "usher-it-".into());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir();
        let node = Self {
            dir: dir.expect("a directory"),
        };
        for name in ["etc", "tmp"] {
            fs::create_dir(node.path(name)).expect("a directory of the node");
        }
        node
    }

    fn with_config(text: &str) -> Self {
        let node = Self::new();
        fs::write(node.config(), text).expect("the configuration");
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn config(&self) -> PathBuf {
        self.path("etc/config.toml")
    }

    fn text(&self) -> String {
        fs::read_to_string(self.config()).expect("the configuration")
    }

    fn install(&self, words: &[&str]) -> Finished {
        let mut command = Command::new(shim_dir().join("usher"));
        command.arg("install");
        self.install_with(command, words)
    }

    fn install_with(&self, mut command: Command, words: &[&str]) -> Finished {
        command.arg("--config").arg(self.config());
        command.arg("--containerd").arg(containerd());
        command.arg("--prefix").arg(self.path("usr"));
        let path = std::env::var("PATH").unwrap_or_default();
        let with = |name| format!("{}:{path}", self.path(name).display());
        command.arg("--path").arg(with("usr/bin"));
        command.env("PATH", with("bin"));
        command.args(words).env("TMPDIR", self.path("tmp"));
        let finished = run(command, PATIENCE);
        let left: Vec<_> = fs::read_dir(self.path("tmp")).expect("tmp").collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        finished
    }

    /// Puts a script into systemd's place, which notes what it is asked for; `then` is what it does.
    fn place_systemctl(&self, then: &str) {
        let script = self.path("bin/systemctl");
        fs::create_dir_all(self.path("bin")).expect("a directory");
        let text = format!(
            "#!/bin/sh\n[ $1 != is-system-running ] || exit\ncd {0}\necho $* >>asked\n{then}\n",
            self.path("").display()
        );
        write_program(&script, &text);
    }

    /// What it was asked for since it was asked about.
    fn asked_of_systemctl(&self) -> String {
        let asked = fs::read_to_string(self.path("asked")).unwrap_or_default();
        let _ = fs::remove_file(self.path("asked"));
        asked
    }

    #[track_caller]
    fn must(&self, words: &[&str]) -> String {
        let finished = self.install(words);
        assert!(finished.ok(), "{words:?}: {}", finished.err());
        finished.err()
    }

    #[track_caller]
    fn must_fail(&self, words: &[&str]) -> String {
        let finished = self.install(words);
        assert!(!finished.ok(), "{words:?}: {}", finished.err());
        finished.err()
    }

    /// What containerd makes of the configuration.
    fn dump(&self) -> String {
        let mut command = Command::new(containerd());
        command.arg("--config").arg(self.config());
        command.args(["config", "dump"]);
        let finished = run(command, PATIENCE);
        assert!(finished.ok(), "{}", finished.err());
        finished.out().replace('\'', "\"")
    }

    fn programs(&self) -> Vec<String> {
        names(&self.path("usr/bin"))
    }
}

fn containerd() -> PathBuf {
    installed_program("containerd")
}

/// The names in a directory; none where it is not there.
fn names(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else {
        return Vec::new();
    };
    let name = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<_> = entries
        .map(|entry| name(entry).to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The runtimes that a dump names, in its order.
fn runtimes(dump: &str) -> Vec<&str> {
    let tables = dump.lines().filter_map(|line| {
        let (_, name) = line.trim().split_once(".containerd.runtimes.")?;
        name.strip_suffix(']').filter(|name| !name.contains('.'))
    });
    tables.collect()
}

#[test]
fn containerd_knows_the_runtime_and_passes_annotations_on() {
    let node = Node::with_config(USUAL);
    node.must(&[]);
    let dump = node.dump();
    assert_eq!(runtimes(&dump), ["runc", "usher"], "{dump}");
    let known_as = match Version::of_containerd() {
        Version(..2, _) => "runtime_type = \"io.containerd.usher.v2\"".to_owned(),
        _ => format!(
            "runtime_path = \"{}\"",
            node.path("usr/bin/containerd-shim-usher-v2").display()
        ),
    };
    assert!(dump.contains(&known_as), "{dump}");
    assert!(dump.contains(r#"pod_annotations = ["usher/*", "*.usher/*"]"#));
    let of_containers = r#"container_annotations = ["usher/*", "*.usher/*", "io.kubernetes.*"]"#;
    assert!(dump.contains(of_containers), "{dump}");
    assert!(node.text().starts_with(USUAL));
    assert_eq!(node.programs(), ["containerd-shim-usher-v2", "usher"]);
}

#[test]
fn twice_is_the_same_as_once() {
    let node = Node::with_config(USUAL);
    node.must(&[]);
    let (text, programs) = (node.text(), node.programs());
    let said = node.must(&[]);
    assert!(said.contains("needs no change"), "{said}");
    assert_eq!((node.text(), node.programs()), (text, programs));
}

#[test]
fn uninstalled_it_leaves_what_was_there_before() {
    for before in [USUAL, USUAL.trim_end(), "version = 2\n"] {
        let node = Node::with_config(before);
        node.must(&[]);
        assert_eq!(runtimes(&node.dump()), ["runc", "usher"]);
        let said = node.must(&["--remove"]);
        assert_eq!(node.text(), before);
        // The directory of the programs was made for them.
        let gone = [
            "usr/bin/containerd-shim-usher-v2",
            "usr/bin/usher",
            "usr/bin",
            "usr",
        ];
        for gone in gone.map(|name| node.path(name)) {
            assert!(!gone.exists(), "{gone:?}: {said}");
            assert!(
                said.contains(&format!("removed: {}\n", gone.display())),
                "{said}"
            );
        }
        let file = node.config().display().to_string();
        assert!(
            said.contains(&format!("the runtime is taken out of {file}\n")),
            "{said}"
        );
        let again = node.must(&["--remove"]);
        assert!(!again.contains("removed: "), "{again}");
        assert_eq!(node.text(), before);
    }
}

#[test]
fn what_a_package_has_brought_stays_when_it_is_taken_away() {
    let node = Node::with_config(USUAL);
    node.must(&[]);
    fs::create_dir_all(node.path("bin")).expect("a directory");
    let knows_the_shim = "#!/bin/sh\n[ \"${2##*/}\" = containerd-shim-usher-v2 ]\n";
    write_program(&node.path("bin/dpkg-query"), knows_the_shim);
    let planned = node.install(&["--dry-run", "--remove"]).out();
    assert!(!planned.contains("containerd-shim-usher-v2\n"), "{planned}");
    let said = node.must(&["--remove"]);
    assert!(said.contains("it belongs to a package"), "{said}");
    assert_eq!(node.text(), USUAL);
    assert_eq!(node.programs(), ["containerd-shim-usher-v2"]);
}

#[test]
fn what_was_added_meanwhile_stays() {
    let node = Node::with_config(USUAL);
    node.must(&[]);
    let mine = "\n[debug]\n  level = \"warn\"\n";
    fs::write(node.config(), node.text() + mine).expect("the configuration");
    node.must(&[]);
    assert_eq!(runtimes(&node.dump()), ["runc", "usher"]);
    node.must(&["--remove"]);
    assert_eq!(node.text(), format!("{USUAL}{mine}"));
}

#[test]
fn a_node_without_a_configuration_gets_one_and_loses_it_again() {
    let node = Node::new();
    for _ in 0..2 {
        node.must(&[]);
        assert_eq!(runtimes(&node.dump()), ["runc", "usher"]);
    }
    node.must(&["--remove"]);
    assert_eq!(names(&node.path("etc")), [""; 0]);
}

#[test]
fn where_containerd_2_imports_a_directory_the_runtime_is_a_file_in_it() {
    let imports = "imports = [\"conf.d/*.toml\"]\n";
    let before = format!("{imports}{USUAL}");
    let node = Node::with_config(&before);
    fs::create_dir(node.path("etc/conf.d")).expect("a directory");
    let other = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other]\n  \
        runtime_type = \"io.containerd.other.v2\"\n";
    // What containerd 1 imports takes the place of the CRI plugin's whole part.
    let on_2 = Version::of_containerd() >= Version(2, 0);
    if on_2 {
        fs::write(node.path("etc/conf.d/other.toml"), other).expect("a part");
    }
    for _ in 0..2 {
        node.must(&[]);
        let dump = node.dump();
        assert!(runtimes(&dump).contains(&"usher"), "{dump}");
        assert!(runtimes(&dump).contains(&"runc"), "{dump}");
        assert_eq!(runtimes(&dump).contains(&"other"), on_2, "{dump}");
        if on_2 {
            assert_eq!(
                names(&node.path("etc/conf.d")),
                ["other.toml", "usher.toml"]
            );
            assert_eq!(node.text(), before);
        }
    }
    node.must(&["--remove"]);
    assert_eq!(node.text(), before);
    let left = names(&node.path("etc/conf.d"));
    assert_eq!(left, if on_2 { vec!["other.toml"] } else { vec![] });
}

/// k3s, RKE2, k0s and MicroK8s make their configuration anew at each start.
#[test]
fn a_configuration_that_a_distribution_makes_is_left_alone_and_its_source_has_the_runtime() {
    let version = Version::of_containerd();
    for (flavor, source, before) in [
        ("k3s", "config.toml.tmpl", None),
        (
            "rke2",
            "config.toml.tmpl",
            Some("{{ template \"base\" . }}\n# mine\n"),
        ),
        ("k0s", "containerd.d/usher.toml", None),
        ("microk8s", "containerd-template.toml", Some(USUAL)),
    ] {
        let node = Node::with_config(USUAL);
        let source = node.path("etc").join(source);
        let text = || fs::read_to_string(&source).ok();
        if let Some(before) = before {
            fs::write(&source, before).expect("the source");
        }
        node.must(&["--flavor", flavor]);
        let written = text().expect("the source");
        assert!(written.contains("containerd.runtimes.usher]"), "{written}");
        assert!(written.contains(before.unwrap_or_default()), "{written}");
        assert_eq!(node.text(), USUAL);
        node.must(&["--flavor", flavor]);
        assert_eq!(text().as_ref(), Some(&written));
        node.must(&["--flavor", flavor, "--remove"]);
        assert_eq!(text().as_deref(), before, "{flavor}");
        assert_eq!(node.text(), USUAL);
    }
    if version < Version(2, 0) {
        return;
    }
    // k3s imports a directory where its containerd is one of 2.
    let before = format!("imports = [\"config-v3.toml.d/*.toml\"]\n{USUAL}");
    let node = Node::with_config(&before);
    node.must(&["--flavor", "k3s"]);
    assert_eq!(node.text(), before);
    assert_eq!(names(&node.path("etc/config-v3.toml.d")), ["usher.toml"]);
    // Somebody else has a file in it by now.
    let other = node.path("etc/config-v3.toml.d/other.toml");
    fs::write(&other, "version = 2\n").expect("a part");
    node.must(&["--flavor", "k3s", "--remove"]);
    assert_eq!(names(&node.path("etc/config-v3.toml.d")), ["other.toml"]);
    fs::remove_file(other).expect("the part");
    fs::remove_dir(node.path("etc/config-v3.toml.d")).expect("an empty directory");
    node.must(&["--flavor", "k3s"]);
    let said = node.must(&["--flavor", "k3s", "--remove"]);
    assert_eq!(names(&node.path("etc")), ["config.toml"], "{said}");
}

/// All that containerd would write itself, with what people do to such a file.
#[test]
fn containerds_own_configuration_comes_back_byte_by_byte() {
    let mut command = Command::new(containerd());
    command.args(["config", "default"]);
    let finished = run(command, PATIENCE);
    assert!(finished.ok(), "{}", finished.err());
    let default: String = finished
        .out()
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("imports ="))
        .collect();
    let mine = "[plugins] # mine\n  \"io.containerd.gc.v1.scheduler\" = { pause_threshold = 0.03 }\n  \
        \"io.containerd.grpc.v1.cri\".enable_selinux = false\n";
    let as_it_is = format!("# all of it\n{default}");
    for before in [
        as_it_is.trim_end().to_owned(),
        default.replace('\n', "\r\n"),
        format!("version = 2\n{mine}"),
    ] {
        let node = Node::with_config(&before);
        let others = |dump: String| -> Vec<String> {
            let lines = dump.lines().map(str::to_owned);
            lines
                .filter(|line| !line.starts_with("imports ="))
                .collect()
        };
        let all_before = others(node.dump());
        node.must(&[]);
        assert!(node.text().starts_with(&before));
        let all_after = others(node.dump());
        let lost = all_before.iter().find(|line| !all_after.contains(line));
        assert_eq!(lost, None, "{all_after:#?}");
        assert_eq!(runtimes(&node.dump()), ["runc", "usher"]);
        node.must(&["--remove"]);
        assert_eq!(node.text(), before);
    }
}

#[test]
fn a_file_that_is_imported_by_its_name_is_read_when_the_configuration_is_tried() {
    let before = format!("imports = [\"mine.toml\"]\n{USUAL}");
    let node = Node::with_config(&before);
    fs::write(node.path("etc/mine.toml"), "version = 2\noom_score = 7\n").expect("a part");
    node.must(&[]);
    assert!(node.dump().contains("oom_score = 7"), "{}", node.dump());
    fs::write(node.path("etc/mine.toml"), "[no TOML\n").expect("a part");
    let said = node.must_fail(&["--remove"]);
    assert!(said.contains("does not take"), "{said}");
}

#[test]
fn a_dry_run_prints_what_would_be_changed_and_changes_nothing() {
    let node = Node::with_config(USUAL);
    let finished = node.install(&["--dry-run", "--stop-unit"]);
    assert!(finished.ok(), "{}", finished.err());
    let out = finished.out();
    let config = node.config().display().to_string();
    for expected in [
        format!("--- {config}\n+++ {config}\n@@ "),
        format!("+  pod_annotations = {}\n", r#"["usher/*", "*.usher/*"]"#),
        format!("put into place: {}\n", node.path("usr/bin/usher").display()),
        "usher-stop.service\n".to_owned(),
    ] {
        assert!(out.contains(&expected), "{expected}: {out}");
    }
    assert!(!out.contains("\n-"), "nothing goes: {out}");
    assert_eq!(
        (node.text().as_str(), node.path("usr").exists()),
        (USUAL, false)
    );

    // The script is a way to call it.
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/install");
    let mut command = Command::new(script);
    command.arg("--binaries").arg(shim_dir());
    let finished = node.install_with(command, &["--dry-run", "--stop-unit"]);
    assert_eq!(finished.out(), out, "{}", finished.err());

    node.must(&[]);
    let with = node.text();
    let finished = node.install(&["--dry-run", "--restart", "--remove"]);
    assert!(finished.ok(), "{}", finished.err());
    let out = finished.out();
    assert!(out.contains("containerd would be restarted"), "{out}");
    assert!(out.contains("\n-# >>> usher"), "{out}");
    assert!(out.contains("removed: "), "{out}");
    assert_eq!(node.text(), with);
}

#[test]
fn an_installer_that_is_ended_leaves_no_containerd_that_it_tries() {
    let node = Node::with_config(USUAL);
    fs::create_dir(node.path("bin")).expect("a directory");
    symlink(installed_program("ctr"), node.path("bin/ctr")).expect("a link");
    // It is tried with a configuration alone, and else asked for something.
    let ending = format!(
        "#!/bin/sh\ncase \"$*\" in *'config d'* | --version) ;; \
         *) echo $$ >{}; kill -TERM $PPID ;; esac\nexec {} \"$@\"\n",
        node.path("pid").display(),
        containerd().display()
    );
    let wrapper = node.path("bin/containerd");
    write_program(&wrapper, &ending);
    let said = node.must_fail(&["--containerd", &wrapper.display().to_string()]);
    let tried = fs::read_to_string(node.path("pid")).unwrap_or_else(|_| panic!("{said}"));
    assert!(!Path::new("/proc").join(tried.trim()).exists(), "{tried}");
    assert_eq!(
        (node.text().as_str(), node.path("usr").exists()),
        (USUAL, false)
    );
}

#[test]
fn a_runtime_of_that_name_that_somebody_else_wrote_is_left_alone() {
    let own = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.usher]\n  \
        runtime_type = \"io.containerd.runc.v2\"\n";
    let before = format!("{USUAL}{own}");
    let node = Node::with_config(&before);
    let said = node.must_fail(&[]);
    assert!(said.contains("names the runtime usher already"), "{said}");
    assert_eq!(node.text(), before);
    assert!(!node.path("usr").exists());
}

#[test]
fn a_configuration_that_containerd_does_not_start_with_is_never_put_into_place() {
    let broken = "[this is no TOML\n";
    let node = Node::with_config(broken);
    let said = node.must_fail(&[]);
    assert!(said.contains("does not take"), "{said}");
    assert_eq!(node.text(), broken);

    // containerd takes it, and says that its CRI plugin has failed when it has started.
    let text = match Version::of_containerd() {
        Version(..2, _) => {
            let table = "[plugins.\"io.containerd.grpc.v1.cri\".containerd]";
            format!("{USUAL}    {table}\n      snapshotter = \"missing\"\n")
        }
        _ => {
            let table = "[plugins.\"io.containerd.cri.v1.images\"]";
            format!("version = 3\n{table}\n  snapshotter = \"missing\"\n")
        }
    };
    let node = Node::with_config(&text);
    let said = node.must_fail(&[]);
    assert!(said.contains("does not start"), "{said}");
    assert_eq!(node.text(), text);
}

/// Where the installer runs as a pod, its numbers of processes are not those of the node's `/proc`; and
/// containerd sets its score by its own number.
#[test]
fn a_containerd_that_is_tried_sets_no_oom_score() {
    let text = USUAL.replace("version = 2\n", "version = 2\noom_score = 1\n");
    let node = Node::with_config(&text);
    fs::create_dir(node.path("bin")).expect("a directory");
    symlink(installed_program("ctr"), node.path("bin/ctr")).expect("a link");
    let noting = format!(
        "#!/bin/sh\ncase \"$*\" in *dump | *default) ;; *) cp \"$2\" {} ;; esac\nexec {} \"$@\"\n",
        node.path("tried").display(),
        containerd().display()
    );
    let wrapper = node.path("bin/containerd");
    write_program(&wrapper, &noting);
    node.must(&["--containerd", &wrapper.display().to_string()]);
    let tried = fs::read_to_string(node.path("tried")).expect("what was tried");
    assert!(tried.contains("\noom_score = 0\n"), "{tried}");
    assert!(node.dump().contains("\noom_score = 1\n"));
}

#[test]
fn a_node_without_the_plugin_for_kubernetes_is_refused() {
    let text = "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \
        \"io.containerd.cri.v1.runtime\", \"io.containerd.cri.v1.images\"]\n";
    let node = Node::with_config(text);
    let said = node.must_fail(&[]);
    assert!(said.contains("CRI plugin"), "{said}");
    assert_eq!(node.text(), text);
}

#[test]
fn programs_that_do_not_run_on_the_node_are_never_put_into_place() {
    let node = Node::with_config(USUAL);
    let built = node.path("built");
    fs::create_dir(&built).expect("a directory");
    fs::copy(shim_dir().join("usher"), built.join("usher")).expect("a program");
    // The interpreter of no C library that is here.
    let shim = built.join("containerd-shim-usher-v2");
    fs::write(&shim, "#!/lib/ld-of-another-node.so.2\n").expect("a program");
    let binaries = built.display().to_string();
    let said = node.must_fail(&["--binaries", &binaries]);
    assert!(said.contains("does not run on this node"), "{said}");
    assert_eq!(node.text(), USUAL);
    assert!(!node.path("usr").exists());

    // Where they come from they need not be executable.
    fs::copy(shim_dir().join("containerd-shim-usher-v2"), &shim).expect("a program");
    for program in ["usher", "containerd-shim-usher-v2"] {
        let mode = fs::Permissions::from_mode(0o644);
        fs::set_permissions(built.join(program), mode).expect("a mode");
    }
    node.must(&["--binaries", &binaries]);
    assert_eq!(node.programs(), ["containerd-shim-usher-v2", "usher"]);
}

#[test]
fn containerd_is_restarted_when_its_configuration_has_changed() {
    let node = Node::with_config(USUAL);
    node.place_systemctl("exit 0");
    node.must(&["--restart"]);
    assert_eq!(node.asked_of_systemctl(), "restart containerd\n");
    node.must(&["--restart"]);
    assert_eq!(node.asked_of_systemctl(), "");
    node.must(&["--restart", "--remove"]);
    assert_eq!(node.asked_of_systemctl(), "restart containerd\n");
}

#[test]
fn without_systemd_nothing_is_changed_where_it_would_be_needed() {
    let node = Node::with_config(USUAL);
    node.place_systemctl("exit 1");
    let script = node.path("bin/systemctl");
    write_program(&script, "#!/bin/sh\necho offline\nexit 1\n");
    for option in ["--restart", "--stop-unit"] {
        let said = node.must_fail(&[option]);
        let expected = format!("{option} needs systemd, and this machine does not run it");
        assert!(said.contains(&expected), "{said}");
        assert_eq!(node.text(), USUAL);
        assert!(!node.path("usr/bin").exists());
    }
    node.must(&[]);
    // There is nothing to restart containerd for.
    node.must(&["--restart"]);
    let said = node.must_fail(&["--restart", "--remove"]);
    assert!(said.contains("--restart needs systemd"), "{said}");
    node.must(&["--remove"]);
    assert_eq!(node.text(), USUAL);
}

#[test]
fn a_containerd_that_does_not_come_back_gets_its_old_configuration() {
    let node = Node::with_config(USUAL);
    node.place_systemctl("! grep --quiet usher etc/config.toml");
    let said = node.must_fail(&["--restart"]);
    assert!(said.contains("got back its old configuration"), "{said}");
    assert_eq!(node.text(), USUAL);
    // The second time with the old one.
    let twice = "restart containerd\nrestart containerd\n";
    assert_eq!(node.asked_of_systemctl(), twice);
}

#[test]
fn a_restart_that_an_installer_was_ended_in_is_made_up_for() {
    let node = Node::with_config(USUAL);
    node.place_systemctl("kill -TERM $PPID");
    node.must_fail(&["--restart"]);
    assert_eq!(node.asked_of_systemctl(), "restart containerd\n");
    node.place_systemctl("exit 0");
    for expected in ["restart containerd\n", ""] {
        node.must(&["--restart"]);
        assert_eq!(node.asked_of_systemctl(), expected);
        assert_eq!(names(&node.path("etc")), ["config.toml"]);
    }
}

#[test]
fn the_unit_that_stops_pods_is_installed_when_asked_for_and_goes_with_the_rest() {
    const FILES: [&str; 2] = [
        "usher-stop.service",
        "cri-containerd-.scope.d/usher-stop.conf",
    ];
    let node = Node::with_config(USUAL);
    node.place_systemctl("exit 0");
    let units = node.path("units").display().to_string();
    node.must(&["--units", &units]);
    assert!(!node.path("units").exists(), "nobody has asked for it");
    node.must(&["--units", &units, "--stop-unit"]);
    let enabled = "enable --now --quiet usher-stop.service\n";
    let asked = node.asked_of_systemctl();
    assert_eq!(asked, format!("daemon-reload\n{enabled}"));
    let text = fs::read_to_string(node.path("units").join(FILES[0])).expect("the unit");
    let stop = format!(
        "ExecStop={} stop --all\n",
        node.path("usr/bin/usher").display()
    );
    assert!(text.contains(&stop), "{text}");
    assert!(node.path("units").join(FILES[1]).exists());
    // Twice is the same as once.
    node.must(&["--units", &units, "--stop-unit"]);
    assert_eq!(node.asked_of_systemctl(), enabled);
    node.must(&["--units", &units, "--remove"]);
    let asked = node.asked_of_systemctl();
    let disabled = "disable --now --quiet usher-stop.service\ndaemon-reload\n";
    assert_eq!(asked, disabled);
    assert_eq!(names(&node.path("units")), [""; 0]);
}

#[test]
fn a_shim_where_containerd_does_not_look_for_it_is_told_of() {
    let node = Node::with_config(USUAL);
    let words = ["--path", "/usr/bin"];
    if Version::of_containerd() >= Version(2, 0) {
        // It is told where the shim is.
        node.must(&words);
        return;
    }
    let said = node.must_fail(&words);
    assert!(said.contains("would not run yet"), "{said}");
}

#[test]
fn it_stays_while_pods_need_it() {
    let node = Node::with_config(USUAL);
    node.must(&[]);
    let shim = node.path("usr/bin/containerd-shim-usher-v2");
    // Whatever it does, it is the installed program that runs.
    fs::remove_file(&shim).expect("the shim");
    copy_program(Path::new("/bin/sleep"), &shim);
    let mut sleep = Command::new(&shim);
    sleep.arg("600");
    let running = Background::spawn(sleep);
    let said = node.must_fail(&["--remove"]);
    assert!(said.contains("pods run under usher"), "{said}");
    assert_eq!(runtimes(&node.dump()), ["runc", "usher"]);
    // Even then a containerd that is restarted finds the shim of what runs.
    let forced = node.install(&["--remove", "--force"]);
    assert!(forced.ok(), "{}", forced.err());
    assert!(
        forced.err().contains("stays as long as pods run"),
        "{}",
        forced.err()
    );
    assert_eq!((node.text().as_str(), shim.exists()), (USUAL, true));
    drop(running);
    node.must(&["--remove"]);
    assert_eq!((node.text().as_str(), shim.exists()), (USUAL, false));
}
