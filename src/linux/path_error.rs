//! An error of the kernel, with the path of the file.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// A failed system call, with the path of the file that it was for.
#[derive(Debug, Error)]
#[error("cannot {verb} {}: {error}", path.display())]
pub struct PathError {
    /// The verb in the message, such as `read`.
    pub verb: &'static str,
    pub path: PathBuf,
    #[source]
    pub error: io::Error,
}

impl PathError {
    /// Returns a function that adds the verb and the path to an error of the kernel, for
    /// `map_err`.
    pub fn cannot<E: Into<io::Error>>(
        verb: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> PathError {
        move |error| PathError {
            verb,
            path: path.to_owned(),
            error: error.into(),
        }
    }
}
