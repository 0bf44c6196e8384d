//! Replaces response ids and times, so that a record served twice does not repeat them.
//!
//! Limits: ids are known by their field and their beginning, as the engines make them; any other text stays.

use std::collections::HashMap;

use super::super::ServerState;

const FIELDS: [&str; 4] = ["\"id\":", "\"item_id\":", "\"call_id\":", "\"response_id\":"];

/// Fields that hold the time of the answer, in seconds since 1970.
const TIMES: [&str; 3] = ["\"created\":", "\"created_at\":", "\"completed_at\":"];

/// Beginnings of ids, the longer ones first.
const PREFIXES: [&str; 16] = [
    "chatcmpl-tool-",
    "chatcmpl-",
    "cmpl-",
    "msg_",
    "resp_",
    "rs_",
    "fc_",
    "ctc_",
    "call_",
    "toolu_",
    "embd-",
    "rerank-",
    "score-",
    "classify-",
    "pool-",
    "generate-tokens-",
];

/// Replacements of recorded ids.
#[derive(Debug)]
pub(in super::super) struct Refresh<'a> {
    state: &'a ServerState,
    /// The id that the recorded client gave its request, and the one of this client.
    requested: Option<(&'a str, &'a str)>,
    now: u64,
    known: HashMap<String, String>,
}

impl<'a> Refresh<'a> {
    pub(in super::super) fn new(
        state: &'a ServerState,
        recorded: Option<&'a str>,
        requested: Option<&'a str>,
        now: u64,
    ) -> Self {
        Self { state, requested: recorded.zip(requested), now, known: HashMap::new() }
    }

    /// A part of the response; the same ids become the same ones in all parts.
    pub(in super::super) fn apply(&mut self, text: &str) -> String {
        let mut text = text.to_owned();
        for field in FIELDS.iter().filter(|field| text.contains(**field)).collect::<Vec<_>>() {
            text = replaced(&text, field, |value| self.id(value.strip_prefix('"')?));
        }
        for field in TIMES.iter().filter(|field| text.contains(**field)).collect::<Vec<_>>() {
            text = replaced(&text, field, |value| {
                let digits = value.bytes().take_while(u8::is_ascii_digit).count();
                // A number of seconds, and no other one.
                (digits == 10).then(|| (digits, self.now.to_string()))
            });
        }
        text
    }

    /// The length of an id with its quotes, and what stands for it.
    fn id(&mut self, rest: &str) -> Option<(usize, String)> {
        let value = rest.get(..rest.find('"')?)?;
        let (prefix, suffix) = PREFIXES.iter().find_map(|prefix| Some((*prefix, value.strip_prefix(prefix)?)))?;
        let is_made = suffix.len() >= 8 && suffix.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let fresh = match self.requested {
            // A recorded client that named no id has that of the response. `/v1/responses` ignores the header.
            Some((recorded, requested)) if suffix == recorded || (value == recorded && prefix != "resp_") => {
                [prefix, requested].concat()
            }
            _ if !is_made => return None,
            _ => self.fresh(value, prefix, suffix.len()),
        };
        Some((value.len() + 2, format!("\"{fresh}\"")))
    }

    fn fresh(&mut self, value: &str, prefix: &str, length: usize) -> String {
        if let Some(known) = self.known.get(value) {
            return known.clone();
        }
        let digits: String = std::iter::repeat_with(|| self.state.fresh_id()).take(length.div_ceil(16)).collect();
        let fresh = [prefix, digits.get(..length).unwrap_or_default()].concat();
        self.known.insert(value.to_owned(), fresh.clone());
        fresh
    }
}

/// Replaces text after each `field`: `with` returns how much of it is replaced, and by what.
fn replaced(text: &str, field: &str, mut with: impl FnMut(&str) -> Option<(usize, String)>) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(field) {
        let (before, value) = rest.split_at(at + field.len());
        let blanks = value.len() - value.trim_start_matches(' ').len();
        let (space, value) = value.split_at(blanks);
        out.push_str(before);
        out.push_str(space);
        rest = value;
        if let Some((length, new)) = with(value)
            && let Some(after) = value.get(length..)
        {
            out.push_str(&new);
            rest = after;
        }
    }
    out.push_str(rest);
    out
}
