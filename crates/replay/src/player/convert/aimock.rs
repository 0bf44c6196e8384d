//! Hand-written records from the fixtures of aimock.
//!
//! A fixture is a `match` and a `response`, as a record with conditions is a `match` and an `answer`: what both have is written in our
//! words. Order and meaning stay: the first fixture that matches answers.
//!
//! Limits: fixtures for other endpoints than chats and with faults of their own are refused. Paces and the fields of an answer's envelope
//! (`id`, `created`, `model`) have no effect.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::placed;
use recording::{
    cassette::{self, CassetteError},
    yaml::{self, Layout, YamlNode},
};

/// Keys of a fixture and of its response that change nothing here.
const WITHOUT_EFFECT: [&str; 15] = [
    "chunkSize",
    "created",
    "id",
    "latency",
    "model",
    "nativeFinishReason",
    "provider",
    "reasoningSignature",
    "recordedTimings",
    "redactedThinking",
    "replaySpeed",
    "role",
    "streamingProfile",
    "systemFingerprint",
    "webSearches",
];

/// The system message of a chat, as an expression.
const SYSTEM_TEXT: &str = "messages|selectattr('role', 'equalto', 'system')|map(attribute='content')|join(' ')";

/// Fixtures as a cassette.
#[derive(Debug, Default)]
pub struct ConvertedFixtures {
    /// The cassette's text.
    pub text: String,
    /// Records of it.
    pub records: usize,
    /// Fixtures of which no record can be made, each with its place and why.
    pub refused: Vec<String>,
}

/// Returns whether a text, of which this is the beginning, has fixtures of aimock.
#[must_use]
pub fn is_aimock(head: &str) -> bool {
    let head = head.trim_start_matches('\u{feff}').trim_start();
    head.strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with("\"fixtures\""))
}

/// Makes a cassette of fixtures.
///
/// # Errors
/// When it is no JSON with a list of them, with the line.
pub fn aimock(text: &str) -> Result<ConvertedFixtures, String> {
    // JSON is YAML, whose reader names lines.
    let file = yaml::parse(text).map_err(|error| error.to_string())?;
    let fixtures = file.get("fixtures").and_then(YamlNode::items).ok_or("line 1: `fixtures` has to be a list")?;
    let (mut records, mut refused) = (Vec::new(), Vec::new());
    for (place, fixture) in placed(fixtures) {
        match record(&fixture.value()).and_then(playable) {
            Ok(record) => records.push(record),
            Err(why) => refused.push(format!("{place}: {why}")),
        }
    }
    Ok(ConvertedFixtures { records: records.len(), refused, text: cassette_of(records) })
}

fn cassette_of(records: Vec<Value>) -> String {
    let whole = Map::from_iter([("vcr".to_owned(), json!(1)), ("records".to_owned(), Value::Array(records))]);
    let mut text = String::new();
    yaml::write(&mut text, &whole, 0, Layout::Compact);
    text
}

/// Gives back a record that a cassette may have; one that it may not is refused in the cassette's words.
fn playable(record: Value) -> Result<Value, String> {
    match cassette::parse(Path::new(""), &cassette_of(vec![record.clone()])) {
        Ok(_) => Ok(record),
        Err(CassetteError::Wrong { message, .. }) => Err(message),
        Err(error) => Err(error.to_string()),
    }
}

fn record(fixture: &Value) -> Result<Value, String> {
    let fields = fixture.as_object().ok_or("a fixture has to be an object")?;
    let unread = fields.keys().find(|key| {
        !matches!(key.as_str(), "match" | "response")
            && !key.starts_with('_')
            && !WITHOUT_EFFECT.contains(&key.as_str())
    });
    if let Some(key) = unread {
        return Err(format!("`{key}` is not read here: write it as a fault (--fault)"));
    }
    let matched =
        fields.get("match").and_then(Value::as_object).ok_or("`match` has to be an object, {} for any request")?;
    let conditions = conditions(matched)?;
    let answer = answer(fields.get("response").ok_or("`response` is missing")?)?;
    Ok(json!({"match": conditions, "answer": answer}))
}

