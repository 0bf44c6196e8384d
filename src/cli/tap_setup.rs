//! `tap`: what its arguments mean.

use std::{path::PathBuf, sync::Arc, thread};

use super::{
    args::{PrivacyArgs, TapArgs},
    failure::{Exit, Failure},
    mcp_tapped, secret_args,
};
use crate::{
    net::server::{ClientCertificates, Tls, TlsFiles},
    net::upstream::{Authorities, UpstreamOptions, UpstreamUrl},
    play::load_tokenizer,
    recording::redaction::RulesError,
    recording::trace::{CreateMode, Limits},
    tap::{Config, Content, Deployment, Filter, Route, Setup},
    text::prompt::{HashKey, HashKeyError, IdPermutation, Tokenizer},
};

/// A vocabulary that no model's is larger than, where it is not known.
const LARGEST_VOCABULARY: u32 = 1 << 20;

/// Address at which clients connect.
pub(super) struct Door {
    pub(super) address: String,
    pub(super) socket: Option<PathBuf>,
    pub(super) tls: Option<Tls>,
    pub(super) remote_is_allowed: bool,
}

/// The listener that was asked for.
///
/// # Errors
/// When its certificate cannot be used.
pub(super) fn door(args: &TapArgs) -> Result<Door, Failure> {
    let network = &args.network;
    let files = network.ssl_certfile.clone().map(|certificate| TlsFiles {
        certificate,
        key: network.ssl_keyfile.clone(),
        authorities: None,
        clients: ClientCertificates::None,
        refresh: false,
    });
    let tls = files.map(Tls::load).transpose().map_err(|error| Failure::new(Exit::BadInput, error))?;
    Ok(Door {
        address: args.address(),
        socket: network.uds.clone(),
        tls,
        remote_is_allowed: network.allow_remote_record,
    })
}

/// The tap that was asked for.
///
/// # Errors
/// When a file cannot be read or the arguments contradict each other.
pub(super) fn setup(args: TapArgs) -> Result<Setup, Failure> {
    refuse_files_of_a_stream(&args)?;
    let tokenizer = args.tokenizer.as_deref().map(load_tokenizer).transpose()?;
    let (upstream, routes) = upstreams(args.upstream)?;
    let hash_key = args.privacy.hash_key_file.as_deref().map(HashKey::read).transpose()?;
    let vocabulary = tokenizer.as_ref().map_or(LARGEST_VOCABULARY, Tokenizer::model_vocabulary);
    let permutation =
        hash_key.clone().filter(|_| args.privacy.permute_ids).map(|key| IdPermutation::new(key, vocabulary));
    let authorities = args.network.upstream_ca.as_deref().map(Authorities::read).transpose();
    let config = Config {
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
            authorities: authorities.map_err(|error| Failure::new(Exit::BadInput, error))?.map(Arc::new),
        },
        idle: args.network.idle_timeout,
        filter: Filter {
            sample: args.selection.sample,
            paths: args.selection.only_path,
            models: args.selection.only_model,
        },
        limits: Limits {
            bytes: args.files.rotate_size,
            age: args.files.rotate_every,
            records: args.files.rotate_records.map(std::num::NonZeroU64::get),
        },
        start_without_file: args.files.start_anyway,
        amends: !args.selection.ask_nothing,
        mcp: mcp_tapped::servers(&args.mcp)?,
        mcp_commands: args.mcp.mcp_stdio,
        content: content(&args.privacy)?,
        deployment: Deployment {
            gpu: args.deployment.gpu,
            tensor_parallel: args.deployment.tensor_parallel_size.map(std::num::NonZeroU32::get),
            max_num_seqs: args.deployment.max_num_seqs.map(std::num::NonZeroU32::get),
        },
        hash_key,
        permutation,
        threads: args.network.threads.or_else(|| thread::available_parallelism().ok()),
        ..Setup::from(config)
    })
}

/// Standard output is one stream: it is not rotated, and nothing is there before.
fn refuse_files_of_a_stream(args: &TapArgs) -> Result<(), Failure> {
    let files = &args.files;
    let typed = [
        ("--append", args.append),
        ("--overwrite", args.overwrite),
        ("--next", files.next),
        ("--rotate-size", files.rotate_size.is_some()),
        ("--rotate-every", files.rotate_every.is_some()),
        ("--rotate-records", files.rotate_records.is_some()),
    ];
    match typed.into_iter().find(|(_, is_typed)| *is_typed && args.trace_out.as_os_str() == "-") {
        Some((name, _)) => Err(Failure::usage(format!("{name} means nothing for standard output (--trace-out -)"))),
        None => Ok(()),
    }
}

fn content(args: &PrivacyArgs) -> Result<Content, Failure> {
    Ok(Content {
        text: args.record_text,
        requests: args.record_requests,
        logprobs: args.record_logprobs,
        rules: secret_args::rules(&args.redaction)?,
    })
}

/// The upstream of all other requests, and those of some.
fn upstreams(typed: Vec<Route>) -> Result<(UpstreamUrl, Vec<Route>), Failure> {
    let (main, further): (Vec<_>, Vec<_>) = typed.into_iter().partition(|route| route.selector.is_none());
    for (at, route) in further.iter().enumerate() {
        if further.iter().take(at).any(|earlier| earlier.selector == route.selector) {
            let message = format!("--upstream {route}: another one gets these requests already");
            return Err(Failure::usage(message)
                .hint("a tap does not spread requests over engines; name each path and model once"));
        }
    }
    match <[Route; 1]>::try_from(main) {
        Ok([main]) => Ok((main.upstream, further)),
        Err(several) => Err(Failure::usage(format!(
            "--upstream: {} of them have neither path, model nor name; one has to, for all other requests",
            several.len()
        ))),
    }
}

impl From<RulesError> for Failure {
    fn from(error: RulesError) -> Self {
        Self::usage(error)
    }
}

impl From<HashKeyError> for Failure {
    fn from(error: HashKeyError) -> Self {
        Self::new(Exit::BadInput, error)
    }
}
