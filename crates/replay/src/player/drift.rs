//! Recorded requests, sent again to a live server; its answers are compared with the recorded ones as under `--mode compare`, and so are
//! the tokens of the prompt.
//!
//! Not sent, each with the reason: messages to MCP servers, hand-written records, recorded failures, requests of another upstream, those
//! with placeholders without a value, those that go on from a stored response, bytes without their type, and what is neither GET nor POST.
//!
//! See docs/decisions/0143-drift-sends-a-cassettes-requests-again.md.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

use api::is_set;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::player::{
    answer::put_back::{SuppliedSecrets, how_to_give, restore_request},
    config::RecordErrors,
    incoming::wants_usage,
    record::{
        cassette_sink::{LONGEST, record_of, whole_capture},
        compare::AnswerDifferences,
    },
    secrets,
};
use net::upstream::{FetchError, OutgoingBody, Upstream};
use recording::{
    canonical::{SharedBody, UPSTREAM_HEADER},
    cassette::{Cassette, CassetteRecord, RecordedAnswer},
    exchange::{Exchange, ExchangeRequest, ExchangeResponse, Timing},
    redaction::RedactionRules,
    trace::Outcome,
};

/// Tries of a request that the server has no room for.
const TRIES: u32 = 4;

/// Longest pause before another try.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Fields of `usage` whose sum is the size of the prompt, whatever a cache had of it.
const PROMPT: [&str; 4] = ["prompt_tokens", "input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"];

/// A server to which recorded requests are sent again.
#[derive(Debug)]
pub struct DriftCheck {
    /// The server.
    pub server: Upstream,
    /// Headers of every request, in place of recorded ones.
    pub headers: HeaderMap,
    /// The name of the upstream whose records are sent; `None` for those that name none.
    pub upstream: Option<String>,
    /// Values of placeholders.
    pub supplied: SuppliedSecrets,
    /// How long a whole answer may take.
    pub patience: Duration,
    /// Requests at a time.
    pub concurrency: usize,
}

/// What was found at a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DriftFinding {
    /// The cassette.
    pub cassette: String,
    /// The record's number in it.
    pub record: u64,
    /// Its line.
    pub line: usize,
    /// Its request in a few words.
    pub request: String,
    /// Outcome of it.
    #[serde(flatten)]
    pub verdict: DriftVerdict,
}

/// Outcome of a recorded request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum DriftVerdict {
    /// It was answered, and the answers are compared.
    Compared {
        /// Whether structure or usage is another one.
        drift: bool,
        /// Whether a text is another one.
        text: bool,
        /// The first differences, each with its kind: `structure: `, `usage: ` or `text: `.
        differences: Vec<String>,
    },
    /// There is no answer that shows the server's behaviour.
    Failed {
        /// Why.
        why: String,
    },
    /// It was not sent.
    NotSent {
        /// Why.
        why: String,
    },
}

struct SentAgain {
    method: Method,
    target: Uri,
    headers: HeaderMap,
    body: SharedBody,
    bytes: Bytes,
    had_placeholders: bool,
}

impl DriftCheck {
    /// Sends the requests of a cassette and compares; secrets of answers are found by these rules. In the order of the cassette.
    pub async fn findings(&self, cassette: &Cassette, rules: &RedactionRules) -> Vec<DriftFinding> {
        let again = &SendingAgain { check: self, rules, is_gone: AtomicBool::new(false) };
        let of_record = async |record: &CassetteRecord| DriftFinding {
            cassette: cassette.path.display().to_string(),
            record: record.id,
            line: record.line,
            request: record.summary(),
            verdict: again.verdict(cassette, record).await,
        };
        stream::iter(&cassette.records).map(of_record).buffered(self.concurrency.max(1)).collect().await
    }

