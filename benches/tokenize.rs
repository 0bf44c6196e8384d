//! Tokenizes a chat of 100,000 tokens anew, and again when it grew by one turn.
//!
//! `cargo bench --bench tokenize` prints both times (best of 5) and their ratio.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)]

use std::{fmt::Write, time::Duration};

use tokio::time::Instant;
use vllm_vcr::{
    play::Player,
    text::prompt::{SpecialTokens, Tokenizer},
};

const TOKENS: usize = 100_000;
const ROUNDS: usize = 5;

fn main() {
    let mut chat = String::new();
    let mut turn = 0;
    let builtin = Player::builtin_tokenizer().expect("the built-in tokenizer loads");
    let mut tokens = 0;
    while tokens < TOKENS {
        let said = said(turn);
        tokens += builtin.encode(&said, SpecialTokens::Skip).expect("text encodes").len();
        chat += &said;
        turn += 1;
    }
    let grown = chat.clone() + &said(turn);
    let (mut anew, mut again) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        let fresh = Player::builtin_tokenizer().expect("the built-in tokenizer loads");
        anew = anew.min(time(&fresh, &chat));
        again = again.min(time(&fresh, &grown));
    }
    let percent = 100.0 * again.as_secs_f64() / anew.as_secs_f64();
    println!("{tokens} tokens in {turn} turns: anew {anew:?}, one turn later {again:?} ({percent:.1} %)");
}

fn time(tokenizer: &Tokenizer, text: &str) -> Duration {
    let start = Instant::now();
    std::hint::black_box(tokenizer.encode(text, SpecialTokens::Skip).expect("text encodes"));
    start.elapsed()
}

fn said(turn: usize) -> String {
    let mut text = String::from("<|im_start|>user\n");
    for number in 0..40 {
        let _ =
            write!(text, "In turn {turn} the {number}th river runs through village {}, and says so. ", turn * number);
    }
    text + "<|im_end|>\n<|im_start|>assistant\nIndeed.<|im_end|>\n"
}
