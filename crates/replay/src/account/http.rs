//! Request bodies read whole, and responses that are one body.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Body;
use serde_json::json;

use net::server::{NotWhole, ResponseBody, receive_whole, whole_body};

/// Reads a body of at most so many bytes.
///
/// # Errors
/// The response to a body that broke off (400) or is larger (413).
pub async fn read<B: Body<Data = Bytes> + Unpin>(body: B, limit: usize) -> Result<Bytes, Response<ResponseBody>> {
    receive_whole(body, limit).await.map_err(|why| match why {
        NotWhole::TooLarge => plain(StatusCode::PAYLOAD_TOO_LARGE, "the request's body is too large"),
        NotWhole::BrokeOff => plain(StatusCode::BAD_REQUEST, "the request's body broke off"),
    })
}

/// An error of this program's own.
#[must_use]
pub fn plain(status: StatusCode, message: &str) -> Response<ResponseBody> {
    let body = json!({"error": {"message": message, "type": "vcr_error", "param": null, "code": status.as_u16()}});
    whole(status.as_u16(), "application/json", body.to_string())
}

/// Sets a header, unless its value can stand in none.
pub fn put(headers: &mut HeaderMap, name: &'static str, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// An answer that is one body.
pub fn whole(status: u16, content_type: &str, body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(whole_body(body.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    put(response.headers_mut(), "content-type", content_type);
    response
}
