//! Log probabilities of answers that are asked for in the other form.

use serde_json::{Value, json};

use super::{CHAT, Shelf, engine};
use crate::support::client::Answer;

fn token(text: &str, logprob: f64) -> Value {
    json!({"token": text, "bytes": text.as_bytes(), "logprob": logprob, "top_logprobs": [
        {"token": text, "bytes": text.as_bytes(), "logprob": logprob}]})
}

/// The choices of a stream's events.
fn choices(answer: &Answer) -> Vec<Value> {
    let read = |event: &String| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok();
    answer.events().iter().filter_map(read).filter_map(|mut event| Some(event["choices"].get_mut(0)?.take())).collect()
}

fn chat(stream: bool) -> Value {
    json!({"model": "m", "messages": [{"role": "user", "content": "Is it safe?"}], "logprobs": true, "top_logprobs": 1,
        "stream": stream})
}

#[tokio::test]
async fn each_piece_of_a_stream_has_those_of_its_tokens() {
    let all = [token("Yes", -0.1), token(",", -0.5), token(" it is.", -0.25), token("<|im_end|>", -0.01)];
    let shelf = Shelf::with(&format!(
        "vcr: 1\nrecords:\n- request: POST {CHAT}\n  body: {}\n  answer:\n    message: {{role: assistant, content: 'Yes, it is.'}}\n    \
         finish_reason: stop\n    logprobs: {}\n",
        chat(false),
        json!({"content": all})
    ));
    let play = shelf.play(&["--on-exhausted", "last"]);
    let choices = choices(&play.send(CHAT, &chat(true)).await);
    let told: Vec<_> = choices.iter().map(|choice| (&choice["delta"]["content"], &choice["logprobs"])).collect();
    let of = |at: usize| json!({"content": [all[at]]});
    assert_eq!(told[0], (&json!(""), &Value::Null));
    assert_eq!(told[1], (&json!("Yes"), &of(0)));
    assert_eq!(told[2], (&json!(","), &of(1)));
    assert_eq!(told[3], (&json!(" it is."), &of(2)));
    assert_eq!((told[4].1, &choices[4]["finish_reason"], told.len()), (&of(3), &json!("stop"), 5));
    let whole = play.send(CHAT, &chat(false)).await.json();
    assert_eq!(whole["choices"][0]["logprobs"], json!({"content": all}));
}

#[tokio::test]
async fn a_stream_returned_as_one_body_has_all_of_them() {
    let upstream = engine().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let live = tap.send(CHAT, &chat(true)).await;
    tap.stop();
    let told: Vec<Value> = choices(&live)
        .into_iter()
        .filter_map(|choice| choice["logprobs"]["content"].as_array().cloned())
        .flatten()
        .collect();
    assert!(told.len() > 1, "{}", live.text());
    let play = shelf.play(&[]);
    let whole = play.send(CHAT, &chat(false)).await.json();
    assert_eq!(whole["choices"][0]["logprobs"]["content"], json!(told));
}
