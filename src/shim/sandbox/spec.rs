//! The OCI configuration of a sandbox without a pause container: paths of its namespaces, and its
//! files. containerd stores it, shows it, and passes it to NRI plugins.

use nix::sys::statfs::{NSFS_MAGIC, statfs};
use serde_json::{Value, json};

use usher_engine::Sandbox;

/// Returns the configuration; `None` if the shim has not made the sandbox, because the pod has a
/// pause container or no sandbox yet.
pub fn spec(sandbox: &Sandbox) -> Option<Value> {
    let own = sandbox.own.as_deref()?;
    let mounts = own.files.iter().map(|(place, path)| {
        json!({"destination": place, "type": "bind", "source": path, "options": ["rbind", "rprivate", "rw"]})
    });
    let namespaces = own.namespaces.iter();
    let namespaces = namespaces.map(|(kind, path)| json!({"type": kind, "path": path}));
    let mut spec = json!({
        "ociVersion": "1.1.0",
        "annotations": own.annotations,
        "mounts": mounts.collect::<Vec<_>>(),
        "linux": {"namespaces": namespaces.collect::<Vec<_>>()},
    });
    if let (Some(hostname), Some(fields)) = (&own.hostname, spec.as_object_mut()) {
        fields.insert("hostname".to_owned(), json!(hostname));
    }
    Some(spec)
}

/// True if the pod's network namespace was removed from its path, for example by an administrator.
#[expect(
    clippy::disallowed_methods,
    reason = "namespaces are mounted in directories that are in memory"
)]
pub fn is_network_closed(sandbox: &Sandbox) -> bool {
    let own = sandbox.own.iter();
    let mut namespaces = own.flat_map(|own| &own.namespaces);
    let network = namespaces.find(|(kind, _)| *kind == "network");
    network.is_some_and(|(_, path)| {
        !statfs(path).is_ok_and(|found| found.filesystem_type() == NSFS_MAGIC)
    })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::*;
    use usher_engine::OwnSandbox;

    #[test]
    fn a_sandbox_with_a_holder_has_a_spec_that_names_its_network() {
        let own = OwnSandbox {
            files: vec![("/etc/hosts", PathBuf::from("/b/work/hosts"))],
            namespaces: vec![
                ("network", PathBuf::from("/run/netns/a")),
                ("ipc", PathBuf::from("/proc/7/ns/ipc")),
            ],
            annotations: [("usher/apps".to_owned(), "web".to_owned())].into(),
            hostname: Some("web-0".to_owned()),
        };
        let sandbox = Sandbox {
            pid: 7,
            own: Some(Arc::new(own)),
            ..Sandbox::default()
        };
        let said = spec(&sandbox).unwrap();
        let expected = json!([
            {"type": "network", "path": "/run/netns/a"},
            {"type": "ipc", "path": "/proc/7/ns/ipc"},
        ]);
        assert_eq!(said["linux"]["namespaces"], expected);
        assert_eq!(said["mounts"][0]["source"], "/b/work/hosts");
        assert_eq!(said["annotations"]["usher/apps"], "web");
        assert_eq!(said["hostname"], "web-0");
        assert_eq!(spec(&Sandbox::default()), None);
    }
}
