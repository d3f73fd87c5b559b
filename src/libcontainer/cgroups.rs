//! The cgroups of a container: those that libcontainer leaves to us, and what is to be done before it removes its own.
//!
//! On cgroup v1 it manages the hierarchies of controllers. runc's containers have a cgroup in the others as well:
//! that of systemd, and on machines with both versions that of v2.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::libc;

use crate::error::Failure;
use crate::sys;

/// The slice of who names none, as with runc.
const DEFAULT_SLICE: &str = "system.slice";

/// Where cgroups are.
const ROOT: &str = "/sys/fs/cgroup";

/// Hierarchies of cgroup v1, or beside it, without a controller: where they are, and what stands before a path in them.
const WITHOUT_CONTROLLERS: [(&str, &str); 2] = [("systemd", ":name=systemd:"), ("unified", "0::")];

/// What is in a cgroup, and what this process is in.
const MEMBERS: &str = "cgroup.procs";
const MEMBERSHIPS: &str = "/proc/self/cgroup";

/// Whether a cgroup of v1 is frozen, and how it says that it is not.
const FREEZER: &str = "freezer.state";
const THAWED: &str = "THAWED";

/// Which controllers the cgroups below one have.
const CONTROLLERS: &str = "cgroup.subtree_control";

/// How long what has died may hold a cgroup.
const GONE_WITHIN: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Puts this process, and those that it makes, into the container's cgroups in the hierarchies that libcontainer leaves
/// alone: which it has joined, and whether that are all.
pub fn join(path: &Path) -> (Joined, Result<(), Failure>) {
    let mut joined = Joined::default();
    let outcome = joined.join(path);
    (joined, outcome)
}

/// Cgroups that this process has joined: each, and that of before.
#[derive(Debug, Default)]
pub struct Joined(Vec<(PathBuf, PathBuf)>);

impl Joined {
    fn join(&mut self, path: &Path) -> Result<(), Failure> {
        if is_unified() {
            return Ok(());
        }
        let memberships = fs::read_to_string(MEMBERSHIPS).unwrap_or_default();
        for (name, key) in WITHOUT_CONTROLLERS {
            let hierarchy = Path::new(ROOT).join(name);
            if hierarchy.join(MEMBERS).exists() {
                let own = hierarchy.join(relative(path));
                let before = hierarchy.join(membership(&memberships, key));
                self.0.push((own.clone(), before));
                fs::create_dir_all(&own).map_err(|source| Failure::io(&own, source))?;
                enter(&own)?;
            }
        }
        Ok(())
    }

    /// Leaves and removes them, when nothing has come of the container.
    pub fn undo(self) {
        for (own, before) in self.0 {
            // Why nothing has come of it is what is told.
            let _ = enter(&before).and_then(|()| remove(&[own]));
        }
    }
}

fn enter(cgroup: &Path) -> Result<(), Failure> {
    let members = cgroup.join(MEMBERS);
    fs::write(&members, "0").map_err(|source| Failure::io(&members, source))
}

/// The path in a hierarchy of who has these memberships (`cgroups(7)`); its root if there is none.
fn membership<'a>(memberships: &'a str, key: &str) -> &'a Path {
    let of = memberships.lines().find_map(|line| line.split_once(key));
    relative(Path::new(of.map_or("", |(_, path)| path)))
}

/// Where the cgroups of a container are by what its document says: a path, or, where they are systemd's, the name of a
/// scope, `slice:prefix:name`.
pub fn place(given: &Path, is_systemd: bool) -> PathBuf {
    let scope = scope(given).filter(|_| is_systemd);
    scope.unwrap_or_else(|| given.to_owned())
}

/// Where systemd has the cgroup of a scope: slices are in each other as their names say (`systemd.slice(5)`). None if
/// it is not the name of one.
pub fn scope(given: &Path) -> Option<PathBuf> {
    let parts: Vec<&str> = given.to_str()?.split(':').collect();
    let &[slice, prefix, name] = parts.as_slice() else {
        return None;
    };
    let slice = match slice {
        "" => DEFAULT_SLICE,
        slice => slice,
    };
    let words = slice.strip_suffix(".slice")?;
    let is_odd = name.is_empty() || name.ends_with(".slice") || given.to_str()?.contains('/');
    let mut path = PathBuf::from("/");
    // The slice above all others has no directory of its own.
    if words != "-" {
        if words.split('-').any(str::is_empty) {
            return None;
        }
        let ends = words.match_indices('-').map(|(end, _)| end);
        for end in ends.chain([words.len()]) {
            path.push(format!("{}.slice", words.get(..end)?));
        }
    }
    path.push(format!("{prefix}-{name}.scope"));
    Some(path).filter(|_| !is_odd)
}

/// Whether systemd makes cgroups here.
pub fn has_systemd() -> bool {
    is_unified() && libcgroups::systemd::booted()
}

