//! The node's configuration file, which overrides what the annotations of a pod say.
//!
//! The shim reads the file when its pod starts, and uses these rules until the pod ends. Without a
//! file the node has no rules, and the annotations apply as they are.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

use thiserror::Error;
use usher_core::config::{ConfigError, parse};
use usher_core::plan::Rules;
use usher_linux::PathError;

/// The default path of the file; [`PATH_VARIABLE`] overrides it.
pub const PATH: &str = "/etc/usher/config.toml";

/// Environment variable with the path of another configuration file, for tests. If it is set, that
/// file must exist.
pub const PATH_VARIABLE: &str = "USHER_CONFIG";

/// Largest size of the file that is read.
const MAX_BYTES: u64 = 64 * 1024;

/// A configuration file that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigFileError {
    #[error("{}: there is no such file", .0.display())]
    Missing(PathBuf),
    #[error(transparent)]
    Unread(#[from] PathError),
    #[error("configuration file {} is longer than {MAX_BYTES} bytes", .0.display())]
    TooLong(PathBuf),
    #[error("{}: {error}", path.display())]
    Invalid {
        path: PathBuf,
        #[source]
        error: ConfigError,
    },
}

/// Reads the rules of this node.
///
/// # Errors
///
/// If the file cannot be read, or has a mistake.
pub fn read() -> Result<Rules, ConfigFileError> {
    let named = named_path();
    let path = named.as_deref().unwrap_or(Path::new(PATH));
    match read_file(path) {
        Err(ConfigFileError::Missing(_)) if named.is_none() => Ok(Rules::default()),
        outcome => outcome,
    }
}

/// Reads rules from the configuration file at `path`.
///
/// # Errors
///
/// The same as for [`read`], and also if the file does not exist.
pub fn read_file(path: &Path) -> Result<Rules, ConfigFileError> {
    let unread = |error: io::Error| match error.kind() {
        ErrorKind::NotFound => ConfigFileError::Missing(path.to_owned()),
        _ => PathError::cannot("read", path)(error).into(),
    };
    let file = File::open(path).map_err(unread)?;
    let mut text = String::new();
    file.take(MAX_BYTES.saturating_add(1))
        .read_to_string(&mut text)
        .map_err(unread)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(ConfigFileError::TooLong(path.to_owned()));
    }
    parse(&text).map_err(|error| ConfigFileError::Invalid {
        path: path.to_owned(),
        error,
    })
}

/// The path of the file that [`read`] reads.
pub fn path() -> PathBuf {
    named_path().unwrap_or_else(|| PathBuf::from(PATH))
}

fn named_path() -> Option<PathBuf> {
    std::env::var_os(PATH_VARIABLE)
        .filter(|path| !path.is_empty())
        .map(PathBuf::from)
}
