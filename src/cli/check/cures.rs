//! Cures: commands and configuration lines that solve the problems of this node.

use std::path::{Path, PathBuf};

use super::super::containerd::{
    ConfigFile, NAME, Node, PROGRAM, configuration_files, runtime_table,
};
use super::super::install;
use super::super::systemd::has_systemd;
use super::finding::Cure;

/// Facts about the node, on which the cures depend.
#[derive(Debug)]
pub(super) struct Cures {
    main: PathBuf,
    files: Vec<ConfigFile>,
    /// Options that make another usher command find the same containerd, with a space before each.
    options: String,
    /// The systemd unit of containerd, if systemd runs.
    unit: Option<&'static str>,
    place: Place,
    /// True if containerd's CRI plugin is on; the installer refuses to run without it.
    has_cri: bool,
}

/// The way to put the shim where containerd looks for programs.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// The installer needs no option, because containerd searches the default directory, or because
    /// its configuration has the shim's path.
    Usual,
    /// The installer needs `--prefix` with this directory, because containerd searches the
    /// directory's subdirectory `bin`.
    Prefix(PathBuf),
    /// With `--prefix`, the installer would install to `PREFIX/bin`, but containerd searches no
    /// directory named `bin`. So the command first copies the shim into this directory, which
    /// containerd searches.
    Copied(PathBuf),
}

impl Cures {
    pub(super) fn of(node: &Node, options: &[(&str, Option<String>)]) -> Cures {
        Cures::with(node, options, has_systemd())
    }

    pub(super) fn with(
        node: &Node,
        options: &[(&str, Option<String>)],
        has_systemd: bool,
    ) -> Cures {
        let named = options
            .iter()
            .filter_map(|(name, value)| Some(format!(" {name} {}", quoted(value.as_deref()?))));
        Cures {
            main: node.config.clone(),
            files: configuration_files(&node.config),
            options: named.collect(),
            unit: has_systemd.then(|| node.flavor.unit()),
            place: Place::on(node),
            has_cri: node
                .dump
                .as_ref()
                .is_ok_and(|dump| node.disabled_cri(dump).is_none()),
        }
    }

    pub(super) fn files(&self) -> &[ConfigFile] {
        &self.files
    }

    /// The command that installs usher and restarts containerd.
    pub(super) fn install(&self) -> Cure {
        match self.has_cri {
            true => Cure::run(self.install_with("")),
            false => Cure::default(),
        }
    }

    fn install_with(&self, option: &str) -> String {
        let options = &self.options;
        let restart = self.unit.map_or("", |_| " --restart");
        let (before, prefix) = match &self.place {
            Place::Usual => Default::default(),
            Place::Prefix(prefix) => {
                let prefix = quoted(&prefix.to_string_lossy());
                (String::new(), format!(" --prefix {prefix}"))
            }
            Place::Copied(directory) => {
                let shim = install::own_directory().unwrap_or_default().join(PROGRAM);
                let [shim, directory] = [&shim, directory].map(|it| quoted(&it.to_string_lossy()));
                (
                    format!("install -m 755 {shim} {directory} && "),
                    String::new(),
                )
            }
        };
        format!("{before}usher install{option}{restart}{prefix}{options}")
    }

    pub(super) fn restart(&self) -> Cure {
        self.systemctl("restart")
    }

    pub(super) fn start(&self) -> Cure {
        self.systemctl("start")
    }

    fn systemctl(&self, verb: &str) -> Cure {
        let command = |unit| Cure::run(format!("systemctl {verb} {unit}"));
        self.unit.map_or_else(Cure::default, command)
    }

    /// The last words of a sentence that asks the user to restart containerd. Empty if systemd can
    /// restart containerd.
    pub(super) fn by_hand(&self) -> &'static str {
        self.unit.map_or(" the way you usually start it", |_| "")
    }

    /// The cure that sets keys in a runtime's table. If the installer wrote the table, the cure is
    /// a run of the installer. Otherwise the cure consists of lines to add.
    pub(super) fn runtime(&self, name: &str, lines: &str, is_pauseless: bool) -> Cure {
        let is_installers = |file: &ConfigFile| name == NAME && install::has_written(&file.text);
        match self.file_of(name) {
            Some(file) if is_installers(file) && is_pauseless => {
                Cure::run(self.install_with(" --pauseless"))
            }
            Some(file) if is_installers(file) => self.install(),
            _ => self.keys(name, "", lines),
        }
    }

    /// The cure that sets keys which the installer does not write. The keys go into the runtime's
    /// table or into the table `below` it.
    pub(super) fn keys(&self, name: &str, below: &str, lines: &str) -> Cure {
        self.file_of(name).map_or_else(Cure::default, |file| {
            let table = runtime_table(file.cri_name(), name);
            Cure::keys(file.path.clone(), format!("{table}{below}"), lines)
        })
    }

    fn file_of(&self, name: &str) -> Option<&ConfigFile> {
        self.files.iter().rfind(|file| file.has_runtime(name))
    }

    /// The file that configures the CRI plugin, and the plugin's name in that file's layout.
    pub(super) fn cri(&self, usual: &'static str) -> (PathBuf, &'static str) {
        let with_part = self
            .files
            .iter()
            .rfind(|file| file.has_plugin(file.cri_name()));
        match with_part.or(self.files.first()) {
            Some(file) => (file.path.clone(), file.cri_name()),
            None => (self.main.clone(), usual),
        }
    }
}

impl Place {
    fn on(node: &Node) -> Place {
        let usual = install::usual_prefix(install::own_directory().as_deref()).join("bin");
        let beside = node.program.as_deref().ok().and_then(Path::parent);
        let directories = node.path.split(':').map(Path::new).chain(beside);
        let directories = || directories.clone().filter(|it| it.is_absolute());
        // containerd 2 reads the shim's path from its configuration, so the shim may be in any
        // directory.
        if !node.is_1() || directories().any(|it| it == usual) {
            return Place::Usual;
        }
        let is_bin = |it: &&Path| it.file_name().is_some_and(|name| name == "bin");
        let prefix = directories().find(is_bin).and_then(Path::parent);
        match (prefix, directories().next()) {
            (Some(prefix), _) => Place::Prefix(prefix.to_owned()),
            (None, Some(directory)) => Place::Copied(directory.to_owned()),
            (None, None) => Place::Usual,
        }
    }
}

/// Quotes a word for a shell, if the word needs quotes.
fn quoted(word: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "/._-:+,=@%".contains(char);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
