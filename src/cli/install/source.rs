//! The file from which a distribution generates containerd's configuration.

use std::path::PathBuf;

use super::super::containerd::{Source, SourceForm};
use super::ours::{self, Bare, without_ours};
use anyhow::{anyhow, bail};

/// A new template. Its only line includes the distribution's own template.
const TEMPLATE: &str = "{{ template \"base\" . }}\n";

/// A [`Source`] and its text.
#[derive(Debug)]
pub(super) struct SourceText {
    pub(super) file: PathBuf,
    form: SourceForm,
    text: Option<String>,
    bare: Bare,
}

impl SourceText {
    /// # Errors
    ///
    /// If it is unclear which lines are the installer's, if the file reserved for the installer was
    /// written by someone else, or if a file is missing that the distribution always has.
    pub(super) fn new(source: Source, text: Option<String>) -> anyhow::Result<SourceText> {
        let Source { file, form } = source;
        let place = file.display();
        let bare = match (&text, form) {
            (Some(text), _) => without_ours(text).map_err(|error| anyhow!("{place}, {error}"))?,
            (None, SourceForm::Template) => Bare {
                text: TEMPLATE.to_owned(),
                is_made: true,
            },
            (None, SourceForm::OwnFile) => Bare {
                text: String::new(),
                is_made: true,
            },
            (None, SourceForm::Whole) => {
                bail!(
                    "{place} does not exist; expected the file from which containerd's configuration is generated"
                );
            }
        };
        if form == SourceForm::OwnFile {
            ours::expect_made(&file, bare.is_made)?;
        }
        Ok(SourceText {
            file,
            form,
            text,
            bare,
        })
    }

    pub(super) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// True if the text has the installer's runtime table.
    pub(super) fn has_ours(&self) -> bool {
        self.text().is_some_and(ours::has_written)
    }

    /// The installer's tables in the text.
    pub(super) fn tables(&self) -> String {
        let text = self.text().unwrap_or_default();
        match self.form {
            SourceForm::OwnFile => text.trim_end().to_owned(),
            SourceForm::Template | SourceForm::Whole => ours::tables(text),
        }
    }

    /// The text with the installer's tables, for a configuration of this layout.
    pub(super) fn with_ours(&self, layout: i64, tables: &str) -> String {
        match self.form {
            SourceForm::OwnFile => ours::own_file(layout, tables),
            SourceForm::Template | SourceForm::Whole => ours::with_ours(&self.bare, tables),
        }
    }

    /// The text without the installer's lines. None if the file is to be removed.
    pub(super) fn without_ours(&self) -> Option<String> {
        let is_empty = match self.form {
            SourceForm::OwnFile => true,
            SourceForm::Template => self.bare.text.trim() == TEMPLATE.trim(),
            SourceForm::Whole => false,
        };
        let goes = self.text.is_none() || self.bare.is_made && is_empty;
        (!goes).then(|| self.bare.text.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = "[plugins.x.containerd.runtimes.usher]\n  a = 1";

    fn source(form: SourceForm, text: Option<&str>) -> anyhow::Result<SourceText> {
        let file = PathBuf::from("/etc/source");
        SourceText::new(Source { file, form }, text.map(str::to_owned))
    }

    #[test]
    fn a_new_template_includes_the_distributions_own_and_is_removed_with_ours() {
        let new = source(SourceForm::Template, None).unwrap();
        let text = new.with_ours(3, TABLES);
        assert!(text.contains(&format!("{TEMPLATE}# >>> usher")), "{text}");
        let there = source(SourceForm::Template, Some(&text)).unwrap();
        assert!(there.has_ours() && !new.has_ours());
        assert_eq!(there.with_ours(3, TABLES), text);
        assert_eq!(there.without_ours(), None);
    }

    #[test]
    fn an_existing_template_is_restored_byte_by_byte() {
        for form in [SourceForm::Template, SourceForm::Whole] {
            let mine = "{{ template \"base\" . }}\n[debug]\n  level = \"info\"";
            let text = source(form, Some(mine)).unwrap().with_ours(2, TABLES);
            assert!(text.starts_with(mine), "{text}");
            let there = source(form, Some(&text)).unwrap();
            assert_eq!(there.without_ours().as_deref(), Some(mine));
        }
    }

    #[test]
    fn our_own_file_is_made_and_removed_and_never_replaces_anothers() {
        let new = source(SourceForm::OwnFile, None).unwrap();
        let text = new.with_ours(2, TABLES);
        assert!(text.contains("version = 2\n"), "{text}");
        let there = source(SourceForm::OwnFile, Some(&text)).unwrap();
        assert!(there.has_ours());
        assert_eq!(there.without_ours(), None);
        let other = source(SourceForm::OwnFile, Some("version = 2\n"))
            .unwrap_err()
            .to_string();
        assert!(other.contains("did not create it"), "{other}");
    }

    #[test]
    fn a_missing_whole_configuration_is_an_error() {
        let missing = source(SourceForm::Whole, None).unwrap_err().to_string();
        assert!(missing.contains("/etc/source does not exist"), "{missing}");
    }
}
