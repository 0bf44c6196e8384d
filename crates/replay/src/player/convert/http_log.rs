//! Records from what recorders of HTTP wrote.
//!
//! Two formats: the YAML of vcrpy and its pytest plugins (`interactions` with `request` and `response`, bytes as `!!binary`), and HAR, the
//! archive that browsers and proxies export (`log.entries`). Responses pass through the copy that a recording makes of them, so that the
//! cassette is the one that a recording would have written, but for its times.
//!
//! CORS preflights of browsers are left out: no record answers them, `play` does.
//!
//! Limits: bodies that were packed with something else than gzip are refused, and entries without a response. Of a stream only the time
//! of the whole is known.

use std::time::Duration;

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use serde_json::Value;

use net::{upstream::without_secrets, wire::value_text};

use super::placed;
use crate::player::{
    receive::body::ReadBody,
    record::cassette_sink::{LONGEST, record_of, whole_capture},
};
use recording::{
    cassette::RecordedExchange,
    exchange::{Exchange, ExchangeRequest, ExchangeResponse, Timing},
    trace::{self, Outcome},
    yaml::{self, YamlNode},
};

/// What such a file holds.
#[derive(Debug, Default)]
pub struct HttpLog {
    /// In the order of the file.
    pub exchanges: Vec<RecordedExchange>,
    /// CORS preflights that are left out.
    pub preflights: u64,
    /// Entries of which no record can be made, each with its place and why.
    pub refused: Vec<String>,
}

/// Returns whether a text, of which this is the beginning, is in a format that [`http_log`] reads.
#[must_use]
pub fn is_http_log(head: &str) -> bool {
    let head = head.trim_start_matches('\u{feff}').trim_start();
    let first_key = head.strip_prefix('{').map(|keys| match keys.trim_start() {
        // The JSON of vcrpy begins with its version.
        keys if keys.starts_with("\"version\"") => keys.split_once(',').map_or("", |(_, rest)| rest.trim_start()),
        keys => keys,
    });
    first_key.is_some_and(|key| key.starts_with("\"log\"") || key.starts_with("\"interactions\""))
        || head.lines().any(|line| line.starts_with("interactions:"))
}

/// Reads a file of either format.
///
/// # Errors
/// When it is neither, with the line.
pub fn http_log(text: &str) -> Result<HttpLog, String> {
    // JSON is YAML, whose reader names lines.
    let file = yaml::parse(text).map_err(|error| error.to_string())?;
    let har = file.get("log");
    let entries = har.map_or_else(|| file.get("interactions"), |log| log.get("entries")).and_then(YamlNode::items);
    let entries = entries.ok_or("line 1: neither `interactions` (vcrpy) nor `log.entries` (HAR) is a list")?;
    let read = if har.is_some() { har_entry } else { interaction };
    let mut log = HttpLog::default();
    for (place, entry) in placed(entries) {
        let is_preflight = |logged: &LoggedExchange| logged.method.eq_ignore_ascii_case("OPTIONS");
        match read(entry).map(|logged| (!is_preflight(&logged)).then(|| logged.recorded())) {
            Ok(None) => log.preflights += 1,
            Ok(Some(Ok(exchange))) => log.exchanges.push(exchange),
            Ok(Some(Err(why))) | Err(why) => log.refused.push(format!("{place}: {why}")),
        }
    }
    Ok(log)
}

/// An exchange as such a file has it.
#[derive(Debug, Default)]
struct LoggedExchange {
    method: String,
    url: String,
    request_headers: HeaderMap,
    request_body: Vec<u8>,
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
    took: Duration,
    started: Option<String>,
}

