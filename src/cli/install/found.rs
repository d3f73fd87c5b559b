//! The files that the installer reads before it plans, and their texts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use toml_edit::Document;

use super::super::containerd::{Effective, NAME};
use super::imports;
use super::ours::{self, Bare, without_ours};
use super::source::SourceText;

/// The texts of the files in which the installer writes lines. None for a file that does not exist.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Texts {
    /// containerd's configuration file.
    pub(super) main: Option<String>,
    /// The installer's own file, in the directory that the configuration imports.
    pub(super) part: Option<String>,
    /// The file from which a distribution generates containerd's configuration. If there is such a
    /// file, the installer never writes the configuration itself.
    pub(super) source: Option<String>,
    /// Other files in which an earlier installation wrote lines. Since then, the configuration has
    /// changed, and the lines belong elsewhere.
    pub(super) leftovers: BTreeMap<PathBuf, Option<String>>,
}

/// The files as they are now.
#[derive(Debug)]
pub(super) struct Found {
    /// containerd's configuration file.
    pub(super) config: PathBuf,
    /// The path of the installer's own file, if the configuration imports a directory.
    pub(super) part_file: Option<PathBuf>,
    /// The directories from which the configuration imports all files. The installer's own file is
    /// in the first one.
    pub(super) import_directories: Vec<PathBuf>,
    pub(super) texts: Texts,
    /// The configuration file without the installer's lines. If the file does not exist, the text
    /// has only a `version`.
    pub(super) bare: Bare,
    /// The files in [`Texts::leftovers`], each with its text after the removal of the installer's
    /// lines. None for a file that is to be removed.
    pub(super) bare_leftovers: BTreeMap<PathBuf, Option<String>>,
    /// The other imported files and their texts.
    pub(super) imported: Vec<(PathBuf, String)>,
    pub(super) source: Option<SourceText>,
    /// Directories that this installation has to create, and directories that an earlier
    /// installation created.
    pub(super) directories: Vec<PathBuf>,
}

impl Found {
    /// Begins with `main`, the text of containerd's configuration file. If there is no such file,
    /// `version` returns the layout of the new file.
    ///
    /// # Errors
    ///
    /// If it is unclear which lines are the installer's.
    pub(super) fn new(
        config: PathBuf,
        main: Option<String>,
        version: impl FnOnce() -> anyhow::Result<i64>,
    ) -> anyhow::Result<Found> {
        let bare = match &main {
            Some(text) => {
                without_ours(text).map_err(|error| anyhow!("{}, {error}", config.display()))?
            }
            None => Bare {
                text: format!("version = {}\n", version()?),
                is_made: true,
            },
        };
        let import_directories = imports::directories(&bare.text, &config);
        Ok(Found {
            config,
            part_file: import_directories.first().map(|first| part_in(first)),
            import_directories,
            texts: Texts {
                main,
                ..Texts::default()
            },
            bare,
            bare_leftovers: BTreeMap::new(),
            imported: Vec::new(),
            source: None,
            directories: Vec::new(),
        })
    }

    /// Adds the present text of the installer's own file.
    ///
    /// # Errors
    ///
    /// If the installer did not make that file.
    pub(super) fn with_part(mut self, part: Option<String>) -> anyhow::Result<Found> {
        if let (Some(file), Some(text)) = (&self.part_file, &part) {
            ours::expect_made(file, ours::is_made(text))?;
        }
        self.texts.part = part;
        Ok(self)
    }

    /// The paths that the installer's own file would have in the other import directories. An
    /// earlier installation may have written files there.
    pub(super) fn earlier_part_files(&self) -> Vec<PathBuf> {
        let others = self.import_directories.iter().skip(1);
        others.map(|directory| part_in(directory)).collect()
    }

    /// Adds another file in which an earlier installation wrote lines, with its present text and
    /// with its text without these lines.
    pub(super) fn with_leftover(
        mut self,
        file: PathBuf,
        text: Option<String>,
        bare: Option<String>,
    ) -> Found {
        self.texts.leftovers.insert(file.clone(), text);
        self.bare_leftovers.insert(file, bare);
        self
    }