/// The conditions of a `match`.
fn conditions(matched: &Map<String, Value>) -> Result<Value, String> {
    let (mut conditions, mut when) = (Map::new(), Vec::new());
    for (key, value) in matched.iter().filter(|(_, value)| !value.is_null()) {
        let wrong = || format!("`match.{key}: {value}` is not read here");
        let (name, condition) = match (key.as_str(), value) {
            ("endpoint", Value::String(endpoint)) if endpoint == "chat" => continue,
            ("userMessage" | "inputText", Value::String(_)) => ("contains", value.clone()),
            ("toolName", Value::String(_)) => ("tool", value.clone()),
            ("model", Value::String(_)) => ("model", value.clone()),
            ("hasToolResult", Value::Bool(_)) => ("tool_result", value.clone()),
            ("turnIndex", Value::Number(_)) => ("turn", value.clone()),
            ("sequenceIndex", Value::Number(index)) => {
                ("nth", json!(index.as_u64().and_then(|index| index.checked_add(1)).ok_or_else(wrong)?))
            }
            ("context", Value::String(_)) => ("header", json!({"x-aimock-context": value})),
            ("systemMessage", Value::String(_) | Value::Array(_)) => {
                let texts = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
                if texts.is_empty() || !texts.iter().all(Value::is_string) {
                    return Err(wrong());
                }
                // `role` is the message that `contains` searches, which a text of the user needs elsewhere.
                if matched.contains_key("userMessage") || matched.contains_key("inputText") {
                    when.extend(texts.iter().map(|text| format!("{text} in {SYSTEM_TEXT}")));
                    continue;
                }
                conditions.extend([("role".to_owned(), json!("system")), ("message".to_owned(), json!("any"))]);
                ("contains", value.clone())
            }
            ("toolResultContains", Value::String(_)) => {
                when.push(format!("{value} in messages[-1].content"));
                ("tool_result", Value::Bool(true))
            }
            ("toolCallId", Value::String(_)) => {
                when.push(format!("messages[-1].tool_call_id == {value}"));
                continue;
            }
            ("responseFormat", Value::String(_)) => {
                when.push(format!("response_format.type == {value}"));
                continue;
            }
            _ => return Err(wrong()),
        };
        let earlier = conditions.insert(name.to_owned(), condition.clone());
        if earlier.is_some_and(|earlier| earlier != condition) {
            return Err(format!(
                "`match.{key}` and another condition of it are both `{name}` here, with different values"
            ));
        }
    }
    if !when.is_empty() {
        conditions.insert("when".to_owned(), when.join(" and ").into());
    }
    Ok(if conditions.is_empty() { json!("any") } else { Value::Object(conditions) })
}

/// The answer of a `response`.
fn answer(response: &Value) -> Result<Value, String> {
    let fields = response.as_object().ok_or("`response` has to be an object: functions are not in JSON")?;
    let (mut answer, mut texts, mut calls) = (Map::new(), Vec::new(), Vec::new());
    let has_blocks = fields.get("blocks").is_some_and(Value::is_array);
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        match (key.as_str(), value) {
            // Blocks have the same, in their order.
            ("content" | "toolCalls", _) if has_blocks => {}
            ("content", Value::String(text)) => texts.push(text.clone()),
            // Structured output is written as a value.
            ("content", Value::Object(_) | Value::Array(_)) => texts.push(value.to_string()),
            ("reasoning", Value::String(text)) => drop(answer.insert("reasoning".to_owned(), text.clone().into())),
            ("toolCalls", Value::Array(all)) => calls = all.iter().map(call).collect::<Result<_, _>>()?,
            ("blocks", Value::Array(blocks)) => {
                for block in blocks {
                    match block.get("text").and_then(Value::as_str) {
                        Some(text) => texts.push(text.to_owned()),
                        None => calls.push(call(block)?),
                    }
                }
            }
            ("finishReason", Value::String(_)) => drop(answer.insert("finish_reason".to_owned(), value.clone())),
            ("usage", Value::Object(_)) => drop(answer.insert("usage".to_owned(), value.clone())),
            ("status", Value::Number(_)) | ("error", Value::Object(_)) => {
                drop(answer.insert(key.clone(), value.clone()))
            }
            (key, _) if WITHOUT_EFFECT.contains(&key) => {}
            _ => return Err(format!("`response.{key}` is not read here")),
        }
    }
    if answer.contains_key("error") {
        answer.entry("status").or_insert_with(|| json!(500));
    }
    if !texts.is_empty() {
        answer.insert("content".to_owned(), texts.concat().into());
    }
    if !calls.is_empty() {
        answer.insert("tool_calls".to_owned(), calls.into());
    }
    let mut answer = Value::Object(answer);
    make_literal(&mut answer);
    Ok(answer)
}

fn call(call: &Value) -> Result<Value, String> {
    let name = call.get("name").and_then(Value::as_str).ok_or("a tool call has no `name`")?;
    let arguments = match call.get("arguments") {
        None | Some(Value::Null) => json!({}),
        Some(Value::String(text)) => match serde_json::from_str::<Value>(text) {
            Ok(parsed) if parsed.is_object() => parsed,
            _ => text.as_str().into(),
        },
        Some(value) => value.clone(),
    };
    Ok(json!({"name": name, "arguments": arguments}))
}

