//! Calls that a future version of containerd will make. That version joins containers to namespaces
//! by the paths that the shim returns. So a sandbox needs no process.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use containerd_shim_protos::protobuf::well_known_types::any::Any;
use containerd_shim_protos::protobuf::{Message, MessageField};
use containerd_shim_protos::sandbox_api::{
    CreateSandboxRequest, CreateSandboxResponse, SandboxStatusRequest, SandboxStatusResponse,
    ShutdownSandboxRequest, ShutdownSandboxResponse, StartSandboxRequest, StartSandboxResponse,
    UpdateSandboxRequest, UpdateSandboxResponse,
};
use serde_json::{Value, json};
use usher_api::cri::{
    LinuxPodSandboxConfig, LinuxSandboxSecurityContext, NamespaceMode, NamespaceOption,
    PodSandboxConfig,
};

use crate::harness::{BareShim, Containerd, Service, TaskApi, runtime_under_test};

const POD: &str = "pod";

/// The configuration of a pod in the node's network. The pod has a separate IPC namespace.
fn config() -> Any {
    let options = NamespaceOption {
        network: NamespaceMode::NODE.into(),
        pid: NamespaceMode::CONTAINER.into(),
        ..NamespaceOption::new()
    };
    let context = LinuxSandboxSecurityContext {
        namespace_options: MessageField::some(options),
        ..LinuxSandboxSecurityContext::new()
    };
    let linux = LinuxPodSandboxConfig {
        security_context: MessageField::some(context),
        ..LinuxPodSandboxConfig::new()
    };
    let config = PodSandboxConfig {
        linux: MessageField::some(linux),
        ..PodSandboxConfig::new()
    };
    Any {
        type_url: "runtime.v1.PodSandboxConfig".to_owned(),
        value: config.write_to_bytes().expect("a message"),
        ..Any::new()
    }
}

/// Makes a sandbox for a caller that joins namespaces by their paths. Returns the process id and
/// the spec that the shim reports.
fn make(sandboxes: &TaskApi, bundle: &Path) -> (u32, Value) {
    let request = CreateSandboxRequest {
        sandbox_id: POD.to_owned(),
        bundle_path: bundle.display().to_string(),
        options: MessageField::some(config()),
        annotations: [("usher/namespaces".to_owned(), "by-path".to_owned())].into(),
        ..CreateSandboxRequest::new()
    };
    let made = sandboxes.call::<CreateSandboxResponse>("CreateSandbox", &request);
    made.expect("CreateSandbox");
    let request = StartSandboxRequest {
        sandbox_id: POD.to_owned(),
        ..StartSandboxRequest::new()
    };
    let started = sandboxes.call::<StartSandboxResponse>("StartSandbox", &request);
    let started = started.expect("StartSandbox");
    let spec = serde_json::from_slice(&started.spec.value).expect("a configuration");
    (started.pid, spec)
}

/// The inode that identifies a namespace.
fn inode(path: impl AsRef<Path>) -> u64 {
    let path = path.as_ref();
    let metadata = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    metadata.ino()
}

#[test]
fn containers_join_namespaces_that_no_process_holds() {
    let host = Containerd::start();
    let runtime = runtime_under_test();
    if runtime == crate::harness::REFERENCE {
        return;
    }
    let pod = BareShim::start(&host, &runtime, POD, &[], |_| ());
    // containerd makes the link `work` in each bundle.
    let on_disk = host.dir().join("on-disk");
    fs::create_dir(&on_disk).expect("a directory");
    std::os::unix::fs::symlink(&on_disk, pod.bundle().join("work")).expect("a link");
    let sandboxes = host.connect(&pod.address, Service::SandboxV1);
    let (pid, spec) = make(&sandboxes, pod.bundle());
    assert_eq!(pid, 0, "{spec}");
    let namespaces = spec["linux"]["namespaces"].as_array().expect("namespaces");
    let [ipc] = &namespaces[..] else {
        panic!("its own is IPC alone: {spec}");
    };
    assert_eq!(ipc["type"], "ipc");
    let path = ipc["path"].as_str().expect("a path").to_owned();

    let app = BareShim::start(&host, &runtime, "app", &["/bin/sleep", "1000"], |config| {
        config["annotations"] = json!({
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-id": POD,
        });
        let own = config["linux"]["namespaces"]
            .as_array_mut()
            .expect("namespaces");
        own.retain(|namespace| namespace["type"] != "ipc");
        own.push(json!({"type": "ipc", "path": path}));
    });
    assert_eq!(app.address, pod.address, "one shim has all of a pod");
    let api = app.api();
    let process = api.create(&app.create_request()).expect("Create").pid;
    api.start("app", "").expect("Start");
    let shims = PathBuf::from(format!("/proc/{}/root", pod.pid()));
    let pinned = inode(shims.join(path.trim_start_matches('/')));
    assert_eq!(inode(format!("/proc/{process}/ns/ipc")), pinned);
    assert_ne!(inode("/proc/self/ns/ipc"), pinned);
    let mounts = fs::read_to_string(format!("/proc/{process}/mountinfo")).expect("mounts");
    for place in [
        "/dev/shm",
        "/etc/hosts",
        "/etc/hostname",
        "/etc/resolv.conf",
    ] {
        assert!(
            mounts.contains(&format!(" {place} ")),
            "{place} in {mounts}"
        );
    }
    drop(app);

    // containerd calls UpdateSandbox when kubelet has resized the pod.
    let request = UpdateSandboxRequest {
        sandbox_id: POD.to_owned(),
        ..UpdateSandboxRequest::new()
    };
    let updated = sandboxes.call::<UpdateSandboxResponse>("UpdateSandbox", &request);
    updated.expect("UpdateSandbox");

    let request = SandboxStatusRequest {
        sandbox_id: POD.to_owned(),
        ..SandboxStatusRequest::new()
    };
    let status = sandboxes.call::<SandboxStatusResponse>("SandboxStatus", &request);
    let status = status.expect("SandboxStatus");
    assert_eq!((status.state.as_str(), status.pid), ("SANDBOX_READY", 0));
    let request = ShutdownSandboxRequest {
        sandbox_id: POD.to_owned(),
        ..ShutdownSandboxRequest::new()
    };
    let ended = sandboxes.call::<ShutdownSandboxResponse>("ShutdownSandbox", &request);
    ended.expect("ShutdownSandbox");
    let left = fs::read_dir(pod.bundle()).expect("the bundle").flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(!left.contains(&"usher-sandbox".into()), "{left:?}");
}
