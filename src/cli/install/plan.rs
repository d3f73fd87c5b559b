//! Plans containerd's new configuration from texts, without touching a file.

use anyhow::{anyhow, bail};
use toml::{Table, Value};
use toml_edit::{Document, DocumentMut, Item, Key};

use super::super::containerd::{Effective, NAME, Registration, cri_of_layout, entry};
use super::super::output::sentence;
use super::found::{Found, Texts, version};
use super::ours::{self, without_ours};
use super::source::SourceText;

#[derive(Debug)]
pub(super) struct Planned {
    pub(super) texts: Texts,
    /// The texts with which the trial starts containerd; the present texts if no trial is needed.
    /// If a distribution generates the configuration from a [source](Texts::source), the main text
    /// is the configuration that it would generate after the change.
    pub(super) tried: Texts,
}

/// The wanted state of containerd's configuration.
#[derive(Debug)]
pub(super) enum Goal {
    /// The configuration has usher's runtime, and names the shim in this way.
    Installed(Registration),
    /// The configuration has no lines of the installer.
    Removed,
}

/// A function that asks containerd which effective configuration results from these texts. If
/// containerd rejects the texts, the error gives containerd's reason.
pub(super) type Ask<'a> = dyn FnMut(&Found, &Texts) -> anyhow::Result<Effective> + 'a;

impl Found {
    /// The runtime's table. Lines that name the created directories come before it.
    fn tables(&self, cri: &str, registration: &Registration) -> String {
        ours::with_directories(&self.directories, &entry(cri, NAME, registration))
    }

    /// True if the [source](Texts::source) has the runtime and the generated configuration does
    /// not. The distribution then has to generate the configuration again.
    pub(super) fn awaits_generation(&self) -> bool {
        let mut texts = self
            .imported
            .iter()
            .map(|(_, text)| text)
            .chain(&self.texts.main);
        self.source.as_ref().is_some_and(SourceText::has_ours)
            && !texts.any(|text| ours::names_runtime(text))
    }

    /// Plans the change for `goal`.
    ///
    /// # Errors
    ///
    /// If containerd rejects the present configuration or the new one, or if the new
    /// configuration would change more than usher's runtime.
    pub(super) fn plan(&self, goal: &Goal, ask: &mut Ask) -> anyhow::Result<Planned> {
        let Some(source) = &self.source else {
            let texts = self.plan_configuration(goal, ask)?;
            let tried = texts.clone();
            return Ok(Planned { texts, tried });
        };
        let with_source = |text: Option<String>| Texts {
            source: text,
            leftovers: self.bare_leftovers.clone(),
            ..self.texts.clone()
        };
        let layout = self.layout();
        let (text, tried) = match goal {
            Goal::Removed => (source.without_ours(), None),
            // The generated configuration has the runtime already, but may lack the installer's
            // comments around it.
            Goal::Installed(registration) if source.has_ours() => {
                let mut tables = self.tables(cri_of_layout(layout), registration);
                tables.push_str(&built_in_of(&source.tables()));
                (Some(source.with_ours(layout, &tables)), None)
            }
            Goal::Installed(_) => {
                let tried = self.plan_configuration(goal, ask)?;
                let tables = ours::tables(tried.main.as_deref().unwrap_or_default());
                (Some(source.with_ours(layout, &tables)), Some(tried))
            }
        };
        let texts = with_source(text);
        let tried = tried.unwrap_or_else(|| self.texts.clone());
        Ok(Planned { texts, tried })
    }

    fn plan_configuration(&self, goal: &Goal, ask: &mut Ask) -> anyhow::Result<Texts> {
        let before = ask(self, &self.without_ours()).map_err(|error| {
            let (file, error) = (self.config.display(), sentence(&error));
            anyhow!("containerd rejects the present {file}: {error}; nothing was changed")
        })?;
        self.refuse_foreign_runtime(&before)?;
        let planned = match goal {
            Goal::Removed => self.removed(),
            Goal::Installed(registration) => self.installed(&before, registration, ask)?,
        };
        Ok(self.keep_equal_texts(planned))
    }

    fn removed(&self) -> Texts {
        let is_empty = || {
            let mut lines = self.bare.text.lines().map(str::trim);
            lines.all(|line| line.is_empty() || line.starts_with("version"))
        };
        let goes = self.texts.main.is_none() || self.bare.is_made && is_empty();
        Texts {
            main: (!goes).then(|| self.bare.text.clone()),
            ..self.without_ours()
        }
    }

    fn installed(
        &self,
        before: &Effective,
        registration: &Registration,
        ask: &mut Ask,
    ) -> anyhow::Result<Texts> {
        let config = self.config.display();
        if before.runtimes().next().is_none() {
            bail!(
                "{config} has no runtimes for Kubernetes; expected containerd's CRI plugin to be enabled; \
                 nothing was changed"
            );
        }
        let mut why = String::new();
        for candidate in self.candidates(before, registration) {
            match ask(self, &candidate).and_then(|after| adds_usher(before, &after)) {
                Ok(()) => return Ok(candidate),
                Err(error) => why = sentence(&error),
            }
        }
        if let Some((line, table)) = self.inline_table() {
            bail!(
                "{config}, line {line}: {table} is an inline table, which other lines cannot extend; \
                 expected [{table}] with its keys below it; nothing was changed"
            );
        }
        bail!(
            "the runtime {NAME} in {config} would change more of containerd's configuration: {why}; \
             nothing was changed"
        )
    }

