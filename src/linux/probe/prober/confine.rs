//! Confinement: a prober gives up rights before it talks to a server.

use std::fmt::Display;

use caps::CapSet;
use nix::sys::prctl::{set_dumpable, set_name, set_no_new_privs};
use nix::sys::resource::{Resource, rlim_t, setrlimit};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

/// The user and group that own nothing.
const NOBODY: u32 = 65534;

/// Resource limits, soft and hard: address space in bytes, CPU time in seconds, descriptors. An
/// attempt takes 20 MB, a few milliseconds, and a dozen descriptors.
const LIMITS: [(Resource, rlim_t); 6] = [
    (Resource::RLIMIT_AS, 128 * 1024 * 1024),
    (Resource::RLIMIT_CPU, 1),
    (Resource::RLIMIT_NOFILE, 32),
    // A prober writes no files, starts no processes and leaves no core dump.
    (Resource::RLIMIT_FSIZE, 0),
    (Resource::RLIMIT_NPROC, 0),
    (Resource::RLIMIT_CORE, 0),
];

/// Gives up the process's user, groups and capabilities, and every way to regain them. Sets
/// resource limits. Returns the rights that could not be given up, for example because the user
/// does not exist in the shim's user namespace. The attempt is made even then, confined as far as
/// possible.
pub(super) fn confine() -> Vec<String> {
    let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    // The order matters: a later step gives up the rights that an earlier step needs.
    let steps = [
        step("bounding capabilities", caps::clear(None, CapSet::Bounding)),
        step("groups", setgroups(&[])),
        step("its group", setresgid(group, group, group)),
        step("its user", setresuid(user, user, user)),
        step(
            "capabilities to inherit",
            caps::clear(None, CapSet::Inheritable),
        ),
        step(
            "permitted capabilities",
            caps::clear(None, CapSet::Permitted),
        ),
        step("capabilities", caps::clear(None, CapSet::Effective)),
        step("new privileges", set_no_new_privs()),
        // Other processes of the same user must not trace the prober.
        step("traces", set_dumpable(false)),
        step("its name", set_name(c"usher-prober")),
    ];
    let limits = LIMITS
        .map(|(resource, limit)| step(&format!("{resource:?}"), setrlimit(resource, limit, limit)));
    steps.into_iter().chain(limits).flatten().collect()
}

fn step<E: Display>(what: &str, outcome: Result<(), E>) -> Option<String> {
    outcome.err().map(|error| format!("{what} ({error})"))
}
