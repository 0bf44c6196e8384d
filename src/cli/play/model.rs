//! Flags of `play` about the model and its answers, mostly vLLM's own, and what they mean.

use clap::{Args, ValueEnum};
use serde_json::{Map, Value};

use crate::{
    cli::{
        output,
        values::{json, share},
    },
    engine::OutputTokens,
    play::{
        AnswerOptions, Fingerprint, GenerationConfig, GenerationSource, SyntheticOptions, TokenizerSource, VllmVersion,
    },
};

/// A version of vLLM and the nearest one whose wire is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) struct Version {
    pub(in crate::cli) requested: String,
    /// Its second number.
    pub(in crate::cli) minor: u32,
}

/// The engine's flags about its model.
#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(in crate::cli) struct EngineArgs {
    /// The version of vLLM to imitate, such as 0.32 or 0.25.1. The formats of 0.32 and 0.19 are known; any other 0.x gets the nearest one,
    /// with a notice.
    #[arg(long, value_name = "VERSION", default_value = "0.32", value_parser = version)]
    pub(in crate::cli) vllm_version: Version,
    /// Source of default sampling parameters: `auto` (generation_config.json beside the tokenizer), `vllm` (none), or a directory.
    #[arg(long, group = "@answers", value_name = "SOURCE", default_value = "auto")]
    pub(in crate::cli) generation_config: String,
    /// Default sampling parameters that override those of the file, as JSON, such as {"temperature":0.6,"max_new_tokens":512}.
    #[arg(long, group = "@answers", value_name = "JSON", default_value = "{}", hide_default_value = true, value_parser = object)]
    pub(in crate::cli) override_generation_config: Map<String, Value>,
    /// Parts of the model's config.json as JSON; only `vocab_size` has an effect here.
    #[arg(long, value_name = "JSON", default_value = "{}", hide_default_value = true, value_parser = object)]
    pub(in crate::cli) hf_overrides: Map<String, Value>,
    /// Variables for the chat template as JSON, such as {"enable_thinking":false}; a request's own take precedence.
    #[arg(long, value_name = "JSON", default_value = "{}", hide_default_value = true, value_parser = json::<Map<String, Value>>(""))]
    pub(in crate::cli) default_chat_template_kwargs: Map<String, Value>,
    /// Maximum number of log probabilities per token that a request may ask for; -1 for the whole vocabulary.
    #[arg(long, group = "@answers", value_name = "N", default_value = "20", value_parser = clap::value_parser!(i32).range(-1..))]
    pub(in crate::cli) max_logprobs: i32,
    /// Always writes tokens as token_id:123 in log probabilities, even if a request does not ask for it.
    #[arg(long, group = "@answers")]
    pub(in crate::cli) return_tokens_as_token_ids: bool,
}

/// `0.25`, `v0.25.1` or `0.25.0rc1`.
fn version(text: &str) -> Result<Version, String> {
    let wrong = || format!("{text} is not a version of vLLM; write 0.32 or 0.25.1");
    let rest = text.strip_prefix('v').unwrap_or(text).strip_prefix("0.").ok_or_else(wrong)?;
    let minor = rest.split('.').next().and_then(|minor| minor.parse().ok()).ok_or_else(wrong)?;
    Ok(Version { requested: text.to_owned(), minor })
}

/// A JSON object whose numbers are numbers.
fn object(text: &str) -> Result<Map<String, Value>, String> {
    let given: Map<String, Value> = json("")(text)?;
    match given.iter().find(|(_, value)| value.is_string()) {
        Some((name, value)) => Err(format!("{name} must be a number, not {value}")),
        None => Ok(given),
    }
}

/// Optional parts of responses.
#[derive(Debug, Args)]
#[command(next_help_heading = "Answers")]
pub(in crate::cli) struct AnswerArgs {
    /// The model that the engine was started with, a Hub id or a directory: the root of the models at /v1/models, and the default of
    /// --served-model-name.
    #[arg(long, value_name = "MODEL", help_heading = "Sources")]
    pub(in crate::cli) model: Option<String>,
    /// The same as --model, as `vllm serve` takes it.
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    pub(in crate::cli) model_tag: Option<String>,
    /// Adds the times of a request to `metrics` in the response: to its first token, between tokens, in all.
    #[arg(long, group = "@answers")]
    pub(in crate::cli) enable_per_request_metrics: bool,
    /// The value of `system_fingerprint`: version and hash (full, hash), --fingerprint-value (custom), or nothing (none).
    #[arg(long, group = "@answers", value_name = "MODE", default_value = "full")]
    pub(in crate::cli) fingerprint_mode: FingerprintMode,
    /// The text of --fingerprint-mode custom.
    #[arg(long, group = "@answers", value_name = "TEXT")]
    pub(in crate::cli) fingerprint_value: Option<String>,
}

