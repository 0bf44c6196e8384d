//! Families of this program's own, which no engine has: behind the engine's, where they were requested.
//!
//! See docs/decisions/0016-lateness-is-not-vllms.md.

use std::collections::BTreeMap;

use crate::{
    ServerState,
    engine::{Engine, EventCounts},
    load::account::SessionTotals,
};
use base::stats::{
    Lateness, StreamClass,
    exposition::{ByLabel, Exposition, MetricFamily, counter, counter_by, gauge, labelled},
    histogram::{float, number},
};
use net::server::refused_connections;

/// Counts of a trace that is replayed.
struct ReplayCounts {
    totals: SessionTotals,
    records: usize,
    consumed: usize,
    sessions: usize,
}

const REPLAY: [MetricFamily<ReplayCounts>; 7] = [
    counter_by("vcr_prompts_matched", "Prompts that found a record, by the way that found it.", "by", |counts| {
        by_name(&counts.totals.matching.found)
    }),
    counter_by(
        "vcr_prefix_matches",
        "Matches by a part of the prompt, by the share of its blocks.",
        "share",
        |counts| by_name(&counts.totals.matching.shares),
    ),
    counter_by("vcr_prompts_missed", "Prompts without a record, by reason.", "reason", |counts| {
        by_name(&counts.totals.missed)
    }),
    counter_by("vcr_records_served_again", "Records that were served again, by reason.", "reason", |counts| {
        by_name(&counts.totals.again)
    }),
    gauge("vcr_records", "Records that can be served.", |counts| float(counts.records as u64)),
    gauge("vcr_records_consumed", "Records that the default session consumed.", |counts| float(counts.consumed as u64)),
    gauge("vcr_sessions", "Sessions.", |counts| float(counts.sessions as u64)),
];

const KV_EVENTS: [MetricFamily<EventCounts>; 3] = [
    counter("vcr_kv_event_batches", "Batches of KV events that were queued to be published.", |counts| {
        float(counts.published)
    }),
    counter("vcr_kv_event_batches_dropped", "Batches of KV events that did not fit the queue.", |counts| {
        float(counts.dropped)
    }),
    counter("vcr_kv_event_peers_disconnected", "Peers that did not read KV events.", |counts| {
        float(counts.disconnected)
    }),
];

const OTHERS: [MetricFamily<Lateness>; 2] = [
    counter_by(
        "vcr_event_early",
        "Events that left before their deadline, by what the pacer rounds.",
        "class",
        |lateness| {
            let early = |class: StreamClass| Some((class.name(), float(lateness.summary(class, &[])?.early)));
            labelled(StreamClass::ALL.into_iter().filter_map(early))
        },
    ),
    // No counter of requests sees these.
    counter(
        "vcr_connections_refused",
        "Connections that got a 503, for all files that this process may have open were in use.",
        |_| float(refused_connections()),
    ),
];

/// Bounds of lateness, in microseconds.
const MICROS: [u64; 14] =
    [25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 1_000_000, 10_000_000];

fn by_name<'a>(counts: &'a BTreeMap<&'static str, u64>) -> ByLabel<'a> {
    labelled(counts.iter().map(|(name, count)| (*name, float(*count))))
}

pub(super) fn append(page: &mut Exposition, state: &ServerState) {
    let lateness = &*state.lateness;
    if let Some(replay) = &state.replay {
        let (consumed, sessions) = replay.account.now();
        let (totals, records) = (replay.account.totals(), replay.served_records());
        page.families(&REPLAY, &[(&[], &ReplayCounts { totals, records, consumed, sessions })], None);
    }
    let kv_events = state.engine.as_ref().and_then(Engine::event_counts);
    kv_events.iter().for_each(|counts| page.families(&KV_EVENTS, &[(&[], counts)], None));
    let name = "vcr_event_lateness_seconds";
    page.family(name, "histogram", "Time from an event's deadline until it was written.");
    for class in StreamClass::ALL {
        let Some(summary) = lateness.summary(class, &MICROS) else { continue };
        let (class, count) = (("class", class.name()), float(summary.millis.count));
        let bounds = MICROS.iter().map(|micros| number(float(*micros) / 1e6)).chain(["+Inf".to_owned()]);
        for (bound, at_most) in bounds.zip(summary.at_most.iter().map(|at_most| float(*at_most)).chain([count])) {
            page.sample(&format!("{name}_bucket"), &[class, ("le", &bound)], at_most);
        }
        page.sample(&format!("{name}_count"), &[class], count);
        page.sample(&format!("{name}_sum"), &[class], summary.sum);
    }
    page.families(&OTHERS, &[(&[], lateness)], None);
}
