//! Asks containerd for its effective configuration from texts that are not installed yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::containerd::{Effective, configuration_files, dump, output};
use super::plan::{Found, Texts};
use super::scratch::Scratch;
use super::{imports, place};
use anyhow::{Context, anyhow};

/// The directory for copies of imported files.
const PARTS: &str = "parts";

pub(super) fn scratch() -> anyhow::Result<Scratch> {
    Scratch::new().with_context(|| {
        let directory = std::env::temp_dir();
        format!("cannot make a directory in {}", directory.display())
    })
}

/// Reads the files in which the installer writes lines.
pub(super) fn find_texts(config: PathBuf, containerd: &Path) -> anyhow::Result<Found> {
    let main = place::read(&config)?;
    let found = Found::new(config, main, || layout(containerd))?;
    let part = found.part_file.as_deref().map(place::read).transpose()?;
    let mut found = found.with_part(part.flatten())?;
    let others = configuration_files(&found.config).into_iter().skip(1);
    let imported = others.filter(|file| Some(&file.path) != found.part_file.as_ref());
    found.imported = imported.map(|file| (file.path, file.text)).collect();
    Ok(found)
}

/// The newest layout (`version`) that a containerd supports.
fn layout(containerd: &Path) -> anyhow::Result<i64> {
    let said = output(Command::new(containerd).args(["config", "default"]));
    let version = said.map_err(anyhow::Error::from).and_then(|said| {
        let table: Result<toml::Table, _> = said.parse();
        let table = table.map_err(|error| anyhow!("{}", error.message()))?;
        let version = table.get("version").and_then(toml::Value::as_integer);
        version.context("it has no version")
    });
    version.with_context(|| {
        let containerd = containerd.display();
        format!("cannot read the default configuration of {containerd}")
    })
}

/// Asks containerd which effective configuration results from these texts.
pub(super) fn ask(
    containerd: &Path,
    scratch: &Scratch,
    found: &Found,
    texts: &Texts,
) -> anyhow::Result<Effective> {
    let config =
        stage(scratch.path(), found, texts).context("cannot write it to a temporary directory")?;
    // Errors of containerd name the temporary files, so their paths are replaced by the real ones.
    dump(containerd, &config).map_err(|error| {
        let tried = |path: &Path| path.to_string_lossy().into_owned();
        let error = error.to_string();
        let error = error.replace(&tried(&config), &tried(&found.config));
        anyhow!(match found.part_file.as_deref().and_then(Path::parent) {
            Some(parts) => error.replace(&tried(&scratch.path().join(PARTS)), &tried(parts)),
            None => error,
        })
    })
}

/// Writes the texts to configuration files in the temporary directory. The main file imports the
/// same files as the original. From the directory with the installer's own file it imports copies.
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
