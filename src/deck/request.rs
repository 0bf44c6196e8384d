//! What came in: session, route, headers, body, identity.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, Response, StatusCode, Uri, request::Parts, uri::PathAndQuery};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::{Config, body::Body, secrets, whole};
use crate::{
    identity::{Call, Identity, SharedBody},
    matching::requests::Retry,
    redaction::{Redactor, Rules},
    serve::{AnswerBody, RequestBody},
};

/// The session of requests that name none.
pub(super) const DEFAULT_SESSION: &str = "default";

/// The longest name of a session.
const LONGEST_NAME: usize = 100;

/// A request that was read.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) parts: Parts,
    pub(super) bytes: Bytes,
    /// JSON where it is, else text; null for none.
    pub(super) body: SharedBody,
    /// The body where it is neither.
    pub(super) raw: Option<Vec<u8>>,
    /// The body without its secrets, bytes by their name.
    pub(super) shown: SharedBody,
    /// The headers that count, without their secrets.
    pub(super) counted: Vec<(String, String)>,
    pub(super) session: String,
    pub(super) identity: Identity,
}

impl Asked {
    pub(super) fn new(parts: Parts, bytes: Bytes, session: String, config: &Config) -> Self {
        let rules = &config.rules;
        let Body { value: body, raw } = Body::read(&parts.headers, &bytes, config.body_limit);
        let headers = texts(&parts.headers, |name| rules.headers.iter().any(|counted| counted == name));
        let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let mut redactor = Redactor::new(&config.secrets);
        let body = SharedBody::from(body);
        let (shown, _) = secrets::shown_body(&mut redactor, &body, None);
        let path = secrets::shown_path(&mut redactor, path);
        let shown = raw.as_deref().map_or(shown, |raw| secrets::shown_bytes(&mut redactor, raw).into());
        let counted = secrets::headers_by(&mut redactor, headers);
        let call = Call { method: parts.method.as_str(), path: &path, headers: &counted, body: &shown };
        let identity = rules.identify(&call);
        Self { identity, parts, bytes, body, raw, shown, counted, session }
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

    pub(super) fn retry(&self) -> Retry {
        let count = self.header("x-stainless-retry-count").and_then(|count| count.parse::<u32>().ok());
        if count.is_some_and(|count| count > 0) { Retry::Again } else { Retry::First }
    }

    /// The request as it came.
    pub(super) fn into_request(self) -> Request<RequestBody> {
        Request::from_parts(self.parts, RequestBody::Read(Some(self.bytes)))
    }
}

/// Whether a stream is to end with token counts.
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

/// A session that was named by a path.
#[derive(Debug, Clone)]
pub(super) struct SessionName(String);

/// A name that no session has. It is not repeated: it may be anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum SessionNameError {
    #[error("a session's name is 1 to 100 letters, digits, - _ and .")]
    Form,
    #[error("the session's name looks like a secret; names of sessions are told in reports")]
    Secret,
}

/// Checks the name of a session.
pub(super) fn session_name(name: &str, secrets: &Rules) -> Result<String, SessionNameError> {
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    // Clients take a path of dots for another path.
    let is_dots = name.bytes().all(|byte| byte == b'.');
    if !is_word || is_dots || name.len() > LONGEST_NAME {
        return Err(SessionNameError::Form);
    }
    match name != DEFAULT_SESSION && Redactor::new(secrets).text(name).is_some() {
        true => Err(SessionNameError::Secret),
        false => Ok(name.to_owned()),
    }
}

/// The session that a path names (`/vcr/s/NAME/…`), and the rest of it.
pub(super) fn named_session(uri: &Uri) -> Option<(SessionName, Uri)> {
    let rest = uri.path_and_query()?.as_str().strip_prefix("/vcr/s/")?;
    let (name, rest) = rest.split_at_checked(rest.find('/')?)?;
    let name = crate::wire::percent_decoded(name).into_owned();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = rest.parse().ok();
    Some((SessionName(name), Uri::from_parts(parts).ok()?))
}

/// The session of a request: by its path, else by its `x-vcr-session`.
pub(super) fn session_of(parts: &mut Parts, secrets: &Rules) -> Result<String, SessionNameError> {
    if let Some((session, uri)) = named_session(&parts.uri) {
        parts.uri = uri;
        return session_name(&session.0, secrets);
    }
    if let Some(SessionName(name)) = parts.extensions.remove() {
        return session_name(&name, secrets);
    }
    match parts.headers.get("x-vcr-session").map(|value| value.to_str()) {
        None | Some(Ok("")) => Ok(DEFAULT_SESSION.to_owned()),
        Some(Ok(name)) => session_name(name, secrets),
        Some(Err(_)) => Err(SessionNameError::Form),
    }
}

/// Reads a body of at most so many bytes.
pub(super) async fn read(mut body: Incoming, limit: usize) -> Result<Bytes, Response<AnswerBody>> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(plain(StatusCode::BAD_REQUEST, "the request's body broke off")) };
        if let Ok(data) = frame.into_data() {
            if read.len() + data.len() > limit {
                return Err(plain(StatusCode::PAYLOAD_TOO_LARGE, "the request's body is too large"));
            }
            read.extend_from_slice(&data);
        }
    }
    Ok(read.freeze())
}

/// An error of the deck's own.
pub(super) fn plain(status: StatusCode, message: &str) -> Response<AnswerBody> {
    let body = json!({"error": {"message": message, "type": "vcr_error", "param": null, "code": status.as_u16()}});
    whole(status.as_u16(), "application/json", body.to_string())
}
