//! Fuzz target: kubelet's configuration of a sandbox, as containerd passes it on.

use std::path::{Component, Path, PathBuf};

use containerd_shim_protos::protobuf::Message;

use usher_api::cri::PodSandboxConfig;
use usher_engine::SandboxOrder;
use usher_fuzz::cost::{RESERVED_FOR_A_MESSAGE, assert_bounded};

use super::config::{Wanted, swapped};

/// Bytes that may be allocated at the same time for each byte of input.
const EACH: usize = 256;
/// Bytes that may be allocated at the same time even for an empty input. Each byte of input allows
/// [`EACH`] more.
const ANYWAY: usize = 128 * 1024 + RESERVED_FOR_A_MESSAGE;

/// Asserts that a configuration is read, or refused in one sentence. If it is read, all its sysctls
/// have to belong to namespaces.
pub(crate) fn config(input: &[u8]) {
    let parse = || PodSandboxConfig::parse_from_bytes(input);
    let Ok(config) = assert_bounded(input.len(), EACH, ANYWAY, parse) else {
        return;
    };
    for netns in [None, Some(PathBuf::from("/run/netns/a"))] {
        let order = SandboxOrder {
            config: config.clone(),
            netns,
            takes_paths: true,
        };
        let read = || Wanted::read("s", Path::new("/b"), &order);
        let wanted = match assert_bounded(input.len(), EACH, ANYWAY, read) {
            Ok(wanted) => wanted,
            Err(error) => {
                let sentence = error.to_string();
                assert!(!sentence.contains('\n'), "{sentence}");
                continue;
            }
        };
        for name in wanted.namespaces.sysctls.keys() {
            let path = swapped(name);
            let mut parts = Path::new(&path).components();
            assert!(
                parts.all(|part| matches!(part, Component::Normal(_))),
                "{path}"
            );
            let tops = [
                "net/",
                "kernel/msg",
                "kernel/sem",
                "kernel/shm",
                "fs/mqueue/",
            ];
            assert!(tops.iter().any(|top| path.starts_with(top)), "{path}");
        }
        let kind = &wanted.annotations["io.kubernetes.cri.container-type"];
        assert_eq!(kind, "sandbox");
    }
}
