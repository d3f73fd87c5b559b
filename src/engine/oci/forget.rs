//! Having a container that has ended forgotten, in runc's place.
//!
//! `runc delete` removes the cgroups that it has noted in `<root>/<id>/state.json`, and then that directory. It
//! is a process of its own that does so, for many times the cost. What else it may have to do is left to it: units
//! of systemd's, groups of resctrl, network devices that go back to the node, hooks, cgroups that the container has
//! made, and whatever a later runc notes that is unknown here (`destroy` in `libcontainer/state_linux.go`).
//! `usher-libcontainer` says by a note of its own that there is nothing but cgroups (`src/libcontainer/running.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::cgroup::is_named_after;

use super::OciRuntime;
use super::options::LIBCONTAINER_BINARY;
use super::runtime::DEFAULT_BINARY;

const STATE: &str = "state.json";

/// Where `usher-libcontainer` notes the cgroups of a container that is nothing else.
const CGROUPS: &str = "cgroups.json";

/// All that runc notes of a container, up to 1.5 (`State` in `libcontainer/container_linux.go`).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct State {
    #[serde(rename = "id")]
    _id: IgnoredAny,
    #[serde(rename = "init_process_pid")]
    _init_process_pid: IgnoredAny,
    #[serde(rename = "init_process_start")]
    _init_process_start: IgnoredAny,
    #[serde(rename = "created")]
    _created: IgnoredAny,
    config: Config,
    #[serde(default)]
    rootless: bool,
    cgroup_paths: BTreeMap<String, PathBuf>,
    #[serde(rename = "namespace_paths")]
    _namespace_paths: IgnoredAny,
    #[serde(default, rename = "external_descriptors")]
    _external_descriptors: IgnoredAny,
    #[serde(default)]
    intel_rdt_path: String,
}

/// What it was created with, as far as its deletion is concerned.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    #[serde(default)]
    net_devices: Option<IgnoredAny>,
}

/// Forgets container `id`, whose init has ended and which has no hooks that run at its deletion. False if the OCI
/// runtime has to do that: whatever is missing then, it would have removed as well.
pub fn directly(runtime: &OciRuntime, id: &str) -> bool {
    // Others keep such a state too, and may have more to do than they note there.
    let program = Path::new(&runtime.binary).file_name();
    let is_known = [DEFAULT_BINARY, LIBCONTAINER_BINARY]
        .iter()
        .any(|known| program == Some(OsStr::new(known)));
    if !is_known || runtime.systemd_cgroup {
        return false;
    }
    let directory = runtime.state_dir(id);
    let noted = noted_by_libcontainer(&directory).or_else(|| noted_by_runc(&directory));
    let are_own = |cgroups: &BTreeSet<PathBuf>| {
        !cgroups.is_empty() && cgroups.iter().all(|cgroup| is_named_after(cgroup, id))
    };
    let Some(cgroups) = noted.filter(are_own) else {
        return false;
    };
    // One in which anything lives stays, and one with others below it.
    let removed = cgroups
        .iter()
        .try_for_each(|cgroup| gone(fs::remove_dir(cgroup)));
    removed.and_then(|()| remove(&directory)).is_ok()
}

/// The cgroups of a container, if they are all that there is of it.
fn noted_by_runc(directory: &Path) -> Option<BTreeSet<PathBuf>> {
    let state = fs::read(directory.join(STATE)).ok()?;
    let state: State = serde_json::from_slice(&state).ok()?;
    let is_all =
        !state.rootless && state.intel_rdt_path.is_empty() && state.config.net_devices.is_none();
    is_all.then(|| state.cgroup_paths.into_values().collect())
}

/// The same by our own OCI runtime.
fn noted_by_libcontainer(directory: &Path) -> Option<BTreeSet<PathBuf>> {
    let cgroups = fs::read(directory.join(CGROUPS)).ok()?;
    serde_json::from_slice(&cgroups).ok()
}

/// Removes the directory of a container's state, the state itself last: as long as that is there its OCI runtime knows
/// it.
fn remove(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name() != STATE {
            fs::remove_file(entry.path())?;
        }
    }
    fs::remove_file(directory.join(STATE))?;
    fs::remove_dir(directory)
}

