//! containerd is asked what it makes of texts that are not in place.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::containerd::{Effective, configuration_files, dump, output};
use super::plan::{Found, Texts};
use super::scratch::Scratch;
use super::{imports, place};

/// Where copies of the files are that are imported.
const PARTS: &str = "parts";

pub(super) fn scratch() -> Result<Scratch, String> {
    Scratch::new().map_err(|error| {
        let directory = std::env::temp_dir();
        format!(
            "no directory can be made in {}: {error}",
            directory.display()
        )
    })
}

/// What is in the files that may have something of ours.
pub(super) fn find_texts(config: PathBuf, containerd: &Path) -> Result<Found, String> {
    let main = place::read(&config)?;
    let found = Found::new(config, main, || layout(containerd))?;
    let part = found.part_file.as_deref().map(place::read).transpose()?;
    let mut found = found.with_part(part.flatten())?;
    let others = configuration_files(&found.config).into_iter().skip(1);
    let imported = others.filter(|file| Some(&file.path) != found.part_file.as_ref());
    found.imported = imported.map(|file| (file.path, file.text)).collect();
    Ok(found)
}

/// The newest layout of a configuration that a containerd knows.
fn layout(containerd: &Path) -> Result<i64, String> {
    let said = output(Command::new(containerd).args(["config", "default"]));
    let version = said.and_then(|said| {
        let table: Result<toml::Table, _> = said.parse();
        let table = table.map_err(|error| error.message().to_owned())?;
        let version = table.get("version").and_then(toml::Value::as_integer);
        version.ok_or_else(|| "there is no version in it".to_owned())
    });
    version.map_err(|error| {
        let containerd = containerd.display();
        format!("the default configuration of {containerd} cannot be read: {error}")
    })
}

/// Asks containerd what it makes of texts, which are not in place.
pub(super) fn ask(
    containerd: &Path,
    scratch: &Scratch,
    found: &Found,
    texts: &Texts,
) -> Result<Effective, String> {
    let config = stage(scratch.path(), found, texts)
        .map_err(|error| format!("it cannot be written to be tried: {error}"))?;
    // What it says names files as they are tried.
    dump(containerd, &config).map_err(|error| {
        let tried = |path: &Path| path.to_string_lossy().into_owned();
        let error = error.replace(&tried(&config), &tried(&found.config));
        match found.part_file.as_deref().and_then(Path::parent) {
            Some(parts) => error.replace(&tried(&scratch.path().join(PARTS)), &tried(parts)),
            None => error,
        }
    })
}

/// Makes of texts a configuration that containerd can be asked about: it imports the same files, but for
/// those of the directory that has a part of ours, of which it imports copies.
fn stage(scratch: &Path, found: &Found, texts: &Texts) -> std::io::Result<PathBuf> {
    let main = texts.main.clone().unwrap_or_default();
    let file = scratch.join("config.toml");
    let Some((part_file, from)) = found
        .part_file
        .as_deref()
        .and_then(|file| Some((file, file.parent()?)))
    else {
        fs::write(&file, imports::moved(&main, &found.config, None))?;
        return Ok(file);
    };
    let to = scratch.join(PARTS);
    if to.exists() {
        fs::remove_dir_all(&to)?;
    }
    fs::create_dir(&to)?;
    for path in glob::glob(&from.join("*.toml").to_string_lossy())
        .into_iter()
        .flatten()
    {
        let path = path.map_err(std::io::Error::from)?;
        if let Some(name) = path.file_name().filter(|_| path != part_file) {
            let text = fs::read_to_string(&path)?;
            fs::write(to.join(name), imports::moved(&text, &path, None))?;
        }
    }
    if let (Some(text), Some(name)) = (&texts.part, part_file.file_name()) {
        fs::write(to.join(name), text)?;
    }
    fs::write(
        &file,
        imports::moved(&main, &found.config, Some((from, &to))),
    )?;
    Ok(file)
}
