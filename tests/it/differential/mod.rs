//! Every recorded exchange with vLLM 0.32.0, sent to `play` and compared: status, headers, bodies and events with their
//! fields, order, nulls and values. The result is a page of the docs, which this test keeps fresh.
//!
//! `play` is started as the engine was, with the flags that it has. The output comes from a trace that is made from the
//! golden's own ids, so a record and its request meet by the index in the request id. A case differs for a reason that
//! [`reasons`] names, or for a flag or a path that `play` does not have; anything else fails.

mod compare;
mod golden;
mod page;
mod reasons;
mod script;
mod server;

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use serde_json::Value;
use tokio::time::timeout;
use vllm_vcr::text::prompt::Tokenizer;

use self::{
    golden::Golden,
    reasons::Known,
    script::{Ids, Twins},
    server::{Order, Server, VARIANTS, Variant, fits},
};
use crate::support::{
    client::{self, Answer, Request},
    tokenizers,
};

/// How a case came out.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Lookup {
    Same,
    Differs(String),
    Inapplicable(String),
}

/// A case that came out in a way that nothing explains, with what is to be done.
type Complaint = String;

/// A golden that waits for its answer, with its number in the trace where it has a record.
struct Waiting<'a> {
    name: String,
    golden: &'a Golden,
    record: Option<usize>,
}

impl Waiting<'_> {
    /// The request id by which its record is found; empty where it has none.
    fn id(&self) -> String {
        self.record.map(|record| format!("replay-{record}")).unwrap_or_default()
    }
}

const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Between requests that are in progress together.
const APART: Duration = Duration::from_millis(150);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_answer_is_the_engines_or_explained() {
    let Some(tokenizer) = tokenizers::qwen3() else { return };
    let goldens: Vec<(String, Golden)> = golden::SUITES
        .iter()
        .flat_map(|suite| {
            golden::suite(suite).into_iter().map(move |golden| (format!("{suite}/{}", golden.case), golden))
        })
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let ids = Ids::new(&tokenizer);
    let mut plans: Vec<(&'static Variant, Vec<Value>, Vec<Waiting<'_>>)> =
        VARIANTS.iter().map(|variant| (variant, Vec::new(), Vec::new())).collect();
    for (name, golden) in &goldens {
        let at = VARIANTS.iter().position(|variant| variant.cases.iter().any(|pattern| fits(pattern, name))).unwrap();
        let (_, records, waiting) = &mut plans[at];
        let made = ids.records(golden, twins(name, &goldens)).unwrap_or_default();
        let record = (!made.is_empty()).then_some(records.len());
        add_records(records, made, golden, &tokenizer);
        waiting.push(Waiting { name: name.clone(), golden, record });
    }
    let run = |(variant, records, waiting)| compare_all(variant, records, waiting, directory.path());
    let outcomes = futures_util::future::join_all(plans.into_iter().map(run)).await;
    let (mut verdicts, mut complaints) = (HashMap::new(), Vec::new());
    for (name, found) in outcomes.into_iter().flatten() {
        let (verdict, complaint) = judge(&name, found);
        complaints.extend(complaint);
        verdicts.insert(name, verdict);
    }
    assert!(complaints.is_empty(), "{} cases:\n{}", complaints.len(), complaints.join("\n"));
    let rows: Vec<(&str, &Lookup)> = goldens.iter().map(|(name, _)| (name.as_str(), &verdicts[name])).collect();
    page::check(&rows);
}

/// The recordings of the same output that may tell its ids: with ids, and as a stream.
fn twins<'a>(name: &str, goldens: &'a [(String, Golden)]) -> Twins<'a> {
    let find = |wanted: &str| goldens.iter().find(|(name, _)| name == wanted).map(|(_, golden)| golden);
    let stream = name.strip_suffix("_full").and_then(|stem| find(&format!("{stem}_stream")));
    Twins { told: find(&format!("{name}_ids")), stream }
}

/// Adds a case's records to a trace, in its order. Several prompts in one request are found by their hashes.
fn add_records(records: &mut Vec<Value>, made: Vec<Value>, golden: &Golden, tokenizer: &Tokenizer) {
    let prompts = golden.request.body["prompt"].as_array().filter(|prompts| prompts.iter().all(Value::is_string));
    let is_one = made.len() < 2;
    for (choice, mut record) in made.into_iter().enumerate() {
        record["arrival_ms"] = records.len().into();
        record["choice"] = choice.into();
        if let Some(prompts) = prompts {
            record.as_object_mut().unwrap().retain(|key, _| !["group", "choice"].contains(&key.as_str()));
            record["block_hashes"] = script::block_hashes(tokenizer, prompts[choice].as_str().unwrap()).into();
        } else if is_one {
            record.as_object_mut().unwrap().remove("group");
            record.as_object_mut().unwrap().remove("choice");
        }
        records.push(record);
    }
}

