use std::path::Path;

use serde_json::{Value, json};

use crate::canonical::shared::items_held;

use super::*;

fn chat(messages: &Value, answer: &Value, finish: &str) -> RecordedExchange {
    let choice = json!({"message": answer, "finish_reason": finish});
    RecordedExchange {
        record: CassetteRecord {
            method: "POST".to_owned(),
            path: "/v1/chat/completions".to_owned(),
            body: json!({"model": "m", "messages": messages, "tools": [{"type": "function", "function":
                {"name": "weather", "description": "Tells", "parameters": {"type": "object"}}}]})
            .into(),
            answer: RecordedAnswer {
                status: 200,
                content: AnswerContent::Choices {
                    choices: vec![choice.as_object().unwrap().clone()],
                    usage: Some(json!({"prompt_tokens": 3})),
                },
                ..RecordedAnswer::default()
            },
            ..CassetteRecord::default()
        },
        side: Sidecar { ms: 1.5, events: vec![Moment(1.0, Some("{}".to_owned()), None)].into(), ..Sidecar::default() },
        is_retry: false,
    }
}

/// An agent's two turns, with ids as an engine makes them.
fn turns(id: &str) -> [RecordedExchange; 2] {
    let call =
        json!({"id": id, "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"London\"}"}});
    let user = json!({"role": "user", "content": "What is the weather\nin London?"});
    let requested = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let mut echoed = requested.clone();
    echoed["refusal"] = Value::Null;
    let result = json!({"role": "tool", "tool_call_id": id, "content": "{\"temp\": 15}"});
    [
        chat(&json!([user]), &requested, "tool_calls"),
        chat(&json!([user, echoed, result]), &json!({"role": "assistant", "content": "15 degrees."}), "stop"),
    ]
}

fn recorded(path: &Path, exchanges: impl IntoIterator<Item = RecordedExchange>, mode: WriteMode) -> String {
    let mut writer = CassetteWriter::create(path, &Header::default(), mode).unwrap();
    for exchange in exchanges {
        writer.add(exchange);
    }
    writer.finish().unwrap();
    std::fs::read_to_string(path).unwrap()
}

#[test]
fn a_conversation_is_written_as_turns_and_the_same_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.yaml");
    let text = recorded(&path, turns("chatcmpl-tool-8f3a"), WriteMode::Replace);
    assert!(text.contains("like: 0\n"), "{text}");
    assert!(text.contains("- {role: tool, tool_call_id: call_1, content: '{\"temp\": 15}'}"), "{text}");
    assert!(text.contains("arguments: {city: London}") && text.contains("$ref"), "{text}");
    assert!(!text.contains("8f3a"), "{text}");
    let again = recorded(&path, turns("chatcmpl-tool-77aa"), WriteMode::Replace);
    assert_eq!(text, again);
    let cassette = load(&path).unwrap();
    assert_eq!(cassette.warnings, Vec::<String>::new());
    let second = &cassette.records[1];
    assert_eq!(second.body.messages().unwrap().len(), 3);
    assert_eq!(second.body.get("tools"), turns("x")[1].record.body.get("tools"));
    assert!(second.is_as_recorded());
    assert_eq!(cassette.records[0].side.as_ref().unwrap().ids["call_1"], "chatcmpl-tool-77aa");
    assert_eq!(emit(&cassette.header, &cassette.records, &cassette.tools), text);
    let full = emit_expanded(&cassette.header, &cassette.records);
    let reread = parse(&path, &full).unwrap();
    assert!(reread.records.iter().zip(&cassette.records).all(|(a, b)| a.body == b.body && a.answer == b.answer));
}

#[test]
fn an_edited_answer_is_what_the_next_request_repeats() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.yaml");
    let text = recorded(&path, turns("a"), WriteMode::Replace);
    std::fs::write(&path, text.replace("city: London", "city: Paris")).unwrap();
    let cassette = load(&path).unwrap();
    let echoed = &cassette.records[1].body.value()["messages"][1]["tool_calls"][0]["function"]["arguments"];
    assert_eq!(echoed, r#"{"city": "Paris"}"#);
    assert!(!cassette.records[0].is_as_recorded() && cassette.records[1].is_as_recorded());
    assert!(!cassette.records[0].side.as_ref().unwrap().ids.is_empty());
    assert_eq!(*cassette.records[0].answer_with_ids(), cassette.records[0].answer, "only its times apply");
    assert!(cassette.warnings[0].contains("record 0 was edited"), "{:?}", cassette.warnings);
}

