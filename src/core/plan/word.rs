//! Settings whose value is a word from a fixed set.

/// A type with one value for each word of a setting. Words are case-sensitive.
pub trait Word: Copy + 'static {
    /// Every word, in the order in which messages and the documentation list the words.
    const WORDS: &'static [&'static str];

    /// The value that a word stands for.
    fn from_word(word: &str) -> Option<Self>;
}

/// Declares an enum and the word of each of its variants.
macro_rules! words {
    (
        $(#[$meta:meta])*
        pub enum $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $word:literal,)+ }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$variant_meta])* $variant,)+ }

        impl $crate::plan::word::Word for $name {
            const WORDS: &'static [&'static str] = &[$($word,)+];

            fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some($name::$variant),)+
                    _ => None,
                }
            }
        }

        /// Writes the word that stands for the value in annotations.
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $($name::$variant => $word,)+ })
            }
        }
    };
}

pub(super) use words;
