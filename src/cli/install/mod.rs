//! `usher install`: installs usher on this node, or removes it.
//!
//! First decides the changes from the files' texts ([`plan`]); then tries the new configuration;
//! then writes the files.

mod found;
mod imports;
mod ours;
mod outcome;
mod place;
mod plan;
mod programs;
mod scratch;
mod source;
mod stage;
#[cfg(test)]
mod tests;
mod trial;
mod units;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, bail};
use clap::Args;
use similar::TextDiff;

use super::containerd::{FlavorArgument, NAME, Node, PROGRAM, Registration, find};
use super::output::{Failure, Stdout, note, sentence};
use super::systemd::{has_systemd, systemctl};
use found::{Found, Texts};
use plan::{Goal, Planned};
use stage::{ask, find_texts, scratch};
use trial::Programs;

pub(super) use ours::has_written;

/// Installs usher on this node: its programs, and the runtime in containerd's configuration
///
/// A second run changes nothing, and `--remove` removes both. The runtime goes into its own file if
/// containerd 2 imports a directory, else between two comments at the end of containerd's
/// configuration file; every other byte of the file stays. The new configuration is written only if
/// two checks succeed. containerd reads it as the old one plus this runtime. A second containerd,
/// with directories and sockets of its own, starts with it. At the end the checks of `usher check`
/// run.
///
/// With containerd 2 the runtime has runc's type and the path of the shim (`runtime_path`), so that
/// kubelet allows user namespaces and recursive read-only mounts. With containerd 1 it has usher's
/// own type.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(after_help = "\
Examples:
  usher install --dry-run    shows the changes as a diff
  usher install --restart    installs, and restarts containerd where its configuration changes
  usher install --pauseless --restart
                             the same, for pods without a pause container
  usher install --remove     removes usher and restores the configuration

Exit status: 0 if usher is installed and its pods would run, or is removed; 3 if you have to restart the
running containerd for that, as without --restart; 1 otherwise.")]
pub(super) struct Install {
    /// Removes usher, unless pods still run under it
    #[arg(long, visible_alias = "uninstall")]
    remove: bool,
    /// Removes usher even if pods still run under it
    #[arg(long, requires = "remove")]
    force: bool,
    /// Prints the changes as a diff, and changes nothing
    #[arg(long)]
    dry_run: bool,
    /// Restarts containerd through systemd if its configuration changes; pods keep running
    #[arg(long)]
    restart: bool,
    /// Also installs and enables usher-stop.service, which stops the pods in their order when the
    /// node shuts down; --remove removes it
    #[arg(long)]
    stop_unit: bool,
    /// Has the shim make the sandboxes of its pods, without a pause container; experimental, needs
    /// containerd 2.3 or later
    #[arg(long, conflicts_with = "remove")]
    pauseless: bool,
    /// The directory with the programs to install [default: that of this program]
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
    /// The programs go to DIR/bin [default: /usr if this program is in /usr/bin, from a package;
    /// else /usr/local. For --remove: the directory of the configured shim]
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// The distribution to which containerd belongs. It decides the systemd unit, and the paths of
    /// containerd's configuration and programs. Only plain containerd has been tried for real
    #[arg(long, value_enum, default_value = "auto")]
    flavor: FlavorArgument,
    /// containerd's configuration file [default: that of the running containerd, else
    /// /etc/containerd/config.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The containerd program, with ctr beside it [default: the running one, else the one on the
    /// PATH]
    #[arg(long, value_name = "PATH")]
    containerd: Option<PathBuf>,
    /// containerd's PATH [default: that of the running containerd, else this command's]
    #[arg(long, value_name = "DIR:DIR…")]
    path: Option<String>,
    /// systemd's directory for the administrator's units
    #[arg(long, value_name = "DIR", default_value = "/etc/systemd/system")]
    units: PathBuf,
}

/// The node and the changes to make on it.
struct Installer {
    wanted: Install,
    node: Node,
    containerd: PathBuf,
    bin: PathBuf,
    /// The paths at which the shim's program may be: the path in containerd's configuration, and
    /// the one in `bin`.
    shims: Vec<PathBuf>,
    binaries: PathBuf,
    found: Found,
    planned: Planned,
}

