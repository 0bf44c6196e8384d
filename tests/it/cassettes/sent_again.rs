//! `drift`: the requests of cassettes are sent to a live server again, and its answers compared with the recorded ones.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde_json::{Value, json};

use super::{CHAT, Shelf, agent, chat, engine, record, tape, vcr};
use crate::support::peer::{End, Script, Upstream, answer};

/// Exit code, what was printed, and what stands on stderr.
async fn drift(shelf: &Shelf, live: &str, flags: &[&str]) -> (i32, String, String) {
    let words: Vec<String> =
        ["drift", shelf.name(), "--live", live].iter().chain(flags).map(|word| (*word).to_owned()).collect();
    let output = tokio::task::spawn_blocking(move || vcr(&words.iter().map(String::as_str).collect::<Vec<_>>()));
    let output = output.await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

fn url(upstream: &Upstream) -> String {
    format!("http://{}", upstream.address)
}

/// An agent with a tool, streamed and not, and chats, recorded from the scripted engine.
async fn recorded() -> Shelf {
    let (shelf, upstream) = (Shelf::empty(), engine().await);
    let tap = shelf.tap(&upstream, &[]);
    for stream in [true, false] {
        agent(&tap, "weather", json!(stream)).await.unwrap_or_else(|miss| panic!("{}", miss.text()));
    }
    let long = "A long text. ".repeat(500);
    for words in ["hello", "status 404", &long] {
        tap.send(CHAT, &chat(&[words])).await;
    }
    tap.stop();
    shelf
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_that_differ_each_time_are_no_drift() {
    let shelf = recorded().await;
    let before = shelf.text();
    assert!(before.contains("$blob: "), "{before}");
    let (code, printed, log) = drift(&shelf, &url(&engine().await), &["--text", "--concurrency", "3"]).await;
    assert_eq!((code, printed.as_str()), (0, "no drift: 0 of 7 answers differ\n"), "{log}");
    assert_eq!(shelf.text(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_ends_and_prompts_are_drift_and_texts_where_they_are_asked_for() {
    let shelf = recorded().await;
    let upstream = engine().await;
    let live = url(&upstream);
    let unedited = shelf.text();
    std::fs::write(&shelf.file, unedited.replacen("You said hello.", "Something private.", 1)).unwrap();
    let (code, printed, _) = drift(&shelf, &live, &["--json"]).await;
    let found: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((code, &found["drift"], &found["counts"]["other_texts"]), (0, &json!(false), &json!(1)), "{printed}");
    assert!(!printed.contains("private"), "{printed}");
    let (code, printed, _) = drift(&shelf, &live, &["--text"]).await;
    let line = "  text: $.message.content is 'You said hello.', recorded 'Something private.'\n";
    assert!(code == 1 && printed.contains(line), "{printed}");
    let edited = unedited.replacen("name: weather, arguments", "name: forecast, arguments", 1);
    let edited = edited.replace("prompt_tokens: 9", "prompt_tokens: 12");
    assert!(edited.contains("forecast") && edited.contains("prompt_tokens: 12"), "{edited}");
    std::fs::write(&shelf.file, edited).unwrap();
    let (markdown, junit) = (shelf.folder.path().join("drift.md"), shelf.folder.path().join("drift.xml"));
    let files = ["--markdown", markdown.to_str().unwrap(), "--junit", junit.to_str().unwrap()];
    let (code, printed, _) = drift(&shelf, &live, &files).await;
    assert_eq!(code, 1);
    let (markdown, junit) = (super::read(&markdown), super::read(&junit));
    for part in ["name is 'weather', recorded 'forecast'", "usage: the prompt has 9 tokens, recorded 12"] {
        assert!(printed.contains(part) && markdown.contains(part), "{printed}\n{markdown}");
    }
    assert!(markdown.starts_with("**drift: ") && junit.contains("tests=\"7\""), "{markdown}\n{junit}");
    let own = drift(&shelf, &live, &["--markdown", shelf.name()]).await;
    assert!(own.0 == 2 && own.2.contains("one of the cassettes"), "{own:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_sent_again_is_named_and_redacted_values_may_be_given() {
    let echo = engine().await;
    let failed = "- request: POST /v1/chat/completions\n  body: {model: m}\n  answer: {status: 429, json: {}}\n";
    let by_hand = "- match: {contains: x}\n  answer: y\n";
    let mcp = "- at: mcp:time\n  request: POST /mcp/time\n  body: {method: ping}\n  answer: {status: 200, json: {result: {}}}\n";
    let stored = "- request: POST /v1/responses\n  body: {model: m, previous_response_id: resp_1}\n  answer: {status: 200, json: {}}\n";
    let deleted = "- request: DELETE /v1/files/a\n  answer: {status: 200, json: {}}\n";
    let named = record(&["a"], "You said a.").replace("  body:", "  headers: {x-vcr-upstream: two}\n  body:");
    let named = named.replace("prompt_tokens: 3", "prompt_tokens: 9");
    let secret = record(&["To [REDACTED:email:1]"], "You said To [REDACTED:email:1].");
    let parts = [failed, by_hand, mcp, stored, deleted, &named, &secret].map(str::to_owned);
    let shelf = Shelf::with(&tape(&parts));
    let (code, printed, log) = drift(&shelf, &url(&echo), &[]).await;
    assert!(code == 3 && log.contains("no record of these cassettes can be sent again"), "{printed}{log}");
    for why in [
        "status 429",
        "written by hand",
        "MCP server time",
        "stored response",
        "DELETE may change",
        "--upstream two",
        "VLLM_VCR_SECRET_EMAIL_1",
    ] {
        assert!(printed.contains(why), "{why}: {printed}");
    }
    assert!(printed.ends_with("nothing was compared: 0 of 0 answers differ; 7 not sent\n"), "{printed}");
    let values = shelf.folder.path().join("values.txt");
    std::fs::write(&values, "email:1 = jane@example.org\n").unwrap();
    let (code, printed, log) = drift(&shelf, &url(&echo), &["--text", "--secrets", values.to_str().unwrap()]).await;
    assert!(code == 0 && printed.contains("0 of 1 answers differ"), "{printed}{log}");
    assert!(!printed.contains("jane@"), "{printed}");
    let asked =
        echo.requests.lock().unwrap().iter().any(|request| String::from_utf8_lossy(request).contains("To jane@"));
    assert!(asked, "the value is sent");
    let (code, printed, _) = drift(&shelf, &url(&echo), &["--upstream", "two"]).await;
    assert!(code == 0 && printed.contains("0 of 1 answers differ"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_server_is_asked_again_and_keys_and_seeds_are_sent() {
    let count = AtomicU64::new(0);
    let busy = Upstream::start(move |request| {
        let text = String::from_utf8_lossy(request).into_owned();
        let is_chat = text.starts_with("POST /v1/chat");
        let pieces = if is_chat && !text.contains("authorization: Bearer sk-1\r\n") {
            answer("401 Unauthorized", "{}")
        } else if is_chat && count.fetch_add(1, Relaxed) == 0 {
            vec![b"HTTP/1.1 429 Busy\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n".to_vec()]
        } else {
            let choice = json!({"index": 0, "message": {"role": "assistant", "content": "b"}, "finish_reason": "stop"});
            let usage = json!({"prompt_tokens": 3, "completion_tokens": 5});
            answer("200 OK", &json!({"object": "chat.completion", "choices": [choice], "usage": usage}).to_string())
        };
        Script { pieces, end: End::KeepAlive }
    })
    .await;
    let shelf = Shelf::with(&tape(&[record(&["a"], "a").replace("\"model\":", "\"seed\":7,\"model\":")]));
    assert!(shelf.text().contains("\"seed\":7"), "{}", shelf.text());
    let (code, printed, log) = drift(&shelf, &url(&busy), &[]).await;
    assert!(
        code == 4 && printed.contains("refuses the key (status 401)") && log.contains("1 request without a response"),
        "{printed}{log}"
    );
    let (code, printed, log) = drift(&shelf, &url(&busy), &["--api-key", "sk-1"]).await;
    let said = "no drift: 0 of 1 answers differ; 1 with other texts (--text shows and counts them)\n";
    assert_eq!((code, printed.as_str()), (0, said), "{log}");
    let requests = busy.requests.lock().unwrap();
    let chats: Vec<_> =
        requests.iter().map(|it| String::from_utf8_lossy(it)).filter(|it| it.starts_with("POST /v1/chat")).collect();
    assert!(chats.len() == 3 && chats.iter().all(|chat| chat.contains("\"seed\":7")), "{chats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_server_is_asked_once_and_a_cut_answer_is_a_failure() {
    let shelf = Shelf::with(&tape(&[record(&["a"], "a"), record(&["b"], "b")]));
    let (code, printed, log) = drift(&shelf, "http://127.0.0.1:9", &[]).await;
    assert!(code == 4 && printed.contains("not sent, since the server cannot be reached"), "{printed}");
    assert!(log.starts_with("error: 2 requests without a response to compare"), "{log}");
    let cut = Upstream::start(|_| Script {
        pieces: vec![b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_vec()],
        end: End::Close,
    })
    .await;
    let (code, printed, _) = drift(&shelf, &url(&cut), &[]).await;
    assert!(code == 4 && printed.contains("the answer breaks off"), "{printed}");
}
