//! The trace and the tokenizer that are in the binary, so that the first command works on a machine that has nothing.
//!
//! See docs/decisions/0022-builtin-tokenizer-loads-in-the-background.md.

use crate::PlayError;
use recording::trace::{self, Trace};
use text::prompt::{KnownTokenizer, PromptError, Tokenizer, TokenizerParts};

/// Name of the built-in trace in messages.
pub const TRACE_NAME: &str = "the built-in trace";

/// Name of the built-in tokenizer, and so of its model.
pub(crate) const NAME: &str = "smollm2-135m";

const TRACE: &[u8] = include_bytes!("../../../../traces/builtin.jsonl.gz");
const TOKENIZER: &[u8] = include_bytes!("../../../../traces/smollm2-135m/tokenizer.json.gz");
const TOKENIZER_CONFIG: &[u8] = include_bytes!("../../../../traces/smollm2-135m/tokenizer_config.json");
/// Fingerprint and size of the tokenizer, so that its tables are read with the first request that needs them.
const KNOWN: KnownTokenizer = KnownTokenizer { fingerprint: "b45055ee55878d63", vocab_size: 49152 };
const CHAT_TEMPLATE: &str = include_str!("../../../../traces/smollm2-135m/chat_template.jinja");

/// The built-in trace.
pub(crate) fn trace() -> Result<Trace, PlayError> {
    Ok(trace::read_bytes(TRACE_NAME, TRACE)?)
}

/// The built-in tokenizer: that of SmolLM2-135M-Instruct.
pub(crate) fn tokenizer() -> Result<Tokenizer, PromptError> {
    Tokenizer::beside(&parts(&[]), KNOWN, || json().unwrap_or_default())
}

fn json() -> Result<Vec<u8>, PlayError> {
    Ok(trace::gunzip("the built-in tokenizer", TOKENIZER)?)
}

fn parts(json: &[u8]) -> TokenizerParts<'_> {
    TokenizerParts {
        name: NAME,
        tokenizer_json: json,
        config_json: Some(TOKENIZER_CONFIG),
        chat_template: Some(CHAT_TEMPLATE),
        generation_config_json: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_of_the_tokenizer_is_so() {
        let made = Tokenizer::from_parts(&parts(&json().unwrap())).unwrap();
        let known = tokenizer().unwrap();
        assert_eq!((made.fingerprint(), made.vocab_size()), (KNOWN.fingerprint, KNOWN.vocab_size));
        assert_eq!((known.fingerprint(), known.vocab_size()), (KNOWN.fingerprint, KNOWN.vocab_size));
        assert_eq!((known.eos_ids(), known.token_id("hello")), (made.eos_ids(), made.token_id("hello")));
        assert!(known.token_id("hello").is_some());
    }
}
