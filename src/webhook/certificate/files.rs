//! A certificate that somebody else looks after, as cert-manager does, in files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::{Pair, Served};

/// No chain of certificates is as long.
const MAX_BYTES: u64 = 1024 * 1024;

/// Reads `tls.crt` and `tls.key` of a directory, as a mounted Secret has them.
pub struct Files {
    directory: PathBuf,
    served: Served,
    last: Option<Pair>,
}

// === impl Files ===

impl Files {
    pub fn new(directory: PathBuf, served: Served) -> Files {
        Files {
            directory,
            served,
            last: None,
        }
    }

    /// Serves what is in the files; true if that is another one than before.
    ///
    /// # Errors
    ///
    /// One sentence; the certificate from before is served on.
    pub fn look(&mut self) -> Result<bool, String> {
        let pair = Pair {
            certificate: read(&self.directory.join("tls.crt"))?,
            key: read(&self.directory.join("tls.key"))?,
            authorities: Vec::new(),
        };
        if self.last.as_ref() == Some(&pair) {
            return Ok(false);
        }
        let certified = pair
            .certified()
            .map_err(|error| format!("{}: {error}", self.directory.display()))?;
        self.served.set(certified);
        self.last = Some(pair);
        Ok(true)
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(wrong)?;
    file.take(MAX_BYTES)
        .read_to_end(&mut bytes)
        .map_err(wrong)?;
    Ok(bytes)
}
