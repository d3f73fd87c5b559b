//! `usher install`: takes usher into this node, or out of it.
//!
//! What is to be changed is decided first, from texts ([`plan`]); then it is tried, and only then put into
//! place.

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

use clap::Args;
use similar::TextDiff;

use super::containerd::{KnownAs, NAME, Node, PROGRAM, Wanted, find};
use super::output::{Failure, Stdout, note};
use super::systemd::{has_systemd, systemctl};
use plan::{Found, Planned, Texts, Wish};
use source::SourceText;
use stage::{ask, find_texts, scratch};
use trial::Programs;

pub(super) use ours::has_written;

/// Installs usher to this node: its programs, and the runtime in containerd's configuration
///
/// Twice is the same as once, and `--remove` takes both away again. The runtime goes into a file of its own
/// where containerd 2 imports a directory, else between two comments at the end of containerd's
/// configuration; not a byte of the rest is touched. A new configuration is put into place only if
/// containerd takes it for the old one and this runtime, nothing else, and has started with it, on
/// directories and sockets of its own. In the end `usher check` looks at all of it.
///
/// containerd 2 is told of the shim as the program of a runtime of runc's type (`runtime_path`): so kubelet
/// hears that pods may have user namespaces and recursive read-only mounts. containerd 1 knows it by its
/// own name.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(after_help = "\
Examples:
  usher install --dry-run    what would be changed, as a diff
  usher install --restart    installs, and restarts containerd where its configuration changes
  usher install --pauseless --restart
                             the same, and its pods have no pause container
  usher install --remove     the node is as it was before

Exit status: 0 if usher is installed and its pods would run, or is taken away; 3 if that is so once the
containerd that runs is restarted, which is left to you without --restart; 1 otherwise.")]
pub(super) struct Install {
    /// Takes usher away again, unless pods still run under it
    #[arg(long, visible_alias = "uninstall")]
    remove: bool,
    /// Takes it away although pods still run under it
    #[arg(long, requires = "remove")]
    force: bool,
    /// Prints what would be changed, as a diff; changes nothing
    #[arg(long)]
    dry_run: bool,
    /// Restarts containerd through systemd when its configuration has changed; pods go on
    #[arg(long)]
    restart: bool,
    /// Installs and enables usher-stop.service too, by which systemd stops the pods in their order when
    /// the node goes down; once there it goes with --remove
    #[arg(long)]
    stop_unit: bool,
    /// Has the shim make the sandboxes of its pods, without a pause container; experimental, and needs
    /// containerd 2.3 or later
    #[arg(long, conflicts_with = "remove")]
    pauseless: bool,
    /// Where the programs are [default: where this one is]
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
    /// The programs go to DIR/bin [default: /usr where this one is in /usr/bin, as a package puts it there,
    /// else /usr/local]
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
    /// The owner of containerd, which tells where its configuration, programs and unit are. None but
    /// containerd itself has been tried for real
    #[arg(long, value_enum, default_value = "auto")]
    flavor: Wanted,
    /// containerd's configuration file [default: that of the running containerd, else
    /// /etc/containerd/config.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The containerd program, its ctr beside it [default: the running one, else the one on the PATH]
    #[arg(long, value_name = "PATH")]
    containerd: Option<PathBuf>,
    /// Where containerd looks for programs [default: the running one's PATH, else this command's]
    #[arg(long, value_name = "DIR:DIR…")]
    path: Option<String>,
    /// Where systemd looks for units of the administrator's
    #[arg(long, value_name = "DIR", default_value = "/etc/systemd/system")]
    units: PathBuf,
}

/// A node, and what is to be changed on it.
struct Installer {
    wanted: Install,
    node: Node,
    containerd: PathBuf,
    bin: PathBuf,
    binaries: PathBuf,
    found: Found,
    planned: Planned,
}

// === impl Install ===

