//! The chart as an SVG picture.

use svg::Document;
use svg::node::element::{Group, Line, Path, Rectangle, Style, Text, Title};

use super::chart::{Chart, Kind, Mark, Row};

// All lengths are in pixels of the unscaled picture.
const WIDTH: f64 = 1200.0;
const LEFT: f64 = 190.0;
/// The least width of the last column. If the column is wider, the bars are shorter.
const RIGHT: f64 = 120.0;
const BESIDE: f64 = 18.0;
/// The greatest width of a character in bold.
const BOLD_CHARACTER: f64 = 7.6;
const TOP: f64 = 74.0;
const ROW: f64 = 38.0;
const BAR: f64 = 18.0;
const BELOW: f64 = 84.0;
const LEGEND_STEP: f64 = 24.0;
/// The mean width of a character.
const CHARACTER: f64 = 7.4;
const LABEL_MARGIN: f64 = 10.0;

/// Colors for a white background, which people with color blindness can tell apart, also in print.
/// If the viewer prefers a dark scheme, darker colors apply.
const STYLE: &str = "
text { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif; fill: #24292f }
.page { fill: #ffffff } .title { font-size: 19px; font-weight: 600 } .faint { fill: #6e7781 }
.name { font-weight: 600 } .bad { fill: #cf222e; font-weight: 600 } .stripe { fill: #f6f8fa }
.grid { stroke: #d0d7de } .cut { stroke: #8c959f; stroke-dasharray: 3 3 }
.held { fill: #d8dee4 } .starting { fill: #f2c14e } .running { fill: #4aa564 }
.stopping { fill: #9a7fd1 } .back-off { fill: #f0b3ae }
.mark { stroke: #ffffff; stroke-width: 1.5; paint-order: stroke } .m-ready { fill: #0a6bb5 }
.m-signal { fill: #24292f } .m-exit { fill: #24292f } .m-failure { fill: #cf222e } .m-kill { fill: #cf222e }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .page { fill: #0d1117 } .faint { fill: #8d96a0 } .stripe { fill: #161b22 }
  .grid { stroke: #30363d } .held { fill: #424a53 } .mark { stroke: #0d1117 } .m-ready { fill: #58a6ff }
  .m-signal, .m-exit { fill: #e6edf3 } .bad { fill: #ff7b72 } .m-failure, .m-kill { fill: #ff7b72 }
}";

/// The chart as the text of an SVG file.
pub(super) fn draw(chart: &Chart) -> String {
    let rows = chart.rows.len() as f64;
    let bottom = TOP + rows * ROW;
    let legend = legend(chart, bottom + BELOW - 26.0);
    let height = bottom + BELOW + legend.1;
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("width", WIDTH)
        .set("height", height)
        .set("role", "img")
        .add(Title::new(chart.title.as_str()))
        .add(Style::new(STYLE))
        .add(rectangle(0.0, 0.0, WIDTH, height).set("class", "page"))
        .add(text(24.0, 36.0, &chart.title).set("class", "title"))
        .add(
            text(WIDTH - 24.0, 36.0, &chart.status)
                .set("class", "faint")
                .set("text-anchor", "end"),
        );
    for index in (0..chart.rows.len()).step_by(2) {
        let stripe = rectangle(0.0, TOP + index as f64 * ROW, WIDTH, ROW);
        document = document.add(stripe.set("class", "stripe"));
    }
    document = document.add(axis(chart, bottom));
    for (index, row) in chart.rows.iter().enumerate() {
        document = document.add(draw_row(chart, row, TOP + index as f64 * ROW));
    }
    document
        .add(legend.0)
        .to_string()
        .replace(is_no_xml, "\u{fffd}")
}

/// True for characters that XML forbids even if they are escaped (XML 1.0, section 2.2). The svg
/// crate escapes all other characters that need it.
fn is_no_xml(char: char) -> bool {
    char.is_control() && char != '\n' || matches!(char, '\u{fffe}' | '\u{ffff}')
}

fn x(chart: &Chart, at: f64) -> f64 {
    LEFT + chart.axis.place(at) * (WIDTH - LEFT - right(chart))
}

/// The width of the last column, which shows the final state of each row.
fn right(chart: &Chart) -> f64 {
    let ends = chart.rows.iter().map(|row| row.end.chars().count());
    let widest = ends.max().unwrap_or_default() as f64;
    (BESIDE + BOLD_CHARACTER * widest).max(RIGHT)
}

fn rectangle(x: f64, y: f64, width: f64, height: f64) -> Rectangle {
    Rectangle::new()
        .set("x", round(x))
        .set("y", round(y))
        .set("width", round(width))
        .set("height", round(height))
}

fn text(x: f64, y: f64, what: &str) -> Text {
    Text::new(what).set("x", round(x)).set("y", round(y))
}

/// Rounds to a tenth of a pixel.
fn round(pixels: f64) -> f64 {
    (pixels * 10.0).round() / 10.0
}

fn axis(chart: &Chart, bottom: f64) -> Group {
    let width = WIDTH - LEFT - right(chart);
    let mut group = Group::new();
    for tick in chart.axis.ticks(0.09) {
        let at = LEFT + tick.place * width;
        group = group
            .add(vertical(at, TOP - 6.0, bottom + 4.0).set("class", "grid"))
            .add(
                text(at, bottom + 22.0, &tick.text)
                    .set("class", "faint")
                    .set("text-anchor", "middle"),
            );
    }
    for cut in chart.axis.cuts() {
        let at = LEFT + cut * width;
        for beside in [-3.0, 3.0] {
            let line = vertical(at + beside, TOP - 6.0, bottom + 4.0);
            group = group.add(line.set("class", "cut"));
        }
    }
    group
}

fn vertical(x: f64, from: f64, to: f64) -> Line {
    Line::new()
        .set("x1", round(x))
        .set("x2", round(x))
        .set("y1", round(from))
        .set("y2", round(to))
}

fn draw_row(chart: &Chart, row: &Row, top: f64) -> Group {
    let middle = top + ROW / 2.0;
    let name: String = row.name.chars().take(20).collect();
    let mut group = Group::new()
        .add(text(24.0, middle + 4.5, &name).set("class", "name"))
        .add(
            text(LEFT - 14.0, middle + 4.5, &row.role)
                .set("class", "faint")
                .set("text-anchor", "end"),
        )
        .add(
            text(WIDTH - right(chart) + BESIDE, middle + 4.5, &row.end).set(
                "class",
                match row.is_bad {
                    true => "bad",
                    false => "faint",
                },
            ),
        );
    for span in &row.spans {
        let (from, to) = (x(chart, span.from), x(chart, span.to));
        let (title, took) = (span.state.word(), span.to - span.from);
        let title = format!(
            "{}: {title} for {}",
            row.name,
            super::super::time::span(took)
        );
        // Even a very short bar has a visible width.
        let bar = rectangle(from, middle - BAR / 2.0, (to - from).max(1.5), BAR);
        let bar = bar.set("class", span.state.word()).set("rx", 2.5);
        group = group.add(bar.add(Title::new(title)));
        if let Some((name, part)) = chart.opener(row, span) {
            let label = format!("held until {name} {part}");
            let fits = CHARACTER * label.chars().count() as f64 + 2.0 * LABEL_MARGIN <= to - from;
            if fits {
                group = group.add(text(from + LABEL_MARGIN, middle + 4.5, &label));
            }
        }
    }
    let mut marks: Vec<_> = row.marks.iter().collect();
    marks.sort_by_key(|mark| mark.kind);
    for mark in marks {
        group = group.add(draw_mark(x(chart, mark.at), middle, row, mark));
    }
    group
}

fn draw_mark(x: f64, y: f64, row: &Row, mark: &Mark) -> Path {
    let title = Title::new(format!("{}: {}", row.name, mark.text));
    shape(x, y, mark.kind).add(title)
}

/// The shape of a mark: signals come from above, exits are round, kills are crosses.
fn shape(x: f64, y: f64, kind: Kind) -> Path {
    let (path, class) = match kind {
        Kind::Asked => ("m-6,-14 h12 l-6,8 z", "m-exit"),
        Kind::Signal => ("m-6,-15 h12 l-6,12 z", "m-signal"),
        Kind::Ready => ("m0,-8 l8,8 l-8,8 l-8,-8 z", "m-ready"),
        Kind::Again => ("m-7,-7 l14,7 l-14,7 z", "m-ready"),
        Kind::Released => ("m-7,14 h14 l-7,-12 z", "m-ready"),
        Kind::Exit => (
            "m-5.5,0 a5.5,5.5 0 1,0 11,0 a5.5,5.5 0 1,0 -11,0 z",
            "m-exit",
        ),
        Kind::OutOfMemory => ("m-6,-6 h12 v12 h-12 z", "m-kill"),
        Kind::Failure => (
            "m-5.5,0 a5.5,5.5 0 1,0 11,0 a5.5,5.5 0 1,0 -11,0 z",
            "m-failure",
        ),
        Kind::Kill => (
            "m-8,-5 l3,-3 l5,5 l5,-5 l3,3 l-5,5 l5,5 l-3,3 l-5,-5 l-5,5 l-3,-3 l5,-5 z",
            "m-kill",
        ),
    };
    Path::new()
        .set("d", format!("M{},{} {path}", round(x), round(y)))
        .set("class", format!("mark {class}"))
}

/// The vertical shift of a mark in the legend, for marks that stand above or below their bar.
fn lift(kind: Kind) -> f64 {
    match kind {
        Kind::Asked => 10.0,
        Kind::Signal => 9.0,
        Kind::Released => -8.0,
        _ => 0.0,
    }
}

/// Draws the legend for the states and marks in the chart, from `top` down. Also returns the
/// distance from the legend's first line to its last line.
fn legend(chart: &Chart, top: f64) -> (Group, f64) {
    let mut group = Group::new();
    let (mut x, mut y) = (24.0, top);
    let mut advance = |word: &str| {
        let width = 27.0 + CHARACTER * word.len() as f64;
        if x + width > WIDTH - 24.0 {
            (x, y) = (24.0, y + LEGEND_STEP);
        }
        let at = (x, y);
        x += width + 20.0;
        at
    };
    let mut last = top;
    for state in chart.states() {
        let (x, y) = advance(state.word());
        last = y;
        let bar = rectangle(x, y - 9.0, 20.0, 12.0);
        group = group
            .add(bar.set("class", state.word()).set("rx", 2.5))
            .add(text(x + 27.0, y + 2.0, state.word()).set("class", "faint"));
    }
    for kind in chart.kinds() {
        let (x, y) = advance(kind.word());
        last = y;
        group = group
            .add(shape(x + 12.0, y - 3.0 + lift(kind), kind))
            .add(text(x + 27.0, y + 2.0, kind.word()).set("class", "faint"));
    }
    (group, last - top)
}

#[cfg(test)]
mod tests {
    use super::super::chart::State;
    use super::super::chart::tests::pod;
    use super::*;

    #[test]
    fn a_picture_has_a_bar_for_each_span_and_a_shape_for_each_mark() {
        let chart = Chart::of(&pod(), 0.0);
        let picture = draw(&chart);
        for state in [
            State::Held,
            State::Starting,
            State::Running,
            State::Stopping,
        ] {
            let bars = chart.rows.iter().flat_map(|row| &row.spans);
            let bars = bars.filter(|span| span.state == state).count();
            let class = format!("class=\"{}\"", state.word());
            // The legend uses the class, too, so there is one match more than bars.
            assert_eq!(picture.matches(&class).count(), bars + 1, "{class}");
        }
        assert!(picture.contains("worker: killed: the grace period was over"));
        assert!(picture.contains("default/shop"));
    }

    #[test]
    fn an_exit_with_two_codes_fits_beside_the_bars() {
        let mut pod = pod();
        let plain = right(&Chart::of(&pod, 0.0));
        assert_eq!(plain, RIGHT);
        pod.containers[0].exit_code = Some(137);
        pod.containers[0].reported_code = Some(143);
        let chart = Chart::of(&pod, 0.0);
        assert!(right(&chart) > RIGHT, "{}", right(&chart));
        assert!(draw(&chart).contains("exit 137, reported as 143"));
    }

    #[test]
    fn a_held_bar_has_a_label_if_it_is_wide_enough() {
        let labels = |seconds: i64| {
            let mut pod = pod();
            pod.ended.as_mut().unwrap().seconds += seconds;
            let ended = pod.ended.clone();
            pod.events.last_mut().unwrap().at = ended;
            let picture = draw(&Chart::of(&pod, 0.0));
            picture.matches("held until proxy is ready").count()
        };
        // In a pod of 7 s, the bar of `web` has room for the label. The bar of `worker` is shorter,
        // and has no room.
        assert_eq!(labels(-2), 1);
        assert_eq!(labels(60), 0);
    }

    #[test]
    fn names_from_outside_stay_text() {
        let mut pod = pod();
        pod.name = "<script>&\"".to_owned();
        for container in &mut pod.containers {
            container.name = "<b>".to_owned();
        }
        pod.namespace = "\u{1b}]0;\u{ffff}".to_owned();
        let picture = draw(&Chart::of(&pod, 0.0));
        assert!(!picture.contains(is_no_xml), "{picture}");
        assert!(!picture.contains("<script>"), "{picture}");
        assert!(!picture.contains("<b>"), "{picture}");
    }
}
