//! A failure as a program of its own: a Python script with raw sockets on both sides of the gateway.

use std::net::SocketAddr;

use bytes::Bytes;

use super::{
    checks::{CompareBy, CompareRules, ProveCheck},
    events::ReadEvents,
    prover::CaseRun,
};
use crate::{net::wire::value_text, play::ServedEnd};

/// The script, with names between `@` in place of what is its own.
const TEMPLATE: &str = include_str!("template.py");

/// Bytes of a run of one byte from which on it is written as a product.
const LONG_RUN: usize = 64;

/// Addresses of both sides, for the script.
#[derive(Debug, Clone)]
pub struct ScriptPlaces {
    /// Host and port of the gateway.
    pub gateway: String,
    /// Whether the gateway speaks TLS.
    pub is_tls: bool,
    /// Path before those of the endpoints.
    pub prefix: String,
    /// Where the gateway has its upstream.
    pub upstream: SocketAddr,
}

/// Writes the script that plays these runs at once.
pub(super) fn script(
    name: &str,
    check: ProveCheck,
    runs: &[&CaseRun],
    rules: &CompareRules,
    places: &ScriptPlaces,
) -> String {
    let first =
        runs.iter().find_map(|run| run.failure_of(check)).map(|failed| failed.what.as_str()).unwrap_or_default();
    let title = format!("{}: {}", check.name(), first.replace(['\\', '"'], "'"));
    let how = match (check, rules.by) {
        (ProveCheck::Error, _) => "error",
        (_, CompareBy::Events) => "stream",
        (_, CompareBy::Content) => "content",
    };
    let ignored = rules.ignored.iter().map(|field| python_text(field)).collect::<Vec<_>>().join(", ");
    let streams: String = runs.iter().map(|run| stream(run)).collect();
    let own = [
        ("@TITLE@", title),
        ("@NAME@", name.to_owned()),
        ("@GATEWAY@", python_text(&places.gateway)),
        ("@TLS@", if places.is_tls { "True" } else { "False" }.to_owned()),
        ("@PREFIX@", python_text(&places.prefix)),
        ("@UPSTREAM@", python_text(&places.upstream.to_string())),
        ("@CHECK@", python_text(how)),
        ("@IGNORED@", format!("[{ignored}]")),
        ("@STREAMS@", streams.trim_end().to_owned()),
    ];
    let mut script = TEMPLATE.to_owned();
    for (place, text) in own {
        script = script.replacen(place, &text, 1);
    }
    script
}

fn stream(run: &CaseRun) -> String {
    let Some(served) = &run.served else { return String::new() };
    let chunks = run.served.iter().flat_map(|served| &served.chunks).map(|chunk| chunk.at);
    let start = chunks.clone().next();
    let mut last = start;
    let mut write_times = Vec::new();
    for chunk in served.chunks.iter().filter(|chunk| !chunk.is_joined) {
        let pause = last.map(|last| chunk.at.saturating_duration_since(last)).unwrap_or_default();
        write_times.push(pause.as_secs_f64());
        last = Some(chunk.at);
    }
    let writes: String = run
        .writes()
        .iter()
        .zip(write_times)
        .map(|(write, pause)| format!("        ({pause:.3}, {}),\n", python_bytes(write)))
        .collect();
    let truth = ReadEvents::of(&Bytes::from(served.body.concat()));
    let events: String =
        truth.events.iter().map(|event| format!("        {},\n", python_text(&value_text(&event.data)))).collect();
    let end = match served.end {
        Some(ServedEnd::Proper) => "proper",
        Some(ServedEnd::Broken) => "broken",
        Some(ServedEnd::Dropped) | None if run.case.stalls() => "stall",
        Some(ServedEnd::Dropped) | None => "proper",
    };
    let kind = if served.status == 200 { "text/event-stream" } else { "application/json" };
    format!(
        "    {{\"marker\": {}, \"path\": {}, \"status\": {}, \"type\": b\"{kind}\", \"end\": \"{end}\",\n     \"request\": {},\n     \
         \"writes\": [\n{writes}     ],\n     \"events\": [\n{events}     ]}},\n",
        python_text(&run.marker),
        python_text(run.case.endpoint.path().unwrap_or("/")),
        served.status,
        python_bytes(&run.request),
    )
}

/// Bytes as Python writes them; a long run of one byte is a product.
fn python_bytes(bytes: &[u8]) -> String {
    let mut parts = Vec::new();
    let mut literal = String::new();
    for run in bytes.chunk_by(|one, other| one == other) {
        let Some(byte) = run.first() else { continue };
        let written = match byte {
            b'"' => "\\\"".to_owned(),
            b'\\' => "\\\\".to_owned(),
            b'\n' => "\\n".to_owned(),
            b'\r' => "\\r".to_owned(),
            b' '..=b'~' => char::from(*byte).to_string(),
            byte => format!("\\x{byte:02x}"),
        };
        if run.len() < LONG_RUN {
            literal.push_str(&written.repeat(run.len()));
            continue;
        }
        if !literal.is_empty() {
            parts.push(format!("b\"{}\"", std::mem::take(&mut literal)));
        }
        parts.push(format!("b\"{written}\" * {}", run.len()));
    }
    if !literal.is_empty() || parts.is_empty() {
        parts.push(format!("b\"{literal}\""));
    }
    parts.join(" + ")
}

/// A text as Python writes it: JSON is.
fn python_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_as_python_reads_them() {
        assert_eq!(python_bytes(b"a\"\\\r\n\xc3"), r#"b"a\"\\\r\n\xc3""#);
        assert_eq!(python_bytes(&[b": ".as_slice(), &[b'x'; 100], b"\n"].concat()), r#"b": " + b"x" * 100 + b"\n""#);
        assert_eq!(python_bytes(b""), "b\"\"");
    }
}
