//! Memory that the kernel charges to the cgroup of a container, before and while its program runs.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use crate::harness::{ContainerSpec, Containerd, REFERENCE, on_v2, runtime_under_test};

/// Containers of each kind.
const CONTAINERS: usize = 5;

/// Time after which the memory of a container no longer changes.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// Prints figures, which are compared by readers and not by this test.
#[test]
#[ignore = "measures: scripts/bench --charged runs it in a virtual machine with cgroup v2"]
fn is_printed_for_containers_that_run_and_that_are_held() {
    assert!(on_v2(), "the memory of containers is charged to cgroup v2");
    println!("| containers | memory charged to the cgroup of a container | without cached files |");
    println!("|---|--:|--:|");
    for (what, runtime, is_held) in [
        ("running, runc.v2", REFERENCE.to_owned(), false),
        ("running, usher", runtime_under_test(), false),
        ("held, usher", runtime_under_test(), true),
    ] {
        let host = Containerd::start();
        let names = (0..CONTAINERS).map(|n| format!("app-{n}"));
        let names: Vec<String> = names.collect();
        for name in &names {
            let spec = ContainerSpec::new(name).runtime(&runtime).witness(&[]);
            host.run(&match is_held {
                true => spec
                    .in_pod(&format!("pod-{name}"), name)
                    .annotation("usher/sidecars", "never-created"),
                false => spec,
            });
            if !is_held {
                host.await_event(name, "start");
            }
        }
        thread::sleep(SETTLED_AFTER);
        let of = |words: &[&str]| {
            let sums = names.iter().map(|name| {
                let cgroup = Path::new("/sys/fs/cgroup").join(&host.namespace).join(name);
                charged(&cgroup, words)
            });
            sums.sum::<u64>() as f64 / CONTAINERS as f64 / 1e6
        };
        let (all, lasting) = (of(&["anon", "file", "kernel"]), of(&["anon", "kernel"]));
        println!("| {what} | {all:.2} MB | {lasting:.2} MB |");
        assert_eq!(
            names.iter().any(|name| host.record().has(name, "start")),
            !is_held
        );
    }
}

/// Sum of some fields of a cgroup's `memory.stat`, in bytes.
fn charged(cgroup: &Path, fields: &[&str]) -> u64 {
    let text = fs::read_to_string(cgroup.join("memory.stat")).expect("memory.stat");
    let values = text.lines().filter_map(|line| line.split_once(' '));
    let chosen = values.filter(|(field, _)| fields.contains(field));
    let bytes = chosen.map(|(_, bytes)| bytes.parse::<u64>().expect("bytes"));
    let sum = bytes.sum();
    assert!(sum > 0, "{text}");
    sum
}
