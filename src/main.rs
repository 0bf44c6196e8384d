//! The `vllm-vcr` binary: everything is in the library.

fn main() {}