impl Install {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        if !self.dry_run && !nix::unistd::geteuid().is_root() {
            return Err(Failure::because(
                "usher install changes containerd's configuration; run it as root",
            ));
        }
        let (is_removed, is_dry) = (self.remove, self.dry_run);
        let installer = Installer::look(self)?;
        match (is_dry, is_removed) {
            (true, _) => {
                installer.show(stdout)?;
                return Ok(ExitCode::SUCCESS);
            }
            (false, true) => installer.remove()?,
            (false, false) => installer.install()?,
        }
        Ok(installer.conclude())
    }

    /// The prefix of the installed programs; `own` is the directory of this program.
    fn prefix(&self, own: Option<&Path>) -> &Path {
        self.prefix.as_deref().unwrap_or(usual_prefix(own))
    }
}

/// The directory of this program.
pub(super) fn own_directory() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    Some(own.parent()?.to_owned())
}

/// The default prefix; `own` is the directory of this program.
pub(super) fn usual_prefix(own: Option<&Path>) -> &'static Path {
    let of_packages = own == Some(Path::new("/usr/bin"));
    Path::new(if of_packages { "/usr" } else { "/usr/local" })
}

impl Installer {
    /// Reads the node's state and plans the changes.
    fn look(wanted: Install) -> anyhow::Result<Installer> {
        let node = Node::look(
            wanted.containerd.clone(),
            wanted.config.clone(),
            wanted.path.clone(),
            wanted.flavor.0,
        );
        let containerd = node.program.clone()?;
        let found = find_texts(&node, &containerd)?;
        let configured = configured_shim(&found, &node);
        let own = own_directory();
        let bin = match configured.as_deref().and_then(Path::parent) {
            Some(bin) if wanted.remove && wanted.prefix.is_none() => bin.to_owned(),
            _ => place::resolve(wanted.prefix(own.as_deref())).join("bin"),
        };
        let shims: Vec<_> = configured.into_iter().chain([bin.join(PROGRAM)]).collect();
        if wanted.remove && !wanted.force {
            refuse_while_needed(&shims)?;
        }
        let binaries = wanted.binaries.clone().or(own).unwrap_or_default();
        let found = match wanted.remove {
            true => found,
            false => {
                let missing = missing_directories(&found, &bin);
                found.with_directories(missing)
            }
        };
        let goal = match wanted.remove {
            true => Goal::Removed,
            false if wanted.pauseless => Goal::Installed(Registration::pauseless(&node)?),
            false => Goal::Installed(Registration::best_for(&node, &bin.join(PROGRAM))),
        };
        let planned = {
            let scratch = scratch()?;
            let ask = &mut |found: &Found, texts: &Texts| ask(&containerd, &scratch, found, texts);
            found.plan(&goal, ask)?
        };
        Ok(Installer {
            wanted,
            node,
            containerd,
            bin,
            shims,
            binaries,
            found,
            planned,
        })
    }

    fn install(&self) -> anyhow::Result<()> {
        let outdated = programs::outdated(&self.binaries, &self.bin)?;
        self.check_systemd()?;
        self.try_configuration()?;
        for program in programs::install(&outdated, &self.binaries, &self.bin)? {
            note(&format!("installed: {}", program.display()));
        }
        self.configure()?;
        if self.wanted.stop_unit {
            units::install(&units::outdated(&self.wanted.units, &self.bin))?;
            note(
                "usher-stop.service stops the pods of this node when it shuts down; change its time limit \
                 with systemctl edit usher-stop.service",
            );
        }
        // Only a restart of containerd adds the runtime to a generated configuration. Before the
        // restart, the checks would not find the runtime.
        let is_generated_later = self.is_changed() || self.found.awaits_generation();
        if self.found.source.is_none() || self.wanted.restart || !is_generated_later {
            self.check()?;
        }
        let older = programs::running_shims(&[self.bin.join(PROGRAM)]).outdated;
        if !older.is_empty() {
            note(&note_on_old_shims(&older));
        }
        Ok(())
    }

    fn remove(&self) -> anyhow::Result<()> {
        self.check_systemd()?;
        self.try_configuration()?;
        let has_pods = programs::running_shims(&self.shims).all > 0;
        units::remove(&self.wanted.units, has_pods)?;
        self.configure()?;
        let shim = self.bin.join(PROGRAM);
        let shims = programs::running_shims(std::slice::from_ref(&shim)).all;
        // The shim stays while pods run under it. Without the shim, containerd would drop these
        // pods, but their processes would go on running.
        let is_needed = |program: &Path| shims > 0 && program == shim;
        if shims > 0 {
            let prefix = self.bin.parent().unwrap_or(Path::new("/")).display();
            note(&format!(
                "{} stays while pods run under it (shims: {shims}); run usher install --remove --prefix \
                 {prefix} once they have ended",
                shim.display()
            ));
        }
        let programs = programs::remove(&self.bin, is_needed)?;
        for program in &programs.of_packages {
            let program = program.display();
            note(&format!("{program} stays, since it belongs to a package"));
        }
        let directories = place::remove_empty(self.found.made_directories());
        for removed in programs.removed.iter().chain(&directories) {
            note(&format!("removed: {}", removed.display()));
        }
        Ok(())
    }