impl Install {
    pub(super) fn run(self, stdout: &mut Stdout) -> Result<ExitCode, Failure> {
        if !self.dry_run && !nix::unistd::geteuid().is_root() {
            return Err(Failure::because(
                "containerd's configuration is root's: run this as root",
            ));
        }
        let (is_removed, is_dry) = (self.remove, self.dry_run);
        let installer = Installer::look(self).map_err(Failure::Because)?;
        match (is_dry, is_removed) {
            (true, _) => {
                installer.show(stdout)?;
                return Ok(ExitCode::SUCCESS);
            }
            (false, true) => installer.remove().map_err(Failure::Because)?,
            (false, false) => installer.install().map_err(Failure::Because)?,
        }
        Ok(installer.conclude())
    }

    /// Where the programs go; `own` is the directory of this one.
    fn prefix(&self, own: Option<&Path>) -> &Path {
        self.prefix.as_deref().unwrap_or(usual_prefix(own))
    }
}

/// The directory of this program.
pub(super) fn own_directory() -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    Some(own.parent()?.to_owned())
}

/// The prefix where none is named; `own` is the directory of this program.
pub(super) fn usual_prefix(own: Option<&Path>) -> &'static Path {
    let of_packages = own == Some(Path::new("/usr/bin"));
    Path::new(if of_packages { "/usr" } else { "/usr/local" })
}

// === impl Installer ===

impl Installer {
    /// Looks at the node, and plans.
    fn look(wanted: Install) -> Result<Installer, String> {
        let node = Node::look(
            wanted.containerd.clone(),
            wanted.config.clone(),
            wanted.path.clone(),
            wanted.flavor.0,
        );
        let containerd = node.program.clone()?;
        let own = own_directory();
        let bin = place::resolve(wanted.prefix(own.as_deref())).join("bin");
        if wanted.remove && !wanted.force {
            refuse_while_needed(&bin.join(PROGRAM))?;
        }
        let binaries = wanted.binaries.clone().or(own).unwrap_or_default();
        // A link is followed: the file that it leads to is the one to change.
        let found = find_texts(place::resolve(&node.config), &containerd)?;
        // Where a directory is imported a file of our own is in it, whoever makes the rest.
        let source = node.flavor.source(&node.config, found.layout());
        let found = match source.filter(|_| found.part_file.is_none()) {
            Some(source) => {
                let text = place::read(&source.file)?;
                found.with_source(SourceText::new(source, text)?)
            }
            None => found,
        };
        let found = match wanted.remove {
            true => found,
            false => {
                let missing = missing_directories(&found, &bin);
                found.with_directories(missing)
            }
        };
        let wish = match wanted.remove {
            true => Wish::Removed,
            false if wanted.pauseless => Wish::Installed(KnownAs::pauseless(&node)?),
            false => Wish::Installed(KnownAs::to(&node, &bin.join(PROGRAM))),
        };
        let planned = {
            let scratch = scratch()?;
            let ask = &mut |found: &Found, texts: &Texts| ask(&containerd, &scratch, found, texts);
            found.plan(&wish, ask)?
        };
        Ok(Installer {
            wanted,
            node,
            containerd,
            bin,
            binaries,
            found,
            planned,
        })
    }

    /// Puts all into place.
    fn install(&self) -> Result<(), String> {
        let outdated = programs::outdated(&self.binaries, &self.bin)?;
        self.need_systemd()?;
        self.try_it()?;
        for program in programs::install(&outdated, &self.binaries, &self.bin)? {
            note(&format!("{} is in place", program.display()));
        }
        self.configure()?;
        if self.wanted.stop_unit {
            units::install(&units::outdated(&self.wanted.units, &self.bin))?;
            note(
                "usher-stop.service stops the pods of this node when it goes down; systemctl edit \
                 usher-stop.service changes how long that may take",
            );
        }
        // What is made of a source has us after the restart.
        let is_made_later = self.is_changed() || self.found.is_to_be_made_anew();
        if self.found.source.is_none() || self.wanted.restart || !is_made_later {
            self.check()?;
        }
        let older = programs::running_shims(&self.bin.join(PROGRAM)).of_older;
        if !older.is_empty() {
            note(&keep_the_older(&older));
        }
        Ok(())
    }

