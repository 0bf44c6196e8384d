//! Arguments of `play`, made into the configuration of its server.

use std::{num::NonZeroU32, path::PathBuf};

use crate::{
    api::{
        RequestTemplates::{Refused, Trusted},
        Spelling,
    },
    base::units::TimeScale,
    cli::{
        failure::Failure,
        play::{
            args::{PaceArg, PlayArgs},
            engine, faults, fleet, lora, model, sources,
        },
        player::{self, matching},
        redaction,
    },
    play::{Config, ServerOptions, Source, Synthetic, Unmatched},
    replay::{
        matching::{MatchBy, MinMatch},
        player::OnMiss,
        timing::Pacing,
    },
    text::parsers::Formats,
};

pub(in crate::cli) fn config(args: PlayArgs) -> Result<Config, Failure> {
    let lora = lora::config(&args.lora)?;
    let engine = engine::config(&args, lora.as_ref())?;
    let faults = faults::config(&args.faults)?;
    let (pacing, order, min_match) = (pacing(&args), order(&args), min_match(&args));
    let on_exhausted = player::on_exhausted(&args.cassettes, args.strict);
    let unmatched = if refuses_misses(&args) { Unmatched::Refuse } else { Unmatched::Random };
    let (default, is_core) = (Config::default(), args.simulated.engine_core.is_some());
    let (replicas, threads) = (args.simulated.replicas(), args.server.threads);
    let mut server = ServerOptions::from(args.server);
    server.simulator.servers = NonZeroU32::new(replicas).unwrap_or(NonZeroU32::MIN);
    Ok(Config {
        source: source(args.synthetic, args.replay_tokens),
        strict_trace: args.strict_trace,
        order,
        min_match,
        on_exhausted,
        loose_after_exhausted: args.cassettes.loose_after_exhausted,
        pacing,
        unmatched,
        miss_status: args.cassettes.miss_status,
        miss_detail: args.cassettes.miss_detail,
        secrets: redaction::rules(&args.redaction)?,
        synthetic: args.made_up.into(),
        unmatched_pace: args.unmatched_pace,
        tokenizer: model::tokenizer(args.tokenizer),
        served_model_names: args.served_model_name,
        max_model_len: args.max_model_len.and_then(|length| length.0).map(std::num::NonZeroU32::get),
        block_size: args.block_size,
        lora,
        engine,
        data_parallel_size: args.simulated.data_parallel_size,
        seed: args.seed,
        prompt_tokens_details: args.enable_prompt_tokens_details,
        request_id_headers: args.enable_request_id_headers,
        answers: args.answers.into(),
        generation: model::generation(&args.engine),
        vocabulary: model::vocabulary(&args.engine),
        vllm_version: if is_core { default.vllm_version } else { model::spoken_version(&args.engine) },
        server,
        chat_template: args.chat_template,
        template_kwargs: args.engine.default_chat_template_kwargs,
        request_templates: if args.trust_request_chat_template { Trusted } else { Refused },
        stream_interval: args.stream_interval,
        scale_out: args.enable_scale_out,
        multimodal: args.multimodal,
        parsers: Formats {
            reasoning: args.reasoning_parser,
            tools: args.tool_call_parser.filter(|_| args.enable_auto_tool_choice),
        },
        max_logprobs: args.engine.max_logprobs,
        token_spelling: if args.engine.return_tokens_as_token_ids { Spelling::Id } else { Spelling::Text },
        threads: threads.or_else(|| fleet::threads(replicas)),
        drain: args.drain_timeout,
        mcp_hosts: args.mcp.mcp_host,
        faults,
        ..default
    })
}

fn source(synthetic: Option<Synthetic>, trace_files: Vec<PathBuf>) -> Source {
    match synthetic {
        Some(kind) => Source::Synthetic(kind),
        None if trace_files.is_empty() => Source::BuiltIn,
        None => Source::Files(trace_files),
    }
}

/// Chooses the pace where no flag does: tests that run as a command beside a cassette do not wait for its recorded times.
///
/// See docs/decisions/0080-no-waiting-under-a-command.md.
pub(in crate::cli) fn choose_pace(args: &mut PlayArgs) {
    let is_typed = args.pace.is_some()
        || args.instant
        || args.time_scale.is_some()
        || args.time_to_first_token.is_some()
        || args.inter_token_latency.is_some();
    if !is_typed && !args.cassettes.command.is_empty() && sources::of(args).contains(&sources::SourceKind::Cassette) {
        args.pace = Some(PaceArg::Instant);
    }
}

