//! `tap`: what its arguments mean.

use std::{path::PathBuf, thread};

use crate::{
    cli::{
        build,
        failure::Failure,
        gateway,
        mcp::servers,
        redaction,
        tap::{
            args::{PrivacyArgs, SelectionArgs, TapArgs},
            engine_core::TapUpstream,
        },
    },
    net::{
        server::{ClientCertificates, Tls, TlsFiles},
        upstream::{UpstreamOptions, UpstreamUrl},
    },
    play::load_tokenizer,
    recording::trace::{CreateMode, RotationLimits},
    tap::{ContentRecording, Deployment, Filter, Setup, TapConfig, UpstreamRoute},
    text::prompt::{HashKey, IdPermutation, Tokenizer},
};

/// A vocabulary that no model's is larger than, where it is not known.
const LARGEST_VOCABULARY: u32 = 1 << 20;

/// Address at which clients connect.
pub(in crate::cli) struct ListenSetup {
    pub(in crate::cli) address: String,
    pub(in crate::cli) socket: Option<PathBuf>,
    pub(in crate::cli) tls: Option<Tls>,
    pub(in crate::cli) remote_is_allowed: bool,
}

/// The listener that was requested.
pub(in crate::cli) fn listen(args: &TapArgs) -> Result<ListenSetup, Failure> {
    let network = &args.network;
    let files = network.ssl_certfile.clone().map(|certificate| TlsFiles {
        certificate,
        key: network.ssl_keyfile.clone(),
        authorities: None,
        clients: ClientCertificates::None,
        refresh: false,
    });
    let tls = files.map(Tls::load).transpose().map_err(Failure::input)?;
    Ok(ListenSetup {
        address: args.address(),
        socket: network.uds.clone(),
        tls,
        remote_is_allowed: network.allow_remote_record,
    })
}

/// The tap that was requested.
pub(in crate::cli) fn setup(args: TapArgs) -> Result<Setup, Failure> {
    let tokenizer = args.tokenizer.as_deref().map(load_tokenizer).transpose()?;
    let (upstream, routes) = upstreams(TapUpstream::routes(args.upstream)?)?;
    let hash_key = args.privacy.hash_key_file.as_deref().map(HashKey::read).transpose()?;
    let vocabulary = tokenizer.as_ref().map_or(LARGEST_VOCABULARY, Tokenizer::model_vocabulary);
    let permutation =
        hash_key.clone().filter(|_| args.privacy.permute_ids).map(|key| IdPermutation::new(key, vocabulary));
    let SelectionArgs { sample, only_path: paths, only_model: models, ask_nothing } = args.selection;
    let config = TapConfig {
        upstream,
        trace_out: args.trace_out,
        create: match (args.append, args.overwrite, args.files.next) {
            (true, ..) => CreateMode::Append,
            (_, true, _) => CreateMode::Truncate,
            (_, _, true) => CreateMode::Next,
            (false, false, false) => CreateMode::New,
        },
        record_tokens: args.record_tokens,
        tokenizer,
        block_hash: args.block_hash,
        block_size: args.block_size.get(),
        drain: args.drain_timeout,
    };
    Ok(Setup {
        routes,
        reach: UpstreamOptions {
            connect_timeout: args.network.connect_timeout,
            response_timeout: args.network.answer_timeout,
            ..gateway::options(args.network.upstream_ca.as_deref())?
        },
        idle: args.network.idle_timeout,
        filter: Filter { sample, paths, models },
        limits: RotationLimits {
            bytes: args.files.rotate_size,
            age: args.files.rotate_every,
            records: args.files.rotate_records.map(std::num::NonZeroU64::get),
        },
        start_without_file: args.files.start_anyway,
        amends: !ask_nothing,
        mcp: servers::servers(&args.mcp)?,
        mcp_commands: args.mcp.mcp_stdio,
        content: content(&args.privacy)?,
        deployment: Deployment {
            gpu: args.deployment.gpu,
            tensor_parallel: args.deployment.tensor_parallel_size.map(std::num::NonZeroU32::get),
            max_num_seqs: args.deployment.max_num_seqs.map(std::num::NonZeroU32::get),
        },
        hash_key,
        permutation,
        commit: Some(build::COMMIT.to_owned()),
        threads: args.network.threads.or_else(|| thread::available_parallelism().ok()),
        ..Setup::from(config)
    })
}

fn content(privacy: &PrivacyArgs) -> Result<ContentRecording, Failure> {
    Ok(ContentRecording {
        text: privacy.record_text,
        requests: privacy.record_requests,
        logprobs: privacy.record_logprobs,
        errors: false,
        incomplete_ids: false,
        rules: redaction::rules(&privacy.redaction)?,
    })
}

/// The upstream of all other requests, and those of some.
fn upstreams(typed: Vec<UpstreamRoute>) -> Result<(UpstreamUrl, Vec<UpstreamRoute>), Failure> {
    let (main, further): (Vec<_>, Vec<_>) = typed.into_iter().partition(|route| route.selector.is_none());
    for (at, route) in further.iter().enumerate() {
        if further.iter().take(at).any(|earlier| earlier.selector == route.selector) {
            let message = format!("--upstream {route}: another upstream gets these requests already");
            return Err(Failure::usage(message).hint("a tap does not balance load; name each path and model once"));
        }
    }
    match <[UpstreamRoute; 1]>::try_from(main) {
        Ok([main]) => Ok((main.upstream, further)),
        Err(several) => Err(Failure::usage(format!(
            "--upstream: {} of them have no path, model or name; exactly one must have none, for all other requests",
            several.len()
        ))),
    }
}
