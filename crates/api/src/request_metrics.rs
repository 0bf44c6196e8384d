//! Times of a request for `--enable-per-request-metrics`, in milliseconds.

use std::time::Duration;

use serde_json::{Map, Value};

/// Times of the one choice that an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestTimes {
    /// From its arrival until it ran.
    pub queued: Duration,
    /// From when it ran until its first token.
    pub first_token: Duration,
    /// From its first token until its last.
    pub generation: Duration,
}

impl RequestTimes {
    /// In a full body: every null is there.
    pub(super) fn full(&self, tokens: u32) -> String {
        let mut fields = self.fields(tokens);
        fields.insert("speculative_decoding".to_owned(), Value::Null);
        Value::Object(fields).to_string()
    }

    /// On the last event of a stream; nulls are left out.
    pub(super) fn closing(&self, tokens: u32) -> String {
        let mut fields = self.fields(tokens);
        fields.retain(|_, value| !value.is_null());
        Value::Object(fields).to_string()
    }

    /// The mean is over the gaps between tokens; the rate is over all the time that the request ran.
    pub(super) fn fields(&self, tokens: u32) -> Map<String, Value> {
        let milliseconds = |time: Duration| time.as_secs_f64() * 1000.0;
        let gaps = tokens.saturating_sub(1);
        let ran = milliseconds(self.first_token + self.generation);
        let fields = [
            ("time_to_first_token_ms", Some(milliseconds(self.first_token))),
            ("generation_time_ms", Some(milliseconds(self.generation))),
            ("queue_time_ms", Some(milliseconds(self.queued))),
            ("mean_itl_ms", (gaps > 0).then(|| milliseconds(self.generation) / f64::from(gaps))),
            ("tokens_per_second", (ran > 0.0).then(|| f64::from(tokens) / ran * 1000.0)),
        ];
        fields.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_the_engines() {
        let ms = Duration::from_millis;
        let times = RequestTimes { queued: ms(0), first_token: ms(20), generation: ms(30) };
        let fields = r#""time_to_first_token_ms":20.0,"generation_time_ms":30.0,"queue_time_ms":0.0,"mean_itl_ms":"#;
        let all = r#","tokens_per_second":80.0,"speculative_decoding":null}"#;
        assert_eq!(times.full(4), format!("{{{fields}10.0{all}"));
        assert_eq!(times.closing(4), format!("{{{fields}10.0,\"tokens_per_second\":80.0}}"));
    }

    #[test]
    fn what_cannot_be_is_null_or_left_out() {
        let times = RequestTimes { queued: Duration::ZERO, first_token: Duration::ZERO, generation: Duration::ZERO };
        let all = r#"mean_itl_ms":null,"tokens_per_second":null,"speculative_decoding":null}"#;
        assert!(times.full(1).ends_with(all));
        assert!(times.closing(1).ends_with(r#""queue_time_ms":0.0}"#));
    }
}
