//! A pod and its containers.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::{
    CgroupFiles, Containerd, Cri, Finished, Handler, MessageField, PATIENCE, SETTLING, WITNESS,
    cri, eventually, pod_cgroup, poll, uid_of,
};

#[derive(Clone)]
pub struct PodSpec {
    pub handler: Handler,
    pub config: cri::PodSandboxConfig,
    /// Memory limit of the pod's cgroup in bytes.
    memory: Option<u64>,
}

/// A created pod.
pub struct Pod<'a> {
    node: &'a Cri,
    pub id: String,
    pub spec: PodSpec,
}

pub struct Container<'a> {
    node: &'a Cri,
    pub id: String,
    pub name: String,
}

impl PodSpec {
    /// A pod in the node's network. A pod with a network of its own would start more slowly.
    pub fn new(name: &str, handler: Handler) -> Self {
        let mut config = cri::PodSandboxConfig::new();
        let metadata = config.metadata.mut_or_insert_default();
        metadata.name = name.to_owned();
        metadata.namespace = "default".to_owned();
        metadata.uid = uid_of(name);
        let options = namespaces(&mut config);
        options.network = cri::NamespaceMode::NODE.into();
        options.pid = cri::NamespaceMode::CONTAINER.into();
        Self {
            handler,
            config,
            memory: None,
        }
    }

    /// Gives the pod a network namespace that the network plugins set up. The pod's name becomes
    /// its hostname.
    pub fn with_network(mut self) -> Self {
        namespaces(&mut self.config).network = cri::NamespaceMode::POD.into();
        self.config.hostname = self.config.metadata.name.clone();
        self
    }

    pub fn annotations(mut self, annotations: &[(&str, &str)]) -> Self {
        let pairs = annotations.iter();
        let pairs = pairs.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        self.config.annotations.extend(pairs);
        self
    }

    /// Limits the memory of the pod's cgroup, in bytes.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Changes kubelet's configuration of the pod.
    pub fn with(mut self, edit: impl FnOnce(&mut cri::PodSandboxConfig)) -> Self {
        edit(&mut self.config);
        self
    }

    pub fn namespaces(mut self, edit: impl FnOnce(&mut cri::NamespaceOption)) -> Self {
        edit(namespaces(&mut self.config));
        self
    }

    pub fn sysctl(mut self, name: &str, value: &str) -> Self {
        let linux = self.config.linux.mut_or_insert_default();
        linux.sysctls.insert(name.to_owned(), value.to_owned());
        self
    }
}

fn namespaces(config: &mut cri::PodSandboxConfig) -> &mut cri::NamespaceOption {
    let linux = config.linux.mut_or_insert_default();
    let context = linux.security_context.mut_or_insert_default();
    context.namespace_options.mut_or_insert_default()
}

impl Cri {
    #[track_caller]
    pub fn run_pod(&self, spec: &PodSpec) -> Pod<'_> {
        let pod = self.try_run_pod(spec);
        pod.unwrap_or_else(|e| panic!("RunPodSandbox: {e}"))
    }

    /// Makes a pod. Its cgroup is below the test's cgroup. Returns the error if containerd refuses
    /// the pod.
    pub fn try_run_pod(&self, spec: &PodSpec) -> Result<Pod<'_>, String> {
        let mut spec = spec.clone();
        let parent = self.cgroup_of(&spec.config.metadata.name);
        pod_cgroup::make(&parent);
        if let Some(bytes) = spec.memory {
            let path = parent.clone();
            CgroupFiles { path }.limit_memory(bytes);
        }
        let logs = self.dir().join("logs").join(&spec.config.metadata.name);
        fs::create_dir_all(&logs).expect("a directory of logs");
        spec.config.log_directory = logs.display().to_string();
        spec.config.linux.mut_or_insert_default().cgroup_parent = parent;
        let mut request = cri::RunPodSandboxRequest::new();
        request.config = MessageField::some(spec.config.clone());
        request.runtime_handler = spec.handler.name().to_owned();
        let answer = self.call::<cri::RunPodSandboxResponse>("RunPodSandbox", &request);
        if answer.is_err() {
            pod_cgroup::remove(&self.cgroup_of(&spec.config.metadata.name));
        }
        let answer = answer?;
        Ok(Pod {
            node: self,
            id: answer.pod_sandbox_id,
            spec,
        })
    }
}

