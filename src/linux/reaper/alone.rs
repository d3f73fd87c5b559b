//! Runs a test in a process of its own, because a reaper collects all exits of its process.

use std::process::Command;

use super::Reaper;

/// Runs a test in its own process: executes this program again, for the test at `path` alone.
pub(super) fn alone(path: &str, make: impl FnOnce() -> Reaper, test: impl AsyncFnOnce(Reaper)) {
    const CHOSEN: &str = "USHER_TEST_ALONE";
    if std::env::var_os(CHOSEN).is_none() {
        let program = std::env::current_exe().unwrap();
        let path = path.trim_start_matches("usher_linux::");
        let mut command = Command::new(program);
        command.args(["--exact", path]).env(CHOSEN, "1");
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("1 passed"), "{said}");
        return;
    }
    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    tokio.block_on(async {
        let reaper = make();
        reaper.start().unwrap();
        test(reaper).await;
    });
}
