//! The admission webhook of usher.

use std::process::ExitCode;

fn main() -> ExitCode {
    usher_webhook::run::main(std::env::args_os())
}