/// Makes every text one that no template changes.
fn make_literal(value: &mut Value) {
    match value {
        Value::String(text) if !["{{", "{%", "{#"].iter().any(|start| text.contains(start)) => {}
        Value::String(text) if text.contains("endraw") => *text = text.replace('{', "{{ '{' }}"),
        Value::String(text) => *text = format!("{{% raw %}}{text}{{% endraw %}}"),
        Value::Array(items) => items.iter_mut().for_each(make_literal),
        Value::Object(fields) => fields.values_mut().for_each(make_literal),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixtures_are_records() {
        let file = json!({"fixtures": [
            {"match": {"userMessage": "weather", "hasToolResult": false, "systemMessage": ["a \"b\"", "c"]},
             "response": {"toolCalls": [{"name": "get", "arguments": "{\"city\": \"NYC\"}"}, {"name": "bad", "arguments": "{"}]}},
            {"match": {"sequenceIndex": 1, "model": "m"}, "response": {"error": {"message": "slow down"}, "status": 429}, "latency": 5},
            {"match": {}, "response": {"content": "use {{ x }}", "id": "x", "finishReason": "length"}},
            {"match": {"endpoint": "image"}, "response": {"content": ""}},
            {"match": {}, "response": {"embedding": [1]}},
            {"match": {}, "response": {"content": "x"}, "chaos": {}},
            {"match": {}, "response": {"error": {"message": "x"}, "status": 9999}}]});
        assert!(is_aimock(&file.to_string()) && !is_aimock("{\"log\": 1}"));
        let ConvertedFixtures { text, records, refused } = aimock(&file.to_string()).unwrap();
        assert_eq!(records, 3);
        let read = yaml::parse(&text).unwrap().value();
        assert_eq!(
            read["records"],
            json!([
                {"match": {"contains": "weather", "tool_result": false,
                           "when": format!("\"a \\\"b\\\"\" in {SYSTEM_TEXT} and \"c\" in {SYSTEM_TEXT}")},
                 "answer": {"tool_calls": [{"name": "get", "arguments": {"city": "NYC"}}, {"name": "bad", "arguments": "{"}]}},
                {"match": {"nth": 2, "model": "m"}, "answer": {"error": {"message": "slow down"}, "status": 429}},
                {"match": "any", "answer": {"finish_reason": "length", "content": "{% raw %}use {{ x }}{% endraw %}"}},
            ])
        );
        let whys = [
            "line 1, entry 4: `match.endpoint: \"image\"`",
            "entry 5: `response.embedding`",
            "entry 6: `chaos`",
            "entry 7: `status` has to be the HTTP status of an answer",
        ];
        assert!(refused.iter().zip(whys).all(|(text, why)| text.contains(why)) && refused.len() == 4, "{refused:?}");
        let lines = serde_json::to_string_pretty(&file).unwrap();
        assert!(aimock(&lines).unwrap().refused.iter().all(|text| !text.contains("entry")), "lines distinguish them");
        assert!(aimock("{\"fixtures\": 1}").unwrap_err().contains("a list"));
    }

    fn one(matched: &Value, response: &Value) -> Result<Value, String> {
        record(&json!({"match": matched, "response": response}))
    }

    #[test]
    fn what_cannot_be_said_of_a_request_is_refused() {
        for (matched, part) in [
            (json!({"userMessage": "a", "inputText": "b"}), "`contains`"),
            (json!({"hasToolResult": false, "toolResultContains": "a"}), "`tool_result`"),
            (json!({"sequenceIndex": u64::MAX}), "`match.sequenceIndex"),
            (json!({"systemMessage": []}), "`match.systemMessage"),
            (json!("hello"), "has to be an object"),
            (Value::Null, "has to be an object"),
        ] {
            let why = one(&matched, &json!({"content": ""})).unwrap_err();
            assert!(why.contains(part), "{matched}: {why}");
        }
        assert!(record(&json!({"response": {"content": ""}})).is_err());
        assert_eq!(
            one(&json!({"systemMessage": ["a", "b"], "turnIndex": 1}), &json!({"content": "c"})).unwrap()["match"],
            json!({"role": "system", "message": "any", "contains": ["a", "b"], "turn": 1})
        );
    }

    #[test]
    fn every_text_of_an_answer_is_literal() {
        let response = json!({"toolCalls": [{"name": "f", "arguments": {"a": ["{{ x }}"]}}], "content": "{% endraw %}{{ x }}",
            "error": {"message": "{# x #}"}});
        let answer = one(&json!({}), &response).unwrap()["answer"].take();
        assert_eq!(answer["tool_calls"][0]["arguments"]["a"][0], "{% raw %}{{ x }}{% endraw %}");
        assert_eq!(answer["error"]["message"], "{% raw %}{# x #}{% endraw %}");
        assert_eq!(answer["content"], "{{ '{' }}% endraw %}{{ '{' }}{{ '{' }} x }}");
    }

    #[test]
    fn blocks_stand_for_the_text_and_the_calls() {
        let blocks = json!([{"type": "text", "text": "Hi"}, {"type": "toolCall", "name": "f", "arguments": {}}]);
        let calls = json!([{"name": "f", "arguments": {}}]);
        let expected = json!({"content": "Hi", "tool_calls": calls});
        for response in [
            json!({"blocks": blocks, "content": "Hi", "toolCalls": calls}),
            json!({"content": "Hi", "toolCalls": calls, "blocks": blocks}),
        ] {
            assert_eq!(one(&json!({}), &response).unwrap()["answer"], expected);
        }
    }
}