    fn remove(&self) -> Result<(), String> {
        self.need_systemd()?;
        self.try_it()?;
        let shim = self.bin.join(PROGRAM);
        let shims = programs::running_shims(&shim).all;
        units::remove(&self.wanted.units, shims > 0)?;
        self.configure()?;
        // A containerd that does not find it drops the pods, whose processes run on.
        let is_needed = |program: &Path| shims > 0 && program == shim;
        if shims > 0 {
            note(&format!(
                "{} stays as long as pods run under it (shims: {shims}); the next --remove takes it away",
                shim.display()
            ));
        }
        let programs = programs::remove(&self.bin, is_needed)?;
        for program in &programs.of_packages {
            let program = program.display();
            note(&format!("{program} stays: it belongs to a package"));
        }
        let directories = place::remove_empty(self.found.made_directories());
        for removed in programs.removed.iter().chain(&directories) {
            note(&format!("removed: {}", removed.display()));
        }
        Ok(())
    }

    /// Where systemd is needed, is there one? Asked before anything is changed.
    fn need_systemd(&self) -> Result<(), String> {
        let is_changed = self.is_changed() || self.is_to_be_restarted();
        let (option, instead) = match () {
            () if self.wanted.restart && is_changed => (
                "--restart",
                "leave it out, and restart containerd the way you usually start it",
            ),
            () if self.wanted.stop_unit => ("--stop-unit", "leave it out"),
            () => return Ok(()),
        };
        match has_systemd() {
            true => Ok(()),
            false => Err(format!(
                "{option} needs systemd, and this machine does not run it: {instead}"
            )),
        }
    }

    /// The file that says that containerd is to be restarted.
    fn restart_wanted(&self) -> PathBuf {
        place::beside(&self.found.config, "restart")
    }

    /// True if the running containerd has to be restarted though its configuration file stays as it is.
    fn is_to_be_restarted(&self) -> bool {
        self.restart_wanted().exists()
            || self.node.unloaded().is_some()
            || !self.wanted.remove && self.found.is_to_be_made_anew()
    }

    fn is_changed(&self) -> bool {
        self.planned.texts != self.found.texts
    }

    /// The file that is changed, or would be, and its text then.
    fn file(&self) -> (&Path, Option<&str>) {
        let (old, new) = (&self.found.texts, &self.planned.texts);
        let (file, text) = match (&self.found.source, &self.found.part_file) {
            (Some(source), _) => (&source.file, &new.source),
            (None, Some(part)) if new.part != old.part => (part, &new.part),
            (None, _) => (&self.found.config, &new.main),
        };
        (file, text.as_deref())
    }

    /// The sentence about the file that was changed.
    fn changed(&self) -> String {
        let (file, text) = self.file();
        let file = file.display();
        match (self.wanted.remove, text) {
            (false, _) => format!("configured: {file}"),
            (true, Some(_)) => format!("the runtime is taken out of {file}"),
            (true, None) => format!("removed: {file}"),
        }
    }

    /// Puts the planned configuration into place. If containerd does not come back with it, although it
    /// started when tried, the old one comes back.
    fn configure(&self) -> Result<(), String> {
        let restart_wanted = self.restart_wanted();
        if !self.is_changed() {
            note(&format!("{} needs no change", self.file().0.display()));
            if !self.wanted.restart || !self.is_to_be_restarted() {
                return Ok(());
            }
            return match restart(self.node.flavor.unit(), &restart_wanted) {
                true => Ok(()),
                false => Err("containerd did not start again".to_owned()),
            };
        }
        if self.wanted.restart {
            place::put(&restart_wanted, Some(""))?;
        }
        self.put(&self.planned.texts)?;
        note(&self.changed());
        if !self.wanted.remove && !self.wanted.pauseless && !self.node.is_1() {
            note(
                "containerd knows it as a program of runc's type, so that kubelet hears of user namespaces \
                 and recursive read-only mounts",
            );
        }
        if !self.wanted.restart {
            return Ok(());
        }
        if restart(self.node.flavor.unit(), &restart_wanted) {
            return Ok(());
        }
        self.put(&self.found.texts)?;
        restart(self.node.flavor.unit(), &restart_wanted);
        Err("containerd did not start again; it has got back its old configuration".to_owned())
    }

