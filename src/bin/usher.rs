//! `usher`, the command for people.

use std::process::ExitCode;

fn main() -> ExitCode {
    usher_cli::main(std::env::args_os())
}
