//! What redaction took out of a cassette is put back when it is played: an agent does what it did when it was recorded.

use serde_json::{Value, json};

use super::{CHAT, Running, Shelf, chat, said, tape, vcr};
use crate::support::{
    client::{self, post},
    mailer::{FAMILIES, call_for, call_in, mail, mailer},
    read,
};

/// A password that JSON escapes.
const ODD: &str = "p\"a\\s'9!xyz";

/// Reads text as JSON, as an agent does.
fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_is_served_its_own_secrets_in_every_family_and_nothing_else_has_them() {
    let upstream = mailer().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--redact", "all"]);
    for (path, stream) in FAMILIES.into_iter().flat_map(|path| [(path, false), (path, true)]) {
        let answer = tap.send(path, &mail(path, stream, "jane.doe@example.org", ODD)).await;
        assert_eq!(parsed(&call_in(path, stream, &answer)), parsed(&call_for("jane.doe@example.org", ODD)), "{path}");
    }
    let mut written = vec![tap.stop().1, shelf.text()];
    assert_eq!(written[1].matches("\n- id: ").count(), 8, "{}", written[1]);
    written.push(read(&shelf.folder.path().join("tape.vcr/timing.jsonl")));
    let report = shelf.folder.path().join("report.json");
    let journal = ["--report", report.to_str().unwrap(), "--miss-detail", "full"];
    let play = shelf.play(&journal);
    let people = [("a", "anna.berg@example.net", "other\\\"7\n!"), ("b", "li.wei@example.cn", "third'8\t\"!")];
    for (path, stream) in FAMILIES.into_iter().flat_map(|path| [(path, false), (path, true)]) {
        let answers = people.map(|(session, email, password)| {
            let (address, body) = (play.address, mail(path, stream, email, password));
            let path = format!("/vcr/s/{session}{path}");
            tokio::spawn(async move { client::send(address, &post(&path, &body)).await })
        });
        for (answer, (_, email, password)) in answers.into_iter().zip(people) {
            let answer = answer.await.unwrap();
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            let call = call_in(path, stream, &answer);
            assert_eq!(parsed(&call), parsed(&call_for(email, password)), "{path} {stream}: {call}");
            assert!(!answer.text().contains("REDACTED"), "{path}: {}", answer.text());
        }
    }
    let missed = mail(CHAT, false, people[0].1, "unknown&9");
    let missed = json!({"model": "m", "messages": [missed["messages"][0], {"role": "user", "content": people[0].1}]});
    let missed = play.send(CHAT, &missed).await;
    assert_eq!(missed.status, 422);
    written.push(missed.text());
    for path in ["/vcr/report", "/vcr/misses", "/vcr/misses/1", "/vcr/records", "/vcr/records/0", "/vcr/sessions"] {
        written.push(play.get(path).await.to_string());
    }
    written.push(play.stop().1);
    written.push(read(&report));
    for secret in ["jane.doe", "s'9!xyz", "anna.berg", "7\\n!", "li.wei", "third'8", "unknown&9"] {
        for text in &written {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
    }
}

/// The prompt of [`mail`] without a password: what it names `to` is a password in the answer alone.
fn unnamed(path: &str, stream: bool, value: &str) -> Value {
    let mut body = mail(path, stream, value, "");
    let words = json!({"to": value}).to_string();
    let place = ["prompt", "input"].into_iter().find(|name| body.get(*name).is_some());
    match place {
        Some(name) => body[name] = json!(words),
        None => body["messages"][0]["content"] = json!(words),
    }
    body
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_only_the_answer_names_is_one_in_the_request_too() {
    let upstream = mailer().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &[]);
    let all = || {
        FAMILIES.into_iter().filter(|path| *path != "/v1/completions").flat_map(|path| [(path, false), (path, true)])
    };
    for (path, stream) in all() {
        tap.send(path, &unnamed(path, stream, "Tr0ub4dor&3xyz")).await;
    }
    tap.stop();
    assert!(!shelf.text().contains("Tr0ub4dor"), "{}", shelf.text());
    let play = shelf.play(&["--strict"]);
    for (path, stream) in all() {
        for value in ["Tr0ub4dor&3xyz", "an0ther&one"] {
            let answer = play.send(&format!("/vcr/s/s{}{path}", value.len()), &unnamed(path, stream, value)).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
            let call = call_in(path, stream, &answer);
            assert_eq!(parsed(&call), parsed(&call_for(value, value)), "{path} {stream}: {call}");
        }
        let two_words = play.send(path, &unnamed(path, stream, "no password")).await;
        assert_eq!(two_words.status, 422, "{}", two_words.text());
    }
    // One that is compared twice is one request.
    let sessions = play.get("/vcr/report").await["sessions"].clone();
    assert_eq!(sessions["s14"]["requests"], json!(all().count()), "{sessions}");
}

#[tokio::test]
async fn what_is_played_into_another_cassette_has_placeholders() {
    let upstream = mailer().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--redact", "all"]);
    tap.send(CHAT, &mail(CHAT, false, "jane.doe@example.org", ODD)).await;
    tap.stop();
    let url = format!("http://{}", upstream.address);
    let play = shelf.play(&["--upstream", &url, "--live", "llm:other"]);
    let answer = play.send(CHAT, &mail(CHAT, false, "anna.berg@example.net", ODD)).await;
    assert_eq!(parsed(&call_in(CHAT, false, &answer)), parsed(&call_for("anna.berg@example.net", ODD)));
    play.stop();
    let derived = read(&shelf.folder.path().join("tape.derived.yaml"));
    assert!(derived.contains("[REDACTED:email:1]") && !derived.contains("anna"), "{derived}");
}

/// A cassette whose only record has this key beside its answer, and this answer.
fn with_answer(body: &Value, more: &str, answer: &Value) -> String {
    format!("vcr: 1\nrecords:\n- request: POST {CHAT}\n  body: {body}\n{more}  answer: {answer}\n")
}

/// A chat's answer with this text.
fn saying(text: &str) -> Value {
    json!({"message": {"role": "assistant", "content": text}, "finish_reason": "stop"})
}

#[tokio::test]
async fn placeholders_that_events_cut_are_put_together_wherever_they_are_cut() {
    let whole = json!({"to": "[REDACTED:email:1]", "why": "[REDACTED:password:1]"}).to_string();
    let asked = json!({"ask": "[REDACTED:email:1]", "password": "[REDACTED:password:1]"});
    let shapes: [fn(&str) -> Value; 4] = [
        |text| json!({"delta": {"arguments": text}, "index": 0}),
        |text| json!({"type": "content_block_delta", "index": 1, "delta": {"partial_json": text}}),
        |text| json!({"output_index": 0, "delta": text}),
        |text| json!(text),
    ];
    let mut records = String::new();
    for (shape, event) in shapes.iter().enumerate() {
        for at in 1..whole.len() {
            let (one, other) = whole.split_at(at);
            let events = json!([{"data": event(one)}, {"data": event(other)}]);
            let mut asked = asked.clone();
            asked["at"] = json!([shape, at]);
            records
                .push_str(&format!("- request: POST /v1/unknown\n  body: {asked}\n  answer: {{events: {events}}}\n"));
        }
    }
    let shelf = Shelf::with(&format!("vcr: 1\nrecords:\n{records}"));
    let play = shelf.play(&[]);
    for (shape, at) in (0..shapes.len()).flat_map(|shape| (1..whole.len()).map(move |at| (shape, at))) {
        let body = json!({"ask": "jane.doe@example.org", "password": ODD, "at": [shape, at]});
        let answer = play.send("/v1/unknown", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let events = answer.events();
        assert_eq!(events.len(), 2, "{}", answer.text());
        let piece = |event: &String| match event.strip_prefix("data: ").unwrap() {
            text if shape == 3 => text.to_owned(),
            text => {
                let event = parsed(text);
                let places = [&event["delta"]["arguments"], &event["delta"]["partial_json"], &event["delta"]];
                places.iter().find_map(|place| place.as_str()).unwrap().to_owned()
            }
        };
        let text: String = events.iter().map(piece).collect();
        assert_eq!(parsed(&text), json!({"to": "jane.doe@example.org", "why": ODD}), "cut at {at}: {text}");
    }
}

#[tokio::test]
async fn a_value_under_another_name_in_the_request_is_named_in_the_record() {
    let upstream = mailer().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--redact", "all"]);
    // The key is found by its shape here, and by its name in the arguments of the call.
    let asked =
        |key: &str| json!({"model": "m", "messages": [{"role": "user", "content": json!({"to": key}).to_string()}]});
    let (one, other) = ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "ghp_9876543210zyxwvutsrqponmlkjihgfedcba");
    tap.send(CHAT, &asked(one)).await;
    tap.stop();
    assert!(shelf.text().contains("password:1: github_token:1"), "{}", shelf.text());
    let play = shelf.play(&[]);
    let answer = play.send(CHAT, &asked(other)).await;
    assert_eq!(parsed(&call_in(CHAT, false, &answer)), parsed(&call_for(other, other)));
    let checked = vcr(&["cassette", "fmt", "--check", shelf.name()]);
    assert_eq!(checked.status.code(), Some(0), "it is written as it is read");
}

#[tokio::test]
async fn a_value_of_an_earlier_request_of_the_session_is_put_back() {
    let record = |more: &str, words: &str, answer: &str| {
        format!("- request: POST {CHAT}\n  body: {}\n{more}  answer: {}\n", chat(&[words]), saying(answer))
    };
    let shelf = Shelf::with(&tape(&[
        record("", "I am [REDACTED:email:1], write to [REDACTED:email:2]", "Shall I?"),
        record("  put_back: {'email:1': email:2 of 0}\n", "yes", "Wrote to [REDACTED:email:1]."),
    ]));
    let play = shelf.play(&[]);
    for (session, own, other) in [("a", "a@example.org", "b@example.org"), ("b", "c@example.org", "d@example.org")] {
        let path = format!("/vcr/s/{session}{CHAT}");
        play.send(&path, &chat(&[&format!("I am {own}, write to {other}")])).await;
    }
    for (session, wanted) in
        [("b", "Wrote to d@example.org."), ("a", "Wrote to b@example.org."), ("c", "Wrote to [REDACTED:email:1].")]
    {
        let answer = play.send(&format!("/vcr/s/{session}{CHAT}"), &chat(&["yes"])).await;
        assert_eq!(said(&answer), wanted, "{session}");
    }
    let said = play.stop().1;
    assert!(!said.contains("is served as it is") && !said.contains("@example.org"), "{said}");
}

#[tokio::test]
async fn a_recording_names_the_earlier_request_of_the_session() {
    let upstream = crate::support::peer::Upstream::start(|request| {
        let text = String::from_utf8_lossy(request).into_owned();
        let words = if text.contains("first") { "Shall I?" } else { "Wrote to bob@example.org." };
        let choice = json!({"index": 0, "message": {"role": "assistant", "content": words}, "finish_reason": "stop"});
        let body = json!({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]});
        crate::support::peer::Script {
            pieces: crate::support::peer::answer("200 OK", &body.to_string()),
            end: crate::support::peer::End::KeepAlive,
        }
    })
    .await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--redact", "email"]);
    let first = |own: &str, other: &str| chat(&[&format!("first: I am {own}, write to {other}")]);
    tap.send(&format!("/vcr/s/s{CHAT}"), &first("jane@example.org", "bob@example.org")).await;
    tap.send(&format!("/vcr/s/s{CHAT}"), &chat(&["second"])).await;
    tap.send(&format!("/vcr/s/t{CHAT}"), &chat(&["third"])).await;
    let recorded = tap.stop().1;
    assert_eq!(shelf.text().matches("email:2 of 0").count(), 1, "{recorded}{}", shelf.text());
    let play = shelf.play(&[]);
    play.send(CHAT, &first("x@example.org", "y@example.org")).await;
    assert_eq!(said(&play.send(CHAT, &chat(&["second"])).await), "Wrote to y@example.org.");
    assert_eq!(said(&play.send(CHAT, &chat(&["third"])).await), "Wrote to [REDACTED:email:1].", "another session's");
    let warned = play.stop().1;
    assert_eq!(warned.matches("is served as it is").count(), 1, "{warned}");
}

