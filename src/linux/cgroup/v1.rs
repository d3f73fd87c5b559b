//! A v1 cgroup: a directory in the hierarchy of each controller.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use cgroups_rs::fs::Controllers;
use containerd_shim_protos::cgroups::metrics::{
    CPUStat, CPUUsage, HugetlbStat, MemoryEntry, MemoryOomControl, MemoryStat, Metrics, PidsStat,
    RdmaEntry, RdmaStat, Throttle,
};

use super::hierarchy::Hierarchy;
use super::read::{Setter, number, set, text, value};
use super::{blkio, devices};

/// Nanoseconds in a tick, the unit of CPU time in `cpuacct.stat` (`USER_HZ` is 100 on all
/// architectures that containers run on).
const NANOS_PER_TICK: u64 = 10_000_000;

/// Keys in `cpu.stat`, and the fields of containerd's message for their values
/// (<https://docs.kernel.org/scheduler/sched-bwc.html>).
pub(super) const THROTTLE: [Setter<Throttle>; 3] = [
    ("nr_periods", Throttle::set_periods),
    ("nr_throttled", Throttle::set_throttled_periods),
    ("throttled_time", Throttle::set_throttled_time),
];

/// Keys in `memory.stat`, and the fields of containerd's message for their values
/// (<https://docs.kernel.org/admin-guide/cgroup-v1/memory.html>, section 5.2).
pub(super) const MEMORY_STAT: [Setter<MemoryStat>; 32] = [
    ("cache", MemoryStat::set_cache),
    ("rss", MemoryStat::set_rss),
    ("rss_huge", MemoryStat::set_rss_huge),
    ("mapped_file", MemoryStat::set_mapped_file),
    ("dirty", MemoryStat::set_dirty),
    ("writeback", MemoryStat::set_writeback),
    ("pgpgin", MemoryStat::set_pg_pg_in),
    ("pgpgout", MemoryStat::set_pg_pg_out),
    ("pgfault", MemoryStat::set_pg_fault),
    ("pgmajfault", MemoryStat::set_pg_maj_fault),
    ("inactive_anon", MemoryStat::set_inactive_anon),
    ("active_anon", MemoryStat::set_active_anon),
    ("inactive_file", MemoryStat::set_inactive_file),
    ("active_file", MemoryStat::set_active_file),
    ("unevictable", MemoryStat::set_unevictable),
    (
        "hierarchical_memory_limit",
        MemoryStat::set_hierarchical_memory_limit,
    ),
    (
        "hierarchical_memsw_limit",
        MemoryStat::set_hierarchical_swap_limit,
    ),
    ("total_cache", MemoryStat::set_total_cache),
    ("total_rss", MemoryStat::set_total_rss),
    ("total_rss_huge", MemoryStat::set_total_rss_huge),
    ("total_mapped_file", MemoryStat::set_total_mapped_file),
    ("total_dirty", MemoryStat::set_total_dirty),
    ("total_writeback", MemoryStat::set_total_writeback),
    ("total_pgpgin", MemoryStat::set_total_pg_pg_in),
    ("total_pgpgout", MemoryStat::set_total_pg_pg_out),
    ("total_pgfault", MemoryStat::set_total_pg_fault),
    ("total_pgmajfault", MemoryStat::set_total_pg_maj_fault),
    ("total_inactive_anon", MemoryStat::set_total_inactive_anon),
    ("total_active_anon", MemoryStat::set_total_active_anon),
    ("total_inactive_file", MemoryStat::set_total_inactive_file),
    ("total_active_file", MemoryStat::set_total_active_file),
    ("total_unevictable", MemoryStat::set_total_unevictable),
];

/// Keys in `memory.oom_control`, and the fields of containerd's message for their values (section
/// 10 of the kernel's page on memory).
pub(super) const OOM_CONTROL: [Setter<MemoryOomControl>; 3] = [
    ("oom_kill_disable", MemoryOomControl::set_oom_kill_disable),
    ("under_oom", MemoryOomControl::set_under_oom),
    ("oom_kill", MemoryOomControl::set_oom_kill),
];

