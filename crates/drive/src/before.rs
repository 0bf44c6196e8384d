//! What is sent before a run, through a tap of its own, so that it is no part of the figures nor of the written trace.
//!
//! - [`measure_lengths`]: two prompts for each endpoint and model that prompts of text go to; the server's counts give how many words a prompt
//!   of so many tokens has.
//! - [`prime`]: of each session that is planned what the server would have seen before its first request, with one token of output: the
//!   prompt tokens that were cached when it was recorded; where that is not known the blocks that another session begins with too; of a recorded
//!   request the conversation up to the model's last message, or the system's messages.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use base::lock::Lock;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{HeaderValue, Request};
use http_body_util::BodyExt;
use recording::trace::{Endpoint, Outcome, Record};
use serde_json::{Value, json};
use tap::{RecordHook, Tap};
use text::prompt::Tokenizer;

use crate::{
    plan::Plan,
    prompt::Place,
    run::{Drive, DriveError, setup},
    text::{Length, MEASURED, PromptTexts, body_of, endpoint_of},
    workload::{Workload, WorkloadRequest},
};

/// Requests that are on their way at once.
const AT_ONCE: usize = 16;

/// Prefix of the ids of these requests; `play` finds no record by them.
const REQUEST_ID: &str = "before-";

/// Endpoints and models that prompts of text go to, as the server has them, with a record of each.
fn destinations<'w>(drive: &Drive, workload: &'w Workload) -> BTreeMap<(Endpoint, String), &'w Record> {
    let records = workload.requests.iter().map(|request| &request.record).filter(|record| record.request.is_none());
    let model = |record: &Record| drive.prompts.model(record.model.as_deref()).unwrap_or_default().to_owned();
    records.map(|record| ((endpoint_of(record), model(record)), record)).collect()
}

/// Measures how long prompts of text are, where these are sent: by a tokenizer, else by asking the first server. Returns a line for each
/// endpoint and model.
///
/// # Errors
/// When a server does not answer, or does not count prompts; when the tokenizer has no template for chats.
pub async fn measure_lengths(
    drive: &mut Drive,
    workload: &Workload,
    tokenizer: Option<&Tokenizer>,
) -> Result<Vec<String>, DriveError> {
    let Some(mut texts) = drive.prompts.texts.clone() else { return Ok(Vec::new()) };
    texts = tokenizer.map_or(texts.clone(), |tokenizer| texts.with_words(tokenizer));
    drive.prompts.texts = Some(texts.clone());
    let mut lines = Vec::new();
    for ((endpoint, model), record) in destinations(drive, workload) {
        let length = match tokenizer {
            Some(tokenizer) => texts.length_by(tokenizer, endpoint, &model).ok_or(DriveError::NoTemplate)?,
            None => ask_length(drive, &texts, endpoint, record).await?,
        };
        let Length { fixed, per_word } = length;
        lines.push(format!(
            "{} {model}: a prompt of n words has {per_word:.3} n + {fixed:.0} tokens",
            endpoint.path().unwrap_or_default()
        ));
        texts.set_length(endpoint, &model, length);
    }
    drive.prompts.texts = Some(texts);
    Ok(lines)
}

async fn ask_length(
    drive: &Drive,
    texts: &PromptTexts,
    endpoint: Endpoint,
    record: &Record,
) -> Result<Length, DriveError> {
    let of_words = |words: u32| {
        let mut body = Value::Object(body_of(endpoint, &texts.measuring(words), 1, false));
        body.as_object_mut().into_iter().for_each(|body| {
            body.insert("model".to_owned(), json!(record.model.clone().unwrap_or_default()));
        });
        let path = ("path".to_owned(), json!(endpoint.path()));
        Record {
            request: Some(body),
            endpoint: record.endpoint,
            model: record.model.clone(),
            extra: [path].into_iter().collect(),
            ..Record::default()
        }
    };
    let requests = made(drive, MEASURED.map(|words| (0, of_words(words))).into(), 1);
    let came = send(drive, requests).await?;
    let count = |at: usize| {
        let counted = came.get(at).and_then(Option::as_ref).map_or(0, crate::check::prompt_tokens);
        Some(counted).filter(|counted| *counted > 0)
    };
    let counts = count(0).zip(count(1));
    let length = counts.and_then(|(few, many)| Length::measured([few, many]));
    length.ok_or_else(|| {
        let status = came.iter().flatten().find_map(|record| record.status).unwrap_or_default();
        DriveError::NoLength { path: endpoint.path().unwrap_or_default(), status }
    })
}

/// Sends what servers would have seen before the sessions of a plan. Returns how many requests that were, and how many of them failed.
///
/// # Errors
/// When the tap cannot be started.
pub async fn prime(drive: &Drive, workload: &Workload, plan: &Plan) -> Result<(usize, usize), DriveError> {
    let shared = shared_blocks(workload);
    let (mut prefixes, mut seen) = (Vec::new(), HashSet::new());
    for (chain, session) in plan.sessions.iter().enumerate() {
        let first = session.turns.first().and_then(|turn| workload.requests.get(turn.request));
        prefixes.extend(first.and_then(|first| Some((chain, prefix(&first.record, workload.block_size, &shared)?))));
    }
    let mut requests = made(drive, prefixes, workload.block_size);
    let targets = drive.targets.len().max(1);
    requests.retain(|(chain, request)| seen.insert((chain % targets, request.body().clone())));
    let sent = requests.len();
    let came = send(drive, requests).await?;
    let is_good = |record: &&Record| record.outcome == Some(Outcome::Finished) && !record.is_error();
    Ok((sent, sent - came.iter().flatten().filter(is_good).count()))
}

