//! Output of the commands: text for people, JSON for scripts, colors for terminals.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tabled::builder::Builder;
use tabled::settings::object::Columns;
use tabled::settings::{Padding, Style as Borders};

use usher_core::text::with_causes;

/// Style of headings and names.
pub(super) const BOLD: Style = Style::new().bold();
/// Style of good states.
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
/// Style of states that need attention.
pub(super) const WARNING: Style = AnsiColor::Yellow.on_default();
/// Style of bad states.
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
/// Style of less important text.
pub(super) const FAINT: Style = Style::new().dimmed();

/// The reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The reader closed standard output.
    OutputClosed,
    /// Any other reason, as a sentence.
    Because(String),
    /// Invalid arguments, as a sentence.
    Usage(String),
}

/// Exit status if the reader has closed standard output: the status that a shell reports for a
/// program that SIGPIPE has ended.
const OUTPUT_CLOSED: u8 = 128 + 13;

/// Standard output. Drops styles if it is not a terminal, or if `NO_COLOR` is set.
pub struct Stdout {
    stream: AutoStream<Box<dyn Write>>,
}

/// The option `-o` with the formats `F`.
#[derive(Debug, Clone, Copy, Args)]
pub struct Output<F = Format>
where
    F: ValueEnum + Default + Send + Sync + 'static,
{
    /// The output format; JSON field names are stable
    #[arg(
        short = 'o',
        long = "output",
        value_name = "FORMAT",
        value_enum,
        default_value_t
    )]
    pub(super) format: F,
}

/// The formats of most commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Format {
    /// For people
    #[default]
    Text,
    /// For programs: one JSON document
    Json,
}

/// A table in kubectl's format.
pub(super) struct Table {
    /// The first row is the heading.
    rows: Vec<Vec<String>>,
}

/// Spaces between two columns.
const APART: usize = 3;

impl Failure {
    /// A failure with a message for the person who typed the command.
    pub fn because(why: impl Into<String>) -> Failure {
        Failure::Because(why.into())
    }

    /// Prints the reason to standard error, and returns the exit status.
    pub(super) fn report(self) -> ExitCode {
        match self {
            // A reader such as `head` may close the pipe early, so there is no error message.
            Failure::OutputClosed => ExitCode::from(OUTPUT_CLOSED),
            Failure::Because(why) => {
                complain(&why);
                ExitCode::FAILURE
            }
            Failure::Usage(why) => {
                complain(&why);
                ExitCode::from(2)
            }
        }
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::Because(sentence(&error))
    }
}

/// The text of an error, with its causes.
pub(super) fn sentence(error: &anyhow::Error) -> String {
    with_causes(error.as_ref())
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::BrokenPipe => Failure::OutputClosed,
            _ => Failure::Because(format!("cannot write the output: {error}")),
        }
    }
}

impl Stdout {
    pub(super) fn new() -> Stdout {
        let choice = AutoStream::choice(&io::stdout());
        Stdout {
            stream: AutoStream::new(Box::new(io::stdout()), choice),
        }
    }

    /// Standard output that is a pipe without a reader.
    #[cfg(test)]
    pub(super) fn closed() -> Stdout {
        let (_, writer) = io::pipe().expect("a pipe");
        Stdout {
            stream: AutoStream::never(Box::new(writer)),
        }
    }

    /// Writes text, which may be styled.
    pub(super) fn text(&mut self, text: impl Display) -> Result<(), Failure> {
        let text = text.to_string();
        Ok(self.stream.write_all(printable(&text).as_bytes())?)
    }

    /// Writes text without styles.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.stream.write_all(bytes)?)
    }

    pub(super) fn json(&mut self, facts: &impl Serialize) -> Result<(), Failure> {
        let mut document = serde_json::to_vec_pretty(facts)
            .map_err(|error| Failure::Because(format!("cannot encode the output: {error}")))?;
        document.push(b'\n');
        self.bytes(&document)
    }
}

impl Output {
    pub fn is_json(self) -> bool {
        self.format == Format::Json
    }
}

impl Table {
    pub(super) fn new<T: Display>(heading: impl IntoIterator<Item = T>) -> Table {
        let mut table = Table { rows: Vec::new() };
        table.row(heading.into_iter().map(|cell| styled(BOLD, cell)));
        table
    }