/// An interaction of vcrpy. Of httpx, versions before 6 wrote `status_code` and `content` in place of `status` and `body`.
fn interaction(node: &YamlNode) -> Result<LoggedExchange, String> {
    let (request, response) = (field(node, "request")?, field(node, "response")?);
    let headers = |node: &YamlNode| -> HeaderMap {
        let each = |(name, node): (&str, &YamlNode)| match node.items() {
            Some(values) => values.iter().filter_map(|value| header(name, value.text()?)).collect::<Vec<_>>(),
            None => node.text().and_then(|value| header(name, value)).into_iter().collect(),
        };
        let entries = node.get("headers").and_then(YamlNode::entries).unwrap_or_default();
        entries.iter().flat_map(|entry| each((&entry.key, &entry.value))).collect()
    };
    let (status, answer) = match response.get("status_code") {
        Some(_) => (number(response, "status_code")?, "content"),
        None => (number(field(response, "status")?, "code")?, "body"),
    };
    Ok(LoggedExchange {
        method: text(request, "method")?,
        url: text(request, "uri")?,
        request_headers: headers(request),
        request_body: request.get("body").map_or(Ok(Vec::new()), body)?,
        status,
        headers: headers(response),
        body: response.get(answer).map_or(Ok(Vec::new()), body)?,
        ..LoggedExchange::default()
    })
}

/// A body of vcrpy: a text, bytes, or one of them under `string` or `base64_string`.
fn body(node: &YamlNode) -> Result<Vec<u8>, String> {
    if let Some(inner) = node.get("string") {
        return body(inner);
    }
    if let Some(digits) = node.get("base64").or_else(|| node.get("base64_string")).and_then(YamlNode::text) {
        return from_base64(digits);
    }
    match node.value() {
        Value::Null => Ok(Vec::new()),
        value => Ok(value_text(&value).into_owned().into_bytes()),
    }
}

fn har_entry(node: &YamlNode) -> Result<LoggedExchange, String> {
    let (request, response) = (field(node, "request")?, field(node, "response")?);
    let headers = |node: &YamlNode| -> HeaderMap {
        let entries = node.get("headers").and_then(YamlNode::items).unwrap_or_default();
        let each = |node: &YamlNode| header(node.get("name")?.text()?, node.get("value")?.text()?);
        entries.iter().filter_map(each).collect()
    };
    let content = |node: Option<&YamlNode>| -> Result<Vec<u8>, String> {
        let Some(node) = node else { return Ok(Vec::new()) };
        let text = node.get("text").and_then(YamlNode::text).unwrap_or_default();
        match node.get("encoding").and_then(YamlNode::text) {
            Some("base64") => from_base64(text),
            _ => Ok(text.as_bytes().to_vec()),
        }
    };
    let (url, answer) = (text(request, "url")?, response.get("content"));
    let size = answer.and_then(|content| content.get("size")?.number()).unwrap_or_default();
    if size > 0 && answer.and_then(|content| content.get("text")?.text()).is_none() {
        let shown = without_secrets(&url);
        return Err(format!("the {size} bytes of the response of {shown} were not saved: export the HAR with content"));
    }
    let mut response_headers = headers(response);
    // The text of a HAR is unpacked already.
    response_headers.remove(header::CONTENT_ENCODING);
    let took = node.get("time").map(YamlNode::value).and_then(|value| value.as_f64()).unwrap_or_default();
    Ok(LoggedExchange {
        method: text(request, "method")?,
        url,
        request_headers: headers(request),
        request_body: content(request.get("postData"))?,
        status: number(response, "status")?,
        headers: response_headers,
        body: content(answer)?,
        took: Duration::try_from_secs_f64(took / 1000.0).unwrap_or_default(),
        started: node.get("startedDateTime").and_then(YamlNode::text).map(str::to_owned),
    })
}

