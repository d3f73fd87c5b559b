//! A certificate with its key, and those who vouch for it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::CertifiedKey;

use usher_core::text::causes;

/// How long a certificate of our own is good.
pub(super) const GOOD_FOR: Duration = Duration::from_secs(90 * 24 * 3600);

/// Clocks of a cluster may differ by so much.
const CLOCKS_DIFFER_BY: Duration = Duration::from_secs(3600);

/// A certificate with its key, all in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate, and those between it and an authority.
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    /// Authorities to be believed: the one that vouches for it comes first.
    pub authorities: Vec<u8>,
}

// === impl Pair ===

impl Pair {
    /// Makes one for a server of this name, good for 90 days. Its authority has vouched for nothing else,
    /// and never will: its key is forgotten here.
    ///
    /// # Errors
    ///
    /// In one sentence.
    pub fn make(name: &str, now: SystemTime) -> Result<Pair, String> {
        make(name, now).map_err(|error| format!("a certificate for {name}: {}", causes(&error)))
    }

    /// Lets clients go on to believe the authority of the one before.
    pub(super) fn succeed(&mut self, old: &Pair) {
        if let Some(authority) = first_section(&old.authorities) {
            self.authorities.extend_from_slice(authority);
        }
    }

    /// Whether a client that believes its authorities takes it for that of this server then. It is asked
    /// in the way clients do it.
    pub fn is_good(&self, name: &str, at: SystemTime) -> bool {
        self.verify(name, at).is_some() && self.certified().is_ok()
    }

    fn verify(&self, name: &str, at: SystemTime) -> Option<()> {
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(&self.authorities) {
            roots.add(authority.ok()?).ok()?;
        }
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider);
        let chain = self.chain().ok()?;
        let (certificate, between) = chain.split_first()?;
        let name = ServerName::try_from(name).ok()?;
        let at = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let at = UnixTime::since_unix_epoch(at);
        let verifier = verifier.build().ok()?;
        let verified = verifier.verify_server_cert(certificate, between, &name, &[], at);
        verified.ok().map(|_| ())
    }

    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.certificate).collect();
        match chain {
            Ok(chain) if chain.is_empty() => Err("has no certificate".to_owned()),
            Ok(chain) => Ok(chain),
            Err(error) => Err(causes(&error)),
        }
    }

    /// In the form that rustls serves.
    ///
    /// # Errors
    ///
    /// In words that follow the name of what it was read from: where there is no certificate or no key,
    /// or they do not belong to one another.
    pub fn certified(&self) -> Result<CertifiedKey, String> {
        let chain = self
            .chain()
            .map_err(|error| format!("the certificate: {error}"))?;
        let key = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|error| format!("the key: {}", causes(&error)))?;
        CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|error| format!("the certificate and its key: {}", causes(&error)))
    }
}

fn make(name: &str, now: SystemTime) -> Result<Pair, rcgen::Error> {
    let now = time::OffsetDateTime::from(now);
    let differ = time::Duration::try_from(CLOCKS_DIFFER_BY).unwrap_or_default();
    let good_for = time::Duration::try_from(GOOD_FOR).unwrap_or_default();
    let (begin, end) = (now.saturating_sub(differ), now.saturating_add(good_for));

    let called = |name: &str| {
        let mut called = DistinguishedName::new();
        called.push(DnType::CommonName, name);
        called
    };
    let authority_key = KeyPair::generate()?;
    let mut authority = CertificateParams::default();
    authority.distinguished_name = called("usher-webhook authority");
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    (authority.not_before, authority.not_after) = (begin, end);
    let authority_certificate = authority.self_signed(&authority_key)?;

    let key = KeyPair::generate()?;
    let mut server = CertificateParams::new([name.to_owned()])?;
    server.distinguished_name = called("usher-webhook");
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    server.use_authority_key_identifier_extension = true;
    (server.not_before, server.not_after) = (begin, end);
    let certificate = server.signed_by(&key, &Issuer::new(authority, authority_key))?;
    Ok(Pair {
        certificate: certificate.pem().into_bytes(),
        key: key.serialize_pem().into_bytes(),
        authorities: authority_certificate.pem().into_bytes(),
    })
}

/// The first of the sections of a PEM file.
fn first_section(pem: &[u8]) -> Option<&[u8]> {
    const END: &[u8] = b"-----END CERTIFICATE-----\n";
    let end = pem.windows(END.len()).position(|window| window == END)?;
    pem.get(..end.checked_add(END.len())?)
}
