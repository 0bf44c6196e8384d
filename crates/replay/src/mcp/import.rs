//! Records from the logs of other tools.
//!
//! Two formats: the JSON lines of mcp-cassette, versions 1 and 2 (a header with `cassetteVersion`, then entries with `t`, `dir` and
//! `frame`, or `chunks` of them), and the history that MCP Inspector exports (a list of entries with `timestamp`, `direction` and
//! `message`, and the `response`). Messages are put together as those of a connection over stdio.
//!
//! Limits: what is no message (`raw`) and entries of unknown types are left out and counted.

use serde::Deserialize;
use serde_json::value::RawValue;
use time::{Duration, OffsetDateTime, format_description::well_known::Rfc3339};

use super::message::method_of;
use super::observer::{MessageOrigin, Observer, Sender, Unrecorded};
use recording::cassette::RecordedExchange;

/// Methods of requests that servers send.
const OF_SERVERS: [&str; 3] = ["sampling/createMessage", "elicitation/create", "roots/list"];

/// Methods of notifications that clients send.
const OF_CLIENTS: [&str; 2] = ["notifications/initialized", "notifications/roots/list_changed"];

/// Content of a log.
#[derive(Debug)]
pub struct Imported {
    /// In the order of the client's messages.
    pub exchanges: Vec<RecordedExchange>,
    /// Entries that hold no message.
    pub left_out: u64,
    /// Messages that could not be put together.
    pub unrecorded: Unrecorded,
}

/// Reason for which a log cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct ImportError {
    /// The line, from 1.
    pub line: usize,
    /// The field, and what is wrong with it.
    pub why: String,
}

struct LoggedMessage<'a> {
    at: f64,
    sender: Sender,
    message: &'a str,
}

/// Returns whether a text is the log of an MCP connection in a format that [`import`] reads.
#[must_use]
pub fn is_log(text: &str) -> bool {
    let first = text.trim_start_matches('\u{feff}').trim_start();
    first.starts_with('[') || first.lines().next().is_some_and(|line| header(line).is_ok_and(|it| it.is_some()))
}

/// Reads a log of a connection to this server.
///
/// # Errors
/// When a line or a field of it is not as it has to be.
pub fn import(text: &str, server: &str) -> Result<Imported, ImportError> {
    let text = text.trim_start_matches('\u{feff}');
    let mut log = if text.trim_start().starts_with('[') { history(text)? } else { frames(text)? };
    log.messages.sort_by(|one, other| one.at.total_cmp(&other.at));
    let mut observer = Observer::new(server, log.began);
    for LoggedMessage { at, sender, message } in &log.messages {
        observer.line(MessageOrigin { sender: *sender, http_exchange: None, at: *at }, message.as_bytes());
    }
    let mut made = observer.take();
    made.extend(observer.finish(Sender::Client));
    let exchanges = made.into_iter().map(|made| made.exchange).collect();
    Ok(Imported { exchanges, left_out: log.left_out, unrecorded: observer.unrecorded() })
}

struct McpLog<'a> {
    began: OffsetDateTime,
    messages: Vec<LoggedMessage<'a>>,
    left_out: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LogHeader {
    cassette_version: Option<u64>,
    started_at: Option<String>,
}

/// The header of mcp-cassette; `None` where a line is another object.
fn header(line: &str) -> Result<Option<LogHeader>, serde_json::Error> {
    serde_json::from_str::<LogHeader>(line).map(|header| header.cassette_version.is_some().then_some(header))
}

#[derive(Deserialize)]
struct LogEntry<'a> {
    #[serde(rename = "type")]
    kind: Option<String>,
    t: Option<f64>,
    dir: Option<String>,
    #[serde(borrow)]
    frame: Option<&'a RawValue>,
    #[serde(borrow)]
    chunks: Option<Vec<LogChunk<'a>>>,
}

#[derive(Deserialize)]
struct LogChunk<'a> {
    t: Option<f64>,
    #[serde(borrow)]
    frame: Option<&'a RawValue>,
}

fn frames(text: &str) -> Result<McpLog<'_>, ImportError> {
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (at, first) = lines.next().ok_or_else(|| wrong(1, "the log is empty"))?;
    let header = header(first).map_err(|error| wrong(at + 1, &error.to_string()))?;
    let header = header.ok_or_else(|| wrong(at + 1, "`cassetteVersion` is missing: this is no log of mcp-cassette"))?;
    if !(1..=2).contains(&header.cassette_version.unwrap_or_default()) {
        return Err(wrong(at + 1, "`cassetteVersion` is neither 1 nor 2"));
    }
    let began = match header.started_at {
        Some(began) => moment(&began).ok_or_else(|| wrong(at + 1, "`startedAt` is no time"))?,
        None => OffsetDateTime::UNIX_EPOCH,
    };
    let mut log = McpLog { began, messages: Vec::new(), left_out: 0 };
    for (at, line) in lines {
        entry(at + 1, line, &mut log)?;
    }
    Ok(log)
}

