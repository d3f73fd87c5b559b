//! Patterns of container names, for those who know a pod's containers or see them come.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::quote;
use super::list::{MAX_NAME_CHARS, MAX_NAMES, is_container_name};

/// A container name in which each `*` stands for any part of it, or for nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pattern(String);

/// What a node's administrator says of containers that others put into pods.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Roles {
    sidecars: Vec<Pattern>,
    /// In pods without annotations, too.
    everywhere: bool,
}

const EXPECTED: &str = "a name of a container, in which * may stand for a part of it";

// === impl Pattern ===

impl Pattern {
    /// # Errors
    ///
    /// The predicate of a sentence, if it can be no name, or is one that says nothing of it.
    pub fn new(text: &str) -> Result<Pattern, String> {
        let is_name = |part: &str| {
            part.chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
        };
        let mut parts = text.split('*');
        let is_any = text.chars().all(|c| c == '*');
        let begins_well =
            text.starts_with('*') || text.starts_with(|c: char| c.is_ascii_alphanumeric());
        match text.len() <= MAX_NAME_CHARS && !is_any && begins_well && parts.all(is_name) {
            true => Ok(Pattern(text.to_owned())),
            false => Err(format!("is no pattern; expected {EXPECTED}")),
        }
    }

    /// Whether a text is meant for a pattern.
    pub fn is_one(text: &str) -> bool {
        text.contains('*')
    }

    /// Whether a container may be called so.
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else {
            return false;
        };
        let Some(last) = parts.next_back() else {
            return rest.is_empty();
        };
        for part in parts {
            match rest.split_once(part) {
                Some((_, behind)) => rest = behind,
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

// === impl Roles ===

impl Roles {
    /// Roles by names and patterns of them.
    ///
    /// # Errors
    ///
    /// One sentence: something that is no pattern, one that stands there twice, too many of them.
    ///
    /// ```
    /// use usher_core::plan::Roles;
    ///
    /// let roles = Roles::new(["istio-proxy", "*-exporter"], false).unwrap();
    /// assert!(roles.is_sidecar("node-exporter"));
    /// assert!(!roles.is_sidecar("exporter"));
    /// assert!(Roles::new(["a b"], false).is_err());
    /// ```
    pub fn new<T: AsRef<str>>(
        sidecars: impl IntoIterator<Item = T>,
        everywhere: bool,
    ) -> Result<Roles, String> {
        let mut patterns: Vec<Pattern> = Vec::new();
        for text in sidecars {
            let text = text.as_ref();
            let refused = |why: &str| format!("sidecars: {} {why}", quote(text));
            let pattern = Pattern::new(text).map_err(|why| refused(&why))?;
            if patterns.contains(&pattern) {
                return Err(refused("stands there twice; expected each once"));
            }
            if patterns.len() == MAX_NAMES {
                let why = format!("is one of more than {MAX_NAMES}; expected at most {MAX_NAMES}");
                return Err(refused(&why));
            }
            patterns.push(pattern);
        }
        if everywhere && patterns.is_empty() {
            return Err("everywhere: true says nothing without sidecars; expected some".to_owned());
        }
        Ok(Roles {
            sidecars: patterns,
            everywhere,
        })
    }

    /// Whether they hold in pods without annotations, too.
    pub fn are_everywhere(&self) -> bool {
        self.everywhere
    }

    /// Whether a container of this name, in no list of its pod, is a sidecar.
    pub fn is_sidecar(&self, name: &str) -> bool {
        is_container_name(name) && self.sidecars.iter().any(|pattern| pattern.matches(name))
    }
}

/// The names and patterns, and in which pods they count; nothing where there are none.
impl fmt::Display for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sidecars.is_empty() {
            return Ok(());
        }
        for (index, pattern) in self.sidecars.iter().enumerate() {
            match index {
                0 => write!(f, "{pattern}")?,
                _ => write!(f, ", {pattern}")?,
            }
        }
        f.write_str(match self.everywhere {
            true => " in all pods",
            false => " in pods with annotations",
        })
    }
}