    /// Adds a row. Escapes line breaks in its cells, because further lines of a cell would not stay
    /// in its column. If a style spans a line break, papergrid 0.18 even reads beyond the end of a
    /// cell's text when it copies the cell (`Text::clone`).
    pub(super) fn row<T: Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        let on_one_line = |cell: T| printable(&cell.to_string()).replace('\n', r"\n");
        self.rows.push(cells.into_iter().map(on_one_line).collect());
    }

    /// Wraps the widest cells between words, so that the table fits into `width` columns of the
    /// terminal. A word that is too long can make the table wider.
    pub(super) fn within(mut self, width: Option<usize>) -> Table {
        let Some(width) = width else {
            return self;
        };
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let widest = |column: usize, measure: fn(&str) -> usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| measure(cell)).max().unwrap_or_default()
        };
        // For each column: the width of its widest cell, and the width of its longest word.
        let bounds = |column| (widest(column, columns_of), widest(column, longest_word));
        let mut widths: Vec<(usize, usize)> = (0..columns).map(bounds).collect();
        let between = APART.saturating_mul(columns.saturating_sub(1));
        let wide: usize = widths.iter().map(|(width, _)| width).sum();
        for _ in width..wide.saturating_add(between) {
            let shrinkable = widths.iter_mut().filter(|(width, least)| width > least);
            match shrinkable.max() {
                Some((width, _)) => *width = width.saturating_sub(1),
                None => break,
            }
        }
        let widths: Vec<usize> = widths.into_iter().map(|(width, _)| width).collect();
        self.rows = self
            .rows
            .iter()
            .flat_map(|row| lines(row, &widths))
            .collect();
        self
    }
}

/// The lines of a row. Its cells are wrapped to these widths.
fn lines(row: &[String], widths: &[usize]) -> Vec<Vec<String>> {
    let cells = row.iter().zip(widths).map(|(cell, width)| {
        let is_styled = cell.contains('\u{1b}');
        match is_styled {
            true => vec![cell.clone()],
            false => wrapped(cell, Some(*width), "")
                .lines()
                .map(str::to_owned)
                .collect(),
        }
    });
    let cells: Vec<Vec<String>> = cells.collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or_default().max(1);
    let line = |at: usize| {
        let parts = cells.iter();
        parts
            .map(|cell| cell.get(at).cloned().unwrap_or_default())
            .collect()
    };
    (0..height).map(line).collect()
}

/// The number of terminal columns that a text takes, without its styles.
fn columns_of(text: &str) -> usize {
    anstream::adapter::strip_str(text)
        .to_string()
        .chars()
        .count()
}

fn longest_word(text: &str) -> usize {
    text.split(' ').map(columns_of).max().unwrap_or_default()
}

/// Wraps a text between words to `width` columns, if given. Each line after the first begins with
/// `indent`. A word that is too long gets a line of its own. The text does not end with a line
/// break.
pub(super) fn wrapped(text: &str, width: Option<usize>, indent: &str) -> String {
    let Some(width) = width.filter(|width| text.chars().count() > *width) else {
        return text.to_owned();
    };
    let mut lines = String::new();
    let mut used = 0_usize;
    for word in text.split(' ') {
        let length = word.chars().count();
        match used {
            0 => {}
            _ if used.saturating_add(length) < width => {
                lines.push(' ');
                used = used.saturating_add(1);
            }
            _ => {
                lines.push('\n');
                lines.push_str(indent);
                used = indent.len();
            }
        }
        lines.push_str(word);
        used = used.saturating_add(length);
    }
    lines
}

/// The width of standard output in columns, if it is a terminal.
pub(super) fn terminal_width() -> Option<usize> {
    let (terminal_size::Width(columns), _) = terminal_size::terminal_size_of(io::stdout())?;
    Some(usize::from(columns))
}

