//! containerd itself, and the kernel below it.

use std::fs;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

use crate::cgroup::Layout;

use super::super::containerd::{CRI_2, Effective, Node, RUNC_TYPE, runtime_table, text};
use super::{Finding, Level};

const CONTAINERD: &str = "containerd";
const CRI: &str = "CRI plugin";
const FILES: &str = "configuration files";
const DEFAULT_RUNTIME: &str = "default runtime";
const OOM_SCORE: &str = "OOM scores";
const CGROUPS: &str = "cgroups";

/// The number of `CAP_SYS_RESOURCE` (capabilities(7), `linux/capability.h`).
const CAP_SYS_RESOURCE: u32 = 24;

pub(super) fn findings(node: &Node) -> Vec<Finding> {
    let mut findings = vec![program(node)];
    if node.program.is_ok() {
        findings.extend(configuration(node));
    }
    findings.extend(oom_score(node));
    findings.push(cgroups(Path::new("/sys/fs/cgroup")));
    findings
}

fn program(node: &Node) -> Finding {
    let program = match &node.program {
        Err(error) => return Finding::problem(CONTAINERD, error.clone()),
        Ok(program) => program.display(),
    };
    let running = match node.pid {
        Some(pid) => format!("it runs as process {pid}"),
        None => "it does not run, or cannot be seen from here".to_owned(),
    };
    match &node.version {
        None => Finding::warning(
            CONTAINERD,
            format!("{program} does not say its version; expected 1.6 or later"),
        ),
        Some(version) => match version.text.as_str() {
            old if ["0.", "1.0", "1.1.", "1.2.", "1.3.", "1.4.", "1.5."]
                .iter()
                .any(|prefix| old.starts_with(prefix)) =>
            {
                Finding::problem(
                    CONTAINERD,
                    format!("{program} is version {old}; expected 1.6 or later"),
                )
            }
            text => Finding::ok(CONTAINERD, format!("{program}, version {text}; {running}")),
        },
    }
}

fn configuration(node: &Node) -> Vec<Finding> {
    let dump = match &node.dump {
        Ok(dump) => dump,
        Err(error) => {
            return vec![Finding::problem(
                FILES,
                format!("{}: {error}", node.config.display()),
            )];
        }
    };
    let mut findings = vec![cri(node, dump)];
    findings.extend(files(node));
    findings.extend(default_runtime(node));
    findings
}

/// The CRI plugin is what kubelet talks to; some packages of containerd switch it off.
fn cri(node: &Node, dump: &Effective) -> Finding {
    let disabled = dump
        .table()
        .get("disabled_plugins")
        .and_then(Value::as_array);
    let off = disabled
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .find(|name| *name == "cri" || *name == node.cri_name() || *name == CRI_2);
    match off {
        Some(name) => Finding::problem(
            CRI,
            format!(
                "disabled_plugins in {} has {name:?}: kubelet cannot use this containerd; expected \
                 a list without it",
                node.config.display()
            ),
        ),
        None => Finding::ok(CRI, format!("{} is on", node.cri_name())),
    }
}

/// Of several files with a part for the CRI plugin, containerd 1.x takes the last one's whole part.
fn files(node: &Node) -> Option<Finding> {
    let with_part: Vec<PathBuf> = configuration_files(&node.config)
        .into_iter()
        .filter(|(_, table)| has_part(table))
        .map(|(path, _)| path)
        .collect();
    if with_part.len() < 2 || !node.is_1() {
        return None;
    }
    let names: Vec<String> = with_part
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    Some(Finding::warning(
        FILES,
        format!(
            "{} all have a part for the CRI plugin, and containerd 1.x takes the last one's alone: \
             keep everything of that plugin in one file",
            names.join(", ")
        ),
    ))
}

fn has_part(table: &Table) -> bool {
    let plugins = table.get("plugins").and_then(Value::as_table);
    plugins.is_some_and(|plugins| plugins.contains_key(CRI_2))
}

