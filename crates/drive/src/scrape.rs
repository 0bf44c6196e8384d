//! Metrics of servers during a run: their `/metrics`, read every second.
//!
//! Names are vLLM's (`vllm/v1/metrics/loggers.py`), those of version 0 too. The samples of the engines of one server are added up, of shares the mean is taken.
//!
//! At the end their `/vcr/faults` too, which `vllm-vcr play` has.
//!
//! Limits: a page is read up to 8 MiB, and a server has five seconds for it; of long runs every second point is left out, again and again.

use std::{sync::Arc, time::Duration};

use base::stats::scraped;
use bytes::Bytes;
use http::Request;
use net::upstream::{FetchError, OutgoingBody, Upstream, UpstreamOptions, UpstreamUrl};
use serde::Serialize;
use serde_json::Value;
use tokio::{
    sync::{Mutex, Notify},
    task::JoinHandle,
    time::{Instant, sleep_until, timeout},
};

/// Distance of points at first.
const PERIOD: Duration = Duration::from_secs(1);

/// Points that are kept of a server.
const MOST_POINTS: usize = 3600;

/// Bytes of a page.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// Maximum number of hits of faults that are listed, the latest ones.
pub const MOST_HITS: usize = 10_000;

/// Time for a page.
const PATIENCE: Duration = Duration::from_secs(5);

/// A server at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct ServerPoint {
    /// When, in seconds from the start of the run.
    pub at_s: f64,
    /// Requests in its queue.
    pub waiting: Option<f64>,
    /// Requests in its batch.
    pub running: Option<f64>,
    /// Share of its KV cache that is used.
    pub kv_cache_usage: Option<f64>,
    /// Tokens that its prefix cache was asked for, from its start on.
    pub prefix_cache_queries: Option<f64>,
    /// Tokens of these that it had.
    pub prefix_cache_hits: Option<f64>,
}

/// A server during a run.
#[derive(Debug, Clone, Serialize)]
pub struct ServerReport {
    /// Where its page is.
    pub url: String,
    /// Pages that could not be read.
    pub failures: u64,
    /// Why, of the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
    /// Requests whose time to the first token it measured in the run.
    pub ttft_count: Option<f64>,
    /// Their mean time to the first token, by the server, in milliseconds.
    pub ttft_mean_ms: Option<f64>,
    /// Share of the tokens that its prefix cache was asked for in the run, and had.
    pub prefix_cache_hit_rate: Option<f64>,
    /// Tokens that it was asked for.
    pub prefix_cache_queries: Option<f64>,
    /// Blocks of its KV cache, all its engines together.
    pub num_gpu_blocks: Option<u64>,
    /// Tokens of a block.
    pub block_size: Option<u32>,
    /// Faults that it let happen in the run.
    pub faults: HitFaults,
    /// The points, a second apart or, of long runs, two, four…
    pub points: Vec<ServerPoint>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Page {
    point: ServerPoint,
    ttft_sum: Option<f64>,
    ttft_count: Option<f64>,
    num_gpu_blocks: Option<u64>,
    block_size: Option<u32>,
}

impl Page {
    fn read(text: &str) -> Self {
        let any = |names: [&str; 2], of: fn(&str, &str) -> Option<f64>| names.iter().find_map(|name| of(text, name));
        let configurations = || scraped::samples(text).filter(|sample| sample.name == "vllm:cache_config_info");
        let blocks = configurations().filter_map(|sample| sample.label("num_gpu_blocks")?.parse::<u64>().ok());
        Self {
            point: ServerPoint {
                at_s: 0.0,
                waiting: scraped::sum(text, "vllm:num_requests_waiting"),
                running: scraped::sum(text, "vllm:num_requests_running"),
                kv_cache_usage: any(["vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"], scraped::mean),
                prefix_cache_queries: any(
                    ["vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"],
                    scraped::sum,
                ),
                prefix_cache_hits: any(
                    ["vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"],
                    scraped::sum,
                ),
            },
            ttft_sum: scraped::sum(text, "vllm:time_to_first_token_seconds_sum"),
            ttft_count: scraped::sum(text, "vllm:time_to_first_token_seconds_count"),
            num_gpu_blocks: blocks.reduce(u64::saturating_add),
            block_size: configurations().find_map(|sample| sample.label("block_size")?.parse().ok()),
        }
    }
}

/// A server that is watched until it is dropped.
#[derive(Debug)]
pub struct PageWatch {
    url: String,
    upstream: Upstream,
    seen: Arc<Mutex<ScrapedPages>>,
    finish: Arc<Notify>,
    task: JoinHandle<()>,
}

impl Drop for PageWatch {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug, Default)]
struct ScrapedPages {
    pages: Vec<(Instant, Page)>,
    /// The last page, which may be none of the points.
    last: Option<(Instant, Page)>,
    failures: u64,
    failure: Option<String>,
}

