//! Names of sessions and upstreams, where requests name theirs, and what becomes of what a session recorded.

use std::str::FromStr;

use http::{HeaderMap, Request, Uri};

use recording::{
    canonical::UPSTREAM_HEADER,
    redaction::{RedactionRules, Redactor},
};

/// The session of requests that name none.
pub const DEFAULT_SESSION: &str = "default";

const LONGEST_NAME: usize = 100;

/// A session that was named by a path; kept in the extensions of its request.
#[derive(Debug, Clone)]
struct SessionName(String);

/// A name that no session has. It is not repeated: it may be anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionNameError {
    /// It is no word.
    #[error("a session's name is 1 to 100 letters, digits, - _ and .")]
    Form,
    /// Reports would show it.
    #[error("the session's name looks like a secret; reports show the names of sessions")]
    Secret,
}

/// What becomes of what a session recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SessionRecording {
    /// Its cassette is put in place.
    #[default]
    Keep,
    /// It is dropped; a cassette that was there stays as it was.
    Drop,
}

impl FromStr for SessionRecording {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "keep" => Ok(Self::Keep),
            "drop" => Ok(Self::Drop),
            other => Err(format!("what a session recorded can be kept or dropped (keep, drop), not `{other}`")),
        }
    }
}

/// Checks the name of a session.
///
/// # Errors
/// When no session can have it.
pub fn session_name(name: &str, secrets: &RedactionRules) -> Result<String, SessionNameError> {
    if !is_upstream_name(name) {
        return Err(SessionNameError::Form);
    }
    match name != DEFAULT_SESSION && Redactor::new(secrets).text(name).is_some() {
        true => Err(SessionNameError::Secret),
        false => Ok(name.to_owned()),
    }
}

/// The upstream that a request names; kept in the extensions of its request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpstreamName(String);

/// Takes session and upstream out of a request, and keeps them with it: out of its path, `/vcr/s/NAME/…` and `/vcr/u/NAME/…` in either
/// order, else the upstream out of its header `x-vcr-upstream`.
pub fn enter<B>(request: &mut Request<B>) {
    let (mut session, mut upstream) = (None, None);
    loop {
        let uri = request.uri();
        let entered = match (&session, &upstream) {
            (None, _) if let Some((name, uri)) = named(uri, "/vcr/s/") => {
                session = Some(SessionName(name));
                uri
            }
            (_, None) if let Some((name, uri)) = named(uri, "/vcr/u/") => {
                upstream = Some(UpstreamName(name));
                uri
            }
            _ => break,
        };
        *request.uri_mut() = entered;
    }
    let header = request.headers_mut().remove(UPSTREAM_HEADER);
    let of_header = || header.map(|name| UpstreamName(String::from_utf8_lossy(name.as_bytes()).into_owned()));
    let extensions = request.extensions_mut();
    if let Some(session) = session {
        extensions.insert(session);
    }
    if let Some(upstream) = upstream.or_else(of_header) {
        extensions.insert(upstream);
    }
}

/// The name after this prefix of a path, and the rest of it.
fn named(uri: &Uri, prefix: &str) -> Option<(String, Uri)> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(prefix)?;
    let (name, rest) = rest.split_at_checked(rest.find('/')?)?;
    let name = net::wire::percent_decoded(name).into_owned();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = rest.parse().ok();
    Some((name, Uri::from_parts(parts).ok()?))
}

/// The upstream that a request names, `None` for the default one; the request has to be [entered](enter).
///
/// # Errors
/// When no upstream can have the name.
pub fn upstream_of(extensions: &http::Extensions) -> Result<Option<&str>, UpstreamNameError> {
    let Some(UpstreamName(name)) = extensions.get() else { return Ok(None) };
    if is_upstream_name(name) { Ok(Some(name)) } else { Err(UpstreamNameError) }
}

/// Returns whether an upstream may have this name, or a session.
#[must_use]
pub fn is_upstream_name(name: &str) -> bool {
    let is_word = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    // Clients take a path of dots for another path.
    is_word && name.bytes().any(|byte| byte != b'.') && name.len() <= LONGEST_NAME
}

/// A name that no upstream has. It is not repeated: it may be anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an upstream's name is 1 to 100 letters, digits, - _ and .")]
pub struct UpstreamNameError;

/// The session of a request, `None` for the default one: by its path, which has to be [entered](enter), else by its
/// `x-vcr-session`.
///
/// # Errors
/// When no session can have the name.
pub fn session_of(
    extensions: &http::Extensions,
    headers: &HeaderMap,
    secrets: &RedactionRules,
) -> Result<Option<String>, SessionNameError> {
    let named = |name: &str| session_name(name, secrets).map(|name| Some(name).filter(|name| name != DEFAULT_SESSION));
    if let Some(SessionName(name)) = extensions.get() {
        return named(name);
    }
    match headers.get("x-vcr-session").map(|value| value.to_str()) {
        None | Some(Ok("")) => Ok(None),
        Some(Ok(name)) => named(name),
        Some(Err(_)) => Err(SessionNameError::Form),
    }
}
