//! What bounds all that is in a cgroup together: its values, by the names of either version.

#[cfg(test)]
use std::path::Path;
use std::path::PathBuf;
use std::{fs, io};

use cgroups_rs::fs::Controllers;

use super::read::{number, text};
use super::{Cgroup, Version};

/// No bound. The kernel has other words for it.
pub const UNLIMITED: u64 = u64::MAX;

/// From here on a limit of memory of version 1 is none: the kernel says the largest multiple of its
/// page size.
const UNLIMITED_MEMORY_V1: u64 = 1 << 62;

/// One of the values of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// Bytes; [`UNLIMITED`] for no bound.
    Memory,
    /// Microseconds of CPU time in each period; [`UNLIMITED`] for no bound.
    CpuQuota,
    /// How much of the CPU it gets when others want it too: shares in version 1, a weight in 2.
    CpuWeight,
}

/// The values of a cgroup, by the directories that they are in.
#[derive(Debug)]
pub struct Values {
    /// Where memory is accounted for, and CPU time; the same in version 2.
    pub(super) memory: Option<PathBuf>,
    pub(super) cpu: Option<PathBuf>,
    /// Where CPU time is counted; the same as that in version 2, and mostly in 1.
    pub(super) cpuacct: Option<PathBuf>,
    pub(super) is_v2: bool,
}

impl Values {
    /// Those of a cgroup. None if it has neither memory nor CPU time accounted for.
    pub fn of(cgroup: &Cgroup) -> Option<Values> {
        Values::in_directories_of(cgroup, Some)
    }

    /// Those of the cgroups that are chosen by the directories of this one.
    pub(super) fn in_directories_of(
        cgroup: &Cgroup,
        choose: impl Fn(PathBuf) -> Option<PathBuf>,
    ) -> Option<Values> {
        let values = match &cgroup.version {
            Version::V1(cgroup) => {
                let of = |controller| cgroup.directory(&controller).and_then(&choose);
                Values {
                    memory: of(Controllers::Mem),
                    cpu: of(Controllers::Cpu),
                    cpuacct: of(Controllers::CpuAcct),
                    is_v2: false,
                }
            }
            Version::V2(cgroup) => {
                let directory = choose(cgroup.directory().to_owned());
                Values {
                    memory: directory.clone(),
                    cpuacct: directory.clone(),
                    cpu: directory,
                    is_v2: true,
                }
            }
        };
        (values.memory.is_some() || values.cpu.is_some()).then_some(values)
    }

    /// Files in a directory, as they are in version 1.
    #[cfg(test)]
    pub(super) fn in_directory(directory: &Path) -> Values {
        Values {
            memory: Some(directory.to_owned()),
            cpu: Some(directory.to_owned()),
            cpuacct: Some(directory.to_owned()),
            is_v2: false,
        }
    }

    /// How many CPUs it may use; none without a bound.
    pub fn cpus(&self) -> Option<f64> {
        let quota = self
            .read(Knob::CpuQuota)
            .filter(|quota| *quota != UNLIMITED)?;
        Some(quota as f64 / self.period()? as f64)
    }

    /// How much memory it may use, in bytes; none without a bound.
    pub fn memory(&self) -> Option<u64> {
        self.read(Knob::Memory).filter(|bytes| *bytes != UNLIMITED)
    }

    /// How much memory is charged to it and to all below it, in bytes.
    pub fn memory_usage(&self) -> Option<u64> {
        let name = if self.is_v2 {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        };
        number(&self.memory.as_ref()?.join(name))
    }

    /// The value that is in force; none if there is no such value.
    pub fn read(&self, knob: Knob) -> Option<u64> {
        let file = self.file(knob)?;
        match (knob, self.is_v2) {
            (Knob::CpuQuota, true) => quota_v2(&text(&file)?).map(|(quota, _)| quota),
            (Knob::CpuQuota, false) => {
                let quota: i64 = text(&file)?.trim().parse().ok()?;
                Some(u64::try_from(quota).unwrap_or(UNLIMITED))
            }
            (Knob::Memory, false) => {
                let limit = number(&file)?;
                Some(if limit >= UNLIMITED_MEMORY_V1 {
                    UNLIMITED
                } else {
                    limit
                })
            }
            _ => number(&file),
        }
    }

    /// Puts a value in force.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn write(&self, knob: Knob, value: u64) -> io::Result<()> {
        let file = self.file(knob).ok_or(io::ErrorKind::NotFound)?;
        // In version 2 a quota that is written without a period keeps the one that there is.
        fs::write(file, self.words(value))
    }

    pub(super) fn words(&self, value: u64) -> String {
        match (value, self.is_v2) {
            (UNLIMITED, true) => "max".to_owned(),
            (UNLIMITED, false) => "-1".to_owned(),
            (value, _) => value.to_string(),
        }
    }

    pub(super) fn file(&self, knob: Knob) -> Option<PathBuf> {
        let name = match (knob, self.is_v2) {
            (Knob::Memory, true) => "memory.max",
            (Knob::Memory, false) => "memory.limit_in_bytes",
            (Knob::CpuQuota, true) => "cpu.max",
            (Knob::CpuQuota, false) => "cpu.cfs_quota_us",
            (Knob::CpuWeight, true) => "cpu.weight",
            (Knob::CpuWeight, false) => "cpu.shares",
        };
        let directory = match knob {
            Knob::Memory => self.memory.as_ref()?,
            Knob::CpuQuota | Knob::CpuWeight => self.cpu.as_ref()?,
        };
        Some(directory.join(name))
    }

    /// How long a quota lasts, in microseconds.
    pub(super) fn period(&self) -> Option<u64> {
        let cpu = self.cpu.as_ref()?;
        let period = match self.is_v2 {
            true => quota_v2(&text(&cpu.join("cpu.max"))?)?.1,
            false => number(&cpu.join("cpu.cfs_period_us"))?,
        };
        Some(period).filter(|period| *period > 0)
    }

    /// The quota that is enough for each of the cgroups in it: version 1 refuses one that is not.
    pub(super) fn largest_child(&self) -> u64 {
        let (Some(cpu), Some(period), false) = (&self.cpu, self.period(), self.is_v2) else {
            return 0;
        };
        let children = fs::read_dir(cpu).into_iter().flatten().flatten();
        let quota = |directory: PathBuf| {
            // Without a bound it has none of its own.
            let quota: u64 = number(&directory.join("cpu.cfs_quota_us"))?;
            let own = number(&directory.join("cpu.cfs_period_us"))?.max(1);
            Some(quota.saturating_mul(period).div_ceil(own))
        };
        children
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| quota(entry.path()))
            .max()
            .unwrap_or_default()
    }
}

/// `cpu.max`: a quota and its period.
pub(super) fn quota_v2(text: &str) -> Option<(u64, u64)> {
    let (quota, period) = text.trim().split_once(' ')?;
    let quota = match quota {
        "max" => UNLIMITED,
        quota => quota.parse().ok()?,
    };
    Some((quota, period.parse().ok()?))
}
