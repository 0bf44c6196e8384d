//! Validation of a response, blocked or not: whether a client library of its endpoint can read it to its end.

use bytes::Bytes;
use serde_json::Value;

use crate::{
    api::{
        DONE, Endpoint,
        answers::{Answer, TokenCounts},
        ends_response,
    },
    prove::{ReadEvents, ReceivedEnd, ReceivedStream, answer_events, is_error, type_of},
    recording::cassette::SseEvent,
};

#[derive(Debug)]
pub(super) struct ReadResponse {
    endpoint: Endpoint,
    /// Events, where it is no body of JSON.
    stream: Option<ReadEvents>,
    /// The answer; `None` for an error, or for what is no answer.
    pub answer: Option<Answer>,
}

impl ReadResponse {
    pub(super) fn of(endpoint: Endpoint, body: &Bytes) -> Self {
        if let Ok(value) = serde_json::from_slice::<Value>(body) {
            return Self { endpoint, stream: None, answer: Answer::read(endpoint, value) };
        }
        let stream = ReadEvents::of(body);
        let answer = Answer::accumulate(endpoint, &answer_events(&stream.events));
        Self { endpoint, stream: Some(stream), answer }
    }

    /// Why the answer ended, in the words of the endpoint; that of the last choice that has one.
    pub(super) fn finish(&self) -> Option<String> {
        match (self.endpoint, &self.stream) {
            (Endpoint::Responses, Some(stream)) => {
                let kind = stream.events.last()?.data.get("type")?.as_str()?;
                Some(kind.trim_start_matches("response.").to_owned())
            }
            _ => {
                self.answer.as_ref()?.choices().iter().rev().find_map(|choice| choice.finish_reason).map(str::to_owned)
            }
        }
    }

    /// The first violation of the endpoint's format; `None` for a valid response. Token counts are required if `has_usage`.
    pub(super) fn defect(&self, is_stream: bool, has_usage: bool, received: &ReceivedStream) -> Option<String> {
        match &received.end {
            ReceivedEnd::Proper => {}
            ReceivedEnd::Unanswered(why) => return Some(format!("no response: {why}")),
            ReceivedEnd::Broken(why) => return Some(format!("the connection broke: {why}")),
            ReceivedEnd::Silent => return Some("the response stalls".to_owned()),
            ReceivedEnd::TooLarge => return Some("the response has no end".to_owned()),
        }
        if received.status != 200 {
            let value = serde_json::from_slice::<Value>(&received.body()).unwrap_or_default();
            return error_defect(self.endpoint, &value).map(|what| format!("status {}: {what}", received.status));
        }
        match (is_stream, &self.stream) {
            (true, None) => Some("a stream was requested, and the response is a body".to_owned()),
            (false, Some(_)) => Some("a body was requested, and the response is not JSON".to_owned()),
            (false, None) => self.answer_defect(has_usage),
            (true, Some(stream)) => self.stream_defect(stream, has_usage, received),
        }
    }

    /// What an answer lacks.
    fn answer_defect(&self, has_usage: bool) -> Option<String> {
        let Some(answer) = &self.answer else { return Some("the body is not a response of this endpoint".to_owned()) };
        let choices = answer.choices();
        if choices.is_empty() {
            return Some("the response has no choice".to_owned());
        }
        if let Some(at) = choices.iter().position(|choice| choice.finish_reason.is_none_or(str::is_empty)) {
            let reason = match self.endpoint {
                Endpoint::Messages => "stop_reason",
                Endpoint::Responses => "status",
                _ => "finish_reason",
            };
            return Some(format!("choice {at} has no {reason}"));
        }
        if !has_usage {
            return None;
        }
        let TokenCounts { prompt, completion, .. } = answer.counts();
        match (prompt, completion) {
            (None, None) => Some("it has no usage".to_owned()),
            (None | Some(0), None | Some(0)) => Some("its usage is zero".to_owned()),
            _ => None,
        }
    }

