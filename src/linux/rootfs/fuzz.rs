//! Fuzz targets: mount options and tables of mounts.

use usher_fuzz::cost::assert_bounded;

use super::{below, idmap, layers, options};

/// Bytes that may be allocated at the same time for each byte of input.
const EACH: usize = 96;
/// Bytes that may be allocated at the same time even for an empty input. [`EACH`] is added for each
/// byte of input.
const ANYWAY: usize = 16 * 1024;

/// Parses the input as options, one per line.
pub(crate) fn mounts(input: &[u8]) {
    let text = &*String::from_utf8_lossy(input);
    let words: Vec<String> = text.lines().map(str::to_owned).collect();
    let options = assert_bounded(text.len(), EACH, ANYWAY, || options::Options::parse(&words));
    if let Ok(Some(data)) = options.data() {
        assert!(data.len() < 4096);
    }
    for map in options.uidmap.iter().chain(&options.gidmap) {
        if let Ok(table) = idmap::table("uidmap", map) {
            assert!(table.lines().all(|line| line.split(' ').count() == 3));
        }
    }
    for word in &words {
        let lower = layers::directories(word);
        if let Some(common) = layers::common_directory(&lower) {
            assert!(lower.iter().all(|path| path.starts_with(&common)));
        }
    }
}

pub(crate) fn mountinfo(input: &[u8]) {
    let read = || below::mounts(input).count();
    assert_bounded(input.len(), EACH, ANYWAY, read);
}
