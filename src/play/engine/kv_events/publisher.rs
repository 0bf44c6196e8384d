//! The publisher's thread: a PUB socket for batches, and a listener for those who missed some.

use std::{
    net::Ipv4Addr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc as start},
    thread,
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::{net::TcpListener, runtime, select, sync::mpsc, time::sleep};
use zeromq::{PubSocket, Socket, SocketEvent, SocketOptions, SocketSend, ZmqMessage};

use super::{EventBatch, KvEventsConfig, KvEventsError, PublisherState, endpoint::TcpEndpoint, guard, replay};

/// Time after which a connection is tried anew, so that a subscriber that begins late is found soon.
const RETRY: Duration = Duration::from_secs(2);

/// Where the sockets are.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) events: String,
    pub(super) replay: Option<String>,
}

/// Publisher of one engine.
struct Publisher {
    socket: PubSocket,
    /// Where to connect; `None` where subscribers do.
    peer: Option<String>,
    batches: mpsc::Receiver<EventBatch>,
    kept: Option<Arc<replay::KeptBatches>>,
    shared: Arc<PublisherState>,
}

/// Starts the thread, once the sockets listen. It ends with the engine.
///
/// # Errors
/// An endpoint that is wrong or in use.
pub(super) fn start(
    config: &KvEventsConfig,
    shared: Arc<PublisherState>,
    batches: mpsc::Receiver<EventBatch>,
) -> Result<Bound, KvEventsError> {
    let rank = config.data_parallel_rank.saturating_add(config.port_offset);
    let events = TcpEndpoint::read(&config.endpoint, rank)?;
    let replay = config.replay_endpoint.as_deref().map(|text| TcpEndpoint::read(text, rank)).transpose()?;
    let buffer_steps = config.buffer_steps;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (started, bound) = start::channel();
    thread::Builder::new().name("kv-events".to_owned()).spawn(move || {
        runtime.block_on(async {
            match open(&events, replay.as_ref(), buffer_steps, shared, batches).await {
                Ok((publisher, bound)) => {
                    let _waits = started.send(Ok(bound));
                    publisher.run().await;
                }
                Err(error) => {
                    let _waits = started.send(Err(error));
                }
            }
        });
    })?;
    bound.recv().unwrap_or_else(|_| Err(std::io::Error::other("it has ended").into()))
}

async fn open(
    events: &TcpEndpoint,
    replay: Option<&TcpEndpoint>,
    buffer_steps: usize,
    shared: Arc<PublisherState>,
    batches: mpsc::Receiver<EventBatch>,
) -> Result<(Publisher, Bound), KvEventsError> {
    let mut options = SocketOptions::default();
    options.connect_timeout(RETRY);
    let mut socket = PubSocket::with_options(options);
    let mut bound = Bound { events: events.address(), replay: None };
    if events.is_listened_on() {
        let (listener, endpoint) = listen(&bound.events).await?;
        bound.events = endpoint;
        serve_subscribers(&mut socket, listener, &shared).await?;
    }
    let mut kept = None;
    if let Some(endpoint) = replay {
        let (listener, endpoint) = listen(&endpoint.address()).await?;
        bound.replay = Some(endpoint);
        let batches = Arc::new(replay::KeptBatches::new(buffer_steps));
        serve_replays(listener, Arc::clone(&batches), Arc::clone(&shared));
        kept = Some(batches);
    }
    let peer = (!events.is_listened_on()).then(|| events.address());
    Ok((Publisher { socket, peer, batches, kept, shared }, bound))
}

/// Listens on an endpoint; gives it with its port.
async fn listen(endpoint: &str) -> Result<(TcpListener, String), KvEventsError> {
    let failed =
        |error: std::io::Error| KvEventsError::Bind { endpoint: endpoint.to_owned(), error: error.to_string() };
    let (host, _) = endpoint.rsplit_once(':').unwrap_or((endpoint, ""));
    let listener = TcpListener::bind(endpoint.trim_start_matches("tcp://")).await.map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    Ok((listener, format!("{host}:{port}")))
}

