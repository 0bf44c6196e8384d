//! The catalogue: every kind of fault with its arguments, and how it is read.

use std::time::Duration;

use api::SemanticFault;
use net::server::{ConnectionEnd, SlowHead};
use serde_json::{Value, json};

use crate::{
    edits::{EventEdit, SplitPoint},
    fault::{FaultArguments, FaultSyntaxError},
    kind::{FaultKind, NamedLimits, RefusalFault, StreamFault},
    signal_rows::SIGNALS,
    stage::FaultStage,
};

/// Longest line that a fault makes, in bytes.
const LONGEST_LINE: u64 = 64 << 20;

/// Maximum number of comments, or repetitions, of a fault.
const MOST: u64 = 1_000_000;

/// Maximum number of copies of an event.
const MOST_COPIES: u64 = 1000;

/// The engine's words for a parameter out of its range.
const INVALID: &str = "temperature must be in [0, 2], got 3.5. (parameter=temperature, value=3.5)";

/// Reads the arguments of a kind.
pub(crate) type ReadKind = fn(&mut FaultArguments) -> Result<FaultKind, FaultSyntaxError>;

/// A kind of fault.
#[derive(Debug)]
pub struct CatalogueRow {
    /// Its name in a line.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// When it happens.
    pub stage: FaultStage,
    /// Whether `at` may name the place.
    pub has_place: bool,
    /// Arguments with their meanings; the first one may stand without its name.
    pub arguments: &'static [Argument],
    /// What happens.
    pub summary: &'static str,
    /// A line.
    pub example: &'static str,
    /// Reads the arguments.
    pub read: ReadKind,
}

pub(crate) type Argument = (&'static str, &'static str);

const RETRY_AFTER: Argument =
    ("retry-after", "time after which a client may come again; the headers are in whole seconds");
const MESSAGE: Argument = ("message", "another message than the engine's");
const EVENTS: Argument = ("count", "how many events; without it one");
const ERROR: &[Argument] = &[RETRY_AFTER, MESSAGE];
const WORDS: &[Argument] = &[MESSAGE];
const RATE: &[Argument] = &[
    RETRY_AFTER,
    MESSAGE,
    ("requests", "limit of requests that the headers name; 60"),
    ("tokens", "limit of tokens that the headers name; 60000"),
    ("of", "which limit is used up: requests or tokens"),
];
const ANY_ERROR: &[Argument] = &[("status", "from 400 to 599"), RETRY_AFTER, MESSAGE];
const ERROR_EVENT: &[Argument] = &[("status", "the status that the error names; 500"), MESSAGE];
const COUNT: &[Argument] = &[EVENTS];
const DUPLICATES: &[Argument] = &[("times", "how many more; 1"), EVENTS];
const NO_ARGUMENTS: &[Argument] = &[];

pub(crate) const fn before(name: &'static str, arguments: &'static [Argument], read: ReadKind) -> CatalogueRow {
    CatalogueRow {
        name,
        aliases: &[],
        stage: FaultStage::Before,
        has_place: false,
        arguments,
        summary: "",
        example: "",
        read,
    }
}

const fn body(name: &'static str, arguments: &'static [Argument], read: ReadKind) -> CatalogueRow {
    CatalogueRow { stage: FaultStage::Body, has_place: true, ..before(name, arguments, read) }
}

impl CatalogueRow {
    pub(crate) const fn documented(self, summary: &'static str, example: &'static str) -> Self {
        Self { summary, example, ..self }
    }

    const fn also(self, aliases: &'static [&'static str]) -> Self {
        Self { aliases, ..self }
    }
}

