//! The client: sends a request and reads the whole response.

use std::time::Duration;

use http::{HeaderMap, Method, Request, header};
use serde_json::Value;
use tokio::{sync::OnceCell, time::timeout};

use crate::{
    base::one_line::one_line,
    net::upstream::{FetchError, FetchedResponse, OutgoingBody, Upstream, UpstreamError, UpstreamOptions, UpstreamUrl},
};

/// Maximum size of an answer, in bytes.
const LARGEST: usize = 16 << 20;

/// The path of the list of models.
pub(super) const MODELS: &str = "/v1/models";

/// Characters of an answer that are shown.
const MOST_SHOWN: usize = 80;

/// A server that cannot be compared.
#[derive(Debug, thiserror::Error)]
pub enum ConformError {
    /// It does not answer.
    #[error("{path}: the server cannot be reached")]
    Unreachable {
        /// The path that was requested.
        path: String,
        /// Why.
        source: UpstreamError,
    },
    /// Its answer breaks off, or does not end.
    #[error("{path}: {why}")]
    Broken {
        /// The path that was requested.
        path: String,
        /// Why.
        why: String,
    },
    /// It lists no model.
    #[error("/v1/models lists no model, but answers {came}; --model names one")]
    NoModel {
        /// Status, content type and beginning of the answer, or where it leads to.
        came: String,
        /// Its status.
        status: u16,
    },
    /// No socket for KV events can be had.
    #[error("--kv-events {endpoint}: {why}")]
    KvEvents {
        /// The endpoint.
        endpoint: String,
        /// Why.
        why: String,
    },
}

/// Describes a response in a line: its status, and its redirect or its content type and first characters.
pub(super) fn described(response: &FetchedResponse) -> String {
    let header = |name| response.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let status = response.status.as_u16();
    let described = match header(header::LOCATION) {
        Some(to) => format!("status {status}, which leads to {to}"),
        None => {
            let kind = header(header::CONTENT_TYPE).unwrap_or("no content type".into());
            let text = String::from_utf8_lossy(&response.body);
            let start: String = text.trim().chars().take(MOST_SHOWN).collect();
            format!("status {status}, {kind}: {start}")
        }
    };
    one_line(&described).into_owned()
}

/// A client of one server.
#[derive(Debug)]
pub struct ConformClient {
    server: Upstream,
    headers: HeaderMap,
    patience: Duration,
    models: OnceCell<FetchedResponse>,
}

impl ConformClient {
    /// A client that sends these headers, and gives an answer up after so long.
    pub(crate) fn new(url: UpstreamUrl, options: &UpstreamOptions, headers: HeaderMap, patience: Duration) -> Self {
        Self { server: Upstream::new(url, options), headers, patience, models: OnceCell::new() }
    }

    /// Sends a request; a body makes it JSON.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<String>,
    ) -> Result<FetchedResponse, ConformError> {
        let broken = |why: String| ConformError::Broken { path: path.to_owned(), why };
        let mut request = Request::new(OutgoingBody::whole(body.clone().unwrap_or_default().into()));
        *request.method_mut() = method.parse::<Method>().map_err(|error| broken(error.to_string()))?;
        *request.uri_mut() = path.parse().map_err(|error: http::uri::InvalidUri| broken(error.to_string()))?;
        *request.headers_mut() = self.headers.clone();
        if body.is_some() {
            let json = header::HeaderValue::from_static("application/json");
            request.headers_mut().insert(header::CONTENT_TYPE, json);
        }
        let late = |_| broken(format!("no whole answer within {:?}; --timeout gives it longer", self.patience));
        let fetched = timeout(self.patience, self.server.fetch(request, LARGEST)).await.map_err(late)?;
        fetched.map_err(|error| match error {
            FetchError::Unanswered(source) => ConformError::Unreachable { path: path.to_owned(), source },
            FetchError::Incomplete(why) => broken(why),
        })
    }

    /// The server's list of models, which is asked for once.
    pub(crate) async fn models(&self) -> Result<&FetchedResponse, ConformError> {
        self.models.get_or_try_init(|| self.send("GET", MODELS, None)).await
    }

    /// The first model that the server lists.
    pub(crate) async fn model(&self) -> Result<String, ConformError> {
        let answer = self.models().await?;
        let page: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let model = page.pointer("/data/0/id").and_then(Value::as_str).map(str::to_owned);
        model.ok_or_else(|| ConformError::NoModel { came: described(answer), status: answer.status.as_u16() })
    }
}
