//! A v2 cgroup: one directory with the files of all controllers.

use std::path::{Path, PathBuf};

use containerd_shim_protos::cgroups_v2::metrics::{
    CPUStat, HugeTlbStat, IOEntry, IOStat, MemoryEvents, MemoryStat, Metrics, PSIData, PSIStats,
    PidsStat, RdmaEntry, RdmaStat,
};

use super::devices;
use super::hierarchy::unified;
use super::read::{Setter, number, set, text, value};

/// Keys in `cpu.stat`, and the fields of containerd's message for their values
/// (<https://docs.kernel.org/admin-guide/cgroup-v2.html> explains the files of v2).
pub(super) const CPU_STAT: [Setter<CPUStat>; 8] = [
    ("usage_usec", CPUStat::set_usage_usec),
    ("user_usec", CPUStat::set_user_usec),
    ("system_usec", CPUStat::set_system_usec),
    ("nr_periods", CPUStat::set_nr_periods),
    ("nr_throttled", CPUStat::set_nr_throttled),
    ("throttled_usec", CPUStat::set_throttled_usec),
    ("nr_bursts", CPUStat::set_nr_bursts),
    ("burst_usec", CPUStat::set_burst_usec),
];

/// Keys in `memory.stat`, and the fields of containerd's message for their values.
pub(super) const MEMORY_STAT: [Setter<MemoryStat>; 31] = [
    ("anon", MemoryStat::set_anon),
    ("file", MemoryStat::set_file),
    ("kernel_stack", MemoryStat::set_kernel_stack),
    ("slab", MemoryStat::set_slab),
    ("sock", MemoryStat::set_sock),
    ("shmem", MemoryStat::set_shmem),
    ("file_mapped", MemoryStat::set_file_mapped),
    ("file_dirty", MemoryStat::set_file_dirty),
    ("file_writeback", MemoryStat::set_file_writeback),
    ("anon_thp", MemoryStat::set_anon_thp),
    ("inactive_anon", MemoryStat::set_inactive_anon),
    ("active_anon", MemoryStat::set_active_anon),
    ("inactive_file", MemoryStat::set_inactive_file),
    ("active_file", MemoryStat::set_active_file),
    ("unevictable", MemoryStat::set_unevictable),
    ("slab_reclaimable", MemoryStat::set_slab_reclaimable),
    ("slab_unreclaimable", MemoryStat::set_slab_unreclaimable),
    ("pgfault", MemoryStat::set_pgfault),
    ("pgmajfault", MemoryStat::set_pgmajfault),
    ("workingset_refault", MemoryStat::set_workingset_refault),
    ("workingset_activate", MemoryStat::set_workingset_activate),
    (
        "workingset_nodereclaim",
        MemoryStat::set_workingset_nodereclaim,
    ),
    ("pgrefill", MemoryStat::set_pgrefill),
    ("pgscan", MemoryStat::set_pgscan),
    ("pgsteal", MemoryStat::set_pgsteal),
    ("pgactivate", MemoryStat::set_pgactivate),
    ("pgdeactivate", MemoryStat::set_pgdeactivate),
    ("pglazyfree", MemoryStat::set_pglazyfree),
    ("pglazyfreed", MemoryStat::set_pglazyfreed),
    ("thp_fault_alloc", MemoryStat::set_thp_fault_alloc),
    ("thp_collapse_alloc", MemoryStat::set_thp_collapse_alloc),
];

/// Keys in `memory.events`, and the fields of containerd's message for their values.
pub(super) const MEMORY_EVENTS: [Setter<MemoryEvents>; 6] = [
    ("low", MemoryEvents::set_low),
    ("high", MemoryEvents::set_high),
    ("max", MemoryEvents::set_max),
    ("oom", MemoryEvents::set_oom),
    ("oom_kill", MemoryEvents::set_oom_kill),
    ("oom_group_kill", MemoryEvents::set_oom_group_kill),
];

#[derive(Debug)]
pub(super) struct V2 {
    directory: Box<Path>,
}

impl V2 {
    /// The cgroup with this path, in the form of `/proc/<pid>/cgroup`.
    pub fn new(path: &str) -> V2 {
        let below = path.trim_start_matches('/');
        V2 {
            directory: unified().join(below).into(),
        }
    }

