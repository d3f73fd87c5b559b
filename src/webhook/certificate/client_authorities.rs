//! Authorities by which clients' certificates are verified, if clients need one.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
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
    pub fn read(path: &Path) -> anyhow::Result<ClientAuthorities> {
        let wrong = || format!("cannot read the authorities in {}", path.display());
        let pem = std::fs::read(path).with_context(wrong)?;
        ClientAuthorities::of(&pem).with_context(wrong)
    }

    /// # Errors
    ///
    /// As [`ClientAuthorities::read`].
    pub fn of(pem: &[u8]) -> anyhow::Result<ClientAuthorities> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(pem) {
            roots.add(authority?)?;
        }
        ensure!(
            !roots.is_empty(),
            "no certificate found; expected those of authorities, in PEM"
        );
        Ok(ClientAuthorities(Arc::new(roots)))
    }
}
