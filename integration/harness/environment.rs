//! The test environment as chosen by environment variables: containerd, the OCI runtime, the name
//! of the shim under test, and the machine's speed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{PATIENCE, REFERENCE, copy_program, run, runtime_under_test};

/// Major and minor version of a containerd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

/// The shims that a containerd finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shims {
    /// Our freshly built shim comes first in the `PATH`, under each name by which a test may call
    /// it.
    Ours,
    /// Only containerd's own shims.
    Reference,
}

impl Version {
    /// The version of the containerd that the tests run on.
    pub fn of_containerd() -> Version {
        static FOUND: OnceLock<Version> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let mut command = Command::new("containerd");
            command.arg("--version").env("PATH", installed_path());
            let said = run(command, PATIENCE).out();
            // `containerd <origin> 1.6.20~ds1 <revision>`, sometimes with a `v` before the number.
            let number = said.split_whitespace().nth(2).and_then(Version::parse);
            number.unwrap_or_else(|| panic!("containerd --version says {said:?}"))
        })
    }

    fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.trim_start_matches('v').split('.');
        let mut next = || numbers.next()?.parse().ok();
        Some(Version(next()?, next()?))
    }

    /// True if containerd passes a shim's parameters in protobuf. Older versions can read only an
    /// address or JSON, whatever the shim answers.
    pub fn speaks_protobuf(self) -> bool {
        self >= Version(2, 3)
    }

    /// True if a restarted containerd takes a shim for leaked, and deletes its tasks, because all
    /// of them ended while containerd was down. Since 2.4 this depends on the shim: containerd's
    /// own shim reports that there are no processes, ours that the task has ended.
    pub fn deletes_what_has_ended(self, is_reference: bool) -> bool {
        self >= Version(1, 7) && (is_reference || self < Version(2, 4))
    }

    /// True if containerd's own shim reports the exit of a container that is deleted at once.
    pub fn tells_every_exit(self) -> bool {
        self < Version(2, 4)
    }

    /// The value of `MAX_SHIM_VERSION` that containerd sets for a shim, if any. 2 also in
    /// containerd 2.x, though it accepts version 3.
    pub fn max_shim_version(self) -> Option<&'static str> {
        (self >= Version(1, 7)).then_some("2")
    }
}

/// The OCI runtime that the shims use.
pub fn oci_runtime() -> String {
    std::env::var("USHER_TEST_OCI_RUNTIME").unwrap_or_else(|_| "runc".to_owned())
}

/// The OCI runtime's error message for a program that is missing in the container.
pub fn words_for_missing(program: &str) -> String {
    match oci_runtime().as_str() {
        "crun" => format!("executable file `{program}` not found"),
        "youki" => format!("executable '{program}' not found"),
        _ => format!("exec: \"{program}\": stat {program}: no such file"),
    }
}

/// True if a criu works with the running kernel. `USHER_TEST_CRIU` names one that must work; the
/// one on the `PATH` need not.
pub fn criu_works() -> bool {
    let given = given_criu();
    let criu = given.clone().unwrap_or_else(|| PathBuf::from("criu"));
    let check = Command::new(&criu).arg("check").output();
    let works = check.is_ok_and(|output| output.status.success());
    if !works {
        assert_eq!(given, None, "criu does not work with this kernel");
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

/// The `PATH` of a containerd and its shims. It begins with the test's own `bin` directory, which
/// this function fills.
pub(super) fn search_path(test_dir: &Path, shims: Shims) -> String {
    let bin = test_dir.join("bin");
    fs::create_dir(&bin).expect("the directory of programs");
    if oci_runtime() != "runc" {
        // The OCI runtime is linked as `runc`, which shims use by default; some nodes do the same.
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

/// Installs a program as a file of its own, not as a link, so that the program cannot find out its
/// original name.
fn install(program: &Path, name: &Path) {
    // A hard link suffices within one file system.
    if fs::hard_link(program, name).is_err() {
        copy_program(program, name);
    }
}

/// The program of a runtime type: `io.containerd.usher.v2` is `containerd-shim-usher-v2`.
pub fn shim_program(runtime: &str) -> String {
    let name = runtime.rsplitn(3, '.').take(2).collect::<Vec<_>>();
    format!("containerd-shim-{}-{}", name[1], name[0])
}

/// The `PATH` with the chosen containerd's programs before those of the machine.
pub fn installed_path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    match std::env::var("USHER_TEST_CONTAINERD") {
        Ok(dir) => format!("{dir}/usr/bin:{path}"),
        Err(_) => path,
    }
}

/// The path of a program of the chosen containerd.
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

/// The directory of the shim under test, built by cargo for this target.
pub fn shim_dir() -> PathBuf {
    let built = option_env!("CARGO_BIN_EXE_containerd-shim-usher-v2").map(PathBuf::from);
    let built = built.filter(|program| program.exists());
    // Cargo sets the variable only for tests and benches, and its path does not exist on a machine
    // to which these were copied. Then, and for examples, use the path of this program, which lies
    // one directory below the shim.
    let built = built.unwrap_or_else(|| {
        let this = std::env::current_exe().expect("the path of this program");
        let dir = this.parent().expect("a directory");
        dir.with_file_name("containerd-shim-usher-v2")
    });
    built.parent().expect("a directory").to_owned()
}

/// Factor by which this machine is slower than usual; scales all timeouts of tests.
pub fn time_scale() -> u32 {
    static SCALE: OnceLock<u32> = OnceLock::new();
    *SCALE.get_or_init(|| match std::env::var("USHER_TEST_TIME_SCALE") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|e| panic!("USHER_TEST_TIME_SCALE is {text:?}: {e}")),
        Err(_) => 1,
    })
}

/// A timeout, scaled for this machine.
pub fn scaled(duration: Duration) -> Duration {
    duration * time_scale()
}
