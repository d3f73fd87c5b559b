//! The certificate in use.

use std::sync::{Arc, PoisonError, RwLock};

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// The certificate in use, if there is one yet; without one every handshake fails.
#[derive(Debug, Clone, Default)]
pub struct Served(Arc<RwLock<Option<Arc<CertifiedKey>>>>);

// === impl Served ===

impl Served {
    /// Handshakes that begin from now on are made with this one.
    pub fn set(&self, certificate: CertifiedKey) {
        let certificate = Some(Arc::new(certificate));
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = certificate;
    }

    fn get(&self) -> Option<Arc<CertifiedKey>> {
        let certificate = self.0.read().unwrap_or_else(PoisonError::into_inner);
        certificate.clone()
    }

    /// Whether there is one.
    pub fn is_there(&self) -> bool {
        self.get().is_some()
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.get()
    }
}
