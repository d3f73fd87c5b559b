//! Shims and containerd processes that are killed.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{both, run_witness, witness};
use crate::harness::{Containerd, PATIENCE, Status, Version, eventually};

pub(super) fn kill_shim(host: &Containerd, id: &str) {
    if host.is_reference() {
        // containerd does not remove the socket of its own shim.
        host.tolerate("/run/s/");
    }
    let pid = host.shim(id).pid;
    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).expect("kill the shim");
}

/// Administrators send SIGUSR1 to shims, because shims in Go then write their stacks to the log.
#[test]
fn a_shim_survives_sigusr1_and_its_containers_do_not_ignore_the_signal() {
    let seen = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &[]));
        let shim = host.shim("a").pid;
        kill(Pid::from_raw(shim as i32), Signal::SIGUSR1).expect("send the signal");
        let signals = host.exec("a", &["/bin/grep", "SigIgn", "/proc/self/status"]);
        (host.shim("a").pid == shim, signals.out())
    });
    assert_eq!(seen, (true, "SigIgn:\t0000000000000000\n".to_owned()));
}

#[test]
fn a_container_ends_with_its_killed_shim() {
    let seen = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &["--ignore-term"]));
        kill_shim(host, "a");
        let code = host.wait_exit("a");
        eventually("nothing remains", PATIENCE, || host.remains().is_empty());
        host.await_events("the task was deleted", |events| {
            events.iter().any(|e| e.topic == "/tasks/delete")
        });
        (code, host.status("a"), host.topics("a"))
    });
    let topics = [
        "/containers/create",
        "/tasks/create",
        "/tasks/start",
        "/tasks/exit 137",
        "/tasks/delete 137",
    ];
    assert_eq!(seen, (137, None, topics.map(str::to_owned).to_vec()));
}

#[test]
fn all_containers_of_a_pod_end_with_their_killed_shim() {
    let codes = both(|host, runtime| {
        for id in ["a", "b"] {
            run_witness(host, &witness(runtime, id, &[]).in_pod("pod1", id));
        }
        kill_shim(host, "b");
        let codes = ["a", "b"].map(|id| host.wait_exit(id));
        eventually("nothing remains", PATIENCE, || host.remains().is_empty());
        codes
    });
    assert_eq!(codes, [137, 137]);
}

#[test]
fn a_pod_can_start_again_after_its_shim_was_killed() {
    let seen = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &[]).in_pod("pod1", "a"));
        kill_shim(host, "a");
        host.wait_exit("a");
        // The new shim uses the same address. The socket of the dead shim may still be there.
        run_witness(host, &witness(runtime, "b", &[]).in_pod("pod1", "b"));
        (host.status("b"), host.shims().len())
    });
    assert_eq!(seen, (Some(Status::Running), 1));
}

fn a_running_container_outlives(end: fn(&Containerd)) {
    let seen = both(|host, runtime| {
        run_witness(
            host,
            &witness(runtime, "a", &["--exit", "3", "--beat", "20ms"]),
        );
        let shim = host.shim("a");
        end(host);
        let beats = host.record().all("a", "beat").count();
        host.await_record("the container goes on", |r| {
            r.all("a", "beat").count() > beats + 3
        });
        host.start_again();
        let found = (host.status("a"), host.shim("a") == shim);
        let echo = host.exec("a", &["/bin/echo", "alive"]).out();
        host.kill("a", "SIGTERM");
        let code = host.wait_exit("a");
        host.delete("a");
        (found, echo, code)
    });
    assert_eq!(
        seen,
        ((Some(Status::Running), true), "alive\n".to_owned(), 3)
    );
}

#[test]
fn a_running_container_outlives_a_crash_of_containerd() {
    a_running_container_outlives(Containerd::crash);
}

#[test]
fn a_running_container_outlives_a_restart_of_containerd() {
    a_running_container_outlives(Containerd::stop);
}

#[test]
fn an_exit_while_containerd_is_down_is_known_afterwards() {
    let seen = both(|host, runtime| {
        run_witness(
            host,
            &witness(runtime, "a", &["--exit", "3", "--run-for", "500ms"]),
        );
        host.crash();
        host.await_event("a", "exit");
        host.start_again();
        if Version::of_containerd().deletes_what_has_ended(host.is_reference()) {
            host.await_status("a", None);
            eventually("nothing remains", PATIENCE, || host.remains().is_empty());
            return (true, None);
        }
        host.await_status("a", Some(Status::Stopped));
        let delete = host.ctr(&["tasks", "delete", "a"]);
        // `ctr` prints the task's exit code in a log line.
        (delete.err().contains("exit code 3"), host.status("a"))
    });
    assert_eq!(seen, (true, None));
}

#[test]
fn a_shim_that_died_while_containerd_was_down_is_cleaned_up() {
    let seen = both(|host, runtime| {
        run_witness(host, &witness(runtime, "a", &[]));
        host.crash();
        kill_shim(host, "a");
        host.start_again();
        eventually("nothing remains", PATIENCE, || host.remains().is_empty());
        host.status("a")
    });
    assert_eq!(seen, None);
}
