//! Having a container that has ended forgotten, in runc's place.
//!
//! `runc delete` removes the cgroups that it has noted in `<root>/<id>/state.json`, and then that directory. It
//! is a process of its own that does so, for many times the cost. What else it may have to do is left to it: groups of
//! resctrl, network devices that go back to the node, hooks, cgroups that the container has made, and whatever a later
//! runc notes that is unknown here (`destroy` in `libcontainer/state_linux.go`).
//!
//! Where the cgroup is that of a scope of systemd's, runc has systemd stop the scope, and forget it if it has failed. On
//! cgroup v2 a scope stops by itself when its last process has ended, and its cgroup goes (`systemd.scope(5)`), so that
//! runc finds nothing to do. One that has failed systemd keeps: before version 253 that is each in which memory has run
//! out (`OOMPolicy=`).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::cgroup::is_named_after;

use super::runtime::DEFAULT_BINARY;
use super::{OciRuntime, state};

/// Where systemd has the files of units that were made by a call, as long as it knows them; from version 235 on.
const UNITS: &str = "/run/systemd/transient";

/// How long systemd may take to stop the scope of a container that has ended, and then to forget it. What is not
/// stopped by then is left to `runc delete`, whose time is bounded so that both fit in what containerd allows.
const STOPPED_WITHIN: Duration = Duration::from_secs(1);
const FORGOTTEN_WITHIN: Duration = Duration::from_millis(300);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What a cgroup of version 2 tells of itself, and that nothing is in it or below it
/// (`Documentation/admin-guide/cgroup-v2.rst`).
const EVENTS: &str = "cgroup.events";
const EMPTY: &str = "populated 0";

/// For so many looks a process that was just waited for may be in its cgroup.
const LEAVES_WITHIN: usize = 4;

/// Forgets container `id`, whose init has ended and which has no hooks that run at its deletion. False if the OCI
/// runtime has to do that: whatever is missing then, it would have removed as well.
pub async fn directly(runtime: &OciRuntime, id: &str) -> bool {
    // Others keep such a state too, and may have more to do than they note there.
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
            // On version 1 some are not systemd's.
            None => false,
        },
        // One in which anything lives stays, and one with others below it.
        false => cgroups
            .iter()
            .all(|cgroup| gone(fs::remove_dir(cgroup)).is_ok()),
    };
    removed && state::remove(&directory).is_ok()
}

/// Whether systemd has stopped the unit whose cgroup this is, and knows nothing of it any more. `units` is where it has
/// the files of such units.
async fn is_stopped(cgroup: &Path, units: &Path) -> bool {
    let Some(name) = cgroup.file_name() else {
        return false;
    };
    // Another systemd's unit, such as that of a user, has its file elsewhere.
    if !units.is_dir() {
        return false;
    }
    let stopped = async {
        let mut leaving = 0..LEAVES_WITHIN;
        while let Ok(events) = fs::read_to_string(cgroup.join(EVENTS)) {
            let is_empty = events.lines().any(|line| line == EMPTY);
            // Whatever is left in it keeps it as it is.
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

/// The same if it is not there.
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
            assert!(node.forget());
            assert!(!node.runtime.state_dir("web").exists());
            assert!(!node.has("memory/web") && !node.has("pids/web") && node.has("memory/other"));
        }
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
            assert!(!node.forget(), "{options:?} {key}");
            assert!(node.is_known() && node.has("memory/web") && node.has("pids/web"));
        };
        refused(&other, "id", json!("web"));
        // On version 1.
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
    fn one_in_or_below_whose_cgroup_something_is_left_is_not_forgotten() {
        // What keeps a directory is to it what keeps a cgroup.
        for left in ["memory/web/inner", "pids/web/inner"] {
            let node = Node::new(&Options::default(), |_| {});
            fs::create_dir(node.directory.path().join(left)).unwrap();
            assert!(!node.forget());
            assert!(node.is_known() && node.has(left));
        }
    }

    #[test]
    fn what_is_not_known_of_its_directory_keeps_its_state() {
        let node = Node::new(&Options::default(), |_| {});
        fs::create_dir(node.runtime.state_dir("web").join("of-a-later-runc")).unwrap();
        assert!(!node.forget());
        assert!(node.is_known());
    }

    #[test]
    fn what_systemd_has_stopped_and_forgotten_needs_no_runc() {
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
    async fn a_unit_is_stopped_when_its_cgroup_has_gone_and_then_its_file() {
        let node = tempfile::tempdir().unwrap();
        let at = |name: &str| node.path().join(name);
        let (cgroup, file) = (at("web.scope"), at("units/web.scope"));
        let units = at("units");
        fs::create_dir(&units).unwrap();
        assert!(!is_stopped(&cgroup, &at("none")).await, "another systemd's");
        assert!(is_stopped(&cgroup, &units).await);
        fs::create_dir(&cgroup).unwrap();
        fs::write(&file, "").unwrap();
        let fill = |events: &str| fs::write(cgroup.join(EVENTS), events).unwrap();
        let begun = Instant::now();
        fill("populated 1\nfrozen 0\n");
        assert!(!is_stopped(&cgroup, &units).await);
        assert!(
            begun.elapsed() < STOPPED_WITHIN / 10,
            "nobody waits for that"
        );
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
        // One that has failed.
        fs::write(&file, "").unwrap();
        assert!(!is_stopped(&cgroup, &units).await);
    }
}
