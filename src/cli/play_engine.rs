//! `play`: what its arguments about the model mean.

use super::args::EngineArgs;
use crate::play::{GenerationConfig, GenerationSource};

/// Where default sampling parameters come from.
pub(super) fn generation(args: &EngineArgs) -> GenerationConfig {
    let source = match args.generation_config.as_str() {
        "auto" => GenerationSource::Auto,
        "vllm" => GenerationSource::Neutral,
        directory => GenerationSource::Directory(directory.into()),
    };
    GenerationConfig { source, overrides: args.override_generation_config.clone() }
}

/// The size of the model's vocabulary, where it was said.
pub(super) fn vocabulary(args: &EngineArgs) -> Option<u32> {
    args.hf_overrides.get("vocab_size")?.as_u64().and_then(|size| u32::try_from(size).ok())
}
