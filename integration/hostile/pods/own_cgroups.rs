//! Containers that can write to their cgroups, as privileged containers can. They make many nested
//! cgroups below their own, and move their processes there.

use serde_json::{Value, json};

use super::{Container, Pod, Stage};

fn with_cgroups(_: &Stage, config: &mut Value) {
    let mount = json!({
        "destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup", "options": ["rw"],
    });
    let mounts = config["mounts"].as_array_mut();
    mounts.expect("mounts").push(mount);
}

const SCRIPT: &str = r#"
trap '' TERM INT
for root in /sys/fs/cgroup /sys/fs/cgroup/*; do
    [ -e $root/cgroup.procs ] || continue
    mkdir -p $root/a/b/c/d/e/f/g/h
    for n in $(seq 100); do mkdir $root/a/b/$n; done
    echo 0 > $root/a/b/c/d/e/f/g/h/cgroup.procs
done 2>/dev/null
exec /bin/attacker forks
"#;

const fn mover(name: &'static str) -> Container {
    Container::new(name, &["/bin/sh", "-c", SCRIPT]).edit(with_cgroups)
}

pub const PODS: &[Pod] = &[Pod {
    name: "own cgroups",
    about: "processes that fork without end in cgroups below the container's",
    annotations: &[("usher/sidecars", "proxy")],
    containers: &[mover("proxy"), mover("web")],
    ..Pod::NEW
}];
