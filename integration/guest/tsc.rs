//! Prints how many thousand times a second this machine's time stamp counter ticks. The guest's is
//! the same one; left to find out by itself, its kernel errs by far when the machine is busy.

use std::arch::x86_64::_rdtsc;
use std::time::{Duration, Instant};

/// Long enough that an interruption between the two readings of an end does not matter.
const INTERVAL: Duration = Duration::from_millis(500);

fn main() {
    let read = || {
        // The least disturbed of several readings of both clocks.
        let readings = (0..100).map(|_| {
            let before = Instant::now();
            // SAFETY: every processor of this architecture has the instruction.
            let ticks = unsafe { _rdtsc() };
            (before.elapsed(), before, ticks)
        });
        let (_, at, ticks) = readings.min_by_key(|reading| reading.0).expect("readings");
        (at, ticks)
    };
    let (from, first) = read();
    std::thread::sleep(INTERVAL);
    let (to, last) = read();
    let ticks = (last - first) as f64;
    println!("{:.0}", ticks / (to - from).as_secs_f64() / 1e3);
}