impl PageWatch {
    /// Begins to read `/metrics` below this URL every second, at once for the first time; returns when that page is there, or is not.
    pub async fn begin(url: UpstreamUrl, options: &UpstreamOptions) -> Self {
        let (name, seen, finish) = (url.to_string(), Arc::<Mutex<ScrapedPages>>::default(), Arc::<Notify>::default());
        let upstream = Upstream::new(url, options);
        seen.lock().await.add(page(&upstream).await);
        let watching = watch(upstream.clone(), Arc::clone(&seen), Arc::clone(&finish));
        Self { url: name, upstream, seen, finish, task: tokio::spawn(watching) }
    }

    /// Reads the last page and returns what was seen; times count from `start`.
    pub async fn end(mut self, start: Instant) -> ServerReport {
        self.finish.notify_one();
        let _ended = (&mut self.task).await;
        let faults = HitFaults::of(&self.upstream, start).await;
        let seen = self.seen.lock().await;
        let last = seen.last.as_ref();
        let ratio = |above: Option<f64>, below: Option<f64>| {
            let (above, below) = (above?, below?);
            (below > 0.0).then(|| above / below)
        };
        let queries = seen.delta(|page| page.point.prefix_cache_queries);
        let ttft_count = seen.delta(|page| page.ttft_count);
        let point = |(at, page): &(Instant, Page)| {
            let at_s =
                at.saturating_duration_since(start).as_secs_f64() - start.saturating_duration_since(*at).as_secs_f64();
            ServerPoint { at_s, ..page.point }
        };
        ServerReport {
            url: self.url.clone(),
            failures: seen.failures,
            failure: seen.failure.clone(),
            ttft_count,
            ttft_mean_ms: ratio(seen.delta(|page| page.ttft_sum), ttft_count).map(|seconds| seconds * 1e3),
            prefix_cache_hit_rate: ratio(seen.delta(|page| page.point.prefix_cache_hits), queries),
            prefix_cache_queries: queries,
            num_gpu_blocks: last.and_then(|(_, page)| page.num_gpu_blocks),
            block_size: last.and_then(|(_, page)| page.block_size),
            faults,
            points: seen.pages.iter().map(point).collect(),
        }
    }
}

async fn watch(upstream: Upstream, seen: Arc<Mutex<ScrapedPages>>, finish: Arc<Notify>) {
    let (mut next, mut period) = (Instant::now(), PERIOD);
    loop {
        next = (next + period).max(Instant::now());
        let is_last = tokio::select! {
            () = sleep_until(next) => false,
            () = finish.notified() => true,
        };
        let page = page(&upstream).await;
        let mut seen = seen.lock().await;
        seen.add(page);
        if is_last {
            return;
        }
        if seen.thin() {
            period *= 2;
        }
    }
}

async fn page(upstream: &Upstream) -> Result<(Instant, Page), String> {
    get(upstream, "/metrics").await.map(|(at, text)| (at, Page::read(&text)))
}

