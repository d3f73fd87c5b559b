//! The node as `usher check` and `usher install` see it: containerd, its PATH and its
//! configuration.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use toml::{Table, Value};

use super::flavor::{Flavor, by_its_name};
use super::kubelet::status;
use super::program::{find, is_program, output};
use super::{CONFIG, CRI, CRI_2, CriStatus, DumpError, Effective, StatusError, loaded};

/// The reason why containerd was not found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoContainerd {
    #[error("{} is not a program", .0.display())]
    NotAProgram(PathBuf),
    #[error("containerd is not on the PATH {0}")]
    NotOnPath(String),
}

/// A node's containerd.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) program: Result<PathBuf, NoContainerd>,
    pub(crate) version: Option<Version>,
    pub(crate) config: PathBuf,
    /// True if the configuration file is missing and is not the default one. containerd does not
    /// start without such a file.
    pub(crate) lacks_config: bool,
    /// The distribution to which the configuration file belongs.
    pub(crate) flavor: Flavor,
    /// The effective configuration.
    pub(crate) dump: Result<Effective, DumpError>,
    /// The PATH of containerd, or of this command if containerd's PATH is unknown.
    pub(crate) path: String,
    /// True if `path` is containerd's PATH, from the running containerd or from the command line.
    pub(crate) path_is_known: bool,
    /// The process id of the running containerd.
    pub(crate) pid: Option<u32>,
    /// The running containerd's answer to kubelet's `Status` request, if this command has asked for
    /// it.
    pub(crate) cri_status: Option<Result<CriStatus, StatusError>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Version {
    pub(crate) text: String,
    /// The major and the minor version as numbers, so that 1.7 comes before 1.10.
    pub(crate) release: (u32, u32),
}

/// The facts about a [`Node`] that the report shows.
#[derive(Debug, Serialize)]
pub(crate) struct Facts {
    program: Option<PathBuf>,
    version: Option<String>,
    config: PathBuf,
    pid: Option<u32>,
}

/// A running containerd in our mount namespace.
#[derive(Debug, Default)]
struct Running {
    pid: u32,
    program: Option<PathBuf>,
    config: Option<PathBuf>,
    path: Option<String>,
}

impl Node {
    /// Collects the facts about the node. Without `config`, takes the configuration file of the
    /// given `flavor`. Other missing values come from the running containerd, if there is one. If
    /// `config` or `flavor` is given, only a containerd that uses this configuration file counts.
    pub(crate) fn look(
        program: Option<PathBuf>,
        config: Option<PathBuf>,
        path: Option<String>,
        flavor: Option<Flavor>,
    ) -> Node {
        let config = config.or_else(|| Some(flavor?.config().to_owned()));
        let wanted = config.as_deref();
        let running = running_daemons()
            .into_iter()
            .find(|daemon| wanted.is_none_or(|wanted| daemon.config() == wanted))
            .unwrap_or_default();
        let pid = (running.pid != 0).then_some(running.pid);
        let config = config.unwrap_or_else(|| match pid {
            Some(_) => running.config().to_owned(),
            None => Flavor::on_disk().config().to_owned(),
        });
        let flavor = flavor.unwrap_or_else(|| Flavor::of_config(&config));
        let path_is_known = path.is_some() || running.path.is_some();
        let path = path
            .or(running.path)
            .unwrap_or_else(|| std::env::var("PATH").unwrap_or_default());
        // The file of the running program may be missing, because the program was replaced after
        // its start.
        let running = running.program.filter(|program| is_program(program));
        let running = running.map(by_its_name).or_else(|| flavor.program());
        let program = match program.or(running) {
            Some(program) if is_program(&program) => Ok(program),
            Some(program) => Err(NoContainerd::NotAProgram(program)),
            None => find(&path, "containerd").ok_or_else(|| NoContainerd::NotOnPath(path.clone())),
        };
        let version = program.as_deref().ok().and_then(version);
        let dump = match &program {
            Ok(program) => dump(program, &config),
            Err(_) => Err(DumpError::NoContainerd),
        };
        let socket = dump.as_ref().ok().and_then(Effective::socket);
        let cri_status = pid.and(socket).map(|socket| status(Path::new(socket)));
        Node {
            program,
            version,
            lacks_config: config != Path::new(CONFIG) && !config.exists(),
            config,
            flavor,
            dump,
            path,
            path_is_known,
            pid,
            cri_status,
        }
    }

