//! Prompts, parsers and constraints against what vLLM and the tokenizers library made of the same input.

mod accumulated_streams;
mod builtin_tokenizer;
mod chat_templates;
mod constraints;
mod detokenizer;
mod prompt_ids;
mod tool_and_reasoning_parsers;
