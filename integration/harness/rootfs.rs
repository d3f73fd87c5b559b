//! The root file system of containers: a static busybox and the witness, without an image.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::programs::{busybox, copy_program};

const WITNESS: &str = include_str!("../witness.rs");
const APPLETS: &[&str] = &[
    "cat",
    "cut",
    "dd",
    "echo",
    "false",
    "grep",
    "head",
    "hostname",
    "id",
    "ip",
    "ls",
    "mkdir",
    "mount",
    "nc",
    "readlink",
    "seq",
    "setsid",
    "sh",
    "sha256sum",
    "sleep",
    "sort",
    "stat",
    "stty",
    "tail",
    "test",
    "touch",
    "true",
    "tty",
    "wc",
];

/// Fills `root`, the root file system of every container of a test.
pub fn populate(root: &Path) {
    // Make the mount points beforehand. Otherwise containers that start at the same time would try
    // to make them at the same time.
    for name in ["bin", "dev", "etc", "proc", "run", "shared", "sys", "tmp"] {
        fs::create_dir_all(root.join(name)).expect("a directory of the root file system");
    }
    let bin = root.join("bin");
    copy_program(&busybox(), &bin.join("busybox"));
    copy_program(witness(), &bin.join("witness"));
    for applet in APPLETS {
        symlink("busybox", bin.join(applet)).expect("link an applet");
    }
}

/// The witness as a static program.
fn witness() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("witness", WITNESS))
}

/// Compiles a source file to a static program. The program is compiled once for each version of its
/// source, and for each target directory. Only one thread may call this function at a time.
pub fn build(name: &str, source: &str) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    source.hash(&mut hasher);
    let dir = super::environment::shim_dir().join(name);
    let program = dir.join(format!("{name}-{:016x}", hasher.finish()));
    if !program.exists() {
        fs::create_dir_all(&dir).expect("the program's directory");
        compile(name, source, &program);
    }
    program
}

fn compile(name: &str, text: &str, program: &Path) {
    // Another test program may compile the same source at the same time. So compile to a file with
    // another name, and rename the file when it is complete.
    let unfinished = program.with_file_name(format!("unfinished-{}", std::process::id()));
    let source = unfinished.with_extension("rs");
    fs::write(&source, text).expect("write the program's source");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", "--crate-name", name, "-O"]);
    rustc.args([
        "-C",
        "target-feature=+crt-static",
        "-C",
        "panic=abort",
        "-C",
        "strip=symbols",
    ]);
    rustc.arg("-o").arg(&unfinished).arg(&source);
    let output = rustc.output().unwrap_or_else(|e| panic!("{rustc:?}: {e}"));
    let messages = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "the {name} does not compile: {messages}"
    );
    fs::remove_file(&source).expect("remove the copy of the source");
    fs::rename(&unfinished, program).expect("put the program into place");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::cri::pause_program;

    /// Checks that the programs are static. Also compiles them, so that the other tests can later
    /// run on a machine without a compiler.
    #[test]
    fn what_containers_execute_needs_no_libraries() {
        for path in [witness(), &pause_program()] {
            let program = fs::read(path).expect("a program");
            let loader = b"/ld-linux";
            assert!(program.starts_with(b"\x7fELF"), "{}", path.display());
            let mut words = program.windows(loader.len());
            assert!(words.all(|bytes| bytes != loader), "{}", path.display());
        }
    }
}
