//! Property: write → read → write is the identity.

use std::path::Path;

use proptest::{prelude::*, test_runner::FileFailurePersistence};
use serde_json::{Map, Value, json};

use super::*;

fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z ,.:#'\"-]{0,12}", "[ -~\\n]{0,30}", "\\PC{0,8}", Just("yes".to_owned()), Just("12:30".to_owned())]
}

fn call() -> impl Strategy<Value = Value> {
    let arguments = prop_oneof![
        text(),
        (text(), text()).prop_map(|(a, b)| json!({"a": a, "b": [b, 1, null]}).to_string()),
        Just("{\"n\": 12345678901234567890123}".to_owned()),
    ];
    ("[a-z0-9]{1,6}", "[a-z]{1,5}", arguments).prop_map(|(id, name, arguments)| {
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    })
}

fn message() -> impl Strategy<Value = Value> {
    (prop_oneof![text().prop_map(Value::from), Just(Value::Null)], proptest::collection::vec(call(), 0..3)).prop_map(
        |(content, calls)| match calls.is_empty() {
            true => json!({"role": "assistant", "content": content}),
            false => json!({"role": "assistant", "content": content, "tool_calls": calls}),
        },
    )
}

fn answer() -> impl Strategy<Value = RecordedAnswer> {
    let answer = (proptest::collection::vec(message(), 1..3), any::<bool>()).prop_map(|(messages, counted)| {
        let choice = |message: Value| {
            let choice = json!({"message": message, "finish_reason": "stop"});
            choice.as_object().cloned().unwrap_or_default()
        };
        let usage = counted.then(|| json!({"prompt_tokens": 3}));
        AnswerContent::Choices { choices: messages.into_iter().map(choice).collect(), usage }
    });
    let event =
        (proptest::option::of("[a-z]{1,5}"), text()).prop_map(|(name, data)| SseEvent { name, data: data.into() });
    let content = prop_oneof![
        answer,
        (text(), text()).prop_map(|(a, b)| AnswerContent::Json(json!({a: b, "list": [1.5, true]}))),
        text().prop_map(|text| AnswerContent::Json(json!({"error": {"message": text}}))),
        text().prop_map(AnswerContent::Text),
        proptest::collection::vec(any::<u8>(), 0..9).prop_map(AnswerContent::Bytes),
        proptest::collection::vec(event, 0..3).prop_map(AnswerContent::Events),
        Just(AnswerContent::Empty),
    ];
    (content, 200_u16..600, proptest::option::of(0_usize..5), text()).prop_map(|(content, status, fault, header)| {
        RecordedAnswer {
            status,
            headers: vec![("x-a".to_owned(), header.clone()), ("x-a".to_owned(), header)],
            content,
            fault: fault.map(TransportFault::reset),
            planned: None,
            made: None,
        }
    })
}

/// Requests that sometimes continue the one before.
fn exchanges() -> impl Strategy<Value = Vec<RecordedExchange>> {
    let one = (text(), answer(), any::<bool>(), any::<bool>(), text());
    proptest::collection::vec(one, 1..5).prop_map(|ones| {
        let (mut messages, mut exchanges) = (Vec::new(), Vec::new());
        for (words, answer, continues, tools, model) in ones {
            if !continues {
                messages.clear();
            }
            messages.push(json!({"role": "user", "content": words}));
            let mut body: Map<String, Value> = Map::new();
            body.insert("model".to_owned(), model.into());
            body.insert("messages".to_owned(), messages.clone().into());
            if tools {
                let tool =
                    json!({"type": "function", "function": {"name": "f", "description": words, "parameters": {}}});
                body.insert("tools".to_owned(), json!([tool]));
            }
            if let AnswerContent::Choices { choices, .. } = &answer.content {
                messages.extend(choices.first().and_then(|choice| choice.get("message")).cloned());
            }
            let path = "/v1/chat/completions?a=b".to_owned();
            let record = CassetteRecord {
                method: "POST".to_owned(),
                path,
                body: Value::from(body).into(),
                answer,
                ..CassetteRecord::default()
            };
            exchanges.push(RecordedExchange { record, ..RecordedExchange::default() });
        }
        exchanges
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct("tests/regressions/cassette.txt"))),
        ..ProptestConfig::with_cases(200)
    })]
    #[test]
    fn what_is_written_is_read_and_written_the_same(exchanges in exchanges()) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.yaml");
        let mut writer = CassetteWriter::create(&path, &Header::default(), WriteMode::Replace).unwrap();
        let rules = crate::canonical::CanonicalRules::default();
        let canonical = |record: &CassetteRecord| rules.canonical("llm:m", &record.body.value());
        let requested: Vec<Value> = exchanges.iter().map(|exchange| canonical(&exchange.record)).collect();
        for exchange in exchanges {
            writer.add(exchange);
        }
        let written = writer.records().to_vec();
        writer.finish().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let cassette = load(&path).unwrap();
        prop_assert!(cassette.warnings.is_empty(), "{:?}\n{text}", cassette.warnings);
        for ((read, written), requested) in cassette.records.iter().zip(&written).zip(requested) {
            prop_assert_eq!(read.answer.shown(), written.answer.shown(), "{}", text);
            prop_assert_eq!(canonical(read), requested, "{}", text);
        }
        prop_assert_eq!(emit(&cassette.header, &cassette.records, &cassette.tools), text.clone());
        let full = emit_expanded(&cassette.header, &cassette.records);
        let reread = parse(Path::new("t.yaml"), &full).unwrap();
        prop_assert_eq!(emit_expanded(&reread.header, &reread.records), full);
    }

    #[test]
    fn no_text_makes_the_reader_fall(text in "[ -~\\n]{0,80}") {
        let _ = parse(Path::new("t.yaml"), &text);
        let _ = parse(Path::new("t.yaml"), &format!("vcr: 1\nrecords:\n- {text}"));
    }
}
