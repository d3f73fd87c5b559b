//! Authorities by which clients' certificates are verified, if clients need one.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Authorities that sign clients' certificates.
#[derive(Debug, Clone)]
pub struct ClientAuthorities(pub Arc<RootCertStore>);

impl ClientAuthorities {
    /// Reads the authorities, in PEM, from a file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, has no certificate, or has one that cannot be a trust anchor.
    pub fn read(path: &Path) -> Result<ClientAuthorities, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let pem = std::fs::read(path).map_err(|error| wrong(&error))?;
        ClientAuthorities::of(&pem).map_err(|error| wrong(&error))
    }

    /// # Errors
    ///
    /// As [`ClientAuthorities::read`].
    pub fn of(pem: &[u8]) -> Result<ClientAuthorities, String> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(pem) {
            let authority = authority.map_err(|error| error.to_string())?;
            roots.add(authority).map_err(|error| error.to_string())?;
        }
        match roots.is_empty() {
            true => Err("no certificate found; expected those of authorities, in PEM".to_owned()),
            false => Ok(ClientAuthorities(Arc::new(roots))),
        }
    }
}
