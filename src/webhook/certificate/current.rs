//! The certificate in use.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// The certificate in use, shared by all clones. Until one is set, every handshake fails.
#[derive(Debug, Clone, Default)]
pub struct CurrentCertificate(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

impl CurrentCertificate {
    /// Uses `certificate` for all handshakes that begin from now on.
    pub fn set(&self, certificate: CertifiedKey) {
        let certificate = Some(Arc::new(certificate));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certificate;
    }

    fn get(&self) -> Option<Arc<CertifiedKey>> {
        let certificate = self.0.read().unwrap_or_else(PoisonError::into_inner);
        certificate.clone()
    }

    /// True if the server can complete a TLS handshake.
    pub fn has_certificate(&self) -> bool {
        self.get().is_some()
    }
}

impl ResolvesServerCert for CurrentCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.get()
    }
}
