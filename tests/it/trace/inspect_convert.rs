//! `inspect convert`: files of other tools become traces, and traces their files; what is shared stays shared, and what is lost is named.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{running::vcr, tokenizers::smollm2_json, traces::json_lines};

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, lines: &[Value]) -> PathBuf {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        self.text(name, &text)
    }

    fn text(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// Converts, and returns the report with the lines that were written.
    fn convert(&self, from: &Path, to: &str, more: &[&str]) -> (Value, Vec<Value>) {
        let out = self.path(to);
        let arguments = ["inspect", "convert", from.to_str().unwrap(), "-o", out.to_str().unwrap(), "--json"];
        let output = vcr(&[&arguments[..], more].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (serde_json::from_slice(&output.stdout).unwrap(), json_lines(&out))
    }

    /// Converts what cannot be converted; returns the exit code and what was said.
    fn refused(&self, from: &Path, to: &str, more: &[&str]) -> (Option<i32>, String) {
        let out = self.path(to);
        let output =
            vcr(&[&["inspect", "convert", from.to_str().unwrap(), "-o", out.to_str().unwrap()], more].concat());
        assert!(!out.exists(), "nothing stays of what failed");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

/// Records of a written trace.
fn records(lines: &[Value]) -> Vec<&Value> {
    lines.iter().filter(|line| line.get("ttft_ms").is_some()).collect()
}

/// Blocks that each prompt shares with one before it, in the order of the file.
fn shared(lists: &[&Value]) -> Vec<usize> {
    let lists: Vec<Vec<u64>> =
        lists.iter().map(|list| list.as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()).collect();
    let prefix = |one: &[u64], other: &[u64]| one.iter().zip(other).take_while(|(one, other)| one == other).count();
    (0..lists.len()).map(|at| lists[..at].iter().map(|before| prefix(before, &lists[at])).max().unwrap_or(0)).collect()
}

fn field<'a>(lines: &[&'a Value], name: &str) -> Vec<&'a Value> {
    lines.iter().map(|line| &line[name]).collect()
}

/// Rows with prompts of 2.5, 3 and 2.5 blocks of 512, of which the last has the first one's.
fn mooncake() -> Vec<Value> {
    vec![
        json!({"timestamp": 0, "input_length": 1280, "output_length": 30, "hash_ids": [0, 1, 2]}),
        json!({"timestamp": 250, "input_length": 1536, "output_length": 1, "hash_ids": [0, 1, 3]}),
        json!({"timestamp": 900, "input_length": 1280, "output_length": 30, "hash_ids": [0, 1, 2]}),
    ]
}

#[test]
fn rows_become_records_and_rows_again() {
    let folder = Folder::new();
    let (report, lines) = folder.convert(&folder.file("rows.jsonl", &mooncake()), "a.jsonl", &[]);
    assert_eq!(report["from"]["format"], "mooncake");
    assert_eq!(lines[0]["meta"]["block_size"], 512);
    let made = records(&lines);
    assert_eq!(field(&made, "arrival_ms"), [0.0, 250.0, 900.0]);
    assert_eq!(field(&made, "prompt_tokens"), [1280, 1536, 1280]);
    assert_eq!(shared(&field(&made, "block_hashes")), [0, 2, 2]);
    assert_eq!(
        (made[0]["prompt_hash"] == made[2]["prompt_hash"], made[0]["block_hashes"].as_array().unwrap().len()),
        (true, 2)
    );
    // Before with the blocks that are not full (5 of 9), after without them (4 of 7).
    assert_eq!((&report["before"]["blocks"], &report["after"]["blocks"]), (&json!(9), &json!(7)));
    assert!((report["before"]["hit_rate"].as_f64().unwrap() - 5.0 / 9.0).abs() < 1e-9);
    assert!((report["after"]["hit_rate"].as_f64().unwrap() - 4.0 / 7.0).abs() < 1e-9);
    let (report, rows) = folder.convert(&folder.path("a.jsonl"), "b.mooncake.jsonl", &[]);
    assert_eq!(rows, mooncake());
    assert_eq!(report["after"]["blocks"], 9);
}