#[tokio::test]
async fn what_no_request_has_is_named_once_at_load_and_can_be_supplied() {
    let answer = saying("Mail [REDACTED:email:1] or [REDACTED:email:2], key [REDACTED:x-key:1]");
    let shelf = Shelf::with(&with_answer(&chat(&["who? [REDACTED:email:1]"]), "", &answer));
    let play = shelf.play(&["--on-exhausted", "last"]);
    for _ in 0..3 {
        let answer = play.send(CHAT, &chat(&["who? jane@example.org"])).await;
        assert_eq!(said(&answer), "Mail jane@example.org or [REDACTED:email:2], key [REDACTED:x-key:1]");
    }
    let warned = play.stop().1;
    for (placeholder, variable) in [("email:2", "VLLM_VCR_SECRET_EMAIL_2"), ("x-key:1", "VLLM_VCR_SECRET_X_KEY_1")] {
        let warning = format!(
            "tape.yaml:3: record 0: [REDACTED:{placeholder}] is served as it is, since no request has its value; give it with \
             --secrets FILE (a line `tape.yaml#0 {placeholder} = VALUE`) or {variable}"
        );
        assert_eq!(warned.matches(&warning).count(), 1, "{warned}");
    }
    assert_eq!(warned.matches("is served as it is").count(), 2, "{warned}");
    let values = shelf.folder.path().join("values.txt");
    std::fs::write(&values, "# mine\nemail:2 = nobody@example.org\ntape.yaml#0 email:2 = bob@example.org\n[REDACTED:x-key:1] = \"k\\\"1\"\n").unwrap();
    let play = shelf.play(&["--secrets", values.to_str().unwrap()]);
    let answer = play.send(CHAT, &chat(&["who? jane@example.org"])).await;
    assert_eq!(said(&answer), "Mail jane@example.org or bob@example.org, key k\"1");
    let missed = play.send(CHAT, &chat(&["and bob@example.org?"])).await;
    assert!(missed.status == 422 && !missed.text().contains("bob"), "{}", missed.text());
    let warned = play.stop().1;
    assert!(!warned.contains("is served as it is") && !warned.contains("bob"), "{warned}");
    assert!(!warned.contains("--secrets"), "{warned}");

    // Lines that no record has the placeholder of are named; those for records of other files may be for other runs.
    std::fs::write(
        &values,
        "email:2 = a@b.org\nother:1 = hunter22\ntape.yaml#7 email:2 = hunter33\nelse.yaml#0 email:2 = c@d.org\n",
    )
    .unwrap();
    let warned = shelf.play(&["--secrets", values.to_str().unwrap()]).stop().1;
    let of = |line: usize| warned.matches(&format!("values.txt:{line}: ")).count();
    assert_eq!([of(1), of(2), of(3), of(4)], [0, 1, 1, 0], "{warned}");
    assert!(warned.contains("values.txt:2: no record has this placeholder") && !warned.contains("hunter"), "{warned}");
    assert!(warned.contains("values.txt:3: that record does not have this placeholder"), "{warned}");
}