#[derive(Debug)]
pub(super) struct V1 {
    /// Path of the cgroup below the mount point, for all controllers that are not in `others`.
    below: Box<Path>,
    /// Controllers for which the cgroup has another path than `below`, each with that path.
    others: Box<[(Controllers, Box<Path>)]>,
}

impl V1 {
    /// The cgroup with these paths, one for each controller, in the form of `/proc/<pid>/cgroup`.
    pub fn new(paths: &HashMap<String, String>) -> Option<V1> {
        let Hierarchy::V1(mounts) = Hierarchy::get() else {
            return None;
        };
        let mut places = mounts.iter().filter_map(|(controller, mount)| {
            let path = paths.get(&controller.to_string())?;
            Some((controller.clone(), mount.below(path)))
        });
        let (_, below) = places.next()?;
        let others = places.filter(|(_, other)| *other != below);
        Some(V1 {
            below: below.into(),
            others: others.map(|(name, other)| (name, other.into())).collect(),
        })
    }

    /// The cgroup that has this path in all hierarchies; `None` if no hierarchy is mounted.
    pub fn at(path: &str) -> Option<V1> {
        let Hierarchy::V1(mounts) = Hierarchy::get() else {
            return None;
        };
        (!mounts.is_empty()).then(|| V1 {
            below: Path::new(path.trim_start_matches('/')).into(),
            others: Box::default(),
        })
    }

    /// Returns the parent of this cgroup, or `None` if the parent is the root cgroup.
    pub fn parent(&self) -> Option<V1> {
        let above = |path: &Path| -> Option<Box<Path>> { path.parent().map(Box::from) };
        let below = above(&self.below).filter(|below| !below.as_os_str().is_empty())?;
        let others = self.others.iter();
        let others = others.filter_map(|(name, other)| Some((name.clone(), above(other)?)));
        Some(V1 {
            below,
            others: others.collect(),
        })
    }

    /// Directory of this cgroup in a controller's hierarchy; `None` if the machine does not have
    /// the controller.
    pub fn directory(&self, controller: &Controllers) -> Option<PathBuf> {
        let mut others = self.others.iter();
        let other = others.find(|(name, _)| name == controller);
        let below = other.map_or(&self.below, |(_, below)| below);
        let mount = Hierarchy::get().mount(controller)?;
        Some(mount.directory(below))
    }

    /// Returns the directories of this cgroup, one in each mounted hierarchy.
    pub fn directories(&self) -> BTreeSet<PathBuf> {
        let Hierarchy::V1(mounts) = Hierarchy::get() else {
            return BTreeSet::new();
        };
        let controllers = mounts.iter().map(|(controller, _)| controller);
        controllers
            .filter_map(|controller| self.directory(controller))
            .collect()
    }

    /// Returns containerd's message of v1 metrics; values that the kernel lacks are left out.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.set_cpu(self.cpu());
        let directory = |controller| self.directory(&controller);
        if let Some(memory) = directory(Controllers::Mem) {
            add_memory(&mut metrics, &memory);
        }
        if let Some(pids) = directory(Controllers::Pids).and_then(|pids| pids_of(&pids)) {
            metrics.set_pids(pids);
        }
        if let Some(blkio) = directory(Controllers::BlkIo) {
            metrics.set_blkio(blkio::stat(&blkio));
        }
        if let Some(hugetlb) = directory(Controllers::HugeTlb) {
            metrics.hugetlb = hugetlb_of(&hugetlb);
        }
        if let Some(rdma) = directory(Controllers::Rdma).and_then(|rdma| rdma_of(&rdma)) {
            metrics.set_rdma(rdma);
        }
        metrics
    }

    fn cpu(&self) -> CPUStat {
        let mut cpu = CPUStat::new();
        let cpuacct = self.directory(&Controllers::CpuAcct);
        cpu.set_usage(cpuacct.map(|cpuacct| usage(&cpuacct)).unwrap_or_default());
        let throttling = cpu.mut_throttling();
        let directory = self.directory(&Controllers::Cpu);
        if let Some(text) = directory.and_then(|directory| text(&directory.join("cpu.stat"))) {
            set(throttling, &text, &THROTTLE);
        }
        cpu
    }
}