impl LoggedExchange {
    fn recorded(self) -> Result<RecordedExchange, String> {
        let target = target(&self.url)?;
        let shown = without_secrets(&target);
        if !(100..=599).contains(&self.status) {
            return Err(format!("{shown} has no response (status {})", self.status));
        }
        let encoding = self.headers.get(header::CONTENT_ENCODING).and_then(|value| value.to_str().ok());
        // Recorders may unpack a body and leave its header as it was.
        let is_text = std::str::from_utf8(&self.body).is_ok();
        let body = match encoding.filter(|encoding| !encoding.is_empty() && *encoding != "identity" && !is_text) {
            None => self.body,
            Some("gzip" | "x-gzip") => trace::gunzip_within(&self.body, LONGEST)
                .ok_or_else(|| format!("the response of {shown} is damaged gzip, or too large"))?,
            Some(other) => {
                return Err(format!(
                    "the response of {shown} is packed with {other}, which is not read here: record it with vcrpy's decode_compressed_response=True"
                ));
            }
        };
        let capture = whole_capture(&target, &self.headers, &Bytes::from(body), self.took)
            .ok_or_else(|| format!("the response of {shown} is too large"))?;
        let ReadBody { value, raw } = ReadBody::read(&self.request_headers, &self.request_body, LONGEST);
        Ok(record_of(Exchange {
            request: ExchangeRequest {
                method: self.method.to_uppercase(),
                target,
                body: value.into(),
                raw,
                size: self.request_body.len(),
                ..ExchangeRequest::default()
            },
            response: ExchangeResponse { status: self.status, capture },
            timing: Timing { e2e: self.took, recorded_at: self.started },
            output_ids: Vec::new(),
            outcome: Outcome::Finished,
        }))
    }
}

/// The path that a client asks `play` for: what comes before `/v1` is a provider's.
fn target(url: &str) -> Result<String, String> {
    let after_scheme = url.split_once("://").map_or(url, |(_, rest)| rest);
    let path = after_scheme.find('/').and_then(|at| after_scheme.get(at..)).unwrap_or("/");
    let path = path.split('#').next().unwrap_or_default();
    let own = path.find("/v1/").filter(|at| !path.get(..*at).is_some_and(|before| before.contains('?')));
    let path = own.and_then(|at| path.get(at..)).unwrap_or(path);
    if path.starts_with('/') && !path.contains(char::is_whitespace) {
        Ok(path.to_owned())
    } else {
        Err(format!("`{}` is no URL", without_secrets(url)))
    }
}

fn field<'a>(node: &'a YamlNode, name: &str) -> Result<&'a YamlNode, String> {
    node.get(name).ok_or_else(|| format!("`{name}` is missing"))
}

fn text(node: &YamlNode, name: &str) -> Result<String, String> {
    let found = field(node, name)?;
    found.text().map(str::to_owned).ok_or_else(|| format!("`{name}` has to be a text"))
}

fn number(node: &YamlNode, name: &str) -> Result<u16, String> {
    let found = field(node, name)?.number().and_then(|number| u16::try_from(number).ok());
    found.ok_or_else(|| format!("`{name}` has to be a status"))
}

fn header(name: &str, value: &str) -> Option<(HeaderName, HeaderValue)> {
    Some((name.parse().ok()?, value.parse().ok()?))
}

