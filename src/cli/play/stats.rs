//! `play`: its report of how late events left.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{
    base::{
        one_line::counted,
        stats::{Lateness, StreamClass, Summary},
    },
    cli::{failure::Failure, output, player::conclude},
};

/// Prints the summary where no command did, and writes the figures where they were requested.
pub(in crate::cli) fn end(prints: bool, path: Option<&Path>, lateness: &Lateness) -> Result<(), Failure> {
    if prints {
        output::note(&exit_summary(lateness));
    }
    conclude::write_report(path, || figures(lateness))
}

/// A line for each class of streams that were served; empty when none were.
fn exit_summary(lateness: &Lateness) -> String {
    let line = |class: StreamClass| {
        let Summary { count, p50, p99, p999, max, .. } = lateness.summary(class, &[])?.millis;
        let events = counted(count, &format!("{} event", class.name()));
        Some(format!("lateness of {events}: p50 {p50:.3} ms, p99 {p99:.3}, p99.9 {p999:.3}, max {max:.3}\n"))
    };
    StreamClass::ALL.into_iter().filter_map(line).collect()
}

fn figures(lateness: &Lateness) -> Value {
    let classes: Map<String, Value> = StreamClass::ALL
        .into_iter()
        .filter_map(|class| {
            let summary = lateness.summary(class, &[])?;
            let mut figures = json!(summary.millis);
            figures.as_object_mut()?.insert("early".to_owned(), json!(summary.early));
            Some((class.name().to_owned(), figures))
        })
        .collect();
    json!({"lateness_ms": classes})
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn classes_without_events_are_left_out() {
        let lateness = Lateness::default();
        assert_eq!((exit_summary(&lateness), figures(&lateness)), (String::new(), json!({"lateness_ms": {}})));
        lateness.record(StreamClass::Recorded, 2, Duration::ZERO, Duration::from_micros(250));
        let text = "lateness of 2 recorded events: p50 0.250 ms, p99 0.250, p99.9 0.250, max 0.250\n";
        assert_eq!(exit_summary(&lateness), text);
        let recorded = &figures(&lateness)["lateness_ms"]["recorded"];
        assert_eq!((&recorded["count"], &recorded["p99"], &recorded["early"]), (&json!(2), &json!(0.25), &json!(0)));
    }
}
