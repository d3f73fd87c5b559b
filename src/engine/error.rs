//! Why an engine does not do what it is asked for.

use thiserror::Error;

/// One sentence, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// What the caller has given is not what it should be.
    #[error("{0}")]
    Invalid(String),
    /// It is not the time for it.
    #[error("{0}")]
    Precondition(String),
    /// What is meant has ended.
    #[error("{0}")]
    Gone(String),
    /// It was ended before it was done: halted, or too late.
    #[error("{0}")]
    CutShort(String),
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

impl EngineError {
    /// Any failure, in its own words.
    pub fn failed(cause: impl ToString) -> EngineError {
        EngineError::Failed(cause.to_string())
    }

    /// Whether it was ended before it was done.
    pub fn is_cut_short(&self) -> bool {
        matches!(self, EngineError::CutShort(_))
    }
}
