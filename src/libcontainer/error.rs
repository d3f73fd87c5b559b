//! Why a verb fails: one sentence, in runc's words where the shim knows those.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use thiserror::Error;

/// A verb failed.
#[derive(Debug, Error)]
pub enum Failure {
    /// runc's words for a container that it does not know.
    #[error("container does not exist")]
    Unknown,
    /// runc's words for a signal to what has ended.
    #[error("os: process already finished")]
    Ended,
    /// It is not the time for it: what it is, in runc's words.
    #[error("{0}")]
    Untimely(String),
    /// It asks for what cannot be given.
    #[error("{0}")]
    Refused(String),
    /// A file, or something like one.
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    /// A document is not what it should be.
    #[error("{}: {why}", path.display())]
    Document { path: PathBuf, why: String },
    /// libcontainer's own reasons, from the first to the last.
    #[error("{0}")]
    Library(String),
    #[error(transparent)]
    Other(#[from] io::Error),
}

impl Failure {
    pub fn io(path: &Path, source: io::Error) -> Failure {
        Failure::File {
            path: path.to_owned(),
            source,
        }
    }

    pub fn document(path: &Path, why: impl ToString) -> Failure {
        Failure::Document {
            path: path.to_owned(),
            why: why.to_string(),
        }
    }

    /// An error of a library, with its causes: its own sentence is often but the last of many.
    pub fn library(error: &dyn Error) -> Failure {
        let mut words = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let more = error.to_string();
            // Some repeat what their cause has said.
            if !words.contains(&more) {
                words = format!("{words}: {more}");
            }
            cause = error.source();
        }
        Failure::Library(words)
    }

    /// The same with what was at its beginning, if it does not say so itself.
    pub fn because(self, cause: Option<String>) -> Failure {
        match (self, cause) {
            (Failure::Library(words), Some(cause)) if !words.contains(&cause) => {
                Failure::Library(format!("{words} (at first: {cause})"))
            }
            (failure, _) => failure,
        }
    }

    /// Writes it where runc does: into the log, and for whoever is there.
    pub fn log(&self, file: Option<(&Path, bool)>) {
        let line = match file {
            Some((_, true)) => serde_json::to_string(&Line {
                level: "error",
                msg: &self.to_string(),
            })
            .unwrap_or_default(),
            _ => format!("error: {self}"),
        };
        if let Some((file, _)) = file
            && let Ok(mut file) = OpenOptions::new().append(true).create(true).open(file)
        {
            // It is said below as well.
            let _ = writeln!(file, "{line}");
        }
        // There is nobody else to tell.
        let _ = writeln!(io::stderr(), "{self}");
    }
}

#[derive(Serialize)]
struct Line<'a> {
    level: &'a str,
    msg: &'a str,
}
