//! Records that were written by hand stay in a cassette that is recorded again.

use super::{CHAT, Shelf, chat, engine, record, said, vcr};

const BY_HAND: &str = "- id: 7
  match: {contains: busy}
  times: 2
  tags: [mine]
  answer:
    status: 503
    error: {message: Try again., type: server_error}
";
const DEFAULT: &str = "- match: any
  answer: I have no answer for that.
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_keep_their_places_and_their_words() {
    let upstream = engine().await;
    for (top, same_place) in [("", true), ("match: [ordered]\n", false)] {
        let records = [record(&["a"], "A"), BY_HAND.to_owned(), record(&["b"], "B"), DEFAULT.to_owned()].concat();
        let shelf = Shelf::with(&format!("vcr: 1\n{top}records:\n{records}"));
        let tap = shelf.tap(&upstream, &["--mode", "all"]);
        for word in ["a", "b", "busy"] {
            assert_eq!(said(&tap.send(CHAT, &chat(&[word])).await), format!("You said {word}."), "all goes upstream");
        }
        let (code, log) = tap.stop();
        assert!(code == 0 && log.contains("2 records will be replaced, 2 with `match` stay"), "{log}");
        assert!(log.contains("recorded 3 interactions"), "{log}");
        let text = shelf.text();
        let places = ["You said a.", "match: {contains: busy}", "You said b.", "match: any"]
            .map(|part| text.find(part).unwrap());
        assert_eq!(places.is_sorted(), same_place, "{text}");
        for part in ["times: 2", "tags: [mine]", "message: Try again.", "answer: I have no answer for that."] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert_eq!(text.contains("- id: 7\n  match: {contains: busy}"), same_place, "{text}");
        assert!(vcr(&["cassette", "validate", shelf.name()]).status.success());
        // Recorded again, no line changes.
        let tap = shelf.tap(&upstream, &["--mode", "all"]);
        for word in ["a", "b", "busy"] {
            tap.send(CHAT, &chat(&[word])).await;
        }
        assert_eq!(tap.stop().0, 0);
        assert_eq!(shelf.text(), text);
        let play = shelf.play(&["--match", "canonical"]);
        assert_eq!(said(&play.send(CHAT, &chat(&["other"])).await), "I have no answer for that.");
        assert_eq!(play.send(CHAT, &chat(&["very busy"])).await.status, 503);
    }
}
