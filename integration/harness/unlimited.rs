//! A wrapper of an OCI runtime: removes the CPU shares of a pause container from its bundle, and
//! then executes the OCI runtime.
//!
//! Tests use it on machines without the CPU controller, where OCI runtimes refuse CPU shares.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The CPU shares in a bundle's JSON, in the form in which containerd writes them.
const SHARES: &str = r#""cpu":{"shares":2}"#;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let option = words.iter().position(|word| word == "--bundle");
    if let Some(bundle) = option.and_then(|at| words.get(at + 1)) {
        let config = Path::new(bundle).join("config.json");
        let text = fs::read_to_string(&config).expect("config.json");
        if text.contains(SHARES) {
            fs::write(&config, text.replace(SHARES, r#""cpu":{}"#)).expect("config.json");
        }
    }
    let error = Command::new("runc").args(words).exec();
    panic!("runc: {error}");
}
