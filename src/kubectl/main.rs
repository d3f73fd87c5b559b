//! `kubectl usher`, as kubectl calls it.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_usher::main(std::env::args_os())
}
