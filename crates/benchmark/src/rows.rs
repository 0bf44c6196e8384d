//! The rows of the table: each starts a server, puts a load on it and reads off figures.

use std::{io, ops::ControlFlow, thread, time::Duration};

use base::stats::nearest_quantile;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    client::{self, BenchLoad, BenchSeen},
    server::{Contender, MeasuredServer},
};

/// Tokens at once.
const AT_ONCE: &str = "--synthetic random";

/// 512 streams of one token each 10 ms.
const PACED_STREAMS: usize = 512;
const PACED_GAP_MS: f64 = 10.0;

fn fixed(ttft: &str, gap_micros: u64) -> String {
    format!("--synthetic random --time-to-first-token {ttft} --inter-token-latency {gap_micros}us")
}

/// Events a second that half of two cores carry.
pub(crate) const HALF_CARRIES: usize = 50_000;

/// The client takes the other half.
fn half_the_cores() -> usize {
    (thread::available_parallelism().map_or(1, usize::from) / 2).max(1)
}

/// Puts a load on a server until it has ended.
fn run(server: &MeasuredServer, load: &BenchLoad) -> io::Result<BenchSeen> {
    answered(client::run(server.address, load, |_| ControlFlow::Continue(()))?)
}

/// Refuses a load of which nothing was answered: its figures are of nothing.
fn answered(seen: BenchSeen) -> io::Result<BenchSeen> {
    if seen.answers == 0 { Err(io::Error::other("no request was answered")) } else { Ok(seen) }
}

/// Waits until a server that was just started has warmed up.
fn settle(server: &MeasuredServer) -> io::Result<()> {
    let load = BenchLoad {
        streams: 16,
        time: Duration::from_millis(300),
        rounds: 64,
        tokens: 8,
        is_stream: false,
        ..BenchLoad::default()
    };
    run(server, &load)?;
    thread::sleep(Duration::from_millis(100));
    Ok(())
}

/// What a client sees of `PACED_STREAMS` streams: errors of gaps, and drift.
///
/// # Errors
/// When the server does not start, or the load cannot be put on it.
pub fn paced(server: MeasuredServer, tokens: usize) -> io::Result<Value> {
    settle(&server)?;
    let load = BenchLoad {
        streams: PACED_STREAMS,
        spread: Duration::from_millis(100),
        time: Duration::from_secs(4),
        rounds: 512 / tokens,
        tokens,
        ..BenchLoad::default()
    };
    let before = server.cpu();
    let mut seen = run(&server, &load)?;
    let cpu = server.cpu().saturating_sub(before).as_secs_f64();
    let mut errors: Vec<f64> = seen.gaps.iter().map(|gap| (gap - PACED_GAP_MS).abs()).collect();
    let mut drift: Vec<f64> = seen.means.iter().map(|mean| (mean / PACED_GAP_MS - 1.0).abs() * 100.0).collect();
    let whole: usize = seen.tokens;
    let figures = server.end()?;
    Ok(json!({
        "streams": PACED_STREAMS, "answers": seen.answers, "failures": seen.failures, "tokens": whole,
        "gap_error_ms": quantiles(&mut errors), "drift_percent": quantiles(&mut drift),
        "ttft_ms": quantiles(&mut seen.first), "cpu_us_per_token": cpu * 1e6 / whole.max(1) as f64,
        "lateness_ms": figures["lateness_ms"]["fixed"],
    }))
}

/// The same of this server.
pub(crate) fn paced_own(program: Contender<'_>) -> io::Result<Value> {
    paced(program.start(&format!("{} --threads {}", fixed("100ms", 10_000), half_the_cores()))?, 512)
}

