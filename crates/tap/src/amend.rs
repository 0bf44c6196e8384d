//! Amendments of requests, so that the engine returns token ids.
//!
//! `return_token_ids` makes the engine return the ids of the prompt and of every chunk. `stream_options.include_usage`
//! makes it count them at the end of a stream, with the number of cached prompt tokens; it also moves
//! `system_fingerprint`, so it is added only once that is known (see `capabilities`). `stream_options.continuous_usage_stats` makes it count
//! them with every event: only where a client of this program has no use for the bytes (`Setup::counts_tokens`).
//!
//! Not amended: a completion that echoes a prompt which is not text, because with `return_token_ids` the engine leaves the
//! echo out (see `echo`); a body that is not a plain JSON object, or one without fields, which no engine takes; anything the
//! client already asks for.
//!
//! See docs/decisions/0004-the-tap-amends-and-restores.md and
//! docs/decisions/0006-usage-only-when-removable.md.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, header, request::Parts};

use super::{echo::EchoedPrompts, request::RequestFields};
use net::{
    upstream::{OutgoingBody, Relayed},
    wire::{Edits, span_in},
};

/// Fields added to a request; their effects have to be removed from the response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Added {
    /// `return_token_ids`.
    pub(super) ids: bool,
    /// `stream_options.include_usage`.
    pub(super) usage: bool,
    /// `stream_options.continuous_usage_stats`.
    pub(super) continuous: bool,
    /// Prompts that the engine does not echo because ids are requested.
    pub(super) echo: Option<Arc<EchoedPrompts>>,
}

impl Added {
    /// Returns true if anything was added.
    pub(super) fn any(&self) -> bool {
        self.ids || self.usage
    }
}

/// Fields that an upstream's requests are to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Wanted {
    pub(super) ids: bool,
    pub(super) usage: WantedUsage,
}

/// Counts that an upstream's streams are to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum WantedUsage {
    /// As the client asks for it.
    #[default]
    AsRequested,
    AtEnd,
    /// With every event, and at the end.
    Continuous,
}

impl WantedUsage {
    /// The value of `stream_options`.
    fn options(self) -> Option<&'static str> {
        match self {
            Self::AsRequested => None,
            Self::AtEnd => Some("{\"include_usage\":true}"),
            Self::Continuous => Some("{\"include_usage\":true,\"continuous_usage_stats\":true}"),
        }
    }

    /// Returns true if these valid stream options leave out what is wanted.
    fn lacks(self, options: &str) -> bool {
        let is_set = |value: Option<&serde_json::Value>| {
            !matches!(value, None | Some(serde_json::Value::Null | serde_json::Value::Bool(false)))
        };
        match serde_json::from_str(options) {
            Ok(serde_json::Value::Null) => true,
            Ok(serde_json::Value::Object(options)) => {
                let lacks_usage = !is_set(options.get("include_usage"));
                let lacks_counts = self == Self::Continuous && !is_set(options.get("continuous_usage_stats"));
                (lacks_usage || lacks_counts)
                    && options.keys().all(|key| key == "include_usage" || key == "continuous_usage_stats")
            }
            _ => false,
        }
    }
}

/// A request that may be amended.
#[derive(Debug)]
pub(super) struct Amendable<'a> {
    body: Bytes,
    /// `None` where it has to stay as it is.
    requested: Option<&'a RequestFields<'a>>,
}

impl<'a> Amendable<'a> {
    pub(super) fn new(body: &Bytes, requested: Option<&'a RequestFields<'a>>) -> Self {
        Self { body: body.clone(), requested }
    }

    /// Builds the pieces of the body with what is wanted; `None` if it is to be sent as it is.
    pub(super) fn amend(&self, wanted: Option<Wanted>) -> Option<(VecDeque<Bytes>, Added)> {
        amend(&self.body, self.requested?, wanted?)
    }

    /// Returns true for a request for a stream.
    pub(super) fn streams(&self) -> bool {
        self.requested.is_some_and(RequestFields::streams)
    }
}

