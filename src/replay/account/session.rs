//! Names of sessions, and where requests name theirs.

use http::{HeaderMap, Request, Uri};

use crate::recording::redaction::{Redactor, Rules};

/// The session of requests that name none.
pub const DEFAULT_SESSION: &str = "default";

/// The longest name of a session.
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

/// Checks the name of a session.
///
/// # Errors
/// When no session can have it.
pub fn session_name(name: &str, secrets: &Rules) -> Result<String, SessionNameError> {
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

/// Takes the session out of a request's path, `/vcr/s/NAME/…`, and keeps it with the request.
pub fn enter<B>(request: &mut Request<B>) {
    if let Some((session, uri)) = named_session(request.uri()) {
        *request.uri_mut() = uri;
        request.extensions_mut().insert(session);
    }
}

/// The session that a path names (`/vcr/s/NAME/…`), and the rest of it.
fn named_session(uri: &Uri) -> Option<(SessionName, Uri)> {
    let rest = uri.path_and_query()?.as_str().strip_prefix("/vcr/s/")?;
    let (name, rest) = rest.split_at_checked(rest.find('/')?)?;
    let name = crate::net::wire::percent_decoded(name).into_owned();
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = rest.parse().ok();
    Some((SessionName(name), Uri::from_parts(parts).ok()?))
}

/// The session of a request, `None` for the default one: by its path, which has to be [entered](enter), else by its
/// `x-vcr-session`.
///
/// # Errors
/// When no session can have the name.
pub fn session_of(
    extensions: &http::Extensions,
    headers: &HeaderMap,
    secrets: &Rules,
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