#[test]
fn rows_come_out_in_the_order_of_their_arrival() {
    let folder = Folder::new();
    let record = |arrival: u32, hash: u64| json!({"prompt_tokens": 16, "output_tokens": 1, "ttft_ms": 5, "arrival_ms": arrival, "block_hashes": [hash]});
    let trace =
        folder.file("t.jsonl", &[json!({"meta": {"block_size": 16}}), record(300, 7), record(100, 8), record(200, 7)]);
    let (report, rows) = folder.convert(&trace, "b.mooncake.jsonl", &["--block-size", "16"]);
    let ids: Vec<_> = rows.iter().map(|row| (row["timestamp"].clone(), row["hash_ids"].clone())).collect();
    assert_eq!(ids, [(json!(0), json!([0])), (json!(100), json!([1])), (json!(200), json!([1]))]);
    assert_eq!(report["lost"]["durations"], 3);
    assert_eq!(report["lost"]["time before the first request, which the rows begin with"], 1);
}

#[test]
fn what_rows_and_events_have_no_place_for_is_counted() {
    let folder = Folder::new();
    let record = |outcome: &str, endpoint: &str, stream: bool| {
        json!({"prompt_tokens": 16, "output_tokens": 1, "ttft_ms": 5, "arrival_ms": 0.25, "block_hashes": [7], "outcome": outcome,
            "endpoint": endpoint, "stream": stream})
    };
    let records = [
        record("finished", "chat", true),
        record("client_gone", "chat", false),
        record("upstream_failed", "embeddings", true),
    ];
    let trace = folder.file("t.jsonl", &[&[json!({"meta": {"block_size": 16}})][..], &records].concat());
    for (to, streams, parts) in
        [("dynamo", json!(1), json!(3)), ("mooncake", json!(1), Value::Null), ("weka", Value::Null, Value::Null)]
    {
        let (report, _) = folder.convert(&trace, &format!("b.{to}.jsonl"), &[]);
        let lost = &report["lost"];
        assert_eq!((&lost["outcomes and errors"], &lost["endpoints"]), (&json!(2), &json!(3)), "{to}: {report:#}");
        assert_eq!(lost["responses that were no stream"], streams, "{to}: {report:#}");
        assert_eq!(lost["parts of a millisecond of arrivals"], parts, "{to}: {report:#}");
    }
}

#[test]
fn seconds_and_small_blocks_are_those_of_vllms_benchmark() {
    let folder = Folder::new();
    let row = json!({"timestamp": 0.25, "input_length": 40, "output_length": 3, "hash_ids": [5, 6, 7]});
    let rows = folder.file(
        "rows.jsonl",
        &[row.clone(), json!({"timestamp": 1, "input_length": 16, "output_length": 3, "hash_ids": [5]})],
    );
    let (code, text) = folder.refused(&rows, "x.jsonl", &[]);
    assert!(
        code == Some(3) && text.contains("rows.jsonl:1: 3 `hash_ids` are more than 40 tokens have blocks of 512"),
        "{text}"
    );
    let (report, lines) = folder.convert(&rows, "a.jsonl", &["--from", "vllm-timed-trace"]);
    let made = records(&lines);
    assert_eq!(
        (field(&made, "arrival_ms"), shared(&field(&made, "block_hashes"))),
        (vec![&json!(250.0), &json!(1000.0)], vec![0, 1])
    );
    assert_eq!(report["before"]["block_size"], 16);
}

/// Two conversations with the same ids. The first has two sub-agents that overlap, which share the parent's first two blocks.
fn weka() -> Vec<Value> {
    let request = |t: f64, tokens: u32, ids: &[u64], took: f64| json!({"t": t, "type": "s", "model": "m", "in": tokens, "out": 4, "hash_ids": ids, "stop": "end_turn", "api_time": took});
    let agent = |t: f64, id: &str, requests: Value| json!({"t": t, "type": "subagent", "agent_id": id, "status": "completed", "requests": requests});
    vec![
        json!({"id": "one", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "tool_tokens": 64, "requests": [
            request(0.0, 200, &[1, 2, 3], 0.5),
            agent(1.0, "a", json!([request(0.0, 200, &[1, 2, 9], 1.0), request(1.5, 300, &[1, 2, 9, 10], 0.5)])),
            agent(1.25, "b", json!([request(1.25, 200, &[1, 2, 0, 8], 1.0)])),
            request(4.0, 330, &[1, 2, 3, 4, 5], 0.5),
        ]}),
        json!({"id": "two", "models": ["m"], "block_size": 64, "requests": [request(0.0, 200, &[1, 2, 3], 0.5)]}),
    ]
}