/// Recorded times unless a flag chooses otherwise; made-up tokens have none.
pub(in crate::cli) fn pacing(args: &PlayArgs) -> Pacing {
    match (args.time_to_first_token, args.inter_token_latency) {
        (None, None) if args.synthetic.is_some() => Pacing::Instant,
        _ => written_pacing(args),
    }
}

/// The same for answers whose times are written beside them, whatever else is served.
pub(in crate::cli) fn written_pacing(args: &PlayArgs) -> Pacing {
    match (args.time_to_first_token, args.inter_token_latency) {
        (None, None) if args.instant || args.pace == Some(PaceArg::Instant) => Pacing::Instant,
        (None, None) => Pacing::Recorded { scale: args.time_scale.unwrap_or(TimeScale::REAL) },
        (ttft, itl) => Pacing::Fixed { ttft: ttft.unwrap_or_default(), itl: itl.unwrap_or_default() },
    }
}

/// Any question to the built-in trace has an answer, unless only recorded ones are wanted.
fn order(args: &PlayArgs) -> Vec<MatchBy> {
    let mut ways = matching::of_trace(&args.cassettes.matching, args.replay_match);
    if args.replay_tokens.is_empty() && !refuses_misses(args) {
        ways.push(MatchBy::Next);
    }
    ways
}

/// Reads the minimum match. With recorded responses only, a match has to share more than a system prompt, except with the built-in trace, where the
/// next record in turn is as good.
fn min_match(args: &PlayArgs) -> MinMatch {
    let usual = if args.strict || args.replay_tokens.is_empty() { MinMatch::Whole } else { MinMatch::default() };
    args.min_match.unwrap_or(usual)
}