    /// Fails if an option needs systemd and systemd does not run. Called before the first change.
    fn check_systemd(&self) -> anyhow::Result<()> {
        let is_changed = self.is_changed() || self.needs_restart();
        let (option, instead) = match () {
            () if self.wanted.restart && is_changed => (
                "--restart",
                "leave the option out, and restart containerd the way you usually start it",
            ),
            () if self.wanted.stop_unit => ("--stop-unit", "leave the option out"),
            () => return Ok(()),
        };
        match has_systemd() {
            true => Ok(()),
            false => bail!("{option} needs systemd, which does not run on this machine: {instead}"),
        }
    }

    /// The file that exists while a restart of containerd is due.
    fn restart_marker(&self) -> PathBuf {
        place::beside(&self.found.config, "restart")
    }

    /// True if the running containerd has not loaded the present configuration. It then needs a
    /// restart even if this command changes nothing.
    fn needs_restart(&self) -> bool {
        self.restart_marker().exists()
            || self.node.unloaded().is_some()
            || !self.wanted.remove && self.found.awaits_generation()
    }

    fn is_changed(&self) -> bool {
        self.planned.texts != self.found.texts
    }

    fn changed(&self, file: &Path, text: Option<&str>) -> String {
        let file = file.display();
        match text {
            None => format!("removed: {file}"),
            Some(text) if !self.wanted.remove && ours::names_runtime(text) => {
                format!("configured: {file}")
            }
            Some(_) => format!("removed the runtime from {file}"),
        }
    }

    /// Writes the planned configuration, and with `--restart` restarts containerd. If containerd
    /// then does not start, although it did in the trial, restores the old configuration.
    fn configure(&self) -> anyhow::Result<()> {
        let restart_marker = self.restart_marker();
        if !self.is_changed() {
            let source = self.found.source.as_ref().map(|source| &source.file);
            let file = source.unwrap_or(&self.found.config);
            note(&format!("{} needs no change", file.display()));
            if !self.wanted.restart || !self.needs_restart() {
                return Ok(());
            }
            return match restart(self.node.flavor.unit(), &restart_marker) {
                true => Ok(()),
                false => bail!("containerd did not start again"),
            };
        }
        if self.wanted.restart {
            place::put(&restart_marker, Some(""))?;
        }
        let (old, new) = (&self.found.texts, &self.planned.texts);
        self.put(old, new)?;
        for (file, _, text) in self.found.changes(old, new) {
            note(&self.changed(file, text));
        }
        if !self.wanted.remove && !self.wanted.pauseless && !self.node.is_1() {
            note(
                "the runtime has runc's type and usher's path, so that kubelet allows user namespaces \
                 and recursive read-only mounts",
            );
        }
        if !self.wanted.restart {
            return Ok(());
        }
        if restart(self.node.flavor.unit(), &restart_marker) {
            return Ok(());
        }
        self.put(new, old)?;
        restart(self.node.flavor.unit(), &restart_marker);
        bail!("containerd did not start again; its old configuration is restored")
    }

    /// Fails if containerd does not start with the planned configuration.
    fn try_configuration(&self) -> anyhow::Result<()> {
        if self.planned.tried == self.found.texts {
            return Ok(());
        }
        let scratch = scratch()?;
        let started = find_ctr(&self.containerd, &self.node).and_then(|ctr| {
            let programs = Programs {
                containerd: &self.containerd,
                ctr: &ctr,
            };
            let effective = ask(&self.containerd, &scratch, &self.found, &self.planned.tried)?;
            trial::starts(&programs, effective.text(), &scratch)
        });
        started.map_err(|error| {
            let with = match self.wanted.remove {
                true => format!("with {NAME} removed from"),
                false => "with".to_owned(),
            };
            let (config, error) = (self.found.config.display(), sentence(&error));
            anyhow!(
                "containerd or its CRI plugin does not start {with} {config}: {error}; nothing was changed"
            )
        })
    }

