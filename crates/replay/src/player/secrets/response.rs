//! Secrets in a response as it was sent.

use serde_json::Value;

use super::{alike::finds_nothing, redact_body, redact_lines, redact_moments, spelled::has_tokens};
use net::wire::recorded_json_as_utf8;
use recording::{
    redaction::Redactor,
    trace::{Response, ResponseContent},
};

/// Takes the secrets out of a response. True where anything was found; what holds none stays byte for byte.
pub fn redact_response(redactor: &mut Redactor<'_>, response: &mut Response) -> bool {
    let mut found = false;
    if let ResponseContent::Body(body) = &response.content {
        redactor.learn_text(&String::from_utf8_lossy(body));
    }
    for (name, value) in &mut response.headers {
        found |= redactor.header(name, value).map(|clean| *value = clean).is_some();
    }
    let in_content = match &mut response.content {
        ResponseContent::Body(body) => clean_body(redactor, body).map(|clean| *body = clean).is_some(),
        ResponseContent::Events(events) => !finds_nothing(redactor, events) && redact_moments(redactor, events),
    };
    found || in_content
}

/// A body without its secrets; `None` where it has none. JSON in UTF-16 and UTF-32 is searched as UTF-8.
fn clean_body(redactor: &mut Redactor<'_>, body: &[u8]) -> Option<Vec<u8>> {
    let text = recorded_json_as_utf8(body);
    let value = serde_json::from_slice::<Value>(&text).ok().filter(has_tokens);
    if let Some(mut value) = value
        && redact_body(redactor, &mut value)
    {
        return Some(value.to_string().into_bytes());
    }
    let Ok(whole) = std::str::from_utf8(&text) else { return redactor.bytes(&text) };
    let lines = redact_lines(redactor, whole);
    redactor.body(lines.as_deref().unwrap_or(whole).as_bytes()).or(lines.map(String::into_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::{cassette::Moment, redaction::RedactionRules};

    #[test]
    fn a_secret_that_events_cut_is_found_and_the_rest_stays_as_it_was() {
        let event = |text: &str| {
            let data = format!(r#"{{"type": "content_block_delta", "delta":{{"type":"text_delta","text":"{text}"}}}}"#);
            Moment(1.0, Some(data), Some("content_block_delta".to_owned()))
        };
        let first = event("Write to jane.d");
        let moments = vec![first.clone(), event("oe@example.org now"), event("ok")];
        let mut response = Response { content: ResponseContent::Events(moments), ..Response::default() };
        let rules = RedactionRules::all();
        assert!(redact_response(&mut Redactor::new(&rules), &mut response));
        let ResponseContent::Events(events) = &response.content else { panic!("no events") };
        let text: String = events.iter().filter_map(|Moment(_, data, _)| data.clone()).collect();
        assert!(
            !text.contains("jane") && !text.contains("oe@example") && text.contains("[REDACTED:email:1]"),
            "{text}"
        );
        assert_eq!(events[2], event("ok"));
        let mut body = Response { content: ResponseContent::Body(b"{\"a\": 1}".to_vec()), ..Response::default() };
        assert!(!redact_response(&mut Redactor::new(&rules), &mut body));
        assert_eq!(body.content, ResponseContent::Body(b"{\"a\": 1}".to_vec()));
    }

    /// An event with this text: of one of two choices, in several shapes.
    fn moment((choice, shape, text): (usize, usize, &str)) -> Moment {
        let text = serde_json::to_string(text).unwrap();
        let id = ["chatcmpl-1", "mistral", "4111", "\u{0}"][shape % 4];
        let data = match shape {
            0..=3 => {
                format!(r#"{{"id":"{id}","choices":[{{"index":{choice},"delta":{{"content":{text}}}}}],"model":"m"}}"#)
            }
            4 => format!(
                r#"{{"choices":[{{"index":{choice},"delta":{{"tool_calls":[{{"function":{{"arguments":{text}}}}}]}}}}]}}"#
            ),
            5 => format!(r#"{{"choices":[{{"text":{text}}},{{"text":"x"}}]}}"#),
            6 => format!(r#"{{"password":{{"content":{text}}}}}"#),
            7 => format!(r#"{{"name":{text},"value":"hunter2hunter2","content":"c"}}"#),
            _ => text.trim_matches('"').to_owned(),
        };
        Moment(1.0, Some(data), (shape == 1).then(|| "message".to_owned()))
    }

    fn both(rules: &RedactionRules, mut moments: Vec<Moment>) -> bool {
        let (mut quick, mut slow) = (Redactor::new(rules), Redactor::new(rules));
        let is_clean = finds_nothing(&mut quick, &moments);
        let before = moments.clone();
        assert!(!(is_clean && redact_moments(&mut slow, &mut moments)), "{before:#?}\n{moments:#?}");
        assert!(!is_clean || before == moments);
        is_clean
    }

    #[test]
    fn most_streams_are_found_to_hold_nothing_at_once() {
        let rules = RedactionRules::default();
        let texts = ["Hello", " world", ",\n\"so\" ", "é", " [", "1]", " key", " is", " 7"];
        for shape in [0, 1, 4] {
            let turns = (0..60).map(|at| moment((at % 2, shape, texts[at % texts.len()])));
            assert!(both(&rules, turns.chain([Moment(2.0, Some("[DONE]".to_owned()), None)]).collect()), "{shape}");
        }
        for (shape, text) in [(5, "word"), (6, "word"), (7, "password")] {
            assert!(!both(&rules, (0..60).map(|_| moment((0, shape, text))).collect()), "{shape}");
        }
        // An id of four digits that all events repeat may be a card's number to a search of all of them.
        for count in 1..30 {
            both(&rules, (0..count).map(|_| moment((0, 2, "word"))).collect());
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig { failure_persistence: None, ..proptest::prelude::ProptestConfig::with_cases(400) })]
        #[test]
        fn what_is_found_to_hold_nothing_holds_nothing(
            shapes in proptest::collection::vec(0_usize..9, 1..3),
            parts in proptest::collection::vec((0_usize..2, 0_usize..8, 0_usize..22), 1..40),
        ) {
            const TEXTS: [&str; 22] = [
                "ghp_abcdefghijklm", "nopqrstuvwxyz0123456789", " ", "{\"password\":\"", "hunter2hunter2", "\"}", "x", "\n", "%67", "hp_",
                "[REDACTED:", "email:1]", "4111", "1111", "-", "jane@example", ".org", "pass", "word", "=", "\u{0}", "",
            ];
            let of = |(choice, shape, text): (usize, usize, usize)| moment((choice, shapes[usize::from(shape == 0) % shapes.len()], TEXTS[text]));
            let moments: Vec<Moment> = parts.into_iter().map(of).collect();
            both(&RedactionRules::all(), moments.clone());
            both(&RedactionRules::default().pattern("own", "^pass|x$").unwrap().literal("word", "hp_x").unwrap(), moments);
        }
    }
}
