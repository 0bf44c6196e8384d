//! Responses with the headers of the engine's server.

use std::{cell::RefCell, sync::Arc};

use axum::response::IntoResponse;
use bytes::Bytes;
use futures_util::Stream;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, header::AsHeaderName};
use http_body::Frame;
use http_body_util::StreamBody;
use time::{OffsetDateTime, macros::format_description};

use api::ApiError;
use net::server::{BodyError, ConnectionEnd, NotWhole, receive_whole};

pub(super) use axum::body::Body as ResponseBody;

/// The engine's JSON content type.
pub(super) const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Headers that most answers have besides their own.
const HEADERS: usize = 5;

/// The engine's server.
const SERVER: HeaderValue = HeaderValue::from_static("uvicorn");

/// Reads a whole request body of at most `limit` bytes.
/// Errors: 413 for a longer one, 400 for one that broke off.
pub(super) async fn read_body(body: ResponseBody, limit: usize) -> Result<Bytes, ApiError> {
    receive_whole(body, limit).await.map_err(|why| unreceived(why, limit))
}

/// The error of a body that was not received.
pub(super) fn unreceived(why: NotWhole, limit: usize) -> ApiError {
    match why {
        NotWhole::TooLarge => ApiError::too_large(limit),
        NotWhole::BrokeOff => ApiError::unreadable(),
    }
}

