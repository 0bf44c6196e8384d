//! The cassettes of `play`: which are played, and how they differ from what runs now.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::{
    cli::{
        failure::Failure,
        mcp::servers,
        output,
        play::{args::PlayArgs, config, model},
        player::{self, PlayerSettings, admin::AdminAt},
    },
    net::upstream::{UpstreamOptions, UpstreamUrl},
    play::{Synthetic, load_tokenizer},
    recording::cassette::is_cassette,
    replay::{
        matching::requests::MatchPolicy,
        player::{AnswerRules, CassettePlayer, OnMiss, PROBE, PlayerConfig, ServerEnvironment, tokenizer_name},
    },
    text::prompt::SpecialTokens,
};

/// The cassettes that are played.
pub(in crate::cli) struct Played {
    pub(in crate::cli) cassette_player: Arc<CassettePlayer>,
    upstream: Option<UpstreamUrl>,
    /// The tokenizer that was requested.
    tokenizer: Option<String>,
}

impl Played {
    /// Takes what names a cassette out of the arguments; `None` where nothing does.
    pub(in crate::cli) fn new(args: &mut PlayArgs, admin: &AdminAt) -> Result<Option<Self>, Failure> {
        let mut paths = std::mem::take(&mut args.cassette);
        paths.extend(args.replay_tokens.extract_if(.., |path| is_cassette(path)));
        let named = args.answers.model_tag.take_if(|tag| is_cassette(Path::new(tag)));
        paths.extend(named.map(PathBuf::from));
        let has_rules = !args.answer_files.is_empty();
        let answers = has_rules.then(|| AnswerRules::load(args.answer_files.clone())).transpose()?;
        if paths.is_empty() && answers.is_none() {
            player::refuse_recording_flags(&args.cassettes)?;
            return Ok(None);
        }
        if args.cassettes.matching.is_empty() && args.replay_tokens.is_empty() {
            args.cassettes.matching.extend(args.replay_match.map(Into::into));
        }
        // An engine alone makes up what no rule answers.
        if paths.is_empty() && args.simulated.engine && args.replay_tokens.is_empty() {
            args.synthetic = args.synthetic.or(Some(Synthetic::Random));
        }
        let has_more = !args.replay_tokens.is_empty() || args.synthetic.is_some();
        let on_miss = if has_more && !args.strict { OnMiss::Random } else { OnMiss::Error };
        servers::hide_headers(&args.mcp.upstream_header, &mut args.redaction);
        let settings = PlayerSettings {
            paths: &paths,
            base: PlayerConfig {
                upstream: args.upstream.clone(),
                pacing: if answers.is_some() { config::written_pacing(args) } else { config::pacing(args) },
                answers,
                on_miss,
                matching: MatchPolicy { min_match: args.min_match.unwrap_or_default(), ..MatchPolicy::default() },
                ..PlayerConfig::default()
            },
            is_strict: args.strict,
            admin,
            redaction: &args.redaction,
            environment: ServerEnvironment::default(),
            mcp: Some(&args.mcp),
            fork: None,
        };
        let cassette_player = player::cassette_player(&args.cassettes, settings)?;
        if let wrong @ [_, ..] = cassette_player.wrong_rules().as_slice() {
            return Err(Failure::input(wrong.join("\n")));
        }
        if args.served_model_name.is_empty() && !has_more {
            args.served_model_name = cassette_player.models();
        }
        if !has_more {
            args.synthetic = Some(Synthetic::Random);
        }
        Ok(Some(Self {
            cassette_player,
            upstream: args.upstream.clone(),
            tokenizer: args.tokenizer.clone().filter(|spec| spec != model::NO_TOKENIZER),
        }))
    }

    /// Prints what differs from the recording.
    pub(in crate::cli) async fn begin(played: Option<&Self>) -> Result<(), Failure> {
        let Some(Self { cassette_player, upstream, tokenizer }) = played else { return Ok(()) };
        let mut now = match upstream {
            Some(upstream) => ServerEnvironment::at(upstream, &UpstreamOptions::default()).await,
            None => ServerEnvironment::default(),
        };
        if let (None, Some(tokenizer)) = (&now.tokenizer, tokenizer) {
            let ids = load_tokenizer(tokenizer)?.encode(PROBE, SpecialTokens::Skip)?;
            now.tokenizer = Some(tokenizer_name(&ids));
        }
        cassette_player.compare(&now).iter().for_each(|change| output::note(&format!("drift: {change}\n")));
        Ok(())
    }
}
