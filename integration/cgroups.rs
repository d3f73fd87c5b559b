//! Behavior of the kernel's cgroup v2 that a test directory of plain files cannot imitate.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use usher_linux::cgroup::cleanup::kill_and_remove;

/// The mount point of cgroup v2, on a machine with cgroup v2 alone or with both versions.
fn version_2() -> PathBuf {
    let beside = PathBuf::from("/sys/fs/cgroup/unified");
    match beside.is_dir() {
        true => beside,
        false => PathBuf::from("/sys/fs/cgroup"),
    }
}

#[test]
fn processes_in_threaded_cgroups_are_killed_and_the_cgroups_removed() {
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
    // The killed process stays in its cgroup until its parent, this test, collects its exit.
    let collected = std::thread::spawn(move || child.wait());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(kill_and_remove(&BTreeSet::from([cgroup.clone()])));
    let is_left = cgroup.exists();
    if is_left {
        // The test has failed: kill the remaining processes, so that the cgroups can be removed.
        let _ = fs::write(cgroup.join("cgroup.kill"), "1");
    }
    let status = collected.join().expect("a thread").expect("a child");
    let _ = fs::remove_dir(&below);
    let _ = fs::remove_dir(&cgroup);
    assert!(!is_left, "the cgroups are left");
    assert!(!status.success(), "{status}");
}