    /// Returns the parent of this cgroup, or `None` if the parent is the root cgroup.
    pub fn parent(&self) -> Option<V2> {
        let above = self.directory.parent()?;
        let is_one = above.starts_with(unified()) && above != unified();
        is_one.then(|| V2 {
            directory: above.into(),
        })
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns containerd's message of v2 metrics; values that the kernel lacks are left out.
    pub fn metrics(&self) -> Metrics {
        let mut metrics = Metrics::new();
        metrics.set_pids(PidsStat {
            current: self.number("pids.current"),
            limit: self.number("pids.max"),
            ..PidsStat::new()
        });
        metrics.set_cpu(self.cpu());
        metrics.set_memory(self.memory());
        if let Some(text) = text(&self.file("memory.events")) {
            set(metrics.mut_memory_events(), &text, &MEMORY_EVENTS);
        }
        metrics.set_io(IOStat {
            usage: io(&text(&self.file("io.stat")).unwrap_or_default()),
            psi: self.pressure("io.pressure").into(),
            ..IOStat::new()
        });
        metrics.set_rdma(RdmaStat {
            current: self.rdma("rdma.current"),
            limit: self.rdma("rdma.max"),
            ..RdmaStat::new()
        });
        metrics.hugetlb = self.hugetlb();
        metrics
    }

    fn cpu(&self) -> CPUStat {
        let mut cpu = CPUStat::new();
        if let Some(text) = text(&self.file("cpu.stat")) {
            set(&mut cpu, &text, &CPU_STAT);
        }
        cpu.psi = self.pressure("cpu.pressure").into();
        cpu
    }

    fn memory(&self) -> MemoryStat {
        let mut memory = MemoryStat::new();
        if let Some(text) = text(&self.file("memory.stat")) {
            set(&mut memory, &text, &MEMORY_STAT);
        }
        memory.usage = self.number("memory.current");
        memory.usage_limit = self.number("memory.max");
        memory.max_usage = self.number("memory.peak");
        memory.swap_usage = self.number("memory.swap.current");
        memory.swap_limit = self.number("memory.swap.max");
        memory.swap_max_usage = self.number("memory.swap.peak");
        memory.psi = self.pressure("memory.pressure").into();
        memory
    }

    fn number(&self, name: &str) -> u64 {
        number(&self.file(name)).unwrap_or_default()
    }

    /// Pressure of a resource; `None` if the kernel does not account for it.
    fn pressure(&self, name: &str) -> Option<PSIStats> {
        let text = text(&self.file(name))?;
        let data = |kind| {
            let line = text.lines().find_map(|line| line.strip_prefix(kind));
            line.map(pressure).into()
        };
        Some(PSIStats {
            some: data("some "),
            full: data("full "),
            ..PSIStats::new()
        })
    }

    fn hugetlb(&self) -> Vec<HugeTlbStat> {
        let stat = |pagesize: String| {
            let file = |what| self.file(&format!("hugetlb.{pagesize}.{what}"));
            let events = text(&file("events")).unwrap_or_default();
            Some(HugeTlbStat {
                current: number(&file("current"))?,
                max: number(&file("max")).unwrap_or_default(),
                failcnt: value(&events, "max").unwrap_or_default(),
                pagesize,
                ..HugeTlbStat::new()
            })
        };
        devices::huge_pages().into_iter().filter_map(stat).collect()
    }

    fn rdma(&self, name: &str) -> Vec<RdmaEntry> {
        let text = text(&self.file(name)).unwrap_or_default();
        let entry = |device: devices::Rdma| RdmaEntry {
            device: device.name,
            hca_handles: device.handles,
            hca_objects: device.objects,
            ..RdmaEntry::new()
        };
        devices::rdma(&text).into_iter().map(entry).collect()
    }
}

/// Parses `avg10=0.00 avg60=0.12 avg300=0.00 total=1234`.
pub(super) fn pressure(fields: &str) -> PSIData {
    let field = |key| {
        let mut fields = fields.split_whitespace();
        fields.find_map(|field| field.strip_prefix(key))
    };
    let average = |key| {
        let average = field(key).and_then(|text| text.parse().ok());
        average.unwrap_or_default()
    };
    PSIData {
        avg10: average("avg10="),
        avg60: average("avg60="),
        avg300: average("avg300="),
        total: field("total=")
            .and_then(|text| text.parse().ok())
            .unwrap_or_default(),
        ..PSIData::new()
    }
}

/// Parses lines such as `8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0`.
pub(super) fn io(text: &str) -> Vec<IOEntry> {
    let entry = |line: &str| {
        let (device, fields) = line.split_once(' ')?;
        let (major, minor) = device.split_once(':')?;
        let mut entry = IOEntry {
            major: major.parse().ok()?,
            minor: minor.parse().ok()?,
            ..IOEntry::new()
        };
        for (key, value) in fields.split(' ').filter_map(|field| field.split_once('=')) {
            let value = value.parse().unwrap_or_default();
            match key {
                "rbytes" => entry.rbytes = value,
                "wbytes" => entry.wbytes = value,
                "rios" => entry.rios = value,
                "wios" => entry.wios = value,
                _ => {}
            }
        }
        Some(entry)
    };
    text.lines().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_of_the_root_cgroup_has_no_parent() {
        let parent = |path| V2::new(path).parent().map(|parent| parent.directory);
        assert_eq!(parent("/pod/a"), Some(unified().join("pod").into()));
        assert_eq!(parent("/pod"), None);
        assert_eq!(parent("/"), None);
    }

    #[test]
    fn devices_without_metrics_are_skipped() {
        let text = "8:0 \n254:0 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=5 dios=6\n7:0\n";
        let entries = io(text);
        let values: Vec<_> = entries
            .iter()
            .map(|e| (e.major, e.minor, e.rbytes, e.wbytes, e.rios, e.wios))
            .collect();
        assert_eq!(values, [(8, 0, 0, 0, 0, 0), (254, 0, 1, 2, 3, 4)]);
    }

    #[test]
    fn pressure_is_read_field_by_field() {
        let data = pressure("avg10=0.50 avg60=1.25 avg300=0.00 total=1234");
        assert_eq!((data.avg10, data.avg60, data.avg300), (0.5, 1.25, 0.0));
        assert_eq!(data.total, 1234);
    }
}
