//! The guide of hand-written answers: its cassettes are played, and what it shows is what comes.

use serde_json::{Value, json};

use super::{CHAT, agent, chat, said, vcr};
use crate::support::{running::Running, tree};

/// The fences of the page: their language and text.
fn fences() -> Vec<(String, String)> {
    let page = tree::read("docs/src/guides/fixtures.md");
    let fences = page.split("\n```").skip(1).step_by(2);
    fences
        .map(|fence| fence.split_once('\n').unwrap())
        .map(|(kind, text)| (kind.to_owned(), format!("{text}\n")))
        .collect()
}

/// A cassette named as in the guide.
struct Guide {
    _folder: tempfile::TempDir,
    name: String,
}

impl Guide {
    fn with(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("fixtures.yaml");
        std::fs::write(&file, text).unwrap();
        Self { name: file.to_str().unwrap().to_owned(), _folder: folder }
    }

    fn play(&self) -> Running {
        Running::start(&["play", "--port", "0", "--cassette", &self.name])
    }
}

#[tokio::test]
async fn every_cassette_of_the_guide_answers_as_it_shows() {
    let fences = fences();
    let (mut cassettes, mut answers) = (0, 0);
    for (at, (kind, text)) in fences.iter().enumerate() {
        if !(kind == "yaml" && text.starts_with("vcr: 1\n")) {
            continue;
        }
        cassettes += 1;
        let guide = Guide::with(text);
        let checked = vcr(&["cassette", "validate", &guide.name]);
        assert!(checked.status.success(), "{text}\n{}", String::from_utf8_lossy(&checked.stderr));
        let play = guide.play();
        let shown = fences.get(at + 1).filter(|(kind, _)| kind == "text");
        for line in shown.into_iter().flat_map(|(_, shown)| shown.lines()) {
            let Some((asked, expected)) = line.split_once(" -> ") else { continue };
            let answer = play.send(CHAT, &chat(&[asked.trim_matches('"')])).await;
            let got = if answer.status == 200 { said(&answer) } else { answer.status.to_string() };
            assert_eq!(got, expected, "{line}");
            answers += 1;
        }
        if text.contains("tool_calls") {
            let seen = agent(&play, "the weather", json!(true)).await.unwrap_or_else(|miss| panic!("{}", miss.text()));
            assert_eq!(seen[0]["call"]["name"], "get_weather");
            assert_eq!(seen[1]["content"], "The tool says: 15 degrees");
        }
    }
    assert!(cassettes == 4 && answers == 8, "{cassettes} cassettes, {answers} answers");
}

#[tokio::test]
async fn the_journal_the_clock_and_the_miss_are_as_the_guide_shows_them() {
    let fences = fences();
    let shown = |kind: &str, start: &str| {
        let found = fences.iter().find(|(language, text)| language == kind && text.starts_with(start));
        found.unwrap_or_else(|| panic!("{kind} {start}")).1.trim().to_owned()
    };
    let guide =
        Guide::with("vcr: 1\nclock: 2026-06-17T12:00:00Z\nrecords:\n- {match: {contains: weather}, answer: a}\n");
    let play = guide.play();
    play.send(CHAT, &chat(&["weather"])).await;
    let mut journal = play.get("/vcr/requests").await;
    journal[0]["time"] = json!("2026-06-17T12:00:00Z");
    assert_eq!(journal, serde_json::from_str::<Value>(&shown("json", "[{\"number\"")).unwrap());
    let clock = play.get("/vcr/clock").await;
    assert_eq!(clock, serde_json::from_str::<Value>(&shown("json", "{\"base_time\"")).unwrap());
    let miss = play.send(CHAT, &chat(&["Hi"])).await;
    let message = miss.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(message.lines().next().unwrap(), shown("text", "No record answers"));
}
