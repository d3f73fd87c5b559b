//! The installer's lines in a configuration file: whole lines between two comments, so that every
//! other byte stays as its author wrote it.

use std::path::{Path, PathBuf};

use anyhow::bail;
use thiserror::Error;

/// The line before the installer's lines.
const FIRST: &str = "# >>> usher: from here to its end written by `usher install`";
/// The beginning of `FIRST`. All versions of the installer have written the line with the same
/// beginning.
const FIRST_BEGINS: &str = "# >>> usher:";
/// The line after the installer's lines.
const LAST: &str = "# <<< usher";
/// The first line of a file that the installer made. `--remove` removes the file if it then has no
/// other lines.
const MADE: &str = "# made by `usher install`";
/// The first line of a file that an earlier installer made.
const MADE_EARLIER: &str = "# made by scripts/install of usher";
/// The comment that the installer adds if the last line of the file has no newline. It stands below
/// that line.
const UNFINISHED: &str = "# usher: the line above had no end";

/// The beginning of a line that names a directory which the installer made. `--remove` removes that
/// directory if it is empty.
const DIRECTORY: &str = "# directory made by `usher install`: ";

/// The text of a configuration file without the installer's lines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Bare {
    pub(super) text: String,
    /// True if the installer made the file.
    pub(super) is_made: bool,
}

/// An error: the installer's lines begin, but the line that ends them is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "line {line}: the lines written by `usher install` begin here and do not end; expected a line \
     {LAST:?} after them"
)]
pub(super) struct NoEnd {
    /// The number of the line with which the installer's lines begin, counted from 1.
    pub(super) line: usize,
}

/// Removes the installer's lines from a text.
///
/// # Errors
///
/// [`NoEnd`], if it is unclear which lines are the installer's.
pub(super) fn without_ours(text: &str) -> Result<Bare, NoEnd> {
    let mut bare = Bare {
        text: String::with_capacity(text.len()),
        is_made: false,
    };
    let mut begins = None;
    // Set if the last line of the original text had no newline, so that the installer added one.
    // Holds the length of the text with this newline, and the newline itself (`\n` or `\r\n`).
    let mut unfinished = None;
    for (at, line) in text.split_inclusive('\n').enumerate() {
        let content = content(line);
        match begins {
            Some(_) if content == LAST => begins = None,
            Some(_) => {}
            None if content.starts_with(FIRST_BEGINS) => begins = Some(at.saturating_add(1)),
            None if content == MADE || content == MADE_EARLIER => bare.is_made = true,
            None if content == UNFINISHED => unfinished = Some((bare.text.len(), end(line))),
            None => bare.text.push_str(line),
        }
    }
    if let Some(line) = begins {
        return Err(NoEnd { line });
    }
    // Removes the newline that the installer added. The newline stays if the administrator has
    // added lines below the installer's, because it separates them from the text above.
    if let Some((_, end)) = unfinished.filter(|(length, _)| *length == bare.text.len()) {
        let finished = bare.text.strip_suffix(end).map(str::len);
        bare.text.truncate(finished.unwrap_or(bare.text.len()));
    }
    Ok(bare)
}

/// True if the installer has written the runtime's table in this text.
pub(crate) fn has_written(text: &str) -> bool {
    without_ours(text)
        .is_ok_and(|bare| bare.is_made || names_runtime(text) && !names_runtime(&bare.text))
}

/// True if the text is that of a file that the installer made.
pub(super) fn is_made(text: &str) -> bool {
    without_ours(text).is_ok_and(|bare| bare.is_made)
}

/// True if a text has the runtime's table, from any author.
pub(super) fn names_runtime(text: &str) -> bool {
    text.contains(".containerd.runtimes.usher")
}

/// Refuses a file that has the path of the installer's file and that the installer did not make.
pub(super) fn expect_made(file: &Path, is_made: bool) -> anyhow::Result<()> {
    match is_made {
        true => Ok(()),
        false => bail!(
            "{} exists, but `usher install` did not create it; expected no such file",
            file.display()
        ),
    }
}

/// The text with the installer's tables at its end. If the installer made the file, the text begins
/// with the line [`MADE`].
pub(super) fn with_ours(bare: &Bare, tables: &str) -> String {
    let end = usual_end(&bare.text);
    let mut text = made(bare);
    text.push_str(&bare.text);
    if !bare.text.is_empty() && !bare.text.ends_with('\n') {
        text.extend([end, UNFINISHED, end]);
    }
    for line in [FIRST].into_iter().chain(tables.lines()).chain([LAST]) {
        text.extend([line, end]);
    }
    text
}