/// The main file and those that it imports, as far as they can be read.
fn configuration_files(main: &Path) -> Vec<(PathBuf, Table)> {
    let read = |path: &Path| -> Option<Table> { fs::read_to_string(path).ok()?.parse().ok() };
    let Some(table) = read(main) else {
        return Vec::new();
    };
    let imports = table.get("imports").and_then(Value::as_array).cloned();
    let mut files = vec![(main.to_owned(), table)];
    for pattern in imports.iter().flatten().filter_map(Value::as_str) {
        let pattern = match pattern.starts_with('/') {
            true => PathBuf::from(pattern),
            false => main.parent().unwrap_or(Path::new("/")).join(pattern),
        };
        let found = glob::glob(&pattern.to_string_lossy()).into_iter().flatten();
        for path in found.flatten() {
            if let Some(table) = read(&path) {
                files.push((path, table));
            }
        }
    }
    files
}

/// containerd 1.x has its own entry for runc only as long as the file names no runtime.
fn default_runtime(node: &Node) -> Option<Finding> {
    let (name, part) = node.cri()?;
    let wanted =
        text(part.get("containerd")?.as_table()?, "default_runtime_name").unwrap_or("runc");
    if node.runtimes().any(|(runtime, _)| runtime == wanted) {
        return Some(Finding::ok(
            DEFAULT_RUNTIME,
            format!("pods without runtimeClassName run with {wanted}"),
        ));
    }
    Some(
        Finding::problem(
            DEFAULT_RUNTIME,
            format!("{wanted} is not there: pods without runtimeClassName would not run"),
        )
        .add(format!(
            "[{}]\n  runtime_type = \"{RUNC_TYPE}\"",
            runtime_table(name, wanted)
        )),
    )
}

/// Whether OOM scores below containerd's own can be set: sidecars get those of the apps.
fn oom_score(node: &Node) -> Option<Finding> {
    let process = node.pid.map_or("self".to_owned(), |pid| pid.to_string());
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    if capabilities(&status)? & (1 << CAP_SYS_RESOURCE) != 0 {
        return Some(Finding::ok(OOM_SCORE, "can be lowered (CAP_SYS_RESOURCE)"));
    }
    let who = match node.pid {
        Some(_) => "containerd has",
        None => "this command has",
    };
    let restricted = node
        .cri()
        .and_then(|(_, part)| part.get("restrict_oom_score_adj")?.as_bool());
    let says = format!("{who} no CAP_SYS_RESOURCE: they cannot be lowered");
    match restricted {
        None | Some(true) => Some(Finding::warning(OOM_SCORE, says)),
        Some(false) => Some(
            Finding::warning(
                OOM_SCORE,
                format!("{says}, and pods of guaranteed quality do not start"),
            )
            .add(format!(
                "[plugins.\"{}\"]\n  restrict_oom_score_adj = true",
                node.cri_name()
            )),
        ),
    }
}

/// The effective capabilities in a `/proc/PID/status`.
fn capabilities(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

/// Which cgroups there are, and who makes them.
fn cgroups(mount: &Path) -> Finding {
    let version = match Layout::at(mount) {
        Some(Layout::V2) => "version 2",
        Some(Layout::Hybrid) => "version 1, with a hierarchy of version 2 beside it (hybrid)",
        Some(Layout::V1) => "version 1",
        None => {
            return Finding::new(
                CGROUPS,
                Level::Problem,
                format!("none are mounted on {}", mount.display()),
            );
        }
    };
    let systemd = Path::new("/run/systemd/system").is_dir();
    Finding::ok(
        CGROUPS,
        match systemd {
            true => {
                format!("{version}; systemd runs, so both drivers work: kubelet's choice counts")
            }
            false => format!("{version}; systemd does not run, so the driver is cgroupfs"),
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_lost_entry_for_the_default_runtime_is_a_problem() {
        let with = |runtimes: &str| {
            let dump = format!(
                "[plugins.'io.containerd.grpc.v1.cri'.containerd]\n\
                 default_runtime_name = 'runc'\n{runtimes}"
            );
            default_runtime(&Node::with("1.6.20", &dump)).unwrap()
        };
        let lost = with(
            "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.usher]\n\
             runtime_type = 'io.containerd.usher.v2'",
        );
        assert_eq!(lost.level, Level::Problem);
        let add = lost.add.unwrap();
        assert!(add.contains("runtimes.runc]"), "{add}");
        let kept = with(&add);
        assert_eq!(kept.level, Level::Ok);
    }

    #[test]
    fn two_files_with_a_part_for_the_cri_plugin_are_one_too_many_for_1_x() {
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
            files(&node)
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
