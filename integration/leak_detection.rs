//! Tests the harness's leak check itself, because a leak that the check does not find would fail no
//! other test.

use std::fs;
use std::panic::AssertUnwindSafe;
use std::process::Command;

use crate::harness::{Background, Containerd, PATIENCE, eventually};

/// Makes one leak of each kind that the check has to find.
fn litter(host: &Containerd) -> Background {
    let socket = host.dir().join("run/s/0123");
    fs::create_dir_all(socket.parent().expect("a directory")).expect("the sockets' directory");
    fs::write(socket, "").expect("a stale socket");
    fs::create_dir_all(host.bundle_dir("gone")).expect("a bundle");
    fs::create_dir(host.dir().join("tmp/pty0123")).expect("a console's directory");
    for cgroup in [
        format!("memory/{}/gone", host.namespace),
        format!("{}/gone", host.namespace),
    ] {
        let on_v2 = fs::exists("/sys/fs/cgroup/cgroup.controllers").unwrap_or(false);
        if on_v2 != cgroup.starts_with("memory/") {
            fs::create_dir_all(format!("/sys/fs/cgroup/{cgroup}")).expect("a cgroup");
        }
    }
    let mut shell = Command::new("/bin/busybox");
    let mount_and_stay = "mkdir -p $0 && mount -t tmpfs none $0 && exec sleep 1000";
    shell
        .args(["sh", "-c", mount_and_stay])
        .arg(host.dir().join("mnt"));
    host.enter(&mut shell);
    Background::spawn(shell)
}

#[test]
fn leaks_fail_the_test_and_are_removed() {
    let host = Containerd::start();
    let mut process = litter(&host);
    let (dir, namespace) = (host.dir().to_owned(), host.namespace.clone());
    eventually("all litter is found", PATIENCE, || {
        host.remains().len() >= 6
    });

    let failure = std::panic::catch_unwind(AssertUnwindSafe(|| drop(host)));

    let message = failure.expect_err("who leaves something behind fails");
    let message = message.downcast::<String>().expect("a message");
    for kind in [
        "process ",
        "mount ",
        "cgroup ",
        "run/s/0123",
        "/gone",
        "tmp/pty0123",
    ] {
        assert!(message.contains(kind), "{kind} is missing in: {message}");
    }
    assert!(!process.poll_running(), "the process was ended");
    assert!(!dir.exists(), "{} was removed", dir.display());
    for cgroup in ["memory/", ""].map(|part| format!("/sys/fs/cgroup/{part}{namespace}")) {
        assert!(!fs::exists(&cgroup).unwrap_or(true), "{cgroup} was removed");
    }
}

#[test]
fn a_test_without_containers_has_no_leak() {
    let host = Containerd::start();
    let dir = host.dir().to_owned();
    assert_eq!(host.remains(), [""; 0]);
    drop(host);
    assert!(!dir.exists(), "{} was removed", dir.display());
}