fn entry<'a>(number: usize, line: &'a str, log: &mut McpLog<'a>) -> Result<(), ImportError> {
    let entry: LogEntry<'a> = serde_json::from_str(line).map_err(|error| wrong(number, &error.to_string()))?;
    let missing = |field: &str| wrong(number, &format!("`{field}` is missing"));
    let kind = entry.kind.ok_or_else(|| missing("type"))?;
    if !["frame", "chunks"].contains(&&*kind) {
        log.left_out += 1;
        return Ok(());
    }
    let sender = match entry.dir.as_deref() {
        Some("c2s") => Sender::Client,
        Some("s2c") => Sender::Server,
        Some(_) => return Err(wrong(number, "`dir` is neither c2s nor s2c")),
        None => return Err(missing("dir")),
    };
    let mut add = |at: Option<f64>, frame: Option<&'a RawValue>| {
        let at = at.or(entry.t).filter(|at| at.is_finite()).ok_or_else(|| missing("t"))?;
        let message = frame.ok_or_else(|| missing("frame"))?.get();
        log.messages.push(LoggedMessage { at, sender, message });
        Ok(())
    };
    if kind == "frame" {
        return add(entry.t, entry.frame);
    }
    entry.chunks.ok_or_else(|| missing("chunks"))?.into_iter().try_for_each(|chunk| add(chunk.t, chunk.frame))
}

#[derive(Deserialize)]
struct HistoryEntry<'a> {
    timestamp: Option<String>,
    direction: Option<String>,
    origin: Option<String>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    duration: Option<f64>,
}

/// Reads the history of MCP Inspector, which may begin with its last entry.
fn history(text: &str) -> Result<McpLog<'_>, ImportError> {
    let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|error| wrong(error.line(), &error.to_string()))?;
    let mut times = Vec::new();
    for item in &items {
        times.push(of_history(line_of(text, item.get()), item.get())?);
    }
    let began = times.iter().map(|(moment, _)| *moment).min().unwrap_or(OffsetDateTime::UNIX_EPOCH);
    let messages = times.into_iter().flat_map(|(moment, messages)| {
        let from = (moment - began).as_seconds_f64() * 1e3;
        messages.into_iter().map(move |message| LoggedMessage { at: from + message.at, ..message })
    });
    Ok(McpLog { began, messages: messages.collect(), left_out: 0 })
}

/// Reads an entry: its time, and its messages with their times from that.
fn of_history(line: usize, item: &str) -> Result<(OffsetDateTime, Vec<LoggedMessage<'_>>), ImportError> {
    let entry: HistoryEntry<'_> = serde_json::from_str(item).map_err(|error| wrong(line, &error.to_string()))?;
    let missing = |field: &str| wrong(line, &format!("`{field}` is missing"));
    let timestamp = entry.timestamp.ok_or_else(|| missing("timestamp"))?;
    let moment = moment(&timestamp).ok_or_else(|| wrong(line, "`timestamp` is no time"))?;
    let message = entry.message.ok_or_else(|| missing("message"))?.get();
    let method = method_of(message.as_bytes()).unwrap_or_default();
    let is_of_client = match (entry.origin.as_deref(), entry.direction.as_deref()) {
        (Some("client"), Some("request" | "notification" | "response")) => true,
        (Some("server"), Some("request" | "notification" | "response")) | (None, Some("response")) => false,
        (None, Some("request")) => !OF_SERVERS.contains(&&*method),
        (None, Some("notification")) => OF_CLIENTS.contains(&&*method),
        (Some(_), Some("request" | "notification" | "response")) => {
            return Err(wrong(line, "`origin` is neither client nor server"));
        }
        (_, Some(_)) => return Err(wrong(line, "`direction` is none of request, response and notification")),
        (_, None) => return Err(missing("direction")),
    };
    let (sender, other) =
        if is_of_client { (Sender::Client, Sender::Server) } else { (Sender::Server, Sender::Client) };
    let mut messages = vec![LoggedMessage { at: 0.0, sender, message }];
    let after = entry.duration.filter(|ms| ms.is_finite() && *ms >= 0.0).unwrap_or_default();
    messages.extend(entry.response.map(|response| LoggedMessage { at: after, sender: other, message: response.get() }));
    Ok((moment, messages))
}

fn line_of(text: &str, part: &str) -> usize {
    let before = (part.as_ptr() as usize).saturating_sub(text.as_ptr() as usize);
    text.as_bytes().get(..before).unwrap_or_default().iter().filter(|byte| **byte == b'\n').count() + 1
}

fn moment(text: &str) -> Option<OffsetDateTime> {
    let moment = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    // Far dates cannot be written again.
    (moment + Duration::days(1)).format(&Rfc3339).is_ok().then_some(moment)
}

