//! What systemd is told, beside containerd's own unit: that it stops the pods in their order when the node
//! goes down.

use std::fs;
use std::path::{Path, PathBuf};

use super::super::output::warn;
use super::super::systemd::systemctl;
use super::place;

const UNIT: &str = "usher-stop.service";

/// Their places below systemd's directory, and their texts.
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

/// Where the texts say that programs are.
const BIN: &str = "/usr/local/bin/";

/// The files that are not there as they are to be, and their texts.
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

/// Installs what is outdated, and enables the unit.
pub(super) fn install(outdated: &[(PathBuf, String)]) -> Result<(), String> {
    for (file, text) in outdated {
        place::put(file, Some(text))?;
    }
    if !outdated.is_empty() && !systemctl(&["daemon-reload"]) {
        return Err("systemd does not read its units again".to_owned());
    }
    match systemctl(&["enable", "--now", "--quiet", UNIT]) {
        true => Ok(()),
        false => Err(format!("{UNIT} is in place, and systemd does not start it")),
    }
}

/// The files that are there.
pub(super) fn installed(units: &Path) -> Vec<PathBuf> {
    let files = FILES.into_iter().map(|(name, _)| units.join(name));
    files.filter(|file| file.exists()).collect()
}

/// The unit is stopped, which stops all pods, only where there are none.
pub(super) fn remove(units: &Path, has_pods: bool) -> Result<(), String> {
    if !units.join(UNIT).exists() {
        return Ok(());
    }
    let now: &[&str] = if has_pods { &[] } else { &["--now"] };
    if !systemctl(&[&["disable"], now, &["--quiet", UNIT]].concat()) {
        warn(&format!(
            "systemd does not disable {UNIT}, which goes all the same"
        ));
    }
    for file in installed(units) {
        place::put(&file, None)?;
        if let Some(directory) = file.parent().filter(|directory| *directory != units) {
            // Somebody else may have a file in it.
            let _ = fs::remove_dir(directory);
        }
    }
    systemctl(&["daemon-reload"]);
    Ok(())
}
