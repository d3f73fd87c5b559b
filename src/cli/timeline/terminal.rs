//! The chart as text for a terminal.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};

use super::super::output::{BAD, BOLD, FAINT, styled};
use super::chart::{Chart, Kind, Row, State};

/// Characters to draw with.
pub(super) struct Glyphs {
    states: [char; 5],
    kinds: [char; 9],
    line: char,
    tick: char,
    cut: char,
}

impl Glyphs {
    /// Blocks and symbols, each one column wide.
    const UNICODE: Glyphs = Glyphs {
        states: ['\u{2591}', '\u{2592}', '\u{2588}', '\u{2593}', '\u{00b7}'],
        kinds: [
            '\u{25bd}', '\u{25c6}', '\u{25b6}', '\u{25b3}', '\u{25bc}', '\u{25cf}', '\u{2716}',
            '\u{25a0}', '\u{21af}',
        ],
        line: '\u{2500}',
        tick: '\u{252c}',
        cut: '\u{2571}',
    };

    const ASCII: Glyphs = Glyphs {
        states: ['.', '~', '=', '-', ':'],
        kinds: ['v', 'R', '>', '^', 'V', 'o', 'x', '!', 'X'],
        line: '-',
        tick: '+',
        cut: '/',
    };

    /// The glyphs that the locale supports.
    pub(super) fn for_locale() -> Glyphs {
        let names = ["LC_ALL", "LC_CTYPE", "LANG"];
        let mut values = names.into_iter().filter_map(std::env::var_os);
        let locale = values.find(|value| !value.is_empty()).unwrap_or_default();
        let locale = locale.to_string_lossy().to_lowercase();
        match locale.contains("utf-8") || locale.contains("utf8") {
            true => Glyphs::UNICODE,
            false => Glyphs::ASCII,
        }
    }

    fn state(&self, state: State) -> char {
        let at = State::ALL.iter().position(|other| *other == state);
        at.and_then(|at| self.states.get(at))
            .copied()
            .unwrap_or('?')
    }

    fn kind(&self, kind: Kind) -> char {
        let at = Kind::ALL.iter().position(|other| *other == kind);
        at.and_then(|at| self.kinds.get(at)).copied().unwrap_or('?')
    }
}

/// A character of a bar.
#[derive(Clone, Copy, PartialEq)]
struct Cell {
    glyph: char,
    style: Style,
}

const EMPTY: Cell = Cell {
    glyph: ' ',
    style: Style::new(),
};

/// The greatest width of the column of names.
const NAMES_AT_MOST: usize = 24;
const APART: usize = 2;

/// The width of a label on the axis.
const LABEL: usize = 9;

/// Draws the chart, `width` columns wide.
pub(super) fn draw(chart: &Chart, width: usize, glyphs: &Glyphs) -> String {
    let widest = |text: fn(&Row) -> usize| chart.rows.iter().map(text).max().unwrap_or_default();
    let names = widest(|row| row.name.chars().count()).min(NAMES_AT_MOST);
    let roles = widest(|row| row.role.chars().count());
    let ends = widest(|row| row.end.chars().count());
    let around = names
        .saturating_add(roles)
        .saturating_add(ends)
        .saturating_add(APART.saturating_mul(3));
    let bar = width.saturating_sub(around).max(10);
    let margin = names
        .saturating_add(roles)
        .saturating_add(APART.saturating_mul(2));
    let mut text = String::new();
    let _ = writeln!(text, "{}  {}\n", styled(BOLD, &chart.title), chart.status);
    for row in &chart.rows {
        let name = shorten(&row.name, names);
        let _ = write!(text, "{}  ", styled(BOLD, format!("{name:<names$}")));
        let _ = write!(text, "{}  ", styled(FAINT, format!("{:<roles$}", row.role)));
        text.push_str(&bar_of(chart, row, bar, glyphs));
        let end = match row.is_bad {
            true => styled(BAD, &row.end),
            false => styled(FAINT, &row.end),
        };
        let _ = writeln!(text, "  {end}");
    }
    text.push_str(&axis(chart, margin, bar, glyphs));
    let _ = writeln!(text);
    for line in legend(chart, width, glyphs) {
        let _ = writeln!(text, "{line}");
    }
    if chart.is_cut {
        let _ = writeln!(text, "{}", styled(FAINT, "older events were dropped"));
    }
    text
}

fn shorten(name: &str, width: usize) -> String {
    match name.chars().count() > width {
        true => {
            let start: String = name.chars().take(width.saturating_sub(2)).collect();
            format!("{start}..")
        }
        false => name.to_owned(),
    }
}

fn column(place: f64, width: usize) -> usize {
    let last = width.saturating_sub(1);
    ((place * width as f64).floor() as usize).min(last)
}

fn bar_of(chart: &Chart, row: &Row, width: usize, glyphs: &Glyphs) -> String {
    let mut cells = vec![EMPTY; width];
    for span in &row.spans {
        let from = column(chart.axis.place(span.from), width);
        let to = (chart.axis.place(span.to) * width as f64).round() as usize;
        // Even a very short bar has a visible width.
        let columns = to.saturating_sub(from).max(1);
        for cell in cells.iter_mut().skip(from).take(columns) {
            *cell = Cell {
                glyph: glyphs.state(span.state),
                style: style_of(span.state),
            };
        }
    }
    let mut marks: Vec<_> = row.marks.iter().collect();
    marks.sort_by_key(|mark| mark.kind);
    for mark in marks {
        if let Some(cell) = cells.get_mut(column(chart.axis.place(mark.at), width)) {
            *cell = Cell {
                glyph: glyphs.kind(mark.kind),
                style: style_of_mark(mark.kind),
            };
        }
    }
    paint(&cells)
}

