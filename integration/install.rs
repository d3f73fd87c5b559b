//! `usher install` on the tested containerd: its changes to a node's configuration.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::harness::{
    Background, Finished, Version, copy_program, installed_program, run, shim_dir, write_program,
};

/// Timeout of an installation: the installer starts a containerd once for each change.
const PATIENCE: Duration = Duration::from_secs(120);

/// A typical configuration, with entries that containerd does not list by default.
const USUAL: &str = r#"# what Debian's package brings
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni" # Debian's
"#;

/// A directory with a node's configuration and programs. Options of the installer name their paths.
struct Node {
    dir: tempfile::TempDir,
}

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

    /// Installs a fake systemctl that records its arguments and then runs the shell code `then`.
    fn place_systemctl(&self, then: &str) {
        let script = self.path("bin/systemctl");
        fs::create_dir_all(self.path("bin")).expect("a directory");
        let text = format!(
            "#!/bin/sh\n[ $1 != is-system-running ] || exit\ncd {0}\necho $* >>asked\n{then}\n",
            self.path("").display()
        );
        write_program(&script, &text);
    }

    /// The arguments of all calls of systemctl since this function was last called.
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

    /// The output of `containerd config dump`.
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

/// The names in a directory; empty if there is no such directory.
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

/// Names of the runtimes in the output of `containerd config dump`, in the order of the output.
fn runtimes(dump: &str) -> Vec<&str> {
    let tables = dump.lines().filter_map(|line| {
        let (_, name) = line.trim().split_once(".containerd.runtimes.")?;
        name.strip_suffix(']').filter(|name| !name.contains('.'))
    });
    tables.collect()
}

#[test]
fn containerd_knows_the_installed_runtime_and_passes_annotations_on() {
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
fn a_second_install_changes_nothing() {
    let node = Node::with_config(USUAL);
    node.must(&[]);
    let (text, programs) = (node.text(), node.programs());
    let said = node.must(&[]);
    assert!(said.contains("needs no change"), "{said}");
    assert_eq!((node.text(), node.programs()), (text, programs));
}

#[test]
fn a_removal_restores_the_original_configuration() {
    for before in [USUAL, USUAL.trim_end(), "version = 2\n"] {
        let node = Node::with_config(before);
        node.must(&[]);
        assert_eq!(runtimes(&node.dump()), ["runc", "usher"]);
        let said = node.must(&["--remove"]);
        assert_eq!(node.text(), before);
        // The installer removes these directories too, because it had made them.
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
            said.contains(&format!("removed the runtime from {file}\n")),
            "{said}"
        );
        let again = node.must(&["--remove"]);
        assert!(!again.contains("removed: "), "{again}");
        assert_eq!(node.text(), before);
    }
}

