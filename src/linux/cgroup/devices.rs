//! Metrics of devices, whose format is the same in cgroup v1 and v2.

use std::fs;

/// Usage or limits of an RDMA device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rdma {
    pub name: String,
    pub handles: u32,
    pub objects: u32,
}

/// Parses `mlx4_0 hca_handle=2 hca_object=max`
/// (<https://docs.kernel.org/admin-guide/cgroup-v1/rdma.html>).
pub(super) fn rdma(text: &str) -> Vec<Rdma> {
    let device = |line: &str| {
        let (name, fields) = line.split_once(' ')?;
        let number = |key: &str| {
            let field = fields
                .split_whitespace()
                .find_map(|field| field.strip_prefix(key)?.strip_prefix('='));
            match field {
                Some("max") => u32::MAX,
                field => field
                    .and_then(|digits| digits.parse().ok())
                    .unwrap_or_default(),
            }
        };
        Some(Rdma {
            name: name.to_owned(),
            handles: number("hca_handle"),
            objects: number("hca_object"),
        })
    };
    text.lines().filter_map(device).collect()
}

/// Sizes of huge pages on this machine, as spelled in the names of cgroup files (`2MB`).
pub(super) fn huge_pages() -> Vec<String> {
    let entries = fs::read_dir("/sys/kernel/mm/hugepages");
    let mut names: Vec<_> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    // read_dir has no order.
    names.sort_unstable();
    names.iter().filter_map(|name| huge_page(name)).collect()
}

/// Converts `hugepages-2048kB` to `2MB`.
pub(super) fn huge_page(name: &str) -> Option<String> {
    let size = name.strip_prefix("hugepages-")?.strip_suffix("kB")?;
    let kilobytes: u64 = size.parse().ok()?;
    Some(match kilobytes {
        1_048_576.. => format!("{}GB", kilobytes >> 20),
        1_024.. => format!("{}MB", kilobytes >> 10),
        _ => format!("{kilobytes}KB"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_huge_pages_are_spelled_as_in_the_names_of_files() {
        let names = ["hugepages-64kB", "hugepages-2048kB", "hugepages-1048576kB"];
        let spelt = names.map(|name| huge_page(name).unwrap());
        assert_eq!(spelt, ["64KB", "2MB", "1GB"]);
        assert_eq!(huge_page("other"), None);
    }

    #[test]
    fn rdma_values_are_numbers_or_max() {
        let found =
            rdma("mlx4_0 hca_handle=2 hca_object=2000\nocrdma1 hca_handle=3 hca_object=max\n");
        let device = |name: &str, handles, objects| Rdma {
            name: name.to_owned(),
            handles,
            objects,
        };
        assert_eq!(
            found,
            [device("mlx4_0", 2, 2000), device("ocrdma1", 3, u32::MAX)]
        );
    }
}
