//! Properties over random answers: what is encoded is read again as the same answer, whole or as a stream, from a body or token by token.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Answer, Cut, Encoder, ResponseForm};
use crate::{
    AnswerChoice, AnswerHead, AnswerMessage, AnswerNames, Api, CacheUse, CachedTokens, ChoiceChunk, Endpoint,
    MessageCall, Opening, StopReason, Usage, UsageEvents,
    anthropic::MessageEncoder,
    responses::{ResponseEncoder, ResponseHead, ResponsesRequest},
};
use net::wire::EventBuffer;
use text::parsers::{CallDelta, Delta};

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(vec!["a", " ", "é", "日本", "\"", "\\n", "{", "word "]), 1..9)
        .prop_map(|parts| parts.concat())
}

fn object(fields: Vec<(&str, Option<Value>)>) -> Value {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect::<Map<_, _>>().into()
}

/// Log probabilities of a text's characters, in a chat's shape; spelled by bytes.
fn chat_logprobs(text: &str) -> Value {
    let token = |token: char| {
        let text = token.to_string();
        json!({"token": text, "logprob": -0.5, "bytes": text.as_bytes(), "top_logprobs": []})
    };
    json!({"content": text.chars().map(token).collect::<Vec<_>>(), "refusal": null})
}

fn text_logprobs(text: &str) -> Value {
    let tokens: Vec<String> = text.chars().map(String::from).collect();
    json!({"text_offset": (0..tokens.len()).collect::<Vec<_>>(), "token_logprobs": vec![-0.5; tokens.len()],
        "tokens": tokens, "top_logprobs": null})
}

fn call() -> impl Strategy<Value = Value> {
    (text(), text(), prop::option::of(text())).prop_map(|(id, name, arguments)| {
        let arguments = arguments.unwrap_or_default();
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    })
}

fn chat_choice() -> impl Strategy<Value = Value> {
    let texts = (prop::option::of(text()), prop::option::of(text()), prop::option::of(text()));
    let rest = (prop::collection::vec(call(), 0..3), any::<bool>(), prop::option::of(0..9_u32), any::<bool>());
    (texts, rest).prop_map(|((content, reasoning, refusal), (calls, scored, stop, annotated))| {
        let logprobs = content.as_deref().filter(|_| scored).map(chat_logprobs);
        let message = object(vec![
            ("role", Some("assistant".into())),
            ("content", Some(content.into())),
            ("refusal", refusal.map(Value::from)),
            ("annotations", annotated.then(|| json!([{"type": "url"}]))),
            ("tool_calls", (!calls.is_empty()).then_some(calls.into())),
            ("reasoning", reasoning.map(Value::from)),
        ]);
        let ids = stop.map(|stop| json!([1, stop]));
        object(vec![
            ("message", Some(message)),
            ("logprobs", Some(logprobs.unwrap_or_default())),
            ("finish_reason", Some("stop".into())),
            ("stop_reason", stop.map(Value::from)),
            ("token_ids", ids),
        ])
    })
}

fn text_choice() -> impl Strategy<Value = Value> {
    (text(), any::<bool>(), prop::option::of(text())).prop_map(|(text, scored, stop)| {
        let logprobs = scored.then(|| text_logprobs(&text));
        let finish = Some("length".into());
        object(vec![
            ("text", Some(text.into())),
            ("logprobs", Some(logprobs.unwrap_or_default())),
            ("finish_reason", finish),
            ("stop_reason", stop.map(Value::from)),
        ])
    })
}

