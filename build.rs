//! Compiles the name of the source's commit into the program. The name comes from the environment
//! variable `USHER_REVISION`, or else from git. If both are missing, as in an archive of the
//! sources, the program contains no commit.
//!
//! Also links the program at a fixed address. A position-independent program is relocated when it
//! starts, and each process gets its own copy of every page that the relocation changes: 0.2 MB for
//! each pod of a node. The addresses of the stack, the heap and the libraries stay random.
//!
//! Also generates Rust code from `protos`, with a parser that is written in Rust. So the build
//! needs no `protoc`.

#![allow(clippy::disallowed_methods, reason = "it serves nobody")]

use std::path::{Path, PathBuf};
use std::process::Command;

use ttrpc_codegen::{Codegen, Customize};

fn main() {
    // For a service the generator makes a second module, `control_ttrpc`.
    generate(
        "usher/v1/control.proto",
        "protos",
        &["control", "control_ttrpc"],
    );
    generate("runtime/v1/cri.proto", "cri", &["cri"]);
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

/// Generates the messages and the service of a file in `protos`, as modules in a directory of
/// `OUT_DIR`.
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
    // Removes the inner attributes and doc comments (`#!…`, `//!`) of the generated files: rustc
    // refuses them in these modules.
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
    // The sources may be inside another project's repository, whose commit says nothing about them.
    let top = git(&["rev-parse", "--show-toplevel"])?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().ok()?;
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
