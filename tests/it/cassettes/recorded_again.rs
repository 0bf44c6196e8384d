//! Cassettes that are recorded again: what did not change does not move, whatever was recorded before it or at the same time.

use serde_json::{Value, json};

use super::{CHAT, Running, Shelf, chat, engine, read, record, said, tape, vcr};
use crate::support::peer::{End, Script, Upstream};

/// A conversation with a tool, one turn at a time.
struct Talk {
    messages: Vec<Value>,
}

impl Talk {
    fn about(prompt: &str) -> Self {
        Self { messages: vec![json!({"role": "user", "content": prompt})] }
    }

    async fn turn(&mut self, server: &Running) {
        let tool = json!({"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}});
        let body = json!({"model": "m", "messages": self.messages, "tools": [tool]});
        let answer = server.send(CHAT, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let message = answer.json()["choices"][0]["message"].clone();
        let id = message["tool_calls"][0]["id"].clone();
        self.messages.push(message);
        if id.is_string() {
            self.messages.push(json!({"role": "tool", "tool_call_id": id, "content": "15 degrees"}));
        } else {
            self.messages.push(json!({"role": "user", "content": "and now?"}));
        }
    }
}

/// Records conversations, of which each entry of the order takes a turn; the text of the cassette.
async fn recorded(shelf: &Shelf, upstream: &Upstream, prompts: &[&str], order: &[usize]) -> String {
    let tap = shelf.tap(upstream, &["--mode", "all"]);
    let mut talks: Vec<Talk> = prompts.iter().map(|prompt| Talk::about(prompt)).collect();
    for talk in order {
        talks[*talk].turn(&tap).await;
    }
    let (code, log) = tap.stop();
    assert_eq!(code, 0, "{log}");
    shelf.text()
}

/// The records of a cassette, as they are written.
fn blocks(text: &str) -> Vec<String> {
    let records = text.split_once("records:\n").unwrap().1.split("\ntools:").next().unwrap();
    records.split("- id: ").skip(1).map(|block| block.trim_end().to_owned()).collect()
}

#[tokio::test]
async fn a_conversation_in_front_changes_no_record_behind_it() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let old = blocks(&recorded(&shelf, &upstream, &["b", "c"], &[0, 0, 0, 1, 1, 1]).await);
    assert!(old[3].contains("id: call_1,") && !old[3].contains("call_2"), "ids are local: {}", old[3]);
    let new = blocks(&recorded(&shelf, &upstream, &["a", "b", "c"], &[0, 0, 0, 1, 1, 1, 2, 2, 2]).await);
    assert_eq!((new.len(), &new[3..]), (9, &old[..]), "{new:#?}");
    let play = shelf.play(&["--strict"]);
    for prompt in ["c", "a", "b"] {
        let mut talk = Talk::about(prompt);
        for _ in 0..3 {
            talk.turn(&play).await;
        }
    }
    let (code, log) = play.stop();
    assert_eq!(code, 0, "{log}");
}

#[tokio::test]
async fn conversations_at_the_same_time_are_recorded_again_without_a_difference() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let prompts = ["a", "b", "a"];
    let old = recorded(&shelf, &upstream, &prompts, &[0, 1, 2, 1, 0, 2, 2, 0, 1]).await;
    for order in [[1, 1, 1, 2, 2, 2, 0, 0, 0], [2, 1, 0, 2, 1, 0, 0, 1, 2], [0, 2, 2, 1, 0, 1, 0, 2, 1]] {
        let new = recorded(&shelf, &upstream, &prompts, &order).await;
        assert_eq!(new, old, "{order:?}");
    }
    let runs = read(&shelf.folder.path().join("tape.vcr/runs.jsonl"));
    assert!(
        runs.lines().count() == 1 && runs.contains("\"mode\":\"once\",\"records\":9"),
        "nothing has changed since: {runs}"
    );
    let times = read(&shelf.folder.path().join("tape.vcr/timing.jsonl"));
    let ids: Vec<Value> =
        times.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!(ids, (0..9).map(Value::from).collect::<Vec<_>>());
    let checked = vcr(&["cassette", "validate", shelf.name()]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let play = shelf.play(&["--strict"]);
    for prompt in ["b", "a", "a"] {
        let mut talk = Talk::about(prompt);
        for _ in 0..3 {
            talk.turn(&play).await;
        }
    }
    let (code, log) = play.stop();
    assert!(code == 0 && !log.contains("edited"), "{log}");
}

#[tokio::test]
async fn rate_limits_that_differ_in_each_response_change_no_line() {
    let count = std::sync::atomic::AtomicU64::new(0);
    let limited = Upstream::start(move |request| {
        let count = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let choice = json!({"index": 0, "message": {"role": "assistant", "content": "b"}, "finish_reason": "stop"});
        let body = json!({"object": "chat.completion", "choices": [choice]}).to_string();
        let limits = ["x-ratelimit-remaining-tokens", "anthropic-ratelimit-requests-remaining", "openai-processing-ms"];
        let limits: String = limits.iter().map(|name| format!("{name}: {count}\r\n")).collect();
        let is_busy = String::from_utf8_lossy(request).contains("\"content\":\"b\"");
        let status = if is_busy { "429 Busy" } else { "200 OK" };
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nretry-after-ms: 5\r\n{limits}");
        let response = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
        Script { pieces: vec![response.into_bytes()], end: End::KeepAlive }
    })
    .await;
    let (shelf, mut texts) = (Shelf::empty(), Vec::new());
    for _ in 0..3 {
        let tap = shelf.tap(&limited, &["--mode", "all", "--record-errors", "all"]);
        for prompt in ["a", "b"] {
            tap.send(CHAT, &chat(&[prompt])).await;
        }
        tap.stop();
        texts.push(shelf.text());
    }
    let has = |line: &str| texts[0].contains(line);
    assert!(has("requests-remaining: \"") && has("retry-after-ms: \"5\"") && has("status: 429"), "{}", texts[0]);
    assert_eq!(texts[1..], [texts[0].clone(), texts[0].clone()]);
}

#[tokio::test]
async fn an_edited_prompt_changes_the_records_of_its_conversation_only() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let order = [0, 1, 2, 0, 1, 2];
    let old = blocks(&recorded(&shelf, &upstream, &["a", "b", "c"], &order).await);
    let new = blocks(&recorded(&shelf, &upstream, &["a", "edited", "c"], &[2, 2, 1, 0, 0, 1]).await);
    let changed: Vec<usize> = (0..6).filter(|at| old[*at] != new[*at]).collect();
    assert_eq!((new.len(), changed), (6, vec![1]), "the second turn shows only what is new in it: {new:#?}");
    let without = blocks(&recorded(&shelf, &upstream, &["a", "c"], &[0, 1, 0, 1]).await);
    assert_eq!(without, [0, 2, 3, 5].map(|at| new[at].clone()));
}

#[tokio::test]
async fn ids_and_forms_of_an_older_cassette_stay() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let text = recorded(&shelf, &upstream, &["b", "c"], &[0, 0, 0, 1, 1, 1]).await;
    // Names counted through the whole file, as older versions wrote them, and words of the user's own.
    let (first, second) = text.split_at(text.find("- id: 3\n").unwrap());
    let older = format!("{first}{}", second.replace("call_1", "call_7"));
    let older = older.replacen("records:", "tags: [nightly]\nrecords:", 1);
    let older = older.replacen("  answer:\n", "  group: mine\n  tags: [one]\n  answer:\n", 1);
    std::fs::write(&shelf.file, &older).unwrap();
    assert_eq!(recorded(&shelf, &upstream, &["b", "c"], &[1, 0, 1, 0, 0, 1]).await, older);
    let longer = recorded(&shelf, &upstream, &["b", "c"], &[0, 0, 0, 1, 1, 1, 1, 1]).await;
    assert_eq!(blocks(&longer)[..6], blocks(&older)[..]);
    // Full requests stay full requests.
    assert!(vcr(&["cassette", "fmt", "--expand", shelf.name()]).status.success());
    let full = shelf.text();
    assert!(!full.contains("like:"));
    let again = recorded(&shelf, &upstream, &["b", "c"], &[0, 0, 0, 1, 1, 1, 1, 1]).await;
    assert!(!again.contains("like:"), "{again}");
}