fn wrong(line: usize, why: &str) -> ImportError {
    ImportError { line, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::mcp::{McpEvent, McpRecord};

    fn records(text: &str) -> Vec<McpRecord> {
        assert!(is_log(text));
        let imported = import(text, "s").unwrap();
        imported.exchanges.iter().map(|it| McpRecord::read(&it.record).unwrap().unwrap()).collect()
    }

    const FRAMES: &str = r#"{"type":"header","cassetteVersion":2,"startedAt":"2026-08-15T09:00:00Z","transport":"stdio"}
{"type":"frame","t":0,"dir":"c2s","frame":{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_meta":{"progressToken":1}}}}

{"type":"raw","t":1,"dir":"s2c","data":"noise"}
{"type":"frame","t":9,"dir":"c2s","frame":{"jsonrpc":"2.0","id":2,"method":"tools/list"}}
{"type":"chunks","t":2,"dir":"s2c","id":1,"chunks":[{"t":2,"frame":{"method":"notifications/progress","params":{"progressToken":1}}},{"t":5,"frame":{"id":1,"result":{"n":123456789012345678901234}}}]}
{"type":"later","x":1}
{"type":"frame","t":12,"dir":"s2c","frame":{"id":2,"result":{"tools":[]}}}
"#;

    #[test]
    fn frames_become_records_in_the_order_of_their_times() {
        let records = records(FRAMES);
        assert_eq!(
            records.iter().map(|record| record.method.as_str()).collect::<Vec<_>>(),
            ["tools/call", "tools/list"]
        );
        assert!(matches!(records[0].events[..], [McpEvent::Notify { .. }, McpEvent::Answer(_)]));
        assert_eq!(records[0].answer().unwrap()["result"]["n"], "123456789012345678901234");
        let imported = import(FRAMES, "s").unwrap();
        assert_eq!((imported.left_out, imported.unrecorded), (2, Unrecorded::default()));
        assert_eq!(imported.exchanges[1].side.recorded_at.as_deref(), Some("2026-08-15T09:00:00.009Z"));
        assert!((imported.exchanges[1].side.ms - 3.0).abs() < 1e-9);
    }

    #[test]
    fn a_history_becomes_records() {
        let text = r#"[
  {"id":"b","timestamp":"2026-05-23T10:00:02Z","direction":"request","message":{"id":1,"method":"elicitation/create","params":{"message":"Sure?"}},"response":{"id":1,"result":{"action":"accept"}},"duration":100},
  {"id":"a","timestamp":"2026-05-23T10:00:01Z","direction":"request","message":{"id":1,"method":"tools/call","params":{"name":"a"}},"response":{"id":1,"result":{}},"duration":2000},
  {"id":"c","timestamp":"2026-05-23T10:00:09Z","direction":"notification","origin":"server","message":{"method":"notifications/tools/list_changed"}}
]"#;
        let records = records(text);
        assert_eq!(records.len(), 1);
        let [McpEvent::Ask { reply: Some(reply), .. }, McpEvent::Answer(_), McpEvent::Notify { .. }] =
            &records[0].events[..]
        else {
            panic!("{records:?}")
        };
        assert_eq!(reply["result"]["action"], "accept");
    }

    #[test]
    fn what_is_wrong_is_named_by_line_and_field() {
        let header = r#"{"type":"header","cassetteVersion":1}"#;
        for (text, line, field) in [
            ("{}".to_owned(), 1, "cassetteVersion"),
            (r#"{"cassetteVersion":7}"#.to_owned(), 1, "cassetteVersion"),
            (r#"{"cassetteVersion":1,"startedAt":"soon"}"#.to_owned(), 1, "startedAt"),
            (format!("{header}\n\n{{"), 3, "EOF"),
            (format!("{header}\n{{\"t\":1}}"), 2, "`type`"),
            (format!("{header}\n{{\"type\":\"frame\",\"t\":1}}"), 2, "`dir`"),
            (format!("{header}\n{{\"type\":\"frame\",\"dir\":\"up\"}}"), 2, "`dir`"),
            (format!("{header}\n{{\"type\":\"frame\",\"dir\":\"c2s\",\"frame\":{{}}}}"), 2, "`t`"),
            (format!("{header}\n{{\"type\":\"frame\",\"dir\":\"c2s\",\"t\":1}}"), 2, "`frame`"),
            (format!("{header}\n{{\"type\":\"chunks\",\"dir\":\"s2c\",\"t\":1}}"), 2, "`chunks`"),
            ("[\n{}]".to_owned(), 2, "`timestamp`"),
            ("[\n\n{\"timestamp\":\"x\"}]".to_owned(), 3, "`timestamp`"),
            ("[{\"timestamp\":\"2026-05-23T10:00:02Z\"}]".to_owned(), 1, "`message`"),
            ("[{\"timestamp\":\"2026-05-23T10:00:02Z\",\"message\":{}}]".to_owned(), 1, "`direction`"),
            (
                "[{\"timestamp\":\"2026-05-23T10:00:02Z\",\"message\":{},\"direction\":\"up\"}]".to_owned(),
                1,
                "`direction`",
            ),
            ("[{".to_owned(), 1, "EOF"),
        ] {
            let error = import(&text, "s").unwrap_err();
            assert!(error.line == line && error.why.contains(field), "{text}: {error}");
        }
        assert!(!is_log("{\"format\":1}\n") && !is_log("") && !is_log("vcr: 1"));
    }
}
