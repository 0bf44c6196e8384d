//! Request bodies read whole, and responses that are one body.

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Body;
use http_body_util::BodyExt;
use serde_json::json;

use net::server::{ResponseBody, whole_body};

/// Reads a body of at most so many bytes.
///
/// # Errors
/// The response to a body that broke off (400) or is larger (413).
pub async fn read<B: Body<Data = Bytes> + Unpin>(mut body: B, limit: usize) -> Result<Bytes, Response<ResponseBody>> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(plain(StatusCode::BAD_REQUEST, "the request's body broke off")) };
        if let Ok(data) = frame.into_data() {
            if read.len() + data.len() > limit {
                return Err(plain(StatusCode::PAYLOAD_TOO_LARGE, "the request's body is too large"));
            }
            read.extend_from_slice(&data);
        }
    }
    Ok(read.freeze())
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