    /// Does containerd start with what is planned?
    fn try_it(&self) -> Result<(), String> {
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
                true => format!("with {NAME} taken out of"),
                false => "with".to_owned(),
            };
            format!(
                "containerd, or its CRI plugin, does not start {with} {}: {error}; nothing was changed",
                self.found.config.display()
            )
        })
    }

    fn put(&self, texts: &Texts) -> Result<(), String> {
        if let Some(source) = &self.found.source {
            return place::put(&source.file, texts.source.as_deref());
        }
        if let Some(file) = &self.found.part_file {
            place::put(file, texts.part.as_deref())?;
        }
        place::put(&self.found.config, texts.main.as_deref())
    }

    /// Prints what would be changed.
    fn show(&self, stdout: &mut Stdout) -> Result<(), Failure> {
        let (old, new) = (&self.found.texts, &self.planned.texts);
        if let Some(SourceText { file, .. }) = &self.found.source {
            let difference = difference(file, old.source.as_deref(), new.source.as_deref());
            stdout.text(difference)?;
        }
        if let Some(part) = &self.found.part_file {
            stdout.text(difference(part, old.part.as_deref(), new.part.as_deref()))?;
        }
        let config = &self.found.config;
        stdout.text(difference(config, old.main.as_deref(), new.main.as_deref()))?;
        if self.wanted.restart && (new != old || self.is_to_be_restarted()) {
            stdout.text("containerd would be restarted\n")?;
        }
        let mut says =
            |what: &str, file: &Path| stdout.text(format!("{what} {}\n", file.display()));
        if self.wanted.remove {
            let programs = programs::PROGRAMS.map(|program| self.bin.join(program));
            let there = programs
                .into_iter()
                .filter(|program| program.exists() && !programs::is_of_package(program));
            for file in there.chain(units::installed(&self.wanted.units)) {
                says("would be removed:", &file)?;
            }
            return Ok(());
        }
        let outdated = programs::outdated(&self.binaries, &self.bin).map_err(Failure::Because)?;
        for program in outdated {
            says("would be put into place:", &self.bin.join(program))?;
        }
        if self.wanted.stop_unit {
            for (file, _) in units::outdated(&self.wanted.units, &self.bin) {
                says("would be put into place:", &file)?;
            }
        }
        Ok(())
    }
}

/// The sentence about pods whose shims are of the version before.
fn keep_the_older(shims: &[u32]) -> String {
    const SHOWN: usize = 8;
    let count = shims.len();
    let mut shown: Vec<_> = shims.iter().take(SHOWN).map(u32::to_string).collect();
    if let more @ 1.. = count.saturating_sub(SHOWN) {
        shown.push(format!("and {more} more"));
    }
    let shown = shown.join(", ");
    format!(
        "pods that keep the shim of before until they end: {count} (processes {shown}); usher ps -o wide \
         shows the version of each"
    )
}

/// The directories that have to be made for the programs and for any of the files.
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

/// As patch(1) reads it.
fn difference(file: &Path, old: Option<&str>, new: Option<&str>) -> String {
    let name =
        |text: Option<&str>| text.map_or("/dev/null".to_owned(), |_| file.display().to_string());
    let diff = TextDiff::from_lines(old.unwrap_or_default(), new.unwrap_or_default());
    let mut unified = diff.unified_diff();
    unified.header(&name(old), &name(new)).to_string()
}

fn refuse_while_needed(shim: &Path) -> Result<(), String> {
    match programs::running_shims(shim).all {
        0 => Ok(()),
        shims => Err(format!(
            "pods run under {NAME} (shims: {shims}) and need it to end; drain the node, or say --force"
        )),
    }
}

/// The program that tells whether containerd has started.
fn find_ctr(containerd: &Path, node: &Node) -> Result<PathBuf, String> {
    let beside = containerd.with_file_name("ctr");
    let ctr = find("", &beside.to_string_lossy()).or_else(|| find(&node.path, "ctr"));
    ctr.ok_or_else(|| {
        let (beside, path) = (beside.display(), node.whose_path());
        format!("{beside} is not there, which tells whether containerd has started, nor is ctr on {path}")
    })
}

/// Until containerd has been restarted a file says that it is to be: whoever ends this command may not end
/// it between the two.
fn restart(unit: &str, wanted: &Path) -> bool {
    note("restarting containerd; pods go on running");
    systemctl(&["restart", unit]) && place::remove(wanted).is_ok()
}