#[test]
fn added_records_leave_every_byte_before_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.yaml");
    let [first, second] = turns("a");
    let old = recorded(&path, [first], WriteMode::Replace).replace("# vllm-vcr", "# mine:");
    std::fs::write(&path, &old).unwrap();
    let new = recorded(&path, [second], WriteMode::Append);
    let records_end = old.find("tools:\n  weather").unwrap();
    assert_eq!(new[..records_end], old[..records_end]);
    assert!(new.ends_with(&old[records_end..]));
    let cassette = load(&path).unwrap();
    assert_eq!((cassette.records.len(), cassette.records[1].like, cassette.records[1].id), (2, Some(0), 1));
    assert!(cassette.records.iter().all(CassetteRecord::is_as_recorded));
}

#[test]
fn records_are_added_to_any_cassette_that_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.yaml");
    let one = r#"{"request": "POST /x", "body": {"a": 1}, "answer": {"status": 200, "body": {"b": 2}}}"#;
    for old in [
        format!(r#"{{"vcr": 1, "records": [{one}]}}"#),
        format!("vcr: 1\nrecords: [{one}]\n"),
        format!("vcr: 1\nrecords:\n  [\n    {one}\n  ]\n"),
        format!("vcr: 1\nrecords:\n- {one}\n...\n"),
        format!("vcr: 1\nrecords: # mine\n\n  - {one}"),
    ] {
        std::fs::write(&path, &old).unwrap();
        recorded(&path, turns("a"), WriteMode::Append);
        let cassette = load(&path).unwrap_or_else(|error| panic!("{old}: {error}"));
        let paths: Vec<&str> = cassette.records.iter().map(|record| record.path.as_str()).collect();
        assert_eq!(paths, ["/x", "/v1/chat/completions", "/v1/chat/completions"], "{old}");
    }
}

#[test]
fn a_file_that_others_change_meanwhile_is_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.yaml");
    let [first, second] = turns("a");
    for (old, mode) in [(true, WriteMode::Append), (false, WriteMode::Append), (false, WriteMode::Replace)] {
        std::fs::remove_file(&path).ok();
        let old = if old { recorded(&path, [first.clone()], WriteMode::Replace) } else { String::new() };
        let mut writer = CassetteWriter::create(&path, &Header::default(), mode).unwrap();
        writer.add(second.clone());
        let edited = format!("{old}# by hand\n");
        std::fs::write(&path, &edited).unwrap();
        let error = writer.finish().unwrap_err();
        assert!(matches!(&error, CassetteError::Changed { .. }), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), edited);
        let partial = folder.path().join("w.yaml.partial");
        assert_eq!(load(&partial).unwrap().records.len(), if old.is_empty() { 1 } else { 2 });
        std::fs::remove_file(partial).unwrap();
    }
}

#[cfg(unix)]
#[test]
fn behind_a_link_the_file_that_it_leads_to_is_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let [link, path] = ["link.yaml", "real.yaml"].map(|name| folder.path().join(name));
    let [first, second] = turns("a");
    recorded(&path, [first], WriteMode::Replace);
    std::os::unix::fs::symlink("real.yaml", &link).unwrap();
    recorded(&link, [second], WriteMode::Append);
    let [new, target] = ["new.yaml", "later.yaml"].map(|name| folder.path().join(name));
    std::os::unix::fs::symlink("later.yaml", &new).unwrap();
    recorded(&new, turns("a"), WriteMode::Replace);
    assert!(std::fs::symlink_metadata(&new).unwrap().is_symlink() && load(&target).unwrap().records.len() == 2);
    rewrite(&load(&link).unwrap()).unwrap();
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink() && !folder.path().join("link.vcr").exists());
    for name in [&link, &path] {
        let cassette = load(name).unwrap();
        assert_eq!(cassette.records.iter().filter(|record| record.side.is_some()).count(), 2, "{}", name.display());
    }
}

