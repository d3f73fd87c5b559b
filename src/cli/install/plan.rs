//! What is to be in containerd's configuration: decided from texts, without a file being touched.

use std::path::PathBuf;

use toml::{Table, Value};
use toml_edit::{Document, DocumentMut, Item, Key};

use super::super::containerd::{Effective, KnownAs, NAME, cri_of_layout, entry};
use super::imports;
use super::ours::{self, Bare, without_ours};
use super::source::SourceText;

/// The texts of the two files that may have something of ours; none where no file is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Texts {
    /// containerd's configuration file.
    pub(super) main: Option<String>,
    /// A file of ours in the directory that it imports.
    pub(super) part: Option<String>,
    /// The file of which a distribution makes the configuration, which is then never written itself.
    pub(super) source: Option<String>,
}

/// What is to be put into place.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) texts: Texts,
    /// What containerd is tried with: where the configuration is made of a [source](Texts::source), what it
    /// will be then.
    pub(super) tried: Texts,
}

/// The two files, and what is in them.
#[derive(Debug)]
pub(super) struct Found {
    /// containerd's configuration file.
    pub(super) config: PathBuf,
    /// The file of our own, where a directory is imported.
    pub(super) part_file: Option<PathBuf>,
    pub(super) texts: Texts,
    /// The configuration file without us. A file that is not there yet has its `version` alone.
    bare: Bare,
    /// Other files that the configuration imports, and their texts.
    pub(super) imported: Vec<(PathBuf, String)>,
    pub(super) source: Option<SourceText>,
    /// Directories that are not there yet, and those that were made when it was installed before.
    directories: Vec<PathBuf>,
}

/// What is wanted of containerd's configuration.
#[derive(Debug)]
pub(super) enum Wish {
    /// That it has our runtime, known so.
    Installed(KnownAs),
    /// That it has nothing of ours.
    Removed,
}

/// What containerd makes of texts, or why it does not take them.
pub(super) type Ask<'a> = dyn FnMut(&Found, &Texts) -> Result<Effective, String> + 'a;

// === impl Found ===

impl Found {
    /// From what is in the configuration file, if it is there, and else the `version` that it would have.
    ///
    /// # Errors
    ///
    /// One sentence, where what is ours cannot be told from the rest.
    pub(super) fn new(
        config: PathBuf,
        main: Option<String>,
        version: impl FnOnce() -> Result<i64, String>,
    ) -> Result<Found, String> {
        let bare = match &main {
            Some(text) => {
                without_ours(text).map_err(|error| format!("{}, {error}", config.display()))?
            }
            None => Bare {
                text: format!("version = {}\n", version()?),
                is_made: true,
            },
        };
        let part_file = imports::directory(&bare.text, &config)
            .map(|directory| directory.join(format!("{NAME}.toml")));
        Ok(Found {
            config,
            part_file,
            texts: Texts {
                main,
                ..Texts::default()
            },
            bare,
            imported: Vec::new(),
            source: None,
            directories: Vec::new(),
        })
    }

    /// With what is in the file that would be our own.
    ///
    /// # Errors
    ///
    /// One sentence, if it is somebody else's.
    pub(super) fn with_part(mut self, part: Option<String>) -> Result<Found, String> {
        if let (Some(file), Some(text)) = (&self.part_file, &part) {
            let is_made = without_ours(text).is_ok_and(|bare| bare.is_made);
            ours::expect_made(file, is_made)?;
        }
        self.texts.part = part;
        Ok(self)
    }

    /// The layout that the configuration is written in.
    pub(super) fn layout(&self) -> i64 {
        version(&self.bare.text)
    }

    /// Both files without us, as containerd is to be asked about them.
    fn without_ours(&self) -> Texts {
        Texts {
            main: Some(self.bare.text.clone()),
            ..Texts::default()
        }
    }

    /// With the file of which the configuration is made.
    pub(super) fn with_source(mut self, source: SourceText) -> Found {
        self.texts.source = source.text().map(str::to_owned);
        self.source = Some(source);
        self
    }

    /// Adds directories that are to be made to those that were made before.
    pub(super) fn with_directories(mut self, missing: Vec<PathBuf>) -> Found {
        self.directories = self.made_directories();
        self.directories.extend(missing);
        self
    }

