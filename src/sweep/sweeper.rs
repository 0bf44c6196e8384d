//! Runs the cells, with clean answers between them, and the same clean answers without the gateway.

use std::{
    collections::{BTreeMap, HashMap},
    pin::pin,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, future::join_all, stream};
use tokio::task::JoinSet;

use super::{
    answers::{WrittenAnswer, requested, written},
    block::ReadResponse,
    canary::Canary,
    clean::{CleanCompare, CleanDifference, difference},
    leak::SeenTexts,
    matrix::SweepCell,
    outcome::{CellOutcome, SweepReport},
};
use crate::{
    api::Endpoint,
    net::wire::value_text,
    play::{Config, ServedResponse},
    prove::{
        BehindServer, ENDPOINTS, FirstRequest, GatewayError, GroundTruthError, ReceivedEnd, ReceivedStream,
        StreamClient, cassette_config, marker, offered, stream_record, without_templates,
    },
    recording::{
        cassette::{AnswerContent, Cassette, CassetteRecord, Moment, Sidecar, SseEvent},
        redaction::RedactionRules,
    },
    replay::{player::PlayerConfig, timing::Pacing},
};

/// Cells to each clean answer.
const CELLS_TO_CLEAN: usize = 4;

/// Plan of a sweep.
#[derive(Debug, Clone)]
pub struct SweepPlan {
    /// The text.
    pub canary: Canary,
    /// The cells.
    pub cells: Vec<SweepCell>,
    /// Name of the model at the gateway.
    pub model: String,
    /// What of clean answers has to be the same.
    pub compare: CleanCompare,
    /// Token counts have to be there, and the same.
    pub has_usage: bool,
    /// Bytes of the canary that a client may see.
    pub allowed: usize,
    /// Requests at once.
    pub concurrency: usize,
    /// Time in which the gateway has to answer a first request.
    pub wait: Duration,
}

/// A gateway between the server and the client.
#[derive(Debug)]
pub struct Sweeper {
    /// The server behind it, with the answers of [`served_answers`].
    pub behind: BehindServer,
    /// The client in front of it.
    pub client: StreamClient,
    /// A client of the server itself.
    pub direct: StreamClient,
    /// What is swept.
    pub plan: SweepPlan,
    /// Requests so far.
    pub counter: AtomicU64,
}

/// The numbers of the answers, by cells whose endpoint and form do not count.
#[derive(Debug, Default)]
struct AnswerNumbers(HashMap<SweepCell, usize>);

fn answer_key(cell: &SweepCell) -> SweepCell {
    SweepCell { endpoint: Endpoint::Chat, is_stream: true, ..*cell }
}

/// The cells that have a clean answer beside them: every fourth, and the first of each endpoint.
fn is_beside_clean(cells: &[SweepCell], place: usize) -> bool {
    let cell = cells.get(place);
    let before = place.checked_sub(1).and_then(|before| cells.get(before));
    place.is_multiple_of(CELLS_TO_CLEAN) || cell.map(|cell| cell.endpoint) != before.map(|cell| cell.endpoint)
}

impl AnswerNumbers {
    /// Numbers the answers of cells: even ones have the canary, the odd one after is the same without it.
    fn of(cells: &[SweepCell]) -> Self {
        let mut numbers = HashMap::new();
        for cell in cells {
            let next = 2 * numbers.len();
            numbers.entry(answer_key(cell)).or_insert(next);
        }
        Self(numbers)
    }

    fn number(&self, cell: &SweepCell, is_clean: bool) -> usize {
        self.0.get(&answer_key(cell)).copied().unwrap_or_default() + usize::from(is_clean)
    }
}

/// What the server behind the gateway serves: the answers of cells, on every endpoint that has their field, token by token, so long after
/// each other.
///
/// # Errors
/// When no player takes them.
pub fn served_answers(plan: &SweepPlan, pause: Duration) -> Result<Config, GroundTruthError> {
    let numbers = AnswerNumbers::of(&plan.cells);
    let mut records = BTreeMap::new();
    for (place, cell) in plan.cells.iter().enumerate() {
        for is_clean in [false, true] {
            let number = numbers.number(cell, is_clean);
            if records.contains_key(&number) || (is_clean && !is_beside_clean(&plan.cells, place)) {
                continue;
            }
            let of = |endpoint: &Endpoint| {
                let answer = written(*endpoint, cell, &plan.canary, &plan.model, is_clean)?;
                Some(record(number, endpoint.path()?, &answer, pause))
            };
            records.insert(number, ENDPOINTS.iter().filter_map(of).collect::<Vec<_>>());
        }
    }
    let mut cassette = Cassette::default();
    cassette.path = "sweep.yaml".into();
    cassette.records = records.into_values().flatten().collect();
    // The canary may be shaped as a secret, and is none.
    let secrets = RedactionRules::none();
    let player =
        PlayerConfig { cassettes: vec![cassette], pacing: Pacing::default(), secrets, ..PlayerConfig::default() };
    cassette_config(player, &plan.model)
}