#[test]
fn behind_a_high_number_the_smallest_free_ones_follow() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.yaml");
    for (highest, expected) in [(u64::MAX, [0, 2]), (u64::MAX - 1, [0, 2]), (7, [8, 9])] {
        let [first, second] = turns("a");
        let old = recorded(&path, [first, second], WriteMode::Replace);
        std::fs::write(
            &path,
            old.replace("- id: 0", &format!("- id: {highest}")).replace("like: 0", &format!("like: {highest}")),
        )
        .unwrap();
        recorded(&path, turns("b"), WriteMode::Append);
        let ids: Vec<u64> = load(&path).unwrap().records.iter().map(|record| record.id).collect();
        assert_eq!(ids, [highest, 1, expected[0], expected[1]]);
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_is_no_cassette() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.yaml");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error = load(&path).unwrap_err();
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("no plain file"), "{error}");
}

#[test]
fn a_crash_leaves_the_old_file_and_a_partial_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.yaml");
    let [first, second] = turns("a");
    let old = recorded(&path, [first], WriteMode::Replace);
    let mut writer = CassetteWriter::create(&path, &Header::default(), WriteMode::Replace).unwrap();
    writer.add(second);
    writer.flush().unwrap();
    drop(writer);
    assert_eq!(std::fs::read_to_string(&path).unwrap(), old);
    let partial = std::fs::read_to_string(folder.path().join("w.yaml.partial")).unwrap();
    assert_eq!(parse(&path, &partial).unwrap().records.len(), 1);
    let in_the_way = CassetteWriter::create(&path, &Header::default(), WriteMode::Replace).unwrap_err();
    assert!(matches!(in_the_way, CassetteError::Unfinished { records: 1, .. }), "{in_the_way}");
    assert_eq!(std::fs::read_to_string(folder.path().join("w.yaml.partial")).unwrap(), partial);
}

#[test]
fn a_partial_file_that_others_empty_replace_or_remove_is_written_anew() {
    type Change = fn(&Path);
    let mischief: [(&str, Change); 4] = [
        ("emptied", |partial| std::fs::OpenOptions::new().write(true).open(partial).unwrap().set_len(0).unwrap()),
        ("cut", |partial| std::fs::OpenOptions::new().write(true).open(partial).unwrap().set_len(40).unwrap()),
        ("removed", |partial| std::fs::remove_file(partial).unwrap()),
        ("replaced by a link", |partial| {
            std::fs::remove_file(partial).unwrap();
            std::os::unix::fs::symlink(partial.with_file_name("victim"), partial).unwrap();
        }),
    ];
    for (what, mischief) in mischief {
        for is_flushed in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let victim = folder.path().join("victim");
            std::fs::write(&victim, "precious").unwrap();
            let path = folder.path().join("w.yaml");
            let mut writer = CassetteWriter::create(&path, &Header::default(), WriteMode::Replace).unwrap();
            let [first, second] = turns("a");
            writer.add(first);
            writer.flush().unwrap();
            mischief(&folder.path().join("w.yaml.partial"));
            if is_flushed {
                writer.flush().unwrap();
                let partial = std::fs::read_to_string(folder.path().join("w.yaml.partial")).unwrap();
                assert_eq!(parse(&path, &partial).unwrap().records.len(), 1, "{what}");
            }
            writer.add(second);
            writer.finish().unwrap();
            assert!(std::fs::symlink_metadata(&path).unwrap().is_file(), "{what}");
            let undisturbed = recorded(&folder.path().join("same.yaml"), turns("a"), WriteMode::Replace);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), undisturbed, "{what}");
            assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious", "{what}");
        }
    }
}

#[test]
fn a_cassette_is_recorded_by_one_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.yaml");
    let one = CassetteWriter::create(&path, &Header::default(), WriteMode::Replace).unwrap();
    let other = CassetteWriter::create(&path, &Header::default(), WriteMode::Append).unwrap_err();
    assert!(matches!(other, CassetteError::Busy { .. }), "{other}");
    one.finish().unwrap();
    CassetteWriter::create(&path, &Header::default(), WriteMode::Append).unwrap().finish().unwrap();
}

#[test]
fn nothing_does_not_replace_a_cassette() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.yaml");
    let old = recorded(&path, turns("a"), WriteMode::Replace);
    CassetteWriter::create(&path, &Header::default(), WriteMode::Replace).unwrap().finish().unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), old);
    assert!(!folder.path().join("w.yaml.partial").exists());
}

