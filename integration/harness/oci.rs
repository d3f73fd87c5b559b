//! An OCI runtime that a test calls directly, to run containers without a shim.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Containerd, installed_program};

pub struct OciRuntime<'host> {
    host: &'host Containerd,
    program: PathBuf,
    /// The directory in which the runtime keeps the state of its containers.
    pub root: PathBuf,
}

impl<'host> OciRuntime<'host> {
    /// The OCI runtime with this program name. Only this test uses its state directory.
    pub fn new(host: &'host Containerd, name: &str) -> Self {
        let root = host.dir().join(format!("run/bare-{name}"));
        let program = installed_program(name);
        Self {
            host,
            program,
            root,
        }
    }

    /// Makes a bundle with this config.json, and returns its directory.
    pub fn bundle(&self, id: &str, config: &Value) -> PathBuf {
        let bundle = self.host.dir().join(id);
        fs::create_dir_all(&bundle).expect("the bundle");
        fs::write(bundle.join("config.json"), config.to_string()).expect("config.json");
        bundle
    }

    /// Creates the bundle's container, which then waits for its start. The container's process id
    /// is in the bundle's file `pid`.
    ///
    /// # Errors
    ///
    /// The runtime's error output.
    pub fn create(&self, id: &str, bundle: &Path) -> Result<(), String> {
        let [pid, bundle] = [&bundle.join("pid"), bundle].map(|path| path.display().to_string());
        self.ask(&["create", "--bundle", &bundle, "--pid-file", &pid, id])
            .map(drop)
    }

    /// Runs a command of the runtime, and returns its output.
    ///
    /// # Errors
    ///
    /// The runtime's error output.
    pub fn ask(&self, arguments: &[&str]) -> Result<String, String> {
        // The output goes to files and not to pipes. The process of a created container inherits
        // the streams, and may keep them open when the command has exited.
        let [out, said] = ["out", "said"].map(|name| self.host.dir().join(format!("bare-{name}")));
        let mut command = self.command(arguments);
        let file = |path| fs::File::create(path).expect("a file");
        command.stdout(file(&out)).stderr(file(&said));
        let status = command.status().expect("the OCI runtime");
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        match status.success() {
            true => Ok(text(out)),
            false => Err(text(said)),
        }
    }

    /// Does the same as `ask`, but fails the test on an error.
    #[track_caller]
    pub fn must(&self, arguments: &[&str]) -> String {
        self.ask(arguments)
            .unwrap_or_else(|said| panic!("{} {arguments:?}: {said}", self.program.display()))
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--root").arg(&self.root).args(arguments);
        command.stdin(Stdio::null());
        self.host.enter(&mut command);
        command
    }
}

impl Drop for OciRuntime<'_> {
    fn drop(&mut self) {
        // If a container has leaked, its state is in this directory. Then the directory is not
        // empty and remains, and the leak check reports the container.
        let _ = fs::remove_dir(&self.root);
    }
}
