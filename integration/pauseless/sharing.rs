//! Resources that the containers of a pod share: hostname, files, memory and network.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{with_each, with_each_in_a_network};
use crate::harness::{Cri, Handler, PodSpec};

/// A shell command that prints a namespace of a process. `of` is the process id or `self`.
fn namespace(of: &str, kind: &str) -> String {
    format!("readlink /proc/{of}/ns/{kind}")
}

#[test]
fn a_container_has_the_pods_hostname_and_network_files() {
    with_each_in_a_network(|node, spec| {
        let spec = spec.with(|config| {
            let dns = config.dns_config.mut_or_insert_default();
            dns.servers = vec!["192.0.2.1".to_owned(), "192.0.2.2".to_owned()];
            dns.searches = vec!["a.test".to_owned(), "b.test".to_owned()];
            dns.options = vec!["ndots:3".to_owned()];
        });
        let pod = node.run_pod(&spec);
        let app = pod.witness("app", &[]);
        assert_eq!(app.sh("hostname"), "web");
        assert_eq!(app.sh("cat /etc/hostname"), "web");
        let resolv =
            "search a.test b.test\nnameserver 192.0.2.1\nnameserver 192.0.2.2\noptions ndots:3";
        assert_eq!(app.sh("cat /etc/resolv.conf"), resolv);
        let hosts = fs::read_to_string("/etc/hosts").expect("the node's");
        assert_eq!(app.sh("cat /etc/hosts"), hosts.trim());
    });
}

/// True if an entry of this directory, or of a directory below, has this inode. Does not follow
/// links.
fn has_below(directory: &Path, inode: u64) -> bool {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .any(|(path, found)| found.ino() == inode || found.is_dir() && has_below(&path, inode))
}

/// containerd's state directory is in the node's memory. Files that containers can write must not
/// be there, because containers could then fill the memory.
#[test]
fn writable_files_of_a_pod_are_in_containerds_root_directory() {
    with_each(|node, handler| {
        let pod = node.run_pod(&PodSpec::new("writes", handler));
        let app = pod.witness("app", &[]);
        let locked = pod.run_with("locked", &["/bin/sleep", "1000"], |config| {
            let linux = config.linux.mut_or_insert_default();
            let context = linux.security_context.mut_or_insert_default();
            context.readonly_rootfs = true;
        });
        for file in ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"] {
            let inode = app.sh(&format!("stat -c %i {file}"));
            let inode = inode.parse().expect("a number");
            let is_below = |part: &str| {
                // List the directories in which containerd keeps its own files of pods.
                let all = fs::read_dir(node.dir().join(part)).expect(part).flatten();
                let mut parts = all.filter(|entry| {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    name.contains("sandbox") || name.contains("cri")
                });
                parts.any(|entry| has_below(&entry.path(), inode))
            };
            assert!(is_below("root"), "{file}");
            assert!(!is_below("state"), "{file}");
            app.sh(&format!("echo '# more' >>{file}"));
            let written = locked.exec(&["/bin/sh", "-c", &format!("echo more >>{file}")]);
            assert!(!written.ok(), "{file}");
        }
    });
}

#[test]
fn without_dns_settings_a_pod_has_the_nodes() {
    with_each(|node, handler| {
        let pod = node.run_pod(&PodSpec::new("plain", handler));
        let app = pod.witness("app", &[]);
        let resolv = fs::read_to_string("/etc/resolv.conf").expect("the node's");
        assert_eq!(app.sh("cat /etc/resolv.conf"), resolv.trim());
    });
}

