//! A server from its start to its end: what it serves, the listener, and the drain.

use std::{future::Future, sync::Arc};

use futures_util::future::BoxFuture;
use http::Request;
use hyper::body::Incoming;

use crate::{
    Config, ExampleRequest, PlayError, Player, Source, TokenizerSource, front, load, routes, state::ServerState,
};
use base::stats::Lateness;
use net::server::{self, DrainReport, Listener, Peer, UntilStopping, Workers};
use recording::trace::Trace;
use replay::{
    account::{Access, Ledger, Router},
    delivery::Clock,
    mcp_traffic::McpRecorded,
    timing::Pacer,
};
use text::prompt::Tokenizer;

/// Contents of a player, for a start-up message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Serving {
    /// The trace in a few words; `None` for synthetic tokens.
    pub trace: Option<String>,
    /// Records that can be served.
    pub records: usize,
    /// All records of the trace.
    pub all_records: usize,
    /// The model's names.
    pub models: Vec<String>,
    /// The tokenizer's name.
    pub tokenizer: String,
    /// Records of cassettes, where there are any cassettes; those of MCP servers aside.
    pub cassettes: Option<usize>,
    /// Rules of files of answers.
    pub rules: usize,
    /// Records of MCP servers in cassettes, by the name of the server.
    pub mcp: Vec<(String, usize)>,
    /// A request that a record answers, or any where tokens are made up; `None` where none is known.
    pub example: Option<ExampleRequest>,
}

impl Player {
    /// Reads the trace and the tokenizer and checks that they belong together.
    ///
    /// # Errors
    /// One [`PlayError`] per way this fails, each with the next step.
    pub fn load(config: Config) -> Result<Self, PlayError> {
        let loaded = load::load(&config)?;
        // The one in the binary is no model's of a cassette.
        let is_of_model = match config.tokenizer {
            TokenizerSource::BuiltIn => matches!(config.source, Source::Files(_) | Source::Trace { .. }),
            TokenizerSource::Spec(_) | TokenizerSource::Loaded(_) => true,
            TokenizerSource::None => false,
        };
        if let Some(cassette_player) = config.cassette_player.as_ref().filter(|_| is_of_model) {
            cassette_player.count_with(loaded.tokenizer.clone());
        }
        if let Some(cassette_player) = &config.cassette_player {
            cassette_player.draw_with(loaded.tokenizer.clone());
        }
        Ok(Self { state: Arc::new(ServerState::new(config, loaded)?) })
    }

    /// The trace in the binary.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn builtin_trace() -> Result<Trace, PlayError> {
        load::builtin::trace()
    }

    /// The tokenizer in the binary.
    ///
    /// # Errors
    /// None that a test does not catch first.
    pub fn builtin_tokenizer() -> Result<Tokenizer, PlayError> {
        Ok(load::builtin::tokenizer()?)
    }

    /// What it serves, for who starts it.
    #[must_use]
    pub fn serving(&self) -> Serving {
        let (replay, cassette_player) = (self.state.replay.as_ref(), self.state.config.cassette_player.as_ref());
        Serving {
            trace: replay.map(|replay| replay.name.clone()),
            records: replay.map_or(0, |replay| replay.served_records()),
            all_records: replay.map_or(0, |replay| replay.records.len()),
            models: self.state.model.names.clone(),
            tokenizer: self.state.model.tokenizer.name().to_owned(),
            cassettes: cassette_player.map(|cassette_player| cassette_player.len()),
            rules: cassette_player.and_then(|player| player.config().answers.as_ref()).map_or(0, |rules| rules.len()),
            mcp: cassette_player.map(|cassette_player| cassette_player.mcp().counts()).unwrap_or_default(),
            example: ExampleRequest::of(&self.state),
        }
    }

    /// Serves on a bound listener until `shutdown` completes, then drains.
    pub async fn serve(&self, listener: impl Into<Listener>, shutdown: impl Future<Output = ()> + Send) -> DrainReport {
        self.serve_until(listener.into(), Box::pin(shutdown)).await
    }

    /// Without the future's type all that answers a request is compiled here; with it, in each crate that serves.
    fn serve_until<'a>(&'a self, listener: Listener, shutdown: BoxFuture<'a, ()>) -> BoxFuture<'a, DrainReport> {
        Box::pin(self.served(listener, shutdown))
    }

    async fn served(&self, listener: Listener, shutdown: BoxFuture<'_, ()>) -> DrainReport {
        self.state.begin();
        let early = Arc::clone(&self.state.model);
        tokio::task::spawn_blocking(move || early.warm());
        let app = front::app(self);
        let may_forward = self.state.config.cassette_player.is_some();
        let block = self.state.config.cassette_player.as_ref().and_then(|player| player.config().network_block.clone());
        let make = move || {
            let (app, pacer, block) = (app.clone(), Pacer::precise(), block.clone());
            move |mut request: Request<Incoming>, peer: Peer| {
                if may_forward {
                    request.extensions_mut().insert(peer.informational);
                }
                let clock = Clock { pacer: pacer.clone(), lateness: peer.lateness };
                let request = request.map(|body| UntilStopping::new(body, peer.stopping));
                front::answer(Arc::clone(&app), clock, block.clone(), request)
            }
        };
        let options = front::connection_options(self.state.config.server.idle);
        let listener = listener.with_http2().with_options(options);
        self.state.serves_at(listener.local_addr());
        let listener = listener.with_lateness(Arc::clone(&self.state.lateness));
        let workers = Workers::new(self.state.config.threads);
        let mcp = self.state.mcp.clone();
        let shutdown = async move {
            shutdown.await;
            mcp.iter().for_each(|service| service.end_streams());
        };
        let drained = server::run_on(&workers, listener, make, shutdown, self.state.config.drain).await;
        if let Some(cassette_player) = &self.state.config.cassette_player {
            cassette_player.completed().await;
        }
        drained
    }

    /// The account of what was served; `None` where nothing was recorded.
    #[must_use]
    pub fn ledger(&self) -> Option<Arc<dyn Ledger>> {
        self.state.ledger()
    }

    /// The pages of `/vcr/…`, for a listener of their own.
    pub fn admin_pages(&self, access: &Access) -> Router {
        routes::admin_pages(self, access)
    }

    /// Ends the recording of real MCP servers, after [`serve`](Self::serve) and before the cassette is closed; blocks until their records
    /// are handed over. `None` where there are none.
    #[must_use]
    pub fn finish_mcp(&self) -> Option<McpRecorded> {
        self.state.mcp.as_ref()?.finish()
    }

    /// Lateness of the events that left so far.
    #[must_use]
    pub fn lateness(&self) -> &Lateness {
        &self.state.lateness
    }
}
