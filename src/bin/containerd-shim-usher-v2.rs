//! The containerd runtime shim `io.containerd.usher.v2`.

use std::process::ExitCode;

fn main() -> ExitCode {
    usher::shim::main(std::env::args_os().collect())
}
