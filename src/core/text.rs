//! Makes foreign text safe to repeat in a sentence: text from a pod's author, or from a server in a
//! container.

use std::error::Error;
use std::fmt::{self, Write};

/// Maximum number of characters of a container's output that a message quotes.
pub const SAID_CHARS: usize = 200;

/// Text that is shortened and escaped when displayed. The result has no unprintable characters, no
/// line breaks, no cursor movement and no change of the writing direction.
#[derive(Clone, Copy, Debug)]
pub struct Shortened<'a> {
    pub text: &'a str,
    /// Maximum number of characters shown; `…` stands for the rest.
    pub chars: usize,
    /// True if the text will stand in quotes, so that its own quotes are escaped.
    pub quotes: bool,
}

impl fmt::Display for Shortened<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.text.chars().take(self.chars) {
            match character {
                '\'' => f.write_char('\'')?,
                '"' | '\\' if !self.quotes => f.write_char(character)?,
                _ => write!(f, "{}", character.escape_debug())?,
            }
        }
        if self.text.chars().nth(self.chars).is_some() {
            f.write_char('…')?;
        }
        Ok(())
    }
}

/// Escapes and shortens a sentence that may quote a container's output, for the log, a report or an
/// answer.
pub fn tame(sentence: &str) -> String {
    let shortened = Shortened {
        text: sentence,
        chars: SAID_CHARS,
        quotes: false,
    };
    shortened.to_string()
}

/// An error with all its causes, in one line.
pub fn causes(error: &dyn Error) -> String {
    with_causes(error).replace('\n', " ")
}

/// An error with all its causes.
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        // The text of many errors already contains the text of their cause.
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printable_text_is_unchanged() {
        let sentence = r#"10.0.0.7:80 said "zwölf" and C:\temp, isn't it"#;
        assert_eq!(tame(sentence), sentence);
    }

    #[test]
    fn nothing_is_left_that_a_terminal_or_a_reader_would_follow() {
        let sentence = "a\nb\r\x1b[2Jc\0\u{7f}\u{9b}d\u{202e}e\u{2066}f\u{200b}g\u{2028}";
        let tamed = tame(sentence);
        assert_eq!(
            tamed,
            r"a\nb\r\u{1b}[2Jc\0\u{7f}\u{9b}d\u{202e}e\u{2066}f\u{200b}g\u{2028}"
        );
        assert_eq!(tame(&tamed), tamed);
    }

    #[test]
    fn long_text_is_cut() {
        let tamed = tame(&"\u{1}".repeat(64 * 1024));
        assert_eq!(tamed, format!("{}…", r"\u{1}".repeat(SAID_CHARS)));
    }
}