/// Returns true if a request without a record gets an error.
pub(in crate::cli) fn refuses_misses(args: &PlayArgs) -> bool {
    match args.cassettes.on_miss {
        Some(chosen) => chosen == OnMiss::Error,
        None => args.strict,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::FromArgMatches;

    use super::*;
    use crate::{
        cli::args::{Cli, Command, command},
        replay::matching::OnExhausted,
    };

    fn typed(arguments: &str) -> Config {
        config(parsed(arguments)).unwrap()
    }

    fn parsed(arguments: &str) -> PlayArgs {
        let words = ["vllm-vcr", "play"].into_iter().chain(arguments.split_whitespace());
        let matches = command().try_get_matches_from(words).unwrap();
        match Cli::from_arg_matches(&matches).unwrap().command {
            Command::Play(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn nothing_typed_is_the_built_in_trace_at_its_pace() {
        let config = typed("");
        assert!(matches!(config.source, Source::BuiltIn));
        assert_eq!((config.order.as_slice(), config.min_match), (&[MatchBy::Auto, MatchBy::Next][..], MinMatch::Whole));
        assert_eq!(config.pacing, Pacing::Recorded { scale: TimeScale::REAL });
    }

    #[test]
    fn flags_mean_what_they_say() {
        assert_eq!(typed("--replay-tokens t.jsonl").order, [MatchBy::Auto]);
        assert_eq!(typed("--replay-tokens t.jsonl").min_match, MinMatch::default());
        assert_eq!(typed("--replay-tokens t.jsonl --strict").min_match, MinMatch::Whole);
        assert_eq!(typed("--replay-tokens t.jsonl --strict --min-match 80%").min_match, MinMatch::Percent(80));
        assert_eq!(typed("--replay-tokens t.jsonl --replay-match prefix").order, [MatchBy::Prefix]);
        assert_eq!(typed("--on-miss error").order, [MatchBy::Auto]);
        assert_eq!(typed("--replay-tokens t.jsonl --replay-match index").order, [MatchBy::Index]);
        let chain = typed("--replay-tokens t.jsonl --match canonical,index,prefix,ordered --loose-after-exhausted");
        assert_eq!(chain.order, [MatchBy::Index, MatchBy::Prefix, MatchBy::Next]);
        assert!(chain.loose_after_exhausted && !typed("").loose_after_exhausted);
        assert_eq!(typed("--replay-tokens t.jsonl --match exact --replay-match index").order, [MatchBy::Index]);
        assert_eq!(typed("--replay-tokens t.jsonl --match exact").order, [MatchBy::Auto]);
        assert_eq!(typed("--instant").pacing, Pacing::Instant);
        let Source::Files(paths) = typed("--replay-tokens a.jsonl b --replay-tokens c.gz --port 1").source else {
            panic!()
        };
        assert_eq!(paths, ["a.jsonl", "b", "c.gz"].map(PathBuf::from));
        assert_eq!(typed("--synthetic echo").pacing, Pacing::Instant);
        let itl = Duration::from_millis(20);
        let fixed = Pacing::Fixed { ttft: Duration::ZERO, itl };
        assert_eq!(typed("--synthetic random --inter-token-latency 20").pacing, fixed);
        assert_eq!(typed("--strict").unmatched, Unmatched::Refuse);
        assert_eq!(typed("--strict --on-miss random").unmatched, Unmatched::Random);
        assert_eq!(typed("--on-miss error --miss-status 404").miss_status, 404);
        assert_eq!((typed("").on_exhausted, typed("--strict").on_exhausted), (None, Some(OnExhausted::Error)));
        assert_eq!(typed("--strict --on-exhausted cycle").on_exhausted, Some(OnExhausted::Cycle));
    }

    #[test]
    fn a_cassette_is_played_to_a_command_at_once() {
        let chosen = |arguments: &str| {
            let mut args = parsed(arguments);
            choose_pace(&mut args);
            pacing(&args)
        };
        let (recorded, instant) = (Pacing::Recorded { scale: TimeScale::REAL }, Pacing::Instant);
        for (arguments, expected) in [
            ("--cassette a.yaml -- pytest", instant),
            ("a.yaml -- pytest", instant),
            ("--cassette a.yaml --replay-tokens t.jsonl -- pytest", instant),
            ("--cassette a.yaml", recorded),
            ("--cassette a.yaml --pace instant", instant),
            ("--cassette a.yaml --pace recorded -- pytest", recorded),
            ("--cassette a.yaml --time-scale 1 -- pytest", recorded),
            ("--replay-tokens t.jsonl -- bench", recorded),
            ("-- bench", recorded),
        ] {
            assert_eq!(chosen(arguments), expected, "{arguments}");
        }
    }

    #[test]
    fn server_flags_are_those_of_vllm() {
        let server = typed(r#"--api-key a b --api-key c --root-path /llm --allowed-origins ["*"]"#).server;
        assert_eq!(server.api_keys, crate::play::ApiKeys::new(vec!["a".into(), "b".into(), "c".into()]));
        assert_eq!((server.root_path.as_str(), server.cors.origins.as_slice()), ("/llm", &["*".to_owned()][..]));
        assert_eq!(typed("").server, crate::play::ServerOptions::default());
    }

    #[test]
    fn a_model_and_its_length_are_given_as_to_vllm() {
        for (typed_length, length) in
            [("8192", 8192), ("8k", 8000), ("1.5k", 1500), ("8K", 8192), ("auto", 0), ("-1", 0)]
        {
            let config = typed(&format!("org/model --max-model-len {typed_length}"));
            assert_eq!(
                (config.answers.model.as_deref(), config.max_model_len.unwrap_or(0)),
                (Some("org/model"), length),
                "{typed_length}"
            );
        }
    }

    #[test]
    fn conflicting_flags_are_refused() {
        for flags in [
            "--synthetic random --replay-tokens t.jsonl",
            "--synthetic echo --strict",
            "--instant --time-scale 2",
            "--instant --pace recorded",
            "--synthetic random --pace recorded",
            "--cassette a.yaml --block-network",
            "--time-scale 2 --time-to-first-token 5",
            "--instant --inter-token-latency 5",
            "--time-scale 0",
            "--port 70000",
            "--max-model-len 1.5K",
            "--max-model-len 0",
            "one-model --model another",
            "--drain-timeout soon",
        ] {
            let words = ["vllm-vcr", "play"].into_iter().chain(flags.split_whitespace());
            assert_eq!(command().try_get_matches_from(words).unwrap_err().exit_code(), 2, "{flags}");
        }
    }
}
