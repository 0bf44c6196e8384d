//! Objects through the crate `object_store`: requests run on a runtime of their own, and the reader or writer waits for
//! them, so that it works on any thread.
//!
//! Every wait is bounded: a store that does not answer ends with an error. Memory is too: a reader has two batches, an
//! upload two parts.

use std::{
    collections::{HashMap, VecDeque},
    env,
    io::{self, Read, Write},
    sync::{Arc, LazyLock, mpsc},
    time::Duration,
};

use base::{causes::causes, lock::Lock, one_line::clipped};
use bytes::{Buf, Bytes};
use futures_util::{TryStreamExt, stream::BoxStream};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use object_store::{
    BackoffConfig, ClientOptions, Error, MultipartUpload, ObjectStore, ObjectStoreExt, RetryConfig,
    aws::AmazonS3Builder, azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder, http::HttpBuilder, path,
};
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

use super::{ObjectUrl, PART, StoragePlace, Upload};

/// The longest wait for a connection, for an answer, for a part that is uploaded, and for giving an upload up. Together they
/// are less than half a minute.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
const PART_WITHIN: Duration = Duration::from_secs(15);
const ABORT_WITHIN: Duration = Duration::from_secs(3);

/// Time after which a failed request is not sent again.
const RETRY_WITHIN: Duration = Duration::from_secs(6);
const MOST_RETRIES: usize = 4;

/// Bytes that are read ahead.
const BATCH: usize = 256 << 10;
/// Characters of a store's error that are kept.
const MOST_SHOWN: usize = 500;

/// Variables with the address of another server than the cloud's own.
const ENDPOINTS: [&str; 6] = [
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_ENDPOINT",
    "AZURE_STORAGE_ENDPOINT",
    "AZURE_ENDPOINT",
    "GOOGLE_BASE_URL",
];

static RUNTIME: LazyLock<io::Result<Runtime>> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).thread_name("storage").enable_all().build());

static STORES: LazyLock<Lock<HashMap<StoragePlace, Arc<dyn ObjectStore>>>> = LazyLock::new(Lock::default);

struct StorageRequest<T>(mpsc::Receiver<io::Result<T>>);

impl<T: Send + 'static> StorageRequest<T> {
    fn begin(within: Duration, work: impl Future<Output = Result<T, Error>> + Send + 'static) -> io::Result<Self> {
        let runtime = RUNTIME.as_ref().map_err(|error| io::Error::new(error.kind(), error.to_string()))?;
        let (done, ended) = mpsc::sync_channel(1);
        runtime.spawn(async move {
            let ended = timeout(within, work).await.unwrap_or_else(|_| {
                let source = format!("no answer within {} s", within.as_secs()).into();
                Err(Error::Generic { store: "storage", source })
            });
            // Nobody waits any more for what was given up.
            let _given_up = done.send(ended.map_err(|error| failure(&error)));
        });
        Ok(Self(ended))
    }

    fn wait(self) -> io::Result<T> {
        self.0.recv().unwrap_or_else(|_| Err(io::Error::other("the request was given up")))
    }
}

#[derive(Debug)]
pub(super) struct StorageClient {
    store: Arc<dyn ObjectStore>,
    key: path::Path,
}

