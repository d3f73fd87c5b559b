//! Errors of a plan: one sentence with the key, the value and what was expected.

use crate::text::Shortened;

use super::word::Word;

/// Maximum length of an annotation's value, in bytes. A longer value is refused without parsing it.
pub(crate) const MAX_VALUE_BYTES: usize = 16 * 1024;
/// Maximum total size of the usher keys and values of one container, in bytes.
pub(super) const MAX_TOTAL_BYTES: usize = 32 * 1024;
/// Maximum number of characters of a value that an error quotes.
const SHOWN_CHARS: usize = 64;
/// Maximum number of characters of a key that an error quotes: enough for the longest setting with
/// the longest container name.
const SHOWN_KEY_CHARS: usize = 320;

/// The reason why annotations are refused. Keys and values in it are for people: shortened, and
/// with control characters escaped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Hash)]
pub enum PlanError {
    /// An unknown key in usher's name space.
    #[error("unknown annotation {key}; expected {expected}{}", did_you_mean(meant.as_deref()))]
    UnknownSetting {
        key: String,
        expected: String,
        /// The key that was probably meant.
        meant: Option<String>,
    },
    /// A value that is longer than 16 KiB.
    #[error("{key}: {value} is {length} bytes long; expected at most {MAX_VALUE_BYTES}")]
    TooLarge {
        key: String,
        value: String,
        length: usize,
    },
    /// A value that is none of the setting's words.
    #[error("{key}: {value} is not one of {}", allowed.join(", "))]
    NotOneOf {
        key: String,
        value: String,
        allowed: &'static [&'static str],
    },
    /// A setting that has no effect in the container's role, whatever its value.
    #[error("{key}: {problem}")]
    Useless { key: String, problem: Problem },
    /// Any other invalid value, or one that contradicts another.
    #[error("{key}: {value} {problem}")]
    Invalid {
        key: String,
        value: String,
        problem: Problem,
    },
}

/// All errors found in the annotations of a pod, in the order in which they are found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{first}")]
pub struct Refusals {
    /// The error that the shim reports.
    pub first: PlanError,
    pub others: Vec<PlanError>,
}

/// Errors that are collected up to a limit.
#[derive(Debug)]
pub(super) struct Found {
    all: Vec<PlanError>,
    at_most: usize,
}

/// Maximum number of errors that are reported at once. Further errors are reported when the author
/// has fixed these.
pub(super) const REFUSALS_AT_MOST: usize = 64;

/// The problem with a value, as the predicate of a sentence: `is not a duration …`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Hash)]
#[error("{0}")]
pub struct Problem(String);

/// An annotation as it was written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry<'a> {
    pub(super) key: &'a str,
    pub(super) value: &'a str,
}

impl Refusals {
    /// A sentence for each error, the first error first.
    pub fn sentences(&self) -> impl Iterator<Item = String> {
        let all = std::iter::once(&self.first).chain(&self.others);
        all.map(PlanError::to_string)
    }
}

impl From<PlanError> for Refusals {
    fn from(first: PlanError) -> Refusals {
        Refusals {
            first,
            others: Vec::new(),
        }
    }
}

impl Found {
    pub(super) fn at_most(at_most: usize) -> Found {
        Found {
            all: Vec::new(),
            at_most,
        }
    }

    /// Returns the value, or adds the error to the collected errors.
    pub(super) fn ok<T>(&mut self, read: Result<T, PlanError>) -> Option<T> {
        match read {
            Ok(value) => Some(value),
            Err(error) => {
                if !self.is_full() {
                    self.all.push(error);
                }
                None
            }
        }
    }

    /// True if the maximum number of errors is collected. Then the remaining annotations need not
    /// be read.
    pub(super) fn is_full(&self) -> bool {
        self.all.len() >= self.at_most
    }

    /// Returns `value`, or the collected errors if there are any.
    pub(super) fn nothing_or<T>(self, value: T) -> Result<T, Refusals> {
        let mut all = self.all.into_iter();
        match all.next() {
            None => Ok(value),
            Some(first) => Err(Refusals {
                first,
                others: all.collect(),
            }),
        }
    }
}

impl Problem {
    pub(super) fn new(predicate: impl Into<String>) -> Self {
        Problem(predicate.into())
    }
}

impl<'a> Entry<'a> {
    /// Reads the value with `parse`, and adds key and value to the error.
    pub(super) fn read<T>(
        self,
        parse: impl FnOnce(&'a str) -> Result<T, Problem>,
    ) -> Result<T, PlanError> {
        parse(self.value).map_err(|problem| self.invalid(problem))
    }

    /// Reads the value as one of a setting's words.
    pub(super) fn word<T: Word>(self) -> Result<T, PlanError> {
        T::from_word(self.value).ok_or_else(|| PlanError::NotOneOf {
            key: self.shown_key(),
            value: quote(self.value),
            allowed: T::WORDS,
        })
    }

    pub(super) fn bytes(self) -> usize {
        self.key.len().saturating_add(self.value.len())
    }

    pub(super) fn check_length(self) -> Result<(), PlanError> {
        let length = self.value.len();
        if length <= MAX_VALUE_BYTES {
            return Ok(());
        }
        Err(PlanError::TooLarge {
            key: self.shown_key(),
            value: quote(self.value),
            length,
        })
    }

    pub(super) fn invalid(self, problem: Problem) -> PlanError {
        PlanError::Invalid {
            key: self.shown_key(),
            value: quote(self.value),
            problem,
        }
    }

    pub(super) fn useless(self, problem: Problem) -> PlanError {
        PlanError::Useless {
            key: self.shown_key(),
            problem,
        }
    }

    pub(super) fn unknown(self, expected: String, meant: Option<String>) -> PlanError {
        PlanError::UnknownSetting {
            key: self.shown_key(),
            expected,
            meant,
        }
    }

    fn shown_key(self) -> String {
        Shortened {
            text: self.key,
            chars: SHOWN_KEY_CHARS,
            quotes: false,
        }
        .to_string()
    }
}

/// The text `; did you mean …?` for the end of an error. Empty if `meant` is `None`.
fn did_you_mean(meant: Option<&str>) -> String {
    meant.map_or_else(String::new, |meant| format!("; did you mean {meant}?"))
}

/// Text from a pod's author, for a sentence: in quotes, escaped, shortened with `…`.
pub(super) fn quote(text: &str) -> String {
    format!(
        "\"{}\"",
        Shortened {
            text,
            chars: SHOWN_CHARS,
            quotes: true
        }
    )
}

/// A parser's own message, which may repeat the author's text: escaped, and shortened in the middle
/// because its end names what was expected.
pub(super) fn condense(message: &str) -> String {
    const HEAD: usize = 80;
    const TAIL: usize = 280;
    let tail_start = message
        .char_indices()
        .rev()
        .nth(TAIL.saturating_sub(1))
        .map(|(at, _)| at);
    match tail_start.and_then(|at| message.split_at_checked(at)) {
        Some((head, tail)) if head.chars().nth(HEAD).is_some() => {
            let head = Shortened {
                text: head,
                chars: HEAD,
                quotes: false,
            };
            format!(
                "{head}{}",
                Shortened {
                    text: tail,
                    chars: TAIL,
                    quotes: false
                }
            )
        }
        _ => Shortened {
            text: message,
            chars: usize::MAX,
            quotes: false,
        }
        .to_string(),
    }
}