    fn stream_defect(&self, stream: &ReadEvents, has_usage: bool, received: &ReceivedStream) -> Option<String> {
        let kind = received.headers.get(http::header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        if !kind.starts_with("text/event-stream") {
            return Some(format!("content-type is {kind:?}, not text/event-stream"));
        }
        if let Some(defect) = stream.framing_defect() {
            return Some(defect);
        }
        let is_text = |event: &SseEvent| event.data.is_string() && event.data != DONE;
        if let Some(at) = stream.events.iter().position(is_text) {
            return Some(format!("event {} is no JSON", at + 1));
        }
        if let Some(error) = stream.events.iter().find(|event| is_error(event)) {
            return error_defect(self.endpoint, &error.data);
        }
        terminal_defect(self.endpoint, &stream.events).or_else(|| self.answer_defect(has_usage))
    }
}

fn error_defect(endpoint: Endpoint, body: &Value) -> Option<String> {
    let error = match (endpoint, type_of(body)) {
        (Endpoint::Responses, "response.failed") => body.pointer("/response/error"),
        (Endpoint::Responses, "error") => body.get("error").or(Some(body)),
        _ => body.get("error"),
    };
    if error.and_then(|error| error.get("message")).is_none_or(|message| !message.is_string()) {
        return Some("the error has no `error.message`".to_owned());
    }
    let is_wrong = endpoint == Endpoint::Messages && type_of(body) != "error";
    is_wrong.then(|| "the error is not in the form of the Messages API: its `type` is not `error`".to_owned())
}

/// What is wrong with the events around an answer.
fn terminal_defect(endpoint: Endpoint, events: &[SseEvent]) -> Option<String> {
    let count = |kind: &str| events.iter().filter(|event| type_of(&event.data) == kind).count();
    let last = events.last()?;
    match endpoint {
        Endpoint::Messages => {
            if events.first().is_none_or(|event| type_of(&event.data) != "message_start") {
                return Some("the stream does not begin with message_start".to_owned());
            }
            if count("content_block_start") != count("content_block_stop") {
                return Some("a content block is not closed".to_owned());
            }
            let unnamed = events.iter().find(|event| event.name.as_deref() != Some(type_of(&event.data)));
            if let Some(event) = unnamed {
                return Some(format!("the `event` field of {} names another type", type_of(&event.data)));
            }
            (type_of(&last.data) != "message_stop").then(|| "the stream does not end with message_stop".to_owned())
        }
        Endpoint::Responses => (!ends_response(type_of(&last.data)))
            .then(|| "the stream does not end with response.completed, incomplete or failed".to_owned()),
        _ => (last.data != DONE).then(|| "the stream does not end with [DONE]".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::prove::StreamRead;

    fn response(status: u16, kind: &'static str, body: &str) -> ReceivedStream {
        let after = std::time::Duration::ZERO;
        let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, http::HeaderValue::from_static(kind))]);
        let reads = vec![StreamRead { after, bytes: body.to_owned().into() }];
        ReceivedStream { status, headers, reads, end: ReceivedEnd::Proper, took: after }
    }

    fn defect((endpoint, is_stream): (Endpoint, bool), has_usage: bool, received: &ReceivedStream) -> Option<String> {
        ReadResponse::of(endpoint, &received.body()).defect(is_stream, has_usage, received)
    }

    fn stream(endpoint: Endpoint, body: &str) -> String {
        defect((endpoint, true), true, &response(200, "text/event-stream", body)).unwrap_or_default()
    }

    #[test]
    fn streams_of_choices_end_with_a_reason_usage_and_done() {
        let text = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"a\"}}]}\n\n";
        let end = "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"content_filter\"}]}\n\n";
        let usage = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":1}}\n\n";
        let none = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":0,\"completion_tokens\":0}}\n\n";
        let (done, error) = ("data: [DONE]\n\n", "data: {\"error\":{\"message\":\"blocked\"}}\n\n");
        for (parts, said) in [
            (vec![text, end, usage, done], ""),
            (vec![text, error, done], ""),
            (vec![text, end, usage], "[DONE]"),
            (vec![text, usage, done], "finish_reason"),
            (vec![text, end, done], "no usage"),
            (vec![text, end, none, done], "usage is zero"),
            (vec![text, "data: blocked\n\n", done], "no JSON"),
            (vec![text, "data: {\"error\":\"blocked\"}\n\n"], "error.message"),
            (vec![done], "not a response"),
        ] {
            let found = stream(Endpoint::Chat, &parts.concat());
            assert!(found.contains(said) && found.is_empty() == said.is_empty(), "{parts:?}: {found}");
        }
        let uncounted = response(200, "text/event-stream", &[text, end, done].concat());
        assert_eq!(defect((Endpoint::Chat, true), false, &uncounted), None);
        let plain =
            defect((Endpoint::Chat, true), true, &response(200, "text/plain", &[text, end, usage, done].concat()));
        assert!(plain.unwrap().contains("text/event-stream"));
    }

    #[test]
    fn errors_and_ends_are_those_of_the_endpoint() {
        let bare = "{\"error\":{\"message\":\"blocked\"}}";
        assert_eq!(defect((Endpoint::Chat, false), true, &response(400, "application/json", bare)), None);
        assert!(
            defect((Endpoint::Messages, false), true, &response(400, "application/json", bare))
                .unwrap()
                .contains("`type`")
        );
        assert!(
            defect((Endpoint::Chat, false), true, &response(500, "text/plain", "oops")).unwrap().contains("status 500")
        );
        assert!(
            defect((Endpoint::Chat, true), true, &response(200, "application/json", bare))
                .unwrap()
                .contains("the response is a body")
        );
        assert!(stream(Endpoint::Messages, &format!("data: {bare}\n\n")).contains("`type`"));
        let error = "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"x\"}}\n\n";
        assert_eq!(stream(Endpoint::Messages, error), "");
        let open = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{}}\n\n";
        assert!(stream(Endpoint::Messages, open).contains("message_stop"));
        assert!(
            stream(Endpoint::Responses, "data: {\"type\":\"response.created\"}\n\n").contains("response.completed")
        );
        assert_eq!(
            stream(
                Endpoint::Responses,
                "data: {\"type\":\"response.failed\",\"response\":{\"error\":{\"message\":\"x\"}}}\n\n"
            ),
            ""
        );
    }
}