impl StorageClient {
    pub(super) fn connect(url: &ObjectUrl) -> io::Result<Self> {
        let is_web = matches!(url.store, StoragePlace::Web { .. } | StoragePlace::Hub { .. });
        let key =
            if is_web { path::Path::from_url_path(&url.key) } else { path::Path::parse(url.key.trim_end_matches('/')) };
        let key = key.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))?;
        if let Some(known) = STORES.lock().get(&url.store) {
            return Ok(Self { store: Arc::clone(known), key });
        }
        let store = build(&url.store).map_err(|error| failure(&error))?;
        STORES.lock().insert(url.store.clone(), Arc::clone(&store));
        Ok(Self { store, key })
    }

    pub(super) fn open(&self) -> io::Result<(u64, Box<dyn Read + Send>)> {
        let (store, key) = (Arc::clone(&self.store), self.key.clone());
        let found = StorageRequest::begin(ANSWER_WITHIN, async move { store.get(&key).await })?.wait()?;
        let length = found.meta.size;
        let next = Some(ObjectReader::fetch(found.into_stream())?);
        Ok((length, Box::new(ObjectReader { next, batch: VecDeque::new(), left: length })))
    }

    pub(super) fn exists(&self) -> io::Result<bool> {
        let (store, key) = (Arc::clone(&self.store), self.key.clone());
        match StorageRequest::begin(ANSWER_WITHIN, async move { store.head(&key).await })?.wait() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) fn names(&self, folder: &str) -> io::Result<Vec<String>> {
        let store = Arc::clone(&self.store);
        let folder = path::Path::parse(folder).map_err(|error| io::Error::other(error.to_string()))?;
        let listed = async move { store.list_with_delimiter(Some(&folder)).await };
        let found = StorageRequest::begin(ANSWER_WITHIN, listed)?.wait()?;
        Ok(found.objects.iter().filter_map(|object| object.location.filename().map(str::to_owned)).collect())
    }

    pub(super) fn create(&self) -> io::Result<Box<dyn Upload>> {
        let (store, key) = (Arc::clone(&self.store), self.key.clone());
        let upload = StorageRequest::begin(ANSWER_WITHIN, async move { store.put_multipart(&key).await })?.wait()?;
        Ok(Box::new(PartedUpload { upload: Some(upload), waiting: Vec::new(), sending: None }))
    }
}

fn build(store: &StoragePlace) -> Result<Arc<dyn ObjectStore>, Error> {
    // The client takes the provider of the process; where there is one already, it is the same.
    let _there_already = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    let is_plain = |url: &str| url.starts_with("http://");
    let to_plain = || ENDPOINTS.iter().filter_map(|name| env::var(name).ok()).any(|url| is_plain(&url));
    let options = || {
        ClientOptions::new().with_timeout_disabled().with_connect_timeout(CONNECT_WITHIN).with_allow_http(to_plain())
    };
    let backoff = BackoffConfig { max_backoff: Duration::from_secs(2), ..BackoffConfig::default() };
    let retry = RetryConfig { backoff, max_retries: MOST_RETRIES, retry_timeout: RETRY_WITHIN };
    Ok(match store {
        StoragePlace::S3 { bucket } => {
            let builder = AmazonS3Builder::from_env().with_bucket_name(bucket);
            Arc::new(builder.with_client_options(options()).with_retry(retry).build()?)
        }
        StoragePlace::Google { bucket } => {
            let builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket);
            Arc::new(builder.with_client_options(options()).with_retry(retry).build()?)
        }
        StoragePlace::Azure { container } => {
            let builder = MicrosoftAzureBuilder::from_env().with_container_name(container);
            Arc::new(builder.with_client_options(options()).with_retry(retry).build()?)
        }
        StoragePlace::Web { origin } => {
            let options = options().with_allow_http(is_plain(origin));
            Arc::new(HttpBuilder::new().with_url(origin).with_client_options(options).with_retry(retry).build()?)
        }
        StoragePlace::Hub { endpoint } => {
            let options = options().with_allow_http(is_plain(endpoint)).with_default_headers(hub_token());
            Arc::new(HttpBuilder::new().with_url(endpoint).with_client_options(options).with_retry(retry).build()?)
        }
    })
}