/// Builds the pieces of the amended body, which share the client's bytes; `None` if the client's own body is to be sent.
fn amend(body: &Bytes, requested: &RequestFields<'_>, wanted: Wanted) -> Option<(VecDeque<Bytes>, Added)> {
    if has_no_fields(body) {
        return None;
    }
    let mut edits = Edits::default();
    let mut inserted = String::new();
    let mut added = Added::default();
    let repeats_prompt = wanted.ids && requested.echoes() && requested.get("prompt").is_some();
    let echo = if repeats_prompt { EchoedPrompts::of(requested).map(Arc::new) } else { None };
    match requested.get("return_token_ids").map(|value| (value, value.get())) {
        _ if !wanted.ids || (repeats_prompt && echo.is_none()) => {}
        None => {
            inserted.push_str(",\"return_token_ids\":true");
            added.ids = true;
        }
        Some((value, "false" | "null")) => {
            edits.replace(span_in(body, value.get().as_bytes())?, "true");
            added.ids = true;
        }
        Some(_) => {}
    }
    if let Some(options) = wanted.usage.options().filter(|_| requested.streams()) {
        match requested.get("stream_options") {
            None => {
                inserted.push_str(",\"stream_options\":");
                inserted.push_str(options);
                added.usage = true;
            }
            Some(value) if wanted.usage.lacks(value.get()) => {
                edits.replace(span_in(body, value.get().as_bytes())?, options);
                added.usage = true;
            }
            Some(_) => {}
        }
        added.continuous = added.usage && wanted.usage == WantedUsage::Continuous;
    }
    if !inserted.is_empty() {
        let end = body.iter().rposition(|byte| *byte == b'}')?;
        edits.replace(end..end, inserted);
    }
    added.echo = echo.filter(|_| added.ids);
    added.any().then(|| (edits.pieces(body), added))
}

/// Returns true for an object without fields, to which a field cannot be added behind a comma.
fn has_no_fields(body: &[u8]) -> bool {
    let inside = body.trim_ascii().strip_prefix(b"{").and_then(|rest| rest.strip_suffix(b"}"));
    inside.is_some_and(|inside| inside.trim_ascii().is_empty())
}

/// Returns true if headers have a digest or signature of the body, which must not be changed then.
pub(super) fn is_signed(headers: &HeaderMap) -> bool {
    const NAMES: [&str; 9] = [
        "content-digest",
        "repr-digest",
        "digest",
        "content-md5",
        "signature-input",
        "signature",
        "x-amz-content-sha256",
        "x-hub-signature",
        "x-hub-signature-256",
    ];
    let scheme = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes()).unwrap_or_default();
    scheme.starts_with(b"AWS4-") || NAMES.iter().any(|name| headers.contains_key(*name))
}

/// Builds the amended request.
pub(super) fn amended_request(parts: &Parts, body: VecDeque<Bytes>) -> Request<OutgoingBody> {
    let mut parts = parts.clone();
    update_content_length(&mut parts.headers, body.iter().map(Bytes::len).sum());
    Request::from_parts(parts, Relayed::pieces(body))
}

/// Returns true for statuses with which an engine, or a gateway before it, may refuse an added field.
pub(super) fn is_refusal(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::FORBIDDEN
            | StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::NOT_IMPLEMENTED
    )
}