#[test]
fn mistakes_are_named_with_their_line() {
    let head = "vcr: 1\nrecords:\n";
    for (text, line, message) in [
        ("records: []\n", 1, "`vcr: 1` is missing"),
        ("vcr: 2\n", 1, "format 1, not 2"),
        ("vcr: 1\nkey: 9\n", 2, "version 1, not 9"),
        ("vcr: 1\nrecord: []\n", 2, "`record` is no key"),
        ("vcr: 1\nrecords: {}\n", 2, "has to be a list"),
        (&format!("{head}- id: 0\n"), 3, "no `answer`"),
        (&format!("{head}- answer: {{}}\n"), 3, "no `request`"),
        (&format!("{head}- request: POST\n  answer: {{}}\n"), 3, "a method and a path"),
        (&format!("{head}- request: POST /x\n  answer:\n    status: 99\n"), 5, "HTTP status"),
        (&format!("{head}- request: POST /x\n  answer:\n    fault: boom\n"), 5, "no fault"),
        (&format!("{head}- request: POST /x\n  answer: {{json: 1, body_text: a}}\n"), 4, "more than one body"),
        (&format!("{head}- like: 4\n  body: {{}}\n  answer: {{}}\n"), 3, "names no record before"),
        (
            &format!("{head}- request: POST /x\n  body: {{tools: [{{$ref: '#/tools/f'}}]}}\n  answer: {{}}\n"),
            3,
            "not among",
        ),
        (
            &format!(
                "{head}- {{id: 1, request: POST /x, answer: {{}}}}\n- {{id: 1, request: POST /x, answer: {{}}}}\n"
            ),
            4,
            "two records",
        ),
        ("vcr: 1\na: &x 1\n", 2, "no key"),
        ("vcr: 1\nvcr: 1\n", 2, "twice"),
        ("vcr: [1\n", 2, ""),
        ("vcr: 1\nrecords:\n- a: *x\n", 3, ""),
    ] {
        let error = parse(Path::new("t.yaml"), text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("t.yaml:{line}: ")) && error.contains(message), "{text}: {error}");
    }
    let odd = format!("{head}- request: POST /x\n  bodi: {{}}\n  answer: {{statos: 1}}\n");
    let warnings = parse(Path::new("t.yaml"), &odd).unwrap().warnings;
    assert!(
        warnings[0].contains("t.yaml:4: `bodi`") && warnings[1].contains("t.yaml:5: `answer.statos`"),
        "{warnings:?}"
    );
}

/// A conversation of so many turns, each of which continues the one before.
fn chain(turns: usize) -> String {
    let turn = |at: usize| {
        let start = match at {
            0 => "  request: POST /v1/chat/completions\n  body: {model: m, messages: [{role: user, content: Go}]}\n"
                .to_owned(),
            at => format!("  like: {}\n  body:\n    messages+: [{{role: user, content: turn {at}}}]\n", at - 1),
        };
        format!(
            "- id: {at}\n{start}  answer: {{message: {{role: assistant, content: answer {at}}}, finish_reason: stop}}\n"
        )
    };
    format!("vcr: 1\nkey: 1\nrecords:\n{}", (0..turns).map(turn).collect::<String>())
}

#[test]
fn a_conversation_has_each_message_in_memory_once() {
    let held = |records: &[CassetteRecord]| items_held(records.iter().filter_map(|record| record.body.messages()));
    let mut cassette = parse(Path::new("t.yaml"), &chain(300)).unwrap();
    assert_eq!(cassette.records[299].body.messages().unwrap().len(), 599);
    assert_eq!(held(&cassette.records), 599);
    let text = emit(&cassette.header, &cassette.records, &cassette.tools);
    let again = parse(Path::new("t.yaml"), &text).unwrap();
    assert!(again.records.iter().zip(&cassette.records).all(|(a, b)| (a.like, &a.body) == (b.like, &b.body)));
    assert!(text.len() < 60_000, "a turn shows what is new in it");
    // So has a recorder that was sent each request in full.
    let folder = tempfile::tempdir().unwrap();
    let mut writer =
        CassetteWriter::create(&folder.path().join("w.yaml"), &Header::default(), WriteMode::Replace).unwrap();
    for record in cassette.records.drain(..) {
        let record = CassetteRecord { body: record.body.value().into(), like: None, ..record };
        writer.add(RecordedExchange { record, ..RecordedExchange::default() });
    }
    assert_eq!(held(writer.records()), 599);
}