impl Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut table = Builder::from_iter(&self.rows).build();
        table
            .with(Borders::empty())
            .with(Padding::new(0, APART, 0, 0))
            .modify(Columns::last(), Padding::zero());
        for line in table.to_string().lines() {
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Escapes all control characters except line breaks and styles. Names and messages come from
/// authors of pods and from the pods' programs, which must not control the terminal.
pub(super) fn printable(text: &str) -> Cow<'_, str> {
    let is_plain = |char: char| char == '\n' || !char.is_control();
    if text.chars().all(is_plain) {
        return Cow::Borrowed(text);
    }
    let mut printable = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(char) = rest.chars().next() {
        let (now, later) = rest.split_at(style(rest).unwrap_or(char.len_utf8()));
        match is_plain(char) || now.len() > 1 && char == '\u{1b}' {
            true => printable.push_str(now),
            false => printable.extend(char.escape_default()),
        }
        rest = later;
    }
    Cow::Owned(printable)
}

/// The length of the style at the beginning of a text: `ESC [`, numbers, `m`.
fn style(text: &str) -> Option<usize> {
    let numbers = text.strip_prefix("\u{1b}[")?;
    let rest = numbers.trim_start_matches(|char: char| char.is_ascii_digit() || char == ';');
    let rest = rest.strip_prefix('m')?;
    text.len().checked_sub(rest.len())
}

pub(super) fn styled(style: Style, what: impl Display) -> String {
    format!("{style}{what}{style:#}")
}

/// Prints an error to standard error.
pub fn complain(why: &str) {
    let why = printable(why);
    let _ = writeln!(anstream::stderr(), "{}: {why}", styled(BAD, "usher"));
}

/// Prints a warning to standard error.
pub fn warn(what: &str) {
    let what = printable(what);
    let _ = writeln!(anstream::stderr(), "{}: {what}", styled(WARNING, "warning"));
}

/// Prints a sentence that is neither an error nor a warning to standard error.
pub fn note(what: &str) {
    let _ = writeln!(anstream::stderr(), "{}", printable(what));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped_and_styles_are_kept() {
        for (text, expected) in [
            ("proxy\n", "proxy\n"),
            ("\u{1b}]0;title\u{7}", r"\u{1b}]0;title\u{7}"),
            ("a\u{1b}[2Jb", r"a\u{1b}[2Jb"),
            ("\u{9b}2J\r", r"\u{9b}2J\r"),
            ("\u{1b}[1", r"\u{1b}[1"),
        ] {
            assert_eq!(printable(text), expected);
        }
        let styled = styled(BAD, "web");
        assert_eq!(printable(&styled), styled);
        assert_eq!(printable(&format!("{styled}\t")), format!(r"{styled}\t"));
    }

    #[test]
    fn a_table_that_is_fitted_to_a_width_keeps_all_words() {
        let rows = [
            [
                "1",
                "migrate",
                "after proxy and logs; its Start waits for all of them",
            ],
            ["2", "a-long-name-of-a-container", "at once"],
        ];
        let table = |width: Option<usize>| {
            let mut table = Table::new(["STEP", "CONTAINER", "STARTS"]);
            rows.iter().for_each(|row| table.row(row));
            let text = table.within(width).to_string();
            anstream::adapter::strip_str(&text).to_string()
        };
        assert_eq!(table(None), table(Some(200)));
        let narrow = table(Some(60));
        assert!(
            narrow.lines().all(|line| line.chars().count() <= 60),
            "{narrow}"
        );
        let words = |text: &str| {
            let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            words.sort();
            words
        };
        assert_eq!(words(&narrow), words(&table(None)));
        assert!(narrow.lines().count() > 3, "{narrow}");
    }

    #[test]
    fn a_sentence_is_wrapped_between_words() {
        let sentence = "pod: it is held until its proxy has started";
        assert_eq!(wrapped(sentence, None, "  "), sentence);
        assert_eq!(wrapped(sentence, Some(100), "  "), sentence);
        let expected = "pod: it is held until\n  its proxy has\n  started";
        assert_eq!(wrapped(sentence, Some(22), "  "), expected);
        assert_eq!(
            wrapped("incomprehensibilities a", Some(5), ""),
            "incomprehensibilities\na"
        );
    }

    #[test]
    fn a_line_break_in_a_cell_is_escaped() {
        let mut table = Table::new(["NAME", "STATE"]);
        table.row([styled(BAD, "web\n\u{6}hk"), "a\nb".to_owned()]);
        let text = anstream::adapter::strip_str(&table.to_string()).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, ["NAME           STATE", r"web\n\u{6}hk   a\nb"]);
    }
}
