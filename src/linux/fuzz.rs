//! Fuzz targets: files of the kernel, streams, mounts, and servers that are probed.

use crate::{ProcessStat, cgroup as cgroups, probe, reaper, rootfs, stdio as streams};
use usher_fuzz::cost;

/// Files of a cgroup.
pub fn cgroup(input: &[u8]) {
    cgroups::fuzz::files(input);
}

/// The response to a gRPC probe.
pub fn grpc(input: &[u8]) {
    probe::fuzz::grpc(input);
}

/// The response to an HTTP probe.
pub fn http(input: &[u8]) {
    probe::fuzz::http(input);
}

/// Options of a root file system's mounts.
pub fn mounts(input: &[u8]) {
    rootfs::fuzz::mounts(input);
}

/// Files in `/proc`.
pub fn proc(input: &[u8]) {
    cgroups::fuzz::status(input);
    reaper::fuzz(input);
    rootfs::fuzz::mountinfo(input);
    cgroups::fuzz::mountinfo(input);
    let read = || ProcessStat::parse(input);
    cost::assert_bounded(input.len(), 16, 1024, read);
}

/// Notes that a shim leaves in a bundle.
pub fn state(input: &[u8]) {
    cgroups::fuzz::notes(input);
}

/// The address of a stream.
pub fn stdio(input: &[u8]) {
    streams::fuzz::address(input);
}

/// The response to a TLS handshake.
pub fn tls(input: &[u8]) {
    probe::fuzz::tls(input);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seed_fails() {
        usher_fuzz::run_seeds(&[
            ("cgroup", cgroup),
            ("grpc", grpc),
            ("http", http),
            ("mounts", mounts),
            ("proc", proc),
            ("state", state),
            ("stdio", stdio),
            ("tls", tls),
        ]);
    }
}
