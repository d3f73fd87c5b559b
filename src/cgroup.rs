//! The cgroup of a container: its figures, and who lives in it. Version 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};

use cgroups_rs::fs::{Cgroup, Controller, Subsystem};
use containerd_shim::cgroup::{collect_metrics, collect_metrics_v2, get_cgroup};
use containerd_shim::util::convert_to_any;
use containerd_shim_protos::protobuf::well_known_types::any::Any;

/// The kernel counts the CPU time that `cpuacct.stat` gives in ticks of this length.
const NANOS_PER_TICK: u64 = 10_000_000;

/// The figures of the cgroup that process `pid` is in, as containerd's metrics of that version.
///
/// # Errors
///
/// One sentence if they cannot be read.
pub fn metrics(pid: i32) -> Result<Any, String> {
    let cgroup = of(pid)?;
    let metrics = match cgroup.v2() {
        true => collect_metrics_v2(&cgroup).map(|metrics| convert_to_any(Box::new(metrics))),
        false => collect_metrics(&cgroup).map(|mut metrics| {
            // The library takes the v1 figures from the cpu controller, which has none of them.
            if let Some(cpuacct) = controller_path(&cgroup, |subsystem| match subsystem {
                Subsystem::CpuAcct(controller) => Some(controller.path()),
                _ => None,
            }) {
                let usage = metrics.mut_cpu().mut_usage();
                usage.set_total(number(&cpuacct.join("cpuacct.usage")));
                usage.per_cpu = numbers(&cpuacct.join("cpuacct.usage_percpu"));
                let ticks = |key| keyed(&cpuacct.join("cpuacct.stat"), key);
                usage.set_user(ticks("user").saturating_mul(NANOS_PER_TICK));
                usage.set_kernel(ticks("system").saturating_mul(NANOS_PER_TICK));
            }
            convert_to_any(Box::new(metrics))
        }),
    };
    metrics
        .and_then(|any| any)
        .map_err(|error| format!("figures of the cgroup of process {pid}: {error}"))
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

fn controller_path<'a>(
    cgroup: &'a Cgroup,
    which: impl Fn(&'a Subsystem) -> Option<&'a Path>,
) -> Option<PathBuf> {
    cgroup
        .subsystems()
        .iter()
        .find_map(which)
        .map(Path::to_owned)
}

fn numbers(file: &Path) -> Vec<u64> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect()
}

fn number(file: &Path) -> u64 {
    numbers(file).first().copied().unwrap_or(0)
}

fn keyed(file: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let values = text
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    values.last().unwrap_or(0)
}