#[test]
fn ids_are_local_to_a_conversation_and_its_sub_agents() {
    let folder = Folder::new();
    let (report, lines) = folder.convert(&folder.file("a.json", &weka()), "a.jsonl", &[]);
    let made = records(&lines);
    assert_eq!((lines[0]["meta"]["block_size"].clone(), made.len()), (json!(64), 6));
    assert_eq!(field(&made, "arrival_ms"), [0.0, 1000.0, 1250.0, 2500.0, 4000.0, 0.0]);
    assert_eq!(
        field(&made, "agent"),
        [&Value::Null, &json!("a"), &json!("b"), &json!("a"), &Value::Null, &Value::Null]
    );
    assert_eq!(field(&made, "session"), ["one", "one", "one", "one", "one", "two"]);
    // The third prompt's fourth id is of a block that is not full; the other conversation shares nothing.
    assert_eq!(shared(&field(&made, "block_hashes")), [0, 2, 2, 3, 3, 0]);
    assert_eq!(report["lost"]["ids of last blocks that are not full"], 1);
    assert_eq!((&report["before"]["blocks"], &report["after"]["blocks"]), (&json!(21), &json!(21)));
}

#[test]
fn types_and_ends_that_are_not_kept_are_counted() {
    let folder = Folder::new();
    let mut conversations = weka();
    conversations[0]["requests"][0]["type"] = json!("n");
    conversations[0]["requests"][0]["stop"] = json!("tool_use");
    conversations[1]["requests"][0]["stop"] = json!("");
    let (report, _) = folder.convert(&folder.file("a.json", &conversations), "a.jsonl", &[]);
    assert_eq!(report["lost"]["requests for no stream, which a replay asks for one"], 1);
    assert_eq!(report["lost"]["words for an end other than end_turn and max_tokens"], 1);
    let (report, written) = folder.convert(&folder.path("a.jsonl"), "b.weka.jsonl", &[]);
    let one = &written.iter().find(|conversation| conversation["id"] == "one").unwrap()["requests"][0];
    assert_eq!((&one["type"], &one["stop"]), (&json!("s"), &json!("end_turn")));
    assert_eq!(report["lost"]["types that are not known: s (a stream)"], 1);
}

#[test]
fn what_cannot_be_written_ends_with_the_codes_of_all_commands() {
    let folder = Folder::new();
    let rows = folder.file("rows.jsonl", &mooncake());
    let (exists, csv) = (folder.file("there.jsonl", &[]), folder.text("a.csv", "TIMESTAMP,ContextTokens\n"));
    for (from, out, code, part) in [
        (&rows, exists.to_str().unwrap(), 2, "exists already"),
        (&rows, "/nowhere/x.jsonl", 4, "/nowhere/x.jsonl: cannot create"),
        (&csv, "/nowhere/x.jsonl", 3, "a.csv: CSV is neither read nor written"),
    ] {
        let output = vcr(&["inspect", "convert", from.to_str().unwrap(), "-o", out]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(code) && text.contains(part), "{out}: {:?} {text}", output.status);
    }
    let to_stdout = |from: &Path, stdout: Stdio| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_vllm-vcr"));
        let output = program.args(["inspect", "convert", from.to_str().unwrap(), "-o", "-"]).stdout(stdout).output();
        let output = output.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = to_stdout(&rows, fs::File::create("/dev/full").unwrap().into());
    assert!(code == Some(4) && text.contains("cannot write"), "{text}");
    let many: Vec<Value> = mooncake().into_iter().cycle().take(20_000).collect();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(to_stdout(&folder.file("many.jsonl", &many), writer.into()), (Some(0), String::new()));
}

