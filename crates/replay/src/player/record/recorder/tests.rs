use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::player::RecordErrors;
use recording::{
    cassette::{AnswerContent, RecordedAnswer, load},
    redaction::RedactionRules,
    trace::Outcome,
};

fn output(folder: &tempfile::TempDir) -> CassetteOutput {
    let path = folder.path().join("a.yaml");
    CassetteOutput { path, header: Header::default(), mode: WriteMode::Replace, is_full: false }
}

fn request(path: &str) -> ExchangeRequest {
    ExchangeRequest { method: "POST".to_owned(), target: path.to_owned(), size: 10, ..ExchangeRequest::default() }
}

fn end<S: Sink<Item = SinkEntry>>(mut pending: PendingExchange<S>, body: &'static [u8]) {
    pending.status = 200;
    let mut capture = pending.capture();
    capture.received(&Bytes::from_static(body), Duration::from_millis(1));
    pending.end(capture, Vec::new(), Outcome::Finished);
}

#[test]
fn records_stand_in_the_order_of_their_requests_and_unsubmitted_ones_hold_nothing_up() {
    let folder = tempfile::tempdir().unwrap();
    let output = output(&folder);
    let recorder = Arc::new(CassetteRecorder::create(&output, &PlayerConfig::default()).unwrap());
    let begin = |path: &str| recorder.begin(request(path), Instant::now());
    let [first, second, third, fourth] = ["/1", "/2", "/3", "/4"].map(begin);
    end(third, b"3");
    drop(second);
    end(first, b"1");
    let mut failed = fourth;
    failed.status = 503;
    let capture = failed.capture();
    failed.end(capture, Vec::new(), Outcome::Finished);
    let report = recorder.finish().unwrap();
    let left = Some("a client left before its response began".to_owned());
    let expected =
        RecordReport { recorded: 2, skipped: 1, unanswered: 1, unanswered_why: left, ..RecordReport::default() };
    assert_eq!(report, expected);
    let records = load(&output.path).unwrap().records;
    let found: Vec<(&str, &AnswerContent)> = records.iter().map(|it| (it.path.as_str(), &it.answer.content)).collect();
    let expected = [AnswerContent::Json(1.into()), AnswerContent::Json(3.into())];
    assert_eq!(found, [("/1", &expected[0]), ("/3", &expected[1])]);
}

#[test]
fn what_waits_long_for_an_earlier_exchange_is_in_the_partial_file_and_in_order_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.yaml");
    let writer = CassetteWriter::create(&path, &Header::default(), WriteMode::Replace).unwrap();
    let arrivals: Arc<OpenArrivals> = Arc::default();
    let shared = (Arc::clone(&arrivals), Arc::default(), Arc::new(RecorderProgress::new(Capacity::default())));
    let mut sink = CassetteSink::new(Some(writer), RedactionRules::default(), RecordErrors::Lasting, shared);
    let numbers = [0; 4].map(|_| arrivals.begin());
    let take = |sink: &mut CassetteSink, number: u64| {
        let answer = RecordedAnswer { status: 200, ..RecordedAnswer::default() };
        let record = CassetteRecord {
            method: "GET".to_owned(),
            path: format!("/{number}"),
            answer,
            ..CassetteRecord::default()
        };
        let content = EntryContent::Replayed(Box::new(RecordedExchange { record, ..RecordedExchange::default() }));
        arrivals.end(number);
        sink.begin_batch();
        sink.record(SinkEntry { number, weight: 1, content });
        sink.end_batch();
        sink.flush();
    };
    let paths = |path: &std::path::Path| -> Vec<String> {
        let file = folder.path().join("copy.yaml");
        std::fs::copy(path, &file).unwrap();
        load(&file).unwrap().records.into_iter().map(|record| record.path).collect()
    };
    let partial = folder.path().join("a.yaml.partial");
    take(&mut sink, numbers[0]);
    take(&mut sink, numbers[2]);
    assert_eq!(paths(&partial), ["/0"]);
    sink.let_pass(Duration::from_secs(6));
    sink.flush();
    assert_eq!(paths(&partial), ["/0", "/2"]);
    take(&mut sink, numbers[3]);
    assert_eq!(paths(&partial), ["/0", "/2"], "not written again at once");
    sink.let_pass(Duration::from_secs(6));
    std::fs::remove_file(&partial).unwrap();
    sink.flush();
    assert_eq!(paths(&partial), ["/0", "/2", "/3"]);
    take(&mut sink, numbers[1]);
    assert_eq!(paths(&partial), ["/0", "/1", "/2", "/3"]);
    sink.finish().unwrap();
    assert_eq!(paths(&path), ["/0", "/1", "/2", "/3"]);
}

/// A sink on a disk that does not answer.
struct Blocked(Receiver<()>);

impl Sink for Blocked {
    type Item = SinkEntry;
    type Ending = ();

    fn weight(entry: &SinkEntry) -> usize {
        entry.weight
    }

    fn record(&mut self, _: SinkEntry) {
        let _ended = self.0.recv();
    }

    fn flush(&mut self) {}

    fn finish(self) {}
}

#[test]
fn requests_never_wait_for_a_disk_that_does_not_answer_and_what_does_not_fit_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (allow, allowed) = channel();
    let recorder = {
        let progress = Arc::new(RecorderProgress::default());
        let shared = (Arc::default(), progress);
        CassetteRecorder::start(Blocked(allowed), Arc::default(), shared, &output(&folder), Duration::ZERO)
    };
    let recorder = Arc::new(recorder.unwrap());
    let most = u64::try_from(Capacity::default().items).unwrap();
    for _ in 0..=2 * most {
        end(recorder.begin(request("/x"), Instant::now()), b"{}");
    }
    // The thread took one batch of at most the capacity, and as many wait.
    let dropped = recorder.report().queue_full;
    assert!((1..=most + 1).contains(&dropped), "{dropped}");
    assert_eq!(recorder.report().missing(), dropped);
    drop(allow);
}
