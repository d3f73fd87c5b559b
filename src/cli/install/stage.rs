//! Asks containerd which effective configuration would result from texts that are not installed
//! yet.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::containerd::{Effective, Node, configuration_files, dump, output};
use super::found::{Found, Texts};
use super::scratch::Scratch;
use super::source::SourceText;
use super::{imports, ours, place};
use anyhow::{Context, anyhow};

/// The beginning of a temporary directory's name. Such a directory holds copies of imported files.
const PARTS: &str = "parts-";

pub(super) fn scratch() -> anyhow::Result<Scratch> {
    Scratch::new().with_context(|| {
        let directory = std::env::temp_dir();
        format!("cannot make a directory in {}", directory.display())
    })
}

/// Reads containerd's configuration files, and the files from which a distribution generates them.
pub(super) fn find_texts(node: &Node, containerd: &Path) -> anyhow::Result<Found> {
    // Links are followed, so that the installer changes the file and does not replace the link.
    let config = place::resolve(&node.config);
    let main = place::read(&config)?;
    let found = Found::new(config, main, || layout(containerd))?;
    let part = found.part_file.as_deref().map(place::read).transpose()?;
    let mut found = found.with_part(part.flatten())?;
    for file in found.earlier_part_files() {
        let text = place::read(&file)?;
        if text.as_deref().is_some_and(ours::is_made) {
            found = found.with_leftover(file, text, None);
        }
    }
    let others = configuration_files(&found.config).into_iter().skip(1);
    let imported = others.filter(|file| !is_part(&found, &file.path));
    let imported = imported.map(|file| (file.path, file.text)).collect();
    found.imported = imported;
    with_sources(found, node)
}

/// Adds the files from which the configuration is generated, if the installer's lines are in them
/// or belong there.
fn with_sources(mut found: Found, node: &Node) -> anyhow::Result<Found> {
    // If the configuration imports a directory, the installer writes its own file there. It does so
    // even if the configuration itself is generated.
    let wanted = node.flavor.source(&node.config, found.layout());
    let wanted = wanted.filter(|_| found.part_file.is_none());
    for source in node.flavor.sources(&node.config) {
        let text = place::read(&source.file)?;
        if wanted.as_ref() == Some(&source) {
            found = found.with_source(SourceText::new(source, text)?);
        } else if text.as_deref().is_some_and(ours::has_written) {
            let source = SourceText::new(source, text.clone())?;
            let bare = source.without_ours();
            found = found.with_leftover(source.file, text, bare);
        }
    }
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
        // In reverse order, longer paths are replaced before shorter ones. The path with `parts-1`
        // is also the beginning of the path with `parts-10`.
        let copies = copies(scratch.path(), found).into_iter().rev();
        let real = |error: String, (from, to): (PathBuf, PathBuf)| {
            error.replace(&tried(&to), &tried(&from))
        };
        anyhow!(copies.fold(error, real))
    })
}

/// The import directories, each with the temporary directory for copies of its files.
fn copies(scratch: &Path, found: &Found) -> Vec<(PathBuf, PathBuf)> {
    let directories = found.import_directories.iter().enumerate();
    let copies = directories.map(|(number, from)| {
        let to = scratch.join(format!("{PARTS}{number}"));
        (from.clone(), to)
    });
    copies.collect()
}

/// True if the path is that of the installer's own file or of a leftover.
fn is_part(found: &Found, path: &Path) -> bool {
    found.parts(&found.texts).any(|(part, _)| part == path)
}

/// Writes the texts, and copies of the files in the import directories, to the temporary directory.
/// The new main file imports these copies in place of the originals. Its other imports stay the
/// same. Returns the path of the new main file.
fn stage(scratch: &Path, found: &Found, texts: &Texts) -> std::io::Result<PathBuf> {
    let copies = copies(scratch, found);
    for (from, to) in &copies {
        if to.exists() {
            fs::remove_dir_all(to)?;
        }
        fs::create_dir(to)?;
        for path in glob::glob(&from.join("*.toml").to_string_lossy())
            .into_iter()
            .flatten()
        {
            let path = path.map_err(std::io::Error::from)?;
            if let Some(name) = path.file_name().filter(|_| !is_part(found, &path)) {
                let text = fs::read_to_string(&path)?;
                fs::write(to.join(name), imports::moved(&text, &path, &[]))?;
            }
        }
        for (path, text) in found.parts(texts) {
            let is_here = path.parent() == Some(from);
            if let (true, Some(text), Some(name)) = (is_here, text, path.file_name()) {
                fs::write(to.join(name), text)?;
            }
        }
    }
    let main = texts.main.as_deref().unwrap_or_default();
    let file = scratch.join("config.toml");
    fs::write(&file, imports::moved(main, &found.config, &copies))?;
    Ok(file)
}
