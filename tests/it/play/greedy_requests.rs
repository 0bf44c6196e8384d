//! Requests that ask for much: what they cost the server, and that others are answered meanwhile.

use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use crate::support::{
    client::{self, get, post},
    running::Running,
};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn play(flags: &[&str]) -> Running {
    Running::start(&[&["play", "--port", "0", "--instant", "--synthetic", "random"], flags].concat())
}

fn message_of(answer: &client::Answer) -> String {
    answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn a_whole_answer_that_is_certainly_too_large_is_refused_before_it_is_made() {
    let play = play(&[]);
    let base = json!({"messages": [{"role": "user", "content": "q"}], "logprobs": true, "top_logprobs": 20,
        "max_tokens": 30_000, "n": 1000});
    let refused = play.send(CHAT, &base).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(message_of(&refused).contains("`stream`"), "{}", refused.text());
    let prompts: Vec<Value> = (0..5).map(|_| json!([1])).collect();
    let refused = play.send(COMPLETIONS, &json!({"prompt": prompts, "n": 16_384, "max_tokens": 1})).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(message_of(&refused).contains("81920 choices"), "{}", refused.text());
    let small = json!({"messages": [{"role": "user", "content": "q"}], "logprobs": true, "top_logprobs": 20,
        "max_tokens": 300, "n": 2});
    let answer = play.send(CHAT, &small).await.json();
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["logprobs"]["content"].as_array().unwrap().len(), 300);
    }
}

/// The most memory that the program had, in bytes.
fn peak(play: &Running) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", play.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn what_each_choice_of_a_stream_repeats_of_its_prompt_is_made_as_it_is_read() {
    let play = play(&["--threads", "1"]);
    let content = "word ".repeat(20_000);
    play.send(CHAT, &json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1})).await;
    let before = peak(&play);
    let body = json!({"messages": [{"role": "user", "content": content}], "n": 1000, "max_tokens": 1000, "stream": true,
        "return_token_ids": true, "logprobs": true, "top_logprobs": 20});
    let mut unread = client::open(play.address, &post(CHAT, &body)).await;
    let mut some = vec![0; 256 * 1024];
    unread.read_exact(&mut some).await.unwrap();
    assert!(String::from_utf8_lossy(&some).starts_with("HTTP/1.1 200"));
    for _ in 0..20 {
        assert_eq!(client::send(play.address, &get("/health")).await.status, 200);
    }
    let taken = peak(&play) - before;
    assert!(taken < 48 << 20, "{taken} bytes for a request of {}", content.len());
}

#[tokio::test]
async fn long_stop_strings_hold_text_back_and_nothing_else() {
    let play = play(&["--threads", "1"]);
    let stop = "never said ".repeat(100_000);
    let body = |stream: bool| json!({"prompt": "q", "max_tokens": 2000, "seed": 1, "stop": [stop.clone(), "not this either"], "stream": stream});
    let whole = play.send(COMPLETIONS, &body(false)).await.json();
    let text = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    let free = play.send(COMPLETIONS, &json!({"prompt": "q", "max_tokens": 2000, "seed": 1})).await.json();
    assert_eq!(Some(text.as_str()), free["choices"][0]["text"].as_str());
    let events = play.send(COMPLETIONS, &body(true)).await.events();
    let texts = events.iter().filter_map(|event| serde_json::from_str::<Value>(event.strip_prefix("data: ")?).ok());
    let texts: Vec<String> = texts.filter_map(|event| Some(event["choices"][0]["text"].as_str()?.to_owned())).collect();
    assert_eq!(texts.last(), Some(&text), "all of it waits for the end");
    assert_eq!(texts.concat(), text);
}

#[tokio::test]
async fn a_clients_chat_template_comes_to_an_end_off_the_serving_thread() {
    let play = play(&["--threads", "1", "--trust-request-chat-template"]);
    for (template, part) in [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "fuel"),
        ("{{ '%1000000000d'|format(1) }}", "four digits"),
    ] {
        let body = json!({"messages": [{"role": "user", "content": "q"}], "max_tokens": 1, "chat_template": template});
        let (request, health) = (post(CHAT, &body), get("/health"));
        let (refused, other) = tokio::join!(client::send(play.address, &request), client::send(play.address, &health));
        assert_eq!((refused.status, other.status), (400, 200), "{}", refused.text());
        assert!(message_of(&refused).contains(part), "{}", refused.text());
    }
    let body = json!({"messages": [{"role": "user", "content": "q"}], "max_tokens": 1, "return_prompt_text": true,
        "chat_template": "{{ '%03d'|format(7) }} {{ messages[0].content }}"});
    assert_eq!(play.send(CHAT, &body).await.status, 200);
}
