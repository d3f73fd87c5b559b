//! The programs of usher, and the shims that run.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::super::containerd::{NAME, PROGRAM, is_program, output};
use super::place;

/// What is put into the prefix' `bin`.
pub(super) const PROGRAMS: [&str; 2] = [PROGRAM, NAME];

/// Those that are not there as they are to be.
///
/// # Errors
///
/// One sentence, if one is missing where they are to come from.
pub(super) fn outdated(from: &Path, bin: &Path) -> Result<Vec<&'static str>, String> {
    for program in PROGRAMS {
        // Not whether it could be executed there: it need not, and in /run it often cannot.
        if !from.join(program).is_file() {
            return Err(format!(
                "{} has no {program}; expected the programs there (--binaries)",
                from.display()
            ));
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

/// Puts programs into place, all or none, each in one step: a shim may be started at any time. Says which.
///
/// # Errors
///
/// One sentence, if one cannot be put there or does not run on this node, which may have an older C library,
/// or another processor, than what they were built for.
pub(super) fn install(programs: &[&str], from: &Path, bin: &Path) -> Result<Vec<PathBuf>, String> {
    let mut news = Vec::new();
    let directories = place::missing_directories(bin);
    let copied = programs.iter().try_for_each(|program| {
        let (source, place) = (from.join(program), bin.join(program));
        news.push(place.clone());
        let new = place::copy_program(&source, &place)
            .map_err(|error| format!("{} cannot be written: {error}", place.display()))?;
        let said = output(Command::new(new).arg("--version"));
        said.map(drop)
            .map_err(|error| format!("{} does not run on this node: {error}", source.display()))
    });
    let placed = copied.and_then(|()| {
        news.iter().try_for_each(|place| {
            fs::rename(place::beside(place, "new"), place)
                .map_err(|error| format!("{} cannot be replaced: {error}", place.display()))
        })
    });
    match placed {
        Ok(()) => Ok(news),
        Err(error) => {
            for place in news {
                let _ = fs::remove_file(place::beside(&place, "new"));
            }
            place::remove_empty(directories);
            Err(format!("{error}; nothing was changed"))
        }
    }
}

/// Programs that were there when usher was taken away.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub removed: Vec<PathBuf>,
    /// Programs that stay, since they belong to a package.
    pub of_packages: Vec<PathBuf>,
}

/// Removes all programs but those that are needed and those that belong to a package.
pub(super) fn remove(bin: &Path, is_needed: impl Fn(&Path) -> bool) -> Result<Taken, String> {
    let files = PROGRAMS.map(|program| bin.join(program));
    let there = files
        .into_iter()
        .filter(|file| file.symlink_metadata().is_ok());
    let files = there.filter(|file| !is_needed(file));
    let (of_packages, removed): (Vec<_>, Vec<_>) = files.partition(|file| is_of_package(file));
    for file in &removed {
        place::remove(file)
            .map_err(|error| format!("{} cannot be removed: {error}", file.display()))?;
    }
    Ok(Taken {
        removed,
        of_packages,
    })
}

/// Has a Debian package brought this file, which takes it away when it goes?
pub(super) fn is_of_package(file: &Path) -> bool {
    let mut asking = Command::new("dpkg-query");
    asking.arg("--search").arg(file);
    asking.stdin(Stdio::null()).stdout(Stdio::null());
    let asked = asking.stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}

/// The shims that run a program.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Shims {
    pub all: usize,
    /// The processes whose program has been replaced, or removed, since they started.
    pub of_older: Vec<u32>,
}

/// Counts the shims that run this program. They keep it when it is replaced, but need it to clear away after
/// their pods.
pub(super) fn running_shims(shim: &Path) -> Shims {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let programs = processes.filter_map(|process| {
        let pid = process.file_name().to_str()?.parse().ok()?;
        Some((pid, fs::read_link(process.path().join("exe")).ok()?))
    });
    count(programs, shim)
}

fn count(programs: impl Iterator<Item = (u32, PathBuf)>, shim: &Path) -> Shims {
    let mut shims = Shims::default();
    for (pid, program) in programs {
        let program = program.to_string_lossy();
        let (path, is_older) = match program.strip_suffix(" (deleted)") {
            Some(path) => (path, true),
            None => (&*program, false),
        };
        if Path::new(path) == shim {
            shims.all = shims.all.saturating_add(1);
            shims.of_older.extend(is_older.then_some(pid));
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
        let shims = count(programs, Path::new("/a/shim"));
        let expected = Shims {
            all: 2,
            of_older: vec![2],
        };
        assert_eq!(shims, expected);
    }
}