fn choices(object: &str, choices: Vec<Value>) -> Value {
    let choice = |(index, mut choice): (usize, Value)| {
        choice["index"] = index.into();
        choice
    };
    let choices: Vec<Value> = choices.into_iter().enumerate().map(choice).collect();
    json!({"id": "x-1", "object": object, "created": 7, "model": "m", "choices": choices,
        "system_fingerprint": "fp", "prompt_token_ids": [1, 2], "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}})
}

fn block() -> impl Strategy<Value = Value> {
    prop_oneof![
        text().prop_map(|text| json!({"type": "text", "text": text, "citations": []})),
        (text(), prop::option::of(text())).prop_map(|(thinking, signature)| {
            let fields = vec![("thinking", Some(thinking.into())), ("signature", signature.map(Value::from))];
            object([vec![("type", Some("thinking".into()))], fields].concat())
        }),
        (text(), text())
            .prop_map(|(id, value)| json!({"type": "tool_use", "id": id, "name": "f", "input": {"a": value}})),
        text().prop_map(|data| json!({"type": "redacted_thinking", "data": data})),
    ]
}

fn item() -> impl Strategy<Value = Value> {
    let message = |text: String| {
        let content = json!([{"type": "output_text", "text": text, "annotations": []}]);
        json!({"type": "message", "id": "i", "role": "assistant", "status": "completed", "content": content})
    };
    prop_oneof![
        text().prop_map(message),
        text().prop_map(|text| json!({"type": "reasoning", "id": "r", "summary": [],
            "content": [{"type": "reasoning_text", "text": text}]})),
        text().prop_map(|arguments| json!({"type": "function_call", "id": "c", "call_id": "k", "name": "f",
            "arguments": arguments, "status": "completed"})),
        Just(json!({"type": "web_search_call", "id": "w", "status": "completed"})),
    ]
}

fn answer() -> impl Strategy<Value = (Endpoint, Value)> {
    let many = |choice: BoxedStrategy<Value>| prop::collection::vec(choice, 1..4);
    prop_oneof![
        many(chat_choice().boxed()).prop_map(|all| (Endpoint::Chat, choices("chat.completion", all))),
        many(text_choice().boxed()).prop_map(|all| (Endpoint::Completions, choices("text_completion", all))),
        prop::collection::vec(block(), 0..4).prop_map(|blocks| (
            Endpoint::Messages,
            json!({"id": "m", "type": "message", "role": "assistant", "model": "x", "content": blocks,
                "stop_reason": "end_turn", "stop_sequence": null, "usage": {"input_tokens": 1, "output_tokens": 2}})
        )),
        prop::collection::vec(item(), 0..4).prop_map(|items| (
            Endpoint::Responses,
            json!({"id": "r", "object": "response", "created_at": 5, "status": "completed", "output": items,
                "usage": {"input_tokens": 1, "output_tokens": 2}})
        )),
    ]
}

fn cut() -> impl Strategy<Value = Cut> {
    prop::collection::vec(0..100_u32, 0..20).prop_map(|mut times| {
        times.sort_unstable();
        Cut { times: times.into_iter().map(f64::from).collect(), end: 100.0, usage: true, parts: Vec::new() }
    })
}

/// The parts of a chat, with reasoning and calls where the server parses them.
fn message() -> impl Strategy<Value = AnswerMessage> {
    let call = |(at, (name, value)): (usize, (String, String))| {
        let (id, arguments) = (format!("call-{at}"), json!({ "a": value }).to_string());
        MessageCall { id, name, arguments }
    };
    let calls = prop::collection::vec((text(), text()), 0..3);
    (prop::option::of(text()), prop::option::of(text()), calls).prop_map(move |(content, reasoning, calls)| {
        AnswerMessage { content, reasoning, calls: calls.into_iter().enumerate().map(call).collect() }
    })
}

/// A message in deltas of a character each.
fn deltas(message: &AnswerMessage) -> Vec<Delta> {
    let chars = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
    let reasoning = chars(message.reasoning.as_deref().unwrap_or_default()).into_iter();
    let reasoning = reasoning.map(|text| Delta { reasoning: Some(text), ..Delta::default() });
    let content = chars(message.content.as_deref().unwrap_or_default()).into_iter();
    let content = content.map(|text| Delta { content: Some(text), ..Delta::default() });
    let calls = message.calls.iter().enumerate().flat_map(|(index, call)| {
        let begun =
            CallDelta { index, id: Some(call.id.clone()), name: Some(call.name.clone()), ..CallDelta::default() };
        let more = |text| CallDelta { index, arguments: Some(text), ..CallDelta::default() };
        std::iter::once(begun).chain(chars(&call.arguments).into_iter().map(more)).collect::<Vec<_>>()
    });
    let calls = calls.map(|call| Delta { calls: vec![call], ..Delta::default() });
    reasoning.chain(content).chain(calls).chain([Delta::default()]).collect()
}

const CACHED: CacheUse = CacheUse { found: 1, created: 2 };

fn encoder(endpoint: Endpoint) -> (Encoder, EventBuffer) {
    let api = if endpoint == Endpoint::Completions { Api::Completions } else { Api::Chat };
    let names = AnswerNames { id: "1", model: "m", fingerprint: None };
    let mut encoder = Encoder::new(AnswerHead::new(api, &names, 7, UsageEvents::EveryEvent));
    let mut opening = EventBuffer::default();
    if endpoint == Endpoint::Messages {
        encoder.set_form(ResponseForm::FromChat(Box::new(MessageEncoder::default())));
    }
    if endpoint == Endpoint::Responses {
        let request = Arc::new(ResponsesRequest::parse(br#"{"model": "m", "input": "x"}"#).unwrap());
        let head = ResponseHead {
            id: "resp_1".to_owned(),
            created_at: 7,
            model: "m".to_owned(),
            temperature: 1.0,
            top_p: 1.0,
            max_output_tokens: 9,
            cache: CACHED,
        };
        let mut response = ResponseEncoder::new(request, head);
        response.open(&mut opening);
        encoder.set_form(ResponseForm::FromChat(Box::new(response)));
    }
    (encoder, opening)
}

/// The stream of an encoder, accumulated.
fn streamed(endpoint: Endpoint, message: &AnswerMessage, finish: &str, usage: &Usage) -> Option<Answer> {
    let (mut encoder, mut out) = encoder(endpoint);
    encoder.open(0, &Opening::default(), &mut out);
    let deltas = deltas(message);
    for (at, delta) in deltas.iter().enumerate() {
        let text = delta.content.as_deref().unwrap_or_default();
        let finish = (at + 1 == deltas.len()).then_some((finish, &StopReason::Unnamed));
        let delta = (endpoint != Endpoint::Completions).then_some(delta);
        encoder.add(&ChoiceChunk { text, delta, finish, ..ChoiceChunk::default() }, &mut out);
    }
    encoder.end(usage, &mut out);
    let data = |event: bytes::Bytes| {
        let text = String::from_utf8(event.to_vec()).unwrap();
        serde_json::from_str(text.lines().find_map(|line| line.strip_prefix("data: "))?).ok()
    };
    Answer::accumulate(endpoint, &out.filter_map(data).collect::<Vec<_>>())
}

proptest! {
    #[test]
    fn what_is_encoded_is_read_again((endpoint, body) in answer(), cut in cut()) {
        let answer = Answer::read(endpoint, body.clone()).unwrap();
        prop_assert_eq!(answer.clone().into_body(), body);
        let events = answer.events(&cut);
        let times: Vec<f64> = events.iter().map(|event| event.ms).collect();
        prop_assert!(times.is_sorted());
        let data: Vec<Value> = events.into_iter().filter_map(|event| serde_json::from_str(&event.data).ok()).collect();
        prop_assert_eq!(Answer::accumulate(endpoint, &data), Some(answer));
    }

    #[test]
    fn a_choice_is_the_same_in_every_shape(text in text()) {
        let endpoints = [Endpoint::Chat, Endpoint::Completions, Endpoint::Messages, Endpoint::Responses];
        for endpoint in endpoints {
            let answer = Answer::of_text(endpoint, &text, None).unwrap();
            prop_assert_eq!(answer.choices()[0].plain_text(), Some(text.clone()));
        }
    }

    #[test]
    fn a_stream_token_by_token_is_the_same_answer_as_the_body(message in message(), length in any::<bool>()) {
        let usage = Usage { prompt: 5, completion: 4, cached: CachedTokens::Reported(CACHED), reasoning: Some(1), times: None };
        let finish = if length { "length" } else if message.calls.is_empty() { "stop" } else { "tool_calls" };
        for endpoint in [Endpoint::Chat, Endpoint::Completions, Endpoint::Messages, Endpoint::Responses] {
            let text = message.content.clone().unwrap_or_default();
            let parts = (endpoint != Endpoint::Completions).then(|| message.clone());
            let choice = AnswerChoice { text, message: parts, finish: finish.to_owned(), ..AnswerChoice::default() };
            let body = encoder(endpoint).0.body(&[choice], &usage, None);
            let whole = Answer::parse(endpoint, &body).unwrap();
            let stream = streamed(endpoint, &message, finish, &usage).unwrap();
            prop_assert_eq!(stream.choices(), whole.choices(), "{:?}", endpoint);
            prop_assert_eq!(stream.counts().prompt, whole.counts().prompt, "{:?}", endpoint);
            prop_assert_eq!(stream.counts().completion, whole.counts().completion, "{:?}", endpoint);
        }
    }
}
