//! `--scrape`: the servers' metrics, beside the client's figures.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::{
    cli::hit_faults,
    drive::{
        Results, Workload,
        results::ResultsReport,
        scrape::{PageWatch, ServerReport},
        timeline::{self, ClientPoint},
    },
    engine::{
        kv_cache::KvCacheConfig,
        scheduler::SchedulerConfig,
        step_clock::{PROFILES, StepTimes},
    },
    inspect::{self, ArrivalSchedule, Balance, RouterPolicy, Simulation},
    net::upstream::{UpstreamOptions, UpstreamUrl},
};

/// Servers and client during a run.
#[derive(Debug, Serialize)]
pub(super) struct ServerSide {
    servers: Vec<ServerReport>,
    client: Vec<ClientPoint>,
    /// Mean time to the first token by the servers, in milliseconds.
    server_ttft_mean_ms: Option<f64>,
    /// The client's mean, less that: the way between them, and what the client waits for.
    client_ttft_beyond_ms: Option<f64>,
    cache: CacheShares,
}

/// Shares of the prompt tokens that were, or could have been, in the servers' caches.
#[derive(Debug, Serialize)]
struct CacheShares {
    /// A cache without a limit, one for all servers.
    infinite: Option<f64>,
    /// The simulated engine with as many blocks as the servers have; `None` where they do not report it.
    engine: Option<f64>,
    /// What the servers reported for each request (`cached_tokens`).
    reported: Option<f64>,
}

/// Reads the address of a page: that of the server, with or without `/metrics`.
pub(super) fn page(text: &str) -> Result<UpstreamUrl, String> {
    let server = text.trim_end_matches('/');
    server.strip_suffix("/metrics").unwrap_or(server).parse().map_err(|error| format!("{error}"))
}

pub(super) async fn begin(pages: &[UpstreamUrl]) -> Vec<PageWatch> {
    let mut watches = Vec::new();
    for page in pages {
        watches.push(PageWatch::begin(page.clone(), &UpstreamOptions::default()).await);
    }
    watches
}

/// Ends it; `None` where there are none.
pub(super) async fn end(
    watches: Vec<PageWatch>,
    start: Instant,
    workload: &Workload,
    results: &Results,
    report: &ResultsReport,
) -> Option<ServerSide> {
    let mut servers = Vec::new();
    for watch in watches {
        servers.push(watch.end(start).await);
    }
    let samples = results.samples();
    let sent = samples
        .iter()
        .filter_map(|sample| workload.requests.get(sample.request).map(|request| (sample.sent, &request.record)));
    let schedule = ArrivalSchedule::of_records(workload.name.clone(), workload.block_size, sent).ok();
    let schedule = schedule.filter(ArrivalSchedule::has_blocks);
    let weighed = servers.iter().filter_map(|server| Some((server.ttft_mean_ms?, server.ttft_count?)));
    let (sum, count) = weighed.fold((0.0, 0.0), |(sum, count), (mean, of)| (sum + mean * of, count + of));
    let server_ttft_mean_ms = (count > 0.0).then(|| sum / count);
    let client = report.ttft_ms.map(|ttft| ttft.mean);
    (!servers.is_empty()).then(|| ServerSide {
        client: timeline::client(&samples),
        server_ttft_mean_ms,
        client_ttft_beyond_ms: client.zip(server_ttft_mean_ms).map(|(client, server)| client - server),
        cache: CacheShares {
            infinite: schedule.as_ref().map(|schedule| {
                let all = servers.first().and_then(|server| usize::try_from(server.block_size?).ok());
                let unlimited = all.and_then(|size| Some((size, schedule.blocks_of(size)?)));
                let simulated = unlimited.and_then(|(size, blocks)| simulated(schedule, 1, size, blocks));
                simulated.unwrap_or_else(|| schedule.ideal_hit_rate())
            }),
            engine: schedule.as_ref().and_then(|schedule| {
                let server = servers.first()?;
                let blocks = u32::try_from(server.num_gpu_blocks?).ok()?;
                simulated(schedule, servers.len(), usize::try_from(server.block_size?).ok()?, blocks)
            }),
            reported: report.cached_share,
        },
        servers,
    })
}

/// The hit rate of simulated engines with so many blocks each, to which requests come when they were sent.
fn simulated(schedule: &ArrivalSchedule, replicas: usize, block_size: usize, num_gpu_blocks: u32) -> Option<f64> {
    let [profile, ..] = PROFILES;
    if num_gpu_blocks < 2 || block_size == 0 {
        return None;
    }
    let max_model_len = (num_gpu_blocks as usize - 1).saturating_mul(block_size);
    let scheduler = SchedulerConfig { max_model_len, ..SchedulerConfig::default() };
    let simulation = Simulation {
        replicas,
        policy: RouterPolicy::RoundRobin,
        balance: Balance::default(),
        scheduler: SchedulerConfig { max_num_batched_tokens: scheduler.usual_batched_tokens(), ..scheduler },
        kv_cache: KvCacheConfig { block_size, num_gpu_blocks, ..KvCacheConfig::default() },
        times: StepTimes::Profile(profile),
        time_scale: 1.0,
        front_end: Duration::ZERO,
        speed: 1.0,
        slo: None,
        seed: 0,
    };
    inspect::simulate(schedule, &simulation).ok().map(|report| report.hit_rate)
}

impl ServerSide {
    /// Its lines in a report for people.
    pub(super) fn lines(&self) -> Vec<String> {
        let percent = |share: Option<f64>| share.map_or("-".to_owned(), |share| format!("{:.1} %", share * 100.0));
        let millis = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.2} ms"));
        let most = |points: &mut dyn Iterator<Item = Option<f64>>| points.flatten().reduce(f64::max);
        let mut lines = Vec::new();
        for server in &self.servers {
            let whole = |most: Option<f64>| most.map_or("-".to_owned(), |most| format!("{most:.0}"));
            if let (Some(why), true) = (&server.failure, server.points.is_empty()) {
                lines.push(format!("server     {}: no page could be read: {why}", server.url));
                continue;
            }
            lines.push(format!(
                "server     {}: at most {} waiting, {} running, {} of the KV cache; {} of the prefixes cached",
                server.url,
                whole(most(&mut server.points.iter().map(|point| point.waiting))),
                whole(most(&mut server.points.iter().map(|point| point.running))),
                percent(most(&mut server.points.iter().map(|point| point.kv_cache_usage))),
                percent(server.prefix_cache_hit_rate),
            ));
            let failure = server.failure.as_ref();
            lines.extend(failure.map(|why| format!("           {} pages could not be read: {why}", server.failures)));
            lines.extend(hit_faults::lines(&server.faults).iter().map(|line| format!("           {line}")));
        }
        if self.servers.iter().all(|server| server.points.is_empty()) {
            return lines;
        }
        let (server, beyond) = (millis(self.server_ttft_mean_ms), millis(self.client_ttft_beyond_ms));
        lines.push(format!("TTFT       mean {server} by the servers; the client's is {beyond} more"));
        let CacheShares { infinite, engine, reported } = &self.cache;
        let [infinite, engine, reported] = [infinite, engine, reported].map(|share| percent(*share));
        lines.push(format!(
            "cached     {reported} as reported, {engine} by the simulated engine with as many blocks, {infinite} without a limit"
        ));
        lines
    }
}
