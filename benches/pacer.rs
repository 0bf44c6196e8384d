//! How late sleeps end: 512 tasks with deadlines 10 ms apart, the precise pacer against tokio's timer.
//!
//! `cargo bench --bench pacer`. Lateness is the instant at which a task runs again minus its deadline; the precise pacer
//! may be early by its quantum, which shows as a negative figure.

#![allow(clippy::print_stdout, clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

use std::time::Duration;

use tokio::time::Instant;
use vllm_vcr::replay::timing::Pacer;

const TASKS: u32 = 512;
const GAP: Duration = Duration::from_millis(10);
const SLEEPS: u32 = 300;

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for round in 1..=3 {
        println!("round {round}");
        runtime.block_on(async {
            report("precise", &lateness(&Pacer::precise()).await);
            report("tokio", &lateness(&Pacer::coarse()).await);
        });
    }
    Ok(())
}

/// Milliseconds by which each sleep was late, sorted.
async fn lateness(pacer: &Pacer) -> Vec<f64> {
    let start = Instant::now() + Duration::from_millis(50);
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let pacer = pacer.clone();
            // Streams do not start together: spread over one gap.
            let first = start + GAP * task / TASKS;
            tokio::spawn(async move {
                let mut late = Vec::with_capacity(SLEEPS as usize);
                for step in 0..SLEEPS {
                    let deadline = first + GAP * step;
                    pacer.sleep_until(deadline).await;
                    let now = Instant::now();
                    let early = deadline.saturating_duration_since(now).as_secs_f64();
                    late.push((now.saturating_duration_since(deadline).as_secs_f64() - early) * 1e3);
                }
                late
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap_or_default());
    }
    all.sort_by(f64::total_cmp);
    all
}

fn report(name: &str, sorted: &[f64]) {
    let at = |quantile: f64| {
        let index = (sorted.len().saturating_sub(1) as f64 * quantile) as usize;
        sorted.get(index).copied().unwrap_or_default()
    };
    let [min, p50, p90, p99, p999] = [0.0, 0.5, 0.9, 0.99, 0.999].map(at);
    println!("{name:8} lateness ms: min {min:.3} p50 {p50:.3} p90 {p90:.3} p99 {p99:.3} p99.9 {p999:.3}");
}