    /// The directories that were made when it was installed.
    pub(super) fn made_directories(&self) -> Vec<PathBuf> {
        let Texts { main, part, source } = &self.texts;
        let texts = [main, part, source].into_iter().flatten();
        texts.flat_map(|text| ours::directories(text)).collect()
    }

    /// The tables of the runtime, and what is to be remembered with them.
    fn tables(&self, cri: &str, known_as: &KnownAs) -> String {
        ours::with_directories(&self.directories, &entry(cri, NAME, known_as))
    }

    /// True if the file of which the configuration is made has the runtime, and the configuration has not.
    pub(super) fn is_to_be_made_anew(&self) -> bool {
        let mut texts = self
            .imported
            .iter()
            .map(|(_, text)| text)
            .chain(&self.texts.main);
        self.source.as_ref().is_some_and(SourceText::has_ours)
            && !texts.any(|text| ours::names_runtime(text))
    }

    /// What is to be there, and what containerd would make of it.
    ///
    /// # Errors
    ///
    /// One sentence: containerd does not take the configuration as it is, or with us in it, or would be
    /// configured differently in something else than our runtime.
    pub(super) fn plan(&self, wish: &Wish, ask: &mut Ask) -> Result<Planned, String> {
        let Some(source) = &self.source else {
            let texts = self.plan_configuration(wish, ask)?;
            let tried = texts.clone();
            return Ok(Planned { texts, tried });
        };
        let with_source = |text: Option<String>| Texts {
            source: text,
            ..self.texts.clone()
        };
        let layout = self.layout();
        let (text, tried) = match wish {
            Wish::Removed => (source.without_ours(), None),
            // What was made of it has the runtime already, maybe without the comments that tell it is ours.
            Wish::Installed(known_as) if source.has_ours() => {
                let mut tables = self.tables(cri_of_layout(layout), known_as);
                tables.push_str(&built_in_of(&source.tables()));
                (Some(source.with_ours(layout, &tables)), None)
            }
            Wish::Installed(_) => {
                let tried = self.plan_configuration(wish, ask)?;
                let tables = ours::tables(tried.main.as_deref().unwrap_or_default());
                (Some(source.with_ours(layout, &tables)), Some(tried))
            }
        };
        let texts = with_source(text);
        let tried = tried.unwrap_or_else(|| self.texts.clone());
        Ok(Planned { texts, tried })
    }

    fn plan_configuration(&self, wish: &Wish, ask: &mut Ask) -> Result<Texts, String> {
        let before = ask(self, &self.without_ours()).map_err(|error| {
            let file = self.config.display();
            format!("containerd does not take {file} as it is: {error}; nothing was changed")
        })?;
        let planned = match wish {
            Wish::Removed => self.removed(),
            Wish::Installed(known_as) => self.installed(&before, known_as, ask)?,
        };
        Ok(self.unless_the_same(planned))
    }

    fn removed(&self) -> Texts {
        let is_empty = || {
            let mut lines = self.bare.text.lines().map(str::trim);
            lines.all(|line| line.is_empty() || line.starts_with("version"))
        };
        let goes = self.texts.main.is_none() || self.bare.is_made && is_empty();
        Texts {
            main: (!goes).then(|| self.bare.text.clone()),
            ..Texts::default()
        }
    }

    fn installed(
        &self,
        before: &Effective,
        known_as: &KnownAs,
        ask: &mut Ask,
    ) -> Result<Texts, String> {
        let config = self.config.display();
        let mut runtimes = before.runtimes().map(|(name, _)| name).peekable();
        if runtimes.peek().is_none() {
            return Err(format!(
                "{config} has no runtimes for Kubernetes; expected containerd's CRI plugin to be enabled; \
                 nothing was changed"
            ));
        }
        if runtimes.any(|name| name == NAME) {
            let imported = self
                .imported
                .iter()
                .map(|(path, text)| (path, text.as_str()));
            let mut files = [(&self.config, self.bare.text.as_str())]
                .into_iter()
                .chain(imported);
            let named =
                files.find_map(|(file, text)| Some((file.display(), line_of_runtime(text)?)));
            let place = match named {
                Some((file, line)) => format!("{file}, line {line},"),
                None => format!("what {config} imports"),
            };
            return Err(format!(
                "{place} names the runtime {NAME} already, and `usher install` has not written it; expected \
                 it to be taken out; nothing was changed"
            ));
        }
        let mut why = String::new();
        for candidate in self.candidates(before, known_as) {
            match ask(self, &candidate).and_then(|after| adds_usher(before, &after)) {
                Ok(()) => return Ok(candidate),
                Err(error) => why = error,
            }
        }
        if let Some((line, table)) = self.table_in_braces() {
            return Err(format!(
                "{config}, line {line}: {table} is a table in braces, to which no lines can add a runtime; \
                 expected [{table}] with its keys below; nothing was changed"
            ));
        }
        Err(format!(
            "with the runtime {NAME} added to {config} containerd would not be configured as before: {why}; \
             nothing was changed"
        ))
    }