    /// Why a record's request is not sent, whatever stands in it.
    fn reason_against(&self, record: &CassetteRecord) -> Option<String> {
        if let Some(call) = record.mcp_call() {
            return Some(format!(
                "a message to the MCP server {}, whose answers `play --mode compare --mcp-upstream` compares",
                call.server
            ));
        }
        if record.is_fixture {
            return Some("written by hand, without a request of its own (`match`)".to_owned());
        }
        let of = record.headers.iter().find(|(name, _)| name == UPSTREAM_HEADER).map(|(_, name)| name);
        match (of, &self.upstream) {
            (Some(name), wanted) if wanted.as_ref() != Some(name) => {
                return Some(format!(
                    "recorded from the upstream {name}: compare these with --upstream {name} --live URL"
                ));
            }
            (None, Some(wanted)) => return Some(format!("recorded from an upstream without a name, not {wanted}")),
            _ => {}
        }
        let status = record.answer.status;
        if record.aborted.is_some() || record.answer.fault.is_some() || record.answer.planned.is_some() {
            return Some("its recorded answer breaks off".to_owned());
        }
        if !RecordErrors::Lasting.includes(status) {
            return Some(format!("its recorded answer is a failure that passes (status {status})"));
        }
        if !["GET", "POST"].contains(&record.method.as_str()) {
            return Some(format!("{} may change the server", record.method));
        }
        let goes_on = record.body.get("previous_response_id").is_some_and(|id| !id.is_null());
        if goes_on || record.path.contains("/responses/") {
            return Some("it goes on from a stored response, whose id another server does not know".to_owned());
        }
        None
    }

    fn request(&self, cassette: &Cassette, record: &CassetteRecord) -> Result<SentAgain, String> {
        if let Some(why) = self.reason_against(record) {
            return Err(why);
        }
        let recorded = record.headers.iter().filter(|(name, _)| name != UPSTREAM_HEADER);
        let mut whole =
            json!({"path": record.path, "headers": recorded.collect::<Vec<_>>(), "body": record.body.value()});
        let restored = restore_request((cassette, record), &mut whole, &self.supplied);
        if let Some(placeholder) = restored.unknown.first() {
            return Err(format!("{placeholder} has no value; {}", how_to_give(cassette, record.id, placeholder)));
        }
        let wrong = |what: &str| format!("its {what} cannot be sent");
        let path = whole.get("path").and_then(Value::as_str).unwrap_or_default();
        let mut headers = HeaderMap::new();
        for (name, value) in whole.get("headers").and_then(Value::as_array).into_iter().flatten().filter_map(pair) {
            let (name, value) = (name.parse::<HeaderName>(), value.parse::<HeaderValue>());
            headers.append(name.map_err(|_| wrong("headers"))?, value.map_err(|_| wrong("headers"))?);
        }
        headers.extend(self.headers.clone());
        let target: Uri = path.parse().map_err(|_| wrong("path"))?;
        let body = whole.get_mut("body").map(Value::take).unwrap_or_default();
        let bytes = match (&record.raw, &body) {
            (Some(_), _) if !headers.contains_key(header::CONTENT_TYPE) => {
                return Err("its body is bytes, and their content type was not recorded; --header gives it".to_owned());
            }
            (Some(bytes), _) => Bytes::from(bytes.clone()),
            (None, Value::Null) => Bytes::new(),
            (None, Value::String(text)) => Bytes::from(text.clone()),
            (None, json) => {
                headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
                Bytes::from(json.to_string())
            }
        };
        Ok(SentAgain {
            method: record.method.parse().map_err(|_| wrong("method"))?,
            target,
            headers,
            body: body.into(),
            bytes,
            had_placeholders: restored.had_any,
        })
    }
}

/// Requests that are sent again.
struct SendingAgain<'c> {
    check: &'c DriftCheck,
    /// What is a secret in answers.
    rules: &'c RedactionRules,
    /// Whether the server could not be reached.
    is_gone: AtomicBool,
}

