//! Block I/O metrics of cgroup v1, per device and operation. Which files contain the metrics
//! depends on the kernel's version and I/O scheduler.

use std::path::Path;

use containerd_shim_protos::cgroups::metrics::{BlkIOEntry, BlkIOStat};

use super::read::text;

/// The name of a file, and the list in containerd's message for the entries in that file.
type List = (&'static str, fn(&mut BlkIOStat) -> &mut Vec<BlkIOEntry>);

/// Files of the CFQ scheduler (kernels before 5.0, and later kernels of some vendors).
const CFQ: [List; 8] = [
    ("io_service_bytes_recursive", |blkio| {
        &mut blkio.io_service_bytes_recursive
    }),
    ("io_serviced_recursive", |blkio| {
        &mut blkio.io_serviced_recursive
    }),
    ("io_queued_recursive", |blkio| {
        &mut blkio.io_queued_recursive
    }),
    ("io_service_time_recursive", |blkio| {
        &mut blkio.io_service_time_recursive
    }),
    ("io_wait_time_recursive", |blkio| {
        &mut blkio.io_wait_time_recursive
    }),
    ("io_merged_recursive", |blkio| {
        &mut blkio.io_merged_recursive
    }),
    ("time_recursive", |blkio| &mut blkio.io_time_recursive),
    ("sectors_recursive", |blkio| &mut blkio.sectors_recursive),
];

/// Files of the kernel's throttling layer (`blk-throttle`), which counts I/O under every I/O
/// scheduler.
const THROTTLE: [List; 2] = [
    ("throttle.io_service_bytes", |blkio| {
        &mut blkio.io_service_bytes_recursive
    }),
    ("throttle.io_serviced", |blkio| {
        &mut blkio.io_serviced_recursive
    }),
];

/// Files of the BFQ scheduler, for kernels without the throttling layer.
const BFQ: [List; 2] = [
    ("bfq.io_service_bytes_recursive", |blkio| {
        &mut blkio.io_service_bytes_recursive
    }),
    ("bfq.io_serviced_recursive", |blkio| {
        &mut blkio.io_serviced_recursive
    }),
];

/// Reads the metrics from the files of the CFQ scheduler. If these have none, tries the files of
/// the throttling layer, and last those of BFQ.
pub(super) fn stat(directory: &Path) -> BlkIOStat {
    let mut blkio = BlkIOStat::new();
    for lists in [&CFQ[..], &THROTTLE, &BFQ] {
        let mut is_empty = true;
        for (file, list) in lists {
            let text = text(&directory.join(format!("blkio.{file}"))).unwrap_or_default();
            let entries = text.lines().filter_map(entry).collect::<Vec<_>>();
            is_empty &= entries.is_empty();
            *list(&mut blkio) = entries;
        }
        if !is_empty {
            name(&mut blkio);
            break;
        }
    }
    blkio
}

/// Parses a line `8:0 Read 4096`, or `8:0 4096` if the file does not tell operations apart. Returns
/// `None` for the file's last line, which has the total of all devices.
pub(super) fn entry(line: &str) -> Option<BlkIOEntry> {
    let (device, rest) = line.split_once(' ')?;
    let (major, minor) = device.split_once(':')?;
    let (op, value) = rest.rsplit_once(' ').unwrap_or(("", rest));
    Some(BlkIOEntry {
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        op: op.to_owned(),
        value: value.parse().ok()?,
        ..BlkIOEntry::new()
    })
}

/// Adds the names of the block devices that `/proc/partitions` lists.
fn name(blkio: &mut BlkIOStat) {
    let partitions = text(Path::new("/proc/partitions")).unwrap_or_default();
    for (_, list) in CFQ {
        for entry in list(blkio) {
            entry.device = device(&partitions, entry.major, entry.minor).unwrap_or_default();
        }
    }
}

pub(super) fn device(partitions: &str, major: u64, minor: u64) -> Option<String> {
    partitions.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_it = words.next()?.parse() == Ok(major) && words.next()?.parse() == Ok(minor);
        let name = words.nth(1)?;
        is_it.then(|| format!("/dev/{name}"))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn stat_of(files: &[(&str, &str)]) -> BlkIOStat {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        stat(directory.path())
    }

    fn values(entries: &[BlkIOEntry]) -> Vec<(u64, u64, &str, u64)> {
        let value = |entry: &'_ BlkIOEntry| (entry.major, entry.minor, entry.value);
        entries
            .iter()
            .map(|entry| {
                let (major, minor, number) = value(entry);
                (major, minor, entry.op.as_str(), number)
            })
            .collect()
    }

    #[test]
    fn a_schedulers_metrics_are_preferred_to_the_throttling_layers() {
        let blkio = stat_of(&[
            (
                "blkio.io_serviced_recursive",
                "8:0 Read 3\n8:0 Total 3\nTotal 3\n",
            ),
            ("blkio.sectors_recursive", "8:0 24\n"),
            ("blkio.throttle.io_serviced", "8:0 Read 99\nTotal 99\n"),
        ]);
        let serviced = values(&blkio.io_serviced_recursive);
        assert_eq!(serviced, [(8, 0, "Read", 3), (8, 0, "Total", 3)]);
        assert_eq!(values(&blkio.sectors_recursive), [(8, 0, "", 24)]);
        assert!(blkio.io_service_bytes_recursive.is_empty());
    }

    #[test]
    fn a_scheduler_that_counts_nothing_is_ignored() {
        let blkio = stat_of(&[
            ("blkio.io_serviced_recursive", "Total 0\n"),
            ("blkio.throttle.io_serviced", "254:0 Write 2\nTotal 2\n"),
            (
                "blkio.throttle.io_service_bytes",
                "254:0 Write 8192\nTotal 8192\n",
            ),
            ("blkio.bfq.io_serviced_recursive", "254:0 Write 1\n"),
        ]);
        let serviced = values(&blkio.io_serviced_recursive);
        assert_eq!(serviced, [(254, 0, "Write", 2)]);
        let bytes = values(&blkio.io_service_bytes_recursive);
        assert_eq!(bytes, [(254, 0, "Write", 8192)]);
    }

    #[test]
    fn a_device_with_several_names_gets_the_first() {
        let partitions = "major minor  #blocks  name\n\n 254        0  268435456 vda\n   8        0  1 sda\n   8        0  1 other\n";
        assert_eq!(device(partitions, 254, 0).as_deref(), Some("/dev/vda"));
        assert_eq!(device(partitions, 8, 0).as_deref(), Some("/dev/sda"));
        assert_eq!(device(partitions, 8, 1), None);
    }
}
