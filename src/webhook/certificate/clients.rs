//! The clients whose certificates are taken, where certificates are demanded.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// The authorities that vouch for clients.
#[derive(Debug, Clone)]
pub struct Clients(pub Arc<RootCertStore>);

// === impl Clients ===

impl Clients {
    /// Reads the authorities, in PEM, from a file.
    ///
    /// # Errors
    ///
    /// A sentence if the file has no certificate, or one that is none of an authority.
    pub fn read(path: &Path) -> Result<Clients, String> {
        let wrong = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        let pem = std::fs::read(path).map_err(|error| wrong(&error))?;
        Clients::of(&pem).map_err(|error| wrong(&error))
    }

    /// # Errors
    ///
    /// As [`Clients::read`].
    pub fn of(pem: &[u8]) -> Result<Clients, String> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(pem) {
            let authority = authority.map_err(|error| error.to_string())?;
            roots.add(authority).map_err(|error| error.to_string())?;
        }
        match roots.is_empty() {
            true => Err("there is no certificate in it; expected those of authorities".to_owned()),
            false => Ok(Clients(Arc::new(roots))),
        }
    }
}