#[test]
fn shared_memory_has_the_usual_size_and_is_open_to_all() {
    with_each(|node, handler| {
        let pod = node.run_pod(&PodSpec::new("shared", handler));
        let (a, b) = (pod.witness("a", &[]), pod.witness("b", &[]));
        assert_eq!(a.sh("stat -c '%a %u:%g' /dev/shm"), "1777 0:0");
        let mount = a.sh("mount | grep ' /dev/shm '");
        for what in ["tmpfs", "size=65536k", "nosuid", "nodev", "noexec"] {
            assert!(mount.contains(what), "no {what} in {mount}");
        }
        a.sh("echo shared >/dev/shm/file");
        assert_eq!(b.sh("cat /dev/shm/file"), "shared");
        // A user other than root can also write to the files.
        let c = pod.run_with("c", &["/bin/sleep", "1000"], |config| {
            let linux = config.linux.mut_or_insert_default();
            let context = linux.security_context.mut_or_insert_default();
            context.run_as_user.mut_or_insert_default().value = 1234;
        });
        assert_eq!(
            c.sh("echo mine >/dev/shm/other; cat /dev/shm/other"),
            "mine"
        );
    });
}

#[test]
fn containers_share_only_the_pods_namespaces() {
    with_each_in_a_network(|node, spec| {
        let pod = node.run_pod(&spec);
        let (a, b) = (pod.witness("a", &[]), pod.witness("b", &[]));
        let nodes = node.pid().expect("containerd runs");
        for kind in ["ipc", "uts", "net"] {
            let ours = a.sh(&namespace("self", kind));
            assert_eq!(ours, b.sh(&namespace("self", kind)), "{kind}");
            assert_ne!(ours, link(nodes, kind), "{kind} is not the node's");
        }
        for kind in ["pid", "mnt"] {
            assert_ne!(
                a.sh(&namespace("self", kind)),
                b.sh(&namespace("self", kind)),
                "{kind}"
            );
        }
        // The list of System V shared memory segments has only its header line.
        assert_eq!(a.sh("wc -l </proc/sysvipc/shm"), "1");
    });
}

#[test]
fn a_container_is_in_its_pods_network() {
    with_each_in_a_network(|node, spec| {
        let pod = node.run_pod(&spec);
        let ip = pod.status().network.ip.clone();
        assert!(ip.starts_with("10.97."), "{ip:?}");
        let app = pod.witness("app", &["--ready-after", "0s", "--listen", "8080"]);
        node.await_event("app", "ready");
        assert!(app.sh("ip -4 addr show eth0").contains(&ip));
        assert!(app.sh("ip -4 addr show lo").contains("127.0.0.1"));
        let other = pod.witness("other", &[]);
        other.sh("nc -w 1 127.0.0.1 8080 </dev/null");
        node.await_event("app", "accepted");
    });
}

#[test]
fn output_is_logged_and_execs_report_their_exit_codes() {
    with_each(|node, handler| {
        let pod = node.run_pod(&PodSpec::new("talks", handler));
        let app = pod.run("app", &["/bin/sh", "-c", "echo out; echo err >&2; exit 3"]);
        assert_eq!(app.await_exit(), 3);
        let log = app.log();
        assert!(log.contains("stdout F out"), "{log}");
        assert!(log.contains("stderr F err"), "{log}");
        let app = pod.witness("web", &[]);
        let executed = app.exec(&["/bin/sh", "-c", "cat /proc/self/cgroup; exit 7"]);
        assert_eq!(executed.code, Some(7));
        assert!(executed.out().contains(&app.id), "{}", executed.out());
    });
}

#[test]
fn no_pause_image_is_needed() {
    use crate::harness::{CriSettings, Version};
    // Before 2.4, containerd requires the pause image although no pod uses it.
    if Version::of_containerd() < Version(2, 4) {
        return;
    }
    let node = Cri::start_with(CriSettings {
        has_pause: false,
        ..CriSettings::default()
    });
    let images = node.images();
    assert!(
        !images.iter().any(|name| name.contains("pause")),
        "{images:?}"
    );
    let pod = node.run_pod(&PodSpec::new("lean", Handler::Pauseless));
    pod.witness("app", &[]);
    assert!(pod.is_ready());
    pod.end();
}

fn link(pid: u32, kind: &str) -> String {
    let link = fs::read_link(format!("/proc/{pid}/ns/{kind}")).expect("a process");
    link.display().to_string()
}