#[test]
fn conversations_keep_their_sessions_and_agents_there_and_back() {
    let folder = Folder::new();
    let (_, first) = folder.convert(&folder.file("a.json", &weka()), "a.jsonl", &[]);
    let (report, written) = folder.convert(&folder.path("a.jsonl"), "b.weka.jsonl", &[]);
    assert_eq!(report["to"]["format"], "weka");
    let (_, again) = folder.convert(&folder.path("b.weka.jsonl"), "c.jsonl", &[]);
    let facts = |lines: &[Value]| {
        let mut facts: Vec<String> = records(lines)
            .iter()
            .map(|line| {
                format!(
                    "{} {} {} {} {} {}",
                    line["session"],
                    line["agent"],
                    line["arrival_ms"],
                    line["e2e_ms"],
                    line["prompt_tokens"],
                    line["block_hashes"].as_array().unwrap().len()
                )
            })
            .collect();
        facts.sort();
        facts
    };
    assert_eq!(facts(&again), facts(&first));
    assert_eq!(written.iter().map(|line| line["requests"].as_array().unwrap().len()).sum::<usize>(), 5);
    let mut sharing =
        [shared(&field(&records(&again), "block_hashes")), shared(&field(&records(&first), "block_hashes"))];
    sharing.iter_mut().for_each(|shared| shared.sort());
    assert_eq!(sharing[0], sharing[1]);
}

#[test]
fn agents_that_were_recorded_in_one_list_are_taken_apart() {
    let folder = Folder::new();
    let request = |t: u32, took: u32, ids: &[u64]| json!({"t": t, "in": 64 * ids.len(), "out": 4, "hash_ids": ids, "api_time": took});
    let requests = [
        request(0, 1, &[1, 2]),
        request(2, 5, &[1, 2, 3]),
        request(3, 1, &[8, 9]),
        request(5, 4, &[8, 9, 10]),
        request(8, 1, &[1, 2, 3, 4]),
    ];
    let file = folder.file("flat.json", &[json!({"id": "c", "requests": requests})]);
    let (_, lines) = folder.convert(&file, "a.jsonl", &[]);
    let own = json!("chain-1");
    assert_eq!(field(&records(&lines), "agent"), [&Value::Null, &Value::Null, &own, &own, &Value::Null]);
}

#[test]
fn pauses_are_kept_where_durations_are_not_known() {
    let folder = Folder::new();
    let request = |t: f64, more: Value| {
        let mut request = json!({"t": t, "in": 64, "out": 4, "hash_ids": [1]});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request
    };
    let requests = [
        request(0.0, json!({})),
        request(9.0, json!({"think_time": 2.5})),
        request(12.0, json!({"think_time": 1, "api_time": 3})),
    ];
    let (_, lines) =
        folder.convert(&folder.file("w.json", &[json!({"id": "c", "requests": requests})]), "a.jsonl", &[]);
    assert_eq!(field(&records(&lines), "think_ms"), [&Value::Null, &json!(2500.0), &json!(1000.0)]);
    let row = |more: Value| {
        let mut row = json!({"input_length": 64, "output_length": 4, "hash_ids": [1], "session_id": "s"});
        row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        row
    };
    let rows = folder
        .file("rows.jsonl", &[row(json!({"timestamp": 50})), row(json!({"delay": 20})), row(json!({"delay": 30}))]);
    let (_, lines) = folder.convert(&rows, "b.jsonl", &[]);
    let made = records(&lines);
    assert_eq!(field(&made, "arrival_ms"), [50.0, 70.0, 100.0]);
    assert_eq!(field(&made, "think_ms"), [&Value::Null, &json!(20.0), &json!(30.0)]);
}

