//! Memory and processor time of processes, as the kernel reports them.

use std::fs;

/// `USER_HZ`: ticks per second in the files of `/proc` (`include/asm-generic/param.h`).
const TICKS: f64 = 100.0;

/// Sum of the proportional set sizes of processes, in MB. If n processes share a page, one n-th of
/// the page counts for each.
pub fn proportional_memory(pids: &[u32]) -> f64 {
    let kilobytes = |pid: &u32| {
        let path = format!("/proc/{pid}/smaps_rollup");
        number_of(
            &fs::read_to_string(path).expect("a running process"),
            "Pss:",
        )
    };
    pids.iter().map(kilobytes).sum::<u64>() as f64 * 1024.0 / 1e6
}

/// Processor time of a process, in seconds.
pub fn processor_time(pid: &u32) -> f64 {
    processor_ticks(*pid) as f64 / TICKS
}

/// Processor time in ticks of 10 ms (`proc_pid_stat(5)`).
#[track_caller]
pub fn processor_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("a running process");
    let (_, fields) = stat.rsplit_once(')').expect("a process's name");
    let ticks = fields.split_whitespace().skip(11).take(2);
    ticks
        .map(|field| field.parse::<u64>().expect("ticks"))
        .sum()
}

/// The number after `key` in a file of /proc.
pub fn number_of(text: &str, key: &str) -> u64 {
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(key))
        .unwrap_or("0");
    value
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0)
}