impl<'a> Pod<'a> {
    /// Creates and starts a container.
    #[track_caller]
    pub fn run(&self, name: &str, command: &[&str]) -> Container<'a> {
        self.run_with(name, command, |_| {})
    }

    #[track_caller]
    pub fn run_with(
        &self,
        name: &str,
        command: &[&str],
        edit: impl FnOnce(&mut cri::ContainerConfig),
    ) -> Container<'a> {
        let container = self.create(name, command, edit);
        container.start();
        container
    }

    /// Runs a container with a witness, and waits until the witness has started. Container and
    /// witness have the same name.
    #[track_caller]
    pub fn witness(&self, name: &str, options: &[&str]) -> Container<'a> {
        let words = [&["/bin/witness", name][..], options].concat();
        let container = self.run(name, &words);
        self.node.await_event(name, "start");
        container
    }

    #[track_caller]
    pub fn create(
        &self,
        name: &str,
        command: &[&str],
        edit: impl FnOnce(&mut cri::ContainerConfig),
    ) -> Container<'a> {
        let created = self.try_create(name, command, edit);
        created.unwrap_or_else(|e| panic!("CreateContainer {name}: {e}"))
    }

    /// Creates a container. Returns the error if containerd refuses the container.
    pub fn try_create(
        &self,
        name: &str,
        command: &[&str],
        edit: impl FnOnce(&mut cri::ContainerConfig),
    ) -> Result<Container<'a>, String> {
        let mut config = cri::ContainerConfig::new();
        config.metadata.mut_or_insert_default().name = name.to_owned();
        config.image.mut_or_insert_default().image = WITNESS.to_owned();
        config.command = command.iter().map(|word| (*word).to_owned()).collect();
        config.log_path = format!("{name}.log");
        let mut shared = cri::Mount::new();
        shared.container_path = "/shared".to_owned();
        shared.host_path = self.node.shared_dir().display().to_string();
        config.mounts.push(shared);
        // kubelet writes the pod's choice of namespaces into the configuration of each container,
        // too.
        let linux = config.linux.mut_or_insert_default();
        let context = linux.security_context.mut_or_insert_default();
        let of_pod = &self.spec.config.linux.security_context.namespace_options;
        context.namespace_options.clone_from(of_pod);
        edit(&mut config);
        let mut request = cri::CreateContainerRequest::new();
        request.pod_sandbox_id.clone_from(&self.id);
        request.config = MessageField::some(config);
        request.sandbox_config = MessageField::some(self.spec.config.clone());
        let answer: cri::CreateContainerResponse = self.node.call("CreateContainer", &request)?;
        Ok(Container {
            node: self.node,
            id: answer.container_id,
            name: name.to_owned(),
        })
    }

    #[track_caller]
    pub fn status(&self) -> cri::PodSandboxStatus {
        self.told(false).status.unwrap_or_default()
    }

    /// The verbose information that containerd gives about the pod, by key.
    #[track_caller]
    pub fn info(&self) -> HashMap<String, String> {
        self.told(true).info
    }

    #[track_caller]
    fn told(&self, verbose: bool) -> cri::PodSandboxStatusResponse {
        let answer = self.try_told(verbose);
        answer.unwrap_or_else(|e| panic!("PodSandboxStatus: {e}"))
    }

    fn try_told(&self, verbose: bool) -> Result<cri::PodSandboxStatusResponse, String> {
        let mut request = cri::PodSandboxStatusRequest::new();
        request.pod_sandbox_id.clone_from(&self.id);
        request.verbose = verbose;
        self.node.call("PodSandboxStatus", &request)
    }

    /// The pod's cgroup, which exists as long as the pod.
    pub fn cgroup(&self) -> CgroupFiles {
        let path = self.node.cgroup_of(&self.spec.config.metadata.name);
        CgroupFiles { path }
    }

    /// Resizes the pod as kubelet does: changes the limit of the pod's cgroup, and tells
    /// containerd.
    #[track_caller]
    pub fn resize_memory(&self, bytes: u64) {
        self.cgroup().limit_memory(bytes);
        let mut request = cri::UpdatePodSandboxResourcesRequest::new();
        request.pod_sandbox_id.clone_from(&self.id);
        let resources = request.resources.mut_or_insert_default();
        resources.memory_limit_in_bytes = i64::try_from(bytes).expect("a limit");
        let answer: Result<cri::UpdatePodSandboxResourcesResponse, _> =
            self.node.call("UpdatePodSandboxResources", &request);
        answer.unwrap_or_else(|e| panic!("UpdatePodSandboxResources: {e}"));
    }

    pub fn is_ready(&self) -> bool {
        self.status().state == cri::PodSandboxState::SANDBOX_READY.into()
    }

    #[track_caller]
    pub fn await_not_ready(&self) {
        let not_ready = cri::PodSandboxState::SANDBOX_NOTREADY.into();
        // containerd gives no answer until it has noticed that the shim is gone.
        eventually("the pod is not ready", PATIENCE, || {
            let answer = self.try_told(false);
            answer.is_ok_and(|answer| answer.status.state == not_ready)
        });
    }

    #[track_caller]
    pub fn stats(&self) -> cri::LinuxPodSandboxStats {
        let mut request = cri::PodSandboxStatsRequest::new();
        request.pod_sandbox_id.clone_from(&self.id);
        let answer = self.node.call("PodSandboxStats", &request);
        let answer: cri::PodSandboxStatsResponse =
            answer.unwrap_or_else(|e| panic!("PodSandboxStats: {e}"));
        answer.stats.linux.clone().unwrap_or_default()
    }

    #[track_caller]
    pub fn stop(&self) {
        let stopped = self.try_stop();
        stopped.unwrap_or_else(|e| panic!("StopPodSandbox: {e}"));
    }

    pub fn try_stop(&self) -> Result<(), String> {
        let mut request = cri::StopPodSandboxRequest::new();
        request.pod_sandbox_id.clone_from(&self.id);
        let answer: Result<cri::StopPodSandboxResponse, _> =
            self.node.call("StopPodSandbox", &request);
        answer.map(|_| ())
    }

    /// Removes the pod. Repeats a failed removal as kubelet does, because containerd refuses a
    /// removal while it cleans up after a dead shim.
    #[track_caller]
    pub fn remove(&self) {
        let mut request = cri::RemovePodSandboxRequest::new();
        request.pod_sandbox_id.clone_from(&self.id);
        let mut refusal = None;
        poll(PATIENCE, || {
            let answer: Result<cri::RemovePodSandboxResponse, _> =
                self.node.call("RemovePodSandbox", &request);
            refusal = answer.err();
            refusal.is_none().then_some(())
        });
        assert!(
            refusal.is_none(),
            "RemovePodSandbox: {}",
            refusal.unwrap_or_default()
        );
        pod_cgroup::remove(&self.node.cgroup_of(&self.spec.config.metadata.name));
    }

    /// Stops and removes the pod, and checks that no trace is left.
    #[track_caller]
    pub fn end(&self) {
        self.stop();
        self.remove();
        poll(SETTLING, || self.node.remains().is_empty().then_some(()));
        let remains = self.node.remains();
        assert!(remains.is_empty(), "left behind:\n{}", remains.join("\n"));
    }

    /// The process that holds the pod's namespaces, according to containerd.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        let info = self.info();
        let found = info.values().find_map(|text| {
            let said: serde_json::Value = serde_json::from_str(text).ok()?;
            u32::try_from(said["pid"].as_u64()?).ok()
        });
        found.unwrap_or_else(|| panic!("no pid in {info:?}"))
    }
}

