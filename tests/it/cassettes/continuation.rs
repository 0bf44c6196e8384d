//! Chats that continue a recorded answer (`continue_final_message`).

use serde_json::{Value, json};

use crate::support::{
    CHAT,
    cassettes::{Shelf, chat, record, said, streamed, tape},
    peer::{End, Script, Upstream, event_stream},
};

const WORDS: [&str; 5] = ["One", " two", " caf\u{e9}", " four", " five."];

fn all() -> String {
    WORDS.concat()
}

/// The chat with so much of its answer.
fn continued(delivered: &str, more: &Value) -> Value {
    let mut body = chat(&["Count", delivered]);
    let fields = body.as_object_mut().unwrap();
    fields.extend([
        ("continue_final_message".to_owned(), true.into()),
        ("add_generation_prompt".to_owned(), false.into()),
    ]);
    fields.extend(more.as_object().unwrap().clone());
    body
}

async fn upstream() -> Upstream {
    Upstream::start(|_| {
        let event = |delta: Value, finish: Value| {
            json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
                "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
            .to_string()
        };
        let mut events = vec![event(json!({"role": "assistant", "content": ""}), Value::Null)];
        events.extend(WORDS.iter().map(|word| event(json!({"content": word}), Value::Null)));
        events.push(event(json!({}), "stop".into()));
        events.push(
            json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [],
            "usage": {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9}})
            .to_string(),
        );
        events.push("[DONE]".to_owned());
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        Script { pieces: event_stream(&events), end: End::KeepAlive }
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_stream_goes_on_behind_each_event() {
    let (shelf, upstream) = (Shelf::empty(), upstream().await);
    let tap = shelf.tap(&upstream, &[]);
    let usage = json!({"include_usage": true});
    let mut body = chat(&["Count"]);
    body.as_object_mut().unwrap().extend([
        ("stream".to_owned(), true.into()),
        ("stream_options".to_owned(), usage.clone()),
        ("max_tokens".to_owned(), 20.into()),
    ]);
    assert_eq!(streamed(&tap.send(CHAT, &body).await).0, all());
    tap.stop();
    let play = shelf.play(&["--strict"]);
    assert_eq!(streamed(&play.send(CHAT, &body).await).0, all());
    for k in 1..WORDS.len() {
        let delivered = WORDS[..k].concat();
        let more = json!({"stream": true, "stream_options": usage, "max_tokens": 20 - k});
        let answer = play.send(CHAT, &continued(&delivered, &more)).await;
        assert_eq!(answer.header("x-vcr-match"), Some(&*format!("canonical;from={k}")), "{}", answer.text());
        assert_eq!(delivered + &streamed(&answer).0, all());
        let events = answer.events();
        let counts: Value = serde_json::from_str(&events[events.len() - 2][6..]).unwrap();
        assert_eq!(counts["usage"], json!({"prompt_tokens": 4 + k, "completion_tokens": 5 - k, "total_tokens": 9}));
        assert!(answer.text().contains("\"finish_reason\":\"stop\"") && answer.text().ends_with("data: [DONE]\n\n"));
    }
    let within = play.send(CHAT, &continued("One tw", &json!({"stream": true, "max_tokens": 5}))).await;
    assert_eq!(streamed(&within).0, all()["One tw".len()..]);
    let (code, log) = play.stop();
    assert_eq!(code, 0, "{log}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_the_same_record_and_nothing_else_is_one() {
    let shelf = Shelf::with(&tape(&[
        record(&["Count"], "One two three"),
        record(&["Count"], "One two four"),
        record(&["Count", "One two", "and then?"], "Three."),
    ]));
    let play = shelf.play(&[]);
    let first = play.send(CHAT, &chat(&["Count"])).await;
    let rest = play.send(CHAT, &continued("One two", &json!({}))).await;
    assert_eq!(said(&first), format!("One two{}", said(&rest)));
    assert_eq!(said(&play.send(CHAT, &chat(&["Count"])).await), "One two four", "it is still there");
    assert_eq!(said(&play.send(CHAT, &continued("One two f", &json!({}))).await), "our");
    let next = play.send(CHAT, &chat(&["Count", "One two", "and then?"])).await;
    assert_eq!((next.header("x-vcr-match"), said(&next).as_str()), (Some("canonical"), "Three."));
    for (body, why) in [
        (continued("One too", &json!({})), "another text"),
        (continued("One two three", &json!({})), "all was delivered"),
        (continued("One two", &json!({"n": 2})), "two choices"),
        (continued("One two", &json!({"response_format": {"type": "json_object"}})), "a constraint"),
        (chat(&["Count", "One two"]), "nothing says so"),
    ] {
        let answer = play.send(CHAT, &body).await;
        assert!(!answer.header("x-vcr-match").unwrap_or_default().contains("from="), "{why}: {}", answer.text());
    }
}
