//! A replay server on a free port, stopped when the test ends.

use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock},
    time::Duration,
};

use tokio::{net::TcpListener, sync::oneshot};
use vllm_vcr::{
    play::{Config, Player, Source, TokenizerSource},
    recording::trace::{Chunk, FinishReason, Meta, Record, TokenizerId, Trace},
    replay::matching::{MatchBy, MinMatch},
    replay::timing::Pacing,
    text::prompt::Tokenizer,
};

/// A running server; it stops when this is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

pub(crate) async fn start(config: Config) -> Server {
    let player = Player::load(config).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    tokio::spawn(async move { player.serve(listener, async { drop(stopped.await) }).await });
    Server { address, _stop: stop }
}

/// The built-in tokenizer's trace of these records, served at once.
pub(crate) fn config(order: &[MatchBy], records: Vec<Record>) -> Config {
    let trace = Trace { meta: meta(), records, ..Trace::default() };
    Config {
        source: Source::Trace { name: "a test trace".to_owned(), trace: Arc::new(trace) },
        order: order.to_vec(),
        min_match: MinMatch::default(),
        pacing: Pacing::Instant,
        tokenizer: TokenizerSource::Loaded(tokenizer()),
        served_model_names: vec!["m".to_owned()],
        max_model_len: Some(4096),
        drain: Duration::ZERO,
        ..Config::default()
    }
}

/// The built-in tokenizer, with its tables, so that no request has to wait for them.
pub(crate) fn tokenizer() -> Tokenizer {
    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let tokenizer = Player::builtin_tokenizer().unwrap();
        assert!(tokenizer.token_id("hello").is_some());
        tokenizer
    });
    TOKENIZER.clone()
}

fn meta() -> Meta {
    let tokenizer = tokenizer();
    Meta {
        block_size: Some(4),
        tokenizer: Some(TokenizerId {
            name: tokenizer.name().to_owned(),
            fingerprint: tokenizer.fingerprint().to_owned(),
        }),
        ..Meta::default()
    }
}

/// A record of one chunk per token.
pub(crate) fn record(ids: &[u32], gap: Duration, finish: FinishReason) -> Record {
    Record {
        prompt_tokens: 4,
        output_tokens: u32::try_from(ids.len()).unwrap(),
        chunks: ids.iter().map(|_| Chunk { gap, tokens: 1, step: None }).collect(),
        output_token_ids: Some(ids.to_vec()),
        finish_reason: Some(finish),
        ..Record::default()
    }
}