/// The quota of a cgroup of v2 and its period, in microseconds (`cpu.max`); none if it has none.
pub fn quota(cgroup: &Path) -> Option<(i64, u64)> {
    let text = fs::read_to_string(cgroup.join("cpu.max")).ok()?;
    let (quota, period) = text.trim().split_once(' ')?;
    Some((quota.parse().ok()?, period.parse().ok()?))
}

/// Sees to it that a process is where it is thought to be.
///
/// # Errors
///
/// If it is not.
pub fn expect_at(path: &Path, pid: i32) -> Result<(), Failure> {
    let file = PathBuf::from(format!("/proc/{pid}/cgroup"));
    let memberships = fs::read_to_string(&file).map_err(|source| Failure::io(&file, source))?;
    match membership(&memberships, "0::") {
        at if at == relative(path) => Ok(()),
        at => Err(Failure::Library(format!(
            "its cgroup is {}, expected {}",
            at.display(),
            path.display()
        ))),
    }
}

/// Where below its container's cgroup an init is that has moved, as one does that has cgroups of its own: on v2 there
/// can be no process in one that has controllers for those below it. What is executed is where the init is then, as
/// with runc.
pub fn below(path: &Path, init: i32) -> Option<String> {
    if !is_unified() {
        return None;
    }
    let controllers = Path::new(ROOT).join(relative(path)).join(CONTROLLERS);
    if fs::read_to_string(controllers).is_ok_and(|controllers| controllers.trim().is_empty()) {
        return None;
    }
    let memberships = fs::read_to_string(format!("/proc/{init}/cgroup")).ok()?;
    let below = membership(&memberships, "0::")
        .strip_prefix(relative(path))
        .ok()?;
    below
        .to_str()
        .filter(|below| !below.is_empty())
        .map(str::to_owned)
}

/// Where a container's own cgroups may be.
pub fn own(path: &Path) -> Vec<PathBuf> {
    if is_unified() {
        return vec![Path::new(ROOT).join(relative(path))];
    }
    let hierarchies = fs::read_dir(ROOT).into_iter().flatten().flatten();
    let own = hierarchies.map(|hierarchy| hierarchy.path().join(relative(path)));
    own.filter(|own| own.is_dir()).collect()
}

/// Sees to it that nobody is in a container's cgroups, or below them, before it is made: they would end with it. And
/// that they are not frozen: so would be who joins them.
///
/// # Errors
///
/// If somebody is, or they are.
pub fn expect_nobody(own: &[PathBuf]) -> Result<(), Failure> {
    let first = |is_odd: &dyn Fn(&Path) -> bool| own.iter().find(|cgroup| is_odd(cgroup));
    let odd = first(&|cgroup| !members(cgroup).is_empty())
        .map(|cgroup| (cgroup, "not empty"))
        .or_else(|| {
            first(&|cgroup| freezes(cgroup) == Some(true)).map(|cgroup| (cgroup, "frozen"))
        });
    match odd {
        None => Ok(()),
        Some((cgroup, what)) => Err(Failure::Untimely(format!(
            "container's cgroup is {what}: {}",
            cgroup.display()
        ))),
    }
}

/// Who is in a cgroup, and below it.
fn members(cgroup: &Path) -> Vec<i32> {
    let text = fs::read_to_string(cgroup.join(MEMBERS)).unwrap_or_default();
    let own = text.lines().filter_map(|line| line.parse().ok());
    let below = children_of(cgroup)
        .into_iter()
        .flat_map(|child| members(&child));
    own.chain(below).collect()
}

/// Whether a cgroup is frozen, or is about to be; none if it cannot be.
fn freezes(cgroup: &Path) -> Option<bool> {
    let [v2, v1] =
        ["cgroup.freeze", FREEZER].map(|file| fs::read_to_string(cgroup.join(file)).ok());
    match (v2, v1) {
        (Some(number), _) => Some(number.trim() == "1"),
        (None, Some(word)) => Some(word.trim() != THAWED),
        (None, None) => None,
    }
}

/// Whether a container is frozen by one of its own cgroups, which may be of v1 and of v2; none if they do not say.
pub fn is_frozen(own: &[PathBuf]) -> Option<bool> {
    own.iter()
        .filter_map(|cgroup| freezes(cgroup))
        .reduce(|one, other| one || other)
}

/// Kills all that live in cgroups, on v2, whatever they wait for and whoever has frozen them. False if that is not
/// known here: before Linux 5.14, and on v1.
pub fn kill(own: &[PathBuf]) -> bool {
    is_unified()
        && own
            .iter()
            .all(|cgroup| fs::write(cgroup.join("cgroup.kill"), "1").is_ok())
}