#[tokio::test]
async fn variables_supply_values_too() {
    let shelf =
        Shelf::with(&with_answer(&chat(&["who?"]), "", &saying("Mail [REDACTED:email:1] or [REDACTED:TENANT:1]")));
    let flags = ["play", "--port", "0", "--instant", "--cassette", shelf.name(), "--redact-env", "TENANT"];
    let variables = [("VLLM_VCR_SECRET_EMAIL_1", "jane@example.org"), ("TENANT", "acme-corp")];
    let play = Running::start_with(&flags, &variables);
    assert_eq!(said(&play.send(CHAT, &chat(&["who?"])).await), "Mail jane@example.org or acme-corp");
    let warned = play.stop().1;
    assert!(!warned.contains("is served as it is") && !warned.contains("jane") && !warned.contains("acme"), "{warned}");
}

#[test]
fn a_bad_file_of_values_is_refused_and_not_repeated() {
    let shelf = Shelf::with(&with_answer(&chat(&["who?"]), "", &saying("x")));
    let values = shelf.folder.path().join("values.txt");
    let run = || {
        let ran = vcr(&[
            "play",
            "--port",
            "0",
            "--cassette",
            shelf.name(),
            "--secrets",
            values.to_str().unwrap(),
            "--",
            "true",
        ]);
        (ran.status.code(), String::from_utf8(ran.stderr).unwrap())
    };
    let (code, missing) = run();
    assert!(code == Some(3) && missing.contains("values.txt"), "{missing}");
    for (text, line) in
        [("email:1 = a\nhunter2secret", 2), ("hunter2secret = b", 1), ("\nemail:1 = \"hunter2secret", 2)]
    {
        std::fs::write(&values, text).unwrap();
        let (code, said) = run();
        assert_eq!(code, Some(3), "{said}");
        assert!(said.contains(&format!("values.txt:{line}: ")) && !said.contains("hunter2secret"), "{said}");
    }
    std::fs::write(&values, "email:1 = jane@example.org").unwrap();
    assert_eq!(run().0, Some(0));
}

