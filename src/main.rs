//! The `vllm-vcr` binary: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    vllm_vcr::cli::run(std::env::args_os())
}
