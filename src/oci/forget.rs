//! Removes the OCI runtime's state of an exited container without running `runc delete`.
//!
//! `runc delete` removes the cgroups listed in `<root>/<id>/state.json`, and then that directory.
//! Running the command costs many times as much as removing them here. `runc delete` still runs if
//! there is more to do: resctrl groups, network devices to return to the node, hooks, cgroups that
//! the container has made, and anything unknown that a later runc has written into its state
//! (`destroy` in `libcontainer/state_linux.go`).
//!
//! If the cgroup belongs to a systemd scope, runc stops the scope, and resets a failed scope. On
//! cgroup v2 a scope stops by itself when its last process has exited, and systemd removes its
//! cgroup (`systemd.scope(5)`). So runc has nothing to do, unless the scope has failed: systemd
//! keeps a failed scope. Before systemd 253, a scope has failed if memory has run out in it
//! (`OOMPolicy=`).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use usher_api::runtime_options::DEFAULT_BINARY;
use usher_linux::cgroup::is_named_after;

use super::{OciRuntime, state};

/// Directory with a file for each transient unit that systemd knows, from systemd 235 on.
const UNITS: &str = "/run/systemd/transient";

/// Time limit for systemd to stop the scope of an exited container. After that time `runc delete`
/// has to stop the scope. This limit and the limit of `runc delete` together are shorter than the
/// time that containerd allows for all work after an exit.
const STOPPED_WITHIN: Duration = Duration::from_secs(1);
/// Time limit for systemd to forget the stopped scope.
const FORGOTTEN_WITHIN: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// File of a v2 cgroup with its state (`Documentation/admin-guide/cgroup-v2.rst`).
const EVENTS: &str = "cgroup.events";
/// Line in `cgroup.events` if no process is in the cgroup or below it.
const EMPTY: &str = "populated 0";

/// Maximum number of times that the shim waits for the last process to leave the cgroup. After
/// that, the shim runs `runc delete` instead. A process that was just reaped may still be in its
/// cgroup.
const LEAVES_WITHIN: usize = 4;

/// Cleans up the state of container `id`, whose init has exited and which has no poststop hooks.
/// Returns false if the OCI runtime has to do it. The runtime then tolerates that some parts are
/// removed already.
pub async fn directly(runtime: &OciRuntime, id: &str) -> bool {
    // Other runtimes have a similar state file, but may have more to remove.
    let program = Path::new(&runtime.binary).file_name();
    if program != Some(OsStr::new(DEFAULT_BINARY)) {
        return false;
    }
    let directory = runtime.state_dir(id);
    let noted = state::only_cgroups(&directory);
    let are_own = |cgroups: &BTreeSet<PathBuf>| {
        !cgroups.is_empty() && cgroups.iter().all(|cgroup| is_named_after(cgroup, id))
    };
    let Some(cgroups) = noted.filter(are_own) else {
        return false;
    };
    let removed = match runtime.systemd_cgroup {
        true => match cgroups.first().filter(|_| cgroups.len() == 1) {
            Some(cgroup) => is_stopped(cgroup, Path::new(UNITS)).await,
            // On cgroup v1 a container has several cgroups, and systemd does not manage all of
            // them.
            None => false,
        },
        // Removing a cgroup fails if it has processes or child cgroups.
        false => cgroups
            .iter()
            .all(|cgroup| gone(fs::remove_dir(cgroup)).is_ok()),
    };
    removed && state::remove(&directory).is_ok()
}

/// True once systemd has stopped the unit of this cgroup and has forgotten the unit. `units` is the
/// directory with the files of transient units.
async fn is_stopped(cgroup: &Path, units: &Path) -> bool {
    let Some(name) = cgroup.file_name() else {
        return false;
    };
    // Another systemd, such as a user's, has the files of its units in another directory.
    if !units.is_dir() {
        return false;
    }
    let stopped = async {
        let mut leaving = 0..LEAVES_WITHIN;
        while let Ok(events) = fs::read_to_string(cgroup.join(EVENTS)) {
            let is_empty = events.lines().any(|line| line == EMPTY);
            // systemd does not stop the scope while processes remain in it.
            if !is_empty && leaving.next().is_none() {
                return false;
            }
            sleep(LOOK_EVERY).await;
        }
        !cgroup.exists()
    };
    let file = units.join(name);
    let forgotten = async {
        while file.exists() {
            sleep(LOOK_EVERY).await;
        }
    };
    timeout(STOPPED_WITHIN, stopped).await.unwrap_or_default()
        && timeout(FORGOTTEN_WITHIN, forgotten).await.is_ok()
}

