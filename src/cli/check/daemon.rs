//! Checks of containerd itself, its capabilities and the node's cgroups.

use std::fs;
use std::path::Path;

use usher_linux::cgroup::Layout;

use super::super::containerd::{
    CRI_2, ConfigFile, Effective, Node, RUNC_TYPE, StatusError, runtime_table, text,
};
use super::cures::Cures;
use super::finding::{Code, Cure, Finding, Group, Subject};

const CONTAINERD: Subject = Subject::new(Group::Containerd, "containerd");
const CRI: Subject = Subject::new(Group::Containerd, "CRI plugin");
const FILES: Subject = Subject::new(Group::Containerd, "configuration files");
const LOADED: Subject = Subject::new(Group::Containerd, "loaded configuration");
const DEFAULT_RUNTIME: Subject = Subject::new(Group::Containerd, "default runtime");
const OOM_SCORE: Subject = Subject::new(Group::Node, "OOM scores");
const CGROUPS: Subject = Subject::new(Group::Node, "cgroups");

/// The number of `CAP_SYS_RESOURCE` (capabilities(7), `linux/capability.h`).
const CAP_SYS_RESOURCE: u32 = 24;

pub(super) fn findings(node: &Node, cures: &Cures) -> Vec<Finding> {
    let mut findings = vec![program(node, cures)];
    if node.program.is_ok() {
        findings.extend(configuration(node, cures));
    }
    findings.extend(oom_score(node, cures));
    findings.push(cgroups(Path::new("/sys/fs/cgroup")));
    findings
}

fn program(node: &Node, cures: &Cures) -> Finding {
    let program = match &node.program {
        Err(error) => return CONTAINERD.problem(Code::ContainerdMissing, error.to_string()),
        Ok(program) => program.display(),
    };
    let Some(version) = &node.version else {
        return CONTAINERD.warning(
            Code::ContainerdVersion,
            format!("{program} does not print its version; expected 1.6 or later"),
        );
    };
    let text = &version.text;
    if version.release < (1, 6) {
        return CONTAINERD.problem(
            Code::ContainerdVersion,
            format!("{program} is version {text}; expected 1.6 or later"),
        );
    }
    match node.pid {
        Some(pid) => CONTAINERD.ok(format!(
            "{program}, version {text}, running as process {pid}"
        )),
        None => {
            let by_hand = cures.by_hand();
            let says = format!(
                "{program}, version {text}, is not running, or not visible from here: start it{by_hand}"
            );
            CONTAINERD
                .warning(Code::ContainerdStopped, says)
                .cure(cures.start())
        }
    }
}

fn configuration(node: &Node, cures: &Cures) -> Vec<Finding> {
    // Some versions of containerd print their defaults if the configuration file is missing, but do
    // not start without the file.
    if node.lacks_config {
        let says = format!(
            "{} does not exist, so containerd does not start with it; expected containerd's configuration \
             file (--config)",
            node.config.display()
        );
        return vec![FILES.problem(Code::ConfigMissing, says)];
    }
    let dump = match &node.dump {
        Ok(dump) => dump,
        Err(error) => {
            let says = format!("{}: {error}", node.config.display());
            return vec![FILES.problem(Code::ConfigRefused, says)];
        }
    };
    let mut findings = vec![cri(node, dump)];
    findings.extend(files(node, cures.files()));
    findings.extend(default_runtime(node, cures));
    let is_sound = !findings.iter().any(Finding::is_problem);
    findings.extend(loaded(node, cures, is_sound));
    findings
}

