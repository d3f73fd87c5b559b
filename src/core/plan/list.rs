//! Lists of container names.

use std::collections::BTreeSet;

use super::error::{Problem, quote};
use super::pattern::Pattern;

pub(crate) const MAX_NAME_CHARS: usize = 253;

/// Maximum number of names in a list, and of containers with settings. A pod has far fewer
/// containers. The number is small enough for the memory of a shim.
pub(crate) const MAX_NAMES: usize = 256;

/// The description of a container name, for error messages.
pub(super) const CONTAINER_NAME: &str =
    "a name of 1 to 253 letters, digits, '.', '_' and '-', beginning with a letter or a digit";

/// The suffix of an optional container's name.
const OPTIONAL: char = '?';

/// The names of a list, in their order.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    pub(super) all: Vec<String>,
    pub(super) optional: BTreeSet<String>,
}

/// True if `name` can be the name of a container. Kubernetes' DNS labels allow fewer names, but a
/// container made with `ctr` has its id as its name.
pub(crate) fn is_container_name(name: &str) -> bool {
    name.len() <= MAX_NAME_CHARS
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// The words of a list as written, separated by commas or white space.
///
/// # Errors
///
/// An empty list, or an empty name.
pub(crate) fn words(value: &str) -> Result<Vec<&str>, Problem> {
    items(value, "container name")
}

/// The items of a list, separated by commas or white space. `kind` is the word for an item in error
/// messages.
///
/// # Errors
///
/// An empty list, or an empty item.
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

/// The name in a word, and true if the word marks the name as optional (`NAME?`).
pub(crate) fn without_mark(word: &str) -> (&str, bool) {
    match word.strip_suffix(OPTIONAL) {
        Some(name) => (name, true),
        None => (word, false),
    }
}

/// True if one name may be a misspelling of the other: one letter is wrong, missing or added, or
/// two neighboring letters are swapped. If at least six other letters agree, two neighboring
/// letters may be wrong, missing or added. False for equal names, and for very short ones.
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

/// Reads names separated by commas or white space, in their order. A name may end in `?` if
/// `may_be_optional` is true.
///
/// # Errors
///
/// An empty list, more than [`MAX_NAMES`], an empty or invalid name, or a duplicate.
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