#[test]
fn a_source_that_is_none_is_refused_with_its_line() {
    for (more, why) in [
        ("  put_back: x\n", "`put_back` has to be a map"),
        ("  put_back: {nothing: email:1}\n", "this is no placeholder"),
        ("  put_back: {'email:1': email:2 of x}\n", "`x` is no id of a record"),
    ] {
        let shelf = Shelf::with(&with_answer(&chat(&["who?"]), more, &saying("x")));
        let ran = vcr(&["cassette", "validate", shelf.name()]);
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(ran.status.code() == Some(3) && said.contains(":5: ") && said.contains(why), "{said}");
    }
}

#[tokio::test]
async fn the_next_turn_of_an_agent_that_was_served_its_secrets_is_found() {
    let upstream = mailer().await;
    let shelf = Shelf::empty();
    let tap = shelf.tap(&upstream, &["--redact", "all"]);
    let turns = async |server: &Running, email: &str, password: &str| {
        let mut body = mail(CHAT, false, email, password);
        let first = server.send(CHAT, &body).await.json();
        let messages = body["messages"].as_array_mut().unwrap();
        messages.push(first["choices"][0]["message"].clone());
        messages.push(json!({"role": "tool", "tool_call_id": "call_1", "content": format!("sent to {email}")}));
        let second = server.send(CHAT, &body).await;
        assert_eq!(second.status, 200, "{}", second.text());
        parsed(&call_in(CHAT, false, &second))
    };
    turns(&tap, "jane.doe@example.org", ODD).await;
    tap.stop();
    assert!(shelf.text().contains("like: 0"), "{}", shelf.text());
    let play = shelf.play(&["--strict"]);
    assert_eq!(
        turns(&play, "li.wei@example.cn", "third'8\"!").await,
        parsed(&call_for("li.wei@example.cn", "third'8\"!"))
    );
    let (code, report) = play.stop();
    assert_eq!(code, 0, "{report}");
}

