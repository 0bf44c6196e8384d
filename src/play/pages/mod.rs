//! The pages about the API: `/openapi.json`, and the two that show it to people.
//!
//! The schema is vLLM 0.32's own, byte for byte, but for its descriptions, which are prose and are left out
//! (`tests/goldens/openapi.py`). It lists what vLLM serves with the same flags. The two pages are the ones that every
//! FastAPI server has; like there, their scripts come from a content delivery network.

mod openapi;

use http::{HeaderMap, Response};

use super::{
    State,
    http::{AnswerBody, json, page},
};
use crate::api::ApiError;

const HTML: &str = "text/html; charset=utf-8";

/// From FastAPI (MIT license).
const DOCS: &str = include_str!("docs.html");
const REDOC: &str = include_str!("redoc.html");
/// From Swagger UI (Apache-2.0 license).
const OAUTH2_REDIRECT: &str = include_str!("oauth2-redirect.html");

/// Where the path prefix goes.
const ROOT: &str = "{root}";

/// A page about the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Page {
    OpenApi,
    Docs,
    Redoc,
    OAuth2Redirect,
}

impl Page {
    /// The methods of every page.
    pub(super) const METHODS: &'static str = "GET, HEAD";

    /// What is served under a path.
    pub(super) fn find(path: &str) -> Option<Self> {
        Some(match path {
            "/openapi.json" => Self::OpenApi,
            "/docs" => Self::Docs,
            "/redoc" => Self::Redoc,
            "/docs/oauth2-redirect" => Self::OAuth2Redirect,
            _ => return None,
        })
    }

    /// The page.
    ///
    /// # Errors
    /// None that a test does not catch first.
    pub(super) fn answer(self, state: &State) -> Result<Response<AnswerBody>, ApiError> {
        let root = state.config.server.root_path.trim_end_matches('/');
        Ok(match self {
            Self::OpenApi => {
                let told = openapi::page(&state.config, root).map_err(|error| ApiError::internal(error.to_string()))?;
                json(http::StatusCode::OK, told, HeaderMap::new())
            }
            Self::Docs => page(HTML, DOCS.replace(ROOT, root)),
            Self::Redoc => page(HTML, REDOC.replace(ROOT, root)),
            Self::OAuth2Redirect => page(HTML, OAUTH2_REDIRECT.to_owned()),
        })
    }
}
