//! A received request: session, route, headers, body, identity.

use bytes::Bytes;
use http::{Extensions, HeaderMap, Request, request::Parts, uri::PathAndQuery};
use serde_json::Value;

use super::{Config, body::Body, secrets};
use crate::{
    account::upstream_of,
    matching::{named_later::NamedSecret, requests::Retry},
};
use net::server::RequestBody;
use recording::{
    canonical::{Call, Identity, SharedBody, UPSTREAM_HEADER},
    redaction::{Redactor, Seen},
};

/// A request that was read.
#[derive(Debug)]
pub(super) struct IncomingRequest {
    pub(super) parts: Parts,
    pub(super) bytes: Bytes,
    /// JSON where it is, else text; null for none.
    pub(super) body: SharedBody,
    /// The body where it is neither.
    pub(super) raw: Option<Vec<u8>>,
    /// The body without its secrets, bytes by their name.
    pub(super) shown: SharedBody,
    /// Its secrets, with the placeholders that stand for them.
    pub(super) seen: Seen,
    /// The headers that count, without their secrets.
    pub(super) counted: Vec<(String, String)>,
    pub(super) session: String,
    pub(super) identity: Identity,
}

impl IncomingRequest {
    pub(super) fn new(parts: Parts, bytes: Bytes, session: String, config: &Config) -> Self {
        Self::knowing(&[], (parts, bytes), session, config)
    }

    /// The same request, in which these values are secrets too.
    pub(super) fn with_secrets(&self, secrets: &[NamedSecret], config: &Config) -> Self {
        Self::knowing(secrets, (self.parts.clone(), self.bytes.clone()), self.session.clone(), config)
    }

    fn knowing(known: &[NamedSecret], (parts, bytes): (Parts, Bytes), session: String, config: &Config) -> Self {
        let rules = &config.rules;
        let Body { value: body, raw } = Body::read(&parts.headers, &bytes, config.body_limit);
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
        let call = Call { method: parts.method.as_str(), path: &path, headers: &counted, body: &shown };
        let identity = rules.identify(&call);
        Self { identity, parts, bytes, body, raw, shown, seen: redactor.seen(), counted, session }
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.parts.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(super) fn path(&self) -> &str {
        self.parts.uri.path()
    }

    /// Path and query.
    pub(super) fn target(&self) -> &str {
        self.parts.uri.path_and_query().map_or("/", PathAndQuery::as_str)
    }

    pub(super) fn streams(&self) -> bool {
        self.body.get("stream") == Some(&Value::Bool(true))
    }

    pub(super) fn wants_usage(&self) -> bool {
        wants_usage(&self.body)
    }

    /// The id that its client gave it, in a header or in the body.
    pub(super) fn request_id(&self) -> Option<&str> {
        self.header("x-request-id").or_else(|| self.body.get("request_id").and_then(Value::as_str))
    }

    pub(super) fn retry(&self) -> Retry {
        let count = self.header("x-stainless-retry-count").and_then(|count| count.parse::<u32>().ok());
        if count.is_some_and(|count| count > 0) { Retry::Again } else { Retry::First }
    }

    /// The request as it came.
    pub(super) fn into_request(self) -> Request<RequestBody> {
        Request::from_parts(self.parts, RequestBody::Read(Some(self.bytes)))
    }
}

/// The upstream that a request names, as the header by which it counts.
pub(super) fn upstream_header(extensions: &Extensions) -> Option<(String, String)> {
    let named = upstream_of(extensions).ok().flatten()?;
    Some((UPSTREAM_HEADER.to_owned(), named.to_owned()))
}

/// Returns whether a stream is to end with token counts.
pub(super) fn wants_usage(body: &SharedBody) -> bool {
    body.get("stream_options").and_then(|options| options.get("include_usage")) == Some(&Value::Bool(true))
}

/// Headers by name, those that are wanted.
pub(super) fn texts(headers: &HeaderMap, wanted: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let wanted = headers.iter().filter(|(name, _)| wanted(name.as_str()));
    wanted
        .map(|(name, value)| (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned()))
        .collect()
}
