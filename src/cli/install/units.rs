//! The systemd units that stop the pods in their order when the node shuts down.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::output::warn;
use super::super::systemd::systemctl;
use super::place;
use anyhow::ensure;

const UNIT: &str = "usher-stop.service";

/// The paths of the unit files below systemd's directory, and the files' texts.
const FILES: [(&str, &str); 2] = [
    (
        UNIT,
        include_str!("../../../scripts/systemd/usher-stop.service"),
    ),
    (
        "cri-containerd-.scope.d/usher-stop.conf",
        include_str!("../../../scripts/systemd/cri-containerd-.scope.d/usher-stop.conf"),
    ),
];

/// The directory of usher's programs, as the unit files name it. The installer replaces this name
/// by that of the real directory.
const BIN: &str = "/usr/local/bin/";

/// The unit files that are missing or outdated, each with its new text.
pub(super) fn outdated(units: &Path, bin: &Path) -> Vec<(PathBuf, String)> {
    let files = FILES.into_iter().map(|(name, text)| {
        let text = text.replace(BIN, &format!("{}/", bin.display()));
        (units.join(name), text)
    });
    let is_outdated = |(file, text): &(PathBuf, String)| {
        fs::read_to_string(file).ok().as_deref() != Some(text.as_str())
    };
    files.filter(is_outdated).collect()
}

/// Writes the outdated files and enables the unit.
pub(super) fn install(outdated: &[(PathBuf, String)]) -> anyhow::Result<()> {
    for (file, text) in outdated {
        place::put(file, Some(text))?;
    }
    ensure!(
        outdated.is_empty() || systemctl(&["daemon-reload"]),
        "systemctl daemon-reload failed"
    );
    ensure!(
        systemctl(&["enable", "--now", "--quiet", UNIT]),
        "{UNIT} is installed, but systemctl enable --now failed"
    );
    Ok(())
}

/// The paths of the unit files that exist.
pub(super) fn installed(units: &Path) -> Vec<PathBuf> {
    let files = FILES.into_iter().map(|(name, _)| units.join(name));
    files.filter(|file| file.exists()).collect()
}

/// Disables and removes the units. Stops the unit only if no pod runs, because stopping the unit
/// stops all pods.
pub(super) fn remove(units: &Path, has_pods: bool) -> anyhow::Result<()> {
    if !units.join(UNIT).exists() {
        return Ok(());
    }
    let now: &[&str] = if has_pods { &[] } else { &["--now"] };
    if !systemctl(&[&["disable"], now, &["--quiet", UNIT]].concat()) {
        warn(&format!(
            "systemctl disable {UNIT} failed; its files are removed anyway"
        ));
    }
    for file in installed(units) {
        place::put(&file, None)?;
        if let Some(directory) = file.parent().filter(|directory| *directory != units) {
            // If the directory has another file, it cannot be removed, and stays.
            let _ = fs::remove_dir(directory);
        }
    }
    systemctl(&["daemon-reload"]);
    Ok(())
}
