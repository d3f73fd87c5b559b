//! Fuzz targets for all input from outside. They check that no input causes a panic or a hang, or
//! takes more memory than its size justifies.
//!
//! A target is a function that accepts any bytes. Its implementation stands beside the code that
//! parses these bytes. `scripts/fuzz` searches for failing inputs, with overflow checks. The tests
//! run each target with its seeds, which are in `integration/fuzz/seeds`. An input that once failed
//! becomes a seed, under a name that describes it.

mod annotations;
pub(crate) mod cost;
mod ttrpc;

/// A target with its name, which is also the name of its directory of seeds.
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

/// Name of the only target that is in the crate `usher-webhook`.
#[cfg(test)]
const OF_WEBHOOK: &str = "reviews";

/// Fuzzes the annotations of containers.
/// [`annotations::annotations`](self::annotations::annotations) says how the input encodes them.
pub fn annotations(input: &[u8]) {
    annotations::annotations(input);
}

/// Fuzzes a shim's answer to `usher`: each command prints the answer.
pub fn answers(input: &[u8]) {
    crate::cli::fuzz::answers(input);
}

/// Fuzzes the standard input that containerd gives to `start`.
pub fn bootstrap(input: &[u8]) {
    crate::shim::fuzz::bootstrap(input);
}

/// Fuzzes a bundle's `config.json`, and all changes that the shim makes to it.
pub fn bundle(input: &[u8]) {
    crate::engine::oci::fuzz::bundle(input);
}

/// Fuzzes the JSON and the nested messages in calls of the Task service.
pub fn calls(input: &[u8]) {
    crate::pod::fuzz::calls(input);
    crate::engine::oci::fuzz::resources(input);
}

/// Fuzzes the parsers of the files of a cgroup.
pub fn cgroup(input: &[u8]) {
    crate::cgroup::fuzz::files(input);
}

/// Fuzzes the node's configuration file.
pub fn config(input: &[u8]) {
    crate::config::fuzz(input);
}

/// Fuzzes the bytes that a client sends to the control socket.
pub fn control(input: &[u8]) {
    ttrpc::control(input);
}

/// Fuzzes a manifest for `usher convert`.
pub fn convert(input: &[u8]) {
    crate::cli::fuzz::convert(input);
}

/// Fuzzes a manifest for `usher explain`.
pub fn explain(input: &[u8]) {
    crate::cli::fuzz::explain(input);
}

/// Fuzzes a server's response to a gRPC probe.
pub fn grpc(input: &[u8]) {
    crate::probe::fuzz::grpc(input);
}

/// Fuzzes the JSON of one probe, hook or setting in an annotation.
pub fn handlers(input: &[u8]) {
    annotations::handlers(input);
}

/// Fuzzes a server's response to an HTTP probe.
pub fn http(input: &[u8]) {
    crate::probe::fuzz::http(input);
}

/// Fuzzes the mount options of a root file system.
pub fn mounts(input: &[u8]) {
    crate::rootfs::fuzz::mounts(input);
}

/// Fuzzes the options of the OCI runtime.
pub fn options(input: &[u8]) {
    crate::engine::oci::fuzz::options(input);
}

/// Fuzzes kubelet's configuration of a sandbox.
pub fn sandbox(input: &[u8]) {
    crate::engine::sandbox::fuzz::config(input);
}

/// Fuzzes the parsers of files in `/proc`.
pub fn proc(input: &[u8]) {
    crate::cgroup::fuzz::status(input);
    crate::reaper::fuzz(input);
    crate::rootfs::fuzz::mountinfo(input);
    crate::cgroup::fuzz::mountinfo(input);
    crate::linux::fuzz(input);
}

/// Fuzzes the files that an OCI runtime, or a shim that has died, left behind.
pub fn state(input: &[u8]) {
    crate::cgroup::fuzz::notes(input);
    crate::engine::oci::fuzz::files(input);
    crate::engine::oci::fuzz::state(input);
}

/// Fuzzes the address of a standard stream.
pub fn stdio(input: &[u8]) {
    crate::stdio::fuzz::address(input);
}

/// Fuzzes the bytes that a client sends to the socket for containerd.
pub fn task(input: &[u8]) {
    ttrpc::task(input);
}

/// Fuzzes a server's side of a TLS handshake.
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