impl SendingAgain<'_> {
    async fn verdict(&self, cassette: &Cassette, record: &CassetteRecord) -> DriftVerdict {
        let request = match self.check.request(cassette, record) {
            Ok(request) => request,
            Err(why) => return DriftVerdict::NotSent { why },
        };
        if self.is_gone.load(Relaxed) {
            return DriftVerdict::Failed { why: "not sent, since the server cannot be reached".to_owned() };
        }
        match self.answer(&request).await {
            Ok(now) => {
                let AnswerDifferences { structure, text, mut lines } = AnswerDifferences::between(&record.answer, &now);
                let usage = usage_differences(&record.answer, &now, &request);
                let drift = structure || !usage.is_empty();
                lines.extend(usage);
                DriftVerdict::Compared { drift, text, differences: lines }
            }
            Err(why) => DriftVerdict::Failed { why },
        }
    }

    /// The server's answer as it would be recorded; a server without room is asked again.
    async fn answer(&self, request: &SentAgain) -> Result<RecordedAnswer, String> {
        let mut tries = 1;
        loop {
            let answer = timeout(self.check.patience, self.once(request)).await;
            let (answer, pause) = answer.map_err(|_| {
                format!("no whole answer within {:?}; --timeout gives it longer", self.check.patience)
            })??;
            match answer.status {
                429 | 503 if tries < TRIES => {
                    sleep(pause.unwrap_or(Duration::from_secs(1 << tries)).min(LONGEST_PAUSE)).await;
                    tries += 1;
                }
                401 | 403 => {
                    let status = answer.status;
                    return Err(format!("the server refuses the key (status {status}): --api-key KEY, or --header"));
                }
                status @ (408 | 425 | 429 | 500..) => return Err(format!("the server answers with status {status}")),
                _ => return Ok(answer),
            }
        }
    }

    /// One try, with the pause that the server asks for before the next one.
    async fn once(&self, request: &SentAgain) -> Result<(RecordedAnswer, Option<Duration>), String> {
        let mut sent = Request::new(OutgoingBody::whole(request.bytes.clone()));
        (*sent.method_mut(), *sent.uri_mut()) = (request.method.clone(), request.target.clone());
        *sent.headers_mut() = request.headers.clone();
        let begun = Instant::now();
        let response = self.check.server.fetch(sent, LONGEST).await.map_err(|error| match error {
            FetchError::Unanswered(error) => {
                self.is_gone.fetch_or(error.is_connect(), Relaxed);
                format!("{error}: {}", error.cause())
            }
            FetchError::Incomplete(why) => why,
        })?;
        let target = request.target.to_string();
        let capture = whole_capture(&target, &response.headers, &response.body, begun.elapsed())
            .ok_or("its answer is compressed, or too large")?;
        let mut recorded = record_of(Exchange {
            request: ExchangeRequest {
                method: request.method.to_string(),
                target,
                body: request.body.clone(),
                ..ExchangeRequest::default()
            },
            response: ExchangeResponse { status: response.status.as_u16(), capture },
            timing: Timing::default(),
            output_ids: Vec::new(),
            outcome: Outcome::Finished,
        });
        // Reports show what differs, and records hold no secrets.
        secrets::redact(self.rules, &mut recorded.record, &mut recorded.side);
        let pause = response.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok((recorded.record.answer, pause.map(Duration::from_secs)))
    }
}

fn pair(pair: &Value) -> Option<(&str, &str)> {
    Some((pair.get(0)?.as_str()?, pair.get(1)?.as_str()?))
}

/// What differs in the token counts of two answers: counts that are missing, and the prompt's. How long an answer is differs from run to
/// run, and what a cache had does too.
fn usage_differences(recorded: &RecordedAnswer, now: &RecordedAnswer, request: &SentAgain) -> Vec<String> {
    let usage = |answer: &RecordedAnswer| {
        let shown = answer.shown();
        shown.get("usage").or_else(|| shown.get("json")?.get("usage")).filter(|usage| usage.is_object()).cloned()
    };
    let (Some(recorded), now) = (usage(recorded), usage(now)) else { return Vec::new() };
    let Some(now) = now else {
        // A recorder may have asked for counts that the client did not ask for.
        let requested = !request.body.get("stream").is_some_and(is_set) || wants_usage(&request.body);
        return if requested { vec!["usage: $.usage is missing".to_owned()] } else { Vec::new() };
    };
    let counts = recorded
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, count)| count.is_number() && !PROMPT.get(2..).unwrap_or_default().contains(&name.as_str()));
    let missing = counts.filter(|(name, _)| !now.get(*name).is_some_and(Value::is_number));
    let mut lines: Vec<String> =
        missing.map(|(name, count)| format!("usage: $.usage.{name} is missing, recorded {count}")).collect();
    let prompt = |usage: &Value| -> u64 { PROMPT.iter().filter_map(|name| usage.get(name)?.as_u64()).sum() };
    let (before, after) = (prompt(&recorded), prompt(&now));
    if lines.is_empty() && before != after && !request.had_placeholders {
        lines.push(format!("usage: the prompt has {after} tokens, recorded {before}"));
    }
    lines
}
