//! The cgroup of a pod, which limits all its containers together.
//!
//! This cgroup is the parent of the containers' cgroups. The shim changes the cgroup only if the
//! cgroup's name shows that it belongs to this pod alone. The values that kubelet has set are the
//! ceiling: the shim never writes a higher value, except that it rounds a CPU quota up as kubelet
//! does for systemd.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use usher_core::plan::Allotment;
use usher_core::sizing::{Limit, Limits, Millicores, Requests};

use super::read::text;
use super::values::{Knob, UNLIMITED, Values};
use super::{Cgroup, Place};

/// Lowest quota that the kernel accepts, in microseconds.
const LEAST_QUOTA: u64 = 1000;

/// A multiple of each page size (4, 16 and 64 KiB), in bytes.
const PAGES: u64 = 64 << 10;

/// Lowest and highest shares that the kernel accepts, and lowest and highest weight.
const SHARES: (u64, u64) = (2, 262_144);
const WEIGHTS: (u64, u64) = (1, 10_000);

/// Cgroup of a pod.
#[derive(Debug)]
pub struct PodCgroup {
    values: Values,
}

/// A value that the shim has set, and the earlier value to restore if the shim dies.
#[derive(Debug, Serialize, Deserialize)]
pub struct Note {
    file: PathBuf,
    /// The value that the shim has set, in the kernel's format.
    in_force: String,
    ceiling: String,
    /// Arguments of `systemctl set-property`, if systemd has made the cgroup: the unit, and the
    /// property with the earlier value.
    #[serde(default)]
    systemd: Option<(String, String)>,
}

impl PodCgroup {
    /// Returns the parent of a container's cgroup, if that parent belongs to the pod with this UID.
    pub fn of(container: &Cgroup, uid: &str) -> Option<PodCgroup> {
        let parent = |directory: PathBuf| Some(directory.parent()?.to_owned());
        Self::found(container, parent, uid)
    }

    /// Returns a cgroup, if it belongs to the pod with this UID.
    pub fn at(cgroup: &Cgroup, uid: &str) -> Option<PodCgroup> {
        Self::found(cgroup, Some, uid)
    }

    fn found(
        cgroup: &Cgroup,
        choose: impl Fn(PathBuf) -> Option<PathBuf>,
        uid: &str,
    ) -> Option<PodCgroup> {
        let of_pod = |directory| choose(directory).filter(|chosen| is_of_pod(chosen, uid));
        let values = Values::in_directories_of(cgroup, of_pod)?;
        Some(PodCgroup { values })
    }

    /// The pod cgroup whose v1 files are in `directory`, for tests.
    #[cfg(any(test, feature = "simulator"))]
    pub fn in_directory(directory: &Path) -> PodCgroup {
        PodCgroup {
            values: Values::in_directory(directory),
        }
    }

    /// Place in which the shim's commands run, so that their CPU time is charged to the pod. On v1
    /// only CPU time is charged, because the pod's limits on memory and processes are meant for the
    /// author's containers.
    pub fn place(&self) -> Option<Place> {
        let values = &self.values;
        if values.is_v2 {
            return values.cpu.as_deref().map(Place::below_v2);
        }
        let counted = values.cpu.iter().chain(&values.cpuacct);
        let mut directories: Vec<_> = counted.cloned().collect();
        directories.dedup();
        (!directories.is_empty()).then(|| Place::in_v1(directories))
    }

    /// Returns the systemd unit, if systemd has made the cgroup.
    pub fn unit(&self) -> Option<&str> {
        let values = &self.values;
        let directory = values.memory.as_deref().or(values.cpu.as_deref())?;
        let name = directory.file_name()?.to_str()?;
        name.ends_with(".slice").then_some(name)
    }

    /// Bytes of memory charged to this cgroup and to the cgroups below it.
    pub fn memory_usage(&self) -> Option<u64> {
        self.values.memory_usage()
    }

    /// Reads a current value; `None` if the kernel has no such value. If systemd has made the
    /// cgroup, a CPU quota is [rounded](PodCgroup::rounded).
    pub fn read(&self, knob: Knob) -> Option<u64> {
        let value = self.values.read(knob)?;
        Some(match knob {
            // kubelet writes its own value into the cgroup, but rounds the value that it tells
            // systemd. systemd may write the rounded value at any time. Both count as the same value
            // here, so that the shim does not take the rounded value for a resize.
            Knob::CpuQuota => self.rounded(knob, value),
            Knob::Memory | Knob::CpuWeight => value,
        })
    }

    /// Rounds a value up to one that is kept unchanged. The kernel keeps memory limits in whole
    /// pages. If systemd has made the cgroup, CPU quotas are kept in whole hundredths of a CPU.
    pub fn rounded(&self, knob: Knob, value: u64) -> u64 {
        match (knob, value) {
            (_, UNLIMITED) | (Knob::CpuWeight, _) => value,
            (Knob::Memory, _) => value.checked_next_multiple_of(PAGES).unwrap_or(UNLIMITED),
            (Knob::CpuQuota, _) => match self.unit().and_then(|_| self.values.period()) {
                Some(period) => percent(value, period).saturating_mul(period) / 100,
                None => value,
            },
        }
    }

