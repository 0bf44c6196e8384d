//! The trace and the tokenizer that are in the binary, so that the first command works on a machine that has nothing.

use super::PlayError;
use crate::{
    prompt::{Tokenizer, TokenizerParts},
    trace::{self, Trace},
};

/// Name of the built-in trace in messages.
pub(super) const TRACE_NAME: &str = "the built-in trace";

const TRACE: &[u8] = include_bytes!("../../traces/builtin.jsonl.gz");
const TOKENIZER: &[u8] = include_bytes!("../../traces/smollm2-135m/tokenizer.json.gz");
const TOKENIZER_CONFIG: &[u8] = include_bytes!("../../traces/smollm2-135m/tokenizer_config.json");
const CHAT_TEMPLATE: &str = include_str!("../../traces/smollm2-135m/chat_template.jinja");

/// The built-in trace.
///
/// # Errors
/// None that a test does not catch first.
pub(super) fn trace() -> Result<Trace, PlayError> {
    Ok(trace::read_bytes(TRACE_NAME, TRACE)?)
}

/// The built-in tokenizer: that of SmolLM2-135M-Instruct.
///
/// # Errors
/// None that a test does not catch first.
pub(super) fn tokenizer() -> Result<Tokenizer, PlayError> {
    let json = trace::gunzip("the built-in tokenizer", TOKENIZER)?;
    Ok(Tokenizer::from_parts(&TokenizerParts {
        name: "smollm2-135m",
        tokenizer_json: &json,
        config_json: Some(TOKENIZER_CONFIG),
        chat_template: Some(CHAT_TEMPLATE),
        generation_config_json: None,
    })?)
}
