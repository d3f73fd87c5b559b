//! Sets of exit codes, as annotations list them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::error::{Problem, quote};
use super::list;

/// Number of 64-bit words that hold one bit for each exit code: Linux exit codes fit into a byte.
const WORDS: usize = 4;

/// The prefix of a list of codes that a set does *not* have.
const NOT: char = '!';

/// A set of exit codes; empty by default.
///
/// ```
/// use std::collections::BTreeMap;
/// use usher_core::plan::Plan;
///
/// let rules = ("caller-restarts.usher/web".to_owned(), "!0, 1".to_owned());
/// let plan = Plan::parse(&BTreeMap::from([rules])).unwrap();
/// let codes = &plan.container("web").caller_restarts;
/// assert!(codes.contains(42) && !codes.contains(0) && !codes.contains(1));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ExitCodes(
    /// `None` for the empty set, to save memory: most containers' sets are empty.
    Option<Box<Bits>>,
);

type Bits = [u64; WORDS];

impl ExitCodes {
    pub const NONE: ExitCodes = ExitCodes(None);

    /// The set of all codes, 0 to 255.
    pub fn all() -> ExitCodes {
        ExitCodes::NONE.complement()
    }

    fn of(bits: Bits) -> ExitCodes {
        ExitCodes((bits != Bits::default()).then(|| Box::new(bits)))
    }

    fn bits(&self) -> Bits {
        self.0.as_deref().copied().unwrap_or_default()
    }

    /// False for codes above 255, which no process exits with.
    pub fn contains(&self, code: u32) -> bool {
        u8::try_from(code).is_ok_and(|code| self.has(code))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// All codes that this set does not have.
    #[must_use]
    pub fn complement(&self) -> ExitCodes {
        ExitCodes::of(self.bits().map(|word| !word))
    }

    /// The codes in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u8> {
        (0..=u8::MAX).filter(|code| self.has(*code))
    }

    pub fn extend(&mut self, other: &ExitCodes) {
        let mut bits = self.bits();
        for (word, more) in bits.iter_mut().zip(other.bits()) {
            *word |= more;
        }
        *self = ExitCodes::of(bits);
    }

    fn has(&self, code: u8) -> bool {
        let (index, bit) = place(code);
        let word = self.0.as_deref().and_then(|bits| bits.get(index));
        word.is_some_and(|word| word & bit != 0)
    }

    pub fn insert(&mut self, code: u8) {
        let (index, bit) = place(code);
        let bits = self.0.get_or_insert_default();
        if let Some(word) = bits.get_mut(index) {
            *word |= bit;
        }
    }
}

impl FromIterator<u8> for ExitCodes {
    fn from_iter<T: IntoIterator<Item = u8>>(codes: T) -> Self {
        let mut set = ExitCodes::NONE;
        codes.into_iter().for_each(|code| set.insert(code));
        set
    }
}

/// The index of the word that holds a code's bit, and the mask of that bit.
fn place(code: u8) -> (usize, u64) {
    (usize::from(code >> 6), 1 << (code & 63))
}

/// The shorter of the two forms that an annotation may have; empty for the empty set.
impl fmt::Display for ExitCodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |set: &ExitCodes| {
            let codes: Vec<String> = set.iter().map(|code| code.to_string()).collect();
            codes.join(", ")
        };
        let others = self.complement();
        match others.iter().count() < self.iter().count() {
            true => write!(f, "{NOT}{}", list(&others)),
            false => f.write_str(&list(self)),
        }
    }
}

/// Reads exit codes, or `!` and the exit codes that the set does not have; `!` alone means all.
///
/// # Errors
///
/// A text without codes and without `!`, a number above 255, any other text, or a duplicate code.
pub(super) fn parse(text: &str) -> Result<ExitCodes, Problem> {
    let (is_not, codes) = match text.trim_start().strip_prefix(NOT) {
        Some(codes) => (true, codes),
        None => (false, text),
    };
    if is_not && codes.trim().is_empty() {
        return Ok(ExitCodes::all());
    }
    let mut listed = ExitCodes::NONE;
    for word in list::items(codes, "exit code")? {
        let code = decimal(word).ok_or_else(|| {
            Problem::new(format!(
                "lists {}; expected exit codes from 0 to 255, or {NOT} and those without a restart",
                quote(word)
            ))
        })?;
        if listed.has(code) {
            return Err(Problem::new(format!(
                "lists {code} twice; expected each exit code once"
            )));
        }
        listed.insert(code);
    }
    Ok(match is_not {
        true => listed.complement(),
        false => listed,
    })
}

/// Parses a number that consists only of digits. Rust's own parser also accepts a sign.
fn decimal(word: &str) -> Option<u8> {
    let is_decimal = word.chars().all(|c| c.is_ascii_digit());
    is_decimal.then(|| word.parse().ok()).flatten()
}
