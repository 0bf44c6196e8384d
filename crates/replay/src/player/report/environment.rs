//! The server that was recorded, and whether it is still the same: its engine, its models, its tokenizer.

use std::{collections::BTreeSet, time::Duration};

use http::{HeaderValue, Method, Request, Uri, header};
use serde_json::{Map, Value, json};
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64;

use crate::{account::EnvironmentChange, player::CassettePlayer};
use net::upstream::{OutgoingBody, Upstream, UpstreamOptions, UpstreamUrl};
use recording::{
    canonical::{SharedBody, UPSTREAM_HEADER, split_upstream},
    cassette::{Cassette, CassetteRecord, Header},
};

/// Timeout of each request about a server.
const PATIENCE: Duration = Duration::from_secs(2);

/// Maximum size of a response, in bytes.
const LARGEST: usize = 1 << 20;

/// A text that no two tokenizers cut alike.
pub const PROBE: &str = "The naïve fox (日本語 🦊) saw 12345.678 tokens;\n\tdef f(x): return  x ** 2  # don't";

/// Properties of a server, as far as its endpoints show them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerEnvironment {
    /// The engine with its version.
    pub engine: Option<String>,
    /// The models that it serves.
    pub models: Vec<String>,
    /// Names the tokenizer, by [`tokenizer_name`].
    pub tokenizer: Option<String>,
}

/// Names a tokenizer by what it makes of [`PROBE`], without special tokens.
#[must_use]
pub fn tokenizer_name(ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
    format!("probe:{:016x}", xxh3_64(&bytes))
}

impl ServerEnvironment {
    /// Requests the properties of a server.
    pub async fn at(url: &UpstreamUrl, reach: &UpstreamOptions) -> Self {
        let upstream = Upstream::new(url.clone(), reach);
        let (version, listed) = tokio::join!(fetch(&upstream, "/version", None), fetch(&upstream, "/v1/models", None));
        let engine = version.as_ref().and_then(|page| page.get("version")?.as_str());
        let listed = listed.as_ref().and_then(|page| page.get("data")?.as_array());
        let id = |model: &Value| model.get("id").and_then(Value::as_str).map(str::to_owned);
        let models: Vec<String> = listed.into_iter().flatten().filter_map(id).collect();
        let probe = json!({"model": models.first(), "prompt": PROBE, "add_special_tokens": false});
        let tokens = match models.first() {
            Some(_) => fetch(&upstream, "/tokenize", Some(&probe)).await,
            None => None,
        };
        let ids = tokens.and_then(|page| serde_json::from_value::<Vec<u32>>(page.get("tokens")?.clone()).ok());
        Self {
            engine: engine.map(|version| format!("vllm {version}")),
            models,
            tokenizer: ids.map(|ids| tokenizer_name(&ids)),
        }
    }

    /// Encodes the server for the header of a cassette.
    #[must_use]
    pub fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.extend(self.engine.clone().map(|engine| ("engine".to_owned(), engine.into())));
        if !self.models.is_empty() {
            fields.insert("models".to_owned(), self.models.clone().into());
        }
        fields.extend(self.tokenizer.clone().map(|tokenizer| ("tokenizer".to_owned(), tokenizer.into())));
        fields
    }

    /// Returns the differences from a cassette. A property that either side lacks is no change.
    #[must_use]
    pub fn changes(&self, cassette: &str, header: &Header) -> Vec<EnvironmentChange> {
        let mut changes = Vec::new();
        let mut compare = |what: &'static str, recorded: Option<String>, now: Option<String>| {
            if let (Some(recorded), Some(now)) = (recorded, now)
                && recorded != now
            {
                changes.push(EnvironmentChange { cassette: cassette.to_owned(), what, recorded, now });
            }
        };
        let text = |name: &str| header.recorded.get(name).and_then(Value::as_str).map(str::to_owned);
        compare("engine", text("engine"), self.engine.clone());
        let listed = header.recorded.get("models").and_then(Value::as_array);
        let recorded: Vec<&str> = listed.into_iter().flatten().filter_map(Value::as_str).collect();
        let missing = recorded.iter().any(|name| !self.models.iter().any(|model| model == name));
        // Further models change nothing of what was recorded.
        if missing && !self.models.is_empty() {
            compare("models", Some(recorded.join(", ")), Some(self.models.join(", ")));
        }
        compare("tokenizer", text("tokenizer"), self.tokenizer.clone());
        changes
    }
}

impl CassettePlayer {
    /// Compares a server with the ones that were recorded; returns the changes, which reports have from now on.
    pub fn compare(&self, now: &ServerEnvironment) -> &[EnvironmentChange] {
        let of_one = |cassette: &Cassette| {
            let name = cassette.path.file_name().map(|name| name.to_string_lossy().into_owned());
            now.changes(&name.unwrap_or_default(), &cassette.header)
        };
        self.environment.get_or_init(|| self.config.cassettes.iter().flat_map(of_one).collect())
    }