fn hub_token() -> HeaderMap {
    let token = env::var("HF_TOKEN").ok().filter(|token| !token.is_empty());
    let value = token.and_then(|token| HeaderValue::try_from(format!("Bearer {token}")).ok());
    let mut headers = HeaderMap::new();
    if let Some(mut value) = value {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    headers
}

/// An error in one line, without the queries of URLs, which may be signatures.
fn failure(error: &Error) -> io::Error {
    let kind = match error {
        Error::NotFound { .. } => io::ErrorKind::NotFound,
        Error::AlreadyExists { .. } => io::ErrorKind::AlreadyExists,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => io::ErrorKind::PermissionDenied,
        Error::NotSupported { .. } | Error::NotImplemented { .. } => io::ErrorKind::Unsupported,
        _ => io::ErrorKind::Other,
    };
    let mut text = error.to_string();
    let deepest = causes(error).last().map(ToString::to_string).filter(|deepest| !text.contains(deepest));
    text.extend(deepest.map(|deepest| format!(": {deepest}")));
    io::Error::new(kind, clipped(&without_queries(&text), MOST_SHOWN))
}

fn without_queries(text: &str) -> String {
    let word = |word: &str| match word.split_once('?') {
        Some((url, _)) if word.contains("://") => format!("{url}?…"),
        _ => word.to_owned(),
    };
    text.split_whitespace().map(word).collect::<Vec<_>>().join(" ")
}

type Pieces = BoxStream<'static, Result<Bytes, Error>>;

/// An object that is read: while one batch is taken, the next one comes.
struct ObjectReader {
    next: Option<StorageRequest<(VecDeque<Bytes>, Pieces)>>,
    batch: VecDeque<Bytes>,
    /// Bytes that have not been read.
    left: u64,
}

impl ObjectReader {
    fn fetch(mut pieces: Pieces) -> io::Result<StorageRequest<(VecDeque<Bytes>, Pieces)>> {
        StorageRequest::begin(ANSWER_WITHIN, async move {
            let (mut batch, mut bytes) = (VecDeque::new(), 0);
            while bytes < BATCH
                && let Some(piece) = pieces.try_next().await?
            {
                bytes += piece.len();
                batch.push_back(piece);
            }
            Ok((batch, pieces))
        })
    }
}

impl Read for ObjectReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            while let Some(piece) = self.batch.front_mut() {
                let length = piece.len().min(into.len());
                if length > 0 || into.is_empty() {
                    piece.copy_to_slice(into.get_mut(..length).unwrap_or_default());
                    self.left = self.left.saturating_sub(length as u64);
                    return Ok(length);
                }
                self.batch.pop_front();
            }
            let Some(next) = self.next.take() else { return Ok(0) };
            let (batch, pieces) = next.wait()?;
            if batch.is_empty() {
                let cut = || io::Error::other(format!("the store sent {} bytes too few", self.left));
                return if self.left > 0 { Err(cut()) } else { Ok(0) };
            }
            (self.batch, self.next) = (batch, Some(Self::fetch(pieces)?));
        }
    }
}

/// An object that is written: while one part is sent, the next one is gathered.
struct PartedUpload {
    /// `None` once it is finished.
    upload: Option<Box<dyn MultipartUpload>>,
    waiting: Vec<u8>,
    sending: Option<StorageRequest<()>>,
}

impl PartedUpload {
    fn send(&mut self, part: Vec<u8>) -> io::Result<()> {
        self.settle()?;
        let upload = self.upload.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        self.sending = Some(StorageRequest::begin(PART_WITHIN, upload.put_part(part.into()))?);
        Ok(())
    }

    fn settle(&mut self) -> io::Result<()> {
        self.sending.take().map_or(Ok(()), StorageRequest::wait)
    }
}

impl Write for PartedUpload {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        while self.waiting.len() >= PART {
            let rest = self.waiting.split_off(PART);
            let part = std::mem::replace(&mut self.waiting, rest);
            self.send(part)?;
        }
        Ok(bytes.len())
    }

    /// What is gathered stays until it is a part.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Upload for PartedUpload {
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        let last = std::mem::take(&mut self.waiting);
        if !last.is_empty() {
            self.send(last)?;
        }
        self.settle()?;
        let mut upload = self.upload.take().ok_or(io::ErrorKind::NotConnected)?;
        let completed = async move {
            let completed = upload.complete().await.map(drop);
            if completed.is_err() {
                let _first_error_counts = upload.abort().await;
            }
            completed
        };
        StorageRequest::begin(ANSWER_WITHIN, completed)?.wait()
    }
}

impl Drop for PartedUpload {
    fn drop(&mut self) {
        let Some(mut upload) = self.upload.take() else { return };
        let aborted =
            StorageRequest::begin(ABORT_WITHIN, async move { upload.abort().await }).and_then(StorageRequest::wait);
        if let Err(error) = aborted {
            tracing::warn!(%error, "parts of an object that was given up may be left in the store");
        }
    }
}
