//! `kubectl-usher`, which kubectl runs for `kubectl usher`.

use std::process::ExitCode;

fn main() -> ExitCode {
    kubectl_usher::main(std::env::args_os())
}