/// Blocks that requests of more than one session have.
fn shared_blocks(workload: &Workload) -> HashSet<u64> {
    let (mut owners, mut shared) = (HashMap::new(), HashSet::new());
    for request in &workload.requests {
        for block in request.record.block_hashes.iter() {
            if *owners.entry(*block).or_insert(request.session) != request.session {
                shared.insert(*block);
            }
        }
    }
    shared
}

/// What a server has seen of a request before it; `None` where that is nothing.
fn prefix(record: &Record, block_size: u32, shared: &HashSet<u64>) -> Option<Record> {
    let mut before = Record {
        output_tokens: 1,
        stream: Some(false),
        endpoint: record.endpoint,
        model: record.model.clone(),
        session: record.session.clone(),
        ..Record::default()
    };
    before.extra.extend(record.extra.get("path").map(|path| ("path".to_owned(), path.clone())));
    if let Some(request) = &record.request {
        before.request = Some(request_before(request, record.cached_tokens)?);
        return Some(before);
    }
    let blocks = match record.cached_tokens {
        Some(cached) => usize::try_from(cached / block_size.max(1)).unwrap_or(usize::MAX),
        None => record.block_hashes.iter().take_while(|block| shared.contains(block)).count(),
    };
    let hashes: Vec<u64> = record.block_hashes.iter().take(blocks).copied().collect();
    before.prompt_tokens = u32::try_from(hashes.len()).ok()?.checked_mul(block_size).filter(|tokens| *tokens > 0)?;
    before.block_hashes = hashes.into();
    Some(before)
}

/// Fields of a request that concern its output.
const OF_OUTPUT: [&str; 8] = [
    "stream_options",
    "min_tokens",
    "n",
    "max_completion_tokens",
    "max_tokens",
    "max_output_tokens",
    "tool_choice",
    "previous_response_id",
];

/// A recorded request without what is new in it, for one token of output.
fn request_before(request: &Value, cached: Option<u32>) -> Option<Value> {
    let mut before = request.as_object()?.clone();
    let is_of = |item: &Value, roles: &[&str]| {
        item.get("role").and_then(Value::as_str).is_some_and(|role| roles.contains(&role))
    };
    let limit = if before.contains_key("input") { "max_output_tokens" } else { "max_tokens" };
    for name in ["messages", "input", "prompt", "token_ids"] {
        let Some(Value::Array(items)) = before.get_mut(name) else { continue };
        let own = items.iter().rposition(|item| is_of(item, &["assistant"]));
        let system = items.iter().take_while(|item| is_of(item, &["system", "developer"])).count();
        let is_ids = items.first().is_some_and(Value::is_number);
        let cached = cached.and_then(|cached| usize::try_from(cached).ok()).filter(|_| is_ids);
        let keeps = cached.or(own.map(|own| own + 1)).unwrap_or(system);
        items.truncate(keeps);
        if items.is_empty() {
            return None;
        }
        OF_OUTPUT.iter().for_each(|name| drop(before.shift_remove(*name)));
        before.insert("stream".to_owned(), json!(false));
        match before.get_mut("sampling_params").and_then(Value::as_object_mut) {
            Some(params) => drop(params.insert("max_tokens".to_owned(), json!(1))),
            None => drop(before.insert(limit.to_owned(), json!(1))),
        }
        return Some(Value::Object(before));
    }
    None
}

/// Makes the requests of records, each with its session's place in the plan.
fn made(drive: &Drive, records: Vec<(usize, Record)>, block_size: u32) -> Vec<(usize, Request<Bytes>)> {
    let chains: Vec<usize> = records.iter().map(|(chain, _)| *chain).collect();
    let request =
        |(number, (session, record))| WorkloadRequest { record, number, at: std::time::Duration::ZERO, session };
    let requests = records.into_iter().enumerate().map(request).collect();
    let workload = Workload { requests, block_size, ..Workload::default() };
    let request = |(index, chain)| (chain, drive.prompts.request_in(Place { index, chain, turn: 0 }, &workload, None));
    chains.into_iter().enumerate().map(request).collect()
}

/// Sends requests to the servers of their sessions, some at once, and returns the record of each.
async fn send(drive: &Drive, requests: Vec<(usize, Request<Bytes>)>) -> Result<Vec<Option<Record>>, DriveError> {
    let came = Arc::new(Lock::new(vec![None; requests.len()]));
    let seen = Arc::clone(&came);
    let hook = RecordHook(Arc::new(move |record: &mut Record| {
        let id = record.request_id.as_deref().and_then(|id| id.strip_prefix(REQUEST_ID)?.parse::<usize>().ok());
        let mut seen = seen.lock();
        if let Some(place) = id.and_then(|id| seen.get_mut(id)) {
            place.get_or_insert_with(|| record.clone());
        }
    }));
    let tap = Tap::start(setup(drive, 1, hook, None)?).await?;
    let (client, targets) = (tap.client(), drive.targets.len().max(1));
    let sending = requests.into_iter().enumerate().map(|(index, (chain, mut request))| {
        if let Ok(id) = HeaderValue::try_from(format!("{REQUEST_ID}{index}")) {
            request.headers_mut().insert("x-request-id", id);
        }
        let client = &client;
        async move {
            let mut body = client.send(chain % targets, request).await.into_body();
            while let Some(Ok(_)) = body.frame().await {}
        }
    });
    stream::iter(sending).buffer_unordered(AT_ONCE).for_each(|()| async {}).await;
    tap.finish().await?;
    let came = std::mem::take(&mut *came.lock());
    Ok(came)
}
