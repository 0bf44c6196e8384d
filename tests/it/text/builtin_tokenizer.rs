//! The tokenizer in the binary, held against the `tokenizers` crate that encodes whole texts.

use proptest::prelude::*;
use vllm_vcr::{
    base::cancellation::Cancellation,
    text::prompt::{Conversation, SkipSpecial, SpecialTokens, Tokenizer, TokenizerParts},
};

use crate::support::tokenizers::smollm2_json;

fn named<'a>(name: &'a str, json: &'a [u8]) -> TokenizerParts<'a> {
    TokenizerParts { name, tokenizer_json: json, config_json: None, chat_template: None, generation_config_json: None }
}

fn both() -> (Tokenizer, tokenizers::Tokenizer) {
    let json = smollm2_json();
    (Tokenizer::from_parts(&named("x", &json)).unwrap(), tokenizers::Tokenizer::from_bytes(&json).unwrap())
}

/// `count` words in no order, special tokens and odd white space among them.
fn words(count: usize, mut state: u32) -> String {
    let words = ["river", " ", "  ", "\n", "runs", "日本", " 12", "'s", "<|im_end|>", "\n\n", "x1", ". ", "\t"];
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        words[(state >> 16) as usize % words.len()]
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn the_fast_loader_builds_what_the_crate_builds() {
    let (ours, theirs) = both();
    let vocabulary = theirs.get_vocab(true);
    assert_eq!(ours.vocab_size() as usize, vocabulary.len());
    for (token, id) in vocabulary {
        assert_eq!(ours.token_str(id), Some(token));
    }
}

#[test]
fn every_text_has_the_same_ids_the_first_time_and_from_memory() {
    let (ours, theirs) = both();
    let long = words(90_000, 7);
    assert!(long.len() > 3 * 64 * 1024);
    let unbroken = long.replace("<|im_end|>", "");
    for text in [
        "Hello, world 1234",
        "<|im_start|>user\nÜber 日本語 🎞️\u{2028}<|im_end|>",
        "  tabs\t\n\n",
        "",
        &long,
        &unbroken,
    ] {
        for _ in 0..2 {
            let (add, skip) = (theirs.encode(text, true).unwrap(), theirs.encode(text, false).unwrap());
            assert_eq!(ours.encode(text, SpecialTokens::Add).unwrap(), add.get_ids());
            assert_eq!(ours.encode(text, SpecialTokens::Skip).unwrap(), skip.get_ids());
        }
    }
}

/// Words that end in digits, and scripts without spaces, are cut too.
#[test]
fn texts_without_a_letter_before_a_space_have_the_ids_of_the_whole_text() {
    let (ours, theirs) = both();
    let numbers: String = (0..40_000).map(|at| format!("{} x{at}\n{at}\u{300} ", at * 7919)).collect();
    let sentences: String = (0..20_000).map(|at| format!("日本語の文{at}、とても長い。１２「引用」！")).collect();
    for text in [numbers, sentences] {
        assert_eq!(ours.encode(&text, SpecialTokens::Skip).unwrap(), theirs.encode(text, false).unwrap().get_ids());
    }
}

#[test]
fn a_text_that_cannot_be_cut_is_encoded_up_to_a_limit() {
    let (ours, _) = both();
    let refused = ours.encode(&"a".repeat(30_000_000), SpecialTokens::Skip).unwrap_err().to_string();
    assert!(refused.contains("30000000 bytes of it have no place"), "{refused}");
    assert!(refused.contains("at most 4194304 such bytes"), "{refused}");
}

#[test]
fn a_long_text_is_encoded_no_further_once_nobody_waits_for_it() {
    let (ours, _) = both();
    let long = words(90_000, 7);
    let gone = Cancellation::default();
    assert!(gone.scope(|| ours.encode(&long, SpecialTokens::Skip)).is_ok());
    gone.cancel();
    for text in [&long, &long.replace("<|im_end|>", "")] {
        let ended = gone.scope(|| ours.encode(&text.repeat(2), SpecialTokens::Skip)).unwrap_err();
        assert!(ended.to_string().contains("its client has left"), "{ended}");
    }
}

#[test]
fn a_chat_that_grows_has_the_ids_of_the_whole_text() {
    let (ours, theirs) = both();
    let mut text = String::new();
    for turn in 0..30 {
        text += &format!(
            "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n",
            words(200, turn).replace("<|im_end|>", " ")
        );
        assert_eq!(
            ours.encode(&text, SpecialTokens::Skip).unwrap(),
            theirs.encode(text.as_str(), false).unwrap().get_ids()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_has_the_crates_ids(parts in prop::collection::vec("\\PC{0,60}|(?s:.{0,20})|<\\|im_(start|end)\\|>|<\\|im_|\\|>| {1,4}|\n{1,3}", 0..12)) {
        thread_local! { static BOTH: (Tokenizer, tokenizers::Tokenizer) = both(); }
        let text = parts.concat();
        BOTH.with(|(ours, theirs)| {
            for _ in 0..2 {
                let whole = theirs.encode(text.as_str(), false).unwrap();
                prop_assert_eq!(ours.encode(&text, SpecialTokens::Skip).unwrap(), whole.get_ids());
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_fingerprint_is_the_vocabularys_not_the_files() {
    let json = smollm2_json();
    let mut value: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let original = Tokenizer::from_parts(&named("x", &json)).unwrap();
    let minified = serde_json::to_vec(&value).unwrap();
    assert_eq!(Tokenizer::from_parts(&named("y", &minified)).unwrap().fingerprint(), original.fingerprint());
    value["added_tokens"][2]["special"] = false.into();
    let changed = serde_json::to_vec(&value).unwrap();
    assert_ne!(Tokenizer::from_parts(&named("z", &changed)).unwrap().fingerprint(), original.fingerprint());
}

#[test]
fn the_built_in_tokenizer_renders_and_tells_its_ids() {
    let tokenizer = vllm_vcr::play::Player::builtin_tokenizer().unwrap();
    assert_eq!((tokenizer.name(), tokenizer.eos_ids()), ("smollm2-135m", [2].as_slice()));
    let ordinary = tokenizer.ordinary_ids();
    assert!(ordinary.len() > 40_000 && ordinary.iter().all(|id| *id > 16 && *id < tokenizer.vocab_size()));
    let messages = [serde_json::json!({"role": "user", "content": "Hi"})];
    let conversation = Conversation {
        messages: &messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        continue_final_message: false,
        takes_media: false,
        kwargs: &serde_json::Map::new(),
    };
    let text = tokenizer.chat_template().unwrap().render(&conversation).unwrap();
    assert!(text.starts_with("<|im_start|>system\nYou are") && text.ends_with("<|im_start|>assistant\n"), "{text}");
    let ids = tokenizer.encode(&text, SpecialTokens::Skip).unwrap();
    assert_eq!(tokenizer.decode(&ids, SkipSpecial::Keep).unwrap(), text);
}
