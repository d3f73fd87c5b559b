//! `-info` and `-v`: the shim's report about itself and its OCI runtime.

use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::shim::oci::Options;
use containerd_shim_protos::types::introspection::RuntimeInfo;

use crate::harness::{oci_runtime, runtime_under_test, shim_dir, shim_program, write_program};

const FEATURES: &str = "types.containerd.io/opencontainers/runtime-spec/1/features/Features";

fn shim(arguments: &[&str], stdin: &[u8]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join(shim_program(&runtime_under_test()));
    symlink(shim_dir().join("containerd-shim-usher-v2"), &program).unwrap();
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the shim");
    let mut pipe = child.stdin.take().unwrap();
    pipe.write_all(stdin).expect("stdin");
    drop(pipe);
    child.wait_with_output().expect("the answer")
}

fn options(binary: &str) -> Any {
    let mut options = Options::new();
    options.binary_name = binary.to_owned();
    Any {
        type_url: "containerd.runc.v1.Options".to_owned(),
        value: options.write_to_bytes().unwrap(),
        ..Any::new()
    }
}

#[track_caller]
fn info(stdin: &[u8]) -> RuntimeInfo {
    let output = shim(&["-info"], stdin);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    RuntimeInfo::parse_from_bytes(&output.stdout).expect("a RuntimeInfo")
}

/// An OCI runtime that runs the shell code `script`.
fn runtime(dir: &Path, script: &str) -> String {
    let path = dir.join("oci-runtime");
    write_program(&path, &format!("#!/bin/sh\n{script}\n"));
    path.display().to_string()
}

#[test]
fn info_names_the_runtime_and_passes_on_the_features_of_the_oci_runtime() {
    let features = Command::new(oci_runtime()).arg("features").output();
    let features = features.expect("the OCI runtime").stdout;
    let info = match oci_runtime().as_str() {
        "runc" => info(&[]),
        other => info(&options(other).write_to_bytes().unwrap()),
    };
    assert_eq!(info.name, runtime_under_test());
    assert_eq!(info.version.version, env!("CARGO_PKG_VERSION"));
    // Debian 12's crun has no `features` command.
    let expected = if features.is_empty() { "" } else { FEATURES };
    assert_eq!(info.features.type_url, expected);
    assert_eq!(info.features.value, features);
}

#[test]
fn info_passes_on_features_and_options_byte_by_byte() {
    let dir = tempfile::tempdir().unwrap();
    let json = r#"{ "ociVersionMin" : "1.0.0",  "unheardOf": [1, {"of": null}] }"#;
    let script = format!("[ \"$*\" = features ] && printf '%s' '{json}'");
    let options = options(&runtime(dir.path(), &script));
    let info = info(&options.write_to_bytes().unwrap());
    assert_eq!(info.options, MessageField::some(options));
    assert_eq!(String::from_utf8_lossy(&info.features.value), json);
}

#[test]
fn info_has_no_features_if_the_oci_runtime_reports_none() {
    let dir = tempfile::tempdir().unwrap();
    for script in [
        "echo 'unknown command' >&2; exit 1",
        "echo plain text",
        "echo '{}'; exit 1",
    ] {
        let options = options(&runtime(dir.path(), script));
        let info = info(&options.write_to_bytes().unwrap());
        assert_eq!(info.features, MessageField::none(), "{script}");
        assert_eq!(info.name, runtime_under_test());
    }
}

#[test]
fn info_names_a_missing_oci_runtime() {
    let output = shim(&["-info"], &options("no-runc").write_to_bytes().unwrap());
    assert!(!output.status.success() && output.stdout.is_empty());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("\"no-runc\"") && said.trim().lines().count() == 1,
        "{said}"
    );
}

#[test]
fn the_version_names_program_version_and_commit() {
    let output = shim(&["-v"], &[]);
    assert!(output.status.success());
    let said = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<_> = said.lines().map(str::trim).collect();
    assert_eq!(
        lines[0],
        format!("{}:", shim_program(&runtime_under_test()))
    );
    assert_eq!(lines[1], format!("Version:  {}", env!("CARGO_PKG_VERSION")));
    let commit = lines[2]
        .strip_prefix("Revision:")
        .expect("the commit")
        .trim();
    let head = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let head = head.ok().filter(|output| output.status.success());
    // Outside a git checkout the commit is unknown.
    if let Some(head) = head.and_then(|output| String::from_utf8(output.stdout).ok()) {
        let commit = commit.trim_end_matches("-dirty");
        assert!(
            commit.len() >= 7 && head.starts_with(commit),
            "{commit} of {head}"
        );
    }
}
