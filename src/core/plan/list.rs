//! Lists of container names.

use std::collections::BTreeSet;

use super::error::{Problem, quote};
use super::pattern::Pattern;

/// The longest container name, in characters.
pub(crate) const MAX_NAME_CHARS: usize = 253;

/// As many containers as a list may name, and as may have settings of their own: many times what
/// fits into a pod, and little for a shim.
pub(crate) const MAX_NAMES: usize = 256;

/// What a container name is, for sentences.
pub(super) const CONTAINER_NAME: &str =
    "a name of 1 to 253 letters, digits, '.', '_' and '-', beginning with a letter or a digit";

/// What follows the name of a container that may never come.
const OPTIONAL: char = '?';

/// The names of a list, in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    pub(super) all: Vec<String>,
    /// Those of them that may never come.
    pub(super) optional: BTreeSet<String>,
}

/// Whether `name` can be a container's: wider than Kubernetes' DNS labels, since a container that
/// was made with `ctr` goes by its id.
pub(crate) fn is_container_name(name: &str) -> bool {
    name.len() <= MAX_NAME_CHARS
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// The words of a list, as they were written: separated by commas or white space.
///
/// # Errors
///
/// An empty list, an empty name.
pub(crate) fn words(value: &str) -> Result<Vec<&str>, Problem> {
    items(value, "container name")
}

/// The items of a list, each of which is a `kind`, separated by commas or white space.
///
/// # Errors
///
/// An empty list, an empty item.
pub(super) fn items<'a>(value: &'a str, kind: &str) -> Result<Vec<&'a str>, Problem> {
    if value.trim().is_empty() {
        return Err(Problem::new(format!(
            "lists nothing; expected at least one {kind}"
        )));
    }
    let mut words = Vec::new();
    for part in value.split(',') {
        if part.trim().is_empty() {
            return Err(Problem::new(format!(
                "has an empty {kind}; expected {kind}s separated by commas or white space"
            )));
        }
        words.extend(part.split_whitespace());
    }
    Ok(words)
}

/// A word without what makes it optional, and whether it was there.
pub(crate) fn without_mark(word: &str) -> (&str, bool) {
    match word.strip_suffix(OPTIONAL) {
        Some(name) => (name, true),
        None => (word, false),
    }
}

/// True if two different names may be one of them misspelt: a letter is wrong, missing or too many, or two are
/// swapped; in a long name also two letters.
pub(crate) fn is_near(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let same = |(one, other): &(&u8, &u8)| one == other;
    let before = one.iter().zip(other).take_while(same).count();
    let (one, other) = (rest(one, before), rest(other, before));
    let backwards = one.iter().rev().zip(other.iter().rev());
    let after = backwards.take_while(same).count();
    let (one, other) = (but_last(one, after), but_last(other, after));
    let common = before.saturating_add(after);
    match (one, other) {
        ([], []) => false,
        ([_] | [], [_] | []) => common >= 2,
        ([a, b], [c, d]) if (a, b) == (d, c) => common >= 1,
        (one, other) => one.len() <= 2 && other.len() <= 2 && common >= 6,
    }
}

fn rest(bytes: &[u8], from: usize) -> &[u8] {
    bytes.get(from..).unwrap_or_default()
}

fn but_last(bytes: &[u8], count: usize) -> &[u8] {
    let end = bytes.len().saturating_sub(count);
    bytes.get(..end).unwrap_or_default()
}

/// Reads names that are separated by commas or white space, in their order. `may_be_optional` says
/// whether they may end in `?`.
///
/// # Errors
///
/// An empty list, more than [`MAX_NAMES`], an empty name, something that cannot be a name, a name that stands there twice.
pub(super) fn parse(value: &str, may_be_optional: bool) -> Result<Names, Problem> {
    let mut names = Names::default();
    let mut seen = BTreeSet::new();
    for word in words(value)? {
        let (name, is_optional) = without_mark(word);
        if !is_container_name(name) {
            let word = quote(word);
            return Err(Problem::new(match Pattern::is_one(name) {
                true => format!(
                    "lists {word}, a pattern, which only usher-webhook makes names of; expected \
                     {CONTAINER_NAME}"
                ),
                false => format!("lists {word}; expected {CONTAINER_NAME}"),
            }));
        }
        if is_optional && !may_be_optional {
            let word = quote(word);
            return Err(Problem::new(format!(
                "lists {word}; expected it without {OPTIONAL}, which stands in lists of sidecars, init \
                 and defer containers alone"
            )));
        }
        if !seen.insert(name) {
            let name = quote(name);
            return Err(Problem::new(format!(
                "lists {name} twice; expected each name once"
            )));
        }
        if names.all.len() == MAX_NAMES {
            return Err(Problem::new(format!(
                "lists more than {MAX_NAMES} names; expected at most {MAX_NAMES}"
            )));
        }
        if is_optional {
            names.optional.insert(name.to_owned());
        }
        names.all.push(name.to_owned());
    }
    Ok(names)
}
