//! TLS before HTTP: certificates from files, HTTP/2 and HTTP/1.1 offered to the client.
//!
//! TLS 1.2 and 1.3 by rustls. Limits: keys with a password are not read, and cipher suites cannot be chosen.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
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

/// Where certificates come from, as uvicorn and vLLM name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain, PEM (`--ssl-certfile`).
    pub certificate: PathBuf,
    /// Its private key, PEM (`--ssl-keyfile`); `None` where the certificate's file holds it too.
    pub key: Option<PathBuf>,
    /// Authorities that sign the certificates of clients, PEM (`--ssl-ca-certs`).
    pub authorities: Option<PathBuf>,
    /// Whether clients need a certificate (`--ssl-cert-reqs`).
    pub clients: ClientCertificates,
    /// Whether the files are read again when they changed (`--enable-ssl-refresh`).
    pub refresh: Option<Refresh>,
}

/// Whether clients need a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientCertificates {
    /// They are not asked for one.
    #[default]
    None,
    /// One that is shown has to be good.
    Optional,
    /// Nobody is let in without one.
    Required,
}

/// Files are read again when they changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refresh;

/// Why TLS cannot be had. Every message names the file and the flag that named it.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file that cannot be read.
    #[error("cannot read {path} ({flag})", path = path.display())]
    Unreadable {
        /// The flag that named it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that is no PEM.
    #[error("{path} ({flag}) is no PEM file", path = path.display())]
    Malformed {
        /// The flag that named it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Where reading ended.
        source: pem::Error,
    },
    /// A file without what it is for.
    #[error("{path} ({flag}) holds no {what}", path = path.display())]
    Missing {
        /// The flag that named it.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What was looked for.
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
        /// What is wrong.
        source: rustls::Error,
    },
    /// Clients are to show certificates, but nobody is named who signs them.
    #[error("--ssl-cert-reqs needs --ssl-ca-certs: certificates of clients have to be signed by someone")]
    NoAuthorities,
    /// Authorities that are unusable.
    #[error("the certificates of {path} (--ssl-ca-certs) cannot be used", path = path.display())]
    Authorities {
        /// Their file.
        path: PathBuf,
        /// What is wrong.
        source: VerifierBuilderError,
    },
}

const CERTIFICATE: &str = "--ssl-certfile";
const KEY: &str = "--ssl-keyfile";
const AUTHORITIES: &str = "--ssl-ca-certs";

/// What is offered, best first.
const PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// TLS for a listener.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    current: Mutex<Current>,
}

#[derive(Debug, Clone)]
struct Current {
    config: Arc<ServerConfig>,
    /// When the files had last changed.
    changed: Vec<Option<SystemTime>>,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// When a file cannot be read, is not what it is for, or they do not belong together.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let changed = files.changed();
        let config = Arc::new(files.config()?);
        Ok(Self { files, current: Mutex::new(Current { config, changed }) })
    }

    /// What handshakes are made with now.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if self.files.refresh.is_some() {
            let changed = self.files.changed();
            if changed != current.changed {
                current.changed = changed;
                match self.files.config() {
                    Ok(config) => current.config = Arc::new(config),
                    Err(error) => tracing::warn!(%error, "the certificate is kept as it was"),
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

    /// What judges the certificates of clients, where they are asked for one.
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

/// The certificates of a file, at least one.
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