/// A request's end, with the body of a chat before it.
fn dynamo() -> Vec<Value> {
    let end = |id: &str, received: u64, hashes: Value, context: Value| {
        json!({"timestamp": received + 80, "event": {
            "schema": "dynamo.request.trace.v1", "event_type": "request_end", "event_time_unix_ms": received + 80, "event_source": "dynamo",
            "agent_context": context,
            "request": {"request_id": id, "model": "m", "input_tokens": 100, "output_tokens": 5, "request_received_ms": received, "ttft_ms": 20.0,
                "total_time_ms": 80, "finish_reason_metadata": {"finish_reason": "stop"},
                "replay": {"trace_block_size": 32, "input_length": 100, "input_sequence_hashes": hashes}},
        }})
    };
    let hash = u64::MAX;
    vec![
        json!({"schema": "dynamo.request.trace.v1", "event_type": "request_payload", "payload": {"request_id": "r1",
            "endpoint": "openai.chat_completion", "request": {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}}}),
        end("r1", 1_777_312_800_000, json!([hash, 2, 3, 4]), json!({"session_id": "s"})),
        json!({"event_type": "tool_end", "tool": {"tool_call_id": "t"}}),
        end("r2", 1_777_312_800_500, json!([hash, 2, 7, 9]), json!({"session_id": "s:sub", "parent_session_id": "s"})),
    ]
}

#[test]
fn events_of_dynamo_keep_hashes_times_sessions_and_bodies() {
    let folder = Folder::new();
    let (report, lines) = folder.convert(&folder.file("d.jsonl", &dynamo()), "a.jsonl", &[]);
    let made = records(&lines);
    assert_eq!(field(&made, "block_hashes"), [&json!([u64::MAX, 2, 3]), &json!([u64::MAX, 2, 7])]);
    assert_eq!(field(&made, "prompt_hash"), [4, 9]);
    assert_eq!((field(&made, "ttft_ms"), field(&made, "e2e_ms")), (vec![&json!(20.0); 2], vec![&json!(80.0); 2]));
    assert_eq!((field(&made, "session"), &made[1]["agent"]), (vec![&json!("s"); 2], &json!("s:sub")));
    assert_eq!(made[0]["request"]["messages"][0]["content"], "Hello");
    assert_eq!(made[1]["arrival_ms"].as_f64().unwrap() - made[0]["arrival_ms"].as_f64().unwrap(), 500.0);
    assert_eq!(report["lost"]["events that are no requests (tools)"], 1);
    // There and back: the same hashes, times and sessions.
    let (report, events) = folder.convert(&folder.path("a.jsonl"), "b.dynamo.jsonl", &[]);
    assert_eq!(events[0]["event"]["request"]["replay"]["input_sequence_hashes"], json!([u64::MAX, 2, 3, 4]));
    assert_eq!(
        (&report["lost"]["request bodies"], &events[0]["timestamp"]),
        (&json!(1), &json!(1_777_312_800_080_u64))
    );
    let (_, again) = folder.convert(&folder.path("b.dynamo.jsonl"), "c.jsonl", &[]);
    let again = records(&again);
    for name in [
        "block_hashes",
        "prompt_hash",
        "arrival_ms",
        "e2e_ms",
        "ttft_ms",
        "session",
        "prompt_tokens",
        "output_tokens",
        "finish_reason",
    ] {
        assert_eq!(field(&again, name), field(&made, name), "{name}");
    }
}

#[test]
fn texts_become_the_requests_that_are_sent() {
    let folder = Folder::new();
    let single = folder.file(
        "single.jsonl",
        &[
            json!({"text": "Hi", "output_length": 7, "timestamp": 1500}),
            json!({"texts": ["a", "b"], "role": "system", "image": "x.png"}),
        ],
    );
    let (report, lines) = folder.convert(&single, "a.jsonl", &[]);
    let made = records(&lines);
    assert_eq!(
        (report["from"]["format"].clone(), made[0]["arrival_ms"].clone()),
        (json!("aiperf-single-turn"), json!(1500.0))
    );
    assert_eq!(
        made[0]["request"],
        json!({"messages": [{"role": "user", "content": "Hi"}], "stream": true, "max_tokens": 7, "ignore_eos": true})
    );
    assert_eq!(made[1]["request"]["messages"], json!([{"role": "system", "content": "a\nb"}]));
    assert_eq!(report["lost"]["images, sounds and videos"], 1);
    let multi = folder.file(
        "multi.jsonl",
        &[json!({"session_id": "s", "turns": [{"text": "1", "timestamp": 10}, {"text": "2", "delay": 300}]})],
    );
    let (_, lines) = folder.convert(&multi, "b.jsonl", &[]);
    let made = records(&lines);
    assert_eq!(made[1]["request"]["messages"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&made[1]["think_ms"], &made[1]["arrival_ms"], &made[1]["session"]),
        (&json!(300.0), &json!(310.0), &json!("s"))
    );
    // Rows of a trace with messages or a whole body.
    let rows = folder.file(
        "rows.jsonl",
        &[
            json!({"timestamp": 5, "messages": [{"role": "user", "content": "x"}], "output_length": 3, "tools": []}),
            json!({"timestamp": 6, "payload": {"prompt": "y", "max_tokens": 2}}),
        ],
    );
    let (_, lines) = folder.convert(&rows, "c.jsonl", &[]);
    let made = records(&lines);
    assert_eq!(
        (field(&made, "endpoint"), &made[1]["request"]),
        (vec![&json!("chat"), &json!("completions")], &json!({"prompt": "y", "max_tokens": 2}))
    );
}

