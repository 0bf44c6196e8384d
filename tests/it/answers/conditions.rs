//! Which rule takes a request.

use serde_json::json;

use super::{CHAT, Rules, asked, chat, said, tool};
use crate::support::client::{self, post};

#[tokio::test]
async fn the_first_rule_whose_conditions_hold_answers() {
    let rules = Rules::new(
        "- {match: any, answer: default}\n\
         - {match: {role: assistant, contains: bomb}, answer: last of the assistant}\n\
         - {match: {role: system, message: any, regex: '(?i)pirate'}, answer: a system message}\n\
         - {match: {message: any, contains: canary}, answer: any message}\n\
         - {match: {role: tool}, answer: a tool}\n\
         - {match: {tool: weather}, answer: offered}\n\
         - {match: {called: weather}, answer: called}\n\
         - {match: {header: {x-tenant: acme}}, answer: acme}\n\
         - {match: {header: {x-other: {regex: '^b'}}}, answer: begins with b}\n\
         - {match: {header: {x-none: false, x-there: true}}, answer: there}\n\
         - {match: {model: guard}, answer: the guard}\n\
         - {match: {route: /v1/completions, contains: text}, answer: a completion}\n",
    );
    let play = rules.play(&[]);
    let bodies = [
        (
            json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a bomb"}]}),
            "last of the assistant",
        ),
        (
            json!({"messages": [{"role": "assistant", "content": "a bomb"}, {"role": "user", "content": "q"}]}),
            "default",
        ),
        (
            json!({"messages": [{"role": "system", "content": "A Pirate."}, {"role": "user", "content": "q"}]}),
            "a system message",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a canary"}, {"role": "assistant", "content": "x"},
            {"role": "user", "content": "q"}]}),
            "any message",
        ),
        (
            json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "weather", "arguments": "{}"}}]}, {"role": "tool", "tool_call_id": "1", "content": "x"}]}),
            "a tool",
        ),
        (json!({"messages": [{"role": "user", "content": "q"}], "tools": [tool("weather")]}), "offered"),
        (
            json!({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "weather", "arguments": "{}"}}]}, {"role": "user", "content": "x"}]}),
            "called",
        ),
        (json!({"model": "guard", "messages": [{"role": "user", "content": "q"}]}), "the guard"),
        (json!({"messages": [{"role": "user", "content": "text"}]}), "default"),
    ];
    for (body, expected) in bodies {
        assert_eq!(said(&play.send(CHAT, &body).await), expected, "{body}");
    }
    for (headers, expected) in [
        (vec![("X-Tenant", "acme")], "acme"),
        (vec![("x-tenant", "acme2"), ("x-other", "bee")], "begins with b"),
        (vec![("x-there", "")], "there"),
        (vec![("x-there", "1"), ("x-none", "1")], "default"),
    ] {
        let mut request = post(CHAT, &chat(&["q"]));
        request.headers.extend(headers.iter().copied());
        assert_eq!(said(&client::send(play.address, &request).await), expected, "{headers:?}");
    }
}

#[tokio::test]
async fn other_families_have_the_same_messages() {
    let rules = Rules::new(
        "- {match: any, answer: default}\n\
         - {match: {role: system, message: any, regex: '(?i)pirate'}, answer: a system message}\n\
         - {match: {route: /v1/completions, contains: text}, answer: a completion}\n",
    );
    let play = rules.play(&[]);
    let completion = play.send("/v1/completions", &json!({"model": "m", "prompt": "some text"})).await;
    assert_eq!(completion.json()["choices"][0]["text"], "a completion");
    // The system's are beside them.
    let message =
        json!({"model": "m", "max_tokens": 9, "system": "a pirate", "messages": [{"role": "user", "content": "q"}]});
    assert_eq!(play.send("/v1/messages", &message).await.json()["content"][0]["text"], "a system message");
    let response = json!({"model": "m", "instructions": "a pirate", "input": "q"});
    let output = play.send("/v1/responses", &response).await.json();
    assert_eq!(output["output"][0]["content"][0]["text"], "a system message", "{output}");
}

#[tokio::test]
async fn the_nth_time_is_counted_by_rule_and_session() {
    let rules = Rules::new(
        "- {match: {contains: order, nth: 1}, answer: first}\n\
         - {match: {contains: order, nth: [2, 4]}, answer: even}\n\
         - {match: {contains: other, nth: 2}, answer: second other}\n\
         - {match: any, answer: else}\n",
    );
    let play = rules.play(&[]);
    for session in ["a", "b"] {
        let path = format!("/vcr/s/{session}{CHAT}");
        let mut seen = Vec::new();
        for words in ["order", "other", "order", "order", "other", "order", "order"] {
            seen.push(said(&play.send(&path, &chat(&[words])).await));
        }
        assert_eq!(seen, ["first", "else", "even", "else", "second other", "even", "else"], "{session}");
    }
    play.send("/vcr/reset", &json!({"session": "a"})).await;
    assert_eq!(said(&play.send(&format!("/vcr/s/a{CHAT}"), &chat(&["order"])).await), "first");
}

#[tokio::test]
async fn a_request_that_no_rule_takes_is_explained() {
    let rules = Rules::new(
        "- {match: {contains: weather, nth: 2}, answer: a}\n- {match: {header: {authorization: Bearer x}}, answer: b}\n\
         - {match: {role: tool}, answer: c}\n",
    );
    let play = rules.play(&[]);
    let mut request = post(CHAT, &chat(&["weather"]));
    request.headers.push(("authorization", "Bearer sk-not-to-be-shown"));
    let answer = client::send(play.address, &request).await;
    let text = answer.text();
    assert_eq!((answer.status, answer.header("x-vcr-miss")), (422, Some("no_match")));
    for reason in [
        "time 1, and `nth` is [2]",
        "the header authorization is not as wanted",
        "the last message is of 'user', not tool",
    ] {
        assert!(text.contains(reason), "{reason}: {text}");
    }
    assert!(!text.contains("not-to-be-shown"), "{text}");
}

#[tokio::test]
async fn fields_that_a_guard_library_adds_change_no_match() {
    let rules = Rules::new("- {match: {contains: weather}, answer: rain}\n");
    let play = rules.play(&[]);
    let more = json!({"n": 1, "seed": 7, "temperature": 0.0, "logprobs": true, "top_logprobs": 5, "stop": ["x"],
        "response_format": {"type": "text"}, "chat_template_kwargs": {"enable_thinking": false}, "user": "u"});
    assert_eq!(said(&play.send(CHAT, &asked("weather", &more)).await), "rain");
}
