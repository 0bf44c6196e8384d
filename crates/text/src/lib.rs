//! Text and tokens: the tokenizer, chat templates, block hashes, and the parsers of reasoning and tool calls.

extern crate base;
extern crate self as text;

pub mod parsers;
pub mod prompt;
