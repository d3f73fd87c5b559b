//! What a command says, and how: text for people, JSON for scripts, colours for terminals.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tabled::builder::Builder;
use tabled::settings::object::Columns;
use tabled::settings::{Padding, Style as Borders};

/// Headings, names: what the eye looks for.
pub(super) const BOLD: Style = Style::new().bold();
/// What is as it should be.
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
/// What needs looking at.
pub(super) const WARNING: Style = AnsiColor::Yellow.on_default();
/// What is wrong.
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
/// What is there for completeness.
pub(super) const FAINT: Style = Style::new().dimmed();

/// Why a command could not do what it was asked to.
#[derive(Debug)]
pub enum Failure {
    /// Standard output has been closed by whoever reads it.
    NobodyReads,
    /// One sentence.
    Because(String),
    /// Arguments that make no sense: one sentence.
    Senseless(String),
}

/// Standard output. Styles are left out where it is no terminal, and under `NO_COLOR`.
pub struct Stdout {
    stream: AutoStream<Box<dyn Write>>,
}

/// For commands that print facts, in one of the formats `F`.
#[derive(Debug, Clone, Copy, Args)]
pub struct Output<F = Format>
where
    F: ValueEnum + Default + Send + Sync + 'static,
{
    /// How facts are printed; the names of JSON's fields do not change
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

/// Rows under a heading, as kubectl prints them.
pub(super) struct Table {
    /// The first one is the heading.
    rows: Vec<Vec<String>>,
}

/// Blanks between two columns.
const APART: usize = 3;

// === impl Failure ===

impl Failure {
    pub fn because(why: impl Into<String>) -> Failure {
        Failure::Because(why.into())
    }
}

impl From<io::Error> for Failure {
    /// An error in writing the answer.
    fn from(error: io::Error) -> Failure {
        match error.kind() {
            ErrorKind::BrokenPipe => Failure::NobodyReads,
            _ => Failure::Because(format!("the answer cannot be written: {error}")),
        }
    }
}

// === impl Stdout ===

impl Stdout {
    pub(super) fn new() -> Stdout {
        let choice = AutoStream::choice(&io::stdout());
        Stdout {
            stream: AutoStream::new(Box::new(io::stdout()), choice),
        }
    }

    /// Text, which may be styled.
    pub(super) fn text(&mut self, text: impl Display) -> Result<(), Failure> {
        let text = text.to_string();
        Ok(self.stream.write_all(printable(&text).as_bytes())?)
    }

    /// Text without styles.
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        Ok(self.stream.write_all(bytes)?)
    }

    /// One JSON document.
    pub(super) fn json(&mut self, facts: &impl Serialize) -> Result<(), Failure> {
        let mut document = serde_json::to_vec_pretty(facts)
            .map_err(|error| Failure::Because(format!("the answer cannot be encoded: {error}")))?;
        document.push(b'\n');
        self.bytes(&document)
    }
}

// === impl Output ===

impl Output {
    pub fn is_json(self) -> bool {
        self.format == Format::Json
    }
}

// === impl Table ===

impl Table {
    pub(super) fn new<T: Display>(heading: impl IntoIterator<Item = T>) -> Table {
        let mut table = Table { rows: Vec::new() };
        table.row(heading.into_iter().map(|cell| styled(BOLD, cell)));
        table
    }

    /// A row of cells, each of one line whatever is in it: lines of its own would be out of their
    /// column, and the crate reads beyond the end of such a cell when it is copied (papergrid 0.18,
    /// `Text::clone`, where a style goes over the end of a line).
    pub(super) fn row<T: Display>(&mut self, cells: impl IntoIterator<Item = T>) {
        let on_one_line = |cell: T| printable(&cell.to_string()).replace('\n', r"\n");
        self.rows.push(cells.into_iter().map(on_one_line).collect());
    }

    /// The table, as far as possible in at most so many columns of the terminal: words of the widest cells
    /// continue in the lines below.
    pub(super) fn within(mut self, width: Option<usize>) -> Table {
        let Some(width) = width else {
            return self;
        };
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let widest = |column: usize, measure: fn(&str) -> usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| measure(cell)).max().unwrap_or_default()
        };
        // Of each column, how wide it is and how narrow it can be.
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

/// The lines of a row whose cells have these widths at most.
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

/// How many columns of a terminal a text takes, its styles aside.
fn columns_of(text: &str) -> usize {
    anstream::adapter::strip_str(text)
        .to_string()
        .chars()
        .count()
}

fn longest_word(text: &str) -> usize {
    text.split(' ').map(columns_of).max().unwrap_or_default()
}

/// The text in lines of at most so many columns, if there is a bound: broken between words, and without a line
/// break at its end. Lines after the first begin with `indent`; a longer word has a line of its own.
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

/// The columns of the terminal that standard output is, if it is one.
pub(super) fn terminal_width() -> Option<usize> {
    let (terminal_size::Width(columns), _) = terminal_size::terminal_size_of(io::stdout())?;
    Some(usize::from(columns))
}

/// With a line break after each row.
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

/// Text of which a terminal makes nothing but letters and colours: names and messages come from those
/// who write pods, and from what runs in them. What else there is of control characters is shown.
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

/// The length of the style that a text begins with: `ESC [`, numbers, `m`.
fn style(text: &str) -> Option<usize> {
    let numbers = text.strip_prefix("\u{1b}[")?;
    let rest = numbers.trim_start_matches(|char: char| char.is_ascii_digit() || char == ';');
    let rest = rest.strip_prefix('m')?;
    text.len().checked_sub(rest.len())
}

/// `what` in a style.
pub(super) fn styled(style: Style, what: impl Display) -> String {
    format!("{style}{what}{style:#}")
}

/// One sentence on standard error: why the command failed.
pub fn complain(why: &str) {
    let why = printable(why);
    let _ = writeln!(anstream::stderr(), "{}: {why}", styled(BAD, "usher"));
}

/// One sentence on standard error: what does not stop the command, but should be known.
pub fn warn(what: &str) {
    let what = printable(what);
    let _ = writeln!(anstream::stderr(), "{}: {what}", styled(WARNING, "warning"));
}

/// One sentence on standard error that is neither.
pub fn note(what: &str) {
    let _ = writeln!(anstream::stderr(), "{}", printable(what));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_others_moves_the_cursor_or_names_the_window() {
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
    fn a_table_fits_a_width_and_says_the_same() {
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
    fn a_sentence_is_broken_between_words() {
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
    fn a_cell_stays_on_its_line() {
        let mut table = Table::new(["NAME", "STATE"]);
        table.row([styled(BAD, "web\n\u{6}hk"), "a\nb".to_owned()]);
        let text = anstream::adapter::strip_str(&table.to_string()).to_string();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines, ["NAME           STATE", r"web\n\u{6}hk   a\nb"]);
    }
}
