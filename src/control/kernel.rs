//! What the kernel says of a pod's containers, by their init processes: the truth, whoever has set it.
//!
//! The shim asks it, not `usher`: so whoever looks at a pod needs to see no process and no cgroup of the node.

use protobuf::MessageField;

use crate::api;
use crate::cgroup::Cgroup;
use crate::cgroup::values::Values;

/// Adds it to what is told of a pod; of a container without a process nothing.
pub(super) fn tell(pod: &mut api::Pod) {
    for container in pod.containers.iter_mut().filter(|one| one.pid != 0) {
        container.oom_score = oom_score(container.pid);
        let Some(cgroup) = cgroup_of(container.pid) else {
            continue;
        };
        container.cgroup = values(&cgroup);
        if pod.cgroup.is_none() {
            // That of the pod, unless it is the root.
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
    fn a_container_with_a_process_has_a_score_and_a_cgroup_and_one_without_has_none() {
        let of = |pid| api::Container {
            pid,
            ..api::Container::new()
        };
        let mut pod = api::Pod {
            containers: vec![of(std::process::id()), of(0)],
            ..api::Pod::new()
        };
        tell(&mut pod);
        let [ours, nobodys] = &pod.containers[..] else {
            panic!("two containers")
        };
        assert!(ours.oom_score.is_some());
        assert!(nobodys.oom_score.is_none() && nobodys.cgroup.is_none());
    }
}
