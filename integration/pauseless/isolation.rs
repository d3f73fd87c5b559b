//! What a container in shared PIDs can do to the process that holds them.

use std::fs;

use super::is_known;
use crate::harness::{Container, Cri, Handler, Pod, PodSpec};
use usher::cri::{ContainerState, NamespaceMode};

fn pod<'a>(node: &'a Cri) -> Pod<'a> {
    let spec = PodSpec::new("pids", Handler::Pauseless);
    node.run_pod(&spec.namespaces(|options| options.pid = NamespaceMode::POD.into()))
}

/// A container of root's with everything that it takes to look into other processes.
fn curious<'a>(pod: &Pod<'a>) -> Container<'a> {
    pod.run_with("curious", &["/bin/sleep", "1000"], |config| {
        let linux = config.linux.mut_or_insert_default();
        let context = linux.security_context.mut_or_insert_default();
        let capabilities = context.capabilities.mut_or_insert_default();
        capabilities.add_capabilities = vec!["SYS_PTRACE".to_owned(), "SYS_ADMIN".to_owned()];
    })
}

#[test]
fn no_signal_from_inside_ends_the_holder() {
    if !is_known() {
        return;
    }
    let node = Cri::start();
    let pod = pod(&node);
    let (a, b) = (pod.witness("a", &[]), pod.witness("b", &[]));
    for signal in ["HUP", "QUIT", "USR1", "ALRM", "KILL", "STOP"] {
        a.sh(&format!("kill -{signal} 1"));
    }
    for container in [&a, &b] {
        container.sh("true");
        assert_eq!(container.state(), ContainerState::CONTAINER_RUNNING);
    }
    assert!(!node.record().has("b", "signal"), "{}", node.record());
    // This one is for all.
    a.exec(&["/bin/sh", "-c", "kill -TERM 1"]);
    assert_eq!(b.await_exit(), 0);
    assert!(node.record().has("b", "signal"), "{}", node.record());
    assert!(pod.is_ready());
    pod.end();
}

#[test]
fn the_holder_leads_nowhere_on_the_node() {
    if !is_known() {
        return;
    }
    let node = Cri::start();
    let pod = pod(&node);
    let curious = curious(&pod);
    let secret = node.dir().join("config.toml");
    let secret = secret.display();
    for way in ["root", "cwd"] {
        // Root of whatever it is: nothing of the node lies there.
        let through = curious.sh(&format!("cat /proc/1/{way}{secret} 2>&1 || true"));
        assert!(!through.contains("version"), "{way}: {through}");
        let listed = curious.sh(&format!("ls /proc/1/{way}/ 2>/dev/null || true"));
        for name in ["home", "root", "usr", "var"] {
            assert!(!listed.lines().any(|line| line == name), "{way}: {listed}");
        }
    }
    let open = curious.sh("for fd in /proc/1/fd/*; do readlink $fd; done");
    for file in open.lines() {
        // Pipes that nobody else has an end of.
        assert!(file.starts_with("pipe:["), "{open}");
        assert_eq!(holders_of(file), [pod.pid()], "{file}");
    }
    assert_eq!(curious.sh("cat /proc/1/environ"), "");
    // Nobody can change what the next pod is held by.
    let written = curious.exec(&["/bin/sh", "-c", "echo changed >/proc/1/exe"]);
    assert!(!written.ok());
    let size: u64 = curious.sh("wc -c </proc/1/exe").parse().expect("a number");
    assert!(size < 64 * 1024, "{size} bytes are more than the holder");
    pod.end();
}

/// The processes that have a file open, as a link in `/proc` names it.
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
