//! The `imports` of a configuration file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml_edit::{Document, Value};

/// The pattern that imports all files of a directory, which packages and installers use.
const ALL_OF_IT: &str = "*.toml";

/// A pattern of files, and its span in the text.
struct Import {
    pattern: PathBuf,
    span: Range<usize>,
}

/// A directory from which the configuration file at `config` imports all files. If there are
/// several, the first one.
pub(super) fn directory(text: &str, config: &Path) -> Option<PathBuf> {
    let imports = imports(text, config).into_iter();
    let mut directories = imports.filter_map(|import| {
        let of_all = import.pattern.file_name()? == ALL_OF_IT;
        let directory = import.pattern.parent()?;
        let is_one = !directory.to_string_lossy().contains(['*', '?', '[']);
        (of_all && is_one).then(|| directory.to_owned())
    });
    directories.next()
}

/// The text for a copy of the file in another directory: it imports the same files, except that
/// `instead` replaces one directory by another.
pub(super) fn moved(text: &str, config: &Path, instead: Option<(&Path, &Path)>) -> String {
    let mut text = text.to_owned();
    for import in imports(&text, config).into_iter().rev() {
        let pattern = match instead {
            Some((from, to)) if import.pattern == from.join(ALL_OF_IT) => to.join(ALL_OF_IT),
            _ => import.pattern,
        };
        let value = Value::from(pattern.to_string_lossy().as_ref());
        text.replace_range(import.span, &value.to_string());
    }
    text
}

/// The imports of a configuration file, in their order. Empty if the text is not TOML.
fn imports(text: &str, config: &Path) -> Vec<Import> {
    let Ok(document) = Document::parse(text) else {
        return Vec::new();
    };
    let from = config.parent().unwrap_or(Path::new("/"));
    let values = document.get("imports").and_then(|item| item.as_array());
    let values = values.into_iter().flatten();
    let imports = values.filter_map(|value| {
        Some(Import {
            pattern: from.join(value.as_str()?),
            span: value.span()?,
        })
    });
    imports.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "/etc/containerd/config.toml";

    fn directory_of(text: &str) -> Option<PathBuf> {
        directory(text, Path::new(CONFIG))
    }

    #[test]
    fn only_a_pattern_for_all_files_of_one_directory_names_a_directory() {
        for (imports, expected) in [
            ("['/etc/conf.d/*.toml']", Some("/etc/conf.d")),
            (
                "[ # of ours\r\n 'conf.d/*.toml',\r\n]",
                Some("/etc/containerd/conf.d"),
            ),
            (
                "['one.toml', \"b/*.toml\", 'c/*.toml']",
                Some("/etc/containerd/b"),
            ),
            ("['/etc/*/*.toml']", None),
            ("['/etc/a*.toml']", None),
            ("[]", None),
            ("'/etc/conf.d/*.toml'", None),
        ] {
            let text = format!("version = 3\nimports = {imports}\n");
            assert_eq!(
                directory_of(&text),
                expected.map(PathBuf::from),
                "{imports}"
            );
        }
        // The key `imports` counts only at the top level, not within a table.
        assert_eq!(
            directory_of("[a]\nimports = ['/etc/conf.d/*.toml']\n"),
            None
        );
        assert_eq!(directory_of("# imports = ['/etc/conf.d/*.toml']\n"), None);
    }

    #[test]
    fn a_copy_in_another_directory_imports_the_same_files() {
        let text =
            "imports = [\n  'one.toml', # the first\n  'b/*.toml', '/c.toml']\nroot = 'b/*.toml'\n";
        let (from, to) = (Path::new("/etc/containerd/b"), Path::new("/tmp/b"));
        assert_eq!(
            moved(text, Path::new(CONFIG), Some((from, to))),
            "imports = [\n  \"/etc/containerd/one.toml\", # the first\n  \"/tmp/b/*.toml\", \
             \"/c.toml\"]\nroot = 'b/*.toml'\n"
        );
        let nowhere = "root = 'a'\n";
        assert_eq!(moved(nowhere, Path::new(CONFIG), None), nowhere);
    }
}
