//! Several containers of one pod.

use super::{both, run_witness, witness};
use crate::harness::{PATIENCE, Status, eventually};

#[test]
fn containers_of_one_pod_share_a_shim() {
    let seen = both(|host, runtime| {
        for id in ["a", "b"] {
            run_witness(host, &witness(runtime, id, &[]).in_pod("pod1", id));
        }
        let together = host.shims().len();
        let same = host.shim("a") == host.shim("b");
        run_witness(host, &witness(runtime, "c", &[]).in_pod("pod2", "c"));
        (together, same, host.shims().len())
    });
    assert_eq!(seen, (1, true, 2));
}

#[test]
fn containers_grouped_by_containerds_own_annotation_share_a_shim() {
    let shims = both(|host, runtime| {
        for id in ["a", "b"] {
            let group = ("io.containerd.runc.v2.group", "group1");
            run_witness(host, &witness(runtime, id, &[]).annotations(&[group]));
        }
        host.shims().len()
    });
    assert_eq!(shims, 1);
}

#[test]
fn the_end_of_one_container_leaves_the_other_alone() {
    let seen = both(|host, runtime| {
        for id in ["a", "b"] {
            run_witness(
                host,
                &witness(runtime, id, &["--exit", "4"]).in_pod("pod1", id),
            );
        }
        // The shim was started for container `a`. When `a` exits, the shim goes on serving the
        // other containers.
        host.kill("a", "SIGTERM");
        let first = host.wait_exit("a");
        host.delete("a");
        let other = (host.status("a"), host.status("b"));
        let echo = host.exec("b", &["/bin/echo", "alive"]).out();
        let signals = host.record().all("b", "signal").count();
        host.kill("b", "SIGTERM");
        let second = host.wait_exit("b");
        host.delete("b");
        eventually("the shim has ended", PATIENCE, || host.shims().is_empty());
        (first, other, echo, signals, second)
    });
    let expected = (4, (None, Some(Status::Running)), "alive\n".to_owned(), 0, 4);
    assert_eq!(seen, expected);
}

#[test]
fn a_new_container_joins_a_pod_whose_first_container_is_gone() {
    let seen = both(|host, runtime| {
        for id in ["a", "b"] {
            run_witness(host, &witness(runtime, id, &[]).in_pod("pod1", id));
        }
        host.kill("a", "SIGKILL");
        host.wait_exit("a");
        host.delete("a");
        run_witness(host, &witness(runtime, "c", &[]).in_pod("pod1", "c"));
        (
            host.shims().len(),
            host.shim("b") == host.shim("c"),
            host.status("c"),
        )
    });
    assert_eq!(seen, (1, true, Some(Status::Running)));
}
