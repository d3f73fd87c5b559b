//! Fuzz targets for all input from outside. No input may cause a panic or a hang, or take more
//! memory than its size justifies.
//!
//! A target is a function that takes any bytes. It stands beside the code that parses the bytes.
//! `scripts/fuzz` searches for failing inputs, with overflow checks. The tests run each target with
//! its seeds in `integration/fuzz/seeds`. An input that once failed is kept there, under a name
//! that describes the input.

mod annotations;
pub(crate) mod cost;
mod ttrpc;

/// The name and the function of a target. The directory with the target's seeds has the same name.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: [Target; 21] = [
    ("annotations", annotations),
    ("answers", answers),
    ("bootstrap", bootstrap),
    ("bundle", bundle),
    ("calls", calls),
    ("cgroup", cgroup),
    ("config", config),
    ("control", control),
    ("convert", convert),
    ("explain", explain),
    ("grpc", grpc),
    ("handlers", handlers),
    ("http", http),
    ("mounts", mounts),
    ("options", options),
    ("proc", proc),
    ("sandbox", sandbox),
    ("state", state),
    ("stdio", stdio),
    ("task", task),
    ("tls", tls),
];

/// Name of the target that belongs to `usher-webhook`.
#[cfg(test)]
const OF_WEBHOOK: &str = "reviews";

/// Parses annotations, in the form of [`annotations::annotations`](self::annotations::annotations).
pub fn annotations(input: &[u8]) {
    annotations::annotations(input);
}

/// Prints a shim's message to `usher` as each command does.
pub fn answers(input: &[u8]) {
    crate::cli::fuzz::answers(input);
}

/// Parses the standard input that containerd gives to the shim's command `start`.
pub fn bootstrap(input: &[u8]) {
    crate::shim::fuzz::bootstrap(input);
}

/// Reads a bundle's `config.json`, and makes all changes to it that the shim makes.
pub fn bundle(input: &[u8]) {
    crate::engine::oci::fuzz::bundle(input);
}

/// Parses the JSON and the messages inside calls of the Task service.
pub fn calls(input: &[u8]) {
    crate::pod::fuzz::calls(input);
    crate::engine::oci::fuzz::resources(input);
}

/// Parses the files of a cgroup.
pub fn cgroup(input: &[u8]) {
    crate::cgroup::fuzz::files(input);
}

/// Parses the node's configuration file.
pub fn config(input: &[u8]) {
    crate::config::fuzz(input);
}

/// Sends the input to the control socket, as ttrpc.
pub fn control(input: &[u8]) {
    ttrpc::control(input);
}

/// Converts a manifest as `usher convert` does.
pub fn convert(input: &[u8]) {
    crate::cli::fuzz::convert(input);
}

/// Explains a manifest as `usher explain` does.
pub fn explain(input: &[u8]) {
    crate::cli::fuzz::explain(input);
}

/// Parses the response to a gRPC probe.
pub fn grpc(input: &[u8]) {
    crate::probe::fuzz::grpc(input);
}

/// Parses the JSON of one probe, hook or setting.
pub fn handlers(input: &[u8]) {
    annotations::handlers(input);
}

/// Parses the response to an HTTP probe.
pub fn http(input: &[u8]) {
    crate::probe::fuzz::http(input);
}

/// Parses the options of a root file system's mounts.
pub fn mounts(input: &[u8]) {
    crate::rootfs::fuzz::mounts(input);
}

/// Parses the options of the OCI runtime.
pub fn options(input: &[u8]) {
    crate::engine::oci::fuzz::options(input);
}

/// Reads kubelet's configuration of a sandbox.
pub fn sandbox(input: &[u8]) {
    crate::engine::sandbox::fuzz::config(input);
}

/// Parses files in `/proc`.
pub fn proc(input: &[u8]) {
    crate::cgroup::fuzz::status(input);
    crate::reaper::fuzz(input);
    crate::rootfs::fuzz::mountinfo(input);
    crate::cgroup::fuzz::mountinfo(input);
    crate::linux::fuzz(input);
}

/// Parses files that the OCI runtime, or a shim that has died, has written.
pub fn state(input: &[u8]) {
    crate::cgroup::fuzz::notes(input);
    crate::engine::oci::fuzz::files(input);
    crate::engine::oci::fuzz::state(input);
}

/// Parses the address of a stream.
pub fn stdio(input: &[u8]) {
    crate::stdio::fuzz::address(input);
}

/// Sends the input to the shim's socket for containerd, as ttrpc.
pub fn task(input: &[u8]) {
    ttrpc::task(input);
}

/// Parses the response to a TLS handshake.
pub fn tls(input: &[u8]) {
    crate::probe::fuzz::tls(input);
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn no_seed_fails() {
        let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fuzz/seeds");
        for (name, target) in TARGETS {
            let inputs: Vec<_> = fs::read_dir(seeds.join(name)).unwrap().collect();
            assert!(!inputs.is_empty(), "{name} has no seeds");
            for input in inputs {
                let path = input.unwrap().path();
                println!("{}", path.display());
                target(&fs::read(path).unwrap());
            }
        }
        assert!(seeds.join(OF_WEBHOOK).is_dir());
        assert_eq!(fs::read_dir(seeds).unwrap().count(), TARGETS.len() + 1);
    }

    #[test]
    fn every_target_has_a_fuzzer_program() {
        let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("integration/fuzz/src/bin");
        for (name, _) in TARGETS {
            let program = fs::read_to_string(programs.join(format!("{name}.rs"))).unwrap();
            assert!(program.contains(&format!("usher::fuzz::{name}(")), "{name}");
        }
        let of_webhook = fs::read_to_string(programs.join(format!("{OF_WEBHOOK}.rs"))).unwrap();
        assert!(of_webhook.contains("usher_webhook::fuzz::reviews("));
        assert_eq!(fs::read_dir(programs).unwrap().count(), TARGETS.len() + 1);
    }
}
