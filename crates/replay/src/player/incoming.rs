//! A request that was read: its body, its identity and its secrets.

use api::is_set;
use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, request::Parts, uri::PathAndQuery};
use serde_json::Value;
use tokio::time::Instant;

use crate::{
    account::upstream_of,
    matching::named_later::NamedSecret,
    player::{PlayerConfig, receive::body::ReadBody, secrets},
};
use net::server::RequestBody;
use recording::{
    canonical::{Identity, RequestParts, SharedBody, UPSTREAM_HEADER},
    redaction::{Redactor, SeenSecrets},
};

/// A request that was read.
#[derive(Debug, Clone)]
pub(crate) struct IncomingRequest {
    pub(crate) parts: Parts,
    pub(crate) bytes: Bytes,
    /// JSON where it is, else text; null for none.
    pub(crate) body: SharedBody,
    /// The body where it is neither.
    pub(crate) raw: Option<Vec<u8>>,
    /// The body without its secrets, bytes by their name.
    pub(crate) shown: SharedBody,
    /// Its secrets, with the placeholders that stand for them.
    pub(crate) seen: SeenSecrets,
    /// The headers that count, without their secrets.
    pub(crate) counted: Vec<(String, String)>,
    pub(crate) session: String,
    /// When its body was complete: the zero of every deadline.
    pub(crate) at: Instant,
    pub(crate) identity: Identity,
    /// What was delivered of the answer that it continues.
    pub(crate) delivered: Option<String>,
}

impl IncomingRequest {
    pub(crate) fn new(parts: Parts, bytes: Bytes, session: String, config: &PlayerConfig) -> Self {
        Self::knowing(&[], (parts, bytes), session, config)
    }

    /// The same request, in which these values are secrets too.
    pub(crate) fn with_secrets(&self, secrets: &[NamedSecret], config: &PlayerConfig) -> Self {
        let request = (self.parts.clone(), self.bytes.clone());
        Self { at: self.at, ..Self::knowing(secrets, request, self.session.clone(), config) }
    }

    fn knowing(known: &[NamedSecret], (parts, bytes): (Parts, Bytes), session: String, config: &PlayerConfig) -> Self {
        let (at, rules) = (Instant::now(), &config.rules);
        let ReadBody { value: body, raw } = ReadBody::read(&parts.headers, &bytes, config.body_limit);
        let mut headers = texts(&parts.headers, |name| rules.headers.iter().any(|counted| counted == name));
        headers.extend(upstream_header(&parts.extensions));
        let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let mut redactor = Redactor::new(&config.secrets);
        known.iter().for_each(|(placeholder, value)| redactor.learn_placed(value, placeholder));
        let body = SharedBody::from(body);
        secrets::learn_request(&mut redactor, path, &headers);
        let (shown, _) = secrets::shown_body(&mut redactor, &body, None);
        let path = secrets::shown_path(&mut redactor, path);
        let shown = raw.as_deref().map_or(shown, |raw| secrets::shown_bytes(&mut redactor, raw).into());
        let counted = secrets::headers_by(&mut redactor, headers);
        let call = RequestParts { method: parts.method.as_str(), path: &path, headers: &counted, body: &shown };
        let identity = rules.identify(&call);
        let seen = redactor.seen();
        Self { identity, parts, bytes, body, raw, shown, seen, counted, session, at, delivered: None }
    }

    /// The same request, which continues an answer of which this was delivered.
    pub(crate) fn continuing(&self, delivered: String) -> Self {
        Self { delivered: Some(delivered), ..self.clone() }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// Path and query.
    pub(crate) fn target(&self) -> &str {
        self.parts.uri.path_and_query().map_or("/", PathAndQuery::as_str)
    }

    pub(crate) fn streams(&self) -> bool {
        self.body.get("stream").is_some_and(is_set)
    }

    /// Counts the choices that an engine would generate: `n` for each prompt.
    pub(crate) fn choices(&self) -> u64 {
        self.body.get("n").and_then(Value::as_u64).unwrap_or(1).max(1).saturating_mul(self.prompts())
    }

    pub(crate) fn prompts(&self) -> u64 {
        match self.body.get("prompt").and_then(Value::as_array) {
            Some(prompts) if prompts.first().is_some_and(|prompt| !prompt.is_number()) => prompts.len() as u64,
            _ => 1,
        }
    }

    /// The id that its client gave it, in a header or in the body.
    pub(crate) fn request_id(&self) -> Option<&str> {
        self.header("x-request-id").or_else(|| self.body.get("request_id").and_then(Value::as_str))
    }

    pub(crate) fn is_retry(&self) -> bool {
        is_retry(&self.parts.headers)
    }

    /// The request as it came.
    pub(crate) fn into_request(self) -> Request<RequestBody> {
        Request::from_parts(self.parts, RequestBody::Read(Some(self.bytes)))
    }
}

/// Header by which clients count their tries.
pub const RETRY_COUNT: &str = "x-stainless-retry-count";

/// Returns true for the headers of a request that was sent before.
#[must_use]
pub fn is_retry(headers: &HeaderMap) -> bool {
    let count = headers.get(RETRY_COUNT).and_then(|count| count.to_str().ok()?.parse::<u32>().ok());
    count.is_some_and(|count| count > 0)
}

/// The upstream that a request names, as the header by which it counts.
pub(crate) fn upstream_header(extensions: &Extensions) -> Option<(String, String)> {
    let named = upstream_of(extensions).ok().flatten()?;
    Some((UPSTREAM_HEADER.to_owned(), named.to_owned()))
}

/// Returns whether a stream is to end with token counts.
pub(crate) fn wants_usage(body: &SharedBody) -> bool {
    body.get("stream_options").and_then(|options| options.get("include_usage")) == Some(&Value::Bool(true))
}

pub(crate) fn texts(headers: &HeaderMap, wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let wanted = headers.iter().filter(|(name, _)| wanted(name.as_str()));
    wanted
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}
