//! Bytes of the canary that a client received, in any field and any number of events.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::Value;

use super::{
    answers::{MARK, escaped},
    canary::Canary,
    matrix::CanaryForm,
};
use crate::prove::ReadEvents;

/// Bytes of the canary that count as a leak without the mark before them: fewer may occur by chance.
const UNMARKED: usize = 8;

/// Fields by which the parts of a stream are distinguished.
const PLACES: [&str; 4] = ["type", "index", "output_index", "content_index"];

/// Texts of a response by their field: what the events of a stream add to the same field is one text.
#[derive(Debug, Default)]
pub(super) struct SeenTexts(BTreeMap<String, String>);

impl SeenTexts {
    /// Reads a stream or a body; what is neither is one text.
    pub(super) fn of(body: &Bytes) -> Self {
        let mut texts = Self::default();
        if let Ok(value) = serde_json::from_slice::<Value>(body) {
            texts.add(&mut String::new(), &value);
            return texts;
        }
        for event in ReadEvents::of(body).events {
            match &event.data {
                Value::String(text) => texts.put("", text),
                data => texts.add(&mut String::new(), data),
            }
        }
        // Also the bytes that are not event data: comments, event names, and text after the last event.
        texts.put("wire", &String::from_utf8_lossy(body));
        texts
    }

    fn put(&mut self, path: &str, text: &str) {
        match self.0.get_mut(path) {
            Some(known) => known.push_str(text),
            None => drop(self.0.insert(path.to_owned(), text.to_owned())),
        }
    }

    fn add(&mut self, path: &mut String, value: &Value) {
        let length = path.len();
        match value {
            Value::String(text) => self.put(path, text),
            Value::Array(items) => {
                let bytes: Option<Vec<u8>> = items.iter().map(|item| u8::try_from(item.as_u64()?).ok()).collect();
                if let Some(bytes) = bytes.filter(|bytes| !bytes.is_empty()) {
                    return self.put(path, &String::from_utf8_lossy(&bytes));
                }
                items.iter().for_each(|item| self.add(path, item));
            }
            Value::Object(fields) => {
                for place in PLACES.iter().filter_map(|name| fields.get(*name)) {
                    path.push_str(&format!("[{place}]"));
                }
                let of_object = path.len();
                for (name, value) in fields {
                    path.push('.');
                    path.push_str(name);
                    self.add(path, value);
                    path.truncate(of_object);
                }
                // Names of fields may be tokens too, such as those of log probabilities.
                let names: String = fields.keys().map(String::as_str).collect();
                path.push_str(".*");
                self.put(path, &names);
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
        path.truncate(length);
    }

    /// Bytes of the canary that are in any of the texts, in this form or as it is: its longest beginning.
    pub(super) fn leaked(&self, canary: &Canary, form: CanaryForm) -> usize {
        let shown = canary.shown(form);
        let in_form = canary.bytes_of(form, self.longest(&shown));
        let plain = if form == CanaryForm::Plain { 0 } else { self.unmarked(canary.text()) };
        in_form.max(plain)
    }

    fn longest(&self, text: &str) -> usize {
        let json = escaped(text);
        let marked = self.0.values().map(|seen| {
            let after = seen.match_indices(MARK).filter_map(|(at, mark)| seen.get(at + mark.len()..));
            after.map(|after| common(after, text).max(raw(common(after, &json), text, &json))).max().unwrap_or(0)
        });
        marked.max().unwrap_or(0).max(self.unmarked(text))
    }

    /// The longest beginning of a text anywhere, if it is long enough not to be there by chance.
    fn unmarked(&self, text: &str) -> usize {
        let least = UNMARKED.min(text.len());
        let Some(start) = (least..=text.len()).find_map(|end| text.get(..end)) else { return 0 };
        let seen = self.0.values().flat_map(|seen| seen.match_indices(start).filter_map(|(at, _)| seen.get(at..)));
        seen.map(|seen| common(seen, text)).max().unwrap_or(0)
    }
}

/// Bytes of a text that so many bytes of it as JSON stand for.
fn raw(bytes: usize, text: &str, json: &str) -> usize {
    if text.len() == json.len() {
        return bytes;
    }
    let whole = text.char_indices().map(|(at, character)| at + character.len_utf8());
    whole.take_while(|end| text.get(..*end).is_some_and(|part| escaped(part).len() <= bytes)).last().unwrap_or(0)
}

/// Bytes that both begin with.
fn common(one: &str, other: &str) -> usize {
    let pairs = one.chars().zip(other.chars());
    pairs.take_while(|(one, other)| one == other).map(|(character, _)| character.len_utf8()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaked(body: &str) -> usize {
        let canary = Canary::new("hunter-2-forever".to_owned(), vec![]).unwrap();
        SeenTexts::of(&Bytes::from(body.to_owned())).leaked(&canary, CanaryForm::Plain)
    }

    fn chunk(choice: usize, text: &str) -> String {
        let event = serde_json::json!({"choices": [{"index": choice, "delta": {"content": text}}]});
        format!("data: {event}\n\n")
    }

    #[test]
    fn what_is_cut_is_put_together() {
        assert_eq!(leaked(&[chunk(0, "says » hun"), chunk(0, "te"), chunk(0, "[blocked]")].concat()), 5);
        // Another choice is another text, and the same letters elsewhere are no leak.
        assert_eq!(leaked(&[chunk(0, "says » hun"), chunk(1, "ter"), chunk(0, "x hunt")].concat()), 3);
        assert_eq!(leaked(&chunk(0, "a hunter-")), 0);
        assert_eq!(leaked(&chunk(0, "a hunter-2-x")), 9);
        assert_eq!(leaked(": hunter-2-forever\n\n"), 16);
    }

    #[test]
    fn it_is_found_in_any_field_and_form() {
        let bytes: Vec<u8> = "» hunter-2-forever".bytes().collect();
        let logprobs = |text: &[u8]| serde_json::json!({"choices": [{"logprobs": {"content": [{"bytes": text}]}}]});
        assert_eq!(leaked(&logprobs(&bytes).to_string()), 16);
        let cut: String =
            [&bytes[..7], &bytes[7..9]].iter().map(|text| format!("data: {}\n\n", logprobs(text))).collect();
        assert_eq!(leaked(&cut), 6);
        let top = serde_json::json!({"choices": [{"logprobs": {"top_logprobs": [{"» ": 1.5}, {"hunter-2-": 1.5}]}}]});
        assert_eq!(leaked(&top.to_string()), 9);
        assert_eq!(leaked("upstream said hunter-2-forever"), 16);
        let canary = Canary::new("hunter-2-forever".to_owned(), vec![]).unwrap();
        let shown = canary.shown(CanaryForm::Base64).into_owned();
        let seen = SeenTexts::of(&Bytes::from(chunk(0, &format!("» {}", &shown[..8]))));
        assert_eq!((seen.leaked(&canary, CanaryForm::Base64), seen.leaked(&canary, CanaryForm::Plain)), (6, 0));
    }

    #[test]
    fn quotes_in_arguments_count_as_they_are() {
        let canary = Canary::new("a\"b\"c".to_owned(), vec![]).unwrap();
        let delta =
            serde_json::json!({"type": "content_block_delta", "delta": {"partial_json": "{\"note\": \"» a\\\"b\\"}});
        let seen = SeenTexts::of(&Bytes::from(format!("data: {delta}\n\n")));
        assert_eq!(seen.leaked(&canary, CanaryForm::Plain), 3);
    }
}