    /// The files in which the installer writes or removes lines, with their texts in `texts`.
    fn files<'a>(&'a self, texts: &'a Texts) -> impl Iterator<Item = (&'a Path, Option<&'a str>)> {
        let source = self.source.as_ref();
        let source = source.map(|source| (&*source.file, texts.source.as_deref()));
        let main = Some((&*self.config, texts.main.as_deref()));
        let others = [source, main].into_iter().flatten();
        self.parts(texts).chain(others)
    }

    /// The installer's own file and the [leftovers](Texts::leftovers), each with its text in
    /// `texts`.
    pub(super) fn parts<'a>(
        &'a self,
        texts: &'a Texts,
    ) -> impl Iterator<Item = (&'a Path, Option<&'a str>)> {
        let part = self.part_file.as_deref();
        let part = part.map(|file| (file, texts.part.as_deref()));
        let leftovers = texts.leftovers.iter();
        let leftovers = leftovers.map(|(file, text)| (&**file, text.as_deref()));
        part.into_iter().chain(leftovers)
    }

    /// The files whose texts differ between `old` and `new`, with both texts.
    pub(super) fn changes<'a>(
        &'a self,
        old: &'a Texts,
        new: &'a Texts,
    ) -> impl Iterator<Item = (&'a Path, Option<&'a str>, Option<&'a str>)> {
        let both = self.files(old).zip(self.files(new));
        let changes = both.map(|((file, old), (_, new))| (file, old, new));
        changes.filter(|(_, old, new)| old != new)
    }

    pub(super) fn layout(&self) -> i64 {
        version(&self.bare.text)
    }

    pub(super) fn without_ours(&self) -> Texts {
        Texts {
            main: Some(self.bare.text.clone()),
            part: None,
            source: None,
            leftovers: self.bare_leftovers.clone(),
        }
    }

    /// Adds the file from which the configuration is generated.
    pub(super) fn with_source(mut self, source: SourceText) -> Found {
        self.texts.source = source.text().map(str::to_owned);
        self.source = Some(source);
        self
    }

    /// Adds the directories that an earlier installation created, and the `missing` ones, which
    /// this installation has to create.
    pub(super) fn with_directories(mut self, missing: Vec<PathBuf>) -> Found {
        self.directories = self.made_directories();
        self.directories.extend(missing);
        self
    }

    /// The directories that an earlier installation created.
    pub(super) fn made_directories(&self) -> Vec<PathBuf> {
        let texts = self.files(&self.texts).filter_map(|(_, text)| text);
        texts.flat_map(ours::directories).collect()
    }

    /// True if a file has the installer's lines.
    pub(super) fn has_ours(&self) -> bool {
        let mut texts = self.files(&self.texts).filter_map(|(_, text)| text);
        texts.any(ours::has_written)
    }

    /// The shim's path (`runtime_path`) in the installer's lines. None if the lines have no path.
    pub(super) fn shim(&self) -> Option<PathBuf> {
        let texts = self.files(&self.texts).filter_map(|(_, text)| text);
        let mut texts = texts.filter(|text| ours::has_written(text));
        texts.find_map(|text| {
            // A template is not TOML, but the installer's lines in it are.
            let parsed = Effective::parse(text.to_owned());
            let lines = parsed
                .or_else(|_| Effective::parse(ours::tables(text)))
                .ok()?;
            let (_, runtime) = lines.runtimes().find(|(name, _)| *name == NAME)?;
            let path = runtime.get("runtime_path")?.as_str()?;
            Some(PathBuf::from(path))
        })
    }
}

/// The path of the installer's own file in an import directory.
fn part_in(directory: &Path) -> PathBuf {
    directory.join(format!("{NAME}.toml"))
}

/// The layout (`version`) of a configuration.
pub(super) fn version(text: &str) -> i64 {
    let document = Document::parse(text).ok();
    let version = document.and_then(|document| document.get("version")?.as_integer());
    version.unwrap_or(1)
}
