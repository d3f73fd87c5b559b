//! Fuzzes the input of `start`, and the sockets' ttrpc.

pub(crate) mod ttrpc;

use containerd_shim::Flags;

use usher_fuzz::cost::{RESERVED_FOR_A_MESSAGE, assert_bounded};
use usher_oci::Oci;

use super::bootstrap::{Bootstrap, Environment};

/// Passes the input to `start` as standard input, and as the protocol version in the environment.
pub(crate) fn bootstrap(input: &[u8]) {
    let flags = Flags {
        id: "c1".to_owned(),
        namespace: "k8s.io".to_owned(),
        ..Flags::default()
    };
    let environment = Environment {
        ttrpc_address: String::new(),
        max_shim_version: String::from_utf8_lossy(input).into_owned(),
    };
    let anyway = 128 * 1024 + RESERVED_FOR_A_MESSAGE;
    let read = || Bootstrap::understand(input, &flags, environment, &Oci);
    match assert_bounded(input.len(), 1024, anyway, read) {
        Ok(bootstrap) => {
            let answer = bootstrap.answer("unix:///run/s").expect("an answer");
            assert!(!answer.is_empty());
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
    }
}