/// The header with the id that a client gives its request.
pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The value of a header, where it is text.
pub(super) fn header_text(headers: &HeaderMap, name: impl AsHeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The text of a JSON answer.
pub(super) struct JsonText(pub(super) String);

impl IntoResponse for JsonText {
    fn into_response(self) -> Response<ResponseBody> {
        json(StatusCode::OK, self.0, HeaderMap::new())
    }
}

/// A JSON answer.
pub(super) fn json(status: StatusCode, body: String, extra: HeaderMap) -> Response<ResponseBody> {
    body_of_type(status, Some(JSON), body.into(), extra)
}

pub(super) fn page(content_type: &'static str, body: String) -> Response<ResponseBody> {
    body_of_type(StatusCode::OK, Some(HeaderValue::from_static(content_type)), body.into(), HeaderMap::new())
}

/// A page without a content length.
pub(super) fn streamed_page(content_type: &'static str, body: String) -> Response<ResponseBody> {
    let frames = futures_util::stream::once(std::future::ready(Ok::<_, BodyError>(Frame::data(Bytes::from(body)))));
    let content_type = HeaderValue::from_static(content_type);
    dressed(StatusCode::OK, None, Some(content_type), HeaderMap::new(), ResponseBody::new(StreamBody::new(frames)))
}

/// An empty answer, as `/health` gives.
pub(super) fn empty(status: StatusCode) -> Response<ResponseBody> {
    body_of_type(status, None, Bytes::new(), HeaderMap::new())
}

/// An empty answer with headers of its own.
pub(super) fn empty_with(status: StatusCode, extra: HeaderMap) -> Response<ResponseBody> {
    body_of_type(status, None, Bytes::new(), extra)
}

/// A plain text whose own headers come first, as the answer to a preflight has them.
pub(super) fn text(status: StatusCode, own: HeaderMap, body: String) -> Response<ResponseBody> {
    let length = HeaderValue::from(body.len());
    let mut response = Response::new(ResponseBody::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.extend(now().map(|date| (header::DATE, date)));
    headers.insert(header::SERVER, SERVER);
    headers.extend(own);
    headers.insert(header::CONTENT_LENGTH, length);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

/// A text without a type.
pub(super) fn untyped(status: StatusCode, body: String) -> Response<ResponseBody> {
    body_of_type(status, None, body.into(), HeaderMap::new())
}

/// An error answer. One that no retry will change has `x-should-retry`.
pub(super) fn error(error: &ApiError) -> Response<ResponseBody> {
    let mut extra = HeaderMap::new();
    if error.kind == "vcr_miss" {
        extra.insert(HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
        let reason = HeaderValue::from_static(error.code.unwrap_or("no_match"));
        extra.insert(HeaderName::from_static("x-vcr-miss"), reason);
    }
    if error.ends_connection() {
        return broken(ConnectionEnd::Close);
    }
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let content_type = recorded_headers(error, &mut extra).filter(|_| error.is_verbatim());
    body_of_type(status, Some(content_type.unwrap_or(JSON)), error.body().into(), extra)
}

/// An error as the response of a handler. Layers find the error among the response's extensions.
pub(super) struct ErrorResponse(ApiError);

impl From<ApiError> for ErrorResponse {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl IntoResponse for ErrorResponse {
    fn into_response(self) -> Response<ResponseBody> {
        let mut response = error(&self.0);
        response.extensions_mut().insert(Arc::new(self.0));
        response
    }
}

/// A response without a head, for its connection ends.
pub(super) fn broken(end: ConnectionEnd) -> Response<ResponseBody> {
    let mut response = Response::default();
    response.extensions_mut().insert(end);
    response
}

/// Adds the headers of a recorded error, but for its content type.
pub(super) fn recorded_headers(error: &ApiError, extra: &mut HeaderMap) -> Option<HeaderValue> {
    let recorded = error.recorded.as_ref()?;
    let parsed =
        |(name, value): &(String, String)| Some((name.parse::<HeaderName>().ok()?, value.parse::<HeaderValue>().ok()?));
    extra.extend(recorded.headers.iter().filter_map(parsed));
    extra.remove(header::CONTENT_TYPE)
}

/// A stream of server-sent events, one HTTP chunk each; after an error its connection breaks.
pub(super) fn events<S>(events: S, extra: HeaderMap) -> Response<ResponseBody>
where
    S: Stream<Item = Result<Frame<Bytes>, BodyError>> + Send + 'static,
{
    events_of_type(StatusCode::OK, HeaderValue::from_static("text/event-stream; charset=utf-8"), events, extra)
}

/// A stream of server-sent events of this type.
pub(super) fn events_of_type<S>(
    status: StatusCode,
    content_type: HeaderValue,
    frames: S,
    extra: HeaderMap,
) -> Response<ResponseBody>
where
    S: Stream<Item = Result<Frame<Bytes>, BodyError>> + Send + 'static,
{
    dressed(status, None, Some(content_type), extra, ResponseBody::new(StreamBody::new(frames)))
}

pub(super) fn body_of_type(
    status: StatusCode,
    content_type: Option<HeaderValue>,
    body: Bytes,
    extra: HeaderMap,
) -> Response<ResponseBody> {
    let length = HeaderValue::from(body.len());
    if body.is_empty() {
        // A body known to be empty would have its length moved behind the other headers.
        let nothing = StreamBody::new(futures_util::stream::empty::<Result<Frame<Bytes>, BodyError>>());
        return dressed(status, Some(length), content_type, extra, ResponseBody::new(nothing));
    }
    dressed(status, Some(length), content_type, extra, ResponseBody::from(body))
}

/// The engine's headers in the engine's order, then ours.
fn dressed(
    status: StatusCode,
    length: Option<HeaderValue>,
    content_type: Option<HeaderValue>,
    extra: HeaderMap,
    body: ResponseBody,
) -> Response<ResponseBody> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.reserve(HEADERS + extra.keys_len());
    if let Some(date) = now() {
        headers.insert(header::DATE, date);
    }
    headers.insert(header::SERVER, SERVER);
    if let Some(allow) = extra.get(header::ALLOW) {
        headers.insert(header::ALLOW, allow.clone());
    }
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, length);
    }
    if let Some(content_type) = content_type {
        headers.insert(header::CONTENT_TYPE, content_type);
    }
    if let Some(location) = extra.get(header::LOCATION) {
        headers.insert(header::LOCATION, location.clone());
    }
    headers.insert(header::VARY, HeaderValue::from_static("Origin"));
    headers.extend(extra);
    response
}

thread_local! {
    /// The last second since 1970 that was formatted, and its text.
    static DATE: RefCell<(i64, Option<HeaderValue>)> = const { RefCell::new((0, None)) };
}

/// The time in the form of the header `date`.
pub(super) fn now() -> Option<HeaderValue> {
    let now = OffsetDateTime::now_utc();
    DATE.with_borrow_mut(|last| {
        let second = now.unix_timestamp();
        if last.1.is_none() || last.0 != second {
            *last = (second, date(now));
        }
        last.1.clone()
    })
}

fn date(time: OffsetDateTime) -> Option<HeaderValue> {
    let format =
        format_description!("[weekday repr:short], [day] [month repr:short] [year] [hour]:[minute]:[second] GMT");
    HeaderValue::from_str(&time.format(format).ok()?).ok()
}

/// Wall-clock seconds since 1970.
pub(super) fn unix_seconds() -> u64 {
    u64::try_from(OffsetDateTime::now_utc().unix_timestamp()).unwrap_or(0)
}