    /// Sets a value, which must be [rounded](PodCgroup::rounded).
    ///
    /// # Errors
    ///
    /// The kernel's error.
    pub fn write(&self, knob: Knob, value: u64) -> io::Result<()> {
        self.values.write(knob, value)
    }

    /// Computes the pod's overhead, in the unit of `knob`: the current value for the whole pod,
    /// minus the total of its containers in `allotment`. Returns 0 if one of them is unknown, or if
    /// the current value is unlimited.
    pub fn overhead(&self, knob: Knob, allotment: &Allotment) -> u64 {
        let allotted = match (knob, self.values.is_v2) {
            (Knob::Memory, _) => allotment.memory,
            (Knob::CpuQuota, _) => allotment.quota.zip(self.values.period()).and_then(
                |((quota, allotted_period), period)| {
                    let quota = u128::from(quota).saturating_mul(period.into());
                    let quota = quota.checked_div(allotted_period.into())?;
                    u64::try_from(quota).ok()
                },
            ),
            (Knob::CpuWeight, false) => allotment.shares,
            (Knob::CpuWeight, true) => allotment.shares.map(weight),
        };
        // `PodCgroup::read` would round the value up.
        match (self.values.read(knob), allotted) {
            (None | Some(UNLIMITED), _) | (_, None) => 0,
            (Some(found), Some(allotted)) => found.saturating_sub(allotted),
        }
    }

    /// Makes a note that the shim has replaced the value `ceiling` by the current value.
    pub fn note(&self, knob: Knob, ceiling: u64) -> Option<Note> {
        let file = self.values.file(knob)?;
        Some(Note {
            in_force: text(&file)?,
            ceiling: self.values.words(ceiling),
            systemd: self
                .unit()
                .zip(self.property(knob, ceiling))
                .map(|(unit, property)| (unit.to_owned(), property)),
            file,
        })
    }

    /// Computes the CPU quota and the CPU weight (v1: shares) for these limits and requests.
    pub fn cpu_values(&self, limits: &Limits, requests: &Requests) -> Option<(u64, u64)> {
        let quota = match limits.cpu {
            Limit::Unlimited | Limit::Of(Millicores(0)) => UNLIMITED,
            Limit::Of(Millicores(millis)) => {
                let quota = millis.saturating_mul(self.values.period()?).div_ceil(1000);
                quota.max(LEAST_QUOTA).max(self.values.largest_child())
            }
        };
        let shares = shares(requests.cpu);
        Some((
            quota,
            if self.values.is_v2 {
                weight(shares)
            } else {
                shares
            },
        ))
    }

    /// Argument of `systemctl set-property` for a value.
    pub fn property(&self, knob: Knob, value: u64) -> Option<String> {
        let amount = match value {
            UNLIMITED => "infinity".to_owned(),
            value => value.to_string(),
        };
        Some(match (knob, self.values.is_v2) {
            (Knob::Memory, true) => format!("MemoryMax={amount}"),
            (Knob::Memory, false) => format!("MemoryLimit={amount}"),
            (Knob::CpuWeight, true) => format!("CPUWeight={amount}"),
            (Knob::CpuWeight, false) => format!("CPUShares={amount}"),
            (Knob::CpuQuota, _) if value == UNLIMITED => "CPUQuota=".to_owned(),
            (Knob::CpuQuota, _) => {
                format!("CPUQuota={}%", percent(value, self.values.period()?))
            }
        })
    }
}

