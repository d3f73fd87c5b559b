//! Memory and CPU limits of cgroups, as cells of a table.

use usher_api as api;

/// The used memory, the memory limit, and the CPU limit in CPUs.
pub(super) fn cells(cgroup: &api::Cgroup) -> [String; 3] {
    let none = || "none".to_owned();
    [
        cgroup.memory_usage.map_or_else(|| "-".to_owned(), bytes),
        cgroup.memory_limit.map_or_else(none, bytes),
        cgroup
            .cpu_limit
            .map_or_else(none, |cpus| format!("{cpus:.2}")),
    ]
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
    fn bytes_are_shown_in_the_largest_fitting_unit() {
        let texts: Vec<_> = [512, 1024, 3 << 19, 5 << 30]
            .into_iter()
            .map(bytes)
            .collect();
        assert_eq!(texts, ["512", "1.0Ki", "1.5Mi", "5.0Gi"]);
    }
}
