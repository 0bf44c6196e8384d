//! Families of this program's own, which no engine has: behind the engine's, where they were asked for.
//!
//! See docs/decisions/0016-lateness-is-not-vllms.md.

use std::fmt::Write;

use super::histogram::{float, number};
use crate::{
    base::stats::{Lateness, StreamClass},
    net::server::refused_connections,
    play::{engine::EventCounts, load::LoadedTrace},
};

/// Bounds of lateness, in microseconds.
const MICROS: [u64; 14] =
    [25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 1_000_000, 10_000_000];

/// Appends the families to a page.
pub(in super::super) fn append(
    page: &mut String,
    lateness: &Lateness,
    replay: Option<&LoadedTrace>,
    kv_events: Option<&EventCounts>,
) {
    replay.into_iter().for_each(|replay| matching(page, replay));
    kv_events.into_iter().for_each(|counts| kv_event_batches(page, counts));
    let name = "vcr_event_lateness_seconds";
    let _ = writeln!(page, "# HELP {name} Time from an event's deadline until it was written.");
    let _ = writeln!(page, "# TYPE {name} histogram");
    for class in StreamClass::ALL {
        let Some(summary) = lateness.summary(class, &MICROS) else { continue };
        let (class, count) = (class.name(), number(float(summary.millis.count)));
        for (micros, at_most) in MICROS.iter().zip(&summary.at_most) {
            let bound = number(float(*micros) / 1e6);
            let at_most = number(float(*at_most));
            let _ = writeln!(page, "{name}_bucket{{class=\"{class}\",le=\"{bound}\"}} {at_most}");
        }
        let _ = writeln!(page, "{name}_bucket{{class=\"{class}\",le=\"+Inf\"}} {count}");
        let _ = writeln!(page, "{name}_count{{class=\"{class}\"}} {count}");
        let _ = writeln!(page, "{name}_sum{{class=\"{class}\"}} {}", number(summary.sum));
    }
    early(page, lateness);
    refused(page);
}

/// Appends the families about KV events.
fn kv_event_batches(page: &mut String, counts: &EventCounts) {
    let families = [
        ("vcr_kv_event_batches_total", "Batches of KV events that were queued to be published.", counts.published),
        ("vcr_kv_event_batches_dropped_total", "Batches of KV events that did not fit the queue.", counts.dropped),
    ];
    for (name, help, count) in families {
        let _ = writeln!(page, "# HELP {name} {help}");
        let _ = writeln!(page, "# TYPE {name} counter");
        let _ = writeln!(page, "{name} {}", number(float(count)));
    }
}

/// Appends the families about matched and missed prompts.
fn matching(page: &mut String, replay: &LoadedTrace) {
    let totals = replay.account.totals();
    let families = [
        (
            "vcr_prompts_matched_total",
            "Prompts that found a record, by the way that found it.",
            "by",
            &totals.matching.found,
        ),
        (
            "vcr_prefix_matches_total",
            "Matches by a part of the prompt, by the share of its blocks.",
            "share",
            &totals.matching.shares,
        ),
        ("vcr_prompts_missed_total", "Prompts without a record, by reason.", "reason", &totals.missed),
        ("vcr_records_served_again_total", "Records that were served again, by reason.", "reason", &totals.again),
    ];
    for (name, help, label, counts) in families {
        let _ = writeln!(page, "# HELP {name} {help}");
        let _ = writeln!(page, "# TYPE {name} counter");
        for (value, count) in counts {
            let _ = writeln!(page, "{name}{{{label}=\"{value}\"}} {}", number(float(*count)));
        }
    }
    let (consumed, sessions) = replay.account.now();
    let gauges = [
        ("vcr_records", "Records that can be served.", replay.served_records()),
        ("vcr_records_consumed", "Records that the default session consumed.", consumed),
        ("vcr_sessions", "Sessions.", sessions),
    ];
    for (name, help, value) in gauges {
        let _ = writeln!(page, "# HELP {name} {help}");
        let _ = writeln!(page, "# TYPE {name} gauge");
        let _ = writeln!(page, "{name} {}", number(float(value as u64)));
    }
}

fn early(page: &mut String, lateness: &Lateness) {
    let name = "vcr_event_early_total";
    let _ = writeln!(page, "# HELP {name} Events that left before their deadline, by what the pacer rounds.");
    let _ = writeln!(page, "# TYPE {name} counter");
    for class in StreamClass::ALL {
        let Some(summary) = lateness.summary(class, &[]) else { continue };
        let _ = writeln!(page, "{name}{{class=\"{}\"}} {}", class.name(), number(float(summary.early)));
    }
}

/// Appends the connections that no request counter sees.
fn refused(page: &mut String) {
    let name = "vcr_connections_refused_total";
    let help = "Connections that got a 503, for all files that this process may have open were in use.";
    let _ = writeln!(page, "# HELP {name} {help}");
    let _ = writeln!(page, "# TYPE {name} counter");
    let _ = writeln!(page, "{name} {}", number(float(refused_connections())));
}