/// The value of `system_fingerprint`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum FingerprintMode {
    /// Version and hash.
    Full,
    /// The same: there is no parallelism to leave out.
    Hash,
    /// The text of --fingerprint-value.
    Custom,
    /// Nothing.
    None,
}

/// What made-up answers are like.
#[derive(Debug, Args)]
#[command(next_help_heading = "Made-up answers")]
pub(in crate::cli) struct SyntheticArgs {
    /// Length in tokens of a random answer that ends by itself: a number, a range such as 50..400, lognormal:MEAN,SIGMA (mean in tokens,
    /// standard deviation of the logarithm), or trace for the lengths of the served trace. A smaller max_tokens cuts it. Default:
    /// max_tokens, or 128.
    #[arg(long, value_name = "LENGTH", conflicts_with = "strict")]
    pub(in crate::cli) output_tokens: Option<OutputTokens>,
    /// Share of random answers that end by themselves (finish_reason stop), from 0 to 1; the others end at max_tokens. Default: 1 with
    /// --output-tokens and for requests without max_tokens, else 0.
    #[arg(long, value_name = "SHARE", value_parser = share("a share from 0 to 1 is needed, such as 0.3"), conflicts_with = "strict")]
    pub(in crate::cli) stop_rate: Option<f64>,
    /// Share of a random answer that is reasoning, from 0 to 1, if --reasoning-parser is set; with 1 the reasoning never ends. Default:
    /// 0.5.
    #[arg(long, value_name = "SHARE", value_parser = share("a share from 0 to 1 is needed, such as 0.3"))]
    pub(in crate::cli) reasoning_share: Option<f64>,
}

impl From<AnswerArgs> for AnswerOptions {
    fn from(args: AnswerArgs) -> Self {
        Self {
            request_metrics: args.enable_per_request_metrics,
            fingerprint: match args.fingerprint_mode {
                FingerprintMode::Full | FingerprintMode::Hash => Fingerprint::Hash,
                FingerprintMode::Custom => Fingerprint::Custom(args.fingerprint_value),
                FingerprintMode::None => Fingerprint::Custom(None),
            },
            model: args.model.or(args.model_tag),
        }
    }
}

impl From<SyntheticArgs> for SyntheticOptions {
    fn from(SyntheticArgs { output_tokens, stop_rate, reasoning_share }: SyntheticArgs) -> Self {
        let reasoning_share = reasoning_share.unwrap_or(Self::default().reasoning_share);
        Self { output_tokens, stop_rate, reasoning_share }
    }
}

/// Reads the source of default sampling parameters.
pub(in crate::cli) fn generation(args: &EngineArgs) -> GenerationConfig {
    let source = match args.generation_config.as_str() {
        "auto" => GenerationSource::Auto,
        "vllm" => GenerationSource::Neutral,
        directory => GenerationSource::Directory(directory.into()),
    };
    GenerationConfig { source, overrides: args.override_generation_config.clone() }
}

/// Whose wire is spoken; a notice on stderr where it is that of another version than the one that was requested.
pub(in crate::cli) fn spoken_version(args: &EngineArgs) -> VllmVersion {
    notice(args).iter().for_each(|notice| output::note(notice));
    VllmVersion::nearest(args.vllm_version.minor)
}

fn notice(args: &EngineArgs) -> Option<String> {
    let Version { requested, minor } = &args.vllm_version;
    let (spoken, known) = (VllmVersion::nearest(*minor), VllmVersion::ALL.map(VllmVersion::name).join(" and "));
    (*minor != spoken.minor()).then(|| {
        format!(
            "--vllm-version {requested}: responses are those of {}; the known versions are {known}\n",
            spoken.name()
        )
    })
}

/// The value of `--tokenizer` for no tokenizer.
pub(in crate::cli) const NO_TOKENIZER: &str = "none";

/// `none` is no tokenizer; a directory of that name is `./none`.
pub(in crate::cli) fn tokenizer(spec: Option<String>) -> TokenizerSource {
    match spec {
        None => TokenizerSource::BuiltIn,
        Some(spec) if spec == NO_TOKENIZER => TokenizerSource::None,
        Some(spec) => TokenizerSource::Spec(spec),
    }
}

/// The size of the model's vocabulary, where a flag gives it.
pub(in crate::cli) fn vocabulary(args: &EngineArgs) -> Option<u32> {
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
            assert_eq!((spoken_version(&args), notice(&args).is_some()), (spoken, is_noted), "{text}");
        }
        let text = notice(&typed("0.25.1").unwrap()).unwrap();
        assert_eq!(
            text,
            "--vllm-version 0.25.1: responses are those of 0.19.1; the known versions are 0.32.0 and 0.19.1\n"
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