    /// The difference between the configuration file and what the running containerd has loaded, as
    /// a clause about containerd. None if there is no difference or if it is unknown.
    pub(crate) fn unloaded(&self) -> Option<String> {
        match self.cri_status.as_ref()? {
            Ok(status) => loaded::difference(self.dump.as_ref().ok()?, status.config.as_ref()?),
            // The configuration file disables the CRI plugin, as Docker's file does.
            Err(StatusError::NoPlugin)
                if self
                    .dump
                    .as_ref()
                    .is_ok_and(|dump| self.disabled_cri(dump).is_some()) =>
            {
                None
            }
            Err(StatusError::NoPlugin) => Some("it has no CRI plugin".to_owned()),
            Err(StatusError::Failed(_)) => None,
        }
    }

    /// The entry of `disabled_plugins` that disables the CRI plugin.
    pub(crate) fn disabled_cri<'a>(&self, dump: &'a Effective) -> Option<&'a str> {
        let disabled = dump.table().get("disabled_plugins");
        let names = disabled.and_then(Value::as_array).into_iter().flatten();
        let mut names = names.filter_map(Value::as_str);
        names.find(|name| *name == "cri" || *name == self.cri_name() || *name == CRI_2)
    }

    pub(crate) fn facts(&self) -> Facts {
        Facts {
            program: self.program.clone().ok(),
            version: self.version.as_ref().map(|version| version.text.clone()),
            config: self.config.clone(),
            pid: self.pid,
        }
    }

    pub(crate) fn is_1(&self) -> bool {
        match &self.version {
            Some(version) => version.release < (2, 0),
            None => self.cri().is_none_or(|(name, _)| name == CRI_2),
        }
    }

    /// The CRI plugin that has the runtimes: its name and its table.
    pub(crate) fn cri(&self) -> Option<(&'static str, &Table)> {
        self.dump.as_ref().ok()?.cri()
    }

    /// The name of the CRI plugin that has the runtimes. If the configuration has no table of the
    /// plugin, containerd's version decides.
    pub(crate) fn cri_name(&self) -> &'static str {
        match self.cri() {
            Some((name, _)) => name,
            None if self.is_1() => CRI_2,
            None => CRI,
        }
    }

    /// The CRI plugin's runtimes, each with its name.
    pub(crate) fn runtimes(&self) -> impl Iterator<Item = (&str, &Table)> {
        self.dump.iter().flat_map(Effective::runtimes)
    }

    /// The path of the shim program that containerd would run. containerd searches its PATH, and
    /// then the directory of its own program
    /// (<https://github.com/containerd/containerd/blob/main/core/runtime/v2/shim_manager.go>).
    pub(crate) fn shim(&self, name: &str) -> Option<PathBuf> {
        find(&self.path, name).or_else(|| {
            let beside = self.program.as_ref().ok()?.parent()?.join(name);
            is_program(&beside).then_some(beside)
        })
    }

    /// The PATH and its owner, worded for a message: "containerd's PATH …" or "this command's
    /// PATH …".
    pub(crate) fn whose_path(&self) -> String {
        match self.path_is_known {
            true => format!("containerd's PATH {}", self.path),
            false => format!(
                "this command's PATH {} (containerd's is unknown)",
                self.path
            ),
        }
    }
}

/// The value of a key, if the value is a text and not empty.
pub(crate) fn text<'a>(table: &'a Table, key: &str) -> Option<&'a str> {
    table
        .get(key)
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty())
}

pub(super) fn version(program: &Path) -> Option<Version> {
    let said = output(Command::new(program).arg("--version")).ok()?;
    Version::read(&said)
}

impl Version {
    /// Parses `containerd <source> v1.7.24 <revision>`.
    fn read(said: &str) -> Option<Version> {
        let text = said.split_whitespace().nth(2)?.trim_start_matches('v');
        let mut numbers = text.split('.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit());
            part.get(..digits.unwrap_or(part.len()))?.parse().ok()
        });
        Some(Version {
            text: text.to_owned(),
            release: (
                numbers.next()??,
                numbers.next().flatten().unwrap_or_default(),
            ),
        })
    }
}

/// The effective configuration that containerd makes of a file.
///
/// # Errors
///
/// containerd's complaint about the file, in one line.
pub(crate) fn dump(program: &Path, config: &Path) -> Result<Effective, DumpError> {
    let said = output(
        Command::new(program)
            .arg("--config")
            .arg(config)
            .args(["config", "dump"]),
    )?;
    Effective::parse(said)
}

impl Running {
    fn config(&self) -> &Path {
        self.config.as_deref().unwrap_or(Path::new(CONFIG))
    }
}

