//! Kinds of faults with their arguments read.

use std::{sync::Arc, time::Duration};

use api::{ApiError, Endpoint, RecordedError, SemanticFault};
use http::{HeaderMap, HeaderName, StatusCode, header};
use net::server::{ConnectionEnd, SlowHead};
use serde_json::{Value, json};

use crate::{
    edits::EventEdit,
    fault::FaultPlace,
    quota::QuotaLimits,
    rate_limits::{self, go_duration},
    signal::{EventsFault, MetricsFault, ServerFault},
};

/// Kind of a fault.
#[derive(Debug, Clone, PartialEq)]
pub enum FaultKind {
    /// An error in place of an answer.
    Refusal(RefusalFault),
    /// The head comes later.
    Delay(Duration),
    /// The head leaves in pieces.
    SlowHead(SlowHead),
    /// The request is taken, and nothing comes.
    Hang,
    /// The head has another content type.
    ContentType(String),
    /// Something in the body.
    Stream(StreamFault),
    /// Another answer, in a valid form.
    Reply(SemanticFault),
    /// A request is refused where it is beyond a quota.
    Quota(QuotaLimits),
    /// The page of metrics is wrong.
    Metrics(MetricsFault),
    /// The server reports that it is not ready.
    NotReady {
        /// How long.
        down: Duration,
        /// How long it is ready in between.
        up: Duration,
    },
    /// KV events are published wrongly.
    Events(EventsFault),
    /// Something is wrong with the whole server.
    Server(ServerFault),
}

/// An error in the engine's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusalFault {
    /// The status, from 400 to 599.
    pub status: u16,
    /// Message; `None` for the engine's.
    pub message: Option<String>,
    /// Time after which a client may come again.
    pub retry_after: Option<Duration>,
    /// Limits that the headers name.
    pub limits: Option<NamedLimits>,
}

/// Limits of a minute, of which one is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedLimits {
    /// Requests.
    pub requests: u64,
    /// Tokens.
    pub tokens: u64,
    /// Tokens are used up, and not requests.
    pub is_of_tokens: bool,
}

/// Values in errors in the engine's words.
#[derive(Debug, Clone)]
pub struct RefusalContext {
    /// Endpoint of the request.
    pub endpoint: Endpoint,
    /// Most tokens of a prompt and its output.
    pub max_model_len: u32,
    /// Names of the served model.
    pub names: Arc<[String]>,
    /// The name that the request has; empty where it has none.
    pub model: String,
    /// Id of a request to an MCP server, null where it has none; `None` for any other request.
    pub rpc_id: Option<Value>,
}

/// A fault in the body of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamFault {
    /// Nothing comes for so long, or ever.
    Stall(Option<Duration>),
    /// The connection ends.
    Break(ConnectionEnd),
    /// The body ends properly, and what follows is missing.
    Truncate,
    /// An error as an event, and the end.
    Error(RefusalFault),
    /// So many comments, each in a write of its own.
    KeepAlive {
        /// How many.
        count: u64,
        /// Time between them.
        every: Duration,
    },
    /// The last event with output comes again and again.
    Repeat {
        /// How often; `None` for ever.
        times: Option<u64>,
        /// Time between them.
        every: Duration,
    },
    /// A comment line of so many bytes.
    HugeLine(u64),
    /// The rest comes in pieces.
    Drip {
        /// Bytes of a piece.
        bytes: u64,
        /// Time between them.
        every: Duration,
    },
    /// Writes end after these bytes of what is sent.
    SplitAt {
        /// Numbers of bytes, in order.
        places: Vec<u64>,
        /// Time between the writes.
        every: Duration,
    },
    /// Each event comes up to so much later.
    Jitter(Duration),
    /// Events are changed.
    Edit {
        /// How.
        edit: EventEdit,
        /// How many of them; `None` for all.
        count: Option<u64>,
    },
}

impl FaultKind {
    /// Where it happens in a body by default; `None` for before the first byte.
    #[must_use]
    pub fn own_place(&self) -> Option<FaultPlace> {
        match self {
            Self::Stream(StreamFault::Break(ConnectionEnd::Reset | ConnectionEnd::Close)) => None,
            Self::Stream(StreamFault::Repeat { .. }) => Some(FaultPlace::Token(1)),
            Self::Stream(
                StreamFault::Edit { count: None, .. }
                | StreamFault::Drip { .. }
                | StreamFault::SplitAt { .. }
                | StreamFault::Jitter(_),
            ) => Some(FaultPlace::Event(0)),
            Self::Stream(_) => Some(FaultPlace::Event(1)),
            _ => None,
        }
    }
}

impl StreamFault {
    /// Returns true if a body that does not end early is as long as without it.
    #[must_use]
    pub fn keeps_length(&self) -> bool {
        matches!(self, Self::Stall(_) | Self::Break(_) | Self::Drip { .. } | Self::SplitAt { .. } | Self::Jitter(_))
    }
}

