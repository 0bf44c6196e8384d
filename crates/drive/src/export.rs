//! A run in the formats of others: a table of requests, histograms, a Benchmark Report of llm-d.

mod benchmark_report;

use std::{
    io::{self, Write},
    time::{Duration, SystemTime},
};

use base::stats::{Durations, interval_log};

use crate::{numbers::millis, results::Sample};

pub use benchmark_report::{BenchmarkRun, benchmark_report};

/// Columns of the table of requests; times in milliseconds.
const COLUMNS: &str = "request,intended_ms,sent_ms,first_event_ms,ttft_ms,last_token_ms,e2e_ms,tpot_ms,prompt_tokens,output_tokens,events,status,good,keeps_slo,prompt_drift,target";

/// Writes a table of requests as comma-separated values, a line each. What is not known is empty, as the target where there are no several ones.
///
/// # Errors
/// When it cannot be written.
pub fn csv(out: &mut impl Write, samples: &[Sample], targets: &[String]) -> io::Result<()> {
    writeln!(out, "{COLUMNS}")?;
    for sample in samples {
        let times = [
            Some(sample.intended),
            Some(sample.sent),
            sample.first_event,
            sample.ttft,
            sample.last_token,
            Some(sample.e2e),
            sample.tpot,
        ];
        write!(out, "{}", sample.number)?;
        for time in times {
            let millis = time.map(|time| millis(time).to_string());
            write!(out, ",{}", millis.unwrap_or_default())?;
        }
        let Sample { prompt_tokens, output_tokens, chunks, status, is_good, keeps_slo, prompt_drift, .. } = sample;
        let target = sample.target.and_then(|target| targets.get(target)).map(|target| target.replace(',', "%2C"));
        let status = Some(status).filter(|status| **status > 0).map(u16::to_string).unwrap_or_default();
        writeln!(
            out,
            ",{prompt_tokens},{output_tokens},{chunks},{status},{is_good},{keeps_slo},{},{}",
            spelled(*prompt_drift),
            target.unwrap_or_default()
        )?;
    }
    Ok(())
}

fn spelled(drift: Option<i64>) -> String {
    drift.map(|drift| drift.to_string()).unwrap_or_default()
}

/// Distributions of a run's latencies.
#[derive(Debug, Clone)]
pub struct Latencies(pub Vec<(&'static str, Durations)>);

impl Latencies {
    /// Writes them as a log of HdrHistogram, a line each, in microseconds.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, out: &mut impl Write, begin: SystemTime, took: Duration) -> io::Result<()> {
        let distributions: Vec<(&str, &Durations)> =
            self.0.iter().map(|(name, durations)| (*name, durations)).collect();
        interval_log::write(out, begin, took, &distributions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_table_has_a_line_for_each_request() {
        let good = Sample {
            number: 7,
            intended: MS,
            sent: MS * 3,
            first_event: Some(MS * 10),
            ttft: Some(Duration::from_micros(12_500)),
            e2e: MS * 40,
            prompt_tokens: 9,
            output_tokens: 4,
            chunks: 2,
            status: 200,
            is_good: true,
            prompt_drift: Some(-2),
            target: Some(1),
            ..Sample::default()
        };
        let mut table = Vec::new();
        csv(&mut table, &[good, Sample::default()], &["http://a".to_owned(), "http://b/?x=1,2".to_owned()]).unwrap();
        let text = String::from_utf8(table).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[1..],
            ["7,1,3,10,12.5,,40,,9,4,2,200,true,false,-2,http://b/?x=1%2C2", "0,0,0,,,,0,,0,0,0,,false,false,,"]
        );
        assert!(lines.iter().all(|line| line.split(',').count() == COLUMNS.split(',').count()));
    }
}
