//! The cgroup of a pod: how much all of its containers may use together.
//!
//! The parent of its containers' cgroups, and ours to touch only if its name says that it is this
//! pod's and no other's. What kubelet gave the pod is the ceiling: never more is written.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::plan::Allotment;
use crate::sizing::{Limit, Limits, Millicores, Requests};

use super::read::text;
use super::values::{Knob, UNLIMITED, Values};
use super::{Cgroup, Place};

/// The least quota that the kernel takes, in microseconds.
const LEAST_QUOTA: u64 = 1000;

/// The least and the most shares that the kernel takes, and what it has of both for weights.
const SHARES: (u64, u64) = (2, 262_144);
const WEIGHTS: (u64, u64) = (1, 10_000);

/// What systemd takes quotas in: hundredths of a CPU.
const SYSTEMD_MILLIS: u64 = 10;

/// The cgroup of a pod.
#[derive(Debug)]
pub struct PodCgroup {
    values: Values,
}

/// A value that was put in force, for whoever restores it when we cannot.
#[derive(Debug, Serialize, Deserialize)]
pub struct Note {
    file: PathBuf,
    /// As the kernel shows it.
    in_force: String,
    ceiling: String,
    /// The unit and its property, where systemd has to know of the ceiling.
    #[serde(default)]
    systemd: Option<(String, String)>,
}

impl PodCgroup {
    /// The parent of a container's cgroup, if it is that of the pod with this UID.
    pub fn of(container: &Cgroup, uid: &str) -> Option<PodCgroup> {
        let parent = |directory: PathBuf| Some(directory.parent()?.to_owned());
        Self::found(container, parent, uid)
    }

    /// A cgroup, if it is that of the pod with this UID.
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

    /// Files in a directory, as they are in version 1.
    #[cfg(test)]
    pub fn in_directory(directory: &Path) -> PodCgroup {
        PodCgroup {
            values: Values::in_directory(directory),
        }
    }

    /// Where commands run whose CPU time is to be the pod's. In version 1 no more than that: the pod's
    /// bounds of memory and processes are for what its author runs.
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

    /// The unit that it is to systemd, where systemd has made it.
    pub fn unit(&self) -> Option<&str> {
        let values = &self.values;
        let directory = values.memory.as_deref().or(values.cpu.as_deref())?;
        let name = directory.file_name()?.to_str()?;
        name.ends_with(".slice").then_some(name)
    }

    /// How much memory is charged to it and to all below it, in bytes.
    pub fn memory_usage(&self) -> Option<u64> {
        self.values.memory_usage()
    }

    /// The value that is in force; none if there is no such value.
    pub fn read(&self, knob: Knob) -> Option<u64> {
        self.values.read(knob)
    }

    /// Puts a value in force.
    ///
    /// # Errors
    ///
    /// The kernel's refusal.
    pub fn write(&self, knob: Knob, value: u64) -> io::Result<()> {
        self.values.write(knob, value)
    }

    /// How much of a value that was found is for none of the pod's containers, in its own unit: the
    /// pod's overhead. Nothing where it is not known what they are allotted.
    pub fn overhead(&self, knob: Knob, found: u64, allotment: &Allotment) -> u64 {
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
        match (found, allotted) {
            (UNLIMITED, _) | (_, None) => 0,
            (found, Some(allotted)) => found.saturating_sub(allotted),
        }
    }

    /// What is to be remembered of a value that is in force now in place of `ceiling`.
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

    /// What of CPU is to be in force for these limits and requests: a quota and a weight.
    pub fn cpu_values(&self, limits: &Limits, requests: &Requests) -> Option<(u64, u64)> {
        let quota = match limits.cpu {
            Limit::Unlimited | Limit::Of(Millicores(0)) => UNLIMITED,
            Limit::Of(Millicores(millis)) => {
                let millis = match self.unit() {
                    Some(_) => millis
                        .div_ceil(SYSTEMD_MILLIS)
                        .saturating_mul(SYSTEMD_MILLIS),
                    None => millis,
                };
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

    /// How `systemctl set-property` is told of a value.
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
                let percent = value.saturating_mul(100).div_ceil(self.values.period()?);
                format!("CPUQuota={percent}%")
            }
        })
    }
}

impl Note {
    /// Puts in force what was before us, unless somebody else has put something in force since.
    ///
    /// # Errors
    ///
    /// The kernel's refusal; not if the cgroup is gone.
    pub fn restore(&self) -> io::Result<bool> {
        match text(&self.file) {
            Some(in_force) if in_force == self.in_force => {
                fs::write(&self.file, &self.ceiling)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// What systemd has to be told then: a unit and a property of it.
    pub fn systemd(&self) -> Option<(&str, &str)> {
        let (unit, property) = self.systemd.as_ref()?;
        Some((unit, property))
    }
}

/// Whether a directory is named as kubelet names the cgroup of the pod with this UID, with its
/// cgroupfs or its systemd driver (kubelet's `cm/cgroup_manager_linux.go`).
fn is_of_pod(directory: &Path, uid: &str) -> bool {
    let Some(name) = directory.file_name().and_then(OsStr::to_str) else {
        return false;
    };
    let slice = format!("-pod{}.slice", uid.replace('-', "_"));
    !uid.is_empty() && (name == format!("pod{uid}") || name.ends_with(&slice))
}

/// What kubelet makes of a request (its `MilliCPUToShares`).
fn shares(request: Millicores) -> u64 {
    let (least, most) = SHARES;
    let shares = request.0.saturating_mul(1024).checked_div(1000);
    shares.unwrap_or_default().clamp(least, most)
}

/// What kubelet, and runc, make of shares in version 2: one range is mapped onto the other
/// (KEP-2254).
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
    fn only_a_cgroup_with_the_pods_own_name_is_the_pods() {
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
    fn weights_are_kubelets() {
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

    /// Files as they are in version 1, with a child.
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
        // Nobody is there to be bounded.
        assert_eq!(quota(&cgroup, 0), UNLIMITED);
    }

    #[test]
    fn no_bound_is_read_and_written_in_the_kernels_words() {
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
}
