//! A container that `ctr` runs, described by the arguments of `ctr`.

use std::process::Command;

use super::{Containerd, has_controllers, runtime_under_test};

/// A container to run. Each method returns the container with one more setting.
#[derive(Clone, Debug)]
pub struct ContainerSpec {
    pub id: String,
    pub runtime: String,
    name: String,
    image: Option<String>,
    options: Vec<String>,
    args: Vec<String>,
}

impl ContainerSpec {
    /// A container that runs a witness under the runtime under test. The witness has the
    /// container's id as its name.
    pub fn new(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            runtime: runtime_under_test(),
            name: id.to_owned(),
            image: None,
            options: Vec::new(),
            args: Vec::new(),
        }
        .witness(&[])
    }

    /// A container of a pod. The container runs a witness, and has the id `POD-NAME`.
    pub fn witness_of(
        pod: &str,
        name: &str,
        annotations: &[(&str, &str)],
        options: &[&str],
    ) -> Self {
        Self::new(&format!("{pod}-{name}"))
            .in_pod(pod, name)
            .annotations(annotations)
            .witness(options)
    }

    pub fn runtime(mut self, runtime: &str) -> Self {
        self.runtime = runtime.to_owned();
        self
    }

    /// Makes the container part of a pod, with this container name and the annotations that the CRI
    /// plugin sets. The witness records its events under this name.
    pub fn in_pod(mut self, pod: &str, name: &str) -> Self {
        if self
            .args
            .first()
            .is_some_and(|program| program == "/bin/witness")
        {
            self.args[1] = name.to_owned();
        }
        self.name = name.to_owned();
        self.annotation("io.kubernetes.cri.sandbox-id", pod)
            .annotation("io.kubernetes.cri.container-name", name)
    }

    pub fn annotation(self, key: &str, value: &str) -> Self {
        self.option(&["--annotation", &format!("{key}={value}")])
    }

    pub fn annotations(mut self, annotations: &[(&str, &str)]) -> Self {
        for (key, value) in annotations {
            self = self.annotation(key, value);
        }
        self
    }

    /// Runs the witness with these options; see `integration/witness.rs`.
    pub fn witness(self, options: &[&str]) -> Self {
        let name = self.name.clone();
        let listens = ["--listen", "--http", "--grpc"]
            .iter()
            .any(|option| options.contains(option));
        let spec = self.args(&[&["/bin/witness", &name], options].concat());
        // In a container made by `ctr`, the loopback interface is down. The witness has to bring it
        // up, for which it needs a capability.
        if listens {
            spec.option(&["--cap-add", "CAP_NET_ADMIN"])
        } else {
            spec
        }
    }

    /// Runs this command instead of the witness.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args = args.iter().map(|&arg| arg.to_owned()).collect();
        self
    }

    /// Runs a script by busybox's shell.
    pub fn script(self, script: &str) -> Self {
        self.args(&["/bin/sh", "-c", script])
    }

    /// Uses an image in containerd's store as the root file system instead of the test's own.
    pub fn image(mut self, image: &str) -> Self {
        self.image = Some(image.to_owned());
        self
    }

    pub fn mount(self, source: &str, target: &str) -> Self {
        let mount = format!("type=bind,src={source},dst={target},options=rbind:rw");
        self.option(&["--mount", &mount])
    }

    /// Adds an option of `ctr run`.
    pub fn option(mut self, option: &[&str]) -> Self {
        self.options
            .extend(option.iter().map(|&word| word.to_owned()));
        self
    }

    /// A `ctr` command for this container. `command` is for example `run --rm`.
    pub fn ctr_command(&self, host: &Containerd, command: &[&str]) -> Command {
        let line = self.command_line(host, command);
        host.ctr_command(&line.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// The arguments of `ctr`, beginning with the command (`run`, `containers create`).
    fn command_line(&self, host: &Containerd, command: &[&str]) -> Vec<String> {
        let mut line: Vec<String> = command.iter().map(|&word| word.to_owned()).collect();
        line.extend(["--runtime".to_owned(), self.runtime.clone()]);
        // youki needs the variable `PATH`. Every image sets this variable, but the test's root file
        // system sets no variables.
        let shared = self
            .clone()
            .mount(&host.shared_dir().display().to_string(), "/shared")
            .option(&["--env", "PATH=/bin"]);
        line.extend(shared.options);
        if !has_controllers() {
            // Without this option, `ctr` of containerd 2 sets CPU shares. An OCI runtime refuses
            // them if there is no CPU controller.
            line.extend(["--cpu-shares", "0"].map(str::to_owned));
        }
        let rootfs = || host.dir().join("rootfs").display().to_string();
        if self.image.is_none() {
            line.push("--rootfs".to_owned());
        }
        line.push(self.image.clone().unwrap_or_else(rootfs));
        line.push(self.id.clone());
        line.extend(self.args.iter().cloned());
        line
    }
}
