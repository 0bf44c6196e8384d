//! TLS for a listener: certificates from files, HTTP/2 and HTTP/1.1 offered by ALPN.
//!
//! TLS 1.2 and 1.3 by rustls. Limits: encrypted private keys are not read, and cipher suites cannot be chosen.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, RootCertStore, ServerConfig,
        crypto::{CryptoProvider, ring},
        pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
        server::{VerifierBuilderError, WebPkiClientVerifier, danger::ClientCertVerifier},
    },
};

use base::lock::Lock;
use base::rate_limited_log::RateLimitedLog;

/// Certificate files and options, with uvicorn's and vLLM's flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain, PEM (`--ssl-certfile`).
    pub certificate: PathBuf,
    /// The private key, PEM (`--ssl-keyfile`); `None` where the certificate's file holds it.
    pub key: Option<PathBuf>,
    /// Authorities for clients' certificates, PEM (`--ssl-ca-certs`).
    pub authorities: Option<PathBuf>,
    /// Client certificates: required or not (`--ssl-cert-reqs`).
    pub clients: ClientCertificates,
    /// Changed files are read again (`--enable-ssl-refresh`).
    pub refresh: bool,
}

/// The requirement for clients' certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// None is requested.
    #[default]
    None,
    /// One is requested and, where sent, verified.
    Optional,
    /// A valid one is required.
    Required,
}

/// Errors of a TLS configuration. Every message has the file and its flag.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read.
    #[error("cannot read {path} ({flag})", path = path.display())]
    Unreadable {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file that is not PEM.
    #[error("{path} ({flag}) is not a PEM file", path = path.display())]
    Malformed {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The parser's error.
        source: pem::Error,
    },
    /// A file without the expected item.
    #[error("{path} ({flag}) holds no {what}", path = path.display())]
    Missing {
        /// The flag.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// The expected item.
        what: &'static str,
    },
    /// A certificate and a key that are unusable, alone or together.
    #[error("the certificate of {certificate} (--ssl-certfile) and the key of {key} (--ssl-keyfile) cannot be used",
        certificate = certificate.display(), key = key.display())]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The library's error.
        source: rustls::Error,
    },
    /// Clients' certificates are requested without authorities to verify them.
    #[error("--ssl-cert-reqs needs --ssl-ca-certs: a file of authorities that sign clients' certificates")]
    NoAuthorities,
    /// Authorities that are unusable.
    #[error("the certificates of {path} (--ssl-ca-certs) cannot be used", path = path.display())]
    Authorities {
        /// The file of authorities.
        path: PathBuf,
        /// The library's error.
        source: VerifierBuilderError,
    },
}

const CERTIFICATE: &str = "--ssl-certfile";
const KEY: &str = "--ssl-keyfile";
const AUTHORITIES: &str = "--ssl-ca-certs";

/// Protocols offered by ALPN, preferred first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// TLS for a listener.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: Lock<Current>,
    failing: RateLimitedLog,
}

#[derive(Debug, Clone)]
struct Current {
    config: Arc<ServerConfig>,
    /// Modification times of the files.
    changed: Vec<Option<SystemTime>>,
}

impl Tls {
    /// Loads the files.
    ///
    /// # Errors
    /// When a file cannot be read or lacks the expected item, or when key and certificate do not match.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let changed = files.changed();
        let config = Arc::new(files.config()?);
        Ok(Self { files, current: Lock::new(Current { config, changed }), failing: RateLimitedLog::new() })
    }

    /// Returns the acceptor for the next handshake; reloads changed files where `refresh` is set.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock();
        if self.files.refresh {
            let changed = self.files.changed();
            if changed != current.changed {
                current.changed = changed;
                match self.files.config() {
                    Ok(config) => current.config = Arc::new(config),
                    Err(error) => {
                        if let Some(held) = self.failing.due() {
                            tracing::warn!(%error, held, "cannot reload the certificate; the previous one stays in use");
                        }
                    }
                }
            }
        }
        TlsAcceptor::from(Arc::clone(&current.config))
    }
}

impl TlsFiles {
    fn changed(&self) -> Vec<Option<SystemTime>> {
        let files = [Some(&self.certificate), self.key.as_ref(), self.authorities.as_ref()];
        let changed = |path: &PathBuf| fs::metadata(path).and_then(|found| found.modified()).ok();
        files.into_iter().flatten().map(changed).collect()
    }

    fn config(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let (key_flag, key_path) = self.key.as_ref().map_or((CERTIFICATE, &self.certificate), |path| (KEY, path));
        let unusable =
            |source| TlsError::Unusable { certificate: self.certificate.clone(), key: key_path.clone(), source };
        let chain = certificates(CERTIFICATE, &self.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&read(key_flag, key_path)?).map_err(|source| match source {
            pem::Error::NoItemsFound => {
                let what = "private key that can be read without a password";
                TlsError::Missing { flag: key_flag, path: key_path.clone(), what }
            }
            source => TlsError::Malformed { flag: key_flag, path: key_path.clone(), source },
        })?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(unusable)?;
        let builder = match self.verifier(provider)? {
            Some(verifier) => builder.with_client_cert_verifier(verifier),
            None => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
        config.alpn_protocols = PROTOCOLS.map(<[u8]>::to_vec).into();
        Ok(config)
    }

    /// Builds the verifier of clients' certificates; `None` where none is requested.
    fn verifier(&self, provider: Arc<CryptoProvider>) -> Result<Option<Arc<dyn ClientCertVerifier>>, TlsError> {
        if self.clients == ClientCertificates::None {
            return Ok(None);
        }
        let path = self.authorities.as_ref().ok_or(TlsError::NoAuthorities)?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(AUTHORITIES, path)?);
        let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        if self.clients == ClientCertificates::Optional {
            builder = builder.allow_unauthenticated();
        }
        let verifier = builder.build().map_err(|source| TlsError::Authorities { path: path.clone(), source })?;
        Ok(Some(verifier))
    }
}

/// Reads the certificates of a file, at least one.
fn certificates(flag: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let text = read(flag, path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(|source| TlsError::Malformed { flag, path: path.to_owned(), source })?;
    if found.is_empty() {
        return Err(TlsError::Missing { flag, path: path.to_owned(), what: "certificate" });
    }
    Ok(found)
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|source| TlsError::Unreadable { flag, path: path.to_owned(), source })
}
