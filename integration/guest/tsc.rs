//! Prints the frequency of this machine's time stamp counter in kHz. The virtual machine's counter
//! has the same frequency, but the virtual machine's kernel cannot measure it reliably while this
//! machine is busy.

use std::arch::x86_64::_rdtsc;
use std::time::{Duration, Instant};

/// Interval between two readings, so long that an interruption of one reading does not matter.
const INTERVAL: Duration = Duration::from_millis(500);

fn main() {
    let read = || {
        // Each reading reads both clocks. Take the reading that took the least time.
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
