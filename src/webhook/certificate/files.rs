//! A certificate that another program, such as cert-manager, keeps in files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{CurrentCertificate, Pair};

/// Read limit of a file; a chain of certificates is far smaller.
const MAX_BYTES: u64 = 1024 * 1024;

/// The files `tls.crt` and `tls.key` of a directory, as in a mounted Secret.
pub struct Files {
    directory: PathBuf,
    served: CurrentCertificate,
    last: Option<Pair>,
}

impl Files {
    /// Makes a source for the certificate in `directory`. Each [reload](Files::reload) puts the
    /// current certificate into `served`.
    pub fn new(directory: PathBuf, served: CurrentCertificate) -> Files {
        Files {
            directory,
            served,
            last: None,
        }
    }

    /// Reads the files, and serves their certificate. Returns true if the certificate has changed.
    ///
    /// # Errors
    ///
    /// If the files have no usable certificate; the previous one stays in use.
    pub fn reload(&mut self) -> anyhow::Result<bool> {
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
            .with_context(|| format!("cannot use the files in {}", self.directory.display()))?;
        self.served.set(certified);
        self.last = Some(pair);
        Ok(true)
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes))
        .with_context(|| format!("cannot read {}", path.display()))?;
    Ok(bytes)
}
