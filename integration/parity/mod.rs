//! Parity with containerd's own shim, which is called the reference: containers of a pod without
//! annotations of usher behave the same under both shims.
//!
//! Each scenario runs under both shims, each time on a new containerd. The observations must be
//! equal. They must also be what the test expects, because both shims could fail in the same way.

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

/// Number of attempts of a scenario under the reference. The reference sometimes loses the output
/// of a program that exits at once. Under our shim, there is one attempt.
const REFERENCE_TRIES: usize = 3;

/// Runs a scenario under the reference and under our shim. Returns the observation, which must be
/// the same in both.
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
    // The reference sometimes loses output, and the scenario then panics. So repeat the scenario.
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

fn script(runtime: &str, id: &str, script: &str) -> ContainerSpec {
    ContainerSpec::new(id).runtime(runtime).script(script)
}

/// A container that runs a witness.
fn witness(runtime: &str, id: &str, options: &[&str]) -> ContainerSpec {
    ContainerSpec::new(id).runtime(runtime).witness(options)
}

/// Starts a container that runs a witness, and waits until the witness runs.
#[track_caller]
fn run_witness(host: &Containerd, spec: &ContainerSpec) {
    host.run(spec);
    host.await_event(&spec.id, "start");
}