/// All processes named containerd in our mount namespace that run as our own user, root. Processes
/// of other users are left out: any user can name a process containerd, and this command executes
/// the process's program and programs on its PATH. A process with the default configuration file
/// comes first.
fn running_daemons() -> Vec<Running> {
    let ours = fs::read_link("/proc/self/ns/mnt").ok();
    let us = users(Path::new("/proc/self"));
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut found: Vec<Running> = processes
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let directory = entry.path();
            let name = fs::read_to_string(directory.join("comm")).ok()?;
            let theirs = fs::read_link(directory.join("ns/mnt")).ok();
            let is_one = name.trim_end() == "containerd" && theirs == ours;
            (is_one && users(&directory) == us).then(|| running(pid, &directory))
        })
        .collect();
    found.sort_by_key(|daemon| (daemon.config() != Path::new(CONFIG), daemon.pid));
    found
}

/// The line with a process's user ids (`proc_pid_status(5)`). The owner of the process's directory
/// in /proc does not always tell the user: for a process that is not dumpable, the owner is root.
fn users(directory: &Path) -> Option<String> {
    let status = fs::read_to_string(directory.join("status")).ok()?;
    let line = status.lines().find(|line| line.starts_with("Uid:"))?;
    Some(line.to_owned())
}

fn running(pid: u32, directory: &Path) -> Running {
    let words = |name| {
        let bytes = fs::read(directory.join(name)).unwrap_or_default();
        let words = bytes.split(|byte| *byte == 0).map(OsStr::from_bytes);
        words
            .map(|word| word.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
    };
    let path = words("environ")
        .into_iter()
        .find_map(|variable| variable.strip_prefix("PATH=").map(str::to_owned));
    Running {
        pid,
        program: fs::read_link(directory.join("exe")).ok(),
        config: named_config(&words("cmdline")),
        path,
    }
}

/// The configuration file that a command line names.
fn named_config(arguments: &[String]) -> Option<PathBuf> {
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if matches!(argument.as_str(), "-c" | "--config" | "-config") {
            return arguments.next().map(PathBuf::from);
        }
        let value = argument
            .strip_prefix("--config=")
            .or_else(|| argument.strip_prefix("-config="))
            .or_else(|| argument.strip_prefix("-c="));
        if let Some(value) = value {
            return Some(PathBuf::from(value));
        }
    }
    None
}

#[cfg(test)]
impl Node {
    /// A node whose containerd has this version and effective configuration.
    pub(crate) fn with(version: &str, dump: &str) -> Node {
        Node {
            program: Ok(PathBuf::from("/usr/bin/containerd")),
            version: Version::read(&format!("containerd github.com/x {version} abc")),
            config: PathBuf::from("/nowhere/config.toml"),
            lacks_config: false,
            flavor: Flavor::Containerd,
            dump: Effective::parse(dump.to_owned()),
            path: "/nowhere".to_owned(),
            path_is_known: true,
            pid: None,
            cri_status: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    use super::*;

    /// usher runs as root. If usher finds a process named containerd, usher executes that process's
    /// program and programs on that process's PATH. So usher must ignore processes of other users.
    #[test]
    fn another_users_process_named_containerd_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("containerd");
        // The kernel names a process after the path by which it was executed.
        std::os::unix::fs::symlink("/bin/sleep", &program).unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let is_found = |user: Option<u32>| {
            let mut command = Command::new(&program);
            command.arg("1000");
            if let Some(user) = user {
                command.uid(user).gid(user);
            }
            let mut process = command.spawn().unwrap();
            // The process exists before it has its name, so the test waits for the name.
            let comm = format!("/proc/{}/comm", process.id());
            while fs::read_to_string(&comm).unwrap().trim_end() != "containerd" {
                std::thread::yield_now();
            }
            let found = running_daemons();
            process.kill().unwrap();
            process.wait().unwrap();
            found.iter().any(|daemon| daemon.pid == process.id())
        };
        assert!(is_found(None));
        assert!(!is_found(Some(65534)));
    }

    #[test]
    fn the_version_is_read_from_containerds_output() {
        for (said, text, release) in [
            (
                "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3\n",
                "1.6.20~ds1",
                (1, 6),
            ),
            (
                "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7",
                "2.1.4",
                (2, 1),
            ),
        ] {
            let version = Version::read(said).unwrap();
            assert_eq!((version.text.as_str(), version.release), (text, release));
        }
        assert_eq!(Version::read("containerd"), None);
    }

    #[test]
    fn a_configuration_file_is_found_on_a_command_line() {
        for words in [
            &["containerd", "--config", "/a"][..],
            &["containerd", "-c", "/a", "--log-level", "debug"],
            &["containerd", "-l", "debug", "--config=/a"],
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(named_config(&words), Some(PathBuf::from("/a")), "{words:?}");
        }
        assert_eq!(named_config(&["containerd".to_owned()]), None);
    }
}
