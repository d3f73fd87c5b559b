//! A pod with annotations, for the tests about order: every container brings the same ones, as
//! they do under `ctr`, where there is no sandbox container.

use containerd_shim_protos::api::UpdateTaskRequest;
use containerd_shim_protos::protobuf::well_known_types::any::Any;

use crate::harness::{ContainerSpec, Containerd};

/// Annotations that make a pod.
pub struct Pod(pub &'static [(&'static str, &'static str)]);

/// A startup probe by TCP, ten times a second, that does not give up within a test.
pub const TCP_PROBE: &str =
    r#"{"tcpSocket":{"port":8080},"periodMilliseconds":100,"failureThreshold":200}"#;

/// A startup probe by a command: the witness's mark of being ready.
pub const EXEC_PROBE: &str = r#"{"exec":{"command":["/bin/test","-e","/shared/ready-proxy"]},"periodMilliseconds":100,"failureThreshold":200}"#;

/// A sidecar that is ready when it accepts connections.
pub const MESH: Pod = Pod(&[
    ("usher/sidecars", "proxy"),
    ("startup-probe.usher/proxy", TCP_PROBE),
]);

/// A sidecar of a pod that the caller restarts nothing of.
pub const JOB: Pod = Pod(&[
    ("usher/sidecars", "proxy"),
    ("startup-probe.usher/proxy", TCP_PROBE),
    ("usher/apps", "work"),
    ("usher/restart-policy", "Never"),
]);

/// An Update with the OCI specification's `LinuxResources` as JSON.
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
    /// A witness of this pod.
    pub fn witness(&self, name: &str, options: &[&str]) -> ContainerSpec {
        ContainerSpec::new(name)
            .in_pod("pod1", name)
            .annotations(self.0)
            .witness(options)
    }

    /// Runs a proxy that gets ready after a while, and waits until it runs.
    #[track_caller]
    pub fn run_proxy(&self, host: &Containerd, options: &[&str]) {
        host.run(&self.witness("proxy", &[&["--listen", "8080"], options].concat()));
        host.await_event("proxy", "start");
    }
}
