//! A recorded response in the other form: a stream as one body, a body as a stream.

use bytes::Bytes;
use http::Request;
use serde_json::Value;

use super::{
    assemble,
    counted::Counter,
    request::Asked,
    serve::{Told, told},
};
use crate::{
    recording::canonical::{Call, Rules, SharedBody},
    recording::cassette::{Answer, Moment, Record, Side},
    recording::trace::{Response, ResponseContent},
};

/// A response in the form that its request asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Retold {
    /// A stream: each event with its time in milliseconds.
    Events(Vec<(f64, Bytes)>),
    /// One body.
    Body(Bytes),
}

/// A response that was recorded whole for a request that wants a stream, or the other way. `ms` is when it was complete: the
/// time of everything that was not timed by itself. `None` where its family has no such form that is known here.
#[must_use]
pub fn retold(target: &str, body: &[u8], response: &Response, ms: f64) -> Option<Retold> {
    let asked = asked(target, body)?;
    let path = asked.path();
    let (assembled, events) = match &response.content {
        ResponseContent::Events(events) => (assemble::events(path, events), events.as_slice()),
        ResponseContent::Body(body) => (assemble::body(path, 200, body), &[][..]),
    };
    let times = events.iter().map(|Moment(ms, ..)| Moment(*ms, None, None)).collect();
    let side = Side { ms, head: assembled.head, events: times, ..Side::default() };
    let answer = Answer { status: 200, content: assembled.content, ..Answer::default() };
    let record = Record { body: asked.body.clone(), answer, side: Some(side), ..Record::default() };
    match told(&record, &asked, &Counter::default()) {
        Told::Events(told) if asked.streams() => {
            let is_untimed = events.is_empty();
            Some(Retold::Events(
                told.into_iter().map(|event| (if is_untimed { ms } else { event.ms }, event.bytes)).collect(),
            ))
        }
        Told::Body { bytes, .. } if !asked.streams() => Some(Retold::Body(bytes)),
        Told::Events(_) | Told::Body { .. } => None,
    }
}

fn asked(target: &str, body: &[u8]) -> Option<Asked> {
    let (parts, ()) = Request::post(target).body(()).ok()?.into_parts();
    let value: SharedBody = serde_json::from_slice::<Value>(body).ok()?.into();
    let identity = Rules::default().identify(&Call { method: "POST", path: target, headers: &[], body: &value });
    Some(Asked {
        parts,
        bytes: Bytes::copy_from_slice(body),
        body: value,
        raw: None,
        shown: Value::Null.into(),
        counted: Vec::new(),
        session: String::new(),
        identity,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_told_either_way() {
        let whole = br#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"One two."}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":2}}"#;
        let response = Response { content: ResponseContent::Body(whole.to_vec()), ..Response::default() };
        let Some(Retold::Events(events)) = retold("/v1/messages", br#"{"stream":true}"#, &response, 7.0) else {
            panic!("no events")
        };
        assert!(events.iter().all(|(ms, _)| *ms == 7.0));
        let moments = events.iter().map(|(ms, bytes)| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            Moment(*ms, text.lines().find_map(|line| line.strip_prefix("data: ")).map(str::to_owned), None)
        });
        let response = Response { content: ResponseContent::Events(moments.collect()), ..Response::default() };
        let Some(Retold::Body(body)) = retold("/v1/messages", b"{}", &response, 7.0) else { panic!("no body") };
        let text = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap()["content"].clone();
        assert_eq!(text(&body), text(whole));
        let odd = Response { content: ResponseContent::Body(b"{\"data\":[]}".to_vec()), ..Response::default() };
        assert_eq!(retold("/v1/embeddings", br#"{"stream":true}"#, &odd, 1.0), None);
    }
}
