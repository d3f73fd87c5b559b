//! Lists of container names.

use std::collections::BTreeSet;

use super::error::{Problem, quote};

/// The longest container name, in characters.
const MAX_NAME_CHARS: usize = 253;

/// As many containers as a list may name, and as may have settings of their own: many times what
/// fits into a pod, and little for a shim.
pub(super) const MAX_NAMES: usize = 256;

/// What a container name is, for sentences.
pub(super) const CONTAINER_NAME: &str =
    "a name of 1 to 253 letters, digits, '.', '_' and '-', beginning with a letter or a digit";

/// Whether `name` can be a container's: wider than Kubernetes' DNS labels, since a container that
/// was made with `ctr` goes by its id.
pub(super) fn is_container_name(name: &str) -> bool {
    name.len() <= MAX_NAME_CHARS
        && name.starts_with(|first: char| first.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// Reads names that are separated by commas or white space, in their order.
///
/// # Errors
///
/// An empty list, more than [`MAX_NAMES`], an empty name, something that cannot be a name, a name that stands there twice.
pub(super) fn parse(value: &str) -> Result<Vec<String>, Problem> {
    if value.trim().is_empty() {
        return Err(Problem::new(
            "lists nothing; expected at least one container name",
        ));
    }
    let mut names = Vec::new();
    let mut seen = BTreeSet::new();
    for part in value.split(',') {
        if part.trim().is_empty() {
            return Err(Problem::new(
                "has an empty name; expected container names separated by commas or white space",
            ));
        }
        for name in part.split_whitespace() {
            if !is_container_name(name) {
                let name = quote(name);
                return Err(Problem::new(format!(
                    "lists {name}; expected {CONTAINER_NAME}"
                )));
            }
            if !seen.insert(name) {
                let name = quote(name);
                return Err(Problem::new(format!(
                    "lists {name} twice; expected each name once"
                )));
            }
            if names.len() == MAX_NAMES {
                return Err(Problem::new(format!(
                    "lists more than {MAX_NAMES} names; expected at most {MAX_NAMES}"
                )));
            }
            names.push(name.to_owned());
        }
    }
    Ok(names)
}
