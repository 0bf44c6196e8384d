//! Properties over random answers: what is encoded is read again as the same answer.

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Answer, Cut};
use crate::api::Endpoint;

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
        Cut { times: times.into_iter().map(f64::from).collect(), end: 100.0, usage: true }
    })
}

proptest! {
    #[test]
    fn what_is_encoded_is_read_again((endpoint, body) in answer(), cut in cut()) {
        let answer = Answer::read(endpoint, body.clone()).unwrap();
        prop_assert_eq!(answer.clone().into_body(), body);
        let events = answer.events(&cut);
        let times: Vec<f64> = events.iter().map(|event| event.ms).collect();
        prop_assert!(times.is_sorted());
        let data: Vec<Value> = events.into_iter().map(|event| event.data).filter(Value::is_object).collect();
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
}
