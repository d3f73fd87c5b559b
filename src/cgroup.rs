//! The cgroup of a container: its figures, and who lives in it. Version 1 and 2.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use cgroups_rs::fs::{Cgroup, Controller, Subsystem};
use containerd_shim::cgroup::{collect_metrics, collect_metrics_v2, get_cgroup};
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

/// The figures of the cgroup that process `pid` is in, as containerd's metrics of that version.
///
/// # Errors
///
/// One sentence if they cannot be read.
pub fn metrics(pid: i32) -> Result<Any, String> {
    let cgroup = of(pid)?;
    let metrics = match cgroup.v2() {
        true => collect_metrics_v2(&cgroup).and_then(|metrics| convert_to_any(Box::new(metrics))),
        false => collect_metrics(&cgroup).and_then(|mut metrics| {
            complete(&mut metrics, &cgroup);
            convert_to_any(Box::new(metrics))
        }),
    };
    metrics.map_err(|error| format!("figures of the cgroup of process {pid}: {error}"))
}

/// The processes in the cgroup that process `pid` is in.
///
/// # Errors
///
/// One sentence if they cannot be read.
pub fn processes(pid: i32) -> Result<Vec<u32>, String> {
    let processes = of(pid)?.procs();
    Ok(processes
        .into_iter()
        .filter_map(|pid| u32::try_from(pid.pid).ok())
        .collect())
}

fn of(pid: i32) -> Result<Cgroup, String> {
    let number = u32::try_from(pid).map_err(|_| format!("process {pid} cannot be"))?;
    get_cgroup(number).map_err(|error| format!("cgroup of process {pid}: {error}"))
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