impl RefusalFault {
    /// The error in the engine's words; that of an MCP server is one of JSON-RPC.
    #[must_use]
    pub fn error(&self, context: &RefusalContext) -> ApiError {
        if let Some(id) = &context.rpc_id {
            return self.rpc_error(id);
        }
        let error = match self.status {
            400 => ApiError::prompt_too_long(context.max_model_len.saturating_add(1), context.max_model_len),
            401 if self.message.is_none() => unauthorized(),
            404 => ApiError::unknown_model(&context.model, &context.names),
            503 => ApiError::busy(),
            status => {
                let (kind, words) = match status {
                    401 => ("AuthenticationError", "Unauthorized"),
                    429 => ("RateLimitError", "Too many requests. Please try again later."),
                    500 => (
                        "InternalServerError",
                        "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                    ),
                    _ => ("InternalServerError", "The request failed."),
                };
                ApiError { status, kind, ..ApiError::bad_request(words) }
            }
        };
        match &self.message {
            Some(message) => ApiError { message: message.clone(), param: param_of(message), ..error },
            None => error,
        }
    }

    fn rpc_error(&self, id: &Value) -> ApiError {
        let of_status = || StatusCode::from_u16(self.status).ok()?.canonical_reason();
        let words = if self.status == 404 { Some("Session not found") } else { of_status() };
        let message = self.message.clone().unwrap_or_else(|| words.unwrap_or("The request failed.").to_owned());
        let body = json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32603, "message": message}}).to_string();
        let recorded = RecordedError { body: Some(body), ..RecordedError::default() };
        ApiError::recorded(self.status, message, "InternalServerError", recorded)
    }

    /// The headers with the time of a retry, as OpenAI's clients read them: `retry-after` in whole seconds, `retry-after-ms` where
    /// that is not the whole time, and the limits.
    #[must_use]
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let after = self.retry_after.or(self.limits.map(|_| Duration::from_secs(1)));
        let Some(after) = after else { return headers };
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        headers.insert(header::RETRY_AFTER, seconds.into());
        if after.subsec_nanos() > 0 {
            let millis = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
            headers.insert(HeaderName::from_static("retry-after-ms"), millis.into());
        }
        let Some(limits) = self.limits else { return headers };
        for (what, limit, is_spent) in
            [("requests", limits.requests, !limits.is_of_tokens), ("tokens", limits.tokens, limits.is_of_tokens)]
        {
            let (remaining, reset) = if is_spent { (0, go_duration(after)) } else { (limit, "0s".to_owned()) };
            rate_limits::add(&mut headers, what, limit, remaining, reset);
        }
        headers
    }
}

/// The parameter that a message of the engine's names at its end, which is the error's too.
fn param_of(message: &str) -> Option<String> {
    let (_, named) = message.strip_suffix(')')?.rsplit_once("(parameter=")?;
    Some(named.split_once(", value=").map_or(named, |(name, _)| name).to_owned())
}

/// The answer to a request without a key, which is the same on every endpoint.
fn unauthorized() -> ApiError {
    let body = Some(r#"{"error":"Unauthorized"}"#.to_owned());
    let recorded = RecordedError { body, ..RecordedError::default() };
    ApiError::recorded(401, "Unauthorized".to_owned(), "AuthenticationError", recorded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;

    #[test]
    fn a_message_that_names_a_parameter_has_it_as_the_engine_does() {
        let context = RefusalContext {
            endpoint: Endpoint::Chat,
            max_model_len: 8,
            names: Arc::new([]),
            model: String::new(),
            rpc_id: None,
        };
        let body = |line: &str| match line.parse::<Fault>().unwrap().kind {
            FaultKind::Refusal(fault) => fault.error(&context).body(),
            other => panic!("{other:?}"),
        };
        assert_eq!(
            body("invalid-request"),
            r#"{"error":{"message":"temperature must be in [0, 2], got 3.5. (parameter=temperature, value=3.5)","type":"BadRequestError","param":"temperature","code":400}}"#
        );
        assert!(body("error:400,message=no").contains(r#""message":"no","type":"BadRequestError","param":null"#));
    }

    #[test]
    fn an_mcp_server_refuses_by_json_rpc() {
        let context = RefusalContext {
            endpoint: Endpoint::Chat,
            max_model_len: 8,
            names: Arc::new([]),
            model: String::new(),
            rpc_id: Some(json!(7)),
        };
        for (line, words) in [
            ("404", "Session not found"),
            ("401", "Unauthorized"),
            ("503", "Service Unavailable"),
            ("error:429,message=wait", "wait"),
        ] {
            let FaultKind::Refusal(fault) = line.parse::<Fault>().unwrap().kind else { panic!("{line}") };
            let expected = format!(r#"{{"jsonrpc":"2.0","id":7,"error":{{"code":-32603,"message":"{words}"}}}}"#);
            assert_eq!(fault.error(&context).body(), expected, "{line}");
        }
    }

    #[test]
    fn the_spent_limit_has_nothing_left_and_the_other_all() {
        let limits = NamedLimits { requests: 60, tokens: 1000, is_of_tokens: true };
        let retry_after = Some(Duration::from_millis(1500));
        let headers = RefusalFault { status: 429, message: None, retry_after, limits: Some(limits) }.headers();
        let expected = [
            ("retry-after", "2"),
            ("retry-after-ms", "1500"),
            ("x-ratelimit-limit-requests", "60"),
            ("x-ratelimit-remaining-requests", "60"),
            ("x-ratelimit-reset-requests", "0s"),
            ("x-ratelimit-limit-tokens", "1000"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-tokens", "1.5s"),
        ];
        assert_eq!(headers.len(), expected.len());
        expected.iter().for_each(|(name, value)| assert_eq!(headers[*name], *value, "{name}"));
    }
}
