//! Compiles the name of the source's commit into the program. The name comes from the environment
//! variable `USHER_REVISION`, or else from git. If both are missing, as in an archive of the
//! sources, the program contains no commit.
//!
//! Also links the program at a fixed address. A position-independent program is relocated when it
//! starts, and each process gets its own copy of every page that the relocation changes: 0.2 MB for
//! each pod of a node. The addresses of the stack, the heap and the libraries stay random.

#![allow(clippy::disallowed_methods, reason = "it serves nobody")]

use std::path::Path;
use std::process::Command;

fn main() {
    // Not for musl: on some platforms rustc passes this flag itself. On the others musl's startup
    // code expects a position-independent program, and a program with this flag would crash at its
    // start.
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("musl") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    println!("cargo::rerun-if-env-changed=USHER_REVISION");
    let given = std::env::var("USHER_REVISION").ok();
    let revision = given.or_else(from_git).unwrap_or_default();
    println!("cargo::rustc-env=USHER_REVISION={revision}");
}

fn from_git() -> Option<String> {
    // The sources may be inside another project's repository, whose commit says nothing about them.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let here = std::env::var("CARGO_MANIFEST_DIR").ok()?;
    let here = Path::new(&here).canonicalize().ok()?;
    if Path::new(&top).canonicalize().ok()? != here {
        return None;
    }
    // git writes to this file whenever the checked-out commit changes.
    println!(
        "cargo::rerun-if-changed={}",
        git(&["rev-parse", "--git-path", "logs/HEAD"])?
    );
    for path in ["build.rs", "Cargo.toml", "Cargo.lock", "src", "protos"] {
        if Path::new(path).exists() {
            println!("cargo::rerun-if-changed={path}");
        }
    }
    git(&[
        "describe",
        "--always",
        "--abbrev=12",
        "--dirty",
        "--exclude=*",
    ])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    let said = said.trim();
    (output.status.success() && !said.is_empty()).then(|| said.to_owned())
}