/// Compares containerd's configuration file with the configuration that the running containerd has
/// loaded. Advises no restart if the file has problems, since containerd might not start again.
fn loaded(node: &Node, cures: &Cures, is_sound: bool) -> Option<Finding> {
    let (pid, by_hand) = (node.pid?, cures.by_hand());
    let file = node.config.display();
    let (cure, restart) = match is_sound {
        true => (cures.restart(), "restart containerd"),
        false => (
            Cure::default(),
            "solve the problems of the file and restart containerd",
        ),
    };
    let unloaded = match node.cri_status.as_ref()? {
        Err(StatusError::Failed(error)) => {
            let says = format!(
                "the running containerd (process {pid}) does not report its configuration: {error}"
            );
            return Some(LOADED.warning(Code::CriSilent, says));
        }
        Err(StatusError::NoPlugin) => LOADED.problem(
            Code::CriFailed,
            format!(
                "the running containerd (process {pid}) has no CRI plugin, so kubelet cannot use it: the \
                 plugin was off or failed to load; see containerd's log, then {restart}{by_hand}"
            ),
        ),
        Ok(_) => match node.unloaded() {
            None => return Some(LOADED.ok(format!("the running containerd has loaded {file}"))),
            Some(difference) => LOADED.problem(
                Code::ContainerdStale,
                format!(
                    "the running containerd (process {pid}) has not loaded the present {file}: {difference}; \
                     {restart}{by_hand}"
                ),
            ),
        },
    };
    Some(unloaded.cure(cure))
}

/// Checks that the CRI plugin, which kubelet needs, is on; some packages of containerd disable it.
fn cri(node: &Node, dump: &Effective) -> Finding {
    match node.disabled_cri(dump) {
        Some(name) => CRI.problem(
            Code::CriDisabled,
            format!(
                "disabled_plugins in {} has {name:?}: kubelet cannot use this containerd; expected \
                 a list without it. A node with only Docker needs neither the CRI plugin nor usher install: see \
                 docs/docker.md",
                node.config.display()
            ),
        ),
        None => CRI.ok(format!("{} is on", node.cri_name())),
    }
}

/// Warns if containerd 1.x would ignore a configuration file. containerd 1.x reads the CRI plugin's
/// table only from the last file that has such a table.
fn files(node: &Node, files: &[ConfigFile]) -> Option<Finding> {
    let with_part = files.iter().filter(|file| file.has_plugin(CRI_2));
    let names: Vec<String> = with_part
        .map(|file| file.path.display().to_string())
        .collect();
    if names.len() < 2 || !node.is_1() {
        return None;
    }
    Some(FILES.warning(
        Code::ConfigParts,
        format!(
            "{} all configure the CRI plugin, and containerd 1.x reads only the last of them: \
             put all of the plugin's settings into one file",
            names.join(", ")
        ),
    ))
}

/// Checks that the configuration has a table for the default runtime. containerd 1.x drops its
/// built-in table for runc if the configuration file has a table for any runtime.
fn default_runtime(node: &Node, cures: &Cures) -> Option<Finding> {
    let (usual, part) = node.cri()?;
    let wanted =
        text(part.get("containerd")?.as_table()?, "default_runtime_name").unwrap_or("runc");
    if node.runtimes().any(|(runtime, _)| runtime == wanted) {
        return Some(
            DEFAULT_RUNTIME.ok(format!("pods without runtimeClassName run with {wanted}")),
        );
    }
    let (file, cri) = cures.cri(usual);
    let table = runtime_table(cri, wanted);
    Some(
        DEFAULT_RUNTIME
            .problem(
                Code::DefaultRuntime,
                format!("{wanted} has no entry: containerd starts without its CRI plugin, and no pod runs"),
            )
            .cure(Cure::table(file, format!("[{table}]\n  runtime_type = \"{RUNC_TYPE}\""))),
    )
}

/// Checks that the shim may set OOM scores lower than containerd's own score. The shim gives a
/// sidecar the score of the apps, which can be that low.
fn oom_score(node: &Node, cures: &Cures) -> Option<Finding> {
    let process = node.pid.map_or("self".to_owned(), |pid| pid.to_string());
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    if capabilities(&status)? & (1 << CAP_SYS_RESOURCE) != 0 {
        return Some(OOM_SCORE.ok("can be lowered (CAP_SYS_RESOURCE)"));
    }
    let subject = match node.pid {
        Some(_) => "containerd has",
        None => "this command has",
    };
    let restricted = node
        .cri()
        .and_then(|(_, part)| part.get("restrict_oom_score_adj")?.as_bool());
    let says = format!("{subject} no CAP_SYS_RESOURCE, so nothing can lower them");
    match restricted {
        None | Some(true) => Some(OOM_SCORE.warning(Code::OomScores, says)),
        Some(false) => {
            let says = format!("{says}, and pods do not start");
            let (file, cri) = cures.cri(node.cri_name());
            let table = format!("plugins.\"{cri}\"");
            let line = "restrict_oom_score_adj = true";
            let finding = OOM_SCORE.warning(Code::OomScores, says);
            Some(finding.cure(Cure::keys(file, table, line)))
        }
    }
}

