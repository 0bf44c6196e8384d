//! Objects in the place of files: a path that is a URL names one in a store (`s3://`, `gs://`, `az://`) or on the web
//! (`hf://`, `https://`, which are only read).
//!
//! Without the feature `object-storage` such a path is refused by name, before anything is done.
//!
//! Limits: it knows bytes, not what is in them. Credentials come from the environment alone; a URL with any is refused, and
//! no error repeats it.
//!
//! See docs/decisions/0145-objects-in-the-place-of-files.md.

use std::{
    env, fs,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

#[cfg(not(feature = "object-storage"))]
mod absent;
#[cfg(feature = "object-storage")]
mod client;

#[cfg(not(feature = "object-storage"))]
use absent::AbsentClient as StorageClient;
#[cfg(feature = "object-storage")]
use client::StorageClient;

/// Bytes after which a capture goes on in another object: no object has more than 10,000 parts.
pub const MOST_BYTES: u64 = 9_000 * PART as u64;

/// Bytes of an upload's part: no store takes smaller ones.
const PART: usize = 5 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum StoragePlace {
    S3 { bucket: String },
    Google { bucket: String },
    Azure { container: String },
    Web { origin: String },
    Hub { endpoint: String },
}

/// The URL of an object, or of a folder of them where it ends in a slash.
#[derive(Debug, Clone, PartialEq, Eq)]
struct ObjectUrl {
    store: StoragePlace,
    key: String,
}

/// An object, which may not be there.
#[derive(Debug)]
pub struct StoredObject {
    client: StorageClient,
    url: ObjectUrl,
}

/// An object that is being written: it is there once it is finished, and given up where it is dropped before.
pub trait Upload: Write + Send {
    /// Waits for what was written, and makes the object.
    ///
    /// # Errors
    /// When the store does not take it; nothing is left then.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// Returns true if a path is a URL.
#[must_use]
pub fn is_url(path: &Path) -> bool {
    scheme_of(path).is_some()
}

/// A path as it may be shown: without the credentials that a URL should not have.
#[must_use]
pub fn shown(path: &Path) -> PathBuf {
    let Some((scheme, rest)) = scheme_of(path) else { return path.to_owned() };
    let rest = rest.split_once(['?', '#']).map_or(rest, |(before, _)| before);
    let (host, key) = split_host(rest);
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let slash = if key.is_empty() && !rest.ends_with('/') { "" } else { "/" };
    PathBuf::from(format!("{scheme}://{host}{slash}{key}"))
}

/// Refuses a URL that no object can have, or that this program was not built for.
///
/// # Errors
/// What is wrong with it, without its text.
pub fn check(path: &Path) -> io::Result<()> {
    find(path).map(drop)
}

/// The object that a path names; `None` for the path of a file.
///
/// # Errors
/// When its URL is wrong, the program was built without object storage, or the environment's settings are wrong.
pub fn find(path: &Path) -> io::Result<Option<StoredObject>> {
    let Some((scheme, rest)) = scheme_of(path) else { return Ok(None) };
    let wrong = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
    let url = parse(scheme, rest, hub_endpoint()).map_err(wrong)?;
    Ok(Some(StoredObject { client: StorageClient::connect(&url)?, url }))
}

/// The folder that a file is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The paths of what is directly in a folder, or in an object's.
///
/// # Errors
/// When the folder cannot be read, or its store has no folders or does not answer in time.
pub fn entries(folder: &Path, object: Option<&StoredObject>) -> io::Result<Vec<PathBuf>> {
    match object {
        Some(object) => Ok(object.names()?.iter().map(|name| folder.join(name)).collect()),
        None => fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect(),
    }
}

impl StoredObject {
    /// Opens it: its length in bytes, and a reader that fetches it as it is read.
    pub(crate) fn open(&self) -> io::Result<(u64, Box<dyn Read + Send>)> {
        self.client.open()
    }

    /// Reads it as a whole, where it has no more than `most` bytes.
    pub(crate) fn read(&self, most: u64) -> io::Result<Vec<u8>> {
        let (length, reader) = self.open()?;
        if length > most {
            let message = format!("it has more than {most} bytes, the most that is read");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        let mut bytes = Vec::new();
        reader.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns true if it is a folder's, not an object's.
    #[must_use]
    pub fn is_folder(&self) -> bool {
        self.url.key.is_empty() || self.url.key.ends_with('/')
    }

    /// Returns true if the objects beside it can be listed.
    pub(crate) fn is_listed(&self) -> bool {
        !matches!(self.url.store, StoragePlace::Web { .. } | StoragePlace::Hub { .. })
    }

    /// The names of the objects in its folder, which is itself where it is one. Not every store has folders.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        if !self.is_listed() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a folder cannot be listed there; name its files"));
        }
        self.client.names(self.url.key.rsplit_once('/').map_or("", |(folder, _)| folder))
    }

    /// Begins to write it. One that is there has to be `replaced`, and some places are only read.
    pub(crate) fn create(&self, replaced: bool) -> io::Result<Box<dyn Upload>> {
        if !self.is_listed() {
            let message = "objects there are only read; write to s3://, gs:// or az://, or to a file";
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        if self.client.exists()? && !replaced {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        self.client.create()
    }
}

/// The scheme of a URL, and what follows it; `None` for the path of a file.
fn scheme_of(path: &Path) -> Option<(&str, &str)> {
    let (scheme, rest) = path.to_str()?.split_once("://")?;
    let is_scheme =
        scheme.len() > 1 && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme.then_some((scheme, rest))
}

fn split_host(rest: &str) -> (&str, &str) {
    rest.split_once('/').unwrap_or((rest, ""))
}

fn hub_endpoint() -> String {
    let set = env::var("HF_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty());
    set.unwrap_or_else(|| "https://huggingface.co".to_owned())
}

fn parse(scheme: &str, rest: &str, hub: String) -> Result<ObjectUrl, String> {
    let (host, key) = split_host(rest);
    if host.contains('@') {
        return Err(
            "a URL with a user or password is not used, as URLs are shown; credentials come from the environment"
                .to_owned(),
        );
    }
    if rest.contains(['?', '#']) {
        return Err("a URL with `?` or `#` is not used: signatures in it would be shown".to_owned());
    }
    if host.is_empty() {
        return Err(format!("nothing follows {scheme}://; write {scheme}://BUCKET/NAME.jsonl.gz"));
    }
    let (name, key) = (host.to_owned(), key.to_owned());
    match scheme {
        "s3" => Ok(ObjectUrl { store: StoragePlace::S3 { bucket: name }, key }),
        "gs" => Ok(ObjectUrl { store: StoragePlace::Google { bucket: name }, key }),
        "az" => Ok(ObjectUrl { store: StoragePlace::Azure { container: name }, key }),
        "https" | "http" => Ok(ObjectUrl { store: StoragePlace::Web { origin: format!("{scheme}://{name}") }, key }),
        "hf" => Ok(ObjectUrl { store: StoragePlace::Hub { endpoint: hub }, key: hub_key(rest)? }),
        other => Err(format!("{other}:// is not known; use s3://, gs://, az://, hf:// or https://")),
    }
}

/// `datasets/owner/name@revision/path` as the Hub serves it.
fn hub_key(rest: &str) -> Result<String, String> {
    let wrong = || "a file on the Hub is hf://datasets/OWNER/NAME/PATH, or …/NAME@REVISION/PATH".to_owned();
    let kinds = [("datasets/", "datasets/"), ("spaces/", "spaces/"), ("models/", "")];
    let of_kind = kinds.iter().find_map(|(written, served)| Some((rest.strip_prefix(written)?, *served)));
    let (rest, served) = of_kind.unwrap_or((rest, ""));
    let mut parts = rest.splitn(3, '/');
    let (Some(owner), Some(name), Some(path)) = (parts.next(), parts.next(), parts.next()) else { return Err(wrong()) };
    let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
    if [owner, name, revision, path].contains(&"") {
        return Err(wrong());
    }
    Ok(format!("{served}{owner}/{name}/resolve/{revision}/{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Result<ObjectUrl, String> {
        let (scheme, rest) = scheme_of(Path::new(url)).unwrap();
        parse(scheme, rest, "https://huggingface.co".to_owned())
    }

    #[test]
    fn a_path_of_a_file_is_no_url() {
        for path in ["a.jsonl", "./s3/a.jsonl", "-", "/a://b", "C:/a.jsonl", "c://a.jsonl", "://a"] {
            assert!(!is_url(Path::new(path)), "{path}");
            assert!(find(Path::new(path)).unwrap().is_none(), "{path}");
        }
    }

    #[test]
    fn urls_name_a_store_and_a_key() {
        let bucket = |name: &str| name.to_owned();
        for (url, store, key) in [
            ("s3://b/day/a b%20.jsonl", StoragePlace::S3 { bucket: bucket("b") }, "day/a b%20.jsonl"),
            ("gs://b/a.yaml", StoragePlace::Google { bucket: bucket("b") }, "a.yaml"),
            ("az://c/x/", StoragePlace::Azure { container: bucket("c") }, "x/"),
            ("https://h:8443/x/a.jsonl", StoragePlace::Web { origin: bucket("https://h:8443") }, "x/a.jsonl"),
        ] {
            assert_eq!(parsed(url), Ok(ObjectUrl { store, key: key.to_owned() }), "{url}");
        }
        for (url, key) in [
            ("hf://datasets/o/n/d/a.jsonl", "datasets/o/n/resolve/main/d/a.jsonl"),
            ("hf://datasets/o/n@v1/a.jsonl", "datasets/o/n/resolve/v1/a.jsonl"),
            ("hf://o/n@v1/a.jsonl", "o/n/resolve/v1/a.jsonl"),
            ("hf://models/o/n/a.jsonl", "o/n/resolve/main/a.jsonl"),
        ] {
            assert_eq!(parsed(url).map(|url| url.key), Ok(key.to_owned()), "{url}");
        }
    }

    #[test]
    fn a_wrong_url_is_refused_without_what_is_secret_in_it() {
        for (url, words) in [
            ("s3://key:secret@b/a.jsonl", "environment"),
            ("https://h/a.jsonl?X-Amz-Signature=secret", "signatures"),
            ("s3:///a.jsonl", "BUCKET"),
            ("ftp://h/a.jsonl", "ftp:// is not known"),
            ("hf://datasets/o/n", "OWNER"),
            ("hf://datasets/o/n@/a.jsonl", "OWNER"),
        ] {
            let error = find(Path::new(url)).unwrap_err().to_string();
            assert!(error.contains(words) && !error.contains("secret"), "{url}: {error}");
        }
        for (url, safe) in [
            ("https://u:p@h/a.jsonl?sig=x#y", "https://h/a.jsonl"),
            ("s3://b/a@b.jsonl", "s3://b/a@b.jsonl"),
            ("s3://b", "s3://b"),
            ("a?b#c@d", "a?b#c@d"),
        ] {
            assert_eq!(shown(Path::new(url)), Path::new(safe));
        }
    }

    #[cfg(not(feature = "object-storage"))]
    #[test]
    fn without_the_feature_a_url_says_how_to_get_it() {
        let error = find(Path::new("s3://b/a.jsonl")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("cargo install --path . --features object-storage"), "{error}");
    }
}
