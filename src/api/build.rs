//! Generates Rust code from `protos`, with a parser that is written in Rust. So the build needs no
//! `protoc`.

#![allow(clippy::disallowed_methods, reason = "a build script serves no caller")]
#![allow(clippy::restriction, reason = "a build may fail")]

use std::path::{Path, PathBuf};

use ttrpc_codegen::{Codegen, Customize};

const PROTOS: &str = "../../protos";

fn main() {
    // The generator makes a second module for a service.
    generate(
        "usher/v1/control.proto",
        "protos",
        &["control", "control_ttrpc"],
    );
    generate("runtime/v1/cri.proto", "cri", &["cri"]);
}

/// Generates the messages and the service of a file in [`PROTOS`], as modules in a directory of
/// `OUT_DIR`.
fn generate(proto: &str, directory: &str, modules: &[&str]) {
    let into =
        PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where")).join(directory);
    std::fs::create_dir_all(&into).expect("a directory below OUT_DIR");
    Codegen::new()
        .input(Path::new(PROTOS).join(proto))
        .include(PROTOS)
        .rust_protobuf()
        .customize(Customize {
            async_all: true,
            ..Customize::default()
        })
        .out_dir(&into)
        .run()
        .expect("what is in protos can be parsed");
    // Removes the inner attributes of the generated file, because a file in `include!` cannot have
    // any.
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
    println!("cargo::rerun-if-changed={PROTOS}");
}
