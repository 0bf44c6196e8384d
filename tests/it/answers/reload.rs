//! Files of answers that change while they are served.

use std::{process::Command, time::Duration};

use serde_json::json;
use tokio::{io::AsyncReadExt, time::sleep};

use super::{CHAT, Rules, Running, asked, chat, said};
use crate::support::client::{open, post};

/// Asks until the answer is this one.
async fn until(play: &Running, words: &str, wanted: &str) {
    for _ in 0..600 {
        if said(&play.send(CHAT, &chat(&[words])).await) == wanted {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("`{wanted}` was never answered");
}

#[tokio::test]
async fn a_changed_file_is_read_again_and_streams_go_on() {
    let rules = Rules::new(
        "- {match: {contains: slow}, answer: {parts: [{text: Old}, {after: 4s, text: ' still.'}]}}\n- {match: any, answer: one}\n",
    );
    let play = rules.play(&[]);
    let mut stream = open(play.address, &post(CHAT, &asked("slow", &json!({"stream": true})))).await;
    let mut read = Vec::new();
    while !String::from_utf8_lossy(&read).contains("Old") {
        assert!(stream.read_buf(&mut read).await.unwrap() > 0, "it ended early");
    }
    std::fs::write(&rules.file, "records:\n- {match: any, answer: another}\n").unwrap();
    until(&play, "slow", "another").await;
    stream.read_to_end(&mut read).await.unwrap();
    let text = String::from_utf8(read).unwrap();
    assert!(text.contains(" still.") && text.contains("[DONE]"), "{text}");
    let (code, log) = play.stop();
    assert!(code == 0 && log.contains("answers: read 1 rule again"), "{log}");
}

#[tokio::test]
async fn a_wrong_file_leaves_the_rules_of_before() {
    let rules = Rules::new("- {match: any, answer: one}\n");
    let mut play = rules.play(&[]);
    std::fs::write(&rules.file, "records:\n- {match: any, answer: two}\n- {match: {odd: 1}, answer: three}\n").unwrap();
    Command::new("kill").args(["-HUP", &play.id().to_string()]).status().unwrap();
    play.waits_for("answers: the earlier rules stay in use: ");
    for _ in 0..10 {
        assert_eq!(said(&play.send(CHAT, &chat(&["x"])).await), "one");
        sleep(Duration::from_millis(50)).await;
    }
    std::fs::write(&rules.file, "records:\n- {match: any, answer: four}\n").unwrap();
    Command::new("kill").args(["-HUP", &play.id().to_string()]).status().unwrap();
    until(&play, "x", "four").await;
    let (code, log) = play.stop();
    assert!(
        code == 0
            && log.contains("answers: the earlier rules stay in use: ")
            && log.contains("answers.yaml:3: `match.odd`"),
        "{log}"
    );
}