fn record(number: usize, path: &str, answer: &WrittenAnswer, pause: Duration) -> CassetteRecord {
    let as_it_is = AnswerContent::Json(answer.body.clone());
    let mut record = stream_record(number, path.to_owned(), as_it_is);
    let mut due = 0.0;
    let mut moment = |event: &SseEvent| {
        due += pause.as_secs_f64() * 1e3;
        Moment(due, Some(value_text(&event.data).into_owned()), event.name.clone())
    };
    let events = answer.events.iter().map(&mut moment).collect::<Vec<_>>().into();
    record.side = Some(Sidecar { answer: record.answer.fingerprint(), ms: due, events, ..Sidecar::default() });
    record.answer.content = AnswerContent::Json(without_templates(&answer.body));
    record
}

/// Posts in a task of its own: what is made of other responses meanwhile does not count as its time.
async fn posted(client: StreamClient, path: &'static str, body: Bytes) -> ReceivedStream {
    let mut task = JoinSet::new();
    task.spawn(async move { client.post(path, body).await });
    match task.join_next().await {
        Some(Ok(received)) => received,
        failed => ReceivedStream {
            end: ReceivedEnd::Unanswered(format!("the request was given up: {failed:?}")),
            ..ReceivedStream::default()
        },
    }
}

#[derive(Debug)]
struct SweptRequest {
    received: ReceivedStream,
    served: Option<ServedResponse>,
}

/// Result of a cell of the matrix.
#[derive(Debug)]
enum Swept {
    Cell { place: usize, outcome: CellOutcome, stream: Option<ReceivedStream> },
    Clean { place: usize, through: ReceivedStream, direct: ReceivedStream, difference: CleanDifference },
}

impl Sweeper {
    /// Sweeps all cells, or as many as are done when `stop` completes.
    ///
    /// # Errors
    /// When the gateway passes nothing on.
    pub async fn sweep(&self, stop: impl Future<Output = ()>) -> Result<SweepReport, GatewayError> {
        let numbers = AnswerNumbers::of(&self.plan.cells);
        let mut stop = pin!(stop);
        let absent = tokio::select! {
            absent = self.absent(&numbers) => absent?,
            () = &mut stop => return Ok(SweepReport { is_stopped: true, ..SweepReport::default() }),
        };
        let cells = self.plan.cells.iter().enumerate().filter(|(_, cell)| !absent.contains(&cell.endpoint));
        let jobs = cells.flat_map(|(place, cell)| {
            let clean = is_beside_clean(&self.plan.cells, place).then_some((place, cell, true));
            [(place, cell, false)].into_iter().chain(clean)
        });
        let numbers = &numbers;
        let running = jobs.map(async |(place, cell, is_clean)| {
            if is_clean { self.clean(numbers, place, cell).await } else { self.cell(numbers, place, cell).await }
        });
        let mut report = SweepReport::new(self.plan.allowed, absent.clone());
        let mut running = stream::iter(running).buffer_unordered(self.plan.concurrency.max(1));
        let mut outcomes = Vec::new();
        loop {
            tokio::select! {
                swept = running.next() => match swept {
                    Some(swept) => outcomes.extend(self.add(&mut report, swept)),
                    None => break,
                },
                () = &mut stop => {
                    report.is_stopped = true;
                    break;
                }
            }
        }
        // In the order of the matrix, so that the same cells give the same report.
        outcomes.sort_by_key(|(place, _)| *place);
        outcomes.into_iter().for_each(|(_, outcome)| report.add(outcome));
        Ok(report)
    }

