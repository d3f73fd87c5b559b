//! Containers whose cgroups are scopes that systemd makes. systemd has to be the first process, as
//! in the virtual machine of the tests (`integration/guest`).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{both, run_witness, script, witness};
use crate::harness::{
    ContainerSpec, Containerd, PATIENCE, REFERENCE, Status, eventually, installed_path, run,
    runtime_under_test, write_program,
};

fn in_scope(host: &Containerd, spec: ContainerSpec) -> ContainerSpec {
    let cgroup = format!("system.slice:{}:{}", host.namespace, spec.id);
    // `ctr` passes this option only to containerd's own shim. Our shim recognizes a systemd cgroup
    // by the form of its path.
    let spec = match spec.runtime.as_str() {
        REFERENCE => spec.option(&["--runc-systemd-cgroup"]),
        _ => spec,
    };
    spec.option(&["--cgroup", &cgroup])
}

/// The cgroup of a process. The test's name in the path is replaced by the word `test`, so that the
/// cgroups of two tests can be compared.
fn cgroup_of(host: &Containerd, pid: u32) -> String {
    let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).expect("its cgroup");
    cgroup.trim().replace(&host.namespace, "test")
}

/// The test's scopes, as systemd lists them.
fn scopes(host: &Containerd) -> String {
    let mut systemctl = Command::new("systemctl");
    systemctl.args(["list-units", "--all", "--plain", "--no-legend"]);
    systemctl.arg(format!("{}-*", host.namespace));
    run(systemctl, PATIENCE).out()
}

#[test]
#[ignore = "systemd is not the first process: runs in the guest"]
fn a_container_and_its_execs_share_a_scope_until_it_ends() {
    let seen = both(|host, runtime| {
        let spec = witness(runtime, "a", &[]).option(&["--memory-limit", "67108864"]);
        run_witness(host, &in_scope(host, spec));
        let exec = host.spawn_exec("a", "sleeper", &["/bin/sleep", "1000"]);
        host.await_exec("a", "sleeper");
        let cgroups: Vec<String> = host
            .pids("a")
            .into_iter()
            .map(|(pid, _)| cgroup_of(host, pid))
            .collect();
        let known = scopes(host).contains("-a.scope");
        let limit = host.metrics("a")["memory"]["usage_limit"].as_u64();
        host.kill("a", "SIGKILL");
        let code = host.wait_exit("a");
        exec.finish(PATIENCE);
        host.delete("a");
        eventually("the scope is gone", PATIENCE, || scopes(host).is_empty());
        (cgroups, known, limit, code)
    });
    let scope = "0::/system.slice/test-a.scope".to_owned();
    assert_eq!(
        seen,
        (vec![scope.clone(), scope], true, Some(67_108_864), 137)
    );
}

/// If the OOM killer has killed a process in a scope, systemd keeps the scope as failed until the
/// scope is reset.
#[test]
#[ignore = "systemd is not the first process: runs in the guest"]
fn a_scope_with_an_oom_kill_is_removed() {
    let seen = both(|host, runtime| {
        let spec = script(runtime, "a", "exec tail /dev/zero");
        let spec = spec.option(&["--memory-limit", "33554432"]);
        host.run(&in_scope(host, spec));
        let code = host.wait_exit("a");
        host.delete("a");
        eventually("the scope is gone", PATIENCE, || scopes(host).is_empty());
        code
    });
    assert_eq!(seen, 137);
}

/// Installs a runc that records its arguments.
fn record_runc_calls(host: &Containerd) -> PathBuf {
    let note = host.dir().join("runc-was-asked");
    // busybox contains the only shell of the virtual machine.
    let script = format!(
        "#!/bin/busybox sh\necho \"$*\" >>{}\nPATH={}\nexec runc \"$@\"\n",
        note.display(),
        installed_path()
    );
    write_program(&host.dir().join("bin/runc"), &script);
    note
}

/// A scope without processes stops by itself. So the shim need not call `runc delete`, which would
/// start a process and request the stop from systemd again. If systemd is too busy to stop the
/// scope soon, the shim calls runc after all.
#[test]
#[ignore = "systemd is not the first process: runs in the guest"]
fn runc_does_not_stop_a_scope_that_has_stopped_by_itself() {
    const IDS: [&str; 3] = ["a", "b", "c"];
    let host = Containerd::start();
    let note = record_runc_calls(&host);
    let runtime = runtime_under_test();
    for id in IDS {
        run_witness(&host, &in_scope(&host, witness(&runtime, id, &[])));
        host.kill(id, "SIGKILL");
        assert_eq!(host.wait_exit(id), 137);
        host.delete(id);
    }
    let asked = fs::read_to_string(note).expect("runc was asked");
    let times = |verb: &str| asked.lines().filter(|line| line.contains(verb)).count();
    assert_eq!(times(" create "), IDS.len(), "{asked}");
    assert!(times(" delete ") < IDS.len(), "{asked}");
    assert_eq!(scopes(&host), "");
}

/// A container's first process may move itself to another cgroup, as systemd and container engines
/// do.
#[test]
#[ignore = "systemd is not the first process: runs in the guest"]
fn an_exec_joins_the_cgroup_that_the_containers_init_moved_to() {
    for scoped in [true, false] {
        let seen = both(|host, runtime| {
            let spec = witness(runtime, "a", &[]);
            let spec = if scoped { in_scope(host, spec) } else { spec };
            run_witness(host, &spec);
            let [(init, _)] = host.pids("a")[..] else {
                panic!("a container with one process has another number of them")
            };
            let cgroup = cgroup_of(host, init);
            let path = cgroup.replace("test", &host.namespace);
            let own = Path::new("/sys/fs/cgroup").join(path.trim_start_matches("0::/"));
            let below = own.join("init");
            fs::create_dir(&below).expect("a cgroup below its own");
            fs::write(below.join("cgroup.procs"), init.to_string()).expect("its init moves");
            fs::write(own.join("cgroup.subtree_control"), "+pids").expect("controllers");
            let exec = host.exec("a", &["/bin/cat", "/proc/self/cgroup"]);
            host.kill("a", "SIGKILL");
            host.wait_exit("a");
            host.delete("a");
            let is_left = own.exists();
            let at = exec.out().replace(&host.namespace, "test");
            (exec.code, at, is_left)
        });
        assert_eq!((seen.0, seen.2), (Some(0), false), "scoped: {scoped}");
    }
}

#[test]
#[ignore = "systemd is not the first process: runs in the guest"]
fn a_container_in_a_scope_can_be_paused_and_resumed() {
    let seen = both(|host, runtime| {
        let spec = witness(runtime, "a", &["--beat", "20ms"]);
        run_witness(host, &in_scope(host, spec));
        host.await_event("a", "beat");
        host.must(&["tasks", "pause", "a"]);
        let paused = host.status("a");
        let before = host.record().all("a", "beat").count();
        host.must(&["tasks", "resume", "a"]);
        host.await_record("the container beats again", |r| {
            r.all("a", "beat").count() > before
        });
        paused
    });
    assert_eq!(seen, Some(Status::Paused));
}

#[test]
#[ignore = "systemd is not the first process: runs in the guest"]
fn a_killed_shim_leaves_no_scope() {
    let seen = both(|host, runtime| {
        run_witness(host, &in_scope(host, witness(runtime, "a", &[])));
        super::crashes::kill_shim(host, "a");
        let code = host.wait_exit("a");
        eventually("the scope is gone", PATIENCE, || scopes(host).is_empty());
        eventually("nothing remains", PATIENCE, || host.remains().is_empty());
        code
    });
    assert_eq!(seen, 137);
}