#[test]
fn each_answer_of_a_conversation_makes_a_request() {
    let folder = Folder::new();
    let said = |from: &str, value: &str| json!({"from": from, "value": value});
    let conversations = json!([
        {"id": "c1", "conversations": [said("system", "s"), said("human", "q1"), said("gpt", "a1"), said("human", "q2"), said("gpt", "a2")]},
        {"id": "c2", "conversations": [said("gpt", "first"), said("human", "q"), said("tool", "t")]},
    ]);

    let file = folder.text("chats.json", &serde_json::to_string_pretty(&conversations).unwrap());
    let (report, lines) = folder.convert(&file, "a.jsonl", &[]);
    let made = records(&lines);
    assert_eq!((report["from"]["format"].clone(), made.len()), (json!("sharegpt"), 2));
    assert_eq!(report["lost"]["conversations without an answer to a user"], 1);
    let messages = |at: usize| {
        made[at]["request"]["messages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|message| message["content"].as_str().unwrap())
            .collect::<Vec<_>>()
    };
    assert_eq!((messages(0), messages(1)), (vec!["s", "q1"], vec!["s", "q1", "a1", "q2"]));
    assert_eq!((field(&made, "think_ms"), &made[0]["arrival_ms"]), (vec![&Value::Null, &json!(0.0)], &Value::Null));
    assert_eq!(report["lost"]["messages of neither side"], 1);
    // With a tokenizer lengths and answers are known.
    folder.text("tokenizer.json", &String::from_utf8(smollm2_json()).unwrap());
    let (_, lines) = folder.convert(&file, "b.jsonl", &["--tokenizer", folder.0.path().to_str().unwrap()]);
    let made = records(&lines);
    assert!(made.iter().all(|record| record["prompt_tokens"].as_u64() > Some(0)), "{made:?}");
    assert_eq!(
        (field(&made, "text"), made[0]["request"]["ignore_eos"].clone()),
        (vec![&json!(["a1"]), &json!(["a2"])], json!(true))
    );
    assert!(made.iter().all(|record| record["output_token_ids"].as_array().map(Vec::len)
        == record["output_tokens"].as_u64().map(|count| usize::try_from(count).unwrap())));
}

#[test]
fn what_is_wrong_is_named_with_line_and_field() {
    let folder = Folder::new();
    let row = "{\"timestamp\":0,\"input_length\":600,\"output_length\":3,\"hash_ids\":[1,2]}\n";
    let deep = format!("{{\"timestamp\":0,\"messages\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    for (name, text, said) in [
        ("a.jsonl", "{\"timestamp\":0,\"input_length\":-3,\"output_length\":3}\n".to_owned(), "a.jsonl:1: `input_length` -3 is no whole number"),
        ("b.jsonl", format!("{row}{{\"timestamp\":NaN,\"input_length\":6,\"output_length\":3}}\n"), "b.jsonl:2: is no JSON object, at column 14"),
        ("c.jsonl", format!("{row}\n{{\"timestamp\":-5,\"input_length\":6,\"output_length\":3}}"), "c.jsonl:3: `timestamp` -5 is no time in milliseconds"),
        ("d.jsonl", format!("{row}{{\"timestamp\":1e300,\"input_length\":6,\"output_length\":3}}"), "d.jsonl:2: `timestamp`"),
        ("e.jsonl", format!("{row}{{\"timestamp\":0,\"input_length\":99999999999,\"output_length\":3}}"), "e.jsonl:2: `input_length` 99999999999 is no"),
        ("f.jsonl", format!("{row}{{\"timestamp\":0,\"input_length\":6,\"output_length\":4294967295}}"), "f.jsonl:2: 4294967295 output tokens are more"),
        ("g.jsonl", format!("{row}{{\"timestamp\":0,\"input_length\":600,\"output_length\":3,\"hash_ids\":[1,\"x\"]}}"), "g.jsonl:2: `hash_ids` is no list of whole numbers"),
        ("h.jsonl", format!("{row}{{\"timestamp\":0,\"input_length\":600,\"output_length\":3,\"hash_ids\":[1,-2]}}"), "h.jsonl:2: `hash_ids` is no list of whole numbers"),
        ("i.jsonl", deep, "i.jsonl:1: `messages` is no JSON of so few levels"),
        ("j.jsonl", "{\"id\":\"c\",\"requests\":[{\"t\":0,\"in\":64,\"hash_ids\":[1]}]}".to_owned(), "j.jsonl:1: request 1: missing field `out`"),
        ("k.jsonl", "{\"id\":\"c\",\"requests\":[{\"t\":0,\"in\":64,\"out\":1,\"hash_ids\":[1,2,3]}]}".to_owned(), "k.jsonl:1: 3 `hash_ids` are more than 64 tokens"),
        ("l.jsonl", "{\"event_type\":\"request_end\",\"request\":{\"output_tokens\":1}}".to_owned(), "l.jsonl:1: missing field `input_length`"),
        ("m.jsonl", "{\"schema\":\"other\",\"event_type\":\"x\"}".to_owned(), "m.jsonl:1: `schema` other is not known"),
        ("n.jsonl", "{\"a\":1,\"b\":2}".to_owned(), "n.jsonl:1: an object with `a`, `b` is of no format that is known for sure; name it with --from"),
        ("o.jsonl", "{\"messages\":[]}".to_owned(), "name it with --from"),
        ("p.json", "[]".to_owned(), "p.json: holds no request"),
        ("q.json", "[{\"id\":1".to_owned(), "q.json:1: the file ends within the object that begins here"),
        ("r.jsonl", "{\"id\":\"c\",\"block_size\":0,\"requests\":[]}".to_owned(), "r.jsonl:1: `block_size` is 0"),
        ("s.jsonl", "{\"id\":\"c\",\"block_size\":64,\"requests\":[{\"t\":0,\"in\":1,\"out\":1}]}\n{\"id\":\"d\",\"block_size\":32,\"requests\":[]}".to_owned(), "s.jsonl:2: `block_size` is 32, but 64 before"),
    ] {
        let (code, text) = folder.refused(&folder.text(name, &text), &format!("{name}.out.jsonl"), &[]);
        assert_eq!((code, text.contains(said)), (Some(3), true), "{name}: {text}");
    }
    let good = folder.text("good.jsonl", row);
    let (code, text) = folder.refused(&good, "x.jsonl", &["--to", "sharegpt"]);
    assert!(code == Some(2) && text.contains("sharegpt is read, not written"), "{text}");
    folder.text("there.jsonl", "kept");
    let output =
        vcr(&["inspect", "convert", good.to_str().unwrap(), "-o", folder.path("there.jsonl").to_str().unwrap()]);
    assert!(!output.status.success() && fs::read_to_string(folder.path("there.jsonl")).unwrap() == "kept");
    let (_, text) = folder.refused(Path::new("-"), "y.jsonl", &[]);
    assert!(text.contains("--from"), "{text}");
}

#[test]
fn the_report_is_for_people_too_and_leaves_stdout_to_the_requests() {
    let folder = Folder::new();
    let rows = folder.file("rows.jsonl", &mooncake());
    let output = vcr(&["inspect", "convert", rows.to_str().unwrap(), "-o", "-", "--to", "dynamo"]);
    let (out, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(out.lines().filter(|line| line.contains("request_end")).count(), 3, "{out}");
    assert!(said.contains("ideal before") && said.contains("55.6 % hits of 9 blocks of 512 tokens"), "{said}");
}
