//! The ids behind a golden: from itself, its script, its token strings or a twin that has them, else found by
//! cutting its text into as many tokens as it counted. With them, the records of a trace.

use std::collections::HashMap;

use serde_json::{Value, json};
use vllm_vcr::text::prompt::{BlockHashAlgorithm, BlockHasher, SkipSpecial, SpecialTokens, Tokenizer};

use super::golden::Golden;

/// One choice of an answer: ids per chunk, when each chunk came, and how the choice ended.
#[derive(Debug, Default)]
struct Choice {
    chunks: Vec<Chunk>,
    finish: String,
    stop_token: Option<u64>,
    ends_in_eos: bool,
}

#[derive(Debug, Default)]
struct Chunk {
    at: f64,
    text: String,
    ids: Option<Vec<u32>>,
    /// Tokens as log probabilities spell them.
    spelled: Option<Vec<String>>,
    /// Tokens of the choice up to here.
    total: Option<u64>,
}

/// Other recordings of the same output.
#[derive(Debug, Clone, Copy)]
pub(super) struct Twins<'a> {
    /// One that tells its ids.
    pub(super) told: Option<&'a Golden>,
    /// One that was streamed, whose events tell tokens apart.
    pub(super) stream: Option<&'a Golden>,
}

/// Finds ids by their text.
pub(super) struct Ids<'a> {
    tokenizer: &'a Tokenizer,
    by_text: HashMap<String, u32>,
    longest: usize,
}

impl<'a> Ids<'a> {
    pub(super) fn new(tokenizer: &'a Tokenizer) -> Self {
        let text = |id: u32| Some((tokenizer.decode(&[id], SkipSpecial::Skip).ok()?, id));
        let by_text: HashMap<_, _> =
            (0..tokenizer.vocab_size()).rev().filter_map(text).filter(|(text, _)| !text.is_empty()).collect();
        let longest = by_text.keys().map(String::len).max().unwrap_or(0);
        Self { tokenizer, by_text, longest }
    }

