//! Runs Kubernetes' own node tests (`e2e_node`) twice: with containerd's own shim, and with usher
//! as the default runtime. Lists the tests whose outcomes differ. `scripts/test-kubernetes
//! --upstream` runs this program.
//!
//! The program of the tests contains etcd and the API server. The tests start both, and kubelet.
//! They use the usual paths of a node, on a [machine](super::machine) that sees only its own
//! cgroups. The script [node](node) prepares this machine.

mod outcomes;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;
use tempfile::TempDir;

use crate::harness::{installed_program, run as finish, shim_dir};

use super::cluster::PATIENCE;
use super::hierarchies;
use super::machine::Machine;
use super::settings;
use outcomes::{Count, Named, Outcome, Outcomes, quoted};

/// Tests whose outcomes may differ between the two shims.
const DIFFERENCES: &str = include_str!("differences");
/// Tests that are left out, as Go regular expressions.
const LEFT_OUT: &str = include_str!("left-out");

/// The tests that run by default, as a ginkgo label filter. They can run in parallel, take minutes
/// at most, test features that are on by default, and need no special node.
const USUAL: &str = "!Serial && !Slow && !Flaky && !Disruptive && !Alpha && !BetaOffByDefault \
    && !(Feature: containsAny {CriProxy, KubeletCredentialProviders, NodeProblemDetector, StandaloneMode})";

/// The runtime of all pods.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Runtime {
    Runc,
    Usher,
}

/// The paths of the programs for the tests. `scripts/test-kubernetes` passes them in environment
/// variables.
struct Parts {
    tests: PathBuf,
    images: PathBuf,
    kubernetes: PathBuf,
    /// The directory of the packages with the network plugins.
    packages: PathBuf,
    runc: PathBuf,
    reports: PathBuf,
}

struct Suite<'a> {
    parts: &'a Parts,
    dir: TempDir,
    machine: Option<Machine>,
}

/// Runs the tests under both shims, and prints the differences. `words` are Go regular expressions
/// that choose tests.
pub fn run(words: &[String]) -> ExitCode {
    match difference(words) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the tests under both shims. Returns true if all differences are accepted ones.
fn difference(words: &[String]) -> Result<bool, String> {
    let named = Named::of(DIFFERENCES)?;
    let parts = Parts::from_environment();
    let mut control = parts.run(Runtime::Runc, words, "")?;
    let mut ours = parts.run(Runtime::Usher, words, "")?;
    // On a busy machine a test may fail by accident. So a test whose outcome differs between the
    // two shims runs once more under both.
    let again = control.differences(&ours);
    if !again.is_empty() {
        let names: Vec<String> = again.iter().map(|d| quoted(&d.name)).collect();
        eprintln!("=== once more: {} that differ", names.len());
        control.replace_by(&parts.run(Runtime::Runc, &names, "-again")?);
        ours.replace_by(&parts.run(Runtime::Usher, &names, "-again")?);
    }
    let differences = control.differences(&ours);
    println!("| runtime | run | passed | failed | not applicable |\n|---|--:|--:|--:|--:|");
    for (runtime, outcomes) in [(Runtime::Runc, &control), (Runtime::Usher, &ours)] {
        let count = outcomes.count();
        println!(
            "| {} | {} | {} | {} | {} |",
            runtime.name(),
            count.passed + count.failed,
            count.passed,
            count.failed,
            count.inapplicable,
        );
    }
    list("failed under both:", both_failed(&control, &ours));
    let lasting = |name: &str| differences.iter().any(|d| d.name == name);
    let passing = again.iter().filter(|d| !lasting(&d.name));
    list(
        "differed once, and not again:",
        passing.map(|d| d.name.clone()),
    );
    let brief = |outcome: &Option<Outcome>| match outcome {
        Some(outcome) => outcome.brief(),
        None => "not run".to_owned(),
    };
    let told = |reason: Option<&str>| {
        let reason = reason.map(|reason| format!("\n      {reason}"));
        reason.unwrap_or_default()
    };
    let told = |d: &outcomes::Difference| {
        format!(
            "{}\n      runc: {}\n      usher: {}{}",
            d.name,
            brief(&d.control),
            brief(&d.ours),
            told(named.reason(&d.name))
        )
    };
    let (expected, unexpected): (Vec<_>, Vec<_>) = differences
        .iter()
        .partition(|d| named.reason(&d.name).is_some());
    list("named differences:", expected.iter().map(|d| told(d)));
    list("DIFFERENCES:", unexpected.iter().map(|d| told(d)));
    Ok(unexpected.is_empty())
}

fn both_failed(control: &Outcomes, ours: &Outcomes) -> Vec<String> {
    let failed = |outcome: &Outcome| matches!(outcome, Outcome::Failed(_));
    let of_ours: Vec<&str> = ours
        .iter()
        .filter(|(_, outcome)| failed(outcome))
        .map(|(name, _)| name)
        .collect();
    let of_both = control
        .iter()
        .filter(|(name, outcome)| failed(outcome) && of_ours.contains(name));
    of_both
        .map(|(name, outcome)| format!("{name}\n      {}", outcome.brief()))
        .collect()
}

fn list(title: &str, lines: impl IntoIterator<Item = String>) {
    let lines: Vec<String> = lines.into_iter().collect();
    if !lines.is_empty() {
        println!("\n{title}\n    {}", lines.join("\n    "));
    }
}

impl Runtime {
    fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Usher => "usher",
        }
    }
}