fn from_base64(digits: &str) -> Result<Vec<u8>, String> {
    let digits: String = digits.split_whitespace().collect();
    STANDARD.decode(digits).map_err(|error| format!("its body is no base64: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VCRPY: &str = "interactions:
- request:
    body: '{\"messages\":[{\"role\":\"user\",\"content\":\"Hello
      there\"}],\"model\":\"m\"}'
    headers:
      Content-Type: [application/json]
      authorization: [Bearer sk-x]
    method: post
    uri: https://openrouter.ai/api/v1/chat/completions?a=b
  response:
    body:
      string: !!binary |
        eyJvYmplY3QiOiJjaGF0LmNvbXBsZXRpb24iLCJjaG9pY2VzIjpbXX0=
    headers: {Content-Type: [application/json]}
    status: {code: 200, message: OK}
- request: {body: null, headers: {}, method: GET, uri: 'http://h/v1/models'}
  response:
    body: {string: packed}
    headers: {content-encoding: [br]}
    status: {code: 0, message: ''}
version: 1
";

    #[test]
    fn interactions_of_vcrpy_are_records() {
        assert!(is_http_log(VCRPY) && is_http_log("{ \"log\": {}}") && !is_http_log("vcr: 1\nrecords:\n- a: 1\n"));
        let HttpLog { exchanges, refused, .. } = http_log(VCRPY).unwrap();
        let [exchange] = &*exchanges else { panic!("{exchanges:?}") };
        let record = &exchange.record;
        assert_eq!((record.method.as_str(), record.path.as_str()), ("POST", "/v1/chat/completions?a=b"));
        assert_eq!(record.body.value()["messages"][0]["content"], "Hello there");
        assert!(record.headers.is_empty(), "{:?}", record.headers);
        assert_eq!(refused, ["line 16: /v1/models has no response (status 0)"]);
    }

    #[test]
    fn what_vcrpy_wrote_of_httpx_before_its_sixth_version_is_read() {
        let of = |content: &str| {
            let file = format!(
                "interactions:\n- request: {{body: '', headers: {{}}, method: GET, uri: 'http://h/v1/models'}}\n  response:\n    content: {content}\n    headers: {{content-type: [application/json], content-encoding: [gzip]}}\n    http_version: HTTP/1.1\n    status_code: 200\nversion: 1\n"
            );
            http_log(&file).unwrap()
        };
        for content in ["'{\"data\":[]}'", "!!binary eyJkYXRhIjpbXX0=", "{base64_string: eyJkYXRhIjpbXX0=}"] {
            let HttpLog { exchanges, refused, .. } = of(content);
            assert_eq!((exchanges.len(), refused), (1, Vec::new()), "{content}");
            let answer = format!("{:?}", exchanges[0].record.answer);
            assert!(exchanges[0].record.answer.status == 200 && answer.contains("data"), "{content}: {answer}");
        }
        assert_eq!((of("null").exchanges.len(), of("null").refused), (1, Vec::new()));
    }

    #[test]
    fn bodies_that_are_null_are_empty() {
        for body in ["null", "{string: null}", "''"] {
            let file = format!(
                "interactions:\n- request: {{body: null, headers: null, method: DELETE, uri: 'http://h/v1/files/f'}}\n  response: {{body: {body}, headers: {{}}, status: {{code: 204, message: x}}}}\n"
            );
            let HttpLog { exchanges, refused, .. } = http_log(&file).unwrap();
            assert_eq!((exchanges.len(), refused), (1, Vec::new()), "{body}");
        }
        let har = r#"{"log": {"entries": [{"request": {"method": "GET", "url": "http://h/v1/models", "headers": [], "postData": null},
            "response": {"status": 204, "headers": [], "content": null}}]}}"#;
        assert_eq!(http_log(har).unwrap().exchanges.len(), 1);
    }

    #[test]
    fn preflights_are_counted_and_entries_of_one_line_are_numbered() {
        let entry = |method: &str, status: u16| {
            serde_json::json!({"request": {"method": method, "url": "http://h/v1/models", "headers": []},
                "response": {"status": status, "headers": [], "content": {"size": 0}}})
        };
        let har = serde_json::json!({"log": {"entries": [entry("OPTIONS", 204), entry("GET", 200), entry("GET", 0), entry("options", 0)]}});
        let HttpLog { exchanges, preflights, refused } = http_log(&har.to_string()).unwrap();
        assert_eq!((exchanges.len(), preflights), (1, 2));
        assert_eq!(refused, ["line 1, entry 3: /v1/models has no response (status 0)"]);
    }

    #[test]
    fn streams_of_a_har_are_events() {
        let events = "data: {\"object\":\"chat.completion.chunk\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
        let har = serde_json::json!({"log": {"version": "1.2", "entries": [{
            "startedDateTime": "2026-01-02T03:04:05.678Z", "time": 1500.5,
            "request": {"method": "POST", "url": "http://h:8/v1/chat/completions", "headers": [],
                        "postData": {"mimeType": "application/json", "text": "{\"stream\":true}"}},
            "response": {"status": 200, "headers": [{"name": "Content-Type", "value": "text/event-stream"}, {"name": "content-encoding", "value": "br"}],
                         "content": {"mimeType": "text/event-stream", "encoding": "base64", "text": STANDARD.encode(events)}}}]}});
        let log = http_log(&har.to_string()).unwrap();
        assert_eq!(log.refused, Vec::<String>::new());
        let side = &log.exchanges[0].side;
        assert_eq!((side.events.len(), side.ms), (2, 1500.5));
        assert_eq!(side.recorded_at.as_deref(), Some("2026-01-02T03:04:05.678Z"));
    }

    #[test]
    fn the_json_of_vcrpy_is_read() {
        let file = "{\n    \"version\": 1,\n    \"interactions\": [\n        {\n            \"request\": {\n                \"method\": \"POST\",\n                \"uri\": \"http://h/v1/chat/completions\",\n                \"body\": \"{\\\"model\\\": \\\"\\ud83d\\ude00\\\"}\",\n                \"headers\": {\n                    \"Accept\": [\n                        \"*/*\"\n                    ]\n                }\n            },\n            \"response\": {\n                \"status\": {\n                    \"code\": 200,\n                    \"message\": \"OK\"\n                },\n                \"headers\": {\n                    \"Content-Type\": [\n                        \"application/json\"\n                    ]\n                },\n                \"body\": {\n                    \"string\": \"{}\"\n                }\n            }\n        }\n    ]\n}\n";
        assert!(is_http_log(file) && !is_http_log("{\"version\": 1, \"other\": 2, \"interactions\": []}"));
        let HttpLog { exchanges, refused, .. } = http_log(file).unwrap();
        assert_eq!((exchanges.len(), refused), (1, Vec::new()));
        assert_eq!(exchanges[0].record.body.value()["model"], "\u{1f600}");
    }

    #[test]
    fn refusals_have_no_secrets_of_the_url() {
        let one = |uri: &str, status: u16| {
            let entry = serde_json::json!({"interactions": [{"request": {"method": "GET", "uri": uri, "headers": {}}, "response": {"status": {"code": status}}}]});
            http_log(&entry.to_string()).unwrap().refused.remove(0)
        };
        assert_eq!(
            one("http://u:pw@h/v1/models?key=sk-1", 0),
            "line 1: /v1/models?\u{2026} has no response (status 0)"
        );
        assert_eq!(one("http://u:pw@h/a b?key=sk-1", 200), "line 1: `http://\u{2026}@h/a b?\u{2026}` is no URL");
    }

    #[test]
    fn a_har_without_its_contents_is_refused() {
        let one = |content: Value| {
            let har = serde_json::json!({"log": {"entries": [{"request": {"method": "GET", "url": "http://h/v1/models?key=sk-1"},
                "response": {"status": 200, "content": content}}]}});
            http_log(&har.to_string()).unwrap().refused
        };
        let refused = one(serde_json::json!({"size": 345, "mimeType": "application/json"}));
        assert!(refused[0].contains("345 bytes") && !refused[0].contains("sk-1"), "{refused:?}");
        assert_eq!(one(serde_json::json!({"size": 0})), Vec::<String>::new());
    }

    #[test]
    fn what_is_wrong_is_named() {
        assert!(http_log("a: [").unwrap_err().starts_with("line "));
        assert!(http_log("a: 1").unwrap_err().contains("neither"));
        let log = http_log("interactions:\n- request: {method: GET}\n  response: {}\n- 7\n").unwrap();
        assert_eq!(log.refused, ["line 2: `status` is missing", "line 4: `request` is missing"]);
        let packed = "interactions:\n- request: {method: GET, uri: 'http://h/v1/models'}\n  response: {status: {code: 200}, headers: {content-encoding: [br]}, body: {string: !!binary '//4='}}\n";
        assert!(http_log(packed).unwrap().refused[0].contains("packed with br"));
    }
}