    /// The records of a golden, one per choice; `None` if its ids are unknown.
    pub(super) fn records(&self, golden: &Golden, twins: Twins<'_>) -> Option<Vec<Value>> {
        let usage = usage(golden);
        let output = usage["completion_tokens"].as_u64().or(usage["output_tokens"].as_u64());
        let found = choices(golden);
        let only = (found.len() == 1).then_some(output).flatten();
        let told: Vec<Choice> = twins.told.map(choices).unwrap_or_default();
        let made = found.iter().enumerate().map(|(at, choice)| {
            let asked = golden.request.body["max_tokens"].as_u64().filter(|_| choice.finish == "length");
            self.record(golden, choice, self.chunks(golden, choice, told.get(at), only.or(asked))?, &usage)
        });
        let made: Option<Vec<Value>> = made.collect();
        made.or_else(|| {
            let mut made = self.records(twins.stream?, Twins { told: None, stream: None })?;
            for record in &mut made {
                record["cached_tokens"] = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0).into();
            }
            Some(made)
        })
    }

    fn record(
        &self,
        golden: &Golden,
        choice: &Choice,
        mut chunks: Vec<(f64, Vec<u32>)>,
        usage: &Value,
    ) -> Option<Value> {
        let eos = self.tokenizer.eos_ids()[0];
        if choice.ends_in_eos && chunks.last().is_none_or(|(_, ids)| ids.last() != Some(&eos)) {
            let at = chunks.last().map_or(1.0, |(at, _)| at + 1.0);
            chunks.push((at, vec![eos]));
        }
        if golden.cut {
            // What came after the client left is not known; it is not compared either.
            let (at, ids) = chunks.last()?.clone();
            chunks.extend((1..9).map(|later| (at + f64::from(later), vec![ids[0]])));
        }
        chunks.retain(|(_, ids)| !ids.is_empty());
        let gaps: Vec<f64> = chunks.windows(2).map(|pair| (pair[1].0 - pair[0].0).max(0.0)).collect();
        let sizes: Vec<usize> = chunks.iter().skip(1).map(|(_, ids)| ids.len()).collect();
        let ids: Vec<u32> = chunks.iter().flat_map(|(_, ids)| ids.clone()).collect();
        // Messages tell cached tokens apart.
        let input = usage["input_tokens"].as_u64().map(|tokens| {
            let apart = ["cache_read_input_tokens", "cache_creation_input_tokens"];
            tokens + apart.iter().filter_map(|name| usage[*name].as_u64()).sum::<u64>()
        });
        let mut record = json!({
            "prompt_tokens": usage["prompt_tokens"].as_u64().or(input).unwrap_or(1),
            "output_tokens": ids.len(), "ttft_ms": chunks.first()?.0, "itl_ms": gaps, "itl_tokens": sizes,
            "output_token_ids": ids, "finish_reason": recorded_reason(&choice.finish), "group": golden.case,
        });
        let cached = &usage["prompt_tokens_details"]["cached_tokens"];
        if let Some(cached) = cached.as_u64().or(usage["cache_read_input_tokens"].as_u64()) {
            record["cached_tokens"] = cached.into();
        }
        if let Some(stop) = choice.stop_token {
            record["stop_token"] = stop.into();
        }
        Some(record)
    }

    fn chunks(
        &self,
        golden: &Golden,
        choice: &Choice,
        twin: Option<&Choice>,
        count: Option<u64>,
    ) -> Option<Vec<(f64, Vec<u32>)>> {
        let one_by_one = |ids: Vec<u32>| -> Vec<(f64, Vec<u32>)> {
            let first = choice.chunks.first().map_or(1.0, |chunk| chunk.at);
            counted(choice, &ids)
                .unwrap_or_else(|| ids.into_iter().enumerate().map(|(at, id)| (first + at as f64, vec![id])).collect())
        };
        let framed = |ids: Vec<Vec<u32>>| choice.chunks.iter().map(|chunk| chunk.at).zip(ids).collect();
        if let Some(ids) = told(choice) {
            return Some(framed(ids));
        }
        if let Some(ids) = twin.and_then(told) {
            return Some(one_by_one(ids.concat()));
        }
        if let Some(script) = script(&golden.request.body) {
            let mut ids = self.tokenizer.encode(&script, SpecialTokens::Skip).ok()?;
            ids.push(self.tokenizer.eos_ids()[0]);
            if choice.finish == "repetition" {
                // The engine's detector ended it, which the record tells and play does not find out by itself.
                let count = count.and_then(|count| usize::try_from(count).ok());
                ids.truncate(count.unwrap_or(choice.chunks.len()));
            }
            return Some(one_by_one(ids));
        }
        let spelled =
            |chunk: &Chunk| chunk.spelled.as_ref()?.iter().map(|text| self.by_text.get(text).copied()).collect();
        if let Some(ids) = choice.chunks.iter().map(spelled).collect::<Option<Vec<Vec<u32>>>>() {
            return Some(framed(ids));
        }
        let texts: Vec<&str> = choice.chunks.iter().map(|chunk| chunk.text.as_str()).collect();
        let texts = without_echo(golden, &texts);
        let is_last_silent = choice.ends_in_eos && texts.last().is_some_and(String::is_empty);
        let shown = if is_last_silent { &texts[..texts.len() - 1] } else { &texts[..] };
        if golden.events.is_some() {
            let single: Option<Vec<Vec<u32>>> = shown.iter().map(|text| Some(vec![*self.by_text.get(text)?])).collect();
            if let Some(ids) = single.filter(|_| !golden.request.path.starts_with("/v1/messages")) {
                return Some(framed(ids));
            }
        }
        if let Some(sizes) = sizes(choice) {
            let cut: Option<Vec<Vec<u32>>> = texts.iter().zip(sizes).map(|(text, size)| self.cut(text, size)).collect();
            if let Some(ids) = cut {
                return Some(framed(ids));
            }
        }
        let count =
            count.map_or(shown.len(), |count| usize::try_from(count).unwrap() - usize::from(choice.ends_in_eos));
        self.cut(&texts.concat(), count).map(one_by_one)
    }

    /// This text as exactly `count` tokens.
    fn cut(&self, text: &str, count: usize) -> Option<Vec<u32>> {
        let plain = self.tokenizer.encode(text, SpecialTokens::Skip).ok()?;
        // A tokenizer that normalises would change the text.
        if plain.len() == count && self.tokenizer.decode(&plain, SkipSpecial::Keep).is_ok_and(|again| again == text) {
            return Some(plain);
        }
        let bounds: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
        // The ways to reach each bound: for every number of tokens, the token that came last and where it began.
        let mut reached: Vec<HashMap<usize, (usize, u32)>> = vec![HashMap::new(); bounds.len()];
        reached[0].insert(0, (0, 0));
        for from in 0..bounds.len() {
            let counts: Vec<usize> = reached[from].keys().copied().filter(|so_far| *so_far < count).collect();
            for to in from + 1..bounds.len() {
                if counts.is_empty() || bounds[to] - bounds[from] > self.longest {
                    break;
                }
                let Some(id) = self.by_text.get(&text[bounds[from]..bounds[to]]) else { continue };
                for so_far in &counts {
                    reached[to].entry(so_far + 1).or_insert((from, *id));
                }
            }
        }
        let (mut at, mut left, mut ids) = (bounds.len() - 1, count, Vec::new());
        while left > 0 {
            let (from, id) = *reached[at].get(&left)?;
            ids.push(id);
            (at, left) = (from, left - 1);
        }
        ids.reverse();
        (at == 0).then_some(ids)
    }
}

