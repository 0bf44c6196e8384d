//! `play`: what its arguments about the model mean.

use super::{args::EngineArgs, output};
use crate::play::{GenerationConfig, GenerationSource, TokenizerSource, VllmVersion};

/// Reads the source of default sampling parameters.
pub(super) fn generation(args: &EngineArgs) -> GenerationConfig {
    let source = match args.generation_config.as_str() {
        "auto" => GenerationSource::Auto,
        "vllm" => GenerationSource::Neutral,
        directory => GenerationSource::Directory(directory.into()),
    };
    GenerationConfig { source, overrides: args.override_generation_config.clone() }
}

/// Whose wire is spoken; a notice on stderr where it is that of another version than the one that was asked for.
pub(super) fn version(args: &EngineArgs) -> VllmVersion {
    notice(args).iter().for_each(|notice| output::note(notice));
    nearest(args)
}

fn nearest(args: &EngineArgs) -> VllmVersion {
    VllmVersion::nearest(args.vllm_version.minor)
}

fn notice(args: &EngineArgs) -> Option<String> {
    let (asked, spoken) = (&args.vllm_version, nearest(args));
    let known = VllmVersion::ALL.map(VllmVersion::name).join(" and ");
    let (text, name) = (&asked.asked, spoken.name());
    (asked.minor != spoken.minor())
        .then(|| format!("--vllm-version {text}: answers are those of {name}; the known versions are {known}\n"))
}

/// The value of `--tokenizer` for no tokenizer.
pub(super) const NO_TOKENIZER: &str = "none";

/// `none` is no tokenizer; a directory of that name is `./none`.
pub(super) fn tokenizer(spec: Option<String>) -> TokenizerSource {
    match spec {
        None => TokenizerSource::BuiltIn,
        Some(spec) if spec == NO_TOKENIZER => TokenizerSource::None,
        Some(spec) => TokenizerSource::Spec(spec),
    }
}

/// The size of the model's vocabulary, where a flag gives it.
pub(super) fn vocabulary(args: &EngineArgs) -> Option<u32> {
    args.hf_overrides.get("vocab_size")?.as_u64().and_then(|size| u32::try_from(size).ok())
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches;

    use super::*;
    use crate::cli::args::{Cli, Command, command};

    fn typed(version: &str) -> Result<EngineArgs, clap::Error> {
        let matches = command().try_get_matches_from(["vllm-vcr", "play", "--vllm-version", version])?;
        match Cli::from_arg_matches(&matches)?.command {
            Command::Play(args) => Ok(args.engine),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn any_version_gets_the_nearest_known_one_and_a_notice() {
        for (text, spoken, is_noted) in [
            ("0.32", VllmVersion::V0_32, false),
            ("v0.32.5", VllmVersion::V0_32, false),
            ("0.19.1", VllmVersion::V0_19, false),
            ("0.7.3", VllmVersion::V0_19, true),
            ("0.25", VllmVersion::V0_19, true),
            ("0.26.0rc1", VllmVersion::V0_32, true),
            ("0.40", VllmVersion::V0_32, true),
        ] {
            let args = typed(text).unwrap();
            assert_eq!((nearest(&args), notice(&args).is_some()), (spoken, is_noted), "{text}");
        }
        let text = notice(&typed("0.25.1").unwrap()).unwrap();
        assert_eq!(
            text,
            "--vllm-version 0.25.1: answers are those of 0.19.1; the known versions are 0.32.0 and 0.19.1\n"
        );
        for text in ["1.0", "", "0.", "0.x", "latest"] {
            assert_eq!(typed(text).unwrap_err().exit_code(), 2, "{text}");
        }
    }

    #[test]
    fn none_is_no_tokenizer() {
        assert!(matches!(tokenizer(Some("none".to_owned())), TokenizerSource::None));
        assert!(matches!(tokenizer(Some("./none".to_owned())), TokenizerSource::Spec(_)));
        assert!(matches!(tokenizer(None), TokenizerSource::BuiltIn));
    }
}
