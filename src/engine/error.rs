//! Errors of engines.

use thiserror::Error;

/// An error of the engine: a sentence, and its kind. The kind decides which status the caller gets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EngineError {
    /// The caller's input is invalid.
    #[error("{0}")]
    Invalid(String),
    /// The container is not in the state that the call needs.
    #[error("{0}")]
    Precondition(String),
    /// The process or container has exited.
    #[error("{0}")]
    Gone(String),
    /// The work was canceled or took too long.
    #[error("{0}")]
    CutShort(String),
    /// Any other failure.
    #[error("{0}")]
    Failed(String),
}

impl EngineError {
    pub fn invalid(cause: impl ToString) -> EngineError {
        EngineError::Invalid(cause.to_string())
    }

    pub fn failed(cause: impl ToString) -> EngineError {
        EngineError::Failed(cause.to_string())
    }

    /// The error of a call that needs an init process, if that process has exited.
    pub fn init_gone() -> EngineError {
        EngineError::Gone("its init process has exited".to_owned())
    }

    /// True if the work was canceled or took too long.
    pub fn is_cut_short(&self) -> bool {
        matches!(self, EngineError::CutShort(_))
    }
}
