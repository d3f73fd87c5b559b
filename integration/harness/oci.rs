//! An OCI runtime by itself: its commands, and containers that no shim knows.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Containerd, installed_program};

pub struct OciRuntime<'host> {
    host: &'host Containerd,
    program: PathBuf,
    /// Where it keeps the state of its containers.
    pub root: PathBuf,
}

impl<'host> OciRuntime<'host> {
    /// The program of that name, with a directory for states that is its own.
    pub fn new(host: &'host Containerd, name: &str) -> Self {
        let root = host.dir().join(format!("run/bare-{name}"));
        let program = installed_program(name);
        Self {
            host,
            program,
            root,
        }
    }

    /// A directory for what belongs to a container, with its config.json.
    pub fn bundle(&self, id: &str, config: &Value) -> PathBuf {
        let bundle = self.host.dir().join(id);
        fs::create_dir_all(&bundle).expect("the bundle");
        fs::write(bundle.join("config.json"), config.to_string()).expect("config.json");
        bundle
    }

    /// Creates the container whose bundle that is: it waits for its start, and its process id is in `pid` beside its
    /// config.json.
    ///
    /// # Errors
    ///
    /// What the runtime says.
    pub fn create(&self, id: &str, bundle: &Path) -> Result<(), String> {
        let [pid, bundle] = [&bundle.join("pid"), bundle].map(|path| path.display().to_string());
        self.ask(&["create", "--bundle", &bundle, "--pid-file", &pid, id])
            .map(drop)
    }

    /// Has it do something, and gives back what it prints.
    ///
    /// # Errors
    ///
    /// What it says.
    pub fn ask(&self, arguments: &[&str]) -> Result<String, String> {
        // What it makes has its streams, and may live on: they are files.
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

    /// The same, which is to succeed.
    #[track_caller]
    pub fn must(&self, arguments: &[&str]) -> String {
        self.ask(arguments)
            .unwrap_or_else(|said| panic!("{} {arguments:?}: {said}", self.program.display()))
    }

    /// What has it do something.
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
        // One that is not empty is what has been left of a container, which is said elsewhere.
        let _ = fs::remove_dir(&self.root);
    }
}