/// Reads the text at a path, with the time at which its head arrived; as [`page`].
async fn get(upstream: &Upstream, path: &str) -> Result<(Instant, String), String> {
    let request = Request::get(path).body(OutgoingBody::whole(Bytes::new())).map_err(|error| error.to_string())?;
    let late = |_| format!("no page within {PATIENCE:?}");
    match timeout(PATIENCE, upstream.fetch(request, MOST_BYTES)).await.map_err(late)? {
        Ok(page) if page.status.is_success() => Ok((page.at, String::from_utf8_lossy(&page.body).into_owned())),
        Ok(page) => Err(format!("status {}", page.status.as_u16())),
        Err(FetchError::Unanswered(error)) => Err(error.cause()),
        Err(FetchError::Incomplete(why)) => Err(why),
    }
}

/// Faults that a server let happen on purpose during the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum HitFaults {
    /// The lines that repeat them, oldest first, of the latest ones: the server is `vllm-vcr play`.
    Hits(Vec<String>),
    /// Why they are not known, as of another server.
    Unknown(String),
}

impl HitFaults {
    /// Reads `/vcr/faults` of the time since `start`.
    async fn of(upstream: &Upstream, start: Instant) -> Self {
        match get(upstream, &format!("/vcr/faults?hits={MOST_HITS}")).await {
            Ok((at, text)) => Self::read(&text, at.saturating_duration_since(start)),
            Err(why) => Self::Unknown(format!("/vcr/faults: {why}")),
        }
    }

    fn read(text: &str, run: Duration) -> Self {
        let list: Value = serde_json::from_str(text).unwrap_or_default();
        let Some((elapsed, hits)) =
            list.get("elapsed_ms").and_then(Value::as_u64).zip(list.get("hits").and_then(Value::as_array))
        else {
            return Self::Unknown("/vcr/faults is no list of faults".to_owned());
        };
        let start = elapsed.saturating_sub(u64::try_from(run.as_millis()).unwrap_or(u64::MAX));
        let in_run = hits.iter().filter(|hit| hit.get("at_ms").and_then(Value::as_u64).is_some_and(|at| at >= start));
        // The replicas of a process have one list.
        let own = in_run.filter(|hit| hit.get("replica") == list.get("replica"));
        Self::Hits(own.filter_map(|hit| hit.get("fault").and_then(Value::as_str).map(str::to_owned)).collect())
    }
}

impl ScrapedPages {
    fn add(&mut self, page: Result<(Instant, Page), String>) {
        match page {
            Ok(page) => {
                self.pages.push(page);
                self.last = Some(page);
            }
            Err(failure) => {
                self.failures += 1;
                self.failure = Some(failure);
            }
        }
    }

    /// What a counter rose by from the first page to the last one. A server that was restarted counts from zero.
    fn delta(&self, of: fn(&Page) -> Option<f64>) -> Option<f64> {
        let mut values = self.pages.iter().chain(&self.last).filter_map(|(_, page)| of(page));
        let mut before = values.next()?;
        Some(values.fold(0.0, |sum, after| {
            let rise = if after >= before { after - before } else { after };
            before = after;
            sum + rise
        }))
    }