/// `streams` streams at so many events a second in all, for some seconds: lateness as the server reports it, gaps as the
/// client sees them, processor time and memory.
pub(crate) fn sustained(
    program: Contender<'_>,
    streams: usize,
    events_per_second: usize,
    seconds: usize,
) -> io::Result<Value> {
    let gap = Duration::from_secs_f64(streams as f64 / events_per_second as f64);
    let spread = gap.max(Duration::from_micros(150) * u32::try_from(streams).unwrap_or(u32::MAX));
    let tokens = (seconds * events_per_second / streams).max(2);
    // All streams are open before the first of them has its second token.
    let first = (spread + Duration::from_millis(500)).max(Duration::from_secs(1));
    let ttft = format!("{}ms", first.as_millis());
    let planned = spread + first + gap * u32::try_from(tokens - 1).unwrap_or(u32::MAX);
    let mut arguments = fixed(&ttft, u64::try_from(gap.as_micros()).unwrap_or(u64::MAX));
    if events_per_second <= HALF_CARRIES {
        arguments += &format!(" --threads {}", half_the_cores());
    }
    let server = program.start(&arguments)?;
    settle(&server)?;
    let idle = server.resident();
    let load = BenchLoad { streams, spread, tokens, ..BenchLoad::default() };
    let (mut most, mut most_open) = (0, 0);
    let before = server.cpu();
    let mut seen = answered(client::run(server.address, &load, |open| {
        most = most.max(server.resident());
        most_open = most_open.max(open);
        ControlFlow::Continue(())
    })?)?;
    let cpu = server.cpu().saturating_sub(before).as_secs_f64();
    let gap_ms = gap.as_secs_f64() * 1e3;
    let mut errors: Vec<f64> = seen.gaps.iter().map(|found| (found - gap_ms).abs()).collect();
    let figures = server.end()?;
    Ok(json!({
        "streams": streams, "events_per_second": events_per_second, "answers": seen.answers,
        "failures": seen.failures, "tokens": seen.tokens, "held": held(&seen, planned),
        "lateness_ms": figures["lateness_ms"]["fixed"], "gap_error_ms": quantiles(&mut errors),
        "ttft_ms": quantiles(&mut seen.first), "cpu_us_per_event": cpu * 1e6 / seen.tokens.max(1) as f64,
        "bytes_per_stream": most.saturating_sub(idle) as f64 / most_open.max(1) as f64, "resident": most,
    }))
}

/// The part of the planned rate that was held: how long the run should have taken, of how long it took.
fn held(seen: &BenchSeen, planned: Duration) -> f64 {
    planned.as_secs_f64() / seen.elapsed.max(planned).as_secs_f64()
}

/// Memory of streams that wait for their first token.
pub(crate) fn memory(program: Contender<'_>, streams: usize) -> io::Result<Value> {
    let server = program.start(&fixed("10m", 1000))?;
    let idle = waiting(&server, 64)?;
    let resident = waiting(&server, streams)?;
    server.end()?;
    let bytes = resident.saturating_sub(idle) as f64 / (streams - 64) as f64;
    Ok(json!({"streams": streams, "idle_bytes": idle, "bytes_per_stream": bytes}))
}

