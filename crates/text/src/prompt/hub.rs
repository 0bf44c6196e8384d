//! Fetches a tokenizer's files from the Hugging Face Hub into the local Hub cache, where other tools find them too.
//!
//! `HF_ENDPOINT`, `HF_TOKEN` and `HF_HUB_OFFLINE` mean what they mean to `huggingface_hub`. Of a model's files only those
//! that a tokenizer consists of are fetched, of the revision that `main` is at; a second start finds them in the cache.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::PromptError;

/// The first is required.
const FILES: [&str; 6] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "config.json",
];

/// Downloads an address with a bearer token, by whatever HTTP client a program has; `None` if nothing is there, or nothing for
/// this token. The error is a message.
pub type Download = dyn Fn(&str, Option<&str>) -> Result<Option<Vec<u8>>, String>;

/// A Hub to fetch from, and the cache to fetch into.
pub(super) struct Hub<'a> {
    endpoint: String,
    token: Option<String>,
    cache: PathBuf,
    download: &'a Download,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

impl<'a> Hub<'a> {
    /// The Hub by the environment's variables; `None` where they turn the network off.
    pub(super) fn from_env(cache: Option<&Path>, download: &'a Download) -> Option<Self> {
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let is_yes = |value: String| matches!(value.to_ascii_lowercase().as_str(), "1" | "true" | "yes" | "on");
        let offline = set("HF_HUB_OFFLINE").is_some_and(is_yes);
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        if offline { None } else { Some(Self::at(&endpoint, set("HF_TOKEN"), cache?.to_owned(), download)) }
    }

    fn at(endpoint: &str, token: Option<String>, cache: PathBuf, download: &'a Download) -> Self {
        Self { endpoint: endpoint.trim_end_matches('/').to_owned(), token, cache, download }
    }

    /// Fetches the files of `id` into the cache.
    pub(super) fn fetch(&self, id: &str) -> Result<(), PromptError> {
        tracing::info!(id, endpoint = self.endpoint, "fetching the tokenizer");
        self.try_fetch(id).map_err(|reason| PromptError::NotFetched {
            id: id.to_owned(),
            endpoint: self.endpoint.clone(),
            reason,
        })
    }

    fn try_fetch(&self, id: &str) -> Result<(), String> {
        let revision = self.get(&format!("/api/models/{id}/revision/main"))?;
        let revision = revision.ok_or("there is no such model, or it is private and HF_TOKEN does not open it")?;
        let Revision { sha } = serde_json::from_slice(&revision).map_err(|error| error.to_string())?;
        if sha.is_empty() || !sha.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(format!("`{sha}` is not a revision"));
        }
        let mut files = Vec::new();
        for name in FILES {
            match self.get(&format!("/{id}/resolve/{sha}/{name}"))? {
                Some(content) => files.push((name, content)),
                None if name == "tokenizer.json" => return Err("the model has no tokenizer.json".to_owned()),
                None => {}
            }
        }
        self.keep(id, &sha, &files).map_err(|error| format!("{}: {error}", self.cache.display()))
    }

    /// Downloads a path; `None` if nothing is there.
    fn get(&self, path: &str) -> Result<Option<Vec<u8>>, String> {
        (self.download)(&format!("{}{path}", self.endpoint), self.token.as_deref())
            .map_err(|error| format!("{path}: {error}"))
    }

    /// Puts files where `huggingface_hub` would. The reference comes last: until then the model counts as absent.
    fn keep(&self, id: &str, sha: &str, files: &[(&str, Vec<u8>)]) -> io::Result<()> {
        let model = self.cache.join(format!("models--{}", id.replace('/', "--")));
        let snapshot = model.join("snapshots").join(sha);
        fs::create_dir_all(&snapshot)?;
        fs::create_dir_all(model.join("refs"))?;
        for (name, content) in files {
            write_whole(&snapshot.join(name), content)?;
        }
        write_whole(&model.join("refs/main"), sha.as_bytes())
    }
}

/// Writes a file atomically; several processes may write it at once.
fn write_whole(path: &Path, content: &[u8]) -> io::Result<()> {
    let partial = path.with_extension(format!("partial-{}", std::process::id()));
    fs::write(&partial, content)?;
    fs::rename(&partial, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: &str = "http://hub.example/";

    /// The download of these paths, which only the token opens.
    fn known(
        paths: &'static [(&str, &str)],
    ) -> impl Fn(&str, Option<&str>) -> Result<Option<Vec<u8>>, String> + 'static {
        |url, token| {
            let path = url.strip_prefix("http://hub.example").ok_or("another host")?;
            let found = paths.iter().find(|(at, _)| *at == path && token == Some("hf_secret"));
            Ok(found.map(|(_, content)| content.as_bytes().to_owned()))
        }
    }

    fn hub<'a>(download: &'a Download, cache: &Path) -> Hub<'a> {
        Hub::at(ENDPOINT, Some("hf_secret".to_owned()), cache.to_owned(), download)
    }

    #[test]
    fn files_come_into_the_cache() {
        let cache = tempfile::tempdir().unwrap();
        let download = known(&[
            ("/api/models/org/name/revision/main", r#"{"sha":"abc123"}"#),
            ("/org/name/resolve/abc123/tokenizer.json", "{}"),
            ("/org/name/resolve/abc123/chat_template.jinja", "hi"),
        ]);
        hub(&download, cache.path()).fetch("org/name").unwrap();
        let model = cache.path().join("models--org--name");
        assert_eq!(fs::read_to_string(model.join("refs/main")).unwrap(), "abc123");
        assert_eq!(fs::read_to_string(model.join("snapshots/abc123/chat_template.jinja")).unwrap(), "hi");
        assert_eq!(fs::read_dir(model.join("snapshots/abc123")).unwrap().count(), 2);
    }

    #[test]
    fn fetch_errors_do_not_contain_the_token() {
        let cache = tempfile::tempdir().unwrap();
        let download = known(&[
            ("/api/models/no/file/revision/main", r#"{"sha":"abc"}"#),
            ("/api/models/bad/sha/revision/main", r#"{"sha":"../../etc"}"#),
        ]);
        let hub = hub(&download, cache.path());
        for (id, reason) in [
            ("no/model", "no such model"),
            ("no/file", "the model has no tokenizer.json"),
            ("bad/sha", "`../../etc` is not a revision"),
        ] {
            let error = hub.fetch(id).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("--tokenizer DIR"), "{error}");
            assert!(!error.contains("hf_secret"), "{error}");
        }
        let refused = |_: &str, _: Option<&str>| Err("connection refused".to_owned());
        let nowhere = Hub::at("http://127.0.0.1:1", None, cache.path().to_owned(), &refused);
        let error = nowhere.fetch("a/b").unwrap_err().to_string();
        assert!(error.contains("cannot be fetched from http://127.0.0.1:1") && error.contains("refused"), "{error}");
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
    }
}
