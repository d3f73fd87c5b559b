//! The limits of a cgroup, in the files of v1 and v2.

#[cfg(any(test, feature = "simulator"))]
use std::path::Path;
use std::path::PathBuf;
use std::{fs, io};

use cgroups_rs::fs::Controllers;

use super::read::{number, text};
use super::{Cgroup, Version};

/// No limit; the kernel writes it as `max` or -1.
pub const UNLIMITED: u64 = u64::MAX;

/// Smallest v1 memory limit that the shim takes as no limit. For a cgroup without a limit the
/// kernel shows the largest multiple of its page size.
const UNLIMITED_MEMORY_V1: u64 = 1 << 62;

/// A limit or weight of a cgroup, which the shim can read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// Bytes; [`UNLIMITED`] for no limit.
    Memory,
    /// Microseconds of CPU time in each period; [`UNLIMITED`] for no limit.
    CpuQuota,
    /// Weight of the cgroup when several cgroups compete for the CPU: shares in v1, a weight in v2.
    CpuWeight,
}

/// The directories of the files that hold the limits and weights of a cgroup.
#[derive(Debug)]
pub struct Values {
    /// Directory of the memory controller.
    pub(super) memory: Option<PathBuf>,
    /// Directory of the CPU controller; in v2 the same as `memory`.
    pub(super) cpu: Option<PathBuf>,
    /// Directory of the files that count CPU time. In v2, and usually in v1, the same as `cpu`.
    pub(super) cpuacct: Option<PathBuf>,
    pub(super) is_v2: bool,
}

impl Values {
    /// Values of a cgroup; `None` if the cgroup has neither a memory nor a CPU controller.
    pub fn of(cgroup: &Cgroup) -> Option<Values> {
        Values::in_directories_of(cgroup, Some)
    }

    /// Values of a cgroup that is related to `cgroup`, such as its parent. In v1, `cgroup` has one
    /// directory for each controller. For each directory of `cgroup`, `choose` returns the
    /// directory of the related cgroup.
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

    /// The values whose v1 files are all in `directory`, for tests.
    #[cfg(any(test, feature = "simulator"))]
    pub(super) fn in_directory(directory: &Path) -> Values {
        Values {
            memory: Some(directory.to_owned()),
            cpu: Some(directory.to_owned()),
            cpuacct: Some(directory.to_owned()),
            is_v2: false,
        }
    }

    /// CPU limit in CPUs; `None` if there is no limit.
    pub fn cpus(&self) -> Option<f64> {
        let quota = self
            .read(Knob::CpuQuota)
            .filter(|quota| *quota != UNLIMITED)?;
        Some(quota as f64 / self.period()? as f64)
    }

    /// Memory limit in bytes; `None` if there is no limit.
    pub fn memory(&self) -> Option<u64> {
        self.read(Knob::Memory).filter(|bytes| *bytes != UNLIMITED)
    }

    /// Bytes of memory charged to this cgroup and to the cgroups below it.
    pub fn memory_usage(&self) -> Option<u64> {
        let name = if self.is_v2 {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        };
        number(&self.memory.as_ref()?.join(name))
    }

    /// Reads a current value; `None` if the kernel has no such value.
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

    /// Sets a value.
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn write(&self, knob: Knob, value: u64) -> io::Result<()> {
        let file = self.file(knob).ok_or(io::ErrorKind::NotFound)?;
        // In v2 a quota that is written without a period keeps the current period.
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

    /// Period of the quota, in microseconds.
    pub(super) fn period(&self) -> Option<u64> {
        let cpu = self.cpu.as_ref()?;
        let period = match self.is_v2 {
            true => quota_v2(&text(&cpu.join("cpu.max"))?)?.1,
            false => number(&cpu.join("cpu.cfs_period_us"))?,
        };
        Some(period).filter(|period| *period > 0)
    }

    /// Largest CPU quota of the cgroups directly below, converted to this cgroup's period; 0 in v2.
    /// In v1 the kernel refuses a lower quota for this cgroup.
    pub(super) fn largest_child(&self) -> u64 {
        let (Some(cpu), Some(period), false) = (&self.cpu, self.period(), self.is_v2) else {
            return 0;
        };
        let children = fs::read_dir(cpu).into_iter().flatten().flatten();
        let quota = |directory: PathBuf| {
            // A child without a limit has the quota -1, which does not parse as u64.
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

/// Parses `cpu.max`: a quota and its period.
pub(super) fn quota_v2(text: &str) -> Option<(u64, u64)> {
    let (quota, period) = text.trim().split_once(' ')?;
    let quota = match quota {
        "max" => UNLIMITED,
        quota => quota.parse().ok()?,
    };
    Some((quota, period.parse().ok()?))
}