/// Kinds of faults in responses; [`rows`] has the others too.
pub const CATALOGUE: &[CatalogueRow] = &[
    before("400", ERROR, refusal)
        .also(&["context-length"])
        .documented("The prompt is too long for the served model, in the engine's words.", "400 where rate=0.1"),
    before("invalid-request", WORDS, invalid)
        .documented("A parameter is out of its range, in the engine's words.", "invalid-request where nth=2"),
    before("401", ERROR, refusal).also(&["invalid-api-key"]).documented("The key is refused.", "401 where key=secret"),
    before("404", ERROR, refusal).also(&["model-not-found"]).documented("The model does not exist.", "404 where model=m"),
    before("429", RATE, refusal)
        .also(&["rate-limit"])
        .documented(
            "Too many requests, with `retry-after` and the limits as `x-ratelimit-…`.",
            "429:retry-after=2s where first=2",
        ),
    before("500", ERROR, refusal).documented("The engine failed.", "500 where nth=3 per=session"),
    before("503", ERROR, refusal).also(&["overloaded", "server-error"]).documented("The engine is too busy.", "503 where from=10s until=20s"),
    before("error", ANY_ERROR, any_refusal).documented("Any other status.", "error:529,message=overloaded"),
    before("delay", &[("for", "how long")], |arguments| {
        Ok(FaultKind::Delay(needed(arguments.duration("for")?, "delay:2s")?))
    })
    .documented("The head comes so much later.", "delay:2s where rate=0.05"),
    before("slow-head", &[("bytes", "of a piece; 1"), ("every", "time between pieces; 10ms")], |arguments| {
        let bytes = arguments.number("bytes", LONGEST_LINE)?.unwrap_or(1);
        let every = arguments.duration("every")?.unwrap_or(Duration::from_millis(10));
        Ok(FaultKind::SlowHead(SlowHead { bytes: usize::try_from(bytes.max(1)).unwrap_or(usize::MAX), every }))
    })
    .documented(
        "The head comes in small pieces, each in a write of its own; over HTTP/2 after the time that they would take.",
        "slow-head:16,every=20ms",
    ),
    before("hang", NO_ARGUMENTS, |_| Ok(FaultKind::Hang))
        .also(&["accept-and-hang"])
        .documented("The request is read and never answered.", "hang where nth=1"),
    before("content-type", &[("type", "the value of the header")], |arguments| {
        Ok(FaultKind::ContentType(needed(arguments.text("type"), "content-type:text/html")?))
    })
    .documented("The head has another content type.", "content-type:text/html"),
    body("stall", &[("for", "how long; default forever")], |arguments| {
        Ok(FaultKind::Stream(StreamFault::Stall(arguments.duration("for")?)))
    })
    .documented("Nothing more comes for a time, or ever.", "stall:30s at token 12"),
    body("reset", NO_ARGUMENTS, |_| broken(ConnectionEnd::Reset)).documented(
        "The connection is reset; without a place before the answer. Over HTTP/2 the stream is.",
        "reset at event 3",
    ),
    body("close", NO_ARGUMENTS, |_| broken(ConnectionEnd::Close)).documented(
        "The connection is closed in the middle of the body; without a place before the answer. Over HTTP/2 the stream is reset.",
        "close at byte 100",
    ),
    body("half-close", NO_ARGUMENTS, |_| broken(ConnectionEnd::HalfClose)).documented(
        "The server ends its side of the connection, and reads on until the client ends the other. Over HTTP/2 the stream is reset.",
        "half-close at event 3",
    ),
    body("truncate", NO_ARGUMENTS, |_| Ok(FaultKind::Stream(StreamFault::Truncate)))
        .documented("The body ends properly, and what follows is missing, `[DONE]` too.", "truncate at token 20"),
    body("error-event", ERROR_EVENT, error_event).documented(
        "An error as an event, in the words of the endpoint, and the end; `at event 0` makes it the first one of a 200.",
        "error-event at event 0",
    ),
    body("keep-alive", &[("count", "how many comments"), ("every", "time between them; 1ms")], |arguments| {
        let count = needed(arguments.number("count", MOST)?, "keep-alive:1000")?;
        let every = arguments.duration("every")?.unwrap_or(Duration::from_millis(1));
        Ok(FaultKind::Stream(StreamFault::KeepAlive { count, every }))
    })
    .documented("A flood of comments, each in a write of its own.", "keep-alive:1000 at event 2"),
    body("huge-line", &[("bytes", "its length, up to 64 MiB")], |arguments| {
        let bytes = needed(arguments.number("bytes", LONGEST_LINE)?, "huge-line:1000000")?;
        Ok(FaultKind::Stream(StreamFault::HugeLine(bytes)))
    })
    .documented("A comment of one very long line.", "huge-line:1000000 at event 2"),
    body("drip", &[("bytes", "of a piece"), ("every", "time between pieces; 1ms")], |arguments| {
        let bytes = in_range(arguments.number("bytes", LONGEST_LINE)?, |bytes| *bytes > 0, "at least one byte")?;
        let bytes = needed(bytes, "drip:1")?;
        let every = arguments.duration("every")?.unwrap_or(Duration::from_millis(1));
        Ok(FaultKind::Stream(StreamFault::Drip { bytes, every }))
    })
    .documented("What follows comes in small pieces, each in a write of its own.", "drip:7,every=5ms"),
    body("jitter", &[("up-to", "the most that an event is late")], |arguments| {
        Ok(FaultKind::Stream(StreamFault::Jitter(needed(arguments.duration("up-to")?, "jitter:50ms")?)))
    })
    .documented("Each event comes up to so much later.", "jitter:50ms"),
    body("malformed", COUNT, |arguments| one_or_more(arguments, EventEdit::Malformed))
        .documented("The JSON of an event ends in its middle, or at the byte that is named.", "malformed at event 2"),
    body("split", &[("inside", "middle, utf8, tool, end or byte"), ("every", "time between the parts; 2ms")], split).documented(
        "Events come in parts: cut in the middle, inside a character, inside the arguments of a tool call, before the last line \
         feed, at every byte, or once at the byte that is named.",
        "split:utf8",
    ),
    body("split-at", &[("places", "numbers of bytes"), ("every", "time between the writes; 2ms")], split_at).documented(
        "Writes end after so many bytes of the body as it is sent, whatever else is done to it.",
        "split-at:1,7,30",
    ),
    body("merge", &[("events", "how many come in one write; 2")], |arguments| {
        let events = in_range(arguments.number("events", 10_000)?, |events| *events > 1, "a number from 2 to 10000")?;
        Ok(all(EventEdit::Merge(events.unwrap_or(2))))
    })
    .documented("Several events come in one write.", "merge:3"),
    body("duplicate", DUPLICATES, |arguments| {
        let times = in_range(arguments.number("times", MOST_COPIES)?, |times| *times > 0, "a number from 1 to 1000")?;
        let times = times.unwrap_or(1);
        one_or_more(arguments, EventEdit::Duplicate(times))
    })
    .documented("An event comes again.", "duplicate:3 at event 2"),
    body("repeat", &[("times", "how often; default forever"), ("every", "time between them; 10ms")], |arguments| {
        let times = arguments.number("times", u64::MAX)?;
        let every = arguments.duration("every")?.unwrap_or(Duration::from_millis(10));
        Ok(FaultKind::Stream(StreamFault::Repeat { times, every }))
    })
    .documented("The last event with output comes again and again.", "repeat:50 at token 4"),
    body("reorder", COUNT, |arguments| one_or_more(arguments, EventEdit::Reorder))
        .documented("An event comes after the next one.", "reorder at event 2"),
    body("crlf", NO_ARGUMENTS, |_| Ok(all(EventEdit::Crlf))).documented("Lines end in CR and LF.", "crlf"),
    body("comments", NO_ARGUMENTS, |_| Ok(all(EventEdit::Comment)))
        .documented("A comment stands before each event.", "comments"),
    body("no-space", NO_ARGUMENTS, |_| Ok(all(EventEdit::NoSpace)))
        .documented("`data:` has no space after it.", "no-space"),
    body("bom", NO_ARGUMENTS, |_| Ok(FaultKind::Stream(StreamFault::Edit { edit: EventEdit::Bom, count: Some(1) })))
        .documented("A byte order mark stands before the event.", "bom at event 0"),
    body("no-done", NO_ARGUMENTS, |_| Ok(all(EventEdit::NoDone)))
        .documented("The event that ends a stream is missing.", "no-done"),
    body("no-finish", NO_ARGUMENTS, |_| Ok(all(EventEdit::NoFinish)))
        .documented("No event says why the answer ends.", "no-finish"),
    body("usage", &[("by", "what is added to the output tokens; 1")], |arguments| {
        Ok(all(EventEdit::Usage(arguments.signed("by")?.unwrap_or(1))))
    })
    .documented("The usage is wrong.", "usage:-1"),
    reply("bad-arguments", "The arguments of a tool call are no JSON."),
    reply("schema-violation", "The arguments of a tool call break its schema."),
    reply("unknown-tool", "A tool is called that the request does not have."),
    reply("duplicate-call", "Two calls have one id."),
    reply("cut-call", "The length ends the answer inside a call."),
    reply("empty", "The answer has no content."),
    reply("refusal", "The model refuses."),
    reply("content-filter", "A filter ends the answer."),
    reply("reasoning-only", "There is reasoning and no content."),
    reply("think-tag", "Reasoning stands in the content, in its tags."),
    reply("call-in-text", "A tool call stands in the content as text."),
    reply("wrong-language", "The answer is in another language."),
    reply("repetition", "The answer repeats itself until its length ends it."),
];