    /// Adds what ran, but for the outcome of a cell, which is given back.
    fn add(&self, report: &mut SweepReport, swept: Swept) -> Option<(usize, CellOutcome)> {
        match swept {
            Swept::Cell { place, outcome, stream } => {
                if let Some(stream) = &stream {
                    report.latency.with_canary.add(stream);
                }
                return Some((place, outcome));
            }
            Swept::Clean { place, through, direct, difference } => {
                let cell = self.plan.cells.get(place)?;
                let is_burst = cell.is_stream && {
                    let is_direct = report.latency.direct.add(&direct);
                    report.latency.clean.add(&through) && !is_direct
                };
                let clean = report.clean_of(cell)?;
                clean.answers += 1;
                clean.bursts += usize::from(is_burst);
                clean.same_bytes += usize::from(difference.bytes.is_none());
                clean.damaged += usize::from(difference.damage.is_some());
                if clean.first_difference.is_none() {
                    clean.first_difference = difference.bytes;
                }
                if clean.damage.is_none() {
                    clean.damage = difference.damage.map(|what| (*cell, what));
                }
            }
        }
        None
    }

    async fn cell(&self, numbers: &AnswerNumbers, place: usize, cell: &SweepCell) -> Swept {
        let SweptRequest { received, served } = self.request(&self.client, numbers, cell, false).await;
        let body = received.body();
        let (canary, read) = (&self.plan.canary, ReadResponse::of(cell.endpoint, &body));
        let outcome = CellOutcome {
            cell: *cell,
            leaked: SeenTexts::of(&body).leaked(canary, cell.form),
            of: canary.size(cell.form),
            status: received.status,
            finish: read.finish(),
            invalid: read.defect(cell.is_stream, self.plan.has_usage, &received),
            is_refused: served.is_none(),
        };
        Swept::Cell { place, outcome, stream: cell.is_stream.then_some(received) }
    }

    async fn clean(&self, numbers: &AnswerNumbers, place: usize, cell: &SweepCell) -> Swept {
        let through = self.request(&self.client, numbers, cell, true);
        let direct = self.request(&self.direct, numbers, cell, true);
        // Each is the first as often as the other, so that neither has the better place.
        let (through, direct) = if (place / CELLS_TO_CLEAN).is_multiple_of(2) {
            let through = through.await;
            (through, direct.await)
        } else {
            let direct = direct.await;
            (through.await, direct)
        };
        let (form, rules) = ((cell.endpoint, cell.is_stream), (self.plan.compare, self.plan.has_usage));
        let difference = difference(rules, form, through.served.as_ref(), &through.received);
        Swept::Clean { place, through: through.received, direct: direct.received, difference }
    }

    async fn request(
        &self,
        client: &StreamClient,
        numbers: &AnswerNumbers,
        cell: &SweepCell,
        is_clean: bool,
    ) -> SweptRequest {
        let count = self.counter.fetch_add(1, Ordering::Relaxed);
        let marker = marker(numbers.number(cell, is_clean), count);
        let body = requested(cell, &self.plan.canary, &self.plan.model, &marker, is_clean);
        let received = posted(client.clone(), cell.endpoint.path().unwrap_or("/"), body).await;
        SweptRequest { received, served: self.behind.take(&marker).pop() }
    }

    /// Waits for the gateway, and asks which endpoints it does not have.
    async fn absent(&self, numbers: &AnswerNumbers) -> Result<Vec<Endpoint>, GatewayError> {
        let firsts = ENDPOINTS.iter().filter_map(|endpoint| {
            let place = self.plan.cells.iter().position(|cell| cell.endpoint == *endpoint)?;
            self.plan.cells.get(place)
        });
        let firsts: Vec<&SweepCell> = firsts.collect();
        let ask = async || -> Result<Vec<FirstRequest>, GatewayError> {
            let runs = join_all(firsts.iter().map(|cell| self.request(&self.client, numbers, cell, true))).await;
            let first = |(cell, run): (&&SweepCell, &SweptRequest)| FirstRequest {
                endpoint: cell.endpoint,
                is_served: run.served.is_some(),
                status: run.received.status,
                what: Some(match (run.received.status, &run.received.end) {
                    (0, ReceivedEnd::Unanswered(why)) => why.clone(),
                    (0, _) => "no response in time".to_owned(),
                    (status, _) => format!("status {status}"),
                }),
            };
            Ok(firsts.iter().zip(&runs).map(first).collect())
        };
        let (_, absent) = offered((&self.client, &self.behind), self.plan.wait, "there is no cell", ask).await?;
        Ok(absent)
    }
}