/// Treats the removal of a missing file as a success.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};
    use tokio::time::Instant;

    use crate::Options;
    use usher_linux::reaper::Reaper;

    use super::*;

    struct Node {
        directory: tempfile::TempDir,
        runtime: OciRuntime,
    }

    impl Node {
        /// A node with an exited container `web`.
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

        fn forget(&self) -> bool {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().start_paused(true).build();
            runtime.unwrap().block_on(directly(&self.runtime, "web"))
        }

        fn is_known(&self) -> bool {
            self.runtime.state_dir("web").join("state.json").exists()
        }
    }

    #[test]
    fn all_cgroups_and_state_of_runc_are_removed() {
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
            assert!(node.forget());
            assert!(!node.runtime.state_dir("web").exists());
            assert!(!node.has("memory/web") && !node.has("pids/web") && node.has("memory/other"));
        }
    }

    #[test]
    fn a_container_for_which_runc_may_have_more_to_do_is_left_to_runc() {
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
            assert!(!node.forget(), "{options:?} {key}");
            assert!(node.is_known() && node.has("memory/web") && node.has("pids/web"));
        };
        refused(&other, "id", json!("web"));
        // On cgroup v1 with systemd, `runc delete` has to do the cleanup.
        refused(&systemd, "id", json!("web"));
        refused(&usual, "intel_rdt_path", json!("/sys/fs/resctrl/web"));
        refused(&usual, "rootless", json!(true));
        refused(&usual, "config", json!({ "rootless_cgroups": true }));
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
    fn a_container_with_processes_or_cgroups_left_is_left_to_runc() {
        // Directories stand for cgroups; a file in one stands for a process.
        for left in ["memory/web/inner", "pids/web/inner"] {
            let node = Node::new(&Options::default(), |_| {});
            fs::create_dir(node.directory.path().join(left)).unwrap();
            assert!(!node.forget());
            assert!(node.is_known() && node.has(left));
        }
    }

    #[test]
    fn unknown_files_in_the_directory_keep_the_state() {
        let node = Node::new(&Options::default(), |_| {});
        fs::create_dir(node.runtime.state_dir("web").join("of-a-later-runc")).unwrap();
        assert!(!node.forget());
        assert!(node.is_known());
    }

    #[test]
    fn a_scope_that_systemd_has_stopped_and_forgotten_needs_no_runc() {
        let options = Options {
            systemd_cgroup: true,
            ..Options::default()
        };
        let with_cgroups = |names: &[&str]| {
            let node = Node::new(&options, |_| {});
            let at = |name: &&str| node.directory.path().join(name);
            let paths: BTreeMap<_, _> = names.iter().map(|name| (name, at(name))).collect();
            let file = node.runtime.state_dir("web").join("state.json");
            let mut state: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
            state["cgroup_paths"] = json!(paths);
            fs::write(file, state.to_string()).unwrap();
            node
        };
        let runs_systemd = Path::new(UNITS).is_dir();
        let node = with_cgroups(&["gone/cri-containerd-web.scope"]);
        assert_eq!(node.forget(), runs_systemd);
        assert_eq!(node.runtime.state_dir("web").exists(), !runs_systemd);
        let node = with_cgroups(&["gone/cri-containerd-web.scope", "other/web"]);
        assert!(!node.forget() && node.is_known());
    }

    #[tokio::test(start_paused = true)]
    async fn a_unit_is_stopped_once_its_cgroup_and_then_its_file_are_gone() {
        let node = tempfile::tempdir().unwrap();
        let at = |name: &str| node.path().join(name);
        let (cgroup, file) = (at("web.scope"), at("units/web.scope"));
        let units = at("units");
        fs::create_dir(&units).unwrap();
        assert!(
            !is_stopped(&cgroup, &at("none")).await,
            "a unit of another systemd"
        );
        assert!(is_stopped(&cgroup, &units).await);
        fs::create_dir(&cgroup).unwrap();
        fs::write(&file, "").unwrap();
        let fill = |events: &str| fs::write(cgroup.join(EVENTS), events).unwrap();
        let begun = Instant::now();
        fill("populated 1\nfrozen 0\n");
        assert!(!is_stopped(&cgroup, &units).await);
        assert!(begun.elapsed() < STOPPED_WITHIN / 10, "not waited for");
        fill("populated 0\nfrozen 0\n");
        assert!(!is_stopped(&cgroup, &units).await);
        assert!(begun.elapsed() >= STOPPED_WITHIN);
        let systemd = async {
            sleep(STOPPED_WITHIN / 2).await;
            fs::remove_dir_all(&cgroup).unwrap();
            sleep(LOOK_EVERY).await;
            fs::remove_file(&file).unwrap();
        };
        let (is_stopped_now, ()) = tokio::join!(is_stopped(&cgroup, &units), systemd);
        assert!(is_stopped_now);
        // The file of the unit stays, because the unit has failed.
        fs::write(&file, "").unwrap();
        assert!(!is_stopped(&cgroup, &units).await);
    }
}
