//! `play`: what its arguments about the model mean.

use super::args::{EngineArgs, Version};
use crate::play::{GenerationConfig, GenerationSource, VllmVersion};

/// Where default sampling parameters come from.
pub(super) fn generation(args: &EngineArgs) -> GenerationConfig {
    let source = match args.generation_config.as_str() {
        "auto" => GenerationSource::Auto,
        "vllm" => GenerationSource::Neutral,
        directory => GenerationSource::Directory(directory.into()),
    };
    GenerationConfig { source, overrides: args.override_generation_config.clone() }
}

/// Whose wire is spoken.
pub(super) fn version(args: &EngineArgs) -> VllmVersion {
    match args.vllm_version {
        Version::V0_32 => VllmVersion::V0_32,
        Version::V0_19 => VllmVersion::V0_19,
    }
}

/// The size of the model's vocabulary, where it was said.
pub(super) fn vocabulary(args: &EngineArgs) -> Option<u32> {
    args.hf_overrides.get("vocab_size")?.as_u64().and_then(|size| u32::try_from(size).ok())
}
