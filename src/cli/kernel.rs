//! What the kernel says of a container, by its init process: the truth, whoever has set it.

use std::path::{Path, PathBuf};

/// The limits of a cgroup.
pub(super) struct Limits {
    memory: Option<u64>,
    used: Option<u64>,
    /// In CPUs.
    cpu: Option<f64>,
}

/// What memory cgroups of version 1 say where there is no limit: the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// The `oom_score_adj` of a process.
pub(super) fn oom_score(pid: u32) -> Option<String> {
    let score = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?;
    Some(score.trim().to_owned())
}

impl Limits {
    /// Those of the cgroup of a process.
    pub(super) fn of(pid: u32) -> Option<Limits> {
        Limits::read(pid, Some)
    }

    /// Those of the cgroup above it: its pod's, unless that is the root.
    pub(super) fn of_parent(pid: u32) -> Option<Limits> {
        Limits::read(pid, |path| {
            let parent = path.parent()?.to_owned();
            (parent != Path::new("/")).then_some(parent)
        })
    }

    fn read(pid: u32, choose: impl Fn(PathBuf) -> Option<PathBuf>) -> Option<Limits> {
        let table = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let directory = |controller: &str| {
            let path = choose(PathBuf::from(path_in(&table, controller)?))?;
            let root = Path::new("/sys/fs/cgroup").join(controller);
            Some(root.join(path.strip_prefix("/").ok()?))
        };
        let number = |path: PathBuf| std::fs::read_to_string(path).ok()?.trim().parse().ok();
        if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
            let directory = directory("")?;
            let cpu = std::fs::read_to_string(directory.join("cpu.max")).unwrap_or_default();
            let mut cpu = cpu.split_whitespace().map(str::parse::<f64>);
            return Some(Limits {
                memory: number(directory.join("memory.max")),
                used: number(directory.join("memory.current")),
                cpu: match (cpu.next(), cpu.next()) {
                    (Some(Ok(quota)), Some(Ok(period))) => Some(quota / period),
                    _ => None,
                },
            });
        }
        let (memory, cpu) = (directory("memory")?, directory("cpu")?);
        let quota = number(cpu.join("cpu.cfs_quota_us"));
        let period = number(cpu.join("cpu.cfs_period_us"));
        Some(Limits {
            memory: number(memory.join("memory.limit_in_bytes")).filter(|limit| *limit < NO_LIMIT),
            used: number(memory.join("memory.usage_in_bytes")),
            cpu: quota
                .zip(period)
                .map(|(quota, period): (u64, u64)| quota as f64 / period as f64),
        })
    }

    pub(super) fn memory(&self) -> String {
        self.memory.map_or("none".to_owned(), bytes)
    }

    pub(super) fn used(&self) -> String {
        self.used.map_or("-".to_owned(), bytes)
    }

    pub(super) fn cpu(&self) -> String {
        self.cpu
            .map_or("none".to_owned(), |cpu| format!("{cpu:.2}"))
    }
}

/// The path of a controller's cgroup in a `/proc/<pid>/cgroup`; of that of version 2 for no name.
pub(super) fn path_in<'a>(table: &'a str, controller: &str) -> Option<&'a str> {
    let lines = table.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let mut paths = lines.filter(|(names, _)| match controller {
        "" => names.is_empty(),
        name => names.split(',').any(|other| other == name),
    });
    Some(paths.next()?.1)
}

fn bytes(bytes: u64) -> String {
    let bytes = bytes as f64;
    let units = [(30, "Gi"), (20, "Mi"), (10, "Ki")];
    let unit = units
        .into_iter()
        .find(|(shift, _)| bytes >= f64::from(1_u32 << shift));
    match unit {
        Some((shift, word)) => format!("{:.1}{word}", bytes / f64::from(1_u32 << shift)),
        None => format!("{bytes}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_the_unit_that_suits_them() {
        let texts: Vec<_> = [512, 1024, 3 << 19, 5 << 30]
            .into_iter()
            .map(bytes)
            .collect();
        assert_eq!(texts, ["512", "1.0Ki", "1.5Mi", "5.0Gi"]);
    }

    #[test]
    fn this_very_process_has_limits() {
        assert!(oom_score(std::process::id()).is_some());
        assert!(oom_score(0).is_none());
        assert!(Limits::of(0).is_none());
    }
}
