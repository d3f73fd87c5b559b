//! The node's configuration file, which overrides what the annotations of a pod say.
//!
//! The shim reads the file when a pod begins, and uses these rules until the pod ends. Without a
//! file only the defaults of the annotations apply.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use usher_core::config::parse;

use usher_core::plan::Rules;

/// The default path of the file; [`PATH_VARIABLE`] overrides it.
pub const PATH: &str = "/etc/usher/config.toml";

/// Environment variable with the path of another configuration file, for tests. If it is set, that
/// file must exist.
pub const PATH_VARIABLE: &str = "USHER_CONFIG";

/// Largest size of the file that is read.
const MAX_BYTES: u64 = 64 * 1024;

/// Reads the rules of this node.
///
/// # Errors
///
/// One sentence that names the file and the problem.
pub fn read() -> Result<Rules, String> {
    let named = named_path();
    let path = named.as_deref().unwrap_or(Path::new(PATH));
    match read_from(path) {
        Err(Unread::Missing) if named.is_none() => Ok(Rules::default()),
        outcome => outcome.map_err(|unread| unread.sentence(path)),
    }
}

/// Reads rules from the configuration file at `path`.
///
/// # Errors
///
/// The same as for [`read`], and also if the file does not exist.
pub fn read_file(path: &Path) -> Result<Rules, String> {
    read_from(path).map_err(|unread| unread.sentence(path))
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

enum Unread {
    Missing,
    Because(String),
}

impl Unread {
    fn sentence(&self, path: &Path) -> String {
        let path = path.display();
        match self {
            Unread::Missing => format!("{path}: there is no such file"),
            Unread::Because(why) => format!("{path}: {why}"),
        }
    }
}

fn read_from(path: &Path) -> Result<Rules, Unread> {
    let because = |error: std::io::Error| match error.kind() {
        ErrorKind::NotFound => Unread::Missing,
        _ => Unread::Because(error.to_string()),
    };
    let file = File::open(path).map_err(because)?;
    let mut text = String::new();
    file.take(MAX_BYTES.saturating_add(1))
        .read_to_string(&mut text)
        .map_err(because)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(Unread::Because(format!("is longer than {MAX_BYTES} bytes")));
    }
    parse(&text).map_err(|error| Unread::Because(error.to_string()))
}