/// What was found about a case.
#[derive(Debug, Default)]
struct Found {
    /// The first difference.
    difference: Option<String>,
    /// What explains one: a flag or a path that `play` does not have.
    missing: Option<String>,
}

async fn compare_all(
    variant: &'static Variant,
    records: Vec<Value>,
    mut waiting: Vec<Waiting<'_>>,
    directory: &std::path::Path,
) -> Vec<(String, Found)> {
    waiting.sort_by_key(|case| variant.cases.iter().position(|pattern| fits(pattern, &case.name)));
    // Starting waits for a process; the other servers' requests go on meanwhile.
    let directory = directory.to_owned();
    let start = move || Server::start(variant, &records, &tokenizers::qwen3_directory(), &directory);
    let mut server = tokio::task::spawn_blocking(start).await.unwrap();
    let mut found = Vec::new();
    match variant.order {
        Order::InTurn => {
            for case in waiting {
                found.push(compare_one(&server, case).await);
                assert!(server.is_alive(), "{} ended the server", found.last().unwrap().0);
            }
        }
        Order::Together => {
            // The first request waits for what is made only once, and the others would overtake it.
            ask(server.address, waiting[0].golden, "").await;
            // Tasks of their own: to compare other servers' answers takes longer than these are apart.
            let each = (0u32..).zip(waiting).map(|(at, case)| {
                let (address, golden, id) = (server.address, case.golden.clone(), case.id());
                let asked = tokio::spawn(async move {
                    tokio::time::sleep(at * APART).await;
                    timeout(ANSWER_LIMIT, ask(address, &golden, &id)).await.ok()
                });
                (case, asked)
            });
            for (case, asked) in each.collect::<Vec<_>>() {
                let answer = asked.await.unwrap();
                found.push((case.name.clone(), look_at(&case.name, case.golden, answer.as_ref(), &case.id())));
            }
            assert!(server.is_alive(), "{:?} ended the server", variant.cases);
        }
    }
    found
}

async fn compare_one(server: &Server, case: Waiting<'_>) -> (String, Found) {
    if matches!(reasons::known(&case.name), Some(Known::Inapplicable(_))) {
        return (case.name, Found::default());
    }
    let answer = timeout(ANSWER_LIMIT, ask(server.address, case.golden, &case.id())).await.ok();
    let found = look_at(&case.name, case.golden, answer.as_ref(), &case.id());
    (case.name, found)
}

async fn ask(server: SocketAddr, golden: &Golden, id: &str) -> Answer {
    let sent = &golden.request;
    let mut headers: Vec<(&str, &str)> = sent
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .filter(|(name, _)| id.is_empty() || !name.eq_ignore_ascii_case("x-request-id"))
        .collect();
    if !id.is_empty() {
        headers.push(("X-Request-Id", id));
    }
    let request = Request { method: &sent.method, path: &sent.path, headers, body: sent.bytes() };
    client::send(server, &request).await
}

fn look_at(name: &str, golden: &Golden, answer: Option<&Answer>, id: &str) -> Found {
    let Some(answer) = answer else {
        return Found { difference: Some("no answer in time".to_owned()), missing: None };
    };
    let is_unknown = answer.status == 404 && answer.text() == r#"{"detail":"Not Found"}"# && golden.status != 404;
    let flag = server::missing_flag(name).map(|flag| format!("needs `{flag}`"));
    let path =
        is_unknown.then(|| format!("`{}` is not served", golden.request.path.split('?').next().unwrap_or_default()));
    Found { difference: compare::difference(golden, answer, id), missing: flag.or(path) }
}

/// What a case's difference means, and what is wrong about it.
fn judge(name: &str, found: Found) -> (Lookup, Option<Complaint>) {
    match (reasons::known(name), found.difference) {
        (Some(Known::Inapplicable(reason)), _) => (Lookup::Inapplicable(reason.to_owned()), None),
        (Some(Known::Differs(reason)), Some(_)) => (Lookup::Differs(reason.to_owned()), None),
        (Some(Known::Differs(reason)), None) => {
            (Lookup::Same, Some(format!("{name}: is the same now; take it out of `reasons` ({reason})")))
        }
        (None, None) => (Lookup::Same, None),
        (None, Some(difference)) => match found.missing {
            Some(missing) => (Lookup::Differs(missing), None),
            None => (Lookup::Differs(difference.clone()), Some(format!("{name}: {difference}"))),
        },
    }
}