/// How many tokens each chunk holds, where each says how many there were.
fn sizes(choice: &Choice) -> Option<Vec<usize>> {
    let mut before = 0;
    let size = |chunk: &Chunk| {
        let total = usize::try_from(chunk.total?).ok()?;
        total.checked_sub(std::mem::replace(&mut before, total))
    };
    choice.chunks.iter().map(size).collect()
}

/// Ids in the chunks in which they came, where each chunk says how many there were.
fn counted(choice: &Choice, ids: &[u32]) -> Option<Vec<(f64, Vec<u32>)>> {
    let sizes = sizes(choice).filter(|sizes| !sizes.is_empty() && sizes.iter().sum::<usize>() <= ids.len())?;
    let mut rest = ids;
    let mut take = |size: usize| {
        let (taken, left) = rest.split_at(size);
        rest = left;
        taken.to_vec()
    };
    let times = choice.chunks.iter().map(|chunk| chunk.at);
    let mut made: Vec<(f64, Vec<u32>)> = times.zip(sizes.into_iter().map(&mut take)).collect();
    let last = made.last()?.0;
    made.extend(rest.iter().enumerate().map(|(at, id)| (last + 1.0 + at as f64, vec![*id])));
    Some(made)
}

fn told(choice: &Choice) -> Option<Vec<Vec<u32>>> {
    choice
        .chunks
        .iter()
        .map(|chunk| chunk.ids.clone())
        .collect::<Option<Vec<_>>>()
        .filter(|ids| !ids.concat().is_empty())
}

/// A completion that repeats its prompt has it in front of its first token.
fn without_echo(golden: &Golden, texts: &[&str]) -> Vec<String> {
    let body = &golden.request.body;
    let echoed = body["prompt"].as_str().filter(|_| body["echo"] == true).unwrap_or_default();
    let strip =
        |(at, text): (usize, &&str)| if at == 0 { text.strip_prefix(echoed).unwrap_or(text) } else { text }.to_owned();
    texts.iter().enumerate().map(strip).collect()
}

/// The text that the scripted engine was to generate.
fn script(body: &Value) -> Option<String> {
    if let Some(script) = body["vllm_xargs"]["script"].as_str() {
        return Some(script.to_owned());
    }
    let text = body["input"].as_str().or(body["messages"][0]["content"].as_str())?;
    Some(text.split_once("[[SCRIPT]]")?.1.split_once("[[/SCRIPT]]")?.0.to_owned())
}

fn recorded_reason(told: &str) -> &str {
    match told {
        "length" | "max_tokens" | "incomplete" | "" => "length",
        "repetition" => "repetition",
        "abort" => "abort",
        _ => "stop",
    }
}

fn usage(golden: &Golden) -> Value {
    let json = golden.json();
    if json["usage"].is_object() {
        return json["usage"].clone();
    }
    let found = |payload: &Value| {
        [&payload["usage"], &payload["response"]["usage"]].into_iter().find(|usage| usage.is_object()).cloned()
    };
    golden.payloads().iter().rev().find_map(|(_, payload)| found(payload)).unwrap_or_default()
}

