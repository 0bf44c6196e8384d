//! Rows of the catalogue for metrics, readiness, KV events, quotas and whole servers.

use std::time::Duration;

use crate::{
    catalogue::{Argument, CatalogueRow, ReadKind, before, in_range, needed},
    fault::{FaultArguments, FaultSyntaxError},
    kind::{FaultKind, RefusalFault},
    quota::QuotaLimits,
    signal::{EventsFault, MetricsFault, ServerFault},
    stage::FaultStage,
};

/// Oldest page of metrics.
const OLDEST: Duration = Duration::from_secs(3600);

/// Longest time that KV events wait.
const LATEST: Duration = Duration::from_secs(600);

/// Largest factor of a slow server.
const SLOWEST: f64 = 1000.0;

/// Maximum number of of anything that is counted.
const MOST: u64 = 1_000_000_000;

const COUNT: &[Argument] =
    &[("count", "how many batches from there on, of which a rate draws some; 1, or all with a rate")];
const LATE: &[Argument] = &[
    ("by", "how much later, up to 10m"),
    ("count", "how many batches from there on, of which a rate draws some; 1, or all with a rate"),
];
const QUOTA: &[Argument] = &[
    ("requests", "requests in a time"),
    ("tokens", "tokens of prompts and outputs in a time"),
    ("concurrent", "requests in progress"),
    ("per", "the time of requests and tokens; 1m"),
];
const FLAP: &[Argument] = &[("down", "how long it is not ready"), ("up", "how long it is ready in between")];

const fn of(stage: FaultStage, name: &'static str, arguments: &'static [Argument], read: ReadKind) -> CatalogueRow {
    let has_place = matches!(stage, FaultStage::Events);
    CatalogueRow { stage, has_place, ..before(name, arguments, read) }
}

