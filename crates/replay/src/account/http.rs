//! Request bodies read whole, and responses that are one body.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::Body;
use serde_json::json;

use net::server::{NotWhole, ResponseBody, receive_whole, whole_body};

/// The most bytes of a header that names records; clients refuse heads of 16 KB.
const MOST_NAMED: usize = 4096;

/// Reads a body of at most so many bytes.
///
/// # Errors
/// The response to a body that broke off (400) or is larger (413).
pub async fn read<B>(body: B, limit: usize) -> Result<Bytes, Response<ResponseBody>>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>>,
{
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

/// The value of `x-vcr-record`: names of records, without the last ones where all of them are too many for a header.
#[must_use]
pub fn record_names(names: impl Iterator<Item = String>) -> String {
    let mut value = String::new();
    for name in names {
        let comma = if value.is_empty() { "" } else { "," };
        if value.len() + comma.len() + name.len() > MOST_NAMED {
            break;
        }
        value.extend([comma, &name]);
    }
    value
}

/// An answer that is one body.
pub fn whole(status: u16, content_type: &str, body: impl Into<Bytes>) -> Response<ResponseBody> {
    let mut response = Response::new(whole_body(body.into()));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    put(response.headers_mut(), "content-type", content_type);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_names_as_many_records_as_it_has_room_for() {
        let names = |count: usize| record_names((0..count).map(|at| format!("tape.yaml#{at}")));
        assert_eq!((names(0).as_str(), names(2).as_str()), ("", "tape.yaml#0,tape.yaml#1"));
        assert!(names(1000).len() <= MOST_NAMED && names(1000).ends_with("#299"), "{}", names(1000));
    }
}
