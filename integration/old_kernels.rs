//! Pods on a kernel that has no system call newer than Linux 5.0: the shim and the OCI runtime work
//! without `pidfd_open`, `openat2`, `clone3`, `close_range` and `mount_setattr`.

use std::process::Command;

use crate::harness::{
    BareShim, Containerd, PATIENCE, Settings, Shims, eventually, host_pids, on_old_kernel,
    process_state, run, runtime_under_test, shim_dir,
};
use crate::pod::JOB;

fn start() -> Containerd {
    Containerd::start_with(&Settings {
        shims: Shims::OursOnOldKernel,
        ..Settings::default()
    })
}

#[test]
fn a_job_with_a_sidecar_runs_and_ends_in_order() {
    let host = start();
    JOB.run_proxy(&host, &["--ready-after", "300ms"]);
    host.run(&JOB.witness("work", &["--run-for", "1s"]));
    let record = host.await_event("work", "start");
    record.assert_before(("proxy", "ready"), ("work", "start"));
    assert_eq!(host.exec("proxy", &["/bin/true"]).code, Some(0));
    assert_eq!(host.wait_exit("work"), 0);
    let record = host.await_event("proxy", "exit");
    record.assert_before(("work", "exit"), ("proxy", "exit"));
}

/// Processes that the init process leaves behind are killed by their process ids.
#[test]
fn all_processes_of_a_container_without_a_pid_namespace_are_killed() {
    let host = start();
    let script = "sleep 1000 & sleep 1000 & echo $! >/shared/left; wait";
    let args = ["/bin/sh", "-c", script];
    let shim = BareShim::start(&host, &runtime_under_test(), "a", &args, host_pids);
    let api = shim.api();
    api.create(&shim.create_request()).expect("create");
    api.start("a", "").expect("start");
    let left = host.shared_dir().join("left");
    let pid = || {
        std::fs::read_to_string(&left)
            .ok()?
            .trim()
            .parse::<u32>()
            .ok()
    };
    eventually("the program has begun", PATIENCE, || pid().is_some());
    let pid = pid().expect("a pid");
    assert!(process_state(pid).is_some());
    api.kill("a", "", 9, false).expect("kill");
    assert_eq!(api.wait("a", "").expect("wait").exit_status, 137);
    eventually("no process is left", PATIENCE, || {
        process_state(pid).is_none()
    });
    api.delete("a", "").expect("delete");
}

#[test]
fn usher_check_names_what_the_kernel_lacks() {
    let dir = tempfile::tempdir().expect("a directory");
    let usher = on_old_kernel(&shim_dir().join("usher"), dir.path());
    let mut command = Command::new(usher);
    command.arg("check");
    let said = run(command, PATIENCE);
    let out = said.out();
    let line = out.lines().find(|line| line.contains("kernel:"));
    let line = line.unwrap_or_else(|| panic!("{out}{}", said.err()));
    assert!(line.starts_with("warning"), "{line}");
    assert!(
        line.contains(" lacks pidfd_open, openat2, mount_setattr"),
        "{line}"
    );
}
