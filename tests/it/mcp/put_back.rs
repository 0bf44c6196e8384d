//! Models and MCP servers on one cassette: what redaction took out is put back in what both answer, each from its own requests.

use serde_json::{Value, json};

use super::{
    Server, Shelf,
    served::Client,
    wire::{ACCEPTED, posted, server, whole},
};
use crate::support::{
    CHAT,
    cassettes::{chat, record, said, tape},
    mailer::{call_for, call_in, mail, mailer},
    peer::{End, Script, Upstream},
    running::Running,
};

/// A server that says what its tool was given.
async fn echo() -> Upstream {
    server(|request| {
        let message = posted(request);
        let id = &message["id"];
        let result = match message["method"].as_str().unwrap_or_default() {
            "initialize" => json!({"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "shop", "version": "1"}}),
            "tools/call" => {
                let given = message["params"]["arguments"].to_string();
                json!({"content": [{"type": "text", "text": given}]})
            }
            _ => return Script { pieces: vec![ACCEPTED.to_vec()], end: End::KeepAlive },
        };
        whole("200 OK", "", &json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string())
    })
    .await
}

/// A client of the server that opened no session: the one of tests has none.
async fn begun(server: &Running) -> Client<'_> {
    let client = Client::new(server);
    let params =
        json!({"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "agent", "version": "9"}});
    let opened = client.ask(json!(0), "initialize", &params).await;
    let session = opened.header("mcp-session-id").map(str::to_owned);
    Client { session, ..client }
}

/// An agent that passes the arguments of the model's call to the tool: the arguments, and what the tool says.
async fn mail_by_agent(server: &Running, stream: bool, email: &str, password: &str) -> (Value, String) {
    let client = begun(server).await;
    let answer = server.send(CHAT, &mail(CHAT, stream, email, password)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let arguments: Value = serde_json::from_str(&call_in(CHAT, stream, &answer)).unwrap();
    let answer = client.call(1, "send_mail", &arguments).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let text = answer.json()["result"]["content"][0]["text"]
        .as_str()
        .unwrap_or_else(|| panic!("{}", answer.text()))
        .to_owned();
    (arguments, text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_beside_a_server_is_put_back_what_the_agent_passes_to_a_tool() {
    let (llm, real, shelf) = (mailer().await, echo().await, Shelf::empty());
    let url = format!("shop=http://{}/mcp", real.address);
    let tap = shelf.tap(&llm, &["--redact", "all", "--mcp", &url]);
    for stream in [false, true] {
        mail_by_agent(&tap, stream, "jane.doe@example.org", "hunter2-xyz").await;
    }
    let (code, notes) = tap.stop();
    assert_eq!(code, 0, "{notes}");
    let text = shelf.text();
    assert!(!text.contains("hunter2") && text.contains("method: initialize"), "{text}");
    let play = shelf.play(&["--fail-on", "miss,placeholder", "--on-exhausted", "error"]);
    for (stream, email, password) in
        [(false, "anna@example.net", "other\"7!xyz"), (true, "li.wei@example.cn", "third'8!xyz")]
    {
        let (arguments, text) = mail_by_agent(&play, stream, email, password).await;
        let wanted: Value = serde_json::from_str(&call_for(email, password)).unwrap();
        assert_eq!(arguments, wanted);
        assert_eq!(text, wanted.to_string());
    }
    let (code, notes) = play.stop();
    assert!(code == 0 && !notes.contains("served as it is") && !notes.contains("placeholder"), "{notes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_before_the_one_that_names_its_secret_is_found_too() {
    let (llm, real, shelf) = (mailer().await, echo().await, Shelf::empty());
    let url = format!("shop=http://{}/mcp", real.address);
    let calls = |secret: &str| [json!({"query": format!("for {secret} !")}), json!({"password": secret, "n": 1})];
    let tap = shelf.tap(&llm, &["--mcp", &url]);
    let client = begun(&tap).await;
    for (at, arguments) in (1..).zip(calls("hunter2-xyz")) {
        client.call(at, "find", &arguments).await;
    }
    assert_eq!(tap.stop().0, 0);
    assert!(!shelf.text().contains("hunter2"), "{}", shelf.text());
    let play = shelf.play(&["--strict"]);
    let client = begun(&play).await;
    for (at, arguments) in (1..).zip(calls("another-7-word")) {
        let answer = client.call(at, "find", &arguments).await.json();
        assert_eq!(answer["result"]["content"][0]["text"], json!(arguments.to_string()), "{answer}");
    }
    let (code, notes) = play.stop();
    assert_eq!(code, 0, "{notes}");
}

/// A record of a tool's call.
fn called(arguments: &Value, answer: &Value) -> String {
    let params = json!({"name": "find", "arguments": arguments});
    let result = json!({"result": {"content": [{"type": "text", "text": answer}]}});
    format!(
        "- request: POST /mcp/shop\n  body: {}\n  answer: {}\n",
        json!({"method": "tools/call", "params": params}),
        json!({"json": result})
    )
}

#[tokio::test]
async fn a_value_goes_into_the_record_that_it_belongs_to_and_into_no_other() {
    // Each has a placeholder of this name, and every value is another one.
    let mailed =
        |words: &str| record(&[&format!("{words} [REDACTED:email:1]")], &format!("{words} to [REDACTED:email:1]"));
    let unknown = || called(&json!({"n": 1}), &json!("owner: [REDACTED:email:1]"));
    let known = called(&json!({"n": 2, "of": "[REDACTED:email:1]"}), &json!("owner: [REDACTED:email:1]"));
    let shelf =
        Shelf::with(&tape(&[unknown(), mailed("a"), known, record(&["who?"], "ask [REDACTED:email:1]"), mailed("b")]));
    let second = shelf.folder.path().join("second.yaml");
    std::fs::write(&second, tape(&[record(&["nothing"], "here"), unknown(), mailed("c"), mailed("d")])).unwrap();
    let play = shelf.play(&["--cassette", second.to_str().unwrap()]);
    for words in ["d", "who?", "b", "nothing", "c", "a"] {
        let (asked, wanted) = match words {
            "who?" => (words.to_owned(), "ask [REDACTED:email:1]".to_owned()),
            "nothing" => (words.to_owned(), "here".to_owned()),
            words => (format!("{words} {words}.doe@example.org"), format!("{words} to {words}.doe@example.org")),
        };
        assert_eq!(said(&play.send(CHAT, &chat(&[&asked])).await), wanted);
    }
    let client = begun(&play).await;
    for (arguments, wanted) in [
        (json!({"n": 1}), "owner: [REDACTED:email:1]"),
        (json!({"n": 2, "of": "li.wei@example.cn"}), "owner: li.wei@example.cn"),
        (json!({"n": 1}), "owner: [REDACTED:email:1]"),
    ] {
        assert_eq!(client.call(1, "find", &arguments).await.json()["result"]["content"][0]["text"], wanted);
    }
    let warned = play.stop().1;
    let lines = ["tape.yaml:3: record 0", "tape.yaml:12: record 3", "second.yaml:6: record 1"];
    assert_eq!(warned.matches("is served as it is").count(), lines.len(), "{warned}");
    lines.iter().for_each(|line| assert!(warned.contains(line), "{line}: {warned}"));
    assert!(warned.contains("answers with placeholders: "), "{warned}");
}

#[tokio::test]
async fn whoever_must_not_get_a_placeholder_fails_when_one_is_served() {
    let shelf = Shelf::with(&tape(&[
        record(&["who?"], "ask [REDACTED:email:1]"),
        record(&["I am [REDACTED:email:1]"], "hello [REDACTED:email:1]"),
        called(&json!({"n": 1}), &json!("owner: [REDACTED:email:1]")),
    ]));
    for (asks, calls, code) in
        [("who?", false, 1), ("I am jane@example.org", false, 0), ("I am jane@example.org", true, 1)]
    {
        let report = shelf.folder.path().join("report.json");
        let play = shelf.play(&["--fail-on", "placeholder", "--report", report.to_str().unwrap()]);
        said(&play.send(CHAT, &chat(&[asks])).await);
        if calls {
            assert_eq!(begun(&play).await.call(1, "find", &json!({"n": 1})).await.status, 200);
        }
        let verified = crate::support::client::post("/vcr/verify", &json!({"fail_on": ["placeholder"]}));
        let verified = crate::support::client::send(play.address, &verified).await;
        let (ended, notes) = play.stop();
        assert_eq!((ended, verified.status), (code, if code == 0 { 200 } else { 409 }), "{notes}");
        assert_eq!(notes.contains("failed: placeholder"), code == 1, "{notes}");
        let report = crate::support::read(&report);
        assert_eq!(report.contains("\"placeholders\":1"), code == 1, "{report}");
    }
    let play = shelf.play(&["--strict", "--fail-on", "miss"]);
    said(&play.send(CHAT, &chat(&["who?"])).await);
    assert_eq!(play.stop().0, 0);
}

#[test]
fn a_server_over_stdio_warns_at_load_and_puts_back_what_it_knows() {
    let text = |answer: &Value| {
        answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    };
    let records = [
        called(&json!({"of": "[REDACTED:email:1]"}), &json!("owner: [REDACTED:email:1]")),
        called(&json!({"n": 1}), &json!("owner: [REDACTED:email:1]")),
        called(&json!({"n": 2}), &json!("first: [REDACTED:email:1]"))
            .replace("  answer", "  put_back: {'email:1': email:1 of 0}\n  answer"),
        record(&["who?"], "no record of the server: [REDACTED:email:1]"),
    ];
    let shelf = Shelf::with(&tape(&records));
    let (name, flag) = (shelf.name().to_owned(), ["--fail-on", "placeholder"]);
    let values = shelf.folder.path().join("values.txt");
    std::fs::write(&values, "tape.yaml#1 email:1 = bob@example.org\n").unwrap();
    for supplied in [&[][..], &["--secrets", values.to_str().unwrap()]] {
        let mut server = Server::play(&shelf, &[&flag[..], supplied].concat());
        let mut ask = |arguments: Value| text(&server.call(json!(1), "find", &arguments));
        assert_eq!(ask(json!({"of": "jane@example.org"})), "owner: jane@example.org");
        assert_eq!(ask(json!({"n": 2})), "first: jane@example.org");
        let owner = ask(json!({"n": 1}));
        let (_, code, notes) = server.end();
        let is_known = !supplied.is_empty();
        assert_eq!(owner, if is_known { "owner: bob@example.org" } else { "owner: [REDACTED:email:1]" });
        assert_eq!(
            (code, notes.matches("is served as it is").count()),
            if is_known { (0, 0) } else { (1, 1) },
            "{notes}"
        );
        assert_eq!(
            notes.contains("tape.yaml:6: record 1: [REDACTED:email:1] is served as it is"),
            !is_known,
            "{name}: {notes}"
        );
    }
}
