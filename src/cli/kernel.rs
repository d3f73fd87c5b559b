//! What the kernel says of a container, by its init process: the truth, whoever has set it.

use crate::cgroup::Cgroup;
use crate::cgroup::values::Values;

/// The limits of a cgroup.
pub(super) struct Limits(Values);

/// The `oom_score_adj` of a process.
pub(super) fn oom_score(pid: u32) -> Option<String> {
    let score = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?;
    Some(score.trim().to_owned())
}

impl Limits {
    /// Those of the cgroup of a process.
    pub(super) fn of(pid: u32) -> Option<Limits> {
        Some(Limits(Values::of(&cgroup_of(pid)?)?))
    }

    /// Those of the cgroup above it: its pod's, unless that is the root.
    pub(super) fn of_parent(pid: u32) -> Option<Limits> {
        Some(Limits(Values::of(&cgroup_of(pid)?.parent()?)?))
    }

    pub(super) fn memory(&self) -> String {
        self.0.memory().map_or("none".to_owned(), bytes)
    }

    pub(super) fn used(&self) -> String {
        self.0.memory_usage().map_or("-".to_owned(), bytes)
    }

    pub(super) fn cpu(&self) -> String {
        self.0
            .cpus()
            .map_or("none".to_owned(), |cpu| format!("{cpu:.2}"))
    }
}

fn cgroup_of(pid: u32) -> Option<Cgroup> {
    Cgroup::of(i32::try_from(pid).ok()?).ok()
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
