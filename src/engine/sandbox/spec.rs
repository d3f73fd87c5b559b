//! A sandbox without a process, as containerd is to know it: an OCI configuration that names its namespaces and
//! its files by their paths.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::engine::Sandbox;

use super::files;

/// The configuration; none if a process holds the namespaces, by which they can be found.
pub fn spec(sandbox: &Sandbox) -> Option<Value> {
    let bundle = sandbox.bundle.as_deref().filter(|_| sandbox.pid == 0)?;
    let mounts = files::shared(bundle).into_iter().map(|(place, path)| {
        json!({"destination": place, "type": "bind", "source": path, "options": ["rbind", "rprivate", "rw"]})
    });
    Some(json!({
        "ociVersion": "1.1.0",
        "mounts": mounts.collect::<Vec<_>>(),
        "linux": {"namespaces": namespaces(bundle, sandbox.network.as_ref())},
    }))
}

fn namespaces(bundle: &Path, network: Option<&PathBuf>) -> Vec<Value> {
    let pins = files::pins(bundle);
    let pinned = ["ipc", "uts"].map(|name| (name, pins.join(name)));
    let pinned = pinned.into_iter().filter(|(_, path)| path.exists());
    let network = network.map(|path| ("network", path.clone()));
    let all = network.into_iter().chain(pinned);
    all.map(|(kind, path)| json!({"type": kind, "path": path}))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_process_holds_is_named_by_its_path() {
        let bundle = tempfile::tempdir().unwrap();
        let pins = files::pins(bundle.path());
        std::fs::create_dir_all(&pins).unwrap();
        std::fs::write(pins.join("ipc"), "").unwrap();
        let sandbox = Sandbox {
            bundle: Some(bundle.path().to_owned()),
            network: Some(PathBuf::from("/run/netns/a")),
            ..Sandbox::default()
        };
        let said = spec(&sandbox).unwrap();
        let expected = json!([
            {"type": "network", "path": "/run/netns/a"},
            {"type": "ipc", "path": pins.join("ipc")},
        ]);
        assert_eq!(said["linux"]["namespaces"], expected);
        assert_eq!(spec(&Sandbox { pid: 7, ..sandbox }), None);
    }
}
