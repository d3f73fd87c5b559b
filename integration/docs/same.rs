//! Comparison of a page's output with a program's, tolerant of what differs between runs.
//!
//! 1. `…` on the page stands for anything: part of a line, or alone in a line for any number of
//!    lines.
//! 2. Any white space is equal to one space, so columns may have any width.
//! 3. All times are equal: `6.92s`, `4m53s`, `+3.8ms`, `1029.6`.
//! 4. All numbers from 300 on are equal: they are process ids. After its highest process id the
//!    kernel continues with 300, and no exit code is that high. Words of 16 or more hex digits are
//!    equal too: they are ids.
//! 5. All counts of failed probes are equal: `46 of 50 times`.
//! 6. A drawn timeline is compared by its marks and their order, without the lengths of states and
//!    the axis.
//!
//! Output that is the same in each run is compared by the first two rules only.

use std::sync::LazyLock;

use regex::Regex;

/// Patterns, and the words that replace them. They are applied in this order.
static RULES: LazyLock<[(Regex, &str); 6]> = LazyLock::new(|| {
    let regex = |text| Regex::new(text).expect("a regular expression");
    [
        (regex(r"\b[0-9a-f]{16,}\b"), "ID"),
        (
            regex(r"\+?\b(([0-9]+(\.[0-9]+)?(ns|µs|ms|s|m|h))+|[0-9]+\.[0-9]+)\b"),
            "TIME",
        ),
        (regex(r"\b([3-9][0-9]{2}|[0-9]{4,})\b"), "NUMBER"),
        (regex(r"\b[0-9]+ of ([0-9]+ times)"), "N of $1"),
        // The axis of a timeline, and the times below it.
        (regex(r"^ \+[-+]+$|^( 0| TIME)+$"), ""),
        (regex(r"\s+"), " "),
    ]
});

/// The rules that apply to the comparison of a block.
#[derive(Clone, Copy, PartialEq)]
pub enum Rules {
    /// Applies only rules 1 and 2, for output that is the same in each run.
    Exact,
    /// Applies all rules, for output that differs between runs.
    Live,
}

/// The text of a line in which the rules have replaced everything that may differ between runs.
fn bare(line: &str, rules: Rules) -> String {
    let space = &RULES[5];
    let mut text = space.0.replace_all(line.trim_end(), space.1).into_owned();
    if rules == Rules::Live {
        for (regex, name) in &RULES[..5] {
            text = regex.replace_all(&text, *name).into_owned();
        }
        text = marks(&text);
    }
    text.trim().to_owned()
}

/// A line without the characters that draw states in a timeline. The number of these characters
/// depends on the durations of the states. A line in which none of them is repeated is not from a
/// timeline, and stays unchanged.
fn marks(text: &str) -> String {
    const STATES: &str = ".~=-";
    let is_run = |sign: char| text.contains(&format!("{sign}{sign}"));
    match STATES.chars().any(is_run) {
        true => text.replace(|sign| STATES.contains(sign), ""),
        false => text.to_owned(),
    }
}

fn lines(text: &str, rules: Rules) -> Vec<String> {
    let all = text.lines().map(|line| bare(line, rules));
    all.filter(|line| !line.is_empty()).collect()
}

/// True if the program's output equals the output on the page.
pub fn is_same(page: &str, printed: &str, rules: Rules) -> bool {
    matches(&lines(page, rules), &lines(printed, rules))
}

/// True if all lines of the page occur in the program's output, in the same order.
pub fn is_said(page: &str, printed: &str) -> bool {
    let said = lines(printed, Rules::Live);
    let mut said = said.iter();
    let page = lines(page, Rules::Live);
    page.iter()
        .all(|line| said.any(|other| fits(&format!("…{line}…"), other)))
}

/// Does the same as `is_said` for a sentence, whose line breaks do not matter.
pub fn is_sentence(page: &str, printed: &str) -> bool {
    is_said(&page.replace('\n', " "), printed)
}

fn matches(page: &[String], printed: &[String]) -> bool {
    match page.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "…" => {
            (0..=printed.len()).any(|n| matches(rest, &printed[n..]))
        }
        Some((line, rest)) => match printed.split_first() {
            Some((other, others)) => fits(line, other) && matches(rest, others),
            None => false,
        },
    }
}

/// True if `other` fits the pattern `line`, in which `…` stands for any text.
fn fits(line: &str, other: &str) -> bool {
    let mut parts = line.split('…').map(str::trim);
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = other.strip_prefix(first) else {
        return false;
    };
    let mut is_open = false;
    for part in parts {
        is_open = true;
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    // The output has to end with the text that follows the last `…`.
    rest.is_empty() || (is_open && (line.ends_with('…') || other.ends_with(last(line))))
}

fn last(line: &str) -> &str {
    line.rsplit('…').next().unwrap_or_default().trim()
}

#[test]
fn only_values_that_differ_between_runs_are_tolerated() {
    let same = |page, printed| is_same(page, printed, Rules::Live);
    assert!(same("held for 6.92s, in 4m53s", "held  for 927ms, in 12s"));
    assert!(same("Shim process 14932", "Shim   process 2201\n"));
    assert!(same("Shim process 14932", "Shim process 327"));
    assert!(!same("Shim process 14932", "Shim process 255"));
    assert!(same("a … RUNNING\n…\nlast", "a b RUNNING\nx\ny\nlast"));
    assert!(same(
        "web app ....==v---o exit 0",
        "web   app  ==v--o    exit 0"
    ));
    assert!(same(
        " a R\n   +---+--\n   0   5s",
        " a R\n +-+-+\n 0 1s 2s"
    ));
    assert!(same("the end …", "the end of it"));
    assert!(same("46 of 50 times", "3 of 50 times"));
    assert!(!same("46 of 50 times", "46 of 60 times"));
    assert!(!same("held for 6.92s", "held for ever"));
    assert!(!same("exit code 143", "exit code 137"));
    assert!(!same("web app ..==v--o", "web app ..==v--X"));
    assert!(!same("a\nb", "a\nb\nc"));
    assert!(!same("a … c", "a b c d"));
    assert!(!is_same("at most 30s", "at most 20s", Rules::Exact));
    assert!(is_said("… not there", "ctr: it is not there at all"));
    assert!(is_sentence("one\ntwo", "one two"));
}
