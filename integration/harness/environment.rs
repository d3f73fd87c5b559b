//! The programs and the machine under test, as environment variables describe them: containerd, the
//! OCI runtime, the name of the shim, and the machine's speed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use super::{PATIENCE, REFERENCE, build, copy_program, run, runtime_under_test};

/// Major and minor version of a containerd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

/// The shims that a containerd finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shims {
    /// Our shim, under its own name and the name of the runtime under test. The shim's directory
    /// comes first in the `PATH`.
    Ours,
    /// Our shim, without the system calls that are newer than Linux 5.0.
    OursOnOldKernel,
    /// containerd finds only its own shims.
    Reference,
}

impl Version {
    pub fn of_containerd() -> Version {
        static FOUND: OnceLock<Version> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let mut command = Command::new("containerd");
            command.arg("--version").env("PATH", installed_path());
            let said = run(command, PATIENCE).out();
            // The output is `containerd <origin> 1.6.20~ds1 <revision>`. The number may begin with
            // `v`.
            let number = said.split_whitespace().nth(2).and_then(Version::parse);
            number.unwrap_or_else(|| panic!("containerd --version says {said:?}"))
        })
    }

    fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.trim_start_matches('v').split('.');
        let mut next = || numbers.next()?.parse().ok();
        Some(Version(next()?, next()?))
    }

    /// True if containerd passes parameters to a shim in protobuf, and can read an answer in
    /// protobuf. Older versions can read only an address or JSON.
    pub fn speaks_protobuf(self) -> bool {
        self >= Version(2, 3)
    }

    /// True if a restarted containerd deletes a shim's tasks that have all ended while containerd
    /// was down.
    ///
    /// containerd 1.7 and later believes that such a shim has leaked. From version 2.4 on, the
    /// shim's answer to Pids decides. containerd's own shim answers with an empty list. Our shim
    /// answers with an error, because the task has ended. So containerd keeps the task.
    pub fn deletes_what_has_ended(self, is_reference: bool) -> bool {
        self >= Version(1, 7) && (is_reference || self < Version(2, 4))
    }

    /// True if containerd's own shim publishes the exit of a container even if the container is
    /// deleted immediately after its exit.
    pub fn tells_every_exit(self) -> bool {
        self < Version(2, 4)
    }

    /// The environment variable `MAX_SHIM_VERSION` that containerd sets for a shim. containerd 2.x
    /// sets 2, although it accepts version 3.
    pub fn max_shim_version(self) -> Option<&'static str> {
        (self >= Version(1, 7)).then_some("2")
    }
}

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

/// True if criu works with the running kernel. Fails the test if `USHER_TEST_CRIU` names a criu
/// that does not work. Without this variable, the criu on the `PATH` is tried.
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

/// Fills the test's own directory `bin`. Returns the `PATH` of containerd and its shims, which
/// begins with this directory.
pub(super) fn search_path(test_dir: &Path, shims: Shims) -> String {
    let bin = test_dir.join("bin");
    fs::create_dir(&bin).expect("the directory of programs");
    if oci_runtime() != "runc" {
        // Shims call `runc` by default, so a link of this name leads to the OCI runtime under test.
        // Some nodes have such a link too.
        symlink(program(&oci_runtime()), bin.join("runc")).expect("link the OCI runtime");
    }
    if let Some(criu) = given_criu() {
        symlink(criu, bin.join("criu")).expect("link criu");
    }
    let built = shim_dir().join("containerd-shim-usher-v2");
    for runtime in ["io.containerd.usher.v2", &runtime_under_test()] {
        let name = shim_program(runtime);
        match shims {
            _ if bin.join(&name).exists() => {}
            Shims::Ours if std::env::var_os("USHER_TEST_OLD_KERNEL").is_none() => {
                install(&built, &bin.join(&name));
            }
            Shims::Ours | Shims::OursOnOldKernel => wrap_for_old_kernel(&built, &bin, &name),
            Shims::Reference => {}
        }
    }
    format!("{}:{}", bin.display(), installed_path())
}

/// Installs a program in `directory` such that it runs as if on Linux 5.0. Returns the new path.
pub fn on_old_kernel(program: &Path, directory: &Path) -> PathBuf {
    let name = program.file_name().expect("a name");
    let name = name.to_str().expect("plain text");
    wrap_for_old_kernel(program, directory, name);
    directory.join(name)
}

fn wrap_for_old_kernel(program: &Path, directory: &Path, name: &str) {
    static WRAPPER: OnceLock<PathBuf> = OnceLock::new();
    let wrapper = WRAPPER.get_or_init(|| build("old_kernel", include_str!("old_kernel.rs")));
    install(wrapper, &directory.join(name));
    let real = directory.join("real");
    fs::create_dir_all(&real).expect("a directory");
    install(program, &real.join(name));
}

/// Installs a program as a separate file. With a symbolic link, the program could find out its
/// original name.
fn install(program: &Path, name: &Path) {
    // A hard link suffices within one file system.
    if fs::hard_link(program, name).is_err() {
        copy_program(program, name);
    }
}

/// The name of a runtime type's program, such as `containerd-shim-usher-v2` for
/// `io.containerd.usher.v2`.
pub fn shim_program(runtime: &str) -> String {
    let name = runtime.rsplitn(3, '.').take(2).collect::<Vec<_>>();
    format!("containerd-shim-{}-{}", name[1], name[0])
}

/// The `PATH` of this test, preceded by the directory of the chosen containerd's programs.
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
    // In examples, cargo does not set the variable. In tests that were copied to another machine,
    // the path in the variable does not exist. In both cases the shim is one directory above this
    // program.
    let built = built.unwrap_or_else(|| {
        let this = std::env::current_exe().expect("the path of this program");
        let dir = this.parent().expect("a directory");
        dir.with_file_name("containerd-shim-usher-v2")
    });
    built.parent().expect("a directory").to_owned()
}

/// Factor by which this machine is slower than usual. All timeouts of tests are multiplied by it.
pub fn time_scale() -> u32 {
    static SCALE: OnceLock<u32> = OnceLock::new();
    *SCALE.get_or_init(|| match std::env::var("USHER_TEST_TIME_SCALE") {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|e| panic!("USHER_TEST_TIME_SCALE is {text:?}: {e}")),
        Err(_) => 1,
    })
}

pub fn scaled(duration: Duration) -> Duration {
    duration * time_scale()
}
