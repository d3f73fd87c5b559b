//! Attacks on the process that holds the pod's namespaces, from containers that share the pod's PID
//! namespace.

use std::fs;

use super::{is_known, with_each};
use crate::harness::{Container, Cri, Handler, Pod, PodSpec};
use usher_api::cri::{ContainerState, NamespaceMode};

fn pod<'a>(node: &'a Cri, handler: Handler) -> Pod<'a> {
    let spec = PodSpec::new("pids", handler);
    node.run_pod(&spec.namespaces(|options| options.pid = NamespaceMode::POD.into()))
}

/// A container with root's user id and the capabilities to inspect other processes.
fn curious<'a>(pod: &Pod<'a>) -> Container<'a> {
    pod.run_with("curious", &["/bin/sleep", "1000"], |config| {
        let linux = config.linux.mut_or_insert_default();
        let context = linux.security_context.mut_or_insert_default();
        let capabilities = context.capabilities.mut_or_insert_default();
        capabilities.add_capabilities = vec!["SYS_PTRACE".to_owned(), "SYS_ADMIN".to_owned()];
    })
}

/// A container without privileges. Its user is the user of the process that holds the namespaces.
fn of_the_holders_user<'a>(pod: &Pod<'a>) -> Container<'a> {
    pod.run_with("same", &["/bin/sleep", "1000"], |config| {
        let linux = config.linux.mut_or_insert_default();
        let context = linux.security_context.mut_or_insert_default();
        context.run_as_user.mut_or_insert_default().value = 65_535;
    })
}

/// A pause process exits on SIGTERM. The kernel then sends SIGKILL to all processes of its PID
/// namespace, which get no other signal.
#[test]
fn the_holder_treats_signals_from_inside_like_a_pause_process() {
    with_each(|node, handler| {
        let pod = pod(node, handler);
        let a = match handler {
            Handler::Pauseless => of_the_holders_user(&pod),
            _ => pod.witness("a", &[]),
        };
        let b = pod.witness("b", &[]);
        for signal in ["HUP", "QUIT", "USR1", "ALRM", "KILL", "STOP"] {
            a.exec(&["/bin/sh", "-c", &format!("kill -{signal} 1")]);
        }
        for container in [&a, &b] {
            container.sh("true");
            assert_eq!(container.state(), ContainerState::CONTAINER_RUNNING);
        }
        a.exec(&["/bin/sh", "-c", "kill -TERM 1"]);
        assert_eq!(b.await_exit(), 137);
        assert!(!node.record().has("b", "signal"), "{}", node.record());
        pod.await_not_ready();
    });
}

#[test]
fn the_holder_is_in_the_pods_cgroup() {
    with_each(|node, handler| {
        let pod = node.run_pod(&PodSpec::new("pays", handler));
        let cgroup = fs::read_to_string(format!("/proc/{}/cgroup", pod.pid()))
            .expect("the sandbox's process exists");
        let below = format!("{}/", pod.cgroup().path);
        let of = |controller: &str| {
            let mut lines = cgroup.lines().filter_map(|line| {
                let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
                controllers
                    .split(',')
                    .any(|one| one == controller)
                    .then_some(path)
            });
            lines.next()
        };
        // With cgroup v2, `/proc/PID/cgroup` has one line, which names no controller. With cgroup
        // v1, the harness makes the pod's cgroup only in the hierarchies of `cpu` and `memory`.
        for controller in ["cpu", "memory"] {
            let path = of(controller).or_else(|| of("")).unwrap_or_default();
            assert!(path.starts_with(&below), "{controller}: {cgroup}");
        }
    });
}

#[test]
fn the_holder_gives_no_access_to_the_node() {
    if !is_known() {
        return;
    }
    let node = Cri::start();
    let pod = pod(&node, Handler::Pauseless);
    let curious = curious(&pod);
    let secret = node.dir().join("config.toml");
    let secret = secret.display();
    for way in ["root", "cwd"] {
        // These links may lead to any directory below which there are no files of the node.
        let through = curious.sh(&format!("cat /proc/1/{way}{secret} 2>&1 || true"));
        assert!(!through.contains("version"), "{way}: {through}");
        let listed = curious.sh(&format!("ls /proc/1/{way}/ 2>/dev/null || true"));
        for name in ["home", "root", "usr", "var"] {
            assert!(!listed.lines().any(|line| line == name), "{way}: {listed}");
        }
    }
    let open = curious.sh("for fd in /proc/1/fd/*; do readlink $fd; done");
    let shims = node.shims();
    for file in open.lines() {
        // All open files are pipes, and only the shim has their other ends.
        assert!(file.starts_with("pipe:["), "{open}");
        let mut others = holders_of(file);
        others.retain(|holder| *holder != pod.pid() && !shims.contains(holder));
        assert!(others.is_empty(), "{file}: {others:?}");
    }
    assert_eq!(curious.sh("cat /proc/1/environ"), "");
    assert_eq!(curious.sh("tr '\\0' ' ' </proc/1/cmdline"), "usher-sandbox");
    // This program will also hold the namespaces of later pods, so a container must not be able to
    // change it.
    let written = curious.exec(&["/bin/sh", "-c", "echo changed >/proc/1/exe"]);
    assert!(!written.ok());
    let size: u64 = curious.sh("wc -c </proc/1/exe").parse().expect("a number");
    assert!(size < 64 * 1024, "{size} bytes are more than the holder");
    pod.end();
}

/// Ids of the processes that have a file open. `file` is the target of a link in `/proc/PID/fd`.
fn holders_of(file: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let has_it = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut open = open.into_iter().flatten().flatten();
        open.any(|fd| fs::read_link(fd.path()).is_ok_and(|link| link.as_os_str() == file))
    };
    pids.filter(has_it).collect()
}
