//! `play`: the greeting at its start.

use std::{fmt::Write, net::SocketAddr};

use crate::{
    base::one_line::counted,
    cli::{escape, output::quoted},
    play::{ExampleRequest, Serving},
};

/// Formats the server's address and its source.
pub(in crate::cli) fn brief(scheme: &str, address: SocketAddr, serving: &Serving) -> String {
    let mut text = format!("play on {scheme}://{address}\n");
    let models = serving.models.join(", ");
    let _ = match (&serving.trace, serving.cassettes) {
        (None, Some(0)) if !serving.mcp.is_empty() => Ok(()),
        (None, Some(0)) if serving.rules > 0 => {
            writeln!(text, "serving {} as {models}", counted(serving.rules, "rule"))
        }
        (None, Some(records)) => writeln!(text, "serving {} of cassettes as {models}", counted(records, "record")),
        (Some(trace), _) => writeln!(text, "serving {trace} ({}) as {models}", count(serving)),
        (None, None) => writeln!(text, "serving synthetic tokens as {models}"),
    };
    for (server, records) in &serving.mcp {
        let _ = writeln!(text, "serving {} of the MCP server {server} at /mcp/{server}", counted(*records, "record"));
    }
    text
}

/// Formats the server's address, its source, and a request to try.
pub(in crate::cli) fn greeting(scheme: &str, address: SocketAddr, serving: &Serving) -> String {
    let mut text = brief(scheme, address, serving);
    let _ = writeln!(text, "tokenizer {}; Ctrl-C ends it", serving.tokenizer);
    match &serving.example {
        Some(example) => text.push_str(&trial(&format!("{scheme}://{}", reachable(address)), example)),
        None => text.push_str("\nno recorded request can be shown as an example: send a prompt that was recorded\n"),
    }
    text
}

/// Formats the number of served records, and of all records if it is larger.
fn count(serving: &Serving) -> String {
    let Serving { records, all_records, .. } = serving;
    if records == all_records { counted(*records, "record") } else { format!("{records} of {all_records} records") }
}

fn trial(root: &str, example: &ExampleRequest) -> String {
    let id = example
        .request_id
        .as_ref()
        .map(|id| format!(" -H {}", quoted(&format!("x-request-id: {id}"))))
        .unwrap_or_default();
    let body = quoted(&escape::json(&example.body.to_string()));
    format!("\ntry:\n  curl -N {root}{}{id} -H 'content-type: application/json' -d {body}\n", example.path)
}

/// An address that a client on this machine can use.
pub(in crate::cli) fn reachable(address: SocketAddr) -> String {
    if address.ip().is_unspecified() { format!("localhost:{}", address.port()) } else { address.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_greeting_names_a_reachable_address() {
        let serving = Serving {
            trace: Some("day.jsonl".to_owned()),
            records: 3,
            all_records: 3,
            models: vec!["m".to_owned()],
            tokenizer: "t".to_owned(),
            cassettes: None,
            rules: 0,
            mcp: Vec::new(),
            example: Some(ExampleRequest {
                path: "/v1/completions".to_owned(),
                request_id: Some("replay-3".to_owned()),
                body: serde_json::json!({"prompt": "it's"}),
            }),
        };
        let text = greeting("http", "0.0.0.0:8123".parse().unwrap(), &serving);
        assert!(text.contains("serving day.jsonl (3 records) as m"), "{text}");
        let command = "curl -N http://localhost:8123/v1/completions -H 'x-request-id: replay-3' -H \
                       'content-type: application/json' -d '{\"prompt\":\"it'\\''s\"}'";
        assert!(text.contains(command), "{text}");
        let hostile = ExampleRequest {
            path: "/v1/completions".to_owned(),
            request_id: Some("a'; b".to_owned()),
            body: serde_json::json!({"prompt": "\u{202e}\u{9b}2J"}),
        };
        let text = trial("http://h", &hostile);
        assert!(text.contains(r"-H 'x-request-id: a'\''; b' -H"), "{text}");
        assert!(text.contains(r#"-d '{"prompt":"\u202e\u009b2J"}'"#), "{text}");
        let serving = Serving { example: None, all_records: 4, ..serving };
        let text = greeting("http", "0.0.0.0:8123".parse().unwrap(), &serving);
        assert!(text.contains("serving day.jsonl (3 of 4 records) as m"), "{text}");
        assert!(text.contains("send a prompt that was recorded"), "{text}");
    }
}
