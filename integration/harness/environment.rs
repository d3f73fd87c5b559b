//! What a test runs on, as the environment chooses: containerd, the OCI runtime, the name of the
//! shim under test, and how fast the machine is.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{PATIENCE, REFERENCE, copy_program, run, runtime_under_test};

/// A containerd's major and minor version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

/// Which shims a containerd finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shims {
    /// The one just built comes first, under each name that it is tested by.
    Ours,
    /// Only those that came with containerd.
    Reference,
}

// === impl Version ===

impl Version {
    /// Of the containerd that the tests run on.
    pub fn of_containerd() -> Version {
        static FOUND: OnceLock<Version> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let mut command = Command::new("containerd");
            command.arg("--version").env("PATH", installed_path());
            let said = run(command, PATIENCE).out();
            // `containerd <where it is from> 1.6.20~ds1 <revision>`, a `v` before it at times.
            let number = said.split_whitespace().nth(2).and_then(Version::parse);
            number.unwrap_or_else(|| panic!("containerd --version says {said:?}"))
        })
    }

    fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.trim_start_matches('v').split('.');
        let mut next = || numbers.next()?.parse().ok();
        Some(Version(next()?, next()?))
    }

    /// Whether it talks to a shim that it starts in protobuf; the older ones take an address or
    /// JSON, whatever the shim answers.
    pub fn speaks_protobuf(self) -> bool {
        self >= Version(2, 3)
    }

    /// Whether it takes a shim for a leaked one whose tasks have all ended while it was away, and deletes
    /// them. From 2.4 on it does so when the shim says that there are no processes, as its own does; ours
    /// says that the task has ended.
    pub fn deletes_what_has_ended(self, is_reference: bool) -> bool {
        self >= Version(1, 7) && (is_reference || self < Version(2, 4))
    }

    /// Whether its own shim tells of the exit of a container that is deleted at once.
    pub fn tells_every_exit(self) -> bool {
        self < Version(2, 4)
    }

    /// What it puts into a shim's environment as `MAX_SHIM_VERSION`, if anything. 2.x says so too,
    /// though it takes 3.
    pub fn max_shim_version(self) -> Option<&'static str> {
        (self >= Version(1, 7)).then_some("2")
    }
}

// === programs ===

/// The OCI runtime that the shims use.
pub fn oci_runtime() -> String {
    std::env::var("USHER_TEST_OCI_RUNTIME").unwrap_or_else(|_| "runc".to_owned())
}

/// How the OCI runtime says that a program is not in the container.
pub fn words_for_missing(program: &str) -> String {
    match oci_runtime().as_str() {
        "crun" => format!("executable file `{program}` not found"),
        "youki" => format!("executable '{program}' not found"),
        _ => format!("exec: \"{program}\": stat {program}: no such file"),
    }
}

/// Does a criu work with the running kernel? `USHER_TEST_CRIU` names one that has to; without it the one on the PATH
/// need not.
pub fn criu_works() -> bool {
    let given = given_criu();
    let criu = given.clone().unwrap_or_else(|| PathBuf::from("criu"));
    let check = Command::new(&criu).arg("check").output();
    let works = check.is_ok_and(|output| output.status.success());
    if !works {
        assert_eq!(given, None, "it does not work with this kernel");
        eprintln!(
            "left out: {} does not work with this kernel",
            criu.display()
        );
    }
    works
}

fn given_criu() -> Option<PathBuf> {
    std::env::var_os("USHER_TEST_CRIU").map(PathBuf::from)
}

/// Where the programs of a containerd and its shims are found: first in the test's own `bin`, which
/// is filled here.
pub(super) fn search_path(test_dir: &Path, shims: Shims) -> String {
    let bin = test_dir.join("bin");
    fs::create_dir(&bin).expect("the directory of programs");
    if oci_runtime() != "runc" {
        // By a name that nobody has to be told: as on nodes where it stands in runc's place.
        symlink(program(&oci_runtime()), bin.join("runc")).expect("link the OCI runtime");
    }
    if let Some(criu) = given_criu() {
        symlink(criu, bin.join("criu")).expect("link criu");
    }
    if shims == Shims::Ours {
        let built = shim_dir().join("containerd-shim-usher-v2");
        for runtime in ["io.containerd.usher.v2", &runtime_under_test()] {
            let name = bin.join(shim_program(runtime));
            if !name.exists() {
                install(&built, &name);
            }
        }
    }
    format!("{}:{}", bin.display(), installed_path())
}

/// As a file of its own, so that nothing about the process tells its other name.
fn install(program: &Path, name: &Path) {
    // A link does for that, if the file system is the same.
    if fs::hard_link(program, name).is_err() {
        copy_program(program, name);
    }
}

/// `io.containerd.usher.v2` is the program `containerd-shim-usher-v2`.
pub fn shim_program(runtime: &str) -> String {
    let name = runtime.rsplitn(3, '.').take(2).collect::<Vec<_>>();
    format!("containerd-shim-{}-{}", name[1], name[0])
}

/// The chosen containerd's programs, then those of the machine.
pub fn installed_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    match std::env::var("USHER_TEST_CONTAINERD") {
        Ok(dir) => format!("{dir}/usr/bin:{path}"),
        Err(_) => path,
    }
}

/// A program of the chosen containerd.
pub fn installed_program(name: &str) -> PathBuf {
    find(name, &installed_path())
}

fn program(name: &str) -> PathBuf {
    find(name, &std::env::var("PATH").unwrap_or_default())
}

fn find(name: &str, path: &str) -> PathBuf {
    let found = std::env::split_paths(path).map(|dir| dir.join(name));
    let mut found = found.filter(|program| program.exists());
    found
        .next()
        .unwrap_or_else(|| panic!("{name} is not on PATH: apt-get install {name}"))
}

/// The directory of the shim under test: what cargo built for this target.
pub fn shim_dir() -> PathBuf {
    let built = option_env!("CARGO_BIN_EXE_containerd-shim-usher-v2").map(PathBuf::from);
    let built = built.filter(|program| program.exists());
    // Cargo tells tests and benches only, and not where they are taken to; they and the examples
    // lie one directory below the programs.
    let built = built.unwrap_or_else(|| {
        let this = std::env::current_exe().expect("the path of this program");
        let dir = this.parent().expect("a directory");
        dir.with_file_name("containerd-shim-usher-v2")
    });
    built.parent().expect("a directory").to_owned()
}

// === time ===

/// How many times slower than usual this machine is; no wait of a test is bounded by less.
pub fn time_scale() -> u32 {
    static SCALE: OnceLock<u32> = OnceLock::new();
    *SCALE.get_or_init(|| match std::env::var("USHER_TEST_TIME_SCALE") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|e| panic!("USHER_TEST_TIME_SCALE is {text:?}: {e}")),
        Err(_) => 1,
    })
}

/// A bound on what takes that long on a usual machine.
pub fn scaled(duration: Duration) -> Duration {
    duration * time_scale()
}
