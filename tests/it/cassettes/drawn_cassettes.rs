//! Cassettes changed at random: they are read or refused with a line, in bounded time, and what is read is written as it
//! was read.

use std::path::Path;

use vllm_vcr::recording::cassette::{Cassette, CassetteRecord, Echo, RecordedAnswer, emit, parse};

use crate::support::drawn_bytes::Run;

const NAME: &str = "drawn.yaml";

/// The records without their lines and the form in which their requests are written; fields of messages that are null are
/// not written, as the engine sends null for all that it has not.
fn shown(cassette: &Cassette) -> Vec<String> {
    let shown = |record: &CassetteRecord| {
        let bare = CassetteRecord {
            line: 0,
            like: None,
            echo: Echo::default(),
            answer: RecordedAnswer::default(),
            ..record.clone()
        };
        format!("{bare:?} {}", record.answer.shown())
    };
    cassette.records.iter().map(shown).collect()
}

fn read_and_written(text: &str) {
    let read = match parse(Path::new(NAME), text) {
        Ok(read) => read,
        Err(error) => {
            assert!(error.to_string().starts_with(&format!("{NAME}:")), "{error} names no line of {text:?}");
            return;
        }
    };
    let written = emit(&read.header, &read.records, &read.tools);
    let again = parse(Path::new(NAME), &written).unwrap_or_else(|error| panic!("{error}:\n{written}\nof {text:?}"));
    assert_eq!(shown(&again), shown(&read), "{text:?} became\n{written}");
    assert_eq!(emit(&again.header, &again.records, &again.tools), written, "{text:?} is written in two ways");
}

fn cassettes(run: Run) {
    run.each_input("cassettes", |input, _| read_and_written(&String::from_utf8_lossy(input)));
}

#[test]
fn damaged_cassettes_are_refused_or_written_as_they_were_read() {
    cassettes(Run::short_of(300));
}

#[test]
#[ignore = "runs for VCR_FUZZ_SECONDS"]
fn cassettes_for_long() {
    cassettes(Run::long());
}
