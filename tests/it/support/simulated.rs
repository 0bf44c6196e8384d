//! Servers of made-up tokens behind a simulated engine, and what their `/metrics` shows.

use std::{collections::BTreeMap, num::NonZeroU32, time::Duration};

use vllm_vcr::{
    engine::step_clock::{Knobs, StepTimes},
    play::{Config, EngineConfig, EngineTimes, Source, Synthetic},
    replay::{
        account::{Access, Admin},
        matching::MatchBy,
    },
};

use super::{
    client::{self, get},
    play_server::{Server, config},
};

/// An engine whose steps take no time, or so much each.
pub(crate) fn engine(step: Duration) -> EngineConfig {
    let times = if step.is_zero() { StepTimes::Instant } else { StepTimes::Knobs(Knobs::constant(step, step)) };
    EngineConfig { times: EngineTimes::Given(times), ..EngineConfig::default() }
}

/// A server of made-up tokens behind an engine, with blocks of 16 and requests of up to 1,024 tokens.
pub(crate) fn behind(engine: EngineConfig) -> Config {
    Config {
        source: Source::Synthetic(Synthetic::Random),
        prompt_tokens_details: true,
        block_size: NonZeroU32::new(16),
        engine: Some(engine),
        max_model_len: Some(1024),
        admin: Admin::Here(Access::default()),
        ..config(&[MatchBy::Next], Vec::new())
    }
}

/// Values by family and labels, without those of the engine and the model.
pub(crate) async fn samples(server: &Server) -> BTreeMap<String, f64> {
    let page = client::send(server.address, &get("/metrics")).await.text();
    let lines = page.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').unwrap());
    let plain = |name: &str| {
        let labels = ["engine=\"0\",", "engine=\"0\"", "model_name=\"m\",", ",model_name=\"m\"", "model_name=\"m\""];
        labels.iter().fold(name.to_owned(), |name, label| name.replace(label, "")).replace("{}", "")
    };
    lines.map(|(name, value)| (plain(name), value.parse().unwrap())).collect()
}

/// Waits for samples with these values; all samples then.
pub(crate) async fn until(server: &Server, wanted: &[(&str, f64)]) -> BTreeMap<String, f64> {
    for _ in 0..3000 {
        let found = samples(server).await;
        if wanted.iter().all(|(sample, value)| found.get(*sample) == Some(value)) {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let found = samples(server).await;
    panic!("{:?}", wanted.iter().map(|(sample, _)| (sample, found.get(*sample))).collect::<Vec<_>>());
}