    /// Leaves out every second point where there are too many; returns whether there were.
    fn thin(&mut self) -> bool {
        let are_many = self.pages.len() >= MOST_POINTS;
        if are_many {
            let mut number = 0_usize;
            self.pages.retain(|_| {
                number += 1;
                number % 2 == 1
            });
        }
        are_many
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const PAGE: &str = "vllm:num_requests_waiting{engine=\"0\"} 3\nvllm:num_requests_waiting{engine=\"1\"} 4\n\
        vllm:num_requests_running 2\nvllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.7\n\
        vllm:prefix_cache_queries_total 100\nvllm:prefix_cache_hits_total 40\nvllm:time_to_first_token_seconds_sum 1.5\n\
        vllm:time_to_first_token_seconds_count 3\nvllm:time_to_first_token_seconds_bucket{le=\"1.0\"} 3\n\
        vllm:cache_config_info{block_size=\"16\",engine=\"0\",num_gpu_blocks=\"100\"} 1\n\
        vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"200\"} 1\n";

    #[test]
    fn a_page_of_two_engines_is_one_server() {
        let page = Page::read(PAGE);
        let point = page.point;
        assert_eq!((point.waiting, point.running, point.kv_cache_usage), (Some(7.0), Some(2.0), Some(0.6)));
        assert_eq!((point.prefix_cache_queries, point.prefix_cache_hits), (Some(100.0), Some(40.0)));
        assert_eq!((page.ttft_sum, page.ttft_count), (Some(1.5), Some(3.0)));
        assert_eq!((page.num_gpu_blocks, page.block_size), (Some(300), Some(16)));
        let old = Page::read("vllm:gpu_cache_usage_perc 0.25\nvllm:gpu_prefix_cache_hits_total 1\n").point;
        assert_eq!((old.kv_cache_usage, old.prefix_cache_hits, old.waiting), (Some(0.25), Some(1.0), None));
    }

    #[test]
    fn a_counter_that_begins_again_adds_to_what_was_counted_before() {
        let mut seen = ScrapedPages::default();
        assert_eq!(seen.delta(|page| page.ttft_count), None);
        for count in ["100", "4288", "", "896", "5760"] {
            let page = Page::read(&format!("vllm:time_to_first_token_seconds_count {count}\n"));
            seen.add(Ok((Instant::now(), page)));
        }
        assert_eq!(seen.delta(|page| page.ttft_count), Some(4188.0 + 896.0 + 4864.0));
        assert_eq!(seen.delta(|page| page.ttft_sum), None);
    }

    #[test]
    fn faults_of_the_run_are_those_since_its_start() {
        let list = r#"{"elapsed_ms": 9000, "hits": [{"fault": "429 where request=a nth=1", "at_ms": 3999},
            {"fault": "reset at event 3 where request=b nth=1", "at_ms": 4000}], "faults": []}"#;
        let read = |text: &str| HitFaults::read(text, Duration::from_secs(5));
        assert_eq!(read(list), HitFaults::Hits(vec!["reset at event 3 where request=b nth=1".to_owned()]));
        // The first replica of a fleet, and a hit of the second.
        let of_fleet = r#"{"elapsed_ms": 9000, "replica": 0, "hits": [{"fault": "429", "replica": 0, "at_ms": 5000},
            {"fault": "503", "replica": 1, "at_ms": 5000}], "faults": []}"#;
        assert_eq!(read(of_fleet), HitFaults::Hits(vec!["429".to_owned()]));
        assert!(matches!(read("<html>"), HitFaults::Unknown(_)) && matches!(read("{}"), HitFaults::Unknown(_)));
    }

    #[tokio::test]
    async fn faults_are_asked_over_the_connection_of_the_pages() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while stream.read_buf(&mut read).await.unwrap() > 0 {
                if read.ends_with(b"\r\n\r\n") {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
                }
            }
            let is_more = tokio::time::timeout(Duration::from_millis(50), listener.accept()).await.is_ok();
            (String::from_utf8(read).unwrap(), is_more)
        });
        let report = PageWatch::begin(url, &UpstreamOptions::default()).await.end(Instant::now()).await;
        assert_eq!(report.faults, HitFaults::Unknown("/vcr/faults is no list of faults".to_owned()));
        let (requests, is_more) = serving.await.unwrap();
        assert!(requests.contains("GET /vcr/faults?hits=") && !is_more, "{requests}");
    }

    #[test]
    fn points_of_a_long_run_are_thinned_out() {
        let mut seen = ScrapedPages::default();
        let page = Page::read(PAGE);
        (0..MOST_POINTS).for_each(|_| seen.add(Ok((Instant::now(), page))));
        assert!(seen.thin() && seen.pages.len() == MOST_POINTS / 2 && !seen.thin());
        seen.add(Err("no".to_owned()));
        assert_eq!((seen.failures, seen.failure.as_deref()), (1, Some("no")));
    }
}