/// Joins neighboring cells of the same style.
fn paint(cells: &[Cell]) -> String {
    let mut text = String::new();
    for run in cells.chunk_by(|one, other| one.style == other.style) {
        let glyphs: String = run.iter().map(|cell| cell.glyph).collect();
        let style = run.first().map_or(EMPTY.style, |cell| cell.style);
        text.push_str(&styled(style, glyphs));
    }
    text
}

fn style_of(state: State) -> Style {
    match state {
        State::Held => AnsiColor::BrightBlack.on_default(),
        State::Starting => AnsiColor::Yellow.on_default(),
        State::Running => AnsiColor::Green.on_default(),
        State::Stopping => AnsiColor::Magenta.on_default(),
        State::BackOff => AnsiColor::Red.on_default(),
    }
}

fn style_of_mark(kind: Kind) -> Style {
    match kind {
        Kind::Asked | Kind::Exit | Kind::Signal => Style::new().bold(),
        Kind::Ready | Kind::Again | Kind::Released => AnsiColor::BrightCyan.on_default().bold(),
        Kind::Failure | Kind::OutOfMemory | Kind::Kill => BAD,
    }
}

/// The axis with its ticks, and the labels below it.
fn axis(chart: &Chart, margin: usize, width: usize, glyphs: &Glyphs) -> String {
    let mut line = vec![glyphs.line; width];
    let mut labels = vec![' '; width.saturating_add(LABEL)];
    let apart = LABEL.saturating_add(2) as f64 / width as f64;
    let mut free = 0;
    for tick in chart.axis.ticks(apart) {
        let at = column(tick.place, width);
        if at < free {
            continue;
        }
        if let Some(cell) = line.get_mut(at) {
            *cell = glyphs.tick;
        }
        for (cell, letter) in labels.iter_mut().skip(at).zip(tick.text.chars()) {
            *cell = letter;
        }
        free = at
            .saturating_add(tick.text.chars().count())
            .saturating_add(1);
    }
    for cut in chart.axis.cuts() {
        let at = column(cut, width);
        for cell in line.iter_mut().skip(at).take(2) {
            *cell = glyphs.cut;
        }
    }
    let line: String = line.into_iter().collect();
    let labels: String = labels.into_iter().collect();
    let space = " ".repeat(margin);
    format!(
        "{space}{}\n{space}{}\n",
        styled(FAINT, line),
        styled(FAINT, labels.trim_end())
    )
}

/// The legend for the states and marks in the chart, in lines of at most `width` columns.
fn legend(chart: &Chart, width: usize, glyphs: &Glyphs) -> Vec<String> {
    let states = chart.states().into_iter().map(|state| {
        let glyph = glyphs.state(state).to_string().repeat(2);
        (styled(style_of(state), glyph), 2_usize, state.word())
    });
    let kinds = chart.kinds().into_iter().map(|kind| {
        let glyph = glyphs.kind(kind);
        (styled(style_of_mark(kind), glyph), 1, kind.word())
    });
    let cut = (!chart.axis.cuts().is_empty()).then(|| {
        let glyph = glyphs.cut.to_string().repeat(2);
        (styled(FAINT, glyph), 2, "a long time without events")
    });
    let mut lines: Vec<(String, usize)> = Vec::new();
    for (glyph, columns, word) in states.chain(kinds).chain(cut) {
        let entry = format!("{glyph} {word}");
        let length = columns
            .saturating_add(1)
            .saturating_add(word.chars().count());
        match lines.last_mut() {
            Some((line, used)) if used.saturating_add(length).saturating_add(3) <= width => {
                line.push_str("   ");
                line.push_str(&entry);
                *used = used.saturating_add(length).saturating_add(3);
            }
            _ => lines.push((entry, length)),
        }
    }
    lines.into_iter().map(|(line, _)| line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::chart::tests::pod;
    use super::*;

    fn plain(width: usize, glyphs: &Glyphs) -> String {
        let text = draw(&Chart::of(&pod(), 0.0), width, glyphs);
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn the_chart_has_the_given_width() {
        for width in [60, 80, 120, 200] {
            let text = plain(width, &Glyphs::UNICODE);
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= width, "{widest} of {width}:\n{text}");
            assert!(widest > width - 10, "{widest} of {width}:\n{text}");
        }
    }

    #[test]
    fn a_pod_is_drawn_without_unicode() {
        let expected = "\
default/shop  Stopped

pod              ~~~~~~~~~~~R===========v-----------------------------  Stopped
web     app      ...........============V------o                        exit 0
proxy   sidecar   ~~~~~~~~~~R============================V-----------o  exit 0
worker  app        .........============V----------------X              exit 137
                 +----------+-----------+----------+-----------+------
                 0          2s          4s         6s          8s
";
        let text = plain(80, &Glyphs::ASCII);
        let drawn: Vec<&str> = text.lines().take(8).collect();
        assert_eq!(drawn, expected.lines().collect::<Vec<_>>(), "\n{text}");
    }
}