impl Container<'_> {
    #[track_caller]
    pub fn start(&self) {
        let started = self.try_start();
        started.unwrap_or_else(|e| panic!("StartContainer {}: {e}", self.name));
    }

    pub fn try_start(&self) -> Result<(), String> {
        let mut request = cri::StartContainerRequest::new();
        request.container_id.clone_from(&self.id);
        let answer: Result<cri::StartContainerResponse, _> =
            self.node.call("StartContainer", &request);
        answer.map(|_| ())
    }

    /// Stops the container. containerd sends SIGKILL after `timeout` seconds.
    #[track_caller]
    pub fn stop(&self, timeout: i64) {
        let mut request = cri::StopContainerRequest::new();
        request.container_id.clone_from(&self.id);
        request.timeout = timeout;
        let answer: Result<cri::StopContainerResponse, _> =
            self.node.call("StopContainer", &request);
        answer.unwrap_or_else(|e| panic!("StopContainer {}: {e}", self.name));
    }

    /// Writes a checkpoint of the container's processes to an archive. The processes go on running.
    #[track_caller]
    pub fn checkpoint(&self, archive: &Path) {
        let mut request = cri::CheckpointContainerRequest::new();
        request.container_id.clone_from(&self.id);
        request.location = archive.display().to_string();
        let answer: Result<cri::CheckpointContainerResponse, _> =
            self.node.call("CheckpointContainer", &request);
        answer.unwrap_or_else(|e| panic!("CheckpointContainer {}: {e}", self.name));
    }

    #[track_caller]
    pub fn remove(&self) {
        let mut request = cri::RemoveContainerRequest::new();
        request.container_id.clone_from(&self.id);
        let answer: Result<cri::RemoveContainerResponse, _> =
            self.node.call("RemoveContainer", &request);
        answer.unwrap_or_else(|e| panic!("RemoveContainer {}: {e}", self.name));
    }

    #[track_caller]
    pub fn status(&self) -> cri::ContainerStatus {
        let mut request = cri::ContainerStatusRequest::new();
        request.container_id.clone_from(&self.id);
        let answer: Result<cri::ContainerStatusResponse, _> =
            self.node.call("ContainerStatus", &request);
        let answer = answer.unwrap_or_else(|e| panic!("ContainerStatus {}: {e}", self.name));
        answer.status.unwrap_or_default()
    }

    pub fn state(&self) -> cri::ContainerState {
        self.status().state.enum_value_or_default()
    }

    /// Waits for the container's exit, and returns the exit code.
    #[track_caller]
    pub fn await_exit(&self) -> i32 {
        eventually(&format!("{} has ended", self.name), PATIENCE, || {
            self.state() == cri::ContainerState::CONTAINER_EXITED
        });
        self.status().exit_code
    }

    /// Runs a command in the container to its end.
    #[track_caller]
    pub fn exec(&self, words: &[&str]) -> Finished {
        let executed = self.try_exec(words);
        executed.unwrap_or_else(|e| panic!("ExecSync {words:?}: {e}"))
    }

    pub fn try_exec(&self, words: &[&str]) -> Result<Finished, String> {
        let mut request = cri::ExecSyncRequest::new();
        request.container_id.clone_from(&self.id);
        request.cmd = words.iter().map(|word| (*word).to_owned()).collect();
        request.timeout = 10;
        let answer: cri::ExecSyncResponse = self.node.call("ExecSync", &request)?;
        Ok(Finished {
            code: Some(answer.exit_code),
            stdout: answer.stdout,
            stderr: answer.stderr,
        })
    }

    /// Runs a shell script in the container, and returns its output.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let finished = self.exec(&["/bin/sh", "-c", script]);
        assert!(finished.ok(), "{script}: {}", finished.err());
        finished.out().trim().to_owned()
    }

    /// The container's output, read from its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.status().log_path).unwrap_or_default()
    }

    /// The id of the container's first process, as seen from the node.
    #[track_caller]
    pub fn pid(&self) -> u32 {
        let task = self
            .node
            .tasks()
            .into_iter()
            .find(|task| task.id == self.id);
        task.unwrap_or_else(|| panic!("no task of {}", self.name))
            .pid
    }

    /// Sends a signal to the container's first process.
    #[track_caller]
    pub fn kill(&self, signal: &str) {
        self.node.kill(&self.id, signal);
    }
}
