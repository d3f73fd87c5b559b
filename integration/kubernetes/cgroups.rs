//! Cgroups of pods and containers on the node, and systemd's view of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cluster::PATIENCE;
use crate::harness::{on_v2, run};
use crate::pod::{Case, status_of};

/// The content of a file in a pod's cgroup.
#[track_caller]
pub fn read(case: &Case, pod: &Value, v1: &str, v2: &str) -> String {
    let is_on_v2 = case.cluster.is_in_guest() || on_v2();
    let file = of_pod(case, pod, v1).join(if is_on_v2 { v2 } else { v1 });
    read_file(case, &file)
}

/// The content of a file in a container's cgroup. systemd must have made the cgroup.
#[track_caller]
pub fn read_of_container(case: &Case, pod: &Value, container: &str, file: &str) -> String {
    let id = status_of(pod, container)["containerID"].as_str();
    let id = id.expect("an id").trim_start_matches("containerd://");
    let scope = format!("cri-containerd-{id}.scope");
    read_file(case, &of_pod(case, pod, "").join(scope).join(file))
}

#[track_caller]
fn read_file(case: &Case, file: &Path) -> String {
    let file = file.display().to_string();
    let finished = run(case.cluster.on_node(&["cat", &file]), PATIENCE);
    assert!(finished.ok(), "{file}: {}", finished.err());
    finished.out().trim().to_owned()
}

/// The directory of a pod's cgroup. With cgroup v1, each controller has a hierarchy. `v1` is the
/// name of a file, for example `cpu.shares`, and selects the controller.
pub fn of_pod(case: &Case, pod: &Value, v1: &str) -> PathBuf {
    let uid = pod["metadata"]["uid"].as_str().expect("a UID");
    let class = pod["status"]["qosClass"].as_str().expect("a class");
    let class = Some(class.to_lowercase()).filter(|class| class != "guaranteed");
    let mut dir = PathBuf::from("/sys/fs/cgroup");
    if case.cluster.is_in_guest() {
        let mut name = "kubepods".to_owned();
        dir.push(format!("{name}.slice"));
        for part in class
            .into_iter()
            .chain([format!("pod{}", uid.replace('-', "_"))])
        {
            name = format!("{name}-{part}");
            dir.push(format!("{name}.slice"));
        }
        return dir;
    }
    if !on_v2() {
        dir.push(v1.split('.').next().expect("a controller"));
    }
    dir.push(case.cluster.name());
    dir.push("kubepods");
    dir.extend(class);
    dir.join(format!("pod{uid}"))
}

/// Properties of a pod's slice, as systemd reports them.
pub fn properties(case: &Case, pod: &Value, wanted: &str) -> BTreeMap<String, String> {
    let slice = of_pod(case, pod, "");
    let slice = slice
        .file_name()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let wanted = format!("--property={wanted}");
    let words = ["systemctl", "show", &wanted, &slice];
    let said = run(case.cluster.on_node(&words), PATIENCE).out();
    let pairs = said.lines().filter_map(|line| line.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Reloads systemd's configuration, so that systemd writes its own values to cgroups again.
#[track_caller]
pub fn reload_systemd(case: &Case) {
    let finished = run(
        case.cluster.on_node(&["systemctl", "daemon-reload"]),
        PATIENCE,
    );
    assert!(finished.ok(), "systemctl: {}", finished.err());
}
