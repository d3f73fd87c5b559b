//! The containerd runtime shim `io.containerd.usher.v2`.

use std::process::ExitCode;

/// The commit of this build; empty if unknown.
const REVISION: &str = env!("USHER_REVISION");

fn main() -> ExitCode {
    let arguments = std::env::args_os().collect();
    usher_shim::main(arguments, &usher_oci::Oci, REVISION)
}
