//! API keys: who may call.
//!
//! As in the engine only paths below some prefixes need a key; `/health`, `/metrics`, `/tokenize` and `/invocations`
//! among others do not. Keys are compared in constant time, and are never
//! printed.

use std::{fmt, ops::ControlFlow, sync::Arc};

use axum::{extract::Request, response::Response};
use http::{HeaderMap, Method, StatusCode, header};
use subtle::{Choice, ConstantTimeEq};

use super::super::{http::json, middleware::Middleware};
use crate::front::path::below;
use net::wire::percent_decoded;

/// Prefixes of paths that need a key.
const GUARDED: [&str; 4] = ["/v1", "/v2", "/inference", "/cohere"];

/// Keys of which a client has to present one as `Authorization: Bearer KEY`. Their `Debug` form has only their number.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ApiKeys(Vec<String>);

impl ApiKeys {
    /// Takes the keys; empty ones do not count.
    #[must_use]
    pub fn new(keys: Vec<String>) -> Self {
        Self(keys.into_iter().filter(|key| !key.is_empty()).collect())
    }

    /// Checks whether no key is asked for.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks whether a request is refused: its path is guarded and it has none of the keys.
    pub(super) fn refuse(&self, method: &Method, path: &str, headers: &HeaderMap) -> bool {
        !self.0.is_empty()
            && *method != Method::OPTIONS
            && GUARDED.iter().any(|prefix| path.starts_with(prefix))
            && !self.admit(headers)
    }

    fn admit(&self, headers: &HeaderMap) -> bool {
        let Some(sent) = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes()) else { return false };
        let mut parts = sent.splitn(2, |byte| *byte == b' ');
        let is_bearer = parts.next().is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"bearer"));
        let presented = parts.next().unwrap_or_default();
        let known = self.0.iter().fold(Choice::from(0), |known, key| known | key.as_bytes().ct_eq(presented));
        is_bearer && bool::from(known)
    }
}

impl fmt::Debug for ApiKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ApiKeys({} keys)", self.0.len())
    }
}

/// The middleware that refuses requests without a key, where their path below the prefix needs one.
#[derive(Debug, Clone)]
pub(super) struct RequireKey {
    pub(super) keys: Arc<ApiKeys>,
    pub(super) root: Arc<str>,
}

impl Middleware for RequireKey {
    type Kept = ();

    fn before(&self, request: &mut Request) -> ControlFlow<Response> {
        let path = percent_decoded(request.uri().path());
        if self.keys.refuse(request.method(), below(&path, &self.root), request.headers()) {
            return ControlFlow::Break(unauthorized());
        }
        ControlFlow::Continue(())
    }
}

/// The answer to a request without a key. It does not vary by origin: no CORS policy has seen it.
fn unauthorized() -> Response {
    let mut response = json(StatusCode::UNAUTHORIZED, r#"{"error":"Unauthorized"}"#.to_owned(), HeaderMap::new());
    response.headers_mut().remove(header::VARY);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(path: &str, authorization: Option<&str>) -> bool {
        let keys = ApiKeys::new(vec!["one".to_owned(), String::new(), "two".to_owned()]);
        let headers = authorization.map(|value| (header::AUTHORIZATION, value.parse().unwrap()));
        keys.refuse(&Method::GET, path, &HeaderMap::from_iter(headers))
    }

    #[test]
    fn any_key_will_do_and_the_scheme_may_be_in_any_case() {
        for good in ["Bearer one", "bearer two", "BEARER two"] {
            assert!(!refused("/v1/models", Some(good)), "{good}");
        }
        for bad in ["", "Bearer", "Bearer ", "Bearer  two", "Bearer three", "Bearer tw", "Basic two", "two", "two two"]
        {
            assert!(refused("/v1/models", Some(bad)), "{bad}");
        }
        assert!(refused("/v1/models", None));
    }

    #[test]
    fn prefixes_are_guarded_as_text() {
        for path in ["/v1", "/v1x", "/v2/rerank", "/inference/v1/generate", "/cohere/x"] {
            assert!(refused(path, None), "{path}");
        }
        for path in ["/health", "/metrics", "/tokenize", "/invocations", "/V1/models", "/", "//v1/models"] {
            assert!(!refused(path, None), "{path}");
        }
    }

    #[test]
    fn no_key_asks_for_none_and_none_is_printed() {
        let none = ApiKeys::new(vec![String::new()]);
        assert!(!none.refuse(&Method::GET, "/v1/models", &HeaderMap::new()));
        let printed = format!("{:?}", ApiKeys::new(vec!["sesame".to_owned()]));
        assert_eq!(printed, "ApiKeys(1 keys)");
    }
}
