//! OOM scores and cgroup values of a pod's containers, as read from the kernel. These are the
//! values in force, no matter which program has set them. The shim finds the values by the process
//! ids of the containers' init processes.
//!
//! The shim, not `usher`, reads the values, so that a user of `usher` needs no access to the node's
//! processes and cgroups.

use protobuf::MessageField;

use usher_api as api;
use usher_linux::cgroup::Cgroup;
use usher_linux::cgroup::values::Values;

/// Adds OOM scores and cgroup values to the status of a pod and its containers. Leaves out values
/// that cannot be read, and containers without a process.
pub(super) fn add_values(pod: &mut api::Pod) {
    for container in pod.containers.iter_mut().filter(|one| one.pid != 0) {
        container.oom_score = oom_score(container.pid);
        let Some(cgroup) = cgroup_of(container.pid) else {
            continue;
        };
        container.cgroup = values(&cgroup);
        if pod.cgroup.is_none() {
            // The parent of a container's cgroup is the pod's cgroup.
            let parent = cgroup.parent();
            pod.cgroup = parent.map_or_else(MessageField::none, |parent| values(&parent));
        }
    }
}

fn oom_score(pid: u32) -> Option<i32> {
    let score = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).ok()?;
    score.trim().parse().ok()
}

fn cgroup_of(pid: u32) -> Option<Cgroup> {
    Cgroup::of(i32::try_from(pid).ok()?).ok()
}

fn values(cgroup: &Cgroup) -> MessageField<api::Cgroup> {
    let Some(values) = Values::of(cgroup) else {
        return MessageField::none();
    };
    MessageField::some(api::Cgroup {
        memory_usage: values.memory_usage(),
        memory_limit: values.memory(),
        cpu_limit: values.cpus(),
        ..api::Cgroup::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_container_with_a_process_gets_values() {
        let of = |pid| api::Container {
            pid,
            ..api::Container::new()
        };
        let mut pod = api::Pod {
            containers: vec![of(std::process::id()), of(0)],
            ..api::Pod::new()
        };
        add_values(&mut pod);
        let [running, exited] = &pod.containers[..] else {
            panic!("two containers")
        };
        assert!(running.oom_score.is_some());
        assert!(exited.oom_score.is_none() && exited.cgroup.is_none());
    }
}
