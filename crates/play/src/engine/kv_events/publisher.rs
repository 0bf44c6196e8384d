//! The publisher's thread: a PUB socket for batches, and a listener for those who missed some.

use std::{
    mem,
    net::Ipv4Addr,
    pin::pin,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc as start},
    thread,
    time::Duration,
};

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::{
    net::{TcpListener, lookup_host},
    runtime, select,
    sync::mpsc,
    task::AbortHandle,
    time::sleep,
};
use zeromq::{PubSocket, Socket, SocketEvent, SocketOptions, SocketSend, ZmqMessage};

use super::{
    EventBatch, EventCounts, KvEventsConfig, KvEventsError, PublisherFaults, PublisherState, endpoint::TcpEndpoint,
    faulted, guard, replay,
};

/// Time after which a connection is tried again, so that a subscriber that begins late is found soon.
const RETRY: Duration = Duration::from_secs(2);

/// Time after which a port that is closed is tried again.
const REOPEN: Duration = Duration::from_millis(5);

struct Publisher {
    socket: PubSocket,
    side: SocketSide,
    batches: mpsc::Receiver<EventBatch>,
    faults: PublisherFaults,
    /// What is subtracted from the engine's numbers, since a fault restarted them.
    base: u64,
    /// A batch that is sent after the next one that is, so many times.
    held: Option<(EventBatch, usize)>,
    kept: Option<Arc<replay::KeptBatches>>,
    shared: Arc<PublisherState>,
}

enum SocketSide {
    Connects(String),
    /// Subscribers, to this endpoint, which the task serves.
    Listens(String, AbortHandle),
}