fn usage(cpuacct: &Path) -> CPUUsage {
    let read = |name| text(&cpuacct.join(name)).unwrap_or_default();
    let ticks = read("cpuacct.stat");
    let nanos = |key| {
        value(&ticks, key)
            .unwrap_or_default()
            .saturating_mul(NANOS_PER_TICK)
    };
    let per_cpu = read("cpuacct.usage_percpu");
    CPUUsage {
        total: number(&cpuacct.join("cpuacct.usage")).unwrap_or_default(),
        user: nanos("user"),
        kernel: nanos("system"),
        per_cpu: per_cpu
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect(),
        ..CPUUsage::new()
    }
}

fn add_memory(metrics: &mut Metrics, memory: &Path) {
    if let Some(text) = text(&memory.join("memory.stat")) {
        let message = metrics.mut_memory();
        set(message, &text, &MEMORY_STAT);
        message.set_usage(entry(memory, "memory"));
        message.set_swap(entry(memory, "memory.memsw"));
        message.set_kernel(entry(memory, "memory.kmem"));
        message.set_kernel_tcp(entry(memory, "memory.kmem.tcp"));
    }
    if let Some(text) = text(&memory.join("memory.oom_control")) {
        set(metrics.mut_memory_oom_control(), &text, &OOM_CONTROL);
    }
}

fn entry(memory: &Path, prefix: &str) -> MemoryEntry {
    let read = |what| number(&memory.join(format!("{prefix}.{what}"))).unwrap_or_default();
    MemoryEntry {
        usage: read("usage_in_bytes"),
        limit: read("limit_in_bytes"),
        max: read("max_usage_in_bytes"),
        failcnt: read("failcnt"),
        ..MemoryEntry::new()
    }
}

fn pids_of(pids: &Path) -> Option<PidsStat> {
    // For a v1 cgroup without a limit, containerd's own shim reports 0.
    let limit = number(&pids.join("pids.max")).filter(|limit| *limit != u64::MAX);
    Some(PidsStat {
        current: number(&pids.join("pids.current"))?,
        limit: limit.unwrap_or_default(),
        ..PidsStat::new()
    })
}

fn hugetlb_of(hugetlb: &Path) -> Vec<HugetlbStat> {
    let stat = |pagesize: String| {
        let read = |what| number(&hugetlb.join(format!("hugetlb.{pagesize}.{what}")));
        Some(HugetlbStat {
            usage: read("usage_in_bytes")?,
            max: read("max_usage_in_bytes").unwrap_or_default(),
            failcnt: read("failcnt").unwrap_or_default(),
            pagesize,
            ..HugetlbStat::new()
        })
    };
    devices::huge_pages().into_iter().filter_map(stat).collect()
}

fn rdma_of(rdma: &Path) -> Option<RdmaStat> {
    let entries = |file: &str| {
        let devices = devices::rdma(&text(&rdma.join(file))?);
        let entry = |device: devices::Rdma| RdmaEntry {
            device: device.name,
            hca_handles: device.handles,
            hca_objects: device.objects,
            ..RdmaEntry::new()
        };
        Some(devices.into_iter().map(entry).collect())
    };
    Some(RdmaStat {
        current: entries("rdma.current")?,
        limit: entries("rdma.max")?,
        ..RdmaStat::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_the_root_cgroup_has_no_parent() {
        let parent = |path: &str| {
            let cgroup = V1 {
                below: Path::new(path).into(),
                others: Box::new([(Controllers::Mem, Path::new("other/a").into())]),
            };
            let parent = cgroup.parent()?;
            Some((parent.below, parent.others))
        };
        let (below, others) = parent("pod/a").unwrap();
        assert_eq!(&*below, Path::new("pod"));
        assert_eq!(&*others[0].1, Path::new("other"));
        assert!(parent("pod").is_none());
        assert!(parent("").is_none());
    }
}