    /// What may be tried, the best first: a file of our own; lines in the configuration; the same with the
    /// runtime that containerd 1 knows by itself and forgets as soon as a configuration names another.
    fn candidates(&self, before: &Effective, known_as: &KnownAs) -> Vec<Texts> {
        let version = version(&self.bare.text);
        let cri = cri_of_layout(version);
        let ours = self.tables(cri, known_as);
        let beside = self.part_file.is_some().then(|| Texts {
            main: Some(ours::with_nothing(&self.bare)),
            part: Some(ours::own_file(version, &ours)),
            source: None,
        });
        let within = |tables: &str| Texts {
            main: Some(ours::with_ours(&self.bare, tables)),
            ..Texts::default()
        };
        let with_built_in =
            built_in(cri, before).map(|built_in| within(&format!("{ours}\n{built_in}")));
        let all = beside.into_iter().chain([within(&ours)]);
        all.chain(with_built_in).collect()
    }

    /// What is there already stays as it is where the new text says the same: no containerd is restarted
    /// for the words of a comment, or for lines that somebody has added below ours.
    fn unless_the_same(&self, planned: Texts) -> Texts {
        type Alike = fn(&str, &str) -> bool;
        let either = |old: &Option<String>, new: Option<String>, alike: Alike| match (old, new) {
            (Some(old), Some(new)) if alike(old, &new) => Some(old.clone()),
            (_, new) => new,
        };
        Texts {
            main: either(&self.texts.main, planned.main, are_alike),
            part: either(&self.texts.part, planned.part, have_the_same_values),
            source: planned.source,
        }
    }

    /// The line and the name of a table that has the runtimes, or is to have them, and is written in braces.
    fn table_in_braces(&self) -> Option<(usize, String)> {
        let document = Document::parse(self.bare.text.as_str()).ok()?;
        let mut item = document.as_item();
        let mut name = Vec::new();
        for key in runtimes(&self.bare.text) {
            item = item.get(key)?;
            name.push(Key::new(key).display_repr().into_owned());
            if item.is_inline_table() {
                return Some((line(&self.bare.text, item)?, name.join(".")));
            }
        }
        None
    }
}

/// The line of a text in which the table of a runtime of our name stands.
fn line_of_runtime(text: &str) -> Option<usize> {
    let document = Document::parse(text).ok()?;
    let mut path = runtimes(text).into_iter().chain([NAME]);
    let item = path.try_fold(document.as_item(), |item, key| item.get(key))?;
    line(text, item)
}

/// The keys of the table of all runtimes.
fn runtimes(text: &str) -> [&'static str; 4] {
    [
        "plugins",
        cri_of_layout(version(text)),
        "containerd",
        "runtimes",
    ]
}

fn line(text: &str, item: &Item) -> Option<usize> {
    let before = text.get(..item.span()?.start)?;
    Some(before.matches('\n').count().saturating_add(1))
}

/// The layout that a configuration is written in.
fn version(text: &str) -> i64 {
    let document = Document::parse(text).ok();
    let version = document.and_then(|document| document.get("version")?.as_integer());
    version.unwrap_or(1)
}

/// Whether two texts of the configuration have the same lines of others, and the same values of ours.
fn are_alike(old: &str, new: &str) -> bool {
    without_ours(old) == without_ours(new) && have_the_same_values(old, new)
}

fn have_the_same_values(old: &str, new: &str) -> bool {
    let values = |text: &str| text.parse::<Table>().ok();
    values(old).is_some_and(|old| Some(old) == values(new))
}