    /// Fails if the configuration has a runtime named `usher` that the installer did not write.
    fn refuse_foreign_runtime(&self, before: &Effective) -> anyhow::Result<()> {
        if before.runtimes().all(|(name, _)| name != NAME) {
            return Ok(());
        }
        let config = self.config.display();
        let imported = self
            .imported
            .iter()
            .map(|(path, text)| (path, text.as_str()));
        let mut files = [(&self.config, self.bare.text.as_str())]
            .into_iter()
            .chain(imported);
        let named = files.find_map(|(file, text)| Some((file.display(), line_of_runtime(text)?)));
        let place = match named {
            Some((file, line)) => format!("{file}, line {line},"),
            None => format!("a file that {config} imports"),
        };
        bail!(
            "{place} already has a runtime {NAME} that `usher install` did not write; remove it first; \
             nothing was changed"
        )
    }

    /// The candidates for the new texts, the best first. The runtime's lines go into the
    /// installer's own file, or else into the configuration file. The last candidate also has the
    /// tables of the built-in runtime, because containerd 1 drops that runtime if the configuration
    /// names another one.
    fn candidates(&self, before: &Effective, registration: &Registration) -> Vec<Texts> {
        let version = version(&self.bare.text);
        let cri = cri_of_layout(version);
        let ours = self.tables(cri, registration);
        let beside = self.part_file.is_some().then(|| Texts {
            main: Some(ours::with_nothing(&self.bare)),
            part: Some(ours::own_file(version, &ours)),
            ..self.without_ours()
        });
        let within = |tables: &str| Texts {
            main: Some(ours::with_ours(&self.bare, tables)),
            ..self.without_ours()
        };
        let with_built_in =
            built_in(cri, before).map(|built_in| within(&format!("{ours}\n{built_in}")));
        let all = beside.into_iter().chain([within(&ours)]);
        all.chain(with_built_in).collect()
    }

    /// If the planned text of a file has the same values as the present text, keeps the present
    /// text. So containerd does not restart for a changed comment, or for lines that the
    /// administrator added below the installer's.
    fn keep_equal_texts(&self, planned: Texts) -> Texts {
        type Alike = fn(&str, &str) -> bool;
        let either = |old: &Option<String>, new: Option<String>, alike: Alike| match (old, new) {
            (Some(old), Some(new)) if alike(old, &new) => Some(old.clone()),
            (_, new) => new,
        };
        Texts {
            main: either(&self.texts.main, planned.main, are_alike),
            part: either(&self.texts.part, planned.part, have_the_same_values),
            source: planned.source,
            leftovers: planned.leftovers,
        }
    }

    /// If the table of all runtimes is an inline table, or is within one, returns the line and the
    /// name of the outermost inline table.
    fn inline_table(&self) -> Option<(usize, String)> {
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

/// The number of the line with the table of the runtime `usher`.
fn line_of_runtime(text: &str) -> Option<usize> {
    let document = Document::parse(text).ok()?;
    let mut path = runtimes(text).into_iter().chain([NAME]);
    let item = path.try_fold(document.as_item(), |item, key| item.get(key))?;
    line(text, item)
}

/// The keys that lead to the table of all runtimes.
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

/// True if both texts have the same values and differ only in the installer's lines.
fn are_alike(old: &str, new: &str) -> bool {
    without_ours(old) == without_ours(new) && have_the_same_values(old, new)
}

fn have_the_same_values(old: &str, new: &str) -> bool {
    let values = |text: &str| text.parse::<Table>().ok();
    values(old).is_some_and(|old| Some(old) == values(new))
}

/// The tables of containerd's built-in runtime, runc, from the configuration `before`. `cri` is the
/// CRI plugin's name in the new file.
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

/// The part of the installer's tables that defines the built-in runtime, runc.
fn built_in_of(ours: &str) -> String {
    let runc = ours.find(".containerd.runtimes.runc]");
    let begin = runc.and_then(|runc| ours.get(..runc)?.rfind('\n'));
    let tables = begin.and_then(|begin| ours.get(begin..));
    tables.unwrap_or_default().to_owned()
}

/// Replaces the indentation of a table from `containerd config dump`: none before headings, two
/// spaces before keys.
fn flush_left(item: &mut Item) {
    let Some(table) = item.as_table_mut() else {
        return;
    };
    table.decor_mut().clear();
    for (mut key, value) in table.iter_mut() {
        // The key of a table stands in its heading, so the key gets no indentation.
        key.leaf_decor_mut()
            .set_prefix(if value.is_table() { "" } else { "  " });
        flush_left(value);
    }
}

/// Checks that `after` is `before` with usher's runtime added, and differs in nothing else.
fn adds_usher(before: &Effective, after: &Effective) -> anyhow::Result<()> {
    let (old, new) = (before.without(NAME), after.without(NAME));
    if let Some(difference) = difference("", &Value::Table(old), &Value::Table(new)) {
        bail!(difference);
    }
    match after.runtimes().any(|(name, _)| name == NAME) {
        true => Ok(()),
        false => bail!("containerd does not find the runtime {NAME}"),
    }
}

/// The first difference between two values, as a clause.
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
    changed.or_else(|| added().map(|key| format!("{} would be added", below(key))))
}

#[cfg(test)]
mod tests {
    use super::super::super::containerd::CRI_2;
    use super::*;

    #[test]
    fn headings_of_the_built_in_runtime_are_not_indented() {
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