    /// Returns when the cassettes were recorded: the `clock` of a header, else the time of the first record.
    #[must_use]
    pub fn base_time(&self) -> Option<String> {
        let of_header = self.config.cassettes.iter().find_map(|cassette| cassette.header.clock.clone());
        of_header.or_else(|| self.records.iter().find_map(|(_, record)| record.side.as_ref()?.recorded_at.clone()))
    }

    pub(crate) fn changes(&self) -> &[EnvironmentChange] {
        self.environment.get().map(Vec::as_slice).unwrap_or_default()
    }
}

/// Requests JSON of a server; `None` if it has none.
async fn fetch(upstream: &Upstream, path: &'static str, body: Option<&Value>) -> Option<Value> {
    let bytes = body.map(Value::to_string).unwrap_or_default();
    let mut request = Request::new(OutgoingBody::whole(bytes.into()));
    *request.uri_mut() = Uri::from_static(path);
    if body.is_some() {
        request.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *request.method_mut() = Method::POST;
    }
    let response = timeout(PATIENCE, upstream.fetch(request, LARGEST)).await.ok()?.ok()?;
    response.status.is_success().then(|| serde_json::from_slice(&response.body).ok())?
}

/// Longest request that is shown as an example, in bytes.
const LONGEST_EXAMPLE: usize = 1000;

impl CassettePlayer {
    /// The models that were recorded, but for those that no server knew (404).
    #[must_use]
    pub fn models(&self) -> Vec<String> {
        let recorded = self.records.iter().enumerate().filter(|(_, (_, record))| record.answer.status != 404);
        let recorded = recorded.filter_map(|(at, _)| Some(self.index.identity(at)?.boundary.as_str()));
        let sorted: BTreeSet<&str> = recorded.filter_map(|boundary| boundary.strip_prefix("llm:")).collect();
        let names =
            sorted.into_iter().map(|name| split_upstream(name).0).filter(|name| !name.is_empty()).map(str::to_owned);
        let mut known = BTreeSet::new();
        let rules = self.answer_rules().map(|rules| rules.models()).unwrap_or_default();
        names.chain(rules).chain(self.fixtures.models()).filter(|name| known.insert(name.clone())).collect()
    }

    /// The names of upstreams that were recorded, or are there.
    #[must_use]
    pub fn upstreams(&self) -> BTreeSet<String> {
        let headers = self.records.iter().flat_map(|(_, record)| &record.headers);
        let recorded = headers.filter(|(name, _)| name == UPSTREAM_HEADER).map(|(_, upstream)| upstream);
        recorded.chain(&self.config.named_upstreams).cloned().collect()
    }

    /// Path and body of the first recorded request of a model that is short enough to be tried by hand, else of one that a hand-written
    /// record answers.
    #[must_use]
    pub fn example(&self) -> Option<(String, Value)> {
        let is_short = |body: &SharedBody| body.fields().is_object() && body.is_at_most(LONGEST_EXAMPLE);
        let is_fit = |(at, (_, record)): &(usize, &(usize, CassetteRecord))| {
            self.index.is_servable(*at)
                && record.method == "POST"
                && record.path.starts_with("/v1/")
                && is_short(&record.body)
        };
        let found = self.records.iter().enumerate().find(is_fit);
        let recorded = found.map(|(_, (_, record))| (record.path.clone(), record.body.value()));
        let by_rule = || self.answer_rules().and_then(|rules| rules.example());
        recorded.or_else(by_rule).or_else(|| self.fixtures.example())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_no_change() {
        let recorded = ServerEnvironment {
            engine: Some("vllm 0.32.0".to_owned()),
            models: vec!["m".to_owned()],
            tokenizer: Some(tokenizer_name(&[1, 2])),
        };
        let header = Header { recorded: recorded.fields(), ..Header::default() };
        assert!(recorded.changes("a.yaml", &header).is_empty());
        assert!(ServerEnvironment::default().changes("a.yaml", &header).is_empty());
        assert!(recorded.changes("a.yaml", &Header::default()).is_empty());
        let more = ServerEnvironment { models: vec!["n".to_owned(), "m".to_owned()], ..recorded.clone() };
        assert!(more.changes("a.yaml", &header).is_empty(), "further models are no change");
        let other = ServerEnvironment {
            engine: Some("vllm 0.33.0".to_owned()),
            models: vec!["n".to_owned()],
            tokenizer: Some(tokenizer_name(&[2, 1])),
        };
        let changed: Vec<&str> = other.changes("a.yaml", &header).iter().map(|change| change.what).collect();
        assert_eq!(changed, ["engine", "models", "tokenizer"]);
        let text = other.changes("a.yaml", &header)[0].to_string();
        assert_eq!(text, "a.yaml: recorded with engine vllm 0.32.0, now vllm 0.33.0");
    }
}
