//! The cgroup of a container: its figures, and who lives in it. Version 1 and 2.

use std::collections::HashMap;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use cgroups_rs::fs::cgroup::get_cgroups_relative_paths_by_pid;
use cgroups_rs::fs::{Cgroup, Controller, Subsystem, hierarchies};
use containerd_shim::cgroup::{collect_metrics, collect_metrics_v2, get_cgroups_v2_path_by_pid};
use containerd_shim::util::convert_to_any;
use containerd_shim_protos::cgroups::metrics::{MemoryEntry, MemoryStat, Metrics};
use containerd_shim_protos::protobuf::well_known_types::any::Any;

/// The kernel counts the CPU time that `cpuacct.stat` gives in ticks of this length, in
/// nanoseconds (`USER_HZ` is 100 on every architecture that containers run on).
const NANOS_PER_TICK: u64 = 10_000_000;

/// A setter of the message for a key of `memory.stat`.
type Setter = fn(&mut MemoryStat, u64);

/// `memory.stat` of version 1, as far as the message has it
/// (<https://docs.kernel.org/admin-guide/cgroup-v1/memory.html>, section 5.2).
const MEMORY_STAT: [(&str, Setter); 32] = [
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

/// How many cgroups below a container's own are looked at for processes: a privileged container can
/// make as many as it likes.
const CGROUPS_AT_MOST: usize = 4096;

/// The cgroup that a container was created in. Its init may move on, as systemd does in a privileged
/// container, but this one holds whatever becomes of it.
#[derive(Debug)]
pub enum Place {
    /// For each controller the path below its hierarchy.
    V1(HashMap<String, String>),
    /// The directory.
    V2(PathBuf),
}

impl Place {
    /// The cgroup that process `pid` is in now.
    ///
    /// # Errors
    ///
    /// One sentence if it cannot be found out.
    pub fn of(pid: i32) -> Result<Place, String> {
        let failed = |error: &dyn Display| format!("cgroup of process {pid}: {error}");
        let number = u32::try_from(pid).map_err(|error| failed(&error))?;
        match hierarchies::auto().v2() {
            true => get_cgroups_v2_path_by_pid(number)
                .map(Place::V2)
                .map_err(|error| failed(&error)),
            false => get_cgroups_relative_paths_by_pid(number)
                .map(Place::V1)
                .map_err(|error| failed(&error)),
        }
    }

    /// Its figures, as containerd's metrics of that version.
    ///
    /// # Errors
    ///
    /// One sentence if they cannot be read.
    pub fn metrics(&self) -> Result<Any, String> {
        let cgroup = self.load();
        let metrics = match self {
            Place::V2(_) => {
                collect_metrics_v2(&cgroup).and_then(|metrics| convert_to_any(Box::new(metrics)))
            }
            Place::V1(_) => collect_metrics(&cgroup).and_then(|mut metrics| {
                complete(&mut metrics, &cgroup);
                convert_to_any(Box::new(metrics))
            }),
        };
        metrics.map_err(|error| format!("figures of the container's cgroup: {error}"))
    }

    /// The processes in it, and in the cgroups below it.
    pub fn processes(&self) -> Vec<u32> {
        let cgroup = self.load();
        let first = cgroup.subsystems().first();
        let mut below: Vec<PathBuf> = match self {
            Place::V2(path) => vec![path.clone()],
            Place::V1(_) => first
                .map(|subsystem| subsystem.to_controller().path().to_owned())
                .into_iter()
                .collect(),
        };
        let mut processes = Vec::new();
        for _ in 0..CGROUPS_AT_MOST {
            let Some(directory) = below.pop() else { break };
            let members = numbers(directory.join("cgroup.procs"));
            processes.extend(
                members
                    .into_iter()
                    .filter_map(|pid| u32::try_from(pid).ok()),
            );
            let entries = fs::read_dir(directory).into_iter().flatten().flatten();
            let directories =
                entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            below.extend(directories.map(|entry| entry.path()));
        }
        processes
    }

    fn load(&self) -> Cgroup {
        match self {
            Place::V2(path) => Cgroup::load(hierarchies::auto(), path),
            Place::V1(paths) => {
                Cgroup::load_with_relative_paths(hierarchies::auto(), Path::new("."), paths.clone())
            }
        }
    }
}

/// What the library leaves out of the metrics of version 1, or takes from the wrong controller.
fn complete(metrics: &mut Metrics, cgroup: &Cgroup) {
    for subsystem in cgroup.subsystems() {
        match subsystem {
            Subsystem::CpuAcct(controller) => add_cpu(metrics, controller.path()),
            Subsystem::Mem(controller) => add_memory(metrics, controller.path()),
            _ => {}
        }
    }
}

fn add_cpu(metrics: &mut Metrics, cpuacct: &Path) {
    let usage = metrics.mut_cpu().mut_usage();
    usage.set_total(number(cpuacct.join("cpuacct.usage")));
    usage.per_cpu = numbers(cpuacct.join("cpuacct.usage_percpu"));
    let ticks = keyed(cpuacct.join("cpuacct.stat"));
    let nanos = |key| {
        ticks
            .get(key)
            .map_or(0, |ticks: &u64| ticks.saturating_mul(NANOS_PER_TICK))
    };
    usage.set_user(nanos("user"));
    usage.set_kernel(nanos("system"));
}

fn add_memory(metrics: &mut Metrics, memory: &Path) {
    let message = metrics.mut_memory();
    let stat = keyed(memory.join("memory.stat"));
    for (key, set) in MEMORY_STAT {
        if let Some(value) = stat.get(key) {
            set(message, *value);
        }
    }
    message.set_usage(entry(memory, "memory"));
    message.set_swap(entry(memory, "memory.memsw"));
    message.set_kernel(entry(memory, "memory.kmem"));
    message.set_kernel_tcp(entry(memory, "memory.kmem.tcp"));
}

fn entry(memory: &Path, prefix: &str) -> MemoryEntry {
    let read = |what| number(memory.join(format!("{prefix}.{what}")));
    let mut entry = MemoryEntry::new();
    entry.set_usage(read("usage_in_bytes"));
    entry.set_limit(read("limit_in_bytes"));
    entry.set_max(read("max_usage_in_bytes"));
    entry.set_failcnt(read("failcnt"));
    entry
}

/// The numbers in a file; none where the kernel has no such file.
fn numbers(file: PathBuf) -> Vec<u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

fn number(file: PathBuf) -> u64 {
    numbers(file).first().copied().unwrap_or(0)
}

/// A file with a key and a number on each line.
fn keyed(file: PathBuf) -> HashMap<String, u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| {
        let (key, value) = line.split_once(' ')?;
        Some((key.to_owned(), value.trim().parse().ok()?))
    });
    pairs.collect()
}
