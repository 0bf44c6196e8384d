//! The `vllm-vcr` binary: everything is in the library.
//!
//! See docs/decisions/0023-system-allocator.md.

use std::process::ExitCode;

fn main() -> ExitCode {
    vllm_vcr::cli::run(std::env::args_os())
}
