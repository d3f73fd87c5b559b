//! Tells the program which commit it is built from: `USHER_REVISION` in the environment if it is
//! set there, else what git says, else nothing (an archive of the sources has no history).
//!
//! And links it at a fixed address. A position-independent program is relocated when it starts, and
//! every page that this touches is then a process's own: 0.2 MB for each pod of a node. Stack, heap
//! and libraries stay where chance puts them.
//!
//! And makes Rust of `protos`, with a parser that is itself Rust: no `protoc` is needed.

#![allow(clippy::disallowed_methods, reason = "it serves nobody")]

use std::path::{Path, PathBuf};
use std::process::Command;

use ttrpc_codegen::{Codegen, Customize};

fn main() {
    // Of a service the generator makes a module besides.
    generate(
        "usher/v1/control.proto",
        "protos",
        &["control", "control_ttrpc"],
    );
    generate("runtime/v1/cri.proto", "cri", &["cri"]);
    // With musl the compiler itself says so where it makes such programs, and else begins them in another way,
    // which ends at once in one that is at a fixed address.
    if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() != Ok("musl") {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
    println!("cargo::rerun-if-env-changed=USHER_REVISION");
    let given = std::env::var("USHER_REVISION").ok();
    let revision = given.or_else(from_git).unwrap_or_default();
    println!("cargo::rustc-env=USHER_REVISION={revision}");
}

/// Messages and service of a file in `protos`, as modules in a directory of `OUT_DIR`.
fn generate(proto: &str, directory: &str, modules: &[&str]) {
    let into =
        PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where")).join(directory);
    std::fs::create_dir_all(&into).expect("a directory below OUT_DIR");
    Codegen::new()
        .input(Path::new("protos").join(proto))
        .include("protos")
        .rust_protobuf()
        .customize(Customize {
            async_all: true,
            ..Customize::default()
        })
        .out_dir(&into)
        .run()
        .expect("what is in protos can be parsed");
    // Attributes of a file are not allowed where it is included.
    for file in std::fs::read_dir(&into).expect("just written").flatten() {
        let text = std::fs::read_to_string(file.path()).expect("just written");
        let is_code = |line: &&str| !line.starts_with("#!") && !line.starts_with("//!");
        let code: Vec<&str> = text.lines().filter(is_code).collect();
        std::fs::write(file.path(), code.join("\n")).expect("just written");
    }
    let modules: String = modules
        .iter()
        .map(|name| format!("pub mod {name};\n"))
        .collect();
    std::fs::write(into.join("mod.rs"), modules).expect("a file below OUT_DIR");
    println!("cargo::rerun-if-changed=protos");
}

fn from_git() -> Option<String> {
    // The sources may lie in somebody else's repository, whose commit would say nothing.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().ok()?;
    if Path::new(&top).canonicalize().ok()? != here {
        return None;
    }
    // Written by whatever changes the commit that is checked out.
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