#[tokio::test]
async fn a_placeholder_that_is_served_as_it_is_keeps_its_number_in_the_next_request() {
    let turn = |words: &[&str], answer: &str| {
        format!("- request: POST {CHAT}\n  body: {}\n  answer: {}\n", chat(words), saying(answer))
    };
    let shelf = Shelf::with(&tape(&[
        turn(&["who?"], "Ask [REDACTED:email:1]"),
        turn(&["who?", "Ask [REDACTED:email:1]", "I am [REDACTED:email:2]"], "Hello [REDACTED:email:2]"),
    ]));
    let play = shelf.play(&[]);
    let first = said(&play.send(CHAT, &chat(&["who?"])).await);
    assert_eq!(first, "Ask [REDACTED:email:1]");
    assert_eq!(
        said(&play.send(CHAT, &chat(&["who?", &first, "I am jane@example.org"])).await),
        "Hello jane@example.org"
    );
}

#[tokio::test]
async fn bodies_and_headers_of_every_kind_have_values() {
    let answers = [
        json!({"body_text": "mail [REDACTED:email:1]"}),
        json!({"json": {"to": ["[REDACTED:email:1]"], "of [REDACTED:email:1]": 1}}),
        json!({"status": 404, "error": {"message": "no [REDACTED:email:1]"}}),
        json!({"headers": {"x-owner": "[REDACTED:email:1]"}, "json": {"a": 1}}),
    ];
    let record = |(at, answer): (usize, &Value)| {
        let body = json!({"at": at, "ask": "[REDACTED:email:1]"});
        format!("- request: POST /v1/unknown\n  body: {body}\n  answer: {answer}\n")
    };
    let shelf = Shelf::with(&tape(&answers.iter().enumerate().map(record).collect::<Vec<_>>()));
    let play = shelf.play(&[]);
    let mut served = Vec::new();
    for at in 0..answers.len() {
        let answer = play.send("/v1/unknown", &json!({"at": at, "ask": "jane@example.org"})).await;
        served.push((answer.status, answer.text(), answer.header("x-owner").map(str::to_owned)));
    }
    let wanted = [
        (200, "mail jane@example.org", None),
        (200, r#"{"to":["jane@example.org"],"of jane@example.org":1}"#, None),
        (404, r#"{"error":{"message":"no jane@example.org"}}"#, None),
        (200, r#"{"a":1}"#, Some("jane@example.org")),
    ];
    let wanted = wanted.map(|(status, text, owner)| (status, text.to_owned(), owner.map(str::to_owned)));
    assert_eq!(served, wanted);
}

#[tokio::test]
async fn a_chats_record_that_answers_another_family_has_values() {
    let call = json!({"id": "c", "name": "send_mail", "arguments": {"to": "[REDACTED:email:1]"}});
    let answer =
        json!({"message": {"role": "assistant", "content": null, "tool_calls": [call]}, "finish_reason": "tool_calls"});
    let shelf = Shelf::with(&with_answer(&chat(&["mail [REDACTED:email:1]"]), "", &answer));
    let play = shelf.play(&["--cross-api", "--on-exhausted", "last"]);
    for stream in [false, true] {
        let body = json!({"model": "m", "max_tokens": 9, "stream": stream,
            "messages": [{"role": "user", "content": "mail jane@example.org"}]});
        let answer = play.send("/v1/messages", &body).await;
        let call = call_in("/v1/messages", stream, &answer);
        assert_eq!(parsed(&call), json!({"to": "jane@example.org"}), "{}", answer.text());
    }
}