/// Connects subscribers with the library's socket, which only this machine reaches.
async fn serve_subscribers(
    socket: &mut PubSocket,
    listener: TcpListener,
    shared: &Arc<PublisherState>,
) -> Result<(), KvEventsError> {
    let inside = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = inside.local_addr()?;
    socket.bind_listener(inside).await.map_err(std::io::Error::other)?;
    let shared = Arc::clone(shared);
    tokio::spawn(guard::serve(listener, move |peer| guard::pass(peer, to, Arc::clone(&shared))));
    Ok(())
}

fn serve_replays(listener: TcpListener, kept: Arc<replay::KeptBatches>, shared: Arc<PublisherState>) {
    tokio::spawn(guard::serve(listener, move |client| {
        let (kept, shared) = (Arc::clone(&kept), Arc::clone(&shared));
        async move {
            client.set_nodelay(true)?;
            let (from, to) = client.into_split();
            replay::answer(from, to, kept, shared).await
        }
    }));
}

impl Publisher {
    /// Publishes until the engine ends.
    async fn run(mut self) {
        match self.peer.take() {
            Some(peer) => while self.connected(&peer).await.is_some() {},
            None => while self.publish_next().await.is_some() {},
        }
    }

    /// Connects to a peer, and publishes until it is gone. What comes without a peer is only kept, as in ZeroMQ. `None` once the engine
    /// has ended.
    async fn connected(&mut self, peer: &str) -> Option<()> {
        let Self { socket, batches, kept, shared, .. } = self;
        let mut monitor = socket.monitor();
        let mut draining = Draining { batches, kept: kept.as_deref(), shared };
        if let Err(error) = draining.until(socket.connect(peer)).await? {
            tracing::debug!(%error, peer, "no subscriber of KV events");
            return draining.until(sleep(RETRY)).await;
        }
        loop {
            select! {
                event = monitor.next() => match event {
                    Some(SocketEvent::Disconnected(_)) | None => return Some(()),
                    Some(_) => {}
                },
                batch = self.batches.recv() => self.publish(batch?).await,
            }
        }
    }

    async fn publish_next(&mut self) -> Option<()> {
        let batch = self.batches.recv().await?;
        self.publish(batch).await;
        Some(())
    }

    async fn publish(&mut self, batch: EventBatch) {
        keep(self.kept.as_deref(), &self.shared, &batch);
        let mut message = ZmqMessage::from(self.shared.topic.get().cloned().unwrap_or_default());
        message.push_back(Bytes::copy_from_slice(&batch.seq.to_be_bytes()));
        message.push_back(batch.payload);
        if let Err(error) = self.socket.send(message).await {
            tracing::debug!(%error, "KV events are not sent");
        }
    }
}

/// Batches of a time without a subscriber.
struct Draining<'a> {
    batches: &'a mut mpsc::Receiver<EventBatch>,
    kept: Option<&'a replay::KeptBatches>,
    shared: &'a PublisherState,
}

impl Draining<'_> {
    /// Waits, and only keeps what comes meanwhile; `None` once the engine has ended.
    async fn until<T>(&mut self, wait: impl Future<Output = T>) -> Option<T> {
        let mut wait = pin!(wait);
        loop {
            select! {
                biased;
                end = &mut wait => return Some(end),
                batch = self.batches.recv() => keep(self.kept, self.shared, &batch?),
            }
        }
    }
}

/// Keeps a batch that is taken from the queue.
fn keep(kept: Option<&replay::KeptBatches>, shared: &PublisherState, batch: &EventBatch) {
    shared.queued_bytes.fetch_sub(batch.payload.len(), Relaxed);
    if let Some(kept) = kept {
        kept.add(batch.clone());
    }
}
