//! The OCI bundle: the parts of its `config.json` that the shim needs.
//!
//! `oci-spec` models the whole document. The tests make bundles with it and compare it with this
//! reader (`agreement.rs`), but the shim does not use it, for three reasons:
//!
//! - It drops unknown fields. Here they survive, because only the changed bytes are written
//!   (`config.rs`).
//! - Its enums are closed. A namespace, action or flag that is newer than the model would be an
//!   error, although the OCI runtime can create the container. Here such a value is a string, which
//!   only the runtime checks.
//! - The shim would keep memory that it has used once. For one of kubelet's `config.json` files
//!   (12.6 kB), the typed document adds 984 kB to the shim, `serde_json::Value` 232 kB, and this
//!   struct 4 kB.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer};
use thiserror::Error;

use usher_engine::Resources;

pub(super) const CONFIG: &str = "config.json";

/// The fields of a container's `config.json` that the shim needs.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Bundle {
    #[serde(deserialize_with = "null_is_empty")]
    pub annotations: BTreeMap<String, String>,
    #[serde(deserialize_with = "null_is_empty")]
    mounts: Vec<Mount>,
    process: Option<Process>,
    hooks: Option<Hooks>,
    linux: Option<Linux>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Mount {
    destination: String,
    source: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Process {
    #[serde(rename = "oomScoreAdj")]
    oom_score_adj: Option<i32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Hooks {
    poststart: Option<Vec<serde::de::IgnoredAny>>,
    poststop: Option<Vec<serde::de::IgnoredAny>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Linux {
    namespaces: Option<Vec<Namespace>>,
    #[serde(rename = "cgroupsPath")]
    cgroups_path: Option<String>,
    resources: Option<Resources>,
    #[serde(rename = "uidMappings", deserialize_with = "null_is_empty")]
    uid_mappings: Vec<Mapping>,
    #[serde(rename = "gidMappings", deserialize_with = "null_is_empty")]
    gid_mappings: Vec<Mapping>,
}

/// A range of `size` IDs: its first ID inside, and its first ID outside the user namespace.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Mapping {
    #[serde(rename = "containerID")]
    inside: u32,
    #[serde(rename = "hostID")]
    outside: u32,
    size: u32,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Namespace {
    #[serde(rename = "type")]
    kind: String,
    path: String,
}

/// Reads null as empty, because Go writes an empty map or list as null.
fn null_is_empty<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// The error of a bundle that cannot be read or changed.
#[derive(Debug, Error)]
pub enum BundleError {
    #[error("cannot read {path}: {source}", path = .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{path} is not an OCI runtime configuration: {source}", path = .path.display())]
    Malformed {
        path: PathBuf,
        source: serde_json::Error,
    },
    #[error("cannot change {path}: {source}", path = .path.display())]
    Unwritten { path: PathBuf, source: io::Error },
}

impl Bundle {
    /// Reads the `config.json` in `bundle`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or is no configuration of the OCI runtime specification.
    pub fn read(bundle: &Path) -> Result<Bundle, BundleError> {
        let path = bundle.join(CONFIG);
        match std::fs::read(&path) {
            Ok(json) => serde_json::from_slice(&json)
                .map_err(|source| BundleError::Malformed { path, source }),
            Err(source) => Err(BundleError::Unreadable { path, source }),
        }
    }

    pub fn has_poststart_hooks(&self) -> bool {
        let hooks = self
            .hooks
            .as_ref()
            .and_then(|hooks| hooks.poststart.as_ref());
        hooks.is_some_and(|hooks| !hooks.is_empty())
    }

    pub fn has_poststop_hooks(&self) -> bool {
        let hooks = self
            .hooks
            .as_ref()
            .and_then(|hooks| hooks.poststop.as_ref());
        hooks.is_some_and(|hooks| !hooks.is_empty())
    }

    /// True if the container has its own PID namespace, so that all its processes die with its
    /// init.
    pub fn has_own_pid_namespace(&self) -> bool {
        self.namespaces()
            .any(|(kind, path)| kind == "pid" && path.is_empty())
    }

    /// Types and paths of the container's namespaces; the path of a new namespace is empty.
    pub fn namespaces(&self) -> impl Iterator<Item = (&str, &str)> {
        let namespaces = self.linux.as_ref();
        let namespaces = namespaces.and_then(|linux| linux.namespaces.as_ref());
        let namespaces = namespaces.into_iter().flatten();
        namespaces.map(|ns| (ns.kind.as_str(), ns.path.as_str()))
    }

    /// UID and GID on the node to which the container's root is mapped. They are 0 if the container
    /// has no user namespace, or if its root is not mapped.
    pub fn root(&self) -> (u32, u32) {
        let Some(linux) = &self.linux else {
            return (0, 0);
        };
        if !self.namespaces().any(|(kind, _)| kind == "user") {
            return (0, 0);
        }
        let of = |mappings: &[Mapping]| {
            let mut mappings = mappings.iter();
            let root = mappings.find(|mapping| mapping.inside == 0 && mapping.size > 0);
            root.map_or(0, |root| root.outside)
        };
        (of(&linux.uid_mappings), of(&linux.gid_mappings))
    }

    /// `oom_score_adj` of the container's program, if set.
    pub fn oom_score(&self) -> Option<i32> {
        self.process.as_ref()?.oom_score_adj
    }

    /// The container's resource requests and limits, as far as they are set.
    pub fn resources(&self) -> Resources {
        let linux = self.linux.as_ref();
        linux.and_then(|linux| linux.resources).unwrap_or_default()
    }

    /// Path of the container's cgroup, if set.
    pub fn cgroups_path(&self) -> Option<&str> {
        self.linux.as_ref()?.cgroups_path.as_deref()
    }

    /// True if systemd makes the container's cgroup. The cgroup's path then has the form
    /// `parent.slice:prefix:name` (runc's `docs/systemd.md`).
    pub fn has_systemd_cgroup(&self) -> bool {
        let mut parts = self.cgroups_path().unwrap_or_default().split(':');
        let is_slice = parts
            .next()
            .is_some_and(|parent| parent.ends_with(".slice"));
        is_slice && parts.count() == 2
    }

    /// Path on the node of the file that is mounted at `destination`.
    pub fn mount_source(&self, destination: &str) -> Option<&Path> {
        let mount = self
            .mounts
            .iter()
            .rev()
            .find(|mount| mount.destination == destination)?;
        Some(Path::new(&mount.source))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_that_the_shim_needs_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let config = r#"{"ociVersion":"1.0.2","annotations":{"usher/sidecars":"proxy"},
            "mounts":[{"destination":"/dev/termination-log","source":"/var/log/x","type":"bind"}],
            "hooks":{"poststart":[{"path":"/bin/true"}]},
            "linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/proc/1/ns/net"}]}}"#;
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let bundle = Bundle::read(dir.path()).unwrap();
        assert_eq!(bundle.annotations["usher/sidecars"], "proxy");
        assert!(bundle.has_poststart_hooks());
        assert!(bundle.has_own_pid_namespace());
        assert_eq!(
            bundle.mount_source("/dev/termination-log"),
            Some(Path::new("/var/log/x"))
        );
        assert_eq!(bundle.mount_source("/elsewhere"), None);
    }

    #[test]
    fn a_joined_pid_namespace_is_not_the_containers_own() {
        let json = r#"{"linux":{"namespaces":[{"type":"pid","path":"/proc/7/ns/pid"}]}}"#;
        let bundle: Bundle = serde_json::from_str(json).unwrap();
        assert!(!bundle.has_own_pid_namespace());
        assert!(!bundle.has_poststart_hooks());
    }

    #[test]
    fn root_in_a_user_namespace_is_the_user_that_it_is_mapped_to() {
        let root = |linux: &str| {
            let json = format!(r#"{{"linux":{{{linux}}}}}"#);
            serde_json::from_str::<Bundle>(&json).unwrap().root()
        };
        let user = r#""namespaces":[{"type":"user"}]"#;
        let mappings = r#""uidMappings":[{"containerID":1,"hostID":5,"size":9},{"containerID":0,"hostID":7,"size":1}],
            "gidMappings":[{"containerID":0,"hostID":8,"size":65536}]"#;
        assert_eq!(root(&format!("{user},{mappings}")), (7, 8));
        // The container joins the user namespace of the pod's sandbox.
        let joined = r#""namespaces":[{"type":"user","path":"/proc/7/ns/user"}]"#;
        assert_eq!(root(&format!("{joined},{mappings}")), (7, 8));
        // Without a user namespace, the mappings have no effect.
        assert_eq!(root(mappings), (0, 0));
        assert_eq!(root(user), (0, 0));
        let unmapped =
            r#""uidMappings":[{"containerID":1,"hostID":5,"size":9}],"gidMappings":null"#;
        assert_eq!(root(&format!("{user},{unmapped}")), (0, 0));
        let empty = r#""uidMappings":[{"containerID":0,"hostID":5,"size":0}]"#;
        assert_eq!(root(&format!("{user},{empty}")), (0, 0));
    }

    #[test]
    fn systemds_cgroups_are_recognized_by_the_form_of_their_path() {
        let has = |path: &str| {
            let json = format!(r#"{{"linux":{{"cgroupsPath":"{path}"}},"annotations":null}}"#);
            serde_json::from_str::<Bundle>(&json)
                .unwrap()
                .has_systemd_cgroup()
        };
        assert!(has("kubepods-burstable-pod1_2.slice:cri-containerd:abc"));
        assert!(!has("/kubepods/burstable/pod1-2/abc"));
        assert!(!has("kubepods.slice/abc"));
        assert!(!has("a:b:c"));
    }

    #[test]
    fn the_error_of_a_malformed_configuration_names_its_path() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), "{").unwrap();
        let error = Bundle::read(dir.path()).unwrap_err().to_string();
        assert!(
            error.contains("config.json is not an OCI runtime configuration"),
            "{error}"
        );
    }
}
