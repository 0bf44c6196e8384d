//! Location of a tokenizer's files: a directory, a `tokenizer.json`, or a Hub id.
//!
//! A Hub id is looked up in the local Hub cache first. There only the revision in `refs/main` is used, or the only
//! snapshot where that file is missing.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::{PromptError, hub::Hub};

/// The bytes of a tokenizer's files; only the first is required.
#[derive(Debug)]
pub(super) struct Files {
    /// For people: the Hub id or the directory's name.
    pub name: String,
    /// Path of `tokenizer.json`.
    pub path: PathBuf,
    /// `tokenizer.json`.
    pub tokenizer: Vec<u8>,
    /// `tokenizer_config.json`.
    pub config: Option<Vec<u8>>,
    /// `chat_template.jinja`, or the string in `chat_template.json`.
    pub template: Option<String>,
    /// `generation_config.json`.
    pub generation: Option<Vec<u8>>,
    /// `config.json`, the model's.
    pub model: Option<Vec<u8>>,
}

/// Finds and reads the files that `spec` names; `cache` is the Hub cache to look in, `hub` fetches what is not there.
pub(super) fn read(spec: &str, cache: Option<&Path>, hub: Option<&Hub<'_>>) -> Result<Files, PromptError> {
    let path = Path::new(spec);
    let (name, file) = if path.is_dir() {
        (directory_name(path), in_directory(path)?)
    } else if path.is_file() {
        (path.parent().map_or_else(|| spec.to_owned(), directory_name), path.to_path_buf())
    } else if is_hub_id(spec) {
        (spec.to_owned(), from_hub(spec, cache, hub)?)
    } else {
        return Err(PromptError::PathMissing(path.to_path_buf()));
    };
    let beside = |wanted: &str| optional(&file.with_file_name(wanted));
    let template = match beside("chat_template.jinja")? {
        Some(bytes) => Some(text(&file.with_file_name("chat_template.jinja"), bytes)?),
        None => beside("chat_template.json")?.map(|bytes| template_in_json(&file, &bytes)).transpose()?.flatten(),
    };
    Ok(Files {
        name,
        tokenizer: fs::read(&file).map_err(|source| PromptError::Unreadable { path: file.clone(), source })?,
        config: beside("tokenizer_config.json")?,
        generation: beside("generation_config.json")?,
        model: beside("config.json")?,
        template,
        path: file,
    })
}

/// The Hub cache that the environment names: `HF_HUB_CACHE`, `HF_HOME/hub`, `XDG_CACHE_HOME/huggingface/hub`,
/// `~/.cache/huggingface/hub`.
pub(super) fn hub_cache() -> Option<PathBuf> {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("HF_HUB_CACHE")
        .or_else(|| set("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("huggingface/hub")))
        .or_else(|| set("HOME").map(|home| home.join(".cache/huggingface/hub")))
}

/// `name` or `organisation/name`, of the characters the Hub allows.
fn is_hub_id(spec: &str) -> bool {
    let allowed = |part: &str| {
        !part.is_empty()
            && !part.starts_with(['.', '-'])
            && part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    };
    let mut parts = spec.split('/');
    parts.clone().count() <= 2 && parts.all(allowed) && !spec.ends_with(".json")
}

fn directory_name(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    absolute.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn in_directory(directory: &Path) -> Result<PathBuf, PromptError> {
    let file = directory.join("tokenizer.json");
    if file.is_file() { Ok(file) } else { Err(PromptError::NoTokenizerJson(directory.to_path_buf())) }
}

fn from_hub(id: &str, cache: Option<&Path>, hub: Option<&Hub<'_>>) -> Result<PathBuf, PromptError> {
    let cached = in_hub_cache(id, cache);
    let Some(hub) = hub.filter(|_| cached.is_err()) else { return cached };
    hub.fetch(id)?;
    in_hub_cache(id, cache)
}

fn in_hub_cache(id: &str, cache: Option<&Path>) -> Result<PathBuf, PromptError> {
    let root = cache.unwrap_or(Path::new("~/.cache/huggingface/hub"));
    let model = root.join(format!("models--{}", id.replace('/', "--")));
    let missing = |looked_for| PromptError::NotInHubCache { id: id.to_owned(), looked_for };
    if !model.is_dir() {
        return Err(missing(model));
    }
    let snapshots = model.join("snapshots");
    let revision = match fs::read_to_string(model.join("refs/main")) {
        Ok(revision) => snapshots.join(revision.trim()),
        Err(_) => only_entry(&snapshots).ok_or_else(|| missing(model.join("refs/main")))?,
    };
    let file = revision.join("tokenizer.json");
    if file.is_file() { Ok(file) } else { Err(missing(file)) }
}

fn only_entry(directory: &Path) -> Option<PathBuf> {
    let mut entries = fs::read_dir(directory).ok()?;
    let first = entries.next()?.ok()?;
    entries.next().is_none().then(|| first.path())
}

fn optional(path: &Path) -> Result<Option<Vec<u8>>, PromptError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PromptError::Unreadable { path: path.to_path_buf(), source }),
    }
}

fn text(path: &Path, bytes: Vec<u8>) -> Result<String, PromptError> {
    String::from_utf8(bytes)
        .map_err(|error| PromptError::BadConfig { origin: path.display().to_string(), reason: error.to_string() })
}

fn template_in_json(tokenizer: &Path, bytes: &[u8]) -> Result<Option<String>, PromptError> {
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| PromptError::BadConfig {
        origin: tokenizer.with_file_name("chat_template.json").display().to_string(),
        reason: error.to_string(),
    })?;
    Ok(value.get("chat_template").and_then(|template| template.as_str()).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &Path, content: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    #[test]
    fn a_hub_id_is_looked_up_in_the_cache() {
        let cache = tempfile::tempdir().unwrap();
        let model = cache.path().join("models--Qwen--Qwen3-0.6B");
        let error = read("Qwen/Qwen3-0.6B", Some(cache.path()), None).unwrap_err().to_string();
        assert!(error.contains(&model.display().to_string()) && error.contains("--tokenizer DIR"), "{error}");
        file(&model.join("refs/main"), "abc\n");
        assert!(matches!(
            read("Qwen/Qwen3-0.6B", Some(cache.path()), None),
            Err(PromptError::NotInHubCache { looked_for, .. }) if looked_for.ends_with("snapshots/abc/tokenizer.json")
        ));
        file(&model.join("snapshots/abc/tokenizer.json"), "{}");
        file(&model.join("snapshots/abc/chat_template.json"), r#"{"chat_template":"hi"}"#);
        let files = read("Qwen/Qwen3-0.6B", Some(cache.path()), None).unwrap();
        assert_eq!((files.name.as_str(), files.template.as_deref()), ("Qwen/Qwen3-0.6B", Some("hi")));
    }

    #[test]
    fn each_mistake_has_its_own_error() {
        let directory = tempfile::tempdir().unwrap();
        let spec = directory.path().display().to_string();
        assert!(matches!(read(&spec, None, None), Err(PromptError::NoTokenizerJson(_))));
        assert!(matches!(read("/nowhere/at/all", None, None), Err(PromptError::PathMissing(_))));
        assert!(matches!(read("./nowhere", None, None), Err(PromptError::PathMissing(_))));
        file(&directory.path().join("tokenizer.json"), "{}");
        file(&directory.path().join("chat_template.jinja"), "there");
        let by_directory = read(&spec, None, None).unwrap();
        let by_file = read(&format!("{spec}/tokenizer.json"), None, None).unwrap();
        assert_eq!(by_directory.template.as_deref(), Some("there"));
        assert_eq!(by_directory.name, by_file.name);
    }
}
