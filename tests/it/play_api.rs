//! The replay server's own promises, on the built-in tokenizer.