impl Note {
    /// Restores the value that the shim has replaced, unless another program has changed it since.
    /// Returns true if the value was restored.
    ///
    /// # Errors
    ///
    /// The kernel's error. A cgroup that was removed is no error.
    pub fn restore(&self) -> io::Result<bool> {
        match text(&self.file) {
            Some(in_force) if in_force == self.in_force => {
                fs::write(&self.file, &self.ceiling)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Arguments of `systemctl set-property`, if systemd has made the cgroup: the unit, and the
    /// property with the restored value.
    pub fn systemd(&self) -> Option<(&str, &str)> {
        let (unit, property) = self.systemd.as_ref()?;
        Some((unit, property))
    }
}

/// Converts a quota, which is more than 0, to hundredths of a CPU. Rounds up.
fn percent(quota: u64, period: u64) -> u64 {
    quota.saturating_mul(100).div_ceil(period)
}

/// True if the directory's name is kubelet's name for the cgroup of the pod with this UID, under
/// the cgroupfs driver or the systemd driver (kubelet's `cm/cgroup_manager_linux.go`).
fn is_of_pod(directory: &Path, uid: &str) -> bool {
    let Some(name) = directory.file_name().and_then(OsStr::to_str) else {
        return false;
    };
    let slice = format!("-pod{}.slice", uid.replace('-', "_"));
    !uid.is_empty() && (name == format!("pod{uid}") || name.ends_with(&slice))
}

/// Converts a request to shares, like kubelet's `MilliCPUToShares`.
fn shares(request: Millicores) -> u64 {
    let (least, most) = SHARES;
    let shares = request.0.saturating_mul(1024).checked_div(1000);
    shares.unwrap_or_default().clamp(least, most)
}

/// Converts v1 shares to a v2 weight as kubelet and runc do: maps the range of shares onto the
/// range of weights (KEP-2254).
fn weight(shares: u64) -> u64 {
    let (least, most) = WEIGHTS;
    let range = most.saturating_sub(least);
    let shares = shares.saturating_sub(SHARES.0).saturating_mul(range);
    let shares = shares.checked_div(SHARES.1.saturating_sub(SHARES.0));
    least.saturating_add(shares.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_cgroup_is_recognized_by_its_name() {
        let uid = "0a1b-2c";
        for (directory, expected) in [
            ("/kubepods/burstable/pod0a1b-2c", true),
            ("/kubepods.slice/kubepods-burstable-pod0a1b_2c.slice", true),
            ("/kubepods.slice/kubepods-pod0a1b_2c.slice", true),
            ("/kubepods/burstable", false),
            ("/kubepods/burstable/pod0a1b-2cd", false),
            ("/kubepods/burstable/pod0a1b_2c", false),
            ("/kubepods.slice/kubepods-burstable-pod0a1b-2c.slice", false),
            ("/kubepods.slice/kubepods-burstable.slice", false),
            ("/pod", false),
            ("/", false),
        ] {
            assert_eq!(
                is_of_pod(Path::new(directory), uid),
                expected,
                "{directory}"
            );
        }
        assert!(!is_of_pod(Path::new("/pod"), ""));
        assert!(!is_of_pod(Path::new("/a-pod.slice"), ""));
    }

    #[test]
    fn weights_equal_kubelets() {
        for (millis, expected_shares, expected_weight) in [
            (0, 2, 1),
            (100, 102, 4),
            (1000, 1024, 39),
            (u64::MAX, 262_144, 10_000),
        ] {
            assert_eq!(shares(Millicores(millis)), expected_shares);
            assert_eq!(weight(shares(Millicores(millis))), expected_weight);
        }
    }

    /// Makes the files of a v1 cgroup that contains one other cgroup.
    fn version_1(child_quota: &str) -> (tempfile::TempDir, PodCgroup) {
        let directory = tempfile::tempdir().unwrap();
        let child = directory.path().join("child");
        fs::create_dir(&child).unwrap();
        for (file, value) in [
            ("cpu.cfs_quota_us", "-1"),
            ("cpu.cfs_period_us", "100000"),
            ("memory.limit_in_bytes", "9223372036854771712"),
        ] {
            fs::write(directory.path().join(file), value).unwrap();
        }
        fs::write(child.join("cpu.cfs_quota_us"), child_quota).unwrap();
        fs::write(child.join("cpu.cfs_period_us"), "50000").unwrap();
        let cgroup = PodCgroup::in_directory(directory.path());
        (directory, cgroup)
    }

    #[test]
    fn a_quota_is_never_below_that_of_a_child() {
        let quota = |cgroup: &PodCgroup, millis| {
            let limits = Limits {
                cpu: Limit::Of(Millicores(millis)),
                memory: Limit::Unlimited,
            };
            let values = cgroup.cpu_values(&limits, &Requests::default());
            values.unwrap().0
        };
        let (_directory, cgroup) = version_1("30000");
        assert_eq!(quota(&cgroup, 100), 60_000);
        assert_eq!(quota(&cgroup, 700), 70_000);
        let (_directory, cgroup) = version_1("-1");
        assert_eq!(quota(&cgroup, 100), 10_000);
        assert_eq!(quota(&cgroup, 1), 1_000);
        // Without containers there is nothing to limit.
        assert_eq!(quota(&cgroup, 0), UNLIMITED);
    }

    #[test]
    fn no_limit_is_read_and_written_in_the_kernels_format() {
        let (directory, cgroup) = version_1("-1");
        assert_eq!(cgroup.read(Knob::Memory), Some(UNLIMITED));
        assert_eq!(cgroup.read(Knob::CpuQuota), Some(UNLIMITED));
        assert_eq!(cgroup.read(Knob::CpuWeight), None);
        cgroup.write(Knob::Memory, 4096).unwrap();
        assert_eq!(cgroup.read(Knob::Memory), Some(4096));
        cgroup.write(Knob::Memory, UNLIMITED).unwrap();
        let written = fs::read_to_string(directory.path().join("memory.limit_in_bytes"));
        assert_eq!(written.unwrap(), "-1");
    }

    #[test]
    fn memory_limits_are_rounded_up_to_whole_pages_of_every_size() {
        let (_directory, cgroup) = version_1("-1");
        for (bytes, expected) in [
            (0, 0),
            (1, 64 << 10),
            (100_000_000, 100_007_936),
            (64 << 20, 64 << 20),
            (UNLIMITED - 1, UNLIMITED),
            (UNLIMITED, UNLIMITED),
        ] {
            assert_eq!(cgroup.rounded(Knob::Memory, bytes), expected);
        }
    }
}