/// The same if it is not there.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::engine::oci::Options;
    use crate::reaper::Reaper;

    use super::*;

    struct Node {
        directory: tempfile::TempDir,
        runtime: OciRuntime,
    }

    impl Node {
        /// With a container `web` that has ended.
        fn new(options: &Options, change: impl FnOnce(&mut Value)) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let at = |name: &str| directory.path().join(name);
            let options = Options {
                root: at("runc").display().to_string(),
                ..options.clone()
            };
            let runtime = OciRuntime::new(&options, "default", &at("bundle"), Reaper::default());
            fs::create_dir_all(runtime.state_dir("web")).unwrap();
            let mut state = json!({
                "id": "web", "init_process_pid": 7, "init_process_start": 9,
                "created": "2026-11-23T19:44:58.446957783Z", "config": { "rootfs": "/" },
                "cgroup_paths": { "memory": at("memory/web"), "pids": at("pids/web") },
                "namespace_paths": {}, "external_descriptors": [],
            });
            for cgroup in ["memory/web", "pids/web", "memory/other"] {
                fs::create_dir_all(at(cgroup)).unwrap();
            }
            change(&mut state);
            let file = runtime.state_dir("web").join("state.json");
            fs::write(file, state.to_string()).unwrap();
            fs::write(runtime.state_dir("web").join("exec.fifo"), "").unwrap();
            Self { directory, runtime }
        }

        fn has(&self, name: &str) -> bool {
            self.directory.path().join(name).exists()
        }

        fn is_known(&self) -> bool {
            self.runtime.state_dir("web").join("state.json").exists()
        }
    }

    #[test]
    fn nothing_of_what_runc_has_noted_is_left() {
        for version in [
            json!({}),
            json!({ "rootless": false, "intel_rdt_path": "" }),
        ] {
            let node = Node::new(&Options::default(), |state| {
                state
                    .as_object_mut()
                    .unwrap()
                    .extend(version.as_object().unwrap().clone());
            });
            assert!(directly(&node.runtime, "web"));
            assert!(!node.runtime.state_dir("web").exists());
            assert!(!node.has("memory/web") && !node.has("pids/web") && node.has("memory/other"));
        }
    }

    #[test]
    fn what_libcontainer_has_noted_is_forgotten_too() {
        let options = Options {
            binary_name: "/usr/local/bin/usher-libcontainer".to_owned(),
            ..Options::default()
        };
        let noted = |cgroups: &[&str]| {
            let node = Node::new(&options, |state| *state = json!({ "ociVersion": "1.2.0" }));
            let cgroups: Vec<_> = cgroups
                .iter()
                .map(|name| node.directory.path().join(name))
                .collect();
            let file = node.runtime.state_dir("web").join("cgroups.json");
            fs::write(file, json!(cgroups).to_string()).unwrap();
            node
        };
        let node = noted(&["memory/web", "pids/web"]);
        assert!(directly(&node.runtime, "web"));
        assert!(!node.runtime.state_dir("web").exists() && node.has("memory/other"));
        for odd in [&[][..], &["memory/other"], &["memory/web", "memory/other"]] {
            let node = noted(odd);
            assert!(!directly(&node.runtime, "web"));
            assert!(node.is_known() && node.has("memory/web"), "{odd:?}");
        }
        // By one that notes nothing.
        let node = Node::new(&options, |state| *state = json!({ "ociVersion": "1.2.0" }));
        assert!(!directly(&node.runtime, "web") && node.is_known());
    }

    #[test]
    fn where_runc_may_have_more_to_do_nothing_is_done() {
        let usual = Options::default();
        let other = Options {
            binary_name: "/usr/bin/sysbox-runc".to_owned(),
            ..usual.clone()
        };
        let systemd = Options {
            systemd_cgroup: true,
            ..usual.clone()
        };
        let refused = |options: &Options, key: &str, value: Value| {
            let node = Node::new(options, |state| state[key] = value);
            assert!(!directly(&node.runtime, "web"), "{options:?} {key}");
            assert!(node.is_known() && node.has("memory/web") && node.has("pids/web"));
        };
        refused(&other, "id", json!("web"));
        refused(&systemd, "id", json!("web"));
        refused(&usual, "intel_rdt_path", json!("/sys/fs/resctrl/web"));
        refused(&usual, "rootless", json!(true));
        refused(
            &usual,
            "config",
            json!({ "netDevices": { "eth1": { "name": "net1" } } }),
        );
        refused(&usual, "of_a_later_runc", json!(1));
        refused(&usual, "cgroup_paths", json!({}));
        refused(
            &usual,
            "cgroup_paths",
            json!({ "pids": "/sys/fs/cgroup/pids/shared" }),
        );
    }

    #[test]
    fn one_in_or_below_whose_cgroup_something_is_left_is_not_forgotten() {
        // What keeps a directory is to it what keeps a cgroup.
        for left in ["memory/web/inner", "pids/web/inner"] {
            let node = Node::new(&Options::default(), |_| {});
            fs::create_dir(node.directory.path().join(left)).unwrap();
            assert!(!directly(&node.runtime, "web"));
            assert!(node.is_known() && node.has(left));
        }
    }

    #[test]
    fn what_is_not_known_of_its_directory_keeps_its_state() {
        let node = Node::new(&Options::default(), |_| {});
        fs::create_dir(node.runtime.state_dir("web").join("of-a-later-runc")).unwrap();
        assert!(!directly(&node.runtime, "web"));
        assert!(node.is_known());
    }
}
