//! Text and tokens: the tokenizer, chat templates, block hashes, and the parsers of reasoning and tool calls.

pub mod parsers;
pub mod prompt;
pub mod python;