const fn reply(name: &'static str, summary: &'static str) -> CatalogueRow {
    CatalogueRow { stage: FaultStage::Reply, ..before(name, NO_ARGUMENTS, read_reply) }.documented(summary, name)
}

fn read_reply(arguments: &mut FaultArguments) -> Result<FaultKind, FaultSyntaxError> {
    let name = arguments.row.name;
    let fault = SemanticFault::named(name).map(FaultKind::Reply);
    fault.ok_or_else(|| FaultSyntaxError(format!("`{name}` is no kind of fault")))
}

pub(crate) fn needed<T>(argument: Option<T>, example: &str) -> Result<T, FaultSyntaxError> {
    argument.ok_or_else(|| FaultSyntaxError(format!("an argument is missing, as in `{example}`")))
}

/// An argument that is left out or in its range, which is named where it is not.
pub(crate) fn in_range<T>(
    argument: Option<T>,
    is_in: impl FnOnce(&T) -> bool,
    range: &str,
) -> Result<Option<T>, FaultSyntaxError> {
    match argument {
        Some(given) if !is_in(&given) => Err(FaultSyntaxError(format!("{range} is needed"))),
        argument => Ok(argument),
    }
}

fn broken(end: ConnectionEnd) -> Result<FaultKind, FaultSyntaxError> {
    Ok(FaultKind::Stream(StreamFault::Break(end)))
}

