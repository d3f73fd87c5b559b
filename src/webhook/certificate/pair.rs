//! A certificate with its key and its authorities.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
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

/// Validity of a certificate that the webhook makes.
pub(super) const VALIDITY: Duration = Duration::from_secs(90 * 24 * 3600);

/// Largest expected difference between the clocks in a cluster. The validity of a certificate
/// begins this long before its creation, so that slower clocks accept the certificate.
const CLOCK_SKEW: Duration = Duration::from_secs(3600);

/// A certificate with its key, all in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Pair {
    /// The certificate, followed by intermediate certificates.
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    /// Trusted authorities; the one that has signed the certificate comes first.
    pub authorities: Vec<u8>,
}

impl Pair {
    /// Makes a certificate for a server of this name, valid for 90 days, and signs it with a new
    /// authority. The authority's key is then discarded, so that it can never sign another
    /// certificate.
    ///
    /// # Errors
    ///
    /// If `name` is no DNS name or IP address, or cryptography fails.
    pub fn make(name: &str, now: SystemTime) -> anyhow::Result<Pair> {
        make(name, now).with_context(|| format!("cannot make a certificate for {name}"))
    }

    /// Adds the first authority of `old`, so that clients go on trusting a server that still uses
    /// `old`.
    pub(super) fn trust_authority_of(&mut self, old: &Pair) {
        if let Some(authority) = first_section(&old.authorities) {
            self.authorities.extend_from_slice(authority);
        }
    }

    /// True if a client that trusts these authorities would accept the certificate for this server
    /// name at this time. The check runs the same code as clients.
    pub fn is_valid(&self, name: &str, at: SystemTime) -> bool {
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

    fn chain(&self) -> anyhow::Result<Vec<CertificateDer<'static>>> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&self.certificate).collect();
        let chain = chain?;
        ensure!(!chain.is_empty(), "no certificate found; expected PEM");
        Ok(chain)
    }

    /// Converts the pair to the form that rustls serves.
    ///
    /// # Errors
    ///
    /// If the certificate or the key is missing or malformed, or they do not belong together.
    pub fn certified(&self) -> anyhow::Result<CertifiedKey> {
        let chain = self.chain().context("cannot read the certificate")?;
        let key = PrivateKeyDer::from_pem_slice(&self.key).context("cannot read the key")?;
        CertifiedKey::from_der(chain, key, &ring::default_provider())
            .context("cannot use the certificate with its key")
    }
}

fn make(name: &str, now: SystemTime) -> Result<Pair, rcgen::Error> {
    let now = time::OffsetDateTime::from(now);
    let differ = time::Duration::try_from(CLOCK_SKEW).unwrap_or_default();
    let good_for = time::Duration::try_from(VALIDITY).unwrap_or_default();
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

/// First certificate of a PEM file.
fn first_section(pem: &[u8]) -> Option<&[u8]> {
    const END: &[u8] = b"-----END CERTIFICATE-----\n";
    let end = pem.windows(END.len()).position(|window| window == END)?;
    pem.get(..end.checked_add(END.len())?)
}
