//! The pages about the API: `/openapi.json`, and the two that show it in a browser.
//!
//! The schema is vLLM 0.32's own, byte for byte, but for its descriptions, which are prose and are left out
//! (`tests/goldens/openapi.py`). It lists what vLLM serves with the same flags. The two pages are the ones that every
//! FastAPI server has; like there, their scripts come from a content delivery network.

mod openapi;

use axum::{extract::State, response::Response};

use crate::{
    HandlerState, ServerState,
    endpoints::Endpoints,
    http::{ErrorResponse, JsonText, page},
};
use api::ApiError;

const HTML: &str = "text/html; charset=utf-8";

/// From FastAPI (MIT license).
const DOCS: &str = include_str!("docs.html");
const REDOC: &str = include_str!("redoc.html");
/// From Swagger UI (Apache-2.0 license).
const OAUTH2_REDIRECT: &str = include_str!("oauth2-redirect.html");

/// Placeholder of the path prefix.
const ROOT: &str = "{root}";

/// Adds the pages.
pub(in super::super) fn endpoints(endpoints: Endpoints) -> Endpoints {
    endpoints
        .serve("/openapi.json", open_api)
        .serve("/docs", docs)
        .serve("/redoc", redoc)
        .serve("/docs/oauth2-redirect", || async { page(HTML, OAUTH2_REDIRECT.to_owned()) })
}

async fn open_api(State(state): HandlerState) -> Result<JsonText, ErrorResponse> {
    let page = openapi::page(&state.config, root(&state));
    Ok(page.map(JsonText).map_err(|error| ApiError::internal(error.to_string()))?)
}

async fn docs(State(state): HandlerState) -> Response {
    page(HTML, DOCS.replace(ROOT, root(&state)))
}

async fn redoc(State(state): HandlerState) -> Response {
    page(HTML, REDOC.replace(ROOT, root(&state)))
}

/// The path prefix without a last `/`.
fn root(state: &ServerState) -> &str {
    state.config.server.root_path.trim_end_matches('/')
}