/// Returns the runtime's tables, below a comment line for each directory that the installer makes.
pub(super) fn with_directories(directories: &[PathBuf], tables: &str) -> String {
    let names = directories.iter().filter_map(|path| path.to_str());
    // A directory whose name has a line break is left out, since the line break would end the
    // comment.
    let names = names.filter(|name| !name.contains(char::is_control));
    let lines: String = names.map(|name| format!("{DIRECTORY}{name}\n")).collect();
    lines + tables
}

/// The directories that the installer made, as the comment lines of this text name them.
pub(super) fn directories(text: &str) -> impl Iterator<Item = PathBuf> {
    let names = text.lines().filter_map(|line| line.strip_prefix(DIRECTORY));
    names.map(PathBuf::from)
}

/// The tables that the installer has written in this text.
pub(super) fn tables(text: &str) -> String {
    let lines = text.lines();
    let lines = lines
        .skip_while(|line| !line.starts_with(FIRST_BEGINS))
        .skip(1);
    let lines: Vec<_> = lines.take_while(|line| *line != LAST).collect();
    lines.join("\n")
}

/// The text of a file that contains only the installer's tables.
pub(super) fn own_file(version: i64, tables: &str) -> String {
    format!("{MADE}\nversion = {version}\n{tables}\n")
}

/// The text of a file without the installer's tables.
pub(super) fn with_nothing(bare: &Bare) -> String {
    made(bare) + &bare.text
}

fn made(bare: &Bare) -> String {
    match bare.is_made {
        true => format!("{MADE}{}", usual_end(&bare.text)),
        false => String::new(),
    }
}

/// The line ending of a text's first line.
fn usual_end(text: &str) -> &'static str {
    text.split_inclusive('\n').next().map_or("\n", end)
}

fn end(line: &str) -> &'static str {
    match line.ends_with("\r\n") {
        true => "\r\n",
        false => "\n",
    }
}

fn content(line: &str) -> &str {
    line.strip_suffix(end(line)).unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: &str = "[plugins.x.usher]\n  a = 1";

    fn bare(text: &str) -> Bare {
        Bare {
            text: text.to_owned(),
            is_made: false,
        }
    }

    #[test]
    fn a_text_with_any_ending_is_restored_exactly() {
        for text in [
            "",
            "\n",
            "a = 1",
            "a = 1\n",
            "a = 1\r\nb = 2",
            "a = 1\r\nb = 2\r\n",
            "a = 1\nb = 2\r\n",
            "# <<< usher\n",
        ] {
            for is_made in [false, true] {
                let bare = Bare {
                    text: text.to_owned(),
                    is_made,
                };
                let with = with_ours(&bare, TABLES);
                assert!(with.contains(text), "{with:?}");
                assert_eq!(without_ours(&with), Ok(bare.clone()), "{with:?}");
                assert_eq!(tables(&with), TABLES, "{with:?}");
            }
        }
    }

    #[test]
    fn our_lines_have_the_files_line_endings() {
        let with = with_ours(&bare("a = 1\r\nb = 2"), TABLES);
        assert_eq!(with.matches('\n').count(), with.matches("\r\n").count());
    }

    #[test]
    fn lines_added_below_ours_stay_on_their_own_line() {
        let with = with_ours(&bare("a = 1"), TABLES) + "[debug]\n";
        assert_eq!(without_ours(&with), Ok(bare("a = 1\n[debug]\n")));
    }

    #[test]
    fn lines_of_an_earlier_installer_are_ours() {
        let text = "# made by scripts/install of usher\nversion = 2\n\
            # >>> usher: from here to its end written by its scripts/install\n[x]\n# <<< usher\n";
        let found = without_ours(text).unwrap();
        assert_eq!((&*found.text, found.is_made), ("version = 2\n", true));
    }

    #[test]
    fn a_table_from_another_author_is_not_ours() {
        let table = "[plugins.x.containerd.runtimes.usher]\n  a = 1\n";
        assert!(has_written(&with_ours(&bare("b = 2\n"), table)));
        assert!(has_written(&own_file(2, table)));
        assert!(!has_written(table));
        assert!(!has_written("b = 2\n"));
    }

    #[test]
    fn our_lines_name_the_directories_that_the_installer_made() {
        let made = ["/opt/a b".into(), "/opt/a b/bin".into()];
        let tables = with_directories(&made, TABLES);
        for text in [with_ours(&bare("a = 1\n"), &tables), own_file(2, &tables)] {
            assert_eq!(Vec::from_iter(directories(&text)), made, "{text}");
            assert!(text.parse::<toml::Table>().is_ok(), "{text}");
        }
        let odd = with_directories(&["/a\nb = 1".into()], TABLES);
        assert_eq!(odd, TABLES);
    }

    #[test]
    fn a_missing_last_line_of_ours_is_an_error() {
        let with = with_ours(&bare("a = 1\n"), TABLES);
        let cut = with.replace(LAST, "b = 2");
        assert_eq!(without_ours(&cut), Err(NoEnd { line: 2 }));
    }
}
