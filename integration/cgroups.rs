//! What the kernel does with cgroups of version 2 that no file in a directory of ours can imitate.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use usher::cgroup::cleanup::kill_and_remove;

/// Where version 2 is mounted: alone, or beside version 1.
fn version_2() -> PathBuf {
    let beside = PathBuf::from("/sys/fs/cgroup/unified");
    match beside.is_dir() {
        true => beside,
        false => PathBuf::from("/sys/fs/cgroup"),
    }
}

#[test]
fn what_runs_in_threaded_cgroups_is_killed_and_they_are_removed() {
    let prefix = std::env::var("USHER_TEST_PREFIX").unwrap_or_else(|_| "usher-it-".to_owned());
    let cgroup = version_2().join(format!("{prefix}threaded"));
    let below = cgroup.join("below");
    fs::create_dir_all(&below).expect("a cgroup");
    let set = |directory: &Path, file: &str, words: &str| {
        fs::write(directory.join(file), words).expect("a file of a cgroup");
    };
    set(&below, "cgroup.type", "threaded");
    let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep");
    set(&cgroup, "cgroup.procs", &child.id().to_string());
    set(&below, "cgroup.threads", &child.id().to_string());
    // Until it is collected it is in its cgroup, and nobody but its parent can do that.
    let collected = std::thread::spawn(move || child.wait());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(kill_and_remove(&BTreeSet::from([cgroup.clone()])));
    let is_left = cgroup.exists();
    if is_left {
        // For who comes after a failure.
        let _ = fs::write(cgroup.join("cgroup.kill"), "1");
    }
    let status = collected.join().expect("a thread").expect("a child");
    let _ = fs::remove_dir(&below);
    let _ = fs::remove_dir(&cgroup);
    assert!(!is_left, "the cgroups are left");
    assert!(!status.success(), "{status}");
}