/// The choices of an answer of any generation endpoint.
fn choices(golden: &Golden) -> Vec<Choice> {
    if golden.events.is_none() {
        let json = golden.json();
        if let Some(choices) = json["choices"].as_array() {
            return choices.iter().map(full_choice).collect();
        }
        let parts = json["content"].as_array().or(json["output"][0]["content"].as_array());
        let text = |part: &Value| part["text"].as_str().or(part["thinking"].as_str()).unwrap_or_default().to_owned();
        let Some(parts) = parts else { return Vec::new() };
        let chunk = Chunk { at: 1.0, text: parts.iter().map(text).collect(), ..Chunk::default() };
        let finish = json["stop_reason"].as_str().or(json["status"].as_str()).unwrap_or_default().to_owned();
        let ends_in_eos = ["end_turn", "completed"].contains(&finish.as_str());
        return vec![Choice { chunks: vec![chunk], finish, stop_token: None, ends_in_eos }];
    }
    let mut choices: Vec<Choice> = Vec::new();
    for (at, payload) in golden.payloads() {
        if let Some(choice) = payload["choices"].get(0) {
            let index = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
            choices.resize_with(choices.len().max(index + 1), Default::default);
            let delta = &choice["delta"];
            // A chat that repeats its last message does so in an event without ids.
            let is_echo = delta.is_object() && choice.get("token_ids").is_none();
            if delta.get("role").is_none() && !is_echo {
                add_event(&mut choices[index], at, choice);
                choices[index].chunks.last_mut().unwrap().total = payload["usage"]["completion_tokens"].as_u64();
            }
        } else {
            choices.resize_with(1.max(choices.len()), Default::default);
            add_named_event(&mut choices[0], at, &payload);
        }
    }
    choices
}

fn full_choice(choice: &Value) -> Choice {
    let mut full = Choice::default();
    let message = &choice["message"];
    let text: String =
        [&choice["text"], &message["reasoning"], &message["content"]].iter().filter_map(|part| part.as_str()).collect();
    add_event(&mut full, 1.0, choice);
    full.chunks[0].text = text;
    full
}

fn add_event(to: &mut Choice, at: f64, choice: &Value) {
    let text = choice["text"].as_str().or(choice["delta"]["content"].as_str()).unwrap_or_default().to_owned();
    let ids = serde_json::from_value(choice["token_ids"].clone()).ok();
    let logprobs = &choice["logprobs"];
    let token = |part: &Value| part["token"].as_str().or(part.as_str()).map(str::to_owned);
    let spelled = logprobs["content"].as_array().or(logprobs["tokens"].as_array());
    let spelled = spelled.and_then(|parts| parts.iter().map(token).collect());
    to.chunks.push(Chunk { at, text, ids, spelled, total: None });
    if let Some(finish) = choice["finish_reason"].as_str() {
        finish.clone_into(&mut to.finish);
        to.stop_token = choice["stop_reason"].as_u64();
        to.ends_in_eos = ["stop", "tool_calls"].contains(&finish) && choice["stop_reason"].is_null();
    }
}

/// An event of `/v1/messages` or `/v1/responses`.
fn add_named_event(to: &mut Choice, at: f64, payload: &Value) {
    let delta = &payload["delta"];
    let text = delta.as_str().or(delta["text"].as_str()).or(delta["thinking"].as_str());
    if let Some(text) = text {
        to.chunks.push(Chunk { at, text: text.to_owned(), ..Chunk::default() });
    }
    let finish = delta["stop_reason"].as_str().or(payload["response"]["status"].as_str());
    if let Some(finish) = finish {
        finish.clone_into(&mut to.finish);
        to.ends_in_eos = ["end_turn", "completed"].contains(&finish);
    }
}

/// The chained hash of each token of a prompt, as a trace with blocks of one token has them.
pub(super) fn block_hashes(tokenizer: &Tokenizer, prompt: &str) -> Vec<u64> {
    let ids = tokenizer.encode(prompt, SpecialTokens::Add).unwrap();
    BlockHasher::new(BlockHashAlgorithm::Fnv1a64, 1).hash(&ids).blocks
}
