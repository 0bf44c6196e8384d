//! Conversations of several families, recorded again in another order.

use std::{fs, path::Path};

use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

const PATHS: [&str; 3] = ["/v1/chat/completions", "/v1/messages", "/v1/responses"];

/// A conversation: its family, and the text of each turn.
type Talk = (usize, Vec<u8>);

/// The exchanges of a conversation, with ids that no other recording has.
fn exchanges((family, turns): &Talk, run: usize, number: usize) -> Vec<RecordedExchange> {
    let mut messages: Vec<Value> = Vec::new();
    let list = if *family == 2 { "input" } else { "messages" };
    let mut all = Vec::new();
    for (turn, word) in turns.iter().enumerate() {
        let id = format!("id-{run}-{number}-{turn}-abcdef");
        messages.push(json!({"role": "user", "content": format!("w{word}")}));
        let (content, echoed) = spoken(*family, *word, &id);
        let body = json!({"model": "m", list: messages});
        let answer = RecordedAnswer { status: 200, content, ..RecordedAnswer::default() };
        let path = PATHS[*family].to_owned();
        let record =
            CassetteRecord { method: "POST".to_owned(), path, body: body.into(), answer, ..CassetteRecord::default() };
        all.push(RecordedExchange { record, side: Sidecar { ms: run as f64, ..Sidecar::default() }, is_retry: false });
        messages.extend(echoed);
    }
    all
}

/// An answer, and how its client repeats it.
fn spoken(family: usize, word: u8, id: &str) -> (AnswerContent, Vec<Value>) {
    let input = json!({"w": word});
    match family {
        0 => {
            let call = json!({"id": id, "type": "function", "function": {"name": "f", "arguments": input.to_string()}});
            let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
            let mut choice = Map::new();
            choice.insert("message".to_owned(), short_message(&message));
            let result = json!({"role": "tool", "tool_call_id": id, "content": "x"});
            (AnswerContent::Choices { choices: vec![choice], usage: None }, vec![message, result])
        }
        1 => {
            let blocks = json!([{"type": "thinking", "thinking": "t"}, {"type": "tool_use", "id": id, "name": "f", "input": input}]);
            let message = json!({"role": "assistant", "type": "message", "content": blocks, "stop_sequence": null});
            let result =
                json!({"role": "user", "content": [{"type": "tool_result", "tool_use_id": id, "content": "x"}]});
            (AnswerContent::Json(message), vec![json!({"role": "assistant", "content": blocks}), result])
        }
        _ => {
            let call = json!({"type": "function_call", "id": format!("fc-{id}"), "call_id": id, "name": "f", "arguments": input.to_string()});
            let response = json!({"object": "response", "status": "completed", "output": [call], "tools": []});
            (
                AnswerContent::Json(response),
                vec![call, json!({"type": "function_call_output", "call_id": id, "output": "x"})],
            )
        }
    }
}

/// Records conversations, each turn at the place that the dice give it; the text of the file.
fn recorded(path: &Path, talks: &[Talk], run: usize, dice: &[usize]) -> String {
    let mut left: Vec<_> = talks.iter().enumerate().map(|(at, talk)| exchanges(talk, run, at).into_iter()).collect();
    let mut writer = CassetteWriter::create(path, &Header::default(), WriteMode::Replace).unwrap().keeping_places();
    let mut dice = dice.iter().cycle();
    while left.iter().any(|talk| talk.len() > 0) {
        let open: Vec<usize> = (0..left.len()).filter(|at| left[*at].len() > 0).collect();
        writer.add(left[open[dice.next().unwrap() % open.len()]].next().unwrap());
    }
    writer.finish().unwrap();
    fs::read_to_string(path).unwrap()
}

/// The records of a file, as they are written.
fn blocks(text: &str) -> Vec<&str> {
    text.split_once("records:\n").unwrap().1.split("- id: ").skip(1).collect()
}

fn talks() -> impl Strategy<Value = Vec<Talk>> {
    proptest::collection::vec((0..3_usize, proptest::collection::vec(0..3_u8, 1..5)), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]
    #[test]
    fn another_order_changes_nothing_and_more_conversations_nothing_of_the_others(
        talks in talks(),
        dice in proptest::collection::vec(proptest::collection::vec(0..100_usize, 20), 3),
        more in (0..3_usize, proptest::collection::vec(7..9_u8, 1..4)),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.yaml");
        let first = recorded(&path, &talks, 0, &dice[0]);
        let again = recorded(&path, &talks, 1, &dice[1]);
        prop_assert_eq!(&again, &first);
        let longer: Vec<Talk> = std::iter::once(more).chain(talks.iter().cloned()).collect();
        let with_more = recorded(&path, &longer, 2, &dice[2]);
        for block in blocks(&first) {
            prop_assert!(blocks(&with_more).contains(&block), "{}\n{}", block, with_more);
        }
        let cassette = load(&path).unwrap();
        prop_assert!(cassette.warnings.is_empty(), "{:?}", cassette.warnings);
        prop_assert!(cassette.records.iter().all(CassetteRecord::is_as_recorded));
        prop_assert_eq!(emit(&cassette.header, &cassette.records, &cassette.tools), with_more);
        prop_assert_eq!(recorded(&path, &talks, 3, &dice[0]), first);
    }
}