impl Parts {
    fn from_environment() -> Self {
        let directory = |name| PathBuf::from(std::env::var_os(name).expect(name));
        Self {
            tests: directory("USHER_TEST_UPSTREAM"),
            images: directory("USHER_TEST_UPSTREAM_IMAGES"),
            kubernetes: directory("USHER_TEST_KUBERNETES"),
            packages: directory("USHER_TEST_CLUSTER_PARTS"),
            runc: directory("USHER_TEST_RUNC"),
            reports: directory("USHER_TEST_UPSTREAM_REPORTS"),
        }
    }

    /// The name by which kubelet and the tests know the pause image.
    fn name_of_pause(&self) -> String {
        let names = self.images.join("names");
        let names = fs::read_to_string(names).expect("the names of images");
        let mut found = names.lines().filter_map(|line| line.strip_prefix("Pause "));
        found.next().expect("an image of that name").to_owned()
    }

    /// Runs the tests whose names match one of the words; without words, runs all tests. Keeps the
    /// report in a directory whose name contains the runtime and `mark`.
    fn run(&self, runtime: Runtime, words: &[String], mark: &str) -> Result<Outcomes, String> {
        let begin = Instant::now();
        let name = runtime.name();
        eprintln!("=== {name}");
        let suite = Suite::start(self, runtime);
        suite.run(words);
        let kept = self.reports.join(format!("{name}{mark}"));
        suite.keep_reports(&kept);
        let report = kept.join("report.json");
        let text = fs::read_to_string(&report)
            .map_err(|e| format!("no tests were run, see {}: {e}", kept.display()))?;
        let outcomes = Outcomes::of_report(&text)?;
        if outcomes.count() == Count::default() {
            return Err(format!("no tests were run, see {}", kept.display()));
        }
        eprintln!("=== {name} took {:.0?}", begin.elapsed());
        Ok(outcomes)
    }
}