fn all(edit: EventEdit) -> FaultKind {
    FaultKind::Stream(StreamFault::Edit { edit, count: None })
}

fn one_or_more(arguments: &mut FaultArguments, edit: EventEdit) -> Result<FaultKind, FaultSyntaxError> {
    let count = in_range(arguments.number("count", MOST)?, |count| *count > 0, "at least one event")?;
    Ok(FaultKind::Stream(StreamFault::Edit { edit, count: Some(count.unwrap_or(1)) }))
}

fn split(arguments: &mut FaultArguments) -> Result<FaultKind, FaultSyntaxError> {
    let point = match arguments.word("inside", &["middle", "utf8", "tool", "end", "byte"])? {
        Some("utf8") => SplitPoint::Character,
        Some("tool") => SplitPoint::ToolArguments,
        Some("end") => SplitPoint::End,
        Some("byte") => SplitPoint::EveryByte,
        _ => SplitPoint::Middle,
    };
    let every = arguments.duration("every")?.unwrap_or(Duration::from_millis(2));
    Ok(all(EventEdit::Split(point, every)))
}

fn split_at(arguments: &mut FaultArguments) -> Result<FaultKind, FaultSyntaxError> {
    let mut places = arguments.numbers("places", u64::MAX)?;
    places.sort_unstable();
    needed(places.first(), "split-at:1,7,30")?;
    let every = arguments.duration("every")?.unwrap_or(Duration::from_millis(2));
    Ok(FaultKind::Stream(StreamFault::SplitAt { places, every }))
}