#[tokio::test]
async fn a_text_that_does_not_count_makes_no_difference() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let mut texts = Vec::new();
    for day in [17, 18] {
        let tap = shelf.tap(&upstream, &["--mode", "all", "--scrub", "s/June \\d+/June X/", "--ignore", "$.user_day"]);
        let system = json!({"role": "system", "content": format!("Today is June {day}.")});
        let messages = json!([system, {"role": "user", "content": "a"}]);
        tap.send(CHAT, &json!({"model": "m", "messages": messages, "user_day": day})).await;
        tap.send(CHAT, &chat(&["b"])).await;
        tap.stop();
        texts.push(shelf.text());
    }
    assert_eq!(texts[0], texts[1]);
}

#[tokio::test]
async fn records_stay_in_the_order_of_their_requests_where_the_order_counts() {
    let upstream = engine().await;
    for (flags, expected) in
        [(&["--mode", "all"][..], ["a", "b"]), (&["--mode", "all", "--match", "ordered"], ["b", "a"])]
    {
        let shelf = Shelf::with(&tape(&[record(&["a"], "old A"), record(&["b"], "old B")]));
        let tap = shelf.tap(&upstream, flags);
        for words in ["b", "a"] {
            assert_eq!(said(&tap.send(CHAT, &chat(&[words])).await), format!("You said {words}."));
        }
        tap.stop();
        let text = shelf.text();
        let places = expected.map(|words| text.find(&format!("You said {words}.")).unwrap());
        assert!(places[0] < places[1], "{flags:?}: {text}");
    }
}

#[tokio::test]
async fn two_cassettes_that_differ_in_the_names_of_ids_do_not_differ() {
    let (upstream, shelf) = (engine().await, Shelf::empty());
    let text = recorded(&shelf, &upstream, &["b"], &[0, 0]).await;
    let other = shelf.folder.path().join("other.yaml");
    let renamed = text.replace("call_1", "call_8").replace("id: 1\n", "id: 5\n");
    std::fs::write(&other, &renamed).unwrap();
    let compared = vcr(&["cassette", "diff", shelf.name(), other.to_str().unwrap()]);
    assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stdout));
    std::fs::write(&other, renamed.replace("city: London", "city: Paris")).unwrap();
    let compared = vcr(&["cassette", "diff", shelf.name(), other.to_str().unwrap()]);
    let shown = String::from_utf8_lossy(&compared.stdout).into_owned();
    assert!(shown.contains("Paris") && !shown.contains("call_8"), "{shown}");
}