impl<'a> Suite<'a> {
    fn start(parts: &'a Parts, runtime: Runtime) -> Self {
        let prefix = std::env::var("USHER_TEST_PREFIX").unwrap_or_else(|_| "usher-it-".into());
        let dir = tempfile::Builder::new().prefix(&prefix).tempdir();
        let mut suite = Self {
            parts,
            dir: dir.expect("a directory"),
            machine: None,
        };
        for name in ["report", "tmp", "var-lib", "work", "tests", "work-tests"] {
            fs::create_dir(suite.path(name)).expect("a directory of the machine");
        }
        suite.place_programs();
        suite.write_settings();
        hierarchies::make(&suite.name());
        suite.machine = Some(Machine::switch_on(suite.dir.path(), None, || {
            fs::File::create(suite.path("report/machine.log")).expect("a log")
        }));
        if runtime == Runtime::Usher {
            suite.install_usher();
        }
        suite
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn name(&self) -> String {
        let name = self.dir.path().file_name().expect("a name");
        name.to_string_lossy().into_owned()
    }

    fn place_programs(&self) {
        let bin = self.path("over/usr-local/bin");
        fs::create_dir_all(&bin).expect("a directory of programs");
        let containerd = installed_program("containerd");
        for name in ["containerd", "ctr", "containerd-shim-runc-v2"] {
            symlink(containerd.with_file_name(name), bin.join(name)).expect("a link");
        }
        symlink(self.parts.runc.join("usr/bin/runc"), bin.join("runc")).expect("a link");
    }

    fn write_settings(&self) {
        let put = |name: &str, text: String| {
            let file = self.path(name);
            fs::create_dir_all(file.with_file_name("")).expect("a directory");
            fs::write(file, text).expect("a setting");
        };
        put("over/etc/cni/net.d/pods.conflist", settings::network());
        put(CONTAINERD_CONFIG, self.containerd());
        put("kubelet.json", kubelet());
        // The tests check the machine against this description. A minimal description is enough,
        // because the machine is the same in both runs.
        put("system.json", json!({ "os": "Linux" }).to_string());
    }

    fn containerd(&self) -> String {
        format!(
            r#"version = 2
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.internal.v1.restart"]
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd-opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  # Root is not allowed to lower scores everywhere.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}/usr/lib/cni"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    {DEFAULT_RUNTIME}
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"#,
            pause = self.parts.name_of_pause(),
            plugins = self.parts.packages.display(),
        )
    }

    /// Installs usher by `usher install`, as users do, and makes usher the default runtime.
    fn install_usher(&self) {
        let usher = shim_dir().join("usher").display().to_string();
        let mut command = self.machine().command(&[&usher, "install"]);
        command.arg("--path").arg(search_path());
        command.env("PATH", search_path());
        let finished = finish(command, PATIENCE);
        assert!(finished.ok(), "usher install: {}", finished.err());
        let config = self.path(CONTAINERD_CONFIG);
        let text = fs::read_to_string(&config).expect("containerd's configuration");
        assert!(
            text.contains(DEFAULT_RUNTIME),
            "containerd's configuration: {text}"
        );
        let text = text.replace(DEFAULT_RUNTIME, "default_runtime_name = \"usher\"");
        fs::write(config, text).expect("containerd's configuration");
    }

    fn machine(&self) -> &Machine {
        self.machine.as_ref().expect("the machine is on")
    }

    /// Runs the tests. The exit status is ignored, because the report contains the outcomes.
    fn run(&self, words: &[String]) {
        let node = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/integration/kubernetes/upstream/node"
        );
        let mut command = self.machine().command(&[node]);
        command.arg(self.dir.path());
        let parts = self.parts;
        command.args([&parts.tests, &parts.images, &parts.kubernetes]);
        command.env("PATH", search_path());
        let choice = |name: &str, usual: &str| std::env::var(name).unwrap_or_else(|_| usual.into());
        let filter = choice("USHER_TEST_UPSTREAM_FILTER", USUAL);
        let procs = choice("USHER_TEST_UPSTREAM_PROCS", "6");
        let timeout = choice("USHER_TEST_UPSTREAM_TIMEOUT", "30m");
        // The seed makes both runs use the same order.
        command.args(["--seed", "1", "--procs", &procs, "--timeout", &timeout]);
        command.args(["--label-filter", &filter]);
        let left_out = Named::of(LEFT_OUT).expect("what is left out, with reasons");
        for name in left_out.names() {
            command.args(["--skip", name]);
        }
        for word in words {
            command.args(["--focus", word]);
        }
        let log = fs::File::create(self.path("report/tests.log")).expect("a log");
        command.stdout(log.try_clone().expect("a log")).stderr(log);
        let _ = command.status();
    }

    fn keep_reports(&self, kept: &Path) {
        let _ = fs::remove_dir_all(kept);
        fs::create_dir_all(kept).expect("a directory of reports");
        for entry in fs::read_dir(self.path("report")).expect("reports") {
            let entry = entry.expect("a report");
            if entry.file_type().is_ok_and(|kind| kind.is_file()) {
                let _ = fs::copy(entry.path(), kept.join(entry.file_name()));
            }
        }
    }
}

impl Drop for Suite<'_> {
    fn drop(&mut self) {
        if let Some(machine) = self.machine.take() {
            machine.switch_off();
        }
        hierarchies::remove(&self.name());
        if std::env::var_os("USHER_TEST_KEEP").is_some() {
            self.dir.disable_cleanup(true);
            eprintln!("kept: {}", self.dir.path().display());
        }
    }
}

/// The path of containerd's configuration in the machine's directory.
const CONTAINERD_CONFIG: &str = "over/etc/containerd/config.toml";
const DEFAULT_RUNTIME: &str = "default_runtime_name = \"runc\"";

fn search_path() -> &'static str {
    "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}

/// kubelet's configuration: that of Kubernetes' own tests, without the values that fit only the
/// Kubernetes project's machines.
fn kubelet() -> String {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupRoot": "/",
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": false,
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        "podCIDR": "10.100.0.0/24",
        "serializeImagePulls": false,
        "fileCheckFrequency": "10s",
        "volumeStatsAggPeriod": "10s",
        "evictionPressureTransitionPeriod": "30s",
        // The machine's disk may be nearly full. kubelet must not evict pods for this reason.
        "evictionHard": {
            "memory.available": "1Mi", "nodefs.available": "1Mi", "nodefs.inodesFree": "10",
            "imagefs.available": "1Mi",
        },
        "imageGCHighThresholdPercent": 100,
    })
    .to_string()
}