#[test]
fn a_removal_keeps_files_of_a_package() {
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
fn a_removal_keeps_later_changes_by_hand() {
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
fn a_node_without_a_configuration_gets_one_and_a_removal_deletes_it() {
    let node = Node::new();
    for _ in 0..2 {
        node.must(&[]);
        assert_eq!(runtimes(&node.dump()), ["runc", "usher"]);
    }
    node.must(&["--remove"]);
    assert_eq!(names(&node.path("etc")), [""; 0]);
}

#[test]
fn the_runtime_becomes_a_file_in_an_import_directory_of_containerd_2() {
    let imports = "imports = [\"conf.d/*.toml\"]\n";
    let before = format!("{imports}{USUAL}");
    let node = Node::with_config(&before);
    fs::create_dir(node.path("etc/conf.d")).expect("a directory");
    let other = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.other]\n  \
        runtime_type = \"io.containerd.other.v2\"\n";
    // In containerd 1, an imported file replaces the whole section of the CRI plugin, so the test
    // writes a second file only with containerd 2.
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

/// Another program has put a directory before the installer's own in the `imports`.
#[test]
fn a_removal_finds_the_lines_in_a_directory_that_is_no_longer_the_first() {
    if Version::of_containerd() < Version(2, 0) {
        return;
    }
    let importing = |directories| format!("imports = [{directories}]\n{USUAL}");
    let (old, new) = ("'conf.d/*.toml'", "'first.d/*.toml', 'conf.d/*.toml'");
    for is_moved in [false, true] {
        let node = Node::with_config(&importing(old));
        node.must(&[]);
        assert_eq!(names(&node.path("etc/conf.d")), ["usher.toml"]);
        fs::write(node.config(), importing(new)).expect("the configuration");
        if is_moved {
            node.must(&[]);
            assert_eq!(names(&node.path("etc/first.d")), ["usher.toml"]);
            assert_eq!(names(&node.path("etc/conf.d")), [""; 0]);
            assert!(runtimes(&node.dump()).contains(&"usher"));
        }
        node.must(&["--remove"]);
        assert!(!runtimes(&node.dump()).contains(&"usher"), "{is_moved}");
        assert_eq!(names(&node.path("etc")), ["config.toml"]);
    }
}

/// The configuration imports `conf.d`, so the installer adds the runtime there. The installer must
/// not replace the configuration, because a new file would lose the old one's attributes and links.
#[test]
fn a_configuration_that_imports_the_runtime_stays_the_same_file() {
    use std::os::unix::fs::MetadataExt;

    if Version::of_containerd() < Version(2, 0) {
        return;
    }
    let node = Node::with_config(&format!("imports = ['conf.d/*.toml']\n{USUAL}"));
    let inode = || fs::metadata(node.config()).expect("a file").ino();
    let before = inode();
    for words in [&[][..], &["--remove"]] {
        node.must(words);
        assert_eq!(inode(), before, "{words:?}");
    }
}

/// k3s, RKE2, k0s and MicroK8s regenerate containerd's configuration at each start.
#[test]
fn a_distributions_generated_configuration_is_kept_and_its_template_gets_the_runtime() {
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
    // A k3s without imports was upgraded to one whose configuration imports a directory.
    let node = Node::with_config("version = 3\n");
    node.must(&["--flavor", "k3s"]);
    let template = node.path("etc/config-v3.toml.tmpl");
    let text = fs::read_to_string(&template).expect("the template");
    let lines = &text[text.find("# >>> usher").expect("the lines")..];
    let before = "version = 3\nimports = [\"config-v3.toml.d/*.toml\"]\n";
    for words in [&["--flavor", "k3s"][..], &["--flavor", "k3s", "--remove"]] {
        fs::write(&template, &text).expect("the template");
        fs::write(node.config(), format!("{before}{lines}")).expect("the configuration");
        node.must(words);
        assert_eq!((template.exists(), &*node.text()), (false, before));
    }
    // The configuration of k3s with containerd 2 imports all files of a directory.
    let before = format!("imports = [\"config-v3.toml.d/*.toml\"]\n{USUAL}");
    let node = Node::with_config(&before);
    node.must(&["--flavor", "k3s"]);
    assert_eq!(node.text(), before);
    assert_eq!(names(&node.path("etc/config-v3.toml.d")), ["usher.toml"]);
    // Another program has put a file into the directory. The removal must keep this file.
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

/// Tests with containerd's complete default configuration and typical changes of an administrator.
#[test]
fn a_removal_restores_containerds_default_configuration_byte_by_byte() {
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
fn a_trial_of_the_configuration_reads_imported_files() {
    let before = format!("imports = [\"mine.toml\"]\n{USUAL}");
    let node = Node::with_config(&before);
    fs::write(node.path("etc/mine.toml"), "version = 2\noom_score = 7\n").expect("a part");
    node.must(&[]);
    assert!(node.dump().contains("oom_score = 7"), "{}", node.dump());
    fs::write(node.path("etc/mine.toml"), "[no TOML\n").expect("a part");
    let said = node.must_fail(&["--remove"]);
    assert!(said.contains("containerd rejects"), "{said}");
}

#[test]
fn a_dry_run_prints_the_changes_and_makes_none() {
    let node = Node::with_config(USUAL);
    let finished = node.install(&["--dry-run", "--stop-unit"]);
    assert!(finished.ok(), "{}", finished.err());
    let out = finished.out();
    let config = node.config().display().to_string();
    for expected in [
        format!("--- {config}\n+++ {config}\n@@ "),
        format!("+  pod_annotations = {}\n", r#"["usher/*", "*.usher/*"]"#),
        format!("would install: {}\n", node.path("usr/bin/usher").display()),
        "usher-stop.service\n".to_owned(),
    ] {
        assert!(out.contains(&expected), "{expected}: {out}");
    }
    assert!(!out.contains("\n-"), "nothing goes: {out}");
    assert_eq!(
        (node.text().as_str(), node.path("usr").exists()),
        (USUAL, false)
    );

    // `scripts/install` calls `usher install`, so both must print the same.
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
    assert!(out.contains("would restart containerd"), "{out}");
    assert!(out.contains("\n-# >>> usher"), "{out}");
    assert!(out.contains("would remove: "), "{out}");
    assert_eq!(node.text(), with);
}

#[test]
fn a_terminated_installer_leaves_no_trial_containerd() {
    let node = Node::with_config(USUAL);
    fs::create_dir(node.path("bin")).expect("a directory");
    symlink(installed_program("ctr"), node.path("bin/ctr")).expect("a link");
    // The fake containerd passes all calls on to the real containerd. Calls other than
    // `config dump` and `--version` are trial starts. Before a trial start, the fake sends SIGTERM
    // to the installer.
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
fn a_foreign_runtime_named_usher_is_left_alone() {
    let own = "[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.usher]\n  \
        runtime_type = \"io.containerd.runc.v2\"\n";
    let before = format!("{USUAL}{own}");
    let node = Node::with_config(&before);
    let said = node.must_fail(&[]);
    assert!(said.contains("already has a runtime usher"), "{said}");
    assert_eq!(node.text(), before);
    assert!(!node.path("usr").exists());
}

#[test]
fn a_configuration_that_containerd_does_not_start_with_is_never_installed() {
    let broken = "[this is no TOML\n";
    let node = Node::with_config(broken);
    let said = node.must_fail(&[]);
    assert!(said.contains("containerd rejects"), "{said}");
    assert_eq!(node.text(), broken);

    // containerd accepts this file, but its CRI plugin fails soon after the start.
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

/// The installer first starts a second containerd with the new configuration in a temporary
/// directory. The snapshotter btrfs cannot start there, because it needs a btrfs file system. So
/// the second containerd must use another snapshotter.
#[test]
fn a_snapshotter_that_needs_its_own_file_system_does_not_fail_the_trial() {
    let text = match Version::of_containerd() {
        Version(..2, _) => {
            let table = "[plugins.\"io.containerd.grpc.v1.cri\".containerd]";
            format!("{USUAL}    {table}\n      snapshotter = \"btrfs\"\n")
        }
        _ => {
            let table = "[plugins.\"io.containerd.cri.v1.images\"]";
            format!("version = 3\n{table}\n  snapshotter = \"btrfs\"\n")
        }
    };
    let node = Node::with_config(&text);
    node.must(&[]);
    assert!(node.dump().contains("snapshotter = \"btrfs\""));
}

/// The installer first starts a second containerd with the new configuration. containerd sets the
/// OOM score of its own process id. If the installer runs in a pod, it may be in another PID
/// namespace than the node's `/proc`, where this id belongs to another process. So the second
/// containerd must not set a score.
#[test]
fn a_trial_containerd_sets_no_oom_score() {
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
    let tried = fs::read_to_string(node.path("tried")).expect("the configuration that was tried");
    assert!(tried.contains("\noom_score = 0\n"), "{tried}");
    assert!(node.dump().contains("\noom_score = 1\n"));
}

#[test]
fn a_node_without_the_cri_plugin_is_refused() {
    let text = "version = 2\ndisabled_plugins = [\"io.containerd.grpc.v1.cri\", \
        \"io.containerd.cri.v1.runtime\", \"io.containerd.cri.v1.images\"]\n";
    let node = Node::with_config(text);
    let said = node.must_fail(&[]);
    assert!(said.contains("CRI plugin"), "{said}");
    assert_eq!(node.text(), text);
}

#[test]
fn programs_that_do_not_run_on_the_node_are_never_installed() {
    let node = Node::with_config(USUAL);
    let built = node.path("built");
    fs::create_dir(&built).expect("a directory");
    fs::copy(shim_dir().join("usher"), built.join("usher")).expect("a program");
    // The shim needs a dynamic loader that is not installed here.
    let shim = built.join("containerd-shim-usher-v2");
    fs::write(&shim, "#!/lib/ld-of-another-node.so.2\n").expect("a program");
    let binaries = built.display().to_string();
    let said = node.must_fail(&["--binaries", &binaries]);
    assert!(said.contains("does not run on this node"), "{said}");
    assert_eq!(node.text(), USUAL);
    assert!(!node.path("usr").exists());

    // The files that the installer copies need not be executable.
    fs::copy(shim_dir().join("containerd-shim-usher-v2"), &shim).expect("a program");
    for program in ["usher", "containerd-shim-usher-v2"] {
        let mode = fs::Permissions::from_mode(0o644);
        fs::set_permissions(built.join(program), mode).expect("a mode");
    }
    node.must(&["--binaries", &binaries]);
    assert_eq!(node.programs(), ["containerd-shim-usher-v2", "usher"]);
}

#[test]
fn containerd_is_restarted_if_its_configuration_changed() {
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
fn an_option_that_needs_systemd_changes_nothing_without_it() {
    let node = Node::with_config(USUAL);
    node.place_systemctl("exit 1");
    let script = node.path("bin/systemctl");
    write_program(&script, "#!/bin/sh\necho offline\nexit 1\n");
    for option in ["--restart", "--stop-unit"] {
        let said = node.must_fail(&[option]);
        let expected = format!("{option} needs systemd, which does not run on this machine");
        assert!(said.contains(&expected), "{said}");
        assert_eq!(node.text(), USUAL);
        assert!(!node.path("usr/bin").exists());
    }
    node.must(&[]);
    // The first run has changed the configuration. Nothing changes in this run, so containerd is
    // not restarted.
    node.must(&["--restart"]);
    let said = node.must_fail(&["--restart", "--remove"]);
    assert!(said.contains("--restart needs systemd"), "{said}");
    node.must(&["--remove"]);
    assert_eq!(node.text(), USUAL);
}

#[test]
fn a_failed_restart_restores_the_old_configuration() {
    let node = Node::with_config(USUAL);
    node.place_systemctl("! grep --quiet usher etc/config.toml");
    let said = node.must_fail(&["--restart"]);
    assert!(said.contains("its old configuration is restored"), "{said}");
    assert_eq!(node.text(), USUAL);
    // The installer restarts containerd with the new configuration, and the restart fails. So the
    // installer restores the old configuration and restarts containerd again.
    let twice = "restart containerd\nrestart containerd\n";
    assert_eq!(node.asked_of_systemctl(), twice);
}

#[test]
fn a_restart_that_was_interrupted_is_repeated_by_the_next_install() {
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
fn the_unit_that_stops_pods_is_installed_on_request_and_removed_with_the_rest() {
    const FILES: [&str; 2] = [
        "usher-stop.service",
        "cri-containerd-.scope.d/usher-stop.conf",
    ];
    let node = Node::with_config(USUAL);
    node.place_systemctl("exit 0");
    let units = node.path("units").display().to_string();
    node.must(&["--units", &units]);
    assert!(!node.path("units").exists(), "--stop-unit was not given");
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
    // A second run changes nothing.
    node.must(&["--units", &units, "--stop-unit"]);
    assert_eq!(node.asked_of_systemctl(), enabled);
    node.must(&["--units", &units, "--remove"]);
    let asked = node.asked_of_systemctl();
    let disabled = "disable --now --quiet usher-stop.service\ndaemon-reload\n";
    assert_eq!(asked, disabled);
    assert_eq!(names(&node.path("units")), [""; 0]);
}

#[test]
fn a_shim_outside_containerds_path_is_an_error_unless_its_path_is_configured() {
    let node = Node::with_config(USUAL);
    let words = ["--path", "/usr/bin"];
    if Version::of_containerd() >= Version(2, 0) {
        // The installer writes the shim's path into the configuration of containerd 2.
        node.must(&words);
        return;
    }
    let said = node.must_fail(&words);
    assert!(said.contains("would not run yet"), "{said}");
}

#[test]
fn the_runtime_is_not_removed_while_pods_use_it() {
    let node = Node::with_config(USUAL);
    node.must(&[]);
    let shim = node.path("usr/bin/containerd-shim-usher-v2");
    // A process of `sleep` stands in for a shim: the installer only looks at the path of the
    // program.
    fs::remove_file(&shim).expect("the shim");
    copy_program(Path::new("/bin/sleep"), &shim);
    let mut sleep = Command::new(&shim);
    sleep.arg("600");
    let running = Background::spawn(sleep);
    let other = node.path("other").display().to_string();
    for words in [&["--remove"][..], &["--remove", "--prefix", &other]] {
        let said = node.must_fail(words);
        assert!(said.contains("pods run under usher"), "{said}");
        assert_eq!(runtimes(&node.dump()), ["runc", "usher"]);
    }
    // Even with `--force` the installer keeps the shim's program. A restarted containerd needs it
    // for the running pods.
    let forced = node.install(&["--remove", "--force"]);
    assert!(forced.ok(), "{}", forced.err());
    assert!(
        forced.err().contains("stays while pods run"),
        "{}",
        forced.err()
    );
    assert_eq!((node.text().as_str(), shim.exists()), (USUAL, true));
    drop(running);
    node.must(&["--remove"]);
    assert_eq!((node.text().as_str(), shim.exists()), (USUAL, false));
}