/// They.
pub(crate) const SIGNALS: &[CatalogueRow] = &[
    before("quota", QUOTA, quota).documented(
        "Requests beyond a quota are refused with 429; `per=key` or `per=model` as a condition gives each its own.",
        "quota:requests=60,tokens=10000,per=1m where per=key",
    ),
    of(FaultStage::Metrics, "metrics-stale", &[("age", "how old the page is, up to 60m")], stale)
        .documented("The page is that of so long ago.", "metrics-stale:30s where from=10s"),
    of(FaultStage::Metrics, "metrics-stuck", &[], |_| Ok(FaultKind::Metrics(MetricsFault::Stuck)))
        .documented("The page stays as it was when it was asked for first.", "metrics-stuck where from=10s"),
    of(FaultStage::Metrics, "metrics-nan", &[("family", "which one; all of the engine's")], |arguments| {
        Ok(FaultKind::Metrics(MetricsFault::Nan(arguments.text("family"))))
    })
    .documented("Samples are `NaN`.", "metrics-nan:vllm:kv_cache_usage_perc"),
    of(FaultStage::Metrics, "metrics-absent", &[("family", "its name")], |arguments| {
        let family = needed(arguments.text("family"), "metrics-absent:vllm:num_requests_waiting")?;
        Ok(FaultKind::Metrics(MetricsFault::Absent(family)))
    })
    .documented("A family is missing.", "metrics-absent:vllm:num_requests_waiting"),
    of(FaultStage::Metrics, "metrics-slow", &[("for", "how long")], |arguments| {
        Ok(FaultKind::Delay(needed(arguments.duration("for")?, "metrics-slow:3s")?))
    })
    .documented("The page comes so much later.", "metrics-slow:3s where rate=0.2"),
    of(FaultStage::Metrics, "metrics-503", &[], |_| {
        Ok(FaultKind::Refusal(RefusalFault { status: 503, message: None, retry_after: None, limits: None }))
    })
    .documented("The page is refused.", "metrics-503 where nth=3"),
    of(FaultStage::Health, "not-ready", FLAP, not_ready)
        .documented("`/health` and `/ping` are 503; with `up` again and again.", "not-ready:2s,up=5s where from=10s"),
    of(FaultStage::Events, "kv-drop", COUNT, |_| Ok(FaultKind::Events(EventsFault::Drop)))
        .documented("Batches are not sent; a replay has them.", "kv-drop at event 7"),
    of(FaultStage::Events, "kv-double", COUNT, |_| Ok(FaultKind::Events(EventsFault::Double)))
        .documented("Batches are sent twice.", "kv-double:3 at event 7"),
    of(FaultStage::Events, "kv-late", LATE, |arguments| {
        let by = in_range(arguments.duration("by")?, |by| *by <= LATEST, "a time up to 10m")?;
        Ok(FaultKind::Events(EventsFault::Late(needed(by, "kv-late:2s")?)))
    })
    .documented("Batches are sent later, and those behind them after them.", "kv-late:2s at event 7"),
    of(FaultStage::Events, "kv-reorder", COUNT, |_| Ok(FaultKind::Events(EventsFault::Reorder)))
        .documented("A batch is sent after the next one.", "kv-reorder at event 7"),
    of(FaultStage::Events, "kv-reset", &[], |_| Ok(FaultKind::Events(EventsFault::Reset)))
        .documented("Sequence numbers begin at 0 again, and nothing from before is kept.", "kv-reset at event 7"),
    of(FaultStage::Events, "kv-replay-cut", &[("batches", "how many are kept")], |arguments| {
        let batches = needed(arguments.number("batches", MOST)?, "kv-replay-cut:5")?;
        Ok(FaultKind::Events(EventsFault::ReplayCut(usize::try_from(batches).unwrap_or(usize::MAX))))
    })
    .documented("A replay has the last batches only.", "kv-replay-cut:5 at event 20"),
    of(FaultStage::Events, "kv-restart", &[("for", "how long the socket is closed; 0")], |arguments| {
        let time = in_range(arguments.duration("for")?, |time| *time <= LATEST, "a time up to 10m")?;
        Ok(FaultKind::Events(EventsFault::Restart(time.unwrap_or_default())))
    })
    .documented("The publisher's socket is closed and opened again; numbers begin at 0.", "kv-restart at event 7"),
    of(FaultStage::Server, "die", &[], |_| Ok(FaultKind::Server(ServerFault::Die))).documented(
        "The server is dead: connections are cut, its port refuses; later it starts cold.",
        "die where from=30s until=60s replica=2",
    ),
    of(FaultStage::Server, "refuse", &[], |_| Ok(FaultKind::Server(ServerFault::Refuse))).documented(
        "Connections are cut, and its port refuses; engine and cache live on.",
        "refuse where from=10s until=12s",
    ),
    of(FaultStage::Server, "slower", &[("factor", "above 0 and up to 1000")], |arguments| {
        let factor = arguments.text("factor").map(|factor| factor.parse().unwrap_or_default());
        let is_in = |factor: &f64| *factor > 0.0 && *factor <= SLOWEST;
        let factor = in_range(factor, is_in, "a factor above 0 and up to 1000, as in `slower:3`,")?;
        Ok(FaultKind::Server(ServerFault::Slower(needed(factor, "slower:3")?)))
    })
    .documented("Steps of the engine take so many times as long.", "slower:3 where from=10s until=20s"),
    of(FaultStage::Server, "kv-exhausted", &[], |_| Ok(FaultKind::Server(ServerFault::KvExhausted)))
        .documented("The engine's cache has no free block.", "kv-exhausted where from=10s until=20s"),
];

fn stale(arguments: &mut FaultArguments) -> Result<FaultKind, FaultSyntaxError> {
    let is_in = |age: &Duration| !age.is_zero() && *age <= OLDEST;
    let range = "a time above 0, as in `metrics-stale:30s (up to 60m)`,";
    let age = in_range(arguments.duration("age")?, is_in, range)?;
    Ok(FaultKind::Metrics(MetricsFault::Stale(needed(age, "metrics-stale:30s (up to 60m)")?)))
}

fn not_ready(arguments: &mut FaultArguments) -> Result<FaultKind, FaultSyntaxError> {
    let down = in_range(arguments.duration("down")?, |down| !down.is_zero(), "a time above 0")?;
    match (down, arguments.duration("up")?) {
        (None, Some(_)) => needed(None, "not-ready:2s,up=5s"),
        (down, up) => Ok(FaultKind::NotReady { down: down.unwrap_or(Duration::MAX), up: up.unwrap_or_default() }),
    }
}

fn quota(arguments: &mut FaultArguments) -> Result<FaultKind, FaultSyntaxError> {
    let mut limit = |name| in_range(arguments.number(name, MOST)?, |limit| *limit > 0, "a limit of at least 1");
    let (requests, tokens, concurrent) = (limit("requests")?, limit("tokens")?, limit("concurrent")?);
    let per = in_range(arguments.duration("per")?, |per| !per.is_zero(), "a time above 0")?;
    let per = per.unwrap_or(Duration::from_secs(60));
    let is_something = requests.or(tokens).or(concurrent).is_some();
    needed(
        is_something.then_some(FaultKind::Quota(QuotaLimits { requests, tokens, concurrent, per })),
        "quota:requests=60,per=1m",
    )
}
