//! What a token costs before it is written: its text, and its event.
//!
//! `cargo bench --bench encode` prints one JSON object with nanoseconds per token (best of 5): `detokenize_ns` for ids to
//! text with the built-in tokenizer, `chat_event_ns`, `completion_event_ns` and `escaped_event_ns` for text to an event, the
//! last for text that has to be escaped. `cargo bench --bench encode -- --json FILE` writes the object to a file, too.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout, clippy::cast_precision_loss)]

use std::{fs, hint::black_box};

use bytes::BytesMut;
use serde_json::json;
use tokio::time::Instant;
use vllm_vcr::{
    api::{AnswerHead, AnswerNames, Api, ChoiceChunk, UsageEvents},
    play::Player,
    text::prompt::{SkipSpecial, Tokenizer},
};

const TOKENS: usize = 200_000;
const ROUNDS: usize = 5;
/// Bytes of a buffer that is sent and given back.
const FRAME: usize = 16 * 1024;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let tokenizer = Player::builtin_tokenizer().expect("the built-in tokenizer loads");
    let ids: Vec<u32> = tokenizer.ordinary_ids().iter().copied().cycle().step_by(37).take(TOKENS).collect();
    let mut detokenizer = tokenizer.detokenizer(&[], SkipSpecial::Skip);
    let texts: Vec<String> = ids.iter().map(|id| detokenizer.push(*id).expect("ids decode")).collect();
    let escaped: Vec<String> = texts.iter().map(|text| format!("\"{text}\n")).collect();
    let found = json!({
        "tokens": TOKENS,
        "detokenize_ns": best(|| detokenize(&tokenizer, &ids)),
        "chat_event_ns": best(|| events(Api::Chat, &texts)),
        "completion_event_ns": best(|| events(Api::Completions, &texts)),
        "escaped_event_ns": best(|| events(Api::Chat, &escaped)),
    });
    println!("{found}");
    if let Some(file) = args.iter().position(|arg| arg == "--json").and_then(|at| args.get(at + 1)) {
        fs::write(file, format!("{found}\n")).expect("the file can be written");
    }
}

/// Nanoseconds per token of the best round.
fn best(mut round: impl FnMut()) -> f64 {
    let time = |()| {
        let start = Instant::now();
        round();
        start.elapsed().as_nanos() as f64 / TOKENS as f64
    };
    [(); ROUNDS].map(time).into_iter().fold(f64::MAX, f64::min)
}

fn detokenize(tokenizer: &Tokenizer, ids: &[u32]) {
    let mut detokenizer = tokenizer.detokenizer(&[], SkipSpecial::Skip);
    let mut text = String::new();
    for id in ids {
        text.clear();
        detokenizer.push_onto(*id, &mut text).expect("ids decode");
        black_box(&text);
    }
}

fn events(api: Api, texts: &[String]) {
    let names = AnswerNames { id: "0123456789abcdef", model: "HuggingFaceTB/SmolLM2-135M-Instruct", fingerprint: None };
    let head = AnswerHead::new(api, &names, 1_795_000_000, UsageEvents::None);
    let mut out = BytesMut::with_capacity(2 * FRAME);
    for text in texts {
        head.put_piece(&mut out, &ChoiceChunk { text, ..ChoiceChunk::default() });
        if out.len() > FRAME {
            black_box(&out);
            out.clear();
        }
    }
}