/// Starts the thread, once the sockets listen, and gives where. It ends with the engine.
pub(super) fn start(
    config: &KvEventsConfig,
    shared: Arc<PublisherState>,
    batches: mpsc::Receiver<EventBatch>,
    faults: PublisherFaults,
) -> Result<EventCounts, KvEventsError> {
    let rank = config.data_parallel_rank.saturating_add(config.port_offset);
    let events = TcpEndpoint::read(&config.endpoint, rank)?;
    let replay = config.replay_endpoint.as_deref().map(|text| TcpEndpoint::read(text, rank)).transpose()?;
    let buffer_steps = config.buffer_steps;
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let (started, bound) = start::channel();
    thread::Builder::new().name("kv-events".to_owned()).spawn(move || {
        runtime.block_on(async {
            match Publisher::open(&events, replay.as_ref(), buffer_steps, shared, batches, faults).await {
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

fn new_socket() -> PubSocket {
    let mut options = SocketOptions::default();
    options.connect_timeout(RETRY);
    PubSocket::with_options(options)
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
    listener: TcpListener,
    shared: &Arc<PublisherState>,
) -> Result<(PubSocket, AbortHandle), KvEventsError> {
    let mut socket = new_socket();
    let inside = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = inside.local_addr()?;
    socket.bind_listener(inside).await.map_err(std::io::Error::other)?;
    let shared = Arc::clone(shared);
    let serving = tokio::spawn(guard::serve(listener, move |peer| guard::pass(peer, to, Arc::clone(&shared))));
    Ok((socket, serving.abort_handle()))
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
    async fn open(
        events: &TcpEndpoint,
        replay: Option<&TcpEndpoint>,
        buffer_steps: usize,
        shared: Arc<PublisherState>,
        batches: mpsc::Receiver<EventBatch>,
        faults: PublisherFaults,
    ) -> Result<(Self, EventCounts), KvEventsError> {
        let mut bound = EventCounts { endpoint: events.address(), ..EventCounts::default() };
        let (socket, side) = if events.is_listened_on() {
            let (listener, endpoint) = listen(&bound.endpoint).await?;
            bound.endpoint.clone_from(&endpoint);
            let (socket, serving) = serve_subscribers(listener, &shared).await?;
            (socket, SocketSide::Listens(endpoint, serving))
        } else {
            tokio::spawn(warn_unresolved(events.address()));
            (new_socket(), SocketSide::Connects(events.address()))
        };
        let mut kept = None;
        if let Some(endpoint) = replay {
            let (listener, endpoint) = listen(&endpoint.address()).await?;
            bound.replay_endpoint = Some(endpoint);
            let kept = kept.insert(Arc::new(replay::KeptBatches::new(buffer_steps)));
            serve_replays(listener, Arc::clone(kept), Arc::clone(&shared));
        }
        Ok((Self { socket, side, batches, faults, base: 0, held: None, kept, shared }, bound))
    }

    /// Publishes until the engine ends.
    async fn run(mut self) {
        loop {
            let going_on = match &self.side {
                SocketSide::Connects(peer) => {
                    let peer = peer.clone();
                    self.connected(&peer).await
                }
                SocketSide::Listens(..) => self.publish_next().await,
            };
            if going_on.is_none() {
                return;
            }
        }
    }

    /// Connects to a peer, and publishes until it is gone. What comes without a peer is only kept, as in ZeroMQ. `None` once the engine
    /// has ended.
    async fn connected(&mut self, peer: &str) -> Option<()> {
        let Self { socket, batches, kept, shared, base, .. } = self;
        let mut monitor = socket.monitor();
        let is_connected = {
            let mut connecting = pin!(async {
                let connected = socket.connect(peer).await;
                if let Err(error) = &connected {
                    tracing::debug!(%error, peer, "no subscriber of KV events");
                    sleep(RETRY).await;
                }
                connected.is_ok()
            });
            loop {
                select! {
                    biased;
                    is_connected = &mut connecting => break is_connected,
                    batch = batches.recv() => {
                        let mut batch = batch?;
                        batch.seq = batch.seq.saturating_sub(*base);
                        keep(kept.as_deref(), shared, &batch, None);
                    }
                }
            }
        };
        if !is_connected {
            return Some(());
        }
        loop {
            select! {
                event = monitor.next() => match event {
                    Some(SocketEvent::Disconnected(_)) | None => return Some(()),
                    Some(_) => {}
                },
                batch = self.batches.recv() => if self.publish(batch?).await {
                    return Some(());
                },
            }
        }
    }

    async fn publish_next(&mut self) -> Option<()> {
        let batch = self.batches.recv().await?;
        self.publish(batch).await;
        Some(())
    }

    /// Publishes a batch, with its faults; whether the socket is another one since.
    async fn publish(&mut self, mut batch: EventBatch) -> bool {
        let fate = self.faults.of(batch.seq);
        faulted::wait(fate.late, &self.batches).await;
        if let Some(time) = fate.restarts {
            self.restart(time).await;
        }
        if fate.renumbers {
            self.base = batch.seq;
            self.held = None;
            self.kept.iter().for_each(|kept| kept.clear());
        }
        batch.seq = batch.seq.saturating_sub(self.base);
        keep(self.kept.as_deref(), &self.shared, &batch, fate.kept);
        let times = if fate.is_dropped { 0 } else { 1 + usize::from(fate.is_doubled) };
        if fate.is_held && self.held.is_none() {
            self.held = Some((batch, times));
            return fate.restarts.is_some();
        }
        let held = if fate.is_dropped { None } else { self.held.take() };
        for (batch, times) in [(batch, times)].into_iter().chain(held) {
            for _ in 0..times {
                self.send(batch.clone()).await;
            }
        }
        fate.restarts.is_some()
    }

    /// Closes the socket, and opens another one at its place after a time.
    async fn restart(&mut self, time: Duration) {
        // Connections end with the socket that they are passed on to. What was sent is given to them by a task of the library that was
        // woken by it, so a task that is started now runs after that one, as this thread is the only one.
        let closed = mem::replace(&mut self.socket, new_socket());
        let _never_fails = tokio::spawn(async move { drop(closed) }).await;
        if let SocketSide::Listens(_, serving) = &self.side {
            serving.abort();
        }
        faulted::wait(time, &self.batches).await;
        while let SocketSide::Listens(endpoint, serving) = &mut self.side {
            let opened = match listen(endpoint).await {
                Ok((listener, _)) => serve_subscribers(listener, &self.shared).await,
                Err(error) => Err(error),
            };
            match opened {
                Ok((socket, again)) => {
                    (self.socket, *serving) = (socket, again);
                    return;
                }
                Err(error) if self.batches.is_closed() => return tracing::debug!(%error, "KV events end"),
                // The aborted task leaves its port a little later.
                Err(_) => faulted::wait(REOPEN, &self.batches).await,
            }
        }
    }

    async fn send(&mut self, batch: EventBatch) {
        let mut message = ZmqMessage::from(self.shared.topic.get().cloned().unwrap_or_default());
        message.push_back(Bytes::copy_from_slice(&batch.seq.to_be_bytes()));
        message.push_back(batch.payload);
        if let Err(error) = self.socket.send(message).await {
            tracing::debug!(%error, "KV events are not sent");
        }
    }
}

/// Warns if the host of an endpoint has no address: a subscriber that starts late is expected, an unknown name may be a mistake.
async fn warn_unresolved(peer: String) {
    if let Err(error) = lookup_host(peer.trim_start_matches("tcp://")).await {
        tracing::warn!(%error, peer, "KV events reach nobody until the host of their endpoint has an address (--kv-events-endpoint, or in --kv-events-config)");
    }
}

/// Keeps a batch that is taken from the queue.
fn keep(kept: Option<&replay::KeptBatches>, shared: &PublisherState, batch: &EventBatch, cut: Option<usize>) {
    shared.queued_bytes.fetch_sub(batch.payload.len(), Relaxed);
    if let Some(kept) = kept {
        kept.add(batch.clone(), cut);
    }
}
