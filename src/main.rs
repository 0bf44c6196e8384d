//! The `vllm-vcr` binary: everything is in the library.

use std::process::ExitCode;

/// Requests and events are many small pieces of memory, most of them soon given back: it makes that a third cheaper.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    vllm_vcr::cli::run(std::env::args_os())
}
