//! What reading something may cost, whatever it is.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// For each [`SHARE`] of annotations that is begun.
const TIME: Duration = Duration::from_millis(1);
/// As much as usher reads of its own annotations on one container, in bytes.
const SHARE: usize = 32 * 1024;
/// What a program takes longer that was not optimized.
const SLOWNESS: u32 = if cfg!(debug_assertions) { 15 } else { 1 };
/// How many bytes may be allocated at once for each that is read of annotations, and in any case.
const MEMORY: usize = 48;
const MEMORY_ANYWAY: usize = 8 * 1024;
/// Attempts to stay within a bound of time. Interrupts and other threads only ever make a measurement
/// longer, so one attempt that is short enough counts.
const TRIES: u32 = 20;
/// CPU time of [`yardstick`] on the machine that the bounds of time hold for.
const YARDSTICK: Duration = Duration::from_micros(if cfg!(debug_assertions) { 2000 } else { 250 });

/// # Panics
///
/// If `read`, which reads `annotations`, takes too much time or memory, or keeps some.
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
    assert_eq!(memory.bytes_current, 0, "memory is kept: {annotations:?}");

    let shares = u32::try_from(1 + size / SHARE).expect("annotations of a pod");
    let allowed = TIME * SLOWNESS * shares;
    if let Err(shortest) = try_within(allowed, read) {
        panic!("{shortest:?} for {size} bytes of annotations: {annotations:?}");
    }
}

/// The CPU time that judging one pod may take, whatever it says.
const JUDGED_IN: Duration = Duration::from_millis(50);
/// Reading JSON suffers most from not being optimized.
const JUDGING_SLOWNESS: u32 = if cfg!(debug_assertions) { 40 } else { 1 };
/// Bytes allocated at once for each byte of a review or a manifest, and in any case: a pod has at most
/// 1,000 containers.
const JUDGED: usize = 4;
const JUDGED_ANYWAY: usize = 8 << 20;
/// Bytes allocated in all, one after another: a step that repeats allocates each time.
const JUDGED_IN_ALL: usize = 16;
const JUDGED_IN_ALL_ANYWAY: usize = 128 << 20;

/// Returns the outcome of `judge`, which reads and judges a pod of `size` bytes.
///
/// # Panics
///
/// If `judge` takes more memory or CPU time than a pod of that size may cost.
pub fn assert_cheap<T>(size: usize, judge: impl Fn() -> T) -> T {
    let mut outcome = None;
    let memory = allocation_counter::measure(|| outcome = Some(judge()));
    let within = |bytes: u64, each: usize, anyway: usize| {
        let allowed = anyway + each * size;
        assert!(
            bytes <= allowed as u64,
            "{bytes} bytes of memory for {size}, expected at most {allowed}"
        );
    };
    within(memory.bytes_max, JUDGED, JUDGED_ANYWAY);
    within(memory.bytes_total, JUDGED_IN_ALL, JUDGED_IN_ALL_ANYWAY);
    let allowed = JUDGED_IN * JUDGING_SLOWNESS;
    if let Err(shortest) = try_within(allowed, &judge) {
        panic!("{shortest:?} of CPU time for {size} bytes, expected at most {allowed:?}");
    }
    outcome.expect("it was called")
}

/// As much memory, in bytes, is reserved for a field of a message that says it is that long, before
/// the field is there: a constant of the library. Nothing of it is touched.
pub const RESERVED_FOR_A_MESSAGE: usize = 10_000_000;

/// # Panics
///
/// If `read` takes more memory at once than `each` bytes for each of the `size` bytes that it reads,
/// and `anyway` in any case.
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

/// Reads something, again if it was slow, and returns what the last reading did.
///
/// # Panics
///
/// If each time `read` takes more CPU time of this thread than `each` for each of the `size` bytes that it
/// reads, and `anyway` in any case.
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
    let size = u32::try_from(size).expect("an input of a fuzzer");
    let allowed = SLOWNESS * (anyway + each * size);
    try_within(allowed, read).unwrap_or_else(|shortest| {
        panic!("{shortest:?} of CPU time for {size} bytes, expected at most {allowed:?}")
    })
}

/// Returns the outcome of the first attempt that takes no more CPU time than `allowed`.
///
/// A machine that is slower than the one the bound holds for, an emulated one above all, is allowed more in
/// proportion.
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

/// Returns how many times as long as expected this thread takes for a known piece of work, at least 1.
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