    fn put(&self, old: &Texts, new: &Texts) -> anyhow::Result<()> {
        let mut changes = self.found.changes(old, new);
        changes.try_for_each(|(file, _, text)| place::put(file, text))
    }

    /// Prints the changes that the command would make without `--dry-run`.
    fn show(&self, stdout: &mut Stdout) -> Result<(), Failure> {
        let (old, new) = (&self.found.texts, &self.planned.texts);
        for (file, old, new) in self.found.changes(old, new) {
            stdout.text(difference(file, old, new))?;
        }
        if self.wanted.restart && (new != old || self.needs_restart()) {
            stdout.text("would restart containerd\n")?;
        }
        let mut says =
            |what: &str, file: &Path| stdout.text(format!("{what} {}\n", file.display()));
        if self.wanted.remove {
            let programs = programs::PROGRAMS.map(|program| self.bin.join(program));
            let there = programs
                .into_iter()
                .filter(|program| program.exists() && !programs::is_of_package(program));
            for file in there.chain(units::installed(&self.wanted.units)) {
                says("would remove:", &file)?;
            }
            return Ok(());
        }
        let outdated = programs::outdated(&self.binaries, &self.bin)?;
        for program in outdated {
            says("would install:", &self.bin.join(program))?;
        }
        if self.wanted.stop_unit {
            for (file, _) in units::outdated(&self.wanted.units, &self.bin) {
                says("would install:", &file)?;
            }
        }
        Ok(())
    }
}

/// The note about pods whose shims still run the old program.
fn note_on_old_shims(shims: &[u32]) -> String {
    const SHOWN: usize = 8;
    let count = shims.len();
    let mut shown: Vec<_> = shims.iter().take(SHOWN).map(u32::to_string).collect();
    if let more @ 1.. = count.saturating_sub(SHOWN) {
        shown.push(format!("and {more} more"));
    }
    let shown = shown.join(", ");
    format!(
        "pods that keep their old shim until they end: {count} (shim processes: {shown}); usher ps -o wide \
         shows each one's version"
    )
}

/// The directories that the installation has to create for its programs and configuration files.
fn missing_directories(found: &Found, bin: &Path) -> Vec<PathBuf> {
    let source = found.source.as_ref().map(|source| &source.file);
    let files = [Some(&found.config), found.part_file.as_ref(), source];
    let directories = files.into_iter().flatten().filter_map(|file| file.parent());
    let missing = directories
        .chain([bin])
        .flat_map(place::missing_directories);
    let mut all = Vec::new();
    for directory in missing {
        if !all.contains(&directory) {
            all.push(directory);
        }
    }
    all
}

fn difference(file: &Path, old: Option<&str>, new: Option<&str>) -> String {
    let name =
        |text: Option<&str>| text.map_or("/dev/null".to_owned(), |_| file.display().to_string());
    let diff = TextDiff::from_lines(old.unwrap_or_default(), new.unwrap_or_default());
    let mut unified = diff.unified_diff();
    unified.header(&name(old), &name(new)).to_string()
}

/// The path of the shim that containerd runs for the installer's runtime.
fn configured_shim(found: &Found, node: &Node) -> Option<PathBuf> {
    let shim = found
        .has_ours()
        .then(|| found.shim().or_else(|| node.shim(PROGRAM)));
    shim.flatten().map(|shim| place::resolve(&shim))
}

fn refuse_while_needed(shims: &[PathBuf]) -> anyhow::Result<()> {
    match programs::running_shims(shims).all {
        0 => Ok(()),
        shims => bail!(
            "pods run under {NAME} (shims: {shims}) and need it to end; drain the node, or use --force"
        ),
    }
}

/// Finds the program ctr, with which the trial asks containerd whether its plugins run.
fn find_ctr(containerd: &Path, node: &Node) -> anyhow::Result<PathBuf> {
    let beside = containerd.with_file_name("ctr");
    let ctr = find("", &beside.to_string_lossy()).or_else(|| find(&node.path, "ctr"));
    ctr.ok_or_else(|| {
        let (beside, path) = (beside.display(), node.whose_path());
        anyhow!(
            "ctr, which tells whether containerd has started, is neither {beside} nor on {path}"
        )
    })
}

/// Restarts containerd, then removes the marker file. If this command dies before the restart, the
/// marker stays, and the next `usher install --restart` restarts containerd.
fn restart(unit: &str, marker: &Path) -> bool {
    note("restarting containerd; pods keep running");
    systemctl(&["restart", unit]) && place::remove(marker).is_ok()
}