#[test]
fn faults_errors_and_other_bodies_come_back() {
    let text = r#"vcr: 1
records:
- request: POST /v1/chat/completions
  body: {model: m}
  answer: {status: 429, headers: {retry-after: "2", x-a: [b, c]}, error: {message: slow, code: 429}}
- request: POST /v1/chat/completions
  body: {model: m}
  answer: {message: {role: assistant, content: "One, two"}, finish_reason: stop, fault: reset, after_events: 3}
- request: GET /file?x=1
  answer: {body_base64: AAEC}
- request: POST /sse
  body_text: hello
  answer: {events: [{event: ping, data: {a: 1}}, {data: text}]}
"#;
    let cassette = parse(Path::new("t.yaml"), text).unwrap();
    let again = emit(&cassette.header, &cassette.records, &cassette.tools);
    let reread = parse(Path::new("t.yaml"), &again).unwrap();
    for (a, b) in cassette.records.iter().zip(&reread.records) {
        assert_eq!((&a.answer, &a.body, &a.path), (&b.answer, &b.body, &b.path), "{again}");
    }
    assert_eq!(cassette.records[1].answer.fault, Some(TransportFault::reset(3)));
    assert_eq!(cassette.records[0].answer.headers.len(), 3);
    assert_eq!(cassette.records[2].answer.content, AnswerContent::Bytes(vec![0, 1, 2]));
}

#[test]
fn a_message_is_read_without_the_fields_that_are_not_written() {
    let by_hand = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": []});
    let read = wire_message(&by_hand);
    assert_eq!(read, json!({"role": "assistant", "content": null}));
    assert_eq!(read, wire_message(&short_message(&by_hand)));
}

/// The question that begins a conversation.
fn question(at: usize) -> RecordedExchange {
    let user = json!({"role": "user", "content": format!("question {at} {}", "x".repeat(200))});
    let answer = json!({"role": "assistant", "content": format!("answer {at}")});
    let mut exchange = chat(&json!([user]), &answer, "stop");
    exchange.side.events = vec![Moment(1.5, Some("y".repeat(1000)), None)].into();
    exchange
}

#[test]
fn what_is_on_the_disk_is_let_go() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.yaml");
    let most = 64 << 10;
    let create = || CassetteWriter::create(&path, &Header::default(), WriteMode::Replace).unwrap();
    let mut writer = create().holding(most);
    for at in 0..300 {
        let output = vec![vec![u32::try_from(at).unwrap(); 10]];
        writer.add_with_ids(question(at), output);
        if at % 7 == 0 {
            writer.flush().unwrap();
            let mut seen = std::collections::HashSet::new();
            let held: usize = writer.records().iter().map(|record| record.memory(&mut seen)).sum();
            assert!(held <= most && writer.records().iter().all(|record| record.side.is_none()), "{at}: {held}");
        }
    }
    assert!(writer.records().len() < 60, "{}", writer.records().len());
    // The file is rewritten with all of them, and a conversation whose begin is gone goes on in full.
    std::fs::remove_file(folder.path().join("w.yaml.partial")).unwrap();
    let mut turn = question(3);
    let messages = json!([turn.record.body.value()["messages"][0], {"role": "assistant", "content": "answer 3"},
        {"role": "user", "content": "and then?"}]);
    turn.record.body.set("messages", messages.clone());
    writer.add(turn);
    assert_eq!(writer.finish().unwrap(), 301);
    let cassette = load(&path).unwrap();
    assert_eq!(cassette.warnings, Vec::<String>::new());
    assert_eq!((cassette.records.len(), cassette.records[300].like), (301, None));
    assert_eq!(cassette.records[300].body.value()["messages"], messages);
    let tokens = RecordTokens::read(&path).unwrap();
    for (at, record) in cassette.records.iter().take(300).enumerate() {
        assert!(record.is_as_recorded() && record.side.as_ref().unwrap().events.len() == 1, "{at}");
        assert!(record.answer.shown().to_string().contains(&format!("\"answer {at}\"")), "{at}");
        assert_eq!(tokens[&record.id].output[0][0] as usize, at);
    }
    // Where records keep their places they are needed at the end.
    let mut again = create().holding(most).keeping_places();
    for at in (0..300).rev() {
        again.add(question(at));
    }
    again.flush().unwrap();
    assert_eq!(again.records().len(), 300);
    assert_eq!(again.finish().unwrap(), 300);
    let kept = load(&path).unwrap();
    assert!(kept.records[7].answer.shown().to_string().contains("\"answer 7\"") && kept.records[7].is_as_recorded());
}
