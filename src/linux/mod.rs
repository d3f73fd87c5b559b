//! Functions for files on Linux: parsing `/proc/<pid>/stat`, and replacing a file in one step.

pub mod files;
mod process_stat;

pub use process_stat::ProcessStat;

/// Fuzzes the parser of `/proc/<pid>/stat`.
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz(input: &[u8]) {
    let read = || ProcessStat::parse(input);
    crate::fuzz::cost::assert_bounded(input.len(), 16, 1024, read);
}
