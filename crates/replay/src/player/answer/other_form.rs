//! A recorded response in the other form: a stream as one body, a body as a stream.

use bytes::Bytes;
use serde_json::Value;

use crate::player::{
    answer::{content::Timed, token_counts::Counter},
    receive::request::wants_usage,
    record::assemble,
};
use api::{
    Endpoint,
    answers::{Answer, Cut},
};
use net::wire::json_as_utf8;
use recording::{
    canonical::SharedBody,
    trace::{Response, ResponseContent},
};

/// A response in the form that its request asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum OtherForm {
    /// A stream: each event with its time in milliseconds.
    Events(Vec<(f64, Bytes)>),
    /// One body.
    Body(Bytes),
}

/// Encodes a body that was recorded as a stream, and a stream as one body. `ms` is when the body was complete, the time of all its events.
/// `None` where the endpoint of this path has no such form, or numbers would lose digits.
#[must_use]
pub fn other_form(path: &str, body: &[u8], response: &Response, ms: f64) -> Option<OtherForm> {
    let request = SharedBody::from(serde_json::from_slice::<Value>(&json_as_utf8(body)).ok()?);
    let path = path.split('?').next().unwrap_or_default();
    let endpoint = Endpoint::of_path(path);
    let (answer, is_stream) = match &response.content {
        ResponseContent::Events(events) => (Answer::accumulate(endpoint, &assemble::data(events)?)?, true),
        ResponseContent::Body(body) => (Answer::read(endpoint, assemble::exact(body)?)?, false),
    };
    let answer = Counter::default().filled_answer(endpoint, answer, &request);
    if is_stream {
        return Some(OtherForm::Body(answer.into_body().to_string().into()));
    }
    let cut = Cut { times: Vec::new(), end: ms, usage: wants_usage(&request) };
    let events = answer.events(&cut).into_iter().map(|event| (ms, Timed::from(event).bytes));
    Some(OtherForm::Events(events.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::cassette::Moment;

    #[test]
    fn a_message_is_written_in_either_form() {
        let whole = br#"{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[{"type":"text","text":"One two."}],"stop_reason":"end_turn","stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":2}}"#;
        let response = Response { content: ResponseContent::Body(whole.to_vec()), ..Response::default() };
        let Some(OtherForm::Events(events)) = other_form("/v1/messages", br#"{"stream":true}"#, &response, 7.0) else {
            panic!("no events")
        };
        assert!(events.iter().all(|(ms, _)| *ms == 7.0));
        let moments = events.iter().map(|(ms, bytes)| {
            let text = String::from_utf8(bytes.to_vec()).unwrap();
            Moment(*ms, text.lines().find_map(|line| line.strip_prefix("data: ")).map(str::to_owned), None)
        });
        let response = Response { content: ResponseContent::Events(moments.collect()), ..Response::default() };
        let Some(OtherForm::Body(body)) = other_form("/v1/messages", b"{}", &response, 7.0) else { panic!("no body") };
        let text = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap()["content"].clone();
        assert_eq!(text(&body), text(whole));
        let odd = Response { content: ResponseContent::Body(b"{\"data\":[]}".to_vec()), ..Response::default() };
        assert_eq!(other_form("/v1/embeddings", br#"{"stream":true}"#, &odd, 1.0), None);
    }
}
