//! Kinds of faults with their arguments read.

use std::time::Duration;

use api::ApiError;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::{
    edits::EventEdit,
    fault::FaultPlace,
    quota::QuotaLimits,
    signal::{EventsFault, MetricsFault, ServerFault},
};

/// What goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub enum FaultKind {
    /// An error in place of an answer.
    Refusal(RefusalFault),
    /// The head comes later.
    Delay(Duration),
    /// The request is taken, and nothing comes.
    Hang,
    /// The head has another content type.
    ContentType(String),
    /// Something in the body.
    Stream(StreamFault),
    /// Another answer in a valid form, by its name among the scripted ones.
    Reply(&'static str),
    /// A request is refused where it is beyond a quota.
    Quota(QuotaLimits),
    /// The page of metrics is wrong.
    Metrics(MetricsFault),
    /// The server says that it is not ready.
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
}

/// A fault in the body of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamFault {
    /// Nothing comes for so long, or ever.
    Stall(Option<Duration>),
    /// The connection is reset.
    Reset,
    /// The connection is closed in the middle of the body.
    Close,
    /// The server ends its side of the connection and goes on reading.
    HalfClose,
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
    /// A comment line of so many bytes.
    HugeLine(u64),
    /// The rest comes in pieces.
    Drip {
        /// Bytes of a piece.
        bytes: u64,
        /// Time between them.
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
    /// Where it happens in a body, if nothing else is said; `None` for before the first byte.
    #[must_use]
    pub fn own_place(&self) -> Option<FaultPlace> {
        match self {
            Self::Stream(StreamFault::Reset | StreamFault::Close) => None,
            Self::Stream(StreamFault::Edit { count: None, .. } | StreamFault::Drip { .. } | StreamFault::Jitter(_)) => {
                Some(FaultPlace::Event(0))
            }
            Self::Stream(_) => Some(FaultPlace::Event(1)),
            _ => None,
        }
    }
}

impl RefusalFault {
    /// The error in the engine's words.
    #[must_use]
    pub fn error(&self) -> ApiError {
        let (kind, words) = match self.status {
            400 => (
                "BadRequestError",
                "This model's maximum context length is 32768 tokens. However, your request has more input tokens. Please \
                 reduce the length of the input messages.",
            ),
            401 => ("AuthenticationError", "Unauthorized"),
            404 => ("NotFoundError", "The model does not exist."),
            429 => ("RateLimitError", "Too many requests. Please try again later."),
            503 => return self.worded(ApiError::busy()),
            500 => {
                ("InternalServerError", "EngineCore encountered an issue. See stack trace (above) for the root cause.")
            }
            _ => ("InternalServerError", "The request failed."),
        };
        let error = ApiError::bad_request(words);
        self.worded(ApiError { status: self.status, kind, ..error })
    }

    fn worded(&self, error: ApiError) -> ApiError {
        let message = self.message.clone().unwrap_or_else(|| error.message.clone());
        ApiError { message, ..error }
    }

    /// The headers that say when to come again, and that nothing is left until then.
    #[must_use]
    pub fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let after = self.retry_after.or((self.status == 429).then_some(Duration::from_secs(1)));
        let Some(after) = after else { return headers };
        let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
        headers.insert(header::RETRY_AFTER, seconds.into());
        if self.status == 429 {
            headers.insert(HeaderName::from_static("x-ratelimit-remaining-requests"), 0.into());
            let reset = HeaderValue::from_str(&format!("{}ms", after.as_millis()));
            reset.into_iter().for_each(|reset| {
                headers.insert(HeaderName::from_static("x-ratelimit-reset-requests"), reset);
            });
        }
        headers
    }
}