/// The effective capabilities, from the text of `/proc/PID/status`.
fn capabilities(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Reports the version of cgroups, and whether systemd can manage them.
fn cgroups(mount: &Path) -> Finding {
    let version = match Layout::at(mount) {
        // With this mount option, the kernel moves processes into cgroups without delay.
        Some(Layout::V2) if Layout::has_option(mount, "favordynmods") => {
            "version 2 with favordynmods"
        }
        Some(Layout::V2) => "version 2",
        Some(_) if !mount.join("memory").is_dir() => {
            let says = "the kernel does not account for memory; expected a kernel without \
                        cgroup_disable=memory on its command line";
            return CGROUPS.problem(Code::Cgroups, says.to_owned());
        }
        Some(Layout::Hybrid) => "version 1, with a hierarchy of version 2 beside it (hybrid)",
        Some(Layout::V1) => "version 1",
        None => {
            let says = format!("no cgroup file system is mounted on {}", mount.display());
            return CGROUPS.problem(Code::Cgroups, says);
        }
    };
    let systemd = Path::new("/run/systemd/system").is_dir();
    CGROUPS.ok(match systemd {
        true => {
            format!("{version}; systemd runs, so both cgroup drivers work: use kubelet's")
        }
        false => format!("{version}; systemd does not run: the cgroup driver is cgroupfs"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::containerd::{CriStatus, ProgramError, configuration_files};
    use super::super::finding::Level;
    use super::*;

    fn cures(node: &Node) -> Cures {
        Cures::with(node, &[], true)
    }

    #[test]
    fn a_stopped_containerd_is_a_warning_with_the_command_that_starts_it() {
        let mut node = Node::with("1.7.24", "");
        let stopped = program(&node, &cures(&node));
        assert_eq!(stopped.level, Level::Warning);
        assert_eq!(
            stopped.cure.run.as_deref(),
            Some("systemctl start containerd")
        );
        let without = program(&node, &Cures::with(&node, &[], false));
        assert_eq!(without.cure.run, None);
        assert!(
            without
                .says
                .ends_with("start it the way you usually start it")
        );
        node.pid = Some(7);
        assert_eq!(program(&node, &cures(&node)).level, Level::Ok);
        let old = program(&Node::with("1.5.11", ""), &cures(&node));
        assert_eq!(
            (old.level, old.code),
            (Level::Problem, Some(Code::ContainerdVersion))
        );
    }

    #[test]
    fn an_unloaded_configuration_is_a_problem_with_the_command_that_restarts_containerd() {
        let dump = "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.usher]\n\
            runtime_type = 'io.containerd.usher.v2'";
        let mut node = Node::with("2.1.4", dump);
        node.pid = Some(7);
        let mut with = |told| {
            node.cri_status = Some(told);
            loaded(&node, &cures(&node), true).unwrap()
        };
        let config = serde_json::json!({"containerd": {"runtimes": {}}});
        let told = CriStatus {
            handlers: Vec::new(),
            config: Some(config),
        };
        let restart = Some("systemctl restart containerd".to_owned());
        let stale = with(Ok(told));
        assert_eq!(
            (stale.level, stale.code, &stale.cure.run),
            (Level::Problem, Some(Code::ContainerdStale), &restart)
        );
        assert!(stale.says.contains("it lacks the runtime usher"));
        let failed = with(Err(StatusError::NoPlugin));
        assert_eq!(
            (failed.level, failed.code, &failed.cure.run),
            (Level::Problem, Some(Code::CriFailed), &restart)
        );
        let silent = with(Err(StatusError::Failed("no".to_owned())));
        assert_eq!(silent.level, Level::Warning);
    }

    #[test]
    fn no_restart_is_advised_while_the_file_has_problems() {
        let lost = "[plugins.'io.containerd.grpc.v1.cri'.containerd]\ndefault_runtime_name = 'runc'\n\
            [plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.usher]\n\
            runtime_type = 'io.containerd.usher.v2'";
        let mut node = Node::with("1.6.20", lost);
        node.pid = Some(7);
        node.cri_status = Some(Err(StatusError::NoPlugin));
        let findings = configuration(&node, &cures(&node));
        let of = |code| findings.iter().find(|it| it.code == Some(code)).unwrap();
        assert!(of(Code::DefaultRuntime).cure.add.is_some());
        let failed = of(Code::CriFailed);
        assert_eq!(failed.cure, Cure::default());
        assert!(failed.says.contains("solve the problems of the file"));
    }

    #[test]
    fn a_missing_and_a_refused_configuration_file_have_different_codes() {
        let mut node = Node::with("1.7.24", "");
        let complaint = "open /nowhere/config.toml: no such file or directory";
        node.dump = Err(ProgramError::Complained(complaint.to_owned()).into());
        let code = |node: &Node| configuration(node, &cures(node))[0].code;
        assert_eq!(code(&node), Some(Code::ConfigRefused));
        node.lacks_config = true;
        assert_eq!(code(&node), Some(Code::ConfigMissing));
    }

    #[test]
    fn missing_memory_accounting_is_told_from_missing_cgroups() {
        let mount = tempfile::tempdir().unwrap();
        let says = |expected: &str| {
            let found = cgroups(mount.path());
            assert_eq!(found.level, Level::Problem);
            assert!(found.says.contains(expected), "{}", found.says);
        };
        says("no cgroup file system is mounted");
        fs::create_dir(mount.path().join("devices")).unwrap();
        says("does not account for memory");
        fs::create_dir(mount.path().join("memory")).unwrap();
        assert_eq!(cgroups(mount.path()).level, Level::Ok);
    }

    #[test]
    fn capabilities_are_read_as_the_kernel_writes_them() {
        assert_eq!(
            capabilities("Name:\tx\nCapEff:\t0000000001000000\nCapBnd:\t0\n"),
            Some(1 << CAP_SYS_RESOURCE)
        );
        assert_eq!(capabilities("Name:\tx\n"), None);
    }

    #[test]
    fn a_cri_plugin_that_is_off_is_a_problem() {
        let node = Node::with("1.7.24", "disabled_plugins = ['cri']");
        let finding = cri(&node, node.dump.as_ref().unwrap());
        assert_eq!(finding.level, Level::Problem);
        assert!(
            finding.says.contains("disabled_plugins"),
            "{}",
            finding.says
        );
    }

    #[test]
    fn a_missing_entry_for_the_default_runtime_is_a_problem() {
        let with = |runtimes: &str| {
            let dump = format!(
                "[plugins.'io.containerd.grpc.v1.cri'.containerd]\n\
                 default_runtime_name = 'runc'\n{runtimes}"
            );
            let node = Node::with("1.6.20", &dump);
            default_runtime(&node, &cures(&node)).unwrap()
        };
        let lost = with(
            "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.usher]\n\
             runtime_type = 'io.containerd.usher.v2'",
        );
        assert_eq!(lost.level, Level::Problem);
        let add = lost.cure.add.unwrap();
        assert!(add.contains("runtimes.runc]"), "{add}");
        let kept = with(&add);
        assert_eq!(kept.level, Level::Ok);
    }

    #[test]
    fn two_files_that_configure_the_cri_plugin_are_a_warning_for_containerd_1() {
        let directory = tempfile::tempdir().unwrap();
        let main = directory.path().join("config.toml");
        let part = "[plugins.'io.containerd.grpc.v1.cri']\nenable_selinux = false\n";
        fs::write(
            &main,
            format!("version = 2\nimports = ['conf.d/*.toml']\n{part}"),
        )
        .unwrap();
        fs::create_dir(directory.path().join("conf.d")).unwrap();
        let files_of = |version| {
            let mut node = Node::with(version, "");
            node.config = main.clone();
            files(&node, &configuration_files(&main))
        };
        assert_eq!(files_of("1.7.24"), None);
        fs::write(directory.path().join("conf.d/usher.toml"), part).unwrap();
        let finding = files_of("1.7.24").unwrap();
        assert!(
            finding.says.contains("conf.d/usher.toml"),
            "{}",
            finding.says
        );
        assert_eq!(files_of("2.1.4"), None);
    }
}
