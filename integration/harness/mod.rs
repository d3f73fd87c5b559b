//! A real containerd for one test, with real parts: `ctr`, `runc`, a static busybox, and the
//! [witness](../witness.rs), which containers run to record their events.
//!
//! ```no_run
//! let host = Containerd::start();
//! host.run(&ContainerSpec::new("proxy").witness(&["--listen", "8080"]));
//! host.await_record("proxy is ready", |r| r.has("proxy", "ready"));
//! host.kill("proxy", "SIGTERM");
//! assert_eq!(host.wait_exit("proxy"), 0);
//! ```
//!
//! Every wait has a timeout. A failed test prints the containers' record, containerd's events and
//! the end of its log. Dropping a [`Containerd`] deletes the test's containers, and then looks for
//! leaks of the shim: processes, mounts, cgroups, sockets, state. Leaks fail the test, and are
//! removed.
//!
//! These environment variables configure the tests:
//!
//! | variable | meaning | default |
//! |---|---|---|
//! | `USHER_TEST_CONTAINERD` | directory with `usr/bin/containerd`, `ctr` and containerd's shims | the installed one |
//! | `USHER_TEST_OCI_RUNTIME` | OCI runtime that the shims find as `runc`: `runc`, `crun` or `youki` | `runc` |
//! | `USHER_TEST_RUNTIME` | runtime under test; with `io.containerd.runc.v2` our shim replaces containerd's own | `io.containerd.usher.v2` |
//! | `USHER_TEST_OLD_KERNEL` | `1` runs the shims without the system calls that are newer than Linux 5.0 | |
//! | `USHER_TEST_TIME_SCALE` | how many times slower than usual the machine is | 1 |
//! | `USHER_TEST_PREFIX` | prefix of the names of directories and namespaces | `usher-it-` |
//! | `USHER_TEST_KEEP` | `1` keeps the directory of a failed test | |

// Each target (tests, demo, benches) uses only a part of the harness.
#![allow(dead_code, unused_imports)]

mod bare;
mod command;
mod containerd;
mod costs;
mod cri;
mod ctr;
mod environment;
mod events;
mod fifo;
mod gate;
mod image;
mod leaks;
mod mount_ns;
mod oci;
mod pod_cgroup;
mod pod_end;
mod programs;
mod record;
mod rootfs;
mod shim;
mod spec;

use std::time::{Duration, Instant};

pub use bare::{BareShim, add_poststart_hook, add_user_namespace, default_config, host_pids};
pub use command::{Background, Finished, run};
pub use containerd::{Containerd, Settings};
pub use costs::{number_of, processor_ticks, processor_time, proportional_memory};
pub use cri::{Container, Cri, CriSettings, Handler, Pod, PodSpec};
pub use ctr::{Status, Task};
pub use environment::{
    Shims, Version, criu_works, installed_path, installed_program, oci_runtime, on_old_kernel,
    scaled, shim_dir, shim_program, time_scale, words_for_missing,
};
pub use events::CtrEvent;
pub use fifo::Reader;
pub use gate::Gates;
pub use image::{Image, make_archive};
pub use leaks::{process_state, zombies};
pub use mount_ns::{Isolation, MountNs};
pub use oci::OciRuntime;
pub use pod_cgroup::{CgroupFiles, PodCgroup, annotate, await_value, has_controllers, on_v2};
pub use pod_end::Stopped;
pub use programs::{copy_program, write_program};
pub use record::{Event, Record};
pub use rootfs::{build, populate};
pub use shim::{Answer, Endpoint, Service, Shim, TaskApi};
pub use spec::ContainerSpec;

/// Timeout of most waits, ample even on two busy cores. Like all timeouts, it is multiplied by
/// [`time_scale`].
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The runtime type of containerd's own shim, with which tests compare our shim.
pub const REFERENCE: &str = "io.containerd.runc.v2";

/// Returns `long` if `USHER_TEST_LONG` is `1`, else `short`.
pub fn times(short: usize, long: usize) -> usize {
    match std::env::var_os("USHER_TEST_LONG").is_some_and(|value| value == "1") {
        true => long,
        false => short,
    }
}

pub fn runtime_under_test() -> String {
    std::env::var("USHER_TEST_RUNTIME").unwrap_or_else(|_| "io.containerd.usher.v2".to_owned())
}

/// Polls until `probe` returns a value, for at most `deadline`.
pub fn poll<T>(deadline: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + scaled(deadline);
    loop {
        if let Some(found) = probe() {
            return Some(found);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits for a condition, and fails the test after `deadline`.
#[track_caller]
pub fn eventually(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    if poll(deadline, || condition().then_some(())).is_none() {
        panic!("within {deadline:?} it never came true that {what}");
    }
}

/// Moves a process into new child cgroups of its cgroups, as an init system in a container does.
/// Returns false if the move failed, for example because the process has exited.
pub fn move_below(pid: u32) -> bool {
    let paths = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let on_v2 = std::path::Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let mut moved = 0;
    for line in paths.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap(), fields.next().unwrap());
        let hierarchy = match controllers {
            "" if on_v2 => "",
            "" => "unified",
            other => other.trim_start_matches("name="),
        };
        let below = std::path::Path::new("/sys/fs/cgroup")
            .join(hierarchy)
            .join(path.trim_start_matches('/'))
            .join("below");
        let _ = std::fs::create_dir(&below);
        moved += usize::from(std::fs::write(below.join("cgroup.procs"), pid.to_string()).is_ok());
    }
    moved > 0
}