/// Resident bytes while so many streams wait; then they leave.
fn waiting(server: &MeasuredServer, streams: usize) -> io::Result<u64> {
    let (mut resident, mut all_since) = (0, None);
    let load = BenchLoad { streams, spread: Duration::from_secs(2), tokens: 4, ..BenchLoad::default() };
    client::run(server.address, &load, |now| {
        if now < streams {
            return ControlFlow::Continue(());
        }
        let since = *all_since.get_or_insert_with(Instant::now);
        resident = server.resident();
        if since.elapsed() > Duration::from_secs(2) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    Ok(resident)
}

/// 64 streams of 128 tokens at once, again and again: processor time per token.
///
/// # Errors
/// When the server does not start, or the load cannot be put on it.
pub fn at_once(server: MeasuredServer) -> io::Result<Value> {
    let load = BenchLoad {
        streams: 64,
        time: Duration::from_secs(4),
        rounds: usize::MAX,
        tokens: 128,
        ..BenchLoad::default()
    };
    counted(server, &load)
}

/// Small answers that are no streams: processor time per request.
///
/// # Errors
/// When the server does not start, or the load cannot be put on it.
pub fn small(server: MeasuredServer) -> io::Result<Value> {
    let load = BenchLoad {
        streams: 64,
        time: Duration::from_secs(3),
        rounds: usize::MAX,
        is_stream: false,
        ..BenchLoad::default()
    };
    counted(server, &load)
}

fn counted(server: MeasuredServer, load: &BenchLoad) -> io::Result<Value> {
    settle(&server)?;
    let before = server.cpu();
    let mut seen = run(&server, load)?;
    let cpu = server.cpu().saturating_sub(before).as_secs_f64() * 1e6;
    let seconds = seen.elapsed.as_secs_f64();
    server.end()?;
    Ok(json!({
        "answers": seen.answers, "failures": seen.failures, "tokens": seen.tokens,
        "cpu_us_per_token": cpu / seen.tokens.max(1) as f64, "cpu_us_per_request": cpu / seen.answers.max(1) as f64,
        "tokens_per_second": seen.tokens as f64 / seconds, "requests_per_second": seen.answers as f64 / seconds,
        "e2e_ms": quantiles(&mut seen.whole),
    }))
}

/// One stream after the other: time to the first token.
///
/// # Errors
/// When the server does not start, or the load cannot be put on it.
pub fn one_by_one(server: MeasuredServer) -> io::Result<Value> {
    settle(&server)?;
    let load = BenchLoad { time: Duration::from_secs(3), rounds: 1000, tokens: 16, ..BenchLoad::default() };
    let mut seen = run(&server, &load)?;
    server.end()?;
    Ok(json!({"answers": seen.answers, "ttft_ms": quantiles(&mut seen.first), "e2e_ms": quantiles(&mut seen.whole)}))
}

const BURST: usize = 512;

/// `BURST` streams that are requested at once: time to the first token, over open connections and over new ones.
///
/// # Errors
/// When the server does not start, or the load cannot be put on it.
pub fn burst(server: MeasuredServer) -> io::Result<Value> {
    settle(&server)?;
    let load = BenchLoad { streams: BURST, tokens: 16, ..BenchLoad::default() };
    let mut open = answered(client::burst(server.address, &load)?)?;
    thread::sleep(Duration::from_millis(200));
    let mut new = run(&server, &load)?;
    server.end()?;
    Ok(json!({
        "answers": open.answers, "failures": open.failures + new.failures, "ttft_ms": quantiles(&mut open.first),
        "asked_ms": open.requested.as_secs_f64() * 1e3, "new_ttft_ms": quantiles(&mut new.first),
        "new_elapsed_ms": new.elapsed.as_secs_f64() * 1e3,
    }))
}

/// Start on the built-in trace, and memory after it.
pub(crate) fn start(program: Contender<'_>, times: usize) -> io::Result<Value> {
    let (mut starts, mut answers) = (Vec::new(), Vec::new());
    let mut resident = 0;
    for _ in 0..times {
        let server = program.start("")?;
        starts.push(server.start.as_secs_f64() * 1e3);
        thread::sleep(Duration::from_millis(300));
        resident = server.resident();
        server.end()?;
        let server = program.start("--time-to-first-token 0ms --inter-token-latency 0us")?;
        let load = BenchLoad { is_stream: false, ..BenchLoad::default() };
        let seen = run(&server, &load)?;
        answers.push((server.start + seen.elapsed).as_secs_f64() * 1e3);
        server.end()?;
    }
    Ok(json!({
        "start_ms": quantiles(&mut starts), "first_answer_ms": quantiles(&mut answers), "idle_bytes": resident,
    }))
}

/// A program without any delay.
pub(crate) fn own_at_once(program: Contender<'_>) -> io::Result<MeasuredServer> {
    program.start(AT_ONCE)
}

/// Quantiles; null where there is nothing.
fn quantiles(values: &mut [f64]) -> Value {
    values.sort_by(f64::total_cmp);
    let at = |share| nearest_quantile(values, share);
    json!({
        "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "p999": at(0.999), "max": at(1.0), "count": values.len(),
    })
}
