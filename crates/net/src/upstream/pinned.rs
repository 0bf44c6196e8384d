//! Verification of servers: by authorities, or by pinned certificates.
//!
//! A self-signed certificate often claims to be an authority, which a server's certificate must not be. One that is listed is
//! trusted nevertheless; its validity period and names are still checked.

use std::sync::Arc;

use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        VerifierBuilderError, WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::ring,
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

/// A verifier that accepts certificates signed by the listed ones, and the listed ones themselves.
#[derive(Debug)]
pub(super) struct Pinned {
    listed: Vec<CertificateDer<'static>>,
    signed: Arc<WebPkiServerVerifier>,
}

impl Pinned {
    /// Builds a verifier that trusts these certificates.
    /// Errors: when none of them can be an authority.
    pub(super) fn new(listed: Vec<CertificateDer<'static>>) -> Result<Self, VerifierBuilderError> {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(listed.iter().cloned());
        let provider = Arc::new(ring::default_provider());
        let signed = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
        Ok(Self { listed, signed })
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.signed.verify_server_cert(certificate, between, name, stapled, now);
        match verified {
            // The validity period is checked first, so any other error concerns the certificate's purpose.
            Err(Error::InvalidCertificate(objection))
                if !is_of_time(&objection) && self.listed.contains(certificate) =>
            {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.signed.supported_verify_schemes()
    }
}

fn is_of_time(objection: &CertificateError) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(objection, Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};

    use super::*;

    fn made(is_authority: IsCa) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["engine.local".to_owned()]).unwrap();
        params.is_ca = is_authority;
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn verdict(
        listed: &CertificateDer<'static>,
        shown: &CertificateDer<'_>,
        name: &str,
        now: UnixTime,
    ) -> Result<(), Error> {
        let pinned = Pinned::new(vec![listed.clone()]).unwrap();
        pinned.verify_server_cert(shown, &[], &ServerName::try_from(name.to_owned()).unwrap(), &[], now).map(drop)
    }

    #[test]
    fn a_listed_certificate_is_trusted_whatever_its_purpose() {
        let authority = IsCa::Ca(BasicConstraints::Unconstrained);
        for kind in [authority, IsCa::NoCa, IsCa::ExplicitNoCa] {
            let certificate = made(kind);
            verdict(&certificate, &certificate, "engine.local", UnixTime::now()).unwrap();
            assert!(verdict(&certificate, &certificate, "other.local", UnixTime::now()).is_err(), "{kind:?}");
            assert!(verdict(&made(kind), &certificate, "engine.local", UnixTime::now()).is_err());
            // It holds from 1975 to 4096.
            let early =
                verdict(&certificate, &certificate, "engine.local", UnixTime::since_unix_epoch(Duration::from_secs(1)));
            assert!(early.is_err(), "it does not hold yet");
            let end = UnixTime::since_unix_epoch(Duration::from_secs(1 << 40));
            assert!(verdict(&certificate, &certificate, "engine.local", end).is_err(), "it has expired");
        }
    }
}