/// Updates `content-length`, if there is one, without moving it among the headers.
pub(super) fn update_content_length(headers: &mut HeaderMap, body: usize) {
    if let Some(length) = headers.get_mut(header::CONTENT_LENGTH) {
        *length = body.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capabilities::Capabilities;

    fn amended(body: &str, capabilities: &Capabilities) -> Option<(String, Added)> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let requested = RequestFields::read(&body).unwrap();
        let amended = capabilities.wanted().and_then(|wanted| amend(&body, &requested, wanted));
        amended.map(|(pieces, added)| (String::from_utf8(Vec::from(pieces).concat()).unwrap(), added))
    }

    const IDS: Added = Added { ids: true, usage: false, continuous: false, echo: None };
    const BOTH: Added = Added { usage: true, ..IDS };

    #[test]
    fn ids_are_requested_and_every_other_byte_stays() {
        let capabilities = Capabilities::default();
        assert_eq!(
            amended("{ \"model\":\"m\",\n\"messages\":[{}] } \n", &capabilities),
            Some(("{ \"model\":\"m\",\n\"messages\":[{}] ,\"return_token_ids\":true} \n".to_owned(), IDS))
        );
        assert_eq!(
            amended(r#"{"return_token_ids":  false,"n":1}"#, &capabilities),
            Some((r#"{"return_token_ids":  true,"n":1}"#.to_owned(), IDS))
        );
        assert_eq!(amended(r#"{"return_token_ids":true,"n":1}"#, &capabilities), None);
    }

    #[test]
    fn an_object_without_fields_stays_as_it_is() {
        let capabilities = Capabilities::default();
        for body in ["{}", "{ }", " {\n\t} \r\n"] {
            assert_eq!(amended(body, &capabilities), None, "{body:?}");
        }
        assert_eq!(amended(r#"{"a":{}}"#, &capabilities).unwrap().0, r#"{"a":{},"return_token_ids":true}"#);
    }

    #[test]
    fn the_amended_body_shares_the_bytes_of_the_clients() {
        let body = Bytes::from(format!("{{\"model\":\"m\",\"prompt\":\"{}\"}}", "a".repeat(1 << 20)));
        let requested = RequestFields::read(&body).unwrap();
        let (pieces, _) = amend(&body, &requested, Wanted { ids: true, ..Wanted::default() }).unwrap();
        let own = |piece: &&Bytes| span_in(&body, piece).is_none();
        let copied: usize = pieces.iter().filter(own).map(Bytes::len).sum();
        assert_eq!(copied, ",\"return_token_ids\":true".len());
    }

    #[test]
    fn an_echo_is_kept_if_the_engine_will_leave_it_out() {
        let capabilities = Capabilities::default();
        let echoed = |body| amended(body, &capabilities).unwrap().1.echo;
        let echo = echoed(r#"{"prompt":"x","echo":true}"#).unwrap();
        assert_eq!(echo.of_choice(0), Some("x"));
        assert_eq!(echoed(r#"{"messages":[],"echo":true}"#), None);
        assert_eq!(echoed(r#"{"prompt":"x","echo":false}"#), None);
        for left in [r#"{"prompt":[1],"echo":true}"#, r#"{"prompt":"x","echo":true,"return_token_ids":true}"#] {
            assert_eq!(amended(left, &capabilities), None, "{left}");
        }
    }

    #[test]
    fn usage_is_requested_once_the_fingerprint_is_known() {
        let capabilities = Capabilities::default();
        let body = r#"{"model":"m","stream":true}"#;
        assert_eq!(amended(body, &capabilities).unwrap().1, IDS);
        capabilities.observe_fingerprint(Some("vllm-1"));
        let (text, added) = amended(body, &capabilities).unwrap();
        assert_eq!(added, BOTH);
        assert!(text.ends_with(r#","return_token_ids":true,"stream_options":{"include_usage":true}}"#), "{text}");
        let (text, added) =
            amended(r#"{"stream":true,"stream_options":{"include_usage":false},"n":1}"#, &capabilities).unwrap();
        assert_eq!(added, BOTH);
        assert!(text.starts_with(r#"{"stream":true,"stream_options":{"include_usage":true},"n":1"#), "{text}");
        assert_eq!(
            amended(r#"{"stream":true,"stream_options":{"include_usage":true}}"#, &capabilities).unwrap().1,
            IDS
        );
        assert_eq!(amended(r#"{"stream":true,"stream_options":"x"}"#, &capabilities).unwrap().1, IDS);
    }

    #[test]
    fn counts_with_every_event_are_requested_where_they_are_wanted() {
        let wanted = Wanted { ids: false, usage: WantedUsage::Continuous };
        let options = r#""stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
        for (body, sent) in [
            (r#"{"stream":true}"#, Some(format!(r#"{{"stream":true,{options}}}"#))),
            (
                r#"{"stream_options":{"include_usage":true},"stream":true}"#,
                Some(format!(r#"{{{options},"stream":true}}"#)),
            ),
            (r#"{"stream":true,"stream_options":{"include_usage":true,"other":1}}"#, None),
            (r#"{"stream":false}"#, None),
            (&format!(r#"{{"stream":true,{options}}}"#), None),
        ] {
            let body = Bytes::copy_from_slice(body.as_bytes());
            let amended = amend(&body, &RequestFields::read(&body).unwrap(), wanted);
            let text = |pieces: VecDeque<Bytes>| String::from_utf8(Vec::from(pieces).concat()).unwrap();
            assert!(
                amended.iter().all(|(_, added)| *added == Added { usage: true, continuous: true, ..Added::default() })
            );
            assert_eq!(amended.map(|(pieces, _)| text(pieces)), sent);
        }
    }

    #[test]
    fn requests_of_an_engine_that_refused_are_not_amended_again() {
        let capabilities = Capabilities::default();
        capabilities.refused_amendments();
        assert_eq!(amended(r#"{"model":"m"}"#, &capabilities), None);
    }
}
