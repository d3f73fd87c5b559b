//! Installs and removes usher's programs, and counts the running shims.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::containerd::{NAME, PROGRAM, is_program, output};
use super::super::output::sentence;
use super::place;
use anyhow::{Context, bail};

/// The installed programs.
pub(super) const PROGRAMS: [&str; 2] = [PROGRAM, NAME];

/// The programs in `bin` that are missing or differ from those in `from`.
///
/// # Errors
///
/// If `from` lacks a program.
pub(super) fn outdated(from: &Path, bin: &Path) -> anyhow::Result<Vec<&'static str>> {
    for program in PROGRAMS {
        // The file need not be executable in `from`: /run is often mounted noexec.
        if !from.join(program).is_file() {
            bail!(
                "{} has no {program}; name the directory with the programs (--binaries)",
                from.display()
            );
        }
    }
    let is_outdated = |program: &&str| {
        let place = bin.join(program);
        !is_program(&place) || !have_equal_bytes(&from.join(program), &place)
    };
    Ok(PROGRAMS.into_iter().filter(is_outdated).collect())
}

fn have_equal_bytes(one: &Path, other: &Path) -> bool {
    let length = |file: &Path| fs::metadata(file).ok().map(|file| file.len());
    let bytes = |file: &Path| fs::read(file).ok();
    length(one) == length(other) && bytes(one).is_some_and(|one| Some(one) == bytes(other))
}

/// Installs programs and returns their paths. Replaces each by a rename, since a shim may start at
/// any time.
///
/// # Errors
///
/// If a program cannot be written, or does not run on this node, for instance because
/// of an older C library or another processor.
pub(super) fn install(programs: &[&str], from: &Path, bin: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut news = Vec::new();
    let directories = place::missing_directories(bin);
    let copied = programs.iter().try_for_each(|program| {
        let (source, place) = (from.join(program), bin.join(program));
        news.push(place.clone());
        let new = place::copy_program(&source, &place)
            .with_context(|| format!("cannot write {}", place.display()))?;
        let said = output(Command::new(new).arg("--version"));
        said.map(drop)
            .with_context(|| format!("{} does not run on this node", source.display()))
    });
    let placed = copied.and_then(|()| {
        news.iter().try_for_each(|place| {
            fs::rename(place::beside(place, "new"), place)
                .with_context(|| format!("cannot replace {}", place.display()))
        })
    });
    match placed {
        Ok(()) => Ok(news),
        Err(error) => {
            for place in news {
                let _ = fs::remove_file(place::beside(&place, "new"));
            }
            place::remove_empty(directories);
            bail!("{}; nothing was changed", sentence(&error))
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Removal {
    pub removed: Vec<PathBuf>,
    /// Programs that stay, since they belong to a package.
    pub of_packages: Vec<PathBuf>,
}

/// Removes the programs. A program stays if `is_needed` says so, or if it belongs to a package.
pub(super) fn remove(bin: &Path, is_needed: impl Fn(&Path) -> bool) -> anyhow::Result<Removal> {
    let files = PROGRAMS.map(|program| bin.join(program));
    let there = files
        .into_iter()
        .filter(|file| file.symlink_metadata().is_ok());
    let files = there.filter(|file| !is_needed(file));
    let (of_packages, removed): (Vec<_>, Vec<_>) = files.partition(|file| is_of_package(file));
    for file in &removed {
        place::remove(file).with_context(|| format!("cannot remove {}", file.display()))?;
    }
    Ok(Removal {
        removed,
        of_packages,
    })
}

/// True if a Debian package owns the file. The file is then removed together with the package.
pub(super) fn is_of_package(file: &Path) -> bool {
    let mut asking = Command::new("dpkg-query");
    asking.arg("--search").arg(file);
    asking.stdin(Stdio::null()).stdout(Stdio::null());
    let asked = asking.stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// The number of running shims, and the outdated ones among them.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Shims {
    pub all: usize,
    /// The process ids of shims whose program file was replaced or removed after their start.
    pub outdated: Vec<u32>,
}

/// Counts the shims that run the programs at these paths. A shim whose program file was replaced
/// goes on running the old program, but needs the new file to clean up after its pod.
pub(super) fn running_shims(paths: &[PathBuf]) -> Shims {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let programs = processes.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        Some((pid, fs::read_link(process.path().join("exe")).ok()?))
    });
    count(programs, paths)
}

fn count(programs: impl Iterator<Item = (u32, PathBuf)>, paths: &[PathBuf]) -> Shims {
    let mut shims = Shims::default();
    for (pid, program) in programs {
        let program = program.to_string_lossy();
        let (path, is_older) = match program.strip_suffix(" (deleted)") {
            Some(path) => (path, true),
            None => (&*program, false),
        };
        if paths.iter().any(|shim| shim == Path::new(path)) {
            shims.all = shims.all.saturating_add(1);
            shims.outdated.extend(is_older.then_some(pid));
        }
    }
    shims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shims_of_a_replaced_program_are_counted_apart() {
        let programs = ["/a/shim", "/a/shim (deleted)", "/b/shim (deleted)", "/a/x"];
        let programs = (1..).zip(programs.iter().map(PathBuf::from));
        let shims = count(programs, &["/a/shim".into()]);
        let expected = Shims {
            all: 2,
            outdated: vec![2],
        };
        assert_eq!(shims, expected);
    }
}
