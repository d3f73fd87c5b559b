//! An upgrade of usher while pods run. The old programs are from an older commit (`scripts/test
//! --all` builds them), and the new ones are the current ones. As on a node, the new programs
//! replace the old ones, and containerd restarts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::control::usher;
use crate::harness::{
    ContainerSpec, Containerd, PATIENCE, copy_program, eventually, poll, run, shim_dir,
};
use crate::pod::{MESH, Pod};

const SHIM: &str = "containerd-shim-usher-v2";

/// A sidecar that becomes ready when the test makes a file.
const GATED: Pod = Pod(&[
    ("usher/sidecars", "gate"),
    ("usher/apps", "late"),
    (
        "startup-probe.usher/gate",
        r#"{"exec":{"command":["/bin/test","-e","/shared/open"]},"periodMilliseconds":100,"failureThreshold":200}"#,
    ),
]);

fn old_programs() -> PathBuf {
    let dir = std::env::var_os("USHER_TEST_OLD_PROGRAMS");
    PathBuf::from(dir.expect("USHER_TEST_OLD_PROGRAMS is not set; scripts/test --all builds them"))
}

/// A node with the older programs.
fn old_node() -> Containerd {
    let host = Containerd::start();
    put_into_place(&host, &old_programs());
    host
}

/// Replaces the shim's program by renaming a new file, as `usher install` does. containerd may
/// start a shim at any time, so a complete program must exist at each moment.
fn put_into_place(host: &Containerd, programs: &Path) {
    let place = host.dir().join("bin").join(SHIM);
    let new = place.with_extension("new");
    copy_program(&programs.join(SHIM), &new);
    fs::rename(new, place).expect("put the shim into place");
}

fn upgrade(host: &Containerd) {
    put_into_place(host, &shim_dir());
    host.stop();
    host.start_again();
}

/// Runs `usher ps` of these programs. The returned function finds a pod in the output by its name.
fn pods_by(host: &Containerd, programs: &Path) -> impl Fn(&str) -> Value {
    let mut command = Command::new(programs.join("usher"));
    command.args(["ps", "-o", "json"]);
    host.enter(&mut command);
    let finished = run(command, PATIENCE);
    let facts: Value = serde_json::from_str(&finished.out())
        .unwrap_or_else(|error| panic!("usher ps: {error}: {finished:?}"));
    move |name| {
        let pods = facts["pods"].as_array().expect("a list of pods");
        let pod = pods.iter().find(|pod| pod["name"] == name);
        pod.unwrap_or_else(|| panic!("{name} is not in {facts:#}"))
            .clone()
    }
}

#[track_caller]
fn await_status(host: &Containerd, name: &str, status: &str) {
    let shown = poll(PATIENCE, || {
        let pod = pods_by(host, &shim_dir())(name);
        (pod["status"] == status).then_some(())
    });
    assert!(shown.is_some(), "{name} was never {status}");
}

#[track_caller]
fn must(host: &Containerd, arguments: &[&str]) -> String {
    let finished = run(usher(host, arguments), PATIENCE);
    assert!(finished.ok(), "usher {arguments:?}: {finished:?}");
    finished.out()
}

/// True if the pod's shim runs the installed program. False if the program was replaced after the
/// shim had started.
fn is_current(host: &Containerd, pod: &Value) -> bool {
    let program = fs::read_link(format!("/proc/{}/exe", pod["shimPid"])).expect("a shim");
    program == host.dir().join("bin").join(SHIM)
}

/// A container of the pod `later`, which is created after the upgrade.
fn later(name: &str, options: &[&str]) -> ContainerSpec {
    ContainerSpec::new(name)
        .in_pod("later", name)
        .annotation("usher/sidecars", "later-proxy")
        .witness(options)
}

#[test]
#[ignore = "wants programs of an older commit: scripts/test --all builds them"]
fn old_shims_keep_running_and_the_new_usher_talks_to_them() {
    let host = old_node();
    MESH.run_proxy(&host, &[]);
    host.run(&MESH.witness("web", &["--stop-after", "300ms"]));
    host.await_event("web", "start");
    // This pod is still starting when the new programs are installed.
    host.run(&GATED.witness("late", &[]).in_pod("pod2", "late"));
    host.run(&GATED.witness("gate", &[]).in_pod("pod2", "gate"));
    host.await_event("gate", "start");

    upgrade(&host);
    host.run(&later("later-proxy", &[]));
    host.run(&later("later-web", &[]));
    host.await_event("later-web", "start");
    for programs in [shim_dir(), old_programs()] {
        let pod = pods_by(&host, &programs);
        for (name, is_new) in [("pod1", false), ("pod2", false), ("later", true)] {
            assert_eq!(is_current(&host, &pod(name)), is_new, "{name}");
        }
        assert_eq!(pod("pod1")["status"], "Running");
        assert_eq!(pod("pod2")["status"], "Sidecar:0/1");
        assert_eq!(pod("later")["status"], "Running");
    }
    assert!(must(&host, &["inspect", "pod2"]).contains("waiting for sidecar gate"));
    assert!(must(&host, &["timeline", "pod1"]).contains("web"));

    // The pod's old shim still holds the app.
    assert!(!host.record().has("late", "start"));
    fs::write(host.shared_dir().join("open"), "").expect("the mark");
    host.await_event("late", "start");
    await_status(&host, "pod2", "Running");
    let said = must(&host, &["stop", "pod1"]);
    assert!(said.contains("pod1: stopped after"), "{said}");
    host.record()
        .assert_before(("web", "exit"), ("proxy", "signal"));
    for ids in [["late", "gate"], ["later-web", "later-proxy"]] {
        for stopped in host.end_pod(&ids, Duration::from_secs(30)) {
            assert!(!stopped.killed && stopped.code == 0, "{stopped:?}");
        }
        let record = host.record();
        record.assert_before((ids[0], "exit"), (ids[1], "signal"));
    }
    for id in ["web", "proxy", "late", "gate", "later-web", "later-proxy"] {
        host.delete(id);
    }
    eventually("all shims have gone", PATIENCE, || host.shims().is_empty());
}

#[test]
#[ignore = "wants programs of an older commit: scripts/test --all builds them"]
fn the_new_program_cleans_up_after_an_old_shim_that_dies() {
    let host = old_node();
    MESH.run_proxy(&host, &[]);
    host.run(&MESH.witness("web", &[]));
    host.await_event("web", "start");
    upgrade(&host);
    let shim = pods_by(&host, &shim_dir())("pod1")["shimPid"].as_i64();
    let shim = i32::try_from(shim.expect("the shim's process")).expect("a process");
    kill(Pid::from_raw(shim), Signal::SIGKILL).expect("kill the shim");
    for id in ["web", "proxy"] {
        assert_eq!(host.wait_exit(id), 137, "{id}");
    }
    for id in ["web", "proxy"] {
        host.must(&["containers", "delete", id]);
    }
    let mut remains = Vec::new();
    let nothing = poll(PATIENCE, || {
        remains = host.remains();
        remains.is_empty().then_some(())
    });
    assert!(nothing.is_some(), "left behind: {remains:#?}");
}
