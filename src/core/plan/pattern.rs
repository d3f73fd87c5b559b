//! Patterns for container names, and the roles that a node gives by patterns.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::quote;
use super::list::{MAX_NAME_CHARS, MAX_NAMES, is_container_name};

/// A container name in which each `*` matches any text, even an empty one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pattern(String);

/// Roles that a node's administrator gives to injected containers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Roles {
    sidecars: Vec<Pattern>,
    everywhere: bool,
}

/// Error for a text that is no pattern, because it can match no name or matches every name. The
/// message lacks a subject: put the refused text before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("is no pattern; expected a name of a container, in which * may stand for a part of it")]
pub struct PatternError;

/// The reason why roles are refused. Names and patterns in it are for people: quoted, escaped and
/// shortened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RolesError {
    #[error("sidecars: {entry} {error}")]
    Pattern {
        entry: String,
        #[source]
        error: PatternError,
    },
    #[error("sidecars: {entry} is listed twice; expected each once")]
    Repeated { entry: String },
    #[error("sidecars: {entry} is one of more than {MAX_NAMES}; expected at most {MAX_NAMES}")]
    TooMany { entry: String },
    #[error(
        "everywhere: true applies sidecars to pods without annotations; \
         expected at least one entry in sidecars"
    )]
    NoSidecars,
}

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// If the pattern can match no name or matches every name.
    pub fn new(text: &str) -> Result<Pattern, PatternError> {
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
            false => Err(PatternError),
        }
    }

    /// True if a text is a pattern: it contains a `*`.
    pub fn is_one(text: &str) -> bool {
        text.contains('*')
    }

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

impl Roles {
    /// Makes roles from names and patterns.
    ///
    /// # Errors
    ///
    /// If a pattern is invalid, if a name or pattern is listed twice, or if there are
    /// too many of them.
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
    ) -> Result<Roles, RolesError> {
        let mut patterns: Vec<Pattern> = Vec::new();
        for text in sidecars {
            let text = text.as_ref();
            let entry = || quote(text);
            let pattern = Pattern::new(text).map_err(|error| RolesError::Pattern {
                entry: entry(),
                error,
            })?;
            if patterns.contains(&pattern) {
                return Err(RolesError::Repeated { entry: entry() });
            }
            if patterns.len() == MAX_NAMES {
                return Err(RolesError::TooMany { entry: entry() });
            }
            patterns.push(pattern);
        }
        if everywhere && patterns.is_empty() {
            return Err(RolesError::NoSidecars);
        }
        Ok(Roles {
            sidecars: patterns,
            everywhere,
        })
    }

    /// True if the roles apply to pods without annotations, too.
    pub fn are_everywhere(&self) -> bool {
        self.everywhere
    }

    /// True if an unlisted container of this name is a sidecar.
    pub fn is_sidecar(&self, name: &str) -> bool {
        is_container_name(name) && self.sidecars.iter().any(|pattern| pattern.matches(name))
    }
}

/// Writes the names and patterns, and the pods that they apply to. Without names, writes nothing.
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
