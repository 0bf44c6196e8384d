//! What counts as an answer, and what counts in the figures.

use serde_json::json;

use super::*;
use recording::trace::Chunk;

const MS: Duration = Duration::from_millis(1);

/// A streamed answer with so many tokens, one each millisecond.
fn answer(tokens: u32) -> Record {
    Record {
        output_tokens: tokens,
        chunks: (0..tokens).map(|_| Chunk { gap: MS, tokens: 1, step: None }).collect(),
        e2e: Some(MS * (tokens + 1)),
        stream: Some(true),
        status: Some(200),
        outcome: Some(Outcome::Finished),
        finish_reason: Some(recording::trace::FinishReason::Stop),
        ..Record::default()
    }
}

fn recorded(record: Record) -> WorkloadRequest {
    WorkloadRequest { record, number: 0, at: Duration::ZERO, session: 0 }
}

/// Results of requests that were recorded so, and came so.
fn results(slo: &str, came: &[(Record, Record)]) -> Results {
    let results = Results::new(&Workload::default(), slo.parse().unwrap(), Duration::ZERO, false);
    for (number, (old, new)) in came.iter().enumerate() {
        let request = if new.choice.is_some_and(|choice| choice > 0) { number - 1 } else { number };
        results.add(request, &recorded(old.clone()), Duration::ZERO, Duration::ZERO, &mut new.clone());
    }
    results
}

#[test]
fn an_answer_without_a_token_keeps_no_limit_of_tokens_and_is_too_short() {
    let report = results("ttft=1s,itl=1s", &[(answer(10), answer(0)), (answer(10), answer(10))]).report();
    assert_eq!((report.failed, report.output_drift.unwrap().off), (0, 1));
    assert!((report.goodput.unwrap() * 2.0 - report.request_throughput).abs() < 1e-6, "{report:?}");
}

#[test]
fn what_is_no_answer_of_a_model_is_an_error_in_the_record_too() {
    let results = Results::new(&Workload::default(), Slo::default(), Duration::ZERO, false);
    let page = Record { finish_reason: None, ..answer(0) };
    for (mut came, outcome) in [(page, Outcome::Error), (answer(0), Outcome::Finished), (answer(2), Outcome::Finished)]
    {
        results.add(0, &recorded(answer(2)), Duration::ZERO, Duration::ZERO, &mut came);
        assert_eq!(came.outcome, Some(outcome), "{came:?}");
    }
    let report = results.report();
    assert_eq!((report.failed, report.by_outcome["error"], report.by_outcome["finished"]), (1, 1, 2));
}

#[test]
fn the_tokens_of_all_choices_count_everywhere() {
    let choice = |choice: u32, tokens: u32| Record { choice: Some(choice), ..answer(tokens) };
    let results = results("e2e=1s", &[(answer(3), choice(0, 3)), (answer(3), choice(1, 5))]);
    let (report, samples) = (results.report(), results.samples());
    assert_eq!((report.output_tokens, report.requests, samples[0].output_tokens, samples[0].chunks), (8, 1, 8, 8));
    assert_eq!(samples[0].last_token, Some(MS * 5));
    assert!((report.token_goodput.unwrap() - report.output_throughput).abs() < 1e-6, "{report:?}");
}

#[test]
fn a_request_that_is_refused_as_it_was_has_not_failed() {
    let refused = |status| Record { status: Some(status), outcome: Some(Outcome::Error), ..Record::default() };
    let left = Record { outcome: Some(Outcome::ClientGone), ..answer(2) };
    let came = [
        (refused(400), refused(400)),
        (refused(429), refused(500)),
        (answer(1), refused(404)),
        (left.clone(), left.clone()),
        (Record { finish_reason: None, ..left.clone() }, Record { output_tokens: 0, finish_reason: None, ..left }),
        (answer(1), answer(1)),
    ];
    let report = results("e2e=1s", &came).report();
    assert_eq!((report.requests, report.failed, report.as_recorded), (6, 2, 1));
    let failures = [("error with status 404", 1), ("error with status 500", 1)];
    assert_eq!(report.failures, failures.map(|(end, count)| (end.to_owned(), count)).into());
}

#[test]
fn several_targets_are_counted_apart() {
    let of = |target: &str, status| {
        let extra = [(TARGET.to_owned(), json!(target)), (UNREAD_EVENTS.to_owned(), json!(2))];
        Record { status: Some(status), extra: extra.into_iter().collect(), ..answer(1) }
    };
    let came = [of("http://a", 200), of("http://b", 429), of("http://b", 200)].map(|record| (answer(1), record));
    let results = results("e2e=1s", &came);
    let report = results.report();
    let counts = [("http://a", (1, 1)), ("http://b", (2, 1))];
    let counts = counts.map(|(target, (requests, good))| (target.to_owned(), TargetCounts { requests, good }));
    assert_eq!((report.by_target, report.unread_events), (counts.into(), 6));
    assert_eq!(results.samples().iter().map(|sample| sample.target).collect::<Vec<_>>(), [Some(0), Some(1), Some(1)]);
}
