//! A real containerd for one test, on real parts: `ctr`, `runc`, a static busybox and the
//! [witness](../witness.rs), which the containers run to record what happens to them.
//!
//! ```no_run
//! let host = Containerd::start();
//! host.run(&ContainerSpec::new("proxy").witness(&["--listen", "8080"]));
//! host.await_record("proxy is ready", |r| r.has("proxy", "ready"));
//! host.kill("proxy", "SIGTERM");
//! assert_eq!(host.wait_exit("proxy"), 0);
//! ```
//!
//! Every wait is bounded and says what was seen instead. When a [`Containerd`] is dropped, it
//! deletes what the test left running, then looks for anything that the shim left behind
//! (processes, mounts, cgroups, sockets, state); leftovers fail the test. All of it is removed,
//! also when the test panics.
//!
//! The environment chooses:
//!
//! | variable | what it chooses | default |
//! |---|---|---|
//! | `USHER_TEST_CONTAINERD` | a directory with `usr/bin/containerd`, `ctr` and containerd's shims | the installed one |
//! | `USHER_TEST_OCI_RUNTIME` | what the shims find as `runc`: `runc`, `crun` or `youki` | `runc` |
//! | `USHER_TEST_RUNTIME` | the runtime under test; with `io.containerd.runc.v2` our shim stands in the place of containerd's own | `io.containerd.usher.v2` |
//! | `USHER_TEST_TIME_SCALE` | how many times slower than usual the machine is | 1 |
//! | `USHER_TEST_PREFIX` | how the names of directories and namespaces begin | `usher-it-` |
//! | `USHER_TEST_KEEP` | `1` keeps the directory of a failed test | |

// Each target (tests, demo, bench) uses its own part of this.
#![allow(dead_code, unused_imports)]

mod bare;
mod command;
mod containerd;
mod costs;
mod cri;
mod ctr;
mod ending;
mod environment;
mod events;
mod fifo;
mod gate;
mod image;
mod leaks;
mod mount_ns;
mod oci;
mod pod_cgroup;
mod programs;
mod record;
mod rootfs;
mod shim;
mod spec;

use std::time::{Duration, Instant};

pub use bare::{BareShim, add_poststart_hook, add_user_namespace, default_config};
pub use command::{Background, Finished, run};
pub use containerd::{Containerd, Settings};
pub use costs::{number_of, processor_ticks, processor_time, proportional_memory};
pub use cri::{Container, Cri, CriSettings, Handler, Pod, PodSpec};
pub use ctr::{Status, Task};
pub use ending::Stopped;
pub use environment::{
    Shims, Version, criu_works, installed_path, installed_program, oci_runtime, scaled, shim_dir,
    shim_program, time_scale, words_for_missing,
};
pub use events::CtrEvent;
pub use fifo::Reader;
pub use gate::Gates;
pub use image::{Image, make_archive};
pub use leaks::{process_state, zombies};
pub use mount_ns::{Apart, MountNs};
pub use oci::OciRuntime;
pub use pod_cgroup::{CgroupFiles, PodCgroup, annotate, await_value, on_v2};
pub use programs::{copy_program, write_program};
pub use record::{Event, Record};
pub use rootfs::{build, populate};
pub use shim::{Answer, Endpoint, Service, Shim, TaskApi};
pub use spec::ContainerSpec;

/// What may take a machine with two busy cores a while, but never for ever. Like every bound that
/// is given to a wait, it is stretched by [`time_scale`].
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The shim of containerd itself, which ours is compared with.
pub const REFERENCE: &str = "io.containerd.runc.v2";

/// How often something is repeated: less often unless everything is to be tested, which takes long.
pub fn times(short: usize, long: usize) -> usize {
    match std::env::var_os("USHER_TEST_LONG").is_some_and(|value| value == "1") {
        true => long,
        false => short,
    }
}

/// The runtime that the tests are about.
pub fn runtime_under_test() -> String {
    std::env::var("USHER_TEST_RUNTIME").unwrap_or_else(|_| "io.containerd.usher.v2".to_owned())
}

/// Polls until `probe` gives something, at most for `deadline`.
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

/// Waits for a condition; never sleep and hope.
#[track_caller]
pub fn eventually(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    if poll(deadline, || condition().then_some(())).is_none() {
        panic!("within {deadline:?} it never came true that {what}");
    }
}

/// Moves a process to cgroups below those that it is in, as an init system does that manages cgroups
/// of its own; false if that has come to nothing, as when it has ended.
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
