//! Pods for the tests of ordering. Every container has all annotations of its pod, because under
//! `ctr` there is no sandbox container.

use containerd_shim_protos::api::UpdateTaskRequest;
use containerd_shim_protos::protobuf::well_known_types::any::Any;

use crate::harness::{ContainerSpec, Containerd};

/// The annotations of a pod.
pub struct Pod(pub &'static [(&'static str, &'static str)]);

/// A startup probe by TCP that runs ten times a second. Its failure threshold is not reached during
/// a test.
pub const TCP_PROBE: &str =
    r#"{"tcpSocket":{"port":8080},"periodMilliseconds":100,"failureThreshold":200}"#;

/// A startup probe by a command, which checks for the file that a witness makes when it is ready.
pub const EXEC_PROBE: &str = r#"{"exec":{"command":["/bin/test","-e","/shared/ready-proxy"]},"periodMilliseconds":100,"failureThreshold":200}"#;

/// A pod with a sidecar. The sidecar is ready as soon as it accepts connections.
pub const MESH: Pod = Pod(&[
    ("usher/sidecars", "proxy"),
    ("startup-probe.usher/proxy", TCP_PROBE),
]);

/// A Job with a sidecar that is ready when it accepts connections. The caller restarts no
/// container.
pub const JOB: Pod = Pod(&[
    ("usher/sidecars", "proxy"),
    ("startup-probe.usher/proxy", TCP_PROBE),
    ("usher/apps", "work"),
    ("usher/restart-policy", "Never"),
]);

/// An Update request. `json` is the OCI specification's `LinuxResources`.
pub fn resources(id: &str, json: &str) -> UpdateTaskRequest {
    let resources = Any {
        value: json.as_bytes().to_vec(),
        ..Any::default()
    };
    UpdateTaskRequest {
        id: id.to_owned(),
        resources: Some(resources).into(),
        ..UpdateTaskRequest::default()
    }
}

impl Pod {
    pub fn witness(&self, name: &str, options: &[&str]) -> ContainerSpec {
        ContainerSpec::new(name)
            .in_pod("pod1", name)
            .annotations(self.0)
            .witness(options)
    }

    /// Runs the pod's proxy, which listens on port 8080, and waits for its start.
    #[track_caller]
    pub fn run_proxy(&self, host: &Containerd, options: &[&str]) {
        host.run(&self.witness("proxy", &[&["--listen", "8080"], options].concat()));
        host.await_event("proxy", "start");
    }
}