/// The tables of the runtime that containerd knows by itself, for a file in which the CRI plugin is `cri`.
fn built_in(cri: &str, before: &Effective) -> Option<String> {
    const RUNC: &str = "runc";
    let (dumped, _) = before.cri()?;
    let mut dump: DocumentMut = before.text().parse().ok()?;
    let mut from = dump.as_table_mut();
    for key in ["plugins", dumped, "containerd", "runtimes"] {
        from = from.get_mut(key)?.as_table_mut()?;
    }
    let mut runc = from.remove(RUNC)?;
    flush_left(&mut runc);
    let mut document = DocumentMut::new();
    let mut to = document.as_table_mut();
    for key in ["plugins", cri, "containerd", "runtimes"] {
        to = to
            .entry(key)
            .or_insert_with(toml_edit::table)
            .as_table_mut()?;
        to.set_implicit(true);
    }
    to.insert(RUNC, runc);
    Some(document.to_string())
}

/// The tables of the runtime that containerd knows by itself, if they are among ours.
fn built_in_of(ours: &str) -> String {
    let runc = ours.find(".containerd.runtimes.runc]");
    let begin = runc.and_then(|runc| ours.get(..runc)?.rfind('\n'));
    let tables = begin.and_then(|begin| ours.get(begin..));
    tables.unwrap_or_default().to_owned()
}

/// Takes the dump's indentation from a table, and its empty lines.
fn flush_left(item: &mut Item) {
    let Some(table) = item.as_table_mut() else {
        return;
    };
    table.decor_mut().clear();
    for (mut key, value) in table.iter_mut() {
        // The key of a table stands in its heading.
        key.leaf_decor_mut()
            .set_prefix(if value.is_table() { "" } else { "  " });
        flush_left(value);
    }
}

/// Is this what was before, and our runtime besides?
fn adds_usher(before: &Effective, after: &Effective) -> Result<(), String> {
    let (old, new) = (before.without(NAME), after.without(NAME));
    if let Some(difference) = difference("", &Value::Table(old), &Value::Table(new)) {
        return Err(difference);
    }
    match after.runtimes().any(|(name, _)| name == NAME) {
        true => Ok(()),
        false => Err(format!("it does not find the runtime {NAME}")),
    }
}

/// The first value that differs, with its keys.
fn difference(place: &str, old: &Value, new: &Value) -> Option<String> {
    let (Value::Table(old), Value::Table(new)) = (old, new) else {
        return (old != new).then(|| format!("{place} would be {new:?} instead of {old:?}"));
    };
    let below = |key: &str| match place {
        "" => key.to_owned(),
        _ => format!("{place}.{key}"),
    };
    let changed = old.iter().find_map(|(key, value)| match new.get(key) {
        Some(other) => difference(&below(key), value, other),
        None => Some(format!("{} would be missing", below(key))),
    });
    let added = || new.keys().find(|key| !old.contains_key(*key));
    changed.or_else(|| added().map(|key| format!("{} would be there", below(key))))
}

#[cfg(test)]
mod tests {
    use super::super::super::containerd::CRI_2;
    use super::*;

    #[test]
    fn headings_of_the_built_in_runtime_have_no_blanks() {
        let dump = format!(
            "[plugins]\n\n  [plugins.\"{CRI_2}\"]\n    [plugins.\"{CRI_2}\".containerd]\n\n      \
             [plugins.\"{CRI_2}\".containerd.runtimes]\n\n        \
             [plugins.\"{CRI_2}\".containerd.runtimes.runc]\n          runtime_type = \"x\"\n\n          \
             [plugins.\"{CRI_2}\".containerd.runtimes.runc.options]\n            Root = \"\"\n"
        );
        let built_in = built_in(CRI_2, &Effective::parse(dump).unwrap()).unwrap();
        let headings: Vec<_> = built_in
            .lines()
            .filter(|line| line.trim_start().starts_with('['))
            .collect();
        let runc = format!("plugins.\"{CRI_2}\".containerd.runtimes.runc");
        assert_eq!(
            headings,
            [format!("[{runc}]"), format!("[{runc}.options]")],
            "{built_in}"
        );
    }
}