/// Ends all that live in cgroups of which no more is known than where they are, and removes them. This process is
/// not among them.
///
/// # Errors
///
/// If they do not end.
pub fn clear(own: &[PathBuf]) -> Result<(), Failure> {
    let this = i32::try_from(std::process::id()).ok();
    let began = Instant::now();
    for cgroup in own {
        // What is frozen does not die on v1.
        let _ = fs::write(cgroup.join(FREEZER), THAWED);
        loop {
            let members = members(cgroup);
            let mut others = members.iter().filter(|pid| Some(**pid) != this).peekable();
            if others.peek().is_none() || began.elapsed() > GONE_WITHIN {
                break;
            }
            for pid in others {
                // It may have ended.
                let _ = sys::kill(*pid, libc::SIGKILL);
            }
            sleep(LOOK_EVERY);
        }
    }
    remove(own)
}

/// Whether cgroups are v2 alone.
pub fn is_unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

fn relative(path: &Path) -> &Path {
    path.strip_prefix("/").unwrap_or(path)
}

/// Removes what a container has made below its own cgroups.
///
/// # Errors
///
/// If something lives there.
pub fn remove_below(own: &[PathBuf]) -> Result<(), Failure> {
    own.iter()
        .try_for_each(|cgroup| remove(&children_of(cgroup)))
}

/// Removes cgroups, with those below.
///
/// # Errors
///
/// If something lives there.
pub fn remove(cgroups: &[PathBuf]) -> Result<(), Failure> {
    cgroups.iter().try_for_each(|cgroup| {
        remove(&children_of(cgroup))?;
        remove_alone(cgroup)
    })
}

fn children_of(cgroup: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(cgroup).into_iter().flatten().flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    directories.map(|entry| entry.path()).collect()
}

fn remove_alone(cgroup: &Path) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        match fs::remove_dir(cgroup) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(_) if began.elapsed() < GONE_WITHIN => sleep(LOOK_EVERY),
            removed => return removed.map_err(|source| Failure::io(cgroup, source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_in_its_slices() {
        let at = |given: &str| scope(Path::new(given)).map(|path| path.display().to_string());
        let pod = "kubepods-burstable-poda_b.slice:cri-containerd:c1";
        let path = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-poda_b.slice/cri-containerd-c1.scope";
        assert_eq!(at(pod).as_deref(), Some(path));
        assert_eq!(at(":runc:c").as_deref(), Some("/system.slice/runc-c.scope"));
        assert_eq!(at("-.slice:runc:c").as_deref(), Some("/runc-c.scope"));
        for odd in [
            "",
            "/a/b",
            "a.slice",
            "a.slice:b",
            "a:b:c",
            "a.slice:b:",
            "a.slice:b:c:d",
        ] {
            assert_eq!(at(odd), None, "{odd}");
        }
        for odd in [
            "a--b.slice:c:d",
            ".slice:c:d",
            "a/b.slice:c:d",
            "a.slice:../c:d",
            "a.slice:b:c.slice",
        ] {
            assert_eq!(at(odd), None, "{odd}");
        }
        let given = Path::new("a.slice:b:c");
        assert_eq!(place(given, true), Path::new("/a.slice/b-c.scope"));
        assert_eq!(place(given, false), given);
    }

    #[test]
    fn who_is_below_is_somebody_and_nobody_joins_what_is_frozen() {
        let directory = tempfile::tempdir().unwrap();
        let own = [directory.path().to_owned()];
        let below = directory.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        fs::write(directory.path().join(MEMBERS), "").unwrap();
        expect_nobody(&own).unwrap();
        fs::write(below.join(MEMBERS), "7\n").unwrap();
        let error = expect_nobody(&own).unwrap_err().to_string();
        assert!(error.contains("not empty"), "{error}");
        fs::remove_file(below.join(MEMBERS)).unwrap();
        for (file, thawed, frozen) in [
            ("cgroup.freeze", "0\n", "1\n"),
            (FREEZER, "THAWED\n", "FREEZING\n"),
        ] {
            let file = directory.path().join(file);
            fs::write(&file, thawed).unwrap();
            expect_nobody(&own).unwrap();
            assert_eq!(is_frozen(&own), Some(false));
            fs::write(&file, frozen).unwrap();
            let error = expect_nobody(&own).unwrap_err().to_string();
            assert!(error.contains("frozen"), "{error}");
            assert_eq!(is_frozen(&own), Some(true));
            fs::remove_file(&file).unwrap();
        }
        assert_eq!(is_frozen(&own), None);
    }

    #[test]
    fn a_membership_is_found_by_its_hierarchy() {
        let memberships = "9:name=systemd:/a/b\n8:pids:/c\n0::/d\n";
        let of = |key| membership(memberships, key).to_owned();
        let keys = WITHOUT_CONTROLLERS.map(|(_, key)| key);
        assert_eq!(keys.map(of), ["a/b", "d"].map(PathBuf::from));
        assert_eq!(membership("8:pids:/c\n", "0::"), Path::new(""));
    }
}
