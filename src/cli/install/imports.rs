//! The `imports` of a configuration file.

use std::ops::Range;
use std::path::{Path, PathBuf};

use toml_edit::{Document, Value};

/// The file name in an import of all files of a directory, such as `/etc/containerd/conf.d/*.toml`.
const ALL_OF_IT: &str = "*.toml";

/// A pattern of files, and its span in the text.
struct Import {
    pattern: PathBuf,
    span: Range<usize>,
}

/// The directories that the configuration file at `config` imports as a whole (`DIRECTORY/*.toml`),
/// in the order of the imports.
pub(super) fn directories(text: &str, config: &Path) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for Import { pattern, .. } in imports(text, config) {
        let of_all = pattern.file_name().is_some_and(|name| name == ALL_OF_IT);
        if let Some(directory) = pattern.parent().filter(|_| of_all)
            && !directory.to_string_lossy().contains(['*', '?', '['])
            && !directories.iter().any(|known| known == directory)
        {
            directories.push(directory.to_owned());
        }
    }
    directories
}

/// The text for a copy of the configuration file in another directory. The copy imports the same
/// files, with one exception: for each pair `(from, to)` in `instead`, an import of all files in
/// `from` becomes an import of all files in `to`.
pub(super) fn moved(text: &str, config: &Path, instead: &[(PathBuf, PathBuf)]) -> String {
    let mut text = text.to_owned();
    for import in imports(&text, config).into_iter().rev() {
        let mut copies = instead.iter();
        let pattern = match copies.find(|(from, _)| import.pattern == from.join(ALL_OF_IT)) {
            Some((_, to)) => to.join(ALL_OF_IT),
            None => import.pattern,
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

    fn directories_of(text: &str) -> Vec<PathBuf> {
        directories(text, Path::new(CONFIG))
    }

    #[test]
    fn only_a_pattern_for_all_files_of_one_directory_names_a_directory() {
        for (imports, expected) in [
            ("['/etc/conf.d/*.toml']", &["/etc/conf.d"][..]),
            (
                "[ # of ours\r\n 'conf.d/*.toml',\r\n]",
                &["/etc/containerd/conf.d"],
            ),
            (
                "['one.toml', \"b/*.toml\", 'c/*.toml', 'b/*.toml']",
                &["/etc/containerd/b", "/etc/containerd/c"],
            ),
            ("['/etc/*/*.toml']", &[]),
            ("['/etc/a*.toml']", &[]),
            ("[]", &[]),
            ("'/etc/conf.d/*.toml'", &[]),
        ] {
            let text = format!("version = 3\nimports = {imports}\n");
            let expected: Vec<_> = expected.iter().map(PathBuf::from).collect();
            assert_eq!(directories_of(&text), expected, "{imports}");
        }
        // containerd reads the key `imports` only at the top level, not within a table.
        for text in [
            "[a]\nimports = ['/x/*.toml']\n",
            "# imports = ['/x/*.toml']\n",
        ] {
            assert_eq!(directories_of(text), Vec::<PathBuf>::new());
        }
    }

    #[test]
    fn a_copy_in_another_directory_imports_the_same_files() {
        let text =
            "imports = [\n  'one.toml', # the first\n  'b/*.toml', '/c.toml']\nroot = 'b/*.toml'\n";
        let instead = [("/etc/containerd/b".into(), "/tmp/b".into())];
        assert_eq!(
            moved(text, Path::new(CONFIG), &instead),
            "imports = [\n  \"/etc/containerd/one.toml\", # the first\n  \"/tmp/b/*.toml\", \
             \"/c.toml\"]\nroot = 'b/*.toml'\n"
        );
        let nowhere = "root = 'a'\n";
        assert_eq!(moved(nowhere, Path::new(CONFIG), &[]), nowhere);
    }
}