fn refusal(arguments: &mut FaultArguments) -> Result<FaultKind, FaultSyntaxError> {
    let status = arguments.row.name.parse().unwrap_or(500);
    refusal_of(status, arguments)
}

fn refusal_of(status: u16, arguments: &mut FaultArguments) -> Result<FaultKind, FaultSyntaxError> {
    let retry_after = arguments.duration("retry-after")?;
    let limits = (status == 429).then(|| limits(arguments)).transpose()?;
    let message = arguments.text("message");
    Ok(FaultKind::Refusal(RefusalFault { status, message, retry_after, limits }))
}

fn limits(arguments: &mut FaultArguments) -> Result<NamedLimits, FaultSyntaxError> {
    Ok(NamedLimits {
        requests: arguments.number("requests", u64::MAX)?.unwrap_or(60),
        tokens: arguments.number("tokens", u64::MAX)?.unwrap_or(60_000),
        is_of_tokens: arguments.word("of", &["requests", "tokens"])? == Some("tokens"),
    })
}

fn invalid(arguments: &mut FaultArguments) -> Result<FaultKind, FaultSyntaxError> {
    let message = arguments.text("message").unwrap_or_else(|| INVALID.to_owned());
    Ok(FaultKind::Refusal(RefusalFault { status: 400, message: Some(message), retry_after: None, limits: None }))
}

fn any_refusal(arguments: &mut FaultArguments) -> Result<FaultKind, FaultSyntaxError> {
    let status = arguments.number("status", 599)?.and_then(|status| u16::try_from(status).ok());
    let status = in_range(status, |status| *status >= 400, "a status from 400 to 599")?;
    refusal_of(needed(status, "error:529 (from 400 to 599)")?, arguments)
}

fn error_event(arguments: &mut FaultArguments) -> Result<FaultKind, FaultSyntaxError> {
    let status = arguments.number("status", 599)?.and_then(|status| u16::try_from(status).ok()).unwrap_or(500);
    let message = arguments.text("message");
    Ok(FaultKind::Stream(StreamFault::Error(RefusalFault { status, message, retry_after: None, limits: None })))
}

/// The catalogue as JSON.
#[must_use]
pub fn catalogue() -> Value {
    let row = |row: &CatalogueRow| {
        let arguments: Vec<Value> =
            row.arguments.iter().map(|(name, meaning)| json!({"name": name, "meaning": meaning})).collect();
        json!({
            "kind": row.name, "aliases": row.aliases, "stage": row.stage.name(),
            "retryable": matches!(row.stage, FaultStage::Before | FaultStage::Metrics | FaultStage::Health),
            "has_place": row.has_place, "arguments": arguments, "summary": row.summary, "example": row.example,
        })
    };
    rows().map(row).collect()
}

/// All rows.
pub fn rows() -> impl Iterator<Item = &'static CatalogueRow> {
    CATALOGUE.iter().chain(SIGNALS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault;

    #[test]
    fn every_example_is_a_fault_of_its_row_and_names_are_unique() {
        let mut names: Vec<&str> = Vec::new();
        for row in rows() {
            let fault: Fault = row.example.parse().unwrap();
            assert_eq!(fault.row.name, row.name);
            assert!(!row.summary.is_empty());
            names.push(row.name);
            names.extend(row.aliases);
        }
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
