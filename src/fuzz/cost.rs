//! Bounds on the memory and CPU time of parsing untrusted input.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// CPU time allowed for each [`SHARE`] of annotations. A part of a share counts as a whole one.
const TIME: Duration = Duration::from_millis(1);
/// Maximum number of bytes that usher reads of its own annotations on one container.
const SHARE: usize = 32 * 1024;
/// Factor by which a program takes longer without the compiler's optimization.
const SLOWNESS: u32 = if cfg!(debug_assertions) { 15 } else { 1 };
/// Bytes that may be allocated at the same time for each byte of annotations.
const MEMORY: usize = 48;
/// Additional bytes that may be allocated at the same time, for annotations of any size.
const MEMORY_ANYWAY: usize = 8 * 1024;
/// Number of attempts to stay within a time bound. One success suffices, because interrupts and
/// other threads can only make a measurement longer.
const TRIES: u32 = 20;
/// CPU time of [`yardstick`] on the machine for which the time bounds were chosen.
const YARDSTICK: Duration = Duration::from_micros(if cfg!(debug_assertions) { 2000 } else { 250 });

/// Asserts that `read`, which parses `annotations`, takes little time and memory.
///
/// # Panics
///
/// If `read` takes too much time or memory, or does not free all memory.
pub fn assert_small(annotations: &BTreeMap<String, String>, read: impl Fn()) {
    let size: usize = annotations
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    let memory = allocation_counter::measure(&read);
    let allowed = MEMORY_ANYWAY + MEMORY * size;
    assert!(
        memory.bytes_max <= allowed as u64,
        "{} bytes of memory for {size} of annotations: {annotations:?}",
        memory.bytes_max
    );
    assert_eq!(
        memory.bytes_current, 0,
        "memory is not freed: {annotations:?}"
    );

    let shares = u32::try_from(1 + size / SHARE).expect("annotations of a pod");
    let allowed = TIME * SLOWNESS * shares;
    if let Err(shortest) = try_within(allowed, read) {
        panic!("{shortest:?} for {size} bytes of annotations: {annotations:?}");
    }
}

/// CPU time that judging one pod may take.
const JUDGED_IN: Duration = Duration::from_millis(50);
/// Factor like [`SLOWNESS`], for judging a pod. It is higher because parsing JSON suffers most
/// without optimization.
const JUDGING_SLOWNESS: u32 = if cfg!(debug_assertions) { 40 } else { 1 };
/// Bytes that may be allocated at the same time for each byte of an admission review or a manifest.
const JUDGED: usize = 4;
/// Bytes that may be allocated at the same time in addition to [`JUDGED`], whatever the size of the
/// input. They also cover the containers, because a pod has at most 1,000 of them.
const JUDGED_ANYWAY: usize = 8 << 20;
/// Bound like [`JUDGED`], but for the sum of all allocations. It detects steps that are repeated
/// too often.
const JUDGED_IN_ALL: usize = 16;
/// Bound like [`JUDGED_ANYWAY`], but for the sum of all allocations.
const JUDGED_IN_ALL_ANYWAY: usize = 128 << 20;

/// Returns the outcome of `judge`, which reads and judges a pod of `size` bytes.
///
/// # Panics
///
/// If `judge` takes more memory or CPU time than a pod of that size may cost.
pub fn assert_cheap<T>(size: usize, judge: impl Fn() -> T) -> T {
    let allowed = JUDGED_IN * JUDGING_SLOWNESS;
    let (outcome, memory) = run_within(size, allowed, || {
        let mut outcome = None;
        let memory = allocation_counter::measure(|| outcome = Some(judge()));
        (outcome.expect("it was called"), memory)
    });
    let within = |bytes: u64, each: usize, anyway: usize| {
        let allowed = anyway + each * size;
        assert!(
            bytes <= allowed as u64,
            "{bytes} bytes of memory for {size}, expected at most {allowed}"
        );
    };
    within(memory.bytes_max, JUDGED, JUDGED_ANYWAY);
    within(memory.bytes_total, JUDGED_IN_ALL, JUDGED_IN_ALL_ANYWAY);
    outcome
}

/// Maximum number of bytes that the protobuf library reserves for a field before the field arrives,
/// whatever length the message announces. The value is a constant of the library. The memory is not
/// touched before the field has arrived.
pub const RESERVED_FOR_A_MESSAGE: usize = 10_000_000;

/// Returns the outcome of `read`, which parses `size` bytes.
///
/// # Panics
///
/// If `read` allocates too much memory: more than `anyway` bytes plus `each` bytes for each parsed
/// byte, at one time.
pub fn assert_bounded<T>(size: usize, each: usize, anyway: usize, read: impl FnOnce() -> T) -> T {
    let mut outcome = None;
    let memory = allocation_counter::measure(|| outcome = Some(read()));
    let allowed = anyway + each * size;
    assert!(
        memory.bytes_max <= allowed as u64,
        "{} bytes of memory for {size}, expected at most {allowed}",
        memory.bytes_max
    );
    outcome.expect("it was called")
}

/// Calls `read`, which parses `size` bytes, until one call is quick, but at most `TRIES` times.
/// Returns the outcome of the last call.
///
/// # Panics
///
/// If each call takes more of this thread's CPU time than `anyway + each * size`. The bound is
/// larger in a program without optimization and on a slow machine.
#[allow(
    dead_code,
    reason = "not every crate that has this file reads messages"
)]
pub fn assert_quick<T>(
    size: usize,
    each: Duration,
    anyway: Duration,
    read: impl FnMut() -> T,
) -> T {
    let shares = u32::try_from(size).expect("an input of a fuzzer");
    run_within(size, SLOWNESS * (anyway + each * shares), read)
}

/// Returns the outcome of `work`, which reads or judges `size` bytes.
///
/// # Panics
///
/// If `work` takes more CPU time than `allowed`.
fn run_within<T>(size: usize, allowed: Duration, work: impl FnMut() -> T) -> T {
    try_within(allowed, work).unwrap_or_else(|shortest| {
        panic!("{shortest:?} of CPU time for {size} bytes, expected at most {allowed:?}")
    })
}

/// Returns the outcome of the first attempt that takes no more CPU time than `allowed`.
///
/// On a machine that is slower than the one for which the bound was chosen, such as an emulated
/// one, the bound grows in proportion.
///
/// # Errors
///
/// The CPU time of the shortest attempt, if all took too long.
fn try_within<T>(allowed: Duration, mut work: impl FnMut() -> T) -> Result<T, Duration> {
    let mut shortest = Duration::MAX;
    for _ in 0..TRIES {
        let begin = cpu_time();
        let outcome = work();
        let taken = cpu_time() - begin;
        if taken <= allowed || taken <= allowed.mul_f64(slowness()) {
            return Ok(outcome);
        }
        shortest = shortest.min(taken);
    }
    Err(shortest)
}

/// Returns how many times longer than expected this thread takes for `yardstick`; at least 1.
fn slowness() -> f64 {
    let begin = cpu_time();
    std::hint::black_box(yardstick());
    let taken = cpu_time() - begin;
    taken.div_duration_f64(YARDSTICK).max(1.0)
}

/// Builds and searches a map of names, as reading a pod does.
fn yardstick() -> usize {
    let names = (0..1000).map(|index| (format!("name-{index}"), index));
    let names: BTreeMap<String, usize> = names.collect();
    (0..1000)
        .filter_map(|index| names.get(&format!("name-{}", index * 7 % 1000)))
        .sum()
}

fn cpu_time() -> Duration {
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    clock_gettime(clock).expect("the thread's clock").into()
}
