//! Containers of a pod without usher annotations behave under our shim as under containerd's own
//! shim, which is called the reference.
//!
//! Each scenario runs under both shims, each time on a new containerd. The observations must be
//! equal, and must be what the test expects: two equal failures are no success.

mod api;
mod checkpoint;
mod crashes;
mod exec;
mod exits;
mod images;
mod logging;
mod memory;
mod mounts;
mod options;
mod pods;
mod signals;
mod stats;
mod stdio;
mod systemd;
mod tasks;
mod terminals;
mod waits;

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::harness::{ContainerSpec, Containerd, REFERENCE, Settings, Shims, runtime_under_test};

/// Attempts of a scenario under the reference, which sometimes loses the output of a program that
/// exits at once. Our shim has one attempt.
const REFERENCE_TRIES: usize = 3;

/// Runs a scenario under the reference and under our shim. Returns the common observation.
#[track_caller]
fn both<T: Debug + PartialEq>(scenario: impl Fn(&Containerd, &str) -> T) -> T {
    let ours = scenario(&Containerd::start(), &runtime_under_test());
    let show_reference = || {
        let host = Containerd::start_with(&Settings {
            shims: Shims::Reference,
            ..Settings::default()
        });
        scenario(&host, REFERENCE)
    };
    // If the reference loses output, its scenario may also panic.
    for _ in 1..REFERENCE_TRIES {
        if catch_unwind(AssertUnwindSafe(show_reference)).is_ok_and(|seen| seen == ours) {
            return ours;
        }
    }
    assert_eq!(
        ours,
        show_reference(),
        "left: under our {}, right: under containerd's own {REFERENCE}",
        runtime_under_test()
    );
    ours
}

/// A container that runs a shell script.
fn script(runtime: &str, id: &str, script: &str) -> ContainerSpec {
    ContainerSpec::new(id).runtime(runtime).script(script)
}

/// A container that runs a witness.
fn witness(runtime: &str, id: &str, options: &[&str]) -> ContainerSpec {
    ContainerSpec::new(id).runtime(runtime).witness(options)
}

/// Starts a witness and waits until it runs.
#[track_caller]
fn run_witness(host: &Containerd, spec: &ContainerSpec) {
    host.run(spec);
    host.await_event(&spec.id, "start");
}
