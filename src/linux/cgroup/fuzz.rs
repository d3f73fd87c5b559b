//! Fuzz targets: the kernel's files about cgroups and processes, and the shim's notes of a pod
//! cgroup's original values.

use containerd_shim_protos::cgroups::metrics::{MemoryOomControl, MemoryStat, Throttle};
use containerd_shim_protos::cgroups_v2::metrics as v2_metrics;

use usher_fuzz::cost::assert_bounded;

use super::pod::Note;
use super::{blkio, devices, hierarchy, read, scores, v1, v2, values};

/// Bytes that may be allocated at once for each byte of input. The number is high because a short
/// line becomes an entry with a dozen fields.
const EACH: usize = 128;
/// Bytes that may be allocated at once even for an empty input. [`EACH`] is added for each byte of
/// input.
const ANYWAY: usize = 16 * 1024;

pub(crate) fn files(input: &[u8]) {
    let text = &*String::from_utf8_lossy(input);
    let size = text.len();
    read::set(&mut Throttle::new(), text, &v1::THROTTLE);
    read::set(&mut MemoryStat::new(), text, &v1::MEMORY_STAT);
    read::set(&mut MemoryOomControl::new(), text, &v1::OOM_CONTROL);
    read::set(&mut v2_metrics::CPUStat::new(), text, &v2::CPU_STAT);
    read::set(&mut v2_metrics::MemoryStat::new(), text, &v2::MEMORY_STAT);
    read::set(
        &mut v2_metrics::MemoryEvents::new(),
        text,
        &v2::MEMORY_EVENTS,
    );
    let lines = text.lines();
    let blkio = || lines.clone().filter_map(blkio::entry).collect::<Vec<_>>();
    let entries = assert_bounded(size, EACH, ANYWAY, blkio);
    assert!(entries.len() <= lines.count());
    let _ = blkio::device(text, 8, 0);
    let rdma = assert_bounded(size, EACH, ANYWAY, || devices::rdma(text));
    assert!(rdma.iter().all(|device| !device.name.contains(' ')));
    let _ = devices::huge_page(text);
    let _ = values::quota_v2(text);
    let _ = v2::pressure(text);
    assert_bounded(size, EACH, ANYWAY, || v2::io(text));
}

/// Parses the input as `/proc/<pid>/status` and as `/proc/<pid>/uid_map`.
pub(crate) fn status(input: &[u8]) {
    let text = &*String::from_utf8_lossy(input);
    let _ = scores::is_first(text);
    let _ = scores::has_resource(text);
}

/// Parses the input as notes of a pod cgroup's original values. Restores no value.
pub(crate) fn notes(input: &[u8]) {
    let read = || serde_json::from_slice::<Vec<Note>>(input);
    if let Ok(notes) = assert_bounded(input.len(), EACH, ANYWAY, read) {
        let again = serde_json::to_vec(&notes).expect("notes are JSON");
        let again: Vec<Note> = serde_json::from_slice(&again).expect("and are read as that");
        assert_eq!(notes.len(), again.len());
    }
}

pub(crate) fn mountinfo(input: &[u8]) {
    let table = &*String::from_utf8_lossy(input);
    let found = assert_bounded(table.len(), 16, 1024, || hierarchy::mounted_in(table));
    assert!(found.len() <= table.lines().count());
}
