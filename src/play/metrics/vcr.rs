//! Families of this program's own, which no engine has: behind the engine's, where they were asked for.

use std::fmt::Write;

use super::histogram::{float, number};
use crate::stats::{Lateness, StreamClass};

/// Bounds of lateness, in microseconds.
const MICROS: [u64; 14] =
    [25, 50, 100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 1_000_000, 10_000_000];

/// Appends the families to a page.
pub(in super::super) fn append(page: &mut String, lateness: &Lateness) {
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
