//! An engine's connections to a front end: connecting, the handshake, and receiving until the front end disconnects.
//!
//! The engine connects everything. Each client of the engine (an API server process) has a socket for requests and one for outputs; with
//! several ranks there is a coordinator too. What clients send waits in a queue that is bounded in messages and bytes, beyond which they wait
//! themselves. The end of any connection but that of the handshake ends the session; its owner joins again.

use std::{io, sync::Arc, time::Duration};

use base::held_bytes::HeldBytes;
use tokio::{
    net::tcp::OwnedReadHalf,
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    handshake::{ENGINE_CORE_DEAD, EngineAddresses, ReadyResponse, hello, identity},
    zmtp::{FRAME_COST, FrameWriter, Frames, SocketType, ZmtpConnection},
};

/// Time between two attempts to reach a front end.
const RETRY: Duration = Duration::from_millis(200);

/// Time for each answer of a front end in the handshake, which may load a tokenizer meanwhile.
const HANDSHAKE: Duration = Duration::from_secs(300);

/// Time within which a client takes a message. Its side of a socket reads into memory, so one that does not has stopped.
const SEND_WITHIN: Duration = Duration::from_secs(10);

/// Why no mixture of experts on several ranks is joined; of the kind [`io::ErrorKind::Unsupported`].
const LOCK_STEP: &str = "its ranks run in lock step, as for a mixture of experts (before 0.14 for every model), and this engine's do not: start it without --data-parallel-size";

/// Bytes of messages that have not ended or wait for a place in the queue, of all connections.
const MOST_HELD: u64 = 1 << 30;

/// Messages of clients that wait for the engine.
const MOST_WAITING: usize = 256;

/// Bytes of them in all.
const MOST_WAITING_BYTES: u32 = 256 << 20;

/// What arrives at an engine.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionInput {
    /// Frames of a client: the type, the message, tensors.
    Client {
        /// Its number.
        client: usize,
        /// What it sent.
        frames: Vec<Vec<u8>>,
    },
    /// Frames of the coordinator.
    Coordinator(Vec<Vec<u8>>),
    /// The front end has disconnected, with the reason.
    Gone(String),
}

/// An input, with its share of the bytes that may wait.
type WaitingInput = (SessionInput, Option<OwnedSemaphorePermit>);

/// Where inputs wait.
#[derive(Debug, Clone)]
struct WaitingInputs {
    to: mpsc::Sender<WaitingInput>,
    bytes: Arc<Semaphore>,
}

/// Who sent something.
#[derive(Debug, Clone, Copy)]
enum InputSource {
    Client(usize),
    Output,
    Coordinator,
}

/// A session with a front end, after the handshake. Its connections end when this is dropped.
#[derive(Debug)]
pub struct EngineSession {
    clients: Vec<FrameWriter>,
    coordinator: Option<FrameWriter>,
    incoming: mpsc::Receiver<WaitingInput>,
    /// Those that are read, and the writers of those that are written to once.
    _readers: JoinSet<()>,
    _kept: Vec<FrameWriter>,
}

impl EngineSession {
    /// Waits for a front end at `tcp://HOST:PORT` and does the handshake as this rank. It ends with an error only where something else is there.
    ///
    /// # Errors
    /// Where the endpoint is none, what listens there is no front end, or the front end disconnects within the handshake. The kind is
    /// [`io::ErrorKind::Unsupported`] where the front end's ranks run in lock step: a second handshake would end it.
    pub async fn join(endpoint: &str, rank: u16, ready: &ReadyResponse) -> io::Result<Self> {
        let identity = identity(rank);
        let mut front = reach(endpoint, SocketType::Dealer, &identity).await?;
        front.writer.send(&[&hello()]).await?;
        let init = timeout(HANDSHAKE, front.reader.message()).await??;
        let init = init.first().map(Vec::as_slice).unwrap_or_default();
        let addresses = EngineAddresses::read(init).map_err(io::Error::other)?;
        if addresses.are_in_lock_step {
            return Err(io::Error::new(io::ErrorKind::Unsupported, LOCK_STEP));
        }
        // A second greeting would be the end of a front end: what is there too late is waited for here.
        let session = timeout(HANDSHAKE, Self::connect(&addresses, &identity, ready)).await??;
        front.writer.send(&[&ready.status()]).await?;
        Ok(session)
    }

    async fn connect(addresses: &EngineAddresses, identity: &[u8], ready: &ReadyResponse) -> io::Result<Self> {
        let (to, incoming) = mpsc::channel(MOST_WAITING);
        let waiting = WaitingInputs { to, bytes: Arc::new(Semaphore::new(MOST_WAITING_BYTES as usize)) };
        let (mut clients, mut kept, mut readers) = (Vec::new(), Vec::new(), JoinSet::new());
        let (ready, held) = (ready.to_bytes(), HeldBytes::new(MOST_HELD));
        for (client, (input, output)) in addresses.inputs.iter().zip(&addresses.outputs).enumerate() {
            let mut input = reach(input, SocketType::Dealer, identity).await?;
            input.writer.send(&[&ready]).await?;
            input.reader.within(&held);
            kept.push(input.writer);
            readers.spawn(read(input.reader, InputSource::Client(client), waiting.clone()));
            let mut output = reach(output, SocketType::Push, b"").await?;
            output.reader.within(&held);
            clients.push(output.writer);
            readers.spawn(read(output.reader, InputSource::Output, waiting.clone()));
        }
        if let Some(endpoint) = &addresses.coordinator_input {
            let mut input = reach(endpoint, SocketType::XSub, identity).await?;
            input.writer.send(&[b"\x01"]).await?;
            input.reader.message().await?;
            input.reader.within(&held);
            kept.push(input.writer);
            readers.spawn(read(input.reader, InputSource::Coordinator, waiting));
        }
        let coordinator = match &addresses.coordinator_output {
            Some(endpoint) => Some(reach(endpoint, SocketType::Push, b"").await?.writer),
            None => None,
        };
        Ok(Self { clients, coordinator, incoming, _readers: readers, _kept: kept })
    }

    /// Number of its clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Waits for the next message; may be dropped while it waits.
    pub async fn next(&mut self) -> SessionInput {
        let ended = || SessionInput::Gone("all of its connections have ended".to_owned());
        self.incoming.recv().await.map_or_else(ended, |(input, _)| input)
    }

    /// Sends outputs to a client; a client that does not exist is ignored.
    ///
    /// # Errors
    /// Where it is gone, or reads nothing for 10 s.
    pub async fn send(&mut self, client: usize, outputs: &[u8]) -> io::Result<()> {
        match self.clients.get_mut(client) {
            Some(client) => write(client, outputs).await,
            None => Ok(()),
        }
    }

    /// Sends figures to the coordinator, where there is one.
    ///
    /// # Errors
    /// Where it is gone, or reads nothing for 10 s.
    pub async fn send_to_coordinator(&mut self, outputs: &[u8]) -> io::Result<()> {
        match &mut self.coordinator {
            Some(coordinator) => write(coordinator, outputs).await,
            None => Ok(()),
        }
    }

    /// Notifies every client that the engine ends, so that none waits for it.
    pub async fn end(mut self) {
        for client in &mut self.clients {
            let _gone = write(client, ENGINE_CORE_DEAD).await;
        }
    }
}

/// Connects to a socket of a front end once it is there. Its processes may still begin.
async fn reach(endpoint: &str, socket: SocketType, identity: &[u8]) -> io::Result<ZmtpConnection> {
    loop {
        match ZmtpConnection::connect(endpoint, socket, identity).await {
            Err(error) if is_absent(&error) => sleep(RETRY).await,
            connected => return connected,
        }
    }
}

async fn write(to: &mut FrameWriter, message: &[u8]) -> io::Result<()> {
    let stopped = || io::Error::new(io::ErrorKind::TimedOut, format!("it has read nothing for {SEND_WITHIN:?}"));
    timeout(SEND_WITHIN, to.send(&[message])).await.map_err(|_| stopped())?
}

/// Checks whether nobody is there yet, or no longer.
fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof};
    matches!(error.kind(), ConnectionRefused | ConnectionReset | TimedOut | UnexpectedEof)
}

async fn read(mut frames: Frames<OwnedReadHalf>, from: InputSource, waiting: WaitingInputs) {
    loop {
        let input = match (frames.message().await, from) {
            (Ok(frames), InputSource::Client(client)) => SessionInput::Client { client, frames },
            (Ok(frames), InputSource::Coordinator) => SessionInput::Coordinator(frames),
            // Nothing comes from there.
            (Ok(_), InputSource::Output) => continue,
            (Err(error), _) => SessionInput::Gone(error.to_string()),
        };
        let size = match &input {
            SessionInput::Client { frames, .. } | SessionInput::Coordinator(frames) => {
                frames.iter().map(|frame| frame.len() as u64 + FRAME_COST).sum()
            }
            SessionInput::Gone(_) => 0,
        };
        let share = u32::try_from(size).unwrap_or(u32::MAX).min(MOST_WAITING_BYTES);
        let share = Arc::clone(&waiting.bytes).acquire_many_owned(share).await.ok();
        let is_last = matches!(input, SessionInput::Gone(_));
        if waiting.to.send((input, share)).await.is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::msgpack::MsgpackValue;

    fn ready() -> ReadyResponse {
        ReadyResponse {
            max_model_len: 4096,
            num_gpu_blocks: 100,
            block_size: 16,
            vllm_version: "0.32.0".to_owned(),
            data_parallel: (1, 0),
            max_num_seqs: 8,
            max_num_batched_tokens: 2048,
            instance_id: "1".to_owned(),
            max_loras: 0,
            enable_sleep_mode: false,
            kv_events_config: MsgpackValue::Nil,
        }
    }

    /// A front end's sockets.
    struct Front {
        handshake: TcpListener,
        input: TcpListener,
        output: TcpListener,
    }

    async fn accept(listener: &TcpListener, socket: SocketType) -> ZmtpConnection {
        ZmtpConnection::open(listener.accept().await.unwrap().0, socket, b"").await.unwrap()
    }

    fn address(listener: &TcpListener) -> String {
        format!("tcp://{}", listener.local_addr().unwrap())
    }

    impl Front {
        async fn new() -> Self {
            let bind = || TcpListener::bind("127.0.0.1:0");
            Self { handshake: bind().await.unwrap(), input: bind().await.unwrap(), output: bind().await.unwrap() }
        }

        /// Meets an engine: its status after the addresses, its first input frame, and both connections.
        async fn meet(&self) -> (MsgpackValue, MsgpackValue, ZmtpConnection, ZmtpConnection) {
            let mut handshake = accept(&self.handshake, SocketType::Router).await;
            assert_eq!(handshake.peer_identity, [3, 0]);
            assert_eq!(handshake.reader.message().await.unwrap(), [hello()]);
            let list = |listener| vec![address(listener).as_str()].into();
            let addresses = MsgpackValue::map([("inputs", list(&self.input)), ("outputs", list(&self.output))]);
            handshake.writer.send(&[&MsgpackValue::map([("addresses", addresses)]).to_bytes()]).await.unwrap();
            let mut input = accept(&self.input, SocketType::Router).await;
            let first = input.reader.message().await.unwrap().remove(0);
            let output = accept(&self.output, SocketType::Pull).await;
            let status = handshake.reader.message().await.unwrap().remove(0);
            (MsgpackValue::read(&status).unwrap(), MsgpackValue::read(&first).unwrap(), input, output)
        }
    }

    #[tokio::test]
    async fn an_engine_meets_a_front_end_hears_it_answers_and_notices_its_end() {
        let front = Front::new().await;
        let endpoint = address(&front.handshake);
        let joining = tokio::spawn(async move { EngineSession::join(&endpoint, 3, &ready()).await });
        let (status, first, mut input, mut output) = front.meet().await;
        assert_eq!(status.get("status").and_then(MsgpackValue::as_str), Some("READY"));
        assert_eq!(first.get("max_model_len").and_then(MsgpackValue::as_u64), Some(4096));
        let mut session = joining.await.unwrap().unwrap();
        input.writer.send(&[b"\x01", b"\x90"]).await.unwrap();
        let frames = vec![vec![1], vec![0x90]];
        assert_eq!(session.next().await, SessionInput::Client { client: 0, frames });
        session.send(0, b"outputs").await.unwrap();
        session.send(7, b"nobody").await.unwrap();
        assert_eq!(output.reader.message().await.unwrap(), [b"outputs"]);
        drop(input);
        assert!(matches!(session.next().await, SessionInput::Gone(_)));
        session.end().await;
        assert_eq!(output.reader.message().await.unwrap(), [ENGINE_CORE_DEAD]);
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_gone() {
        let front = Front::new().await;
        let endpoint = address(&front.handshake);
        let joining = tokio::spawn(async move { EngineSession::join(&endpoint, 3, &ready()).await });
        let (_, _, _input, _output) = front.meet().await;
        let mut session = joining.await.unwrap().unwrap();
        tokio::time::pause();
        let error = session.send(0, &vec![0; 64 << 20]).await.unwrap_err();
        assert_eq!(error.to_string(), "it has read nothing for 10s");
    }

    #[tokio::test]
    async fn long_messages_wait_at_the_client() {
        let front = Front::new().await;
        let endpoint = address(&front.handshake);
        let joining = tokio::spawn(async move { EngineSession::join(&endpoint, 3, &ready()).await });
        let (_, _, mut input, _output) = front.meet().await;
        let mut session = joining.await.unwrap().unwrap();
        let long = vec![0; MOST_WAITING_BYTES as usize / 4];
        let sending = tokio::spawn(async move {
            for _ in 0..12 {
                input.writer.send(&[&long]).await.unwrap();
            }
            input
        });
        sleep(RETRY * 5).await;
        assert!(!sending.is_finished() && session.incoming.len() <= 4, "{}", session.incoming.len());
        for _ in 0..12 {
            assert!(matches!(session.next().await, SessionInput::Client { .. }));
        }
        sending.await.unwrap();
    }

    #[tokio::test]
    async fn a_front_end_that_is_not_there_yet_is_waited_for() {
        // Of an address that no connection comes from, so that nobody takes its port meanwhile.
        let listener = TcpListener::bind("127.0.0.2:0").await.unwrap();
        let (endpoint, at) = (address(&listener), listener.local_addr().unwrap());
        drop(listener);
        let joining = tokio::spawn(async move { EngineSession::join(&endpoint, 3, &ready()).await });
        sleep(RETRY * 2).await;
        assert!(!joining.is_finished());
        let handshake = TcpListener::bind(at).await.unwrap();
        let front = Front { handshake, ..Front::new().await };
        front.meet().await;
        assert_eq!(joining.await.unwrap().unwrap().clients(), 1);
    }

    #[tokio::test]
    async fn ranks_in_lock_step_are_refused_by_name() {
        let front = Front::new().await;
        let endpoint = address(&front.handshake);
        let joining = tokio::spawn(async move { EngineSession::join(&endpoint, 3, &ready()).await });
        let mut handshake = accept(&front.handshake, SocketType::Router).await;
        let list = |listener| vec![address(listener).as_str()].into();
        let addresses = MsgpackValue::map([("inputs", list(&front.input)), ("outputs", list(&front.output))]);
        let meeting = MsgpackValue::map([("data_parallel_size", 2_u32.into())]);
        let init = MsgpackValue::map([("addresses", addresses), ("parallel_config", meeting)]);
        handshake.writer.send(&[&init.to_bytes()]).await.unwrap();
        let error = joining.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::Unsupported, LOCK_STEP));
    }

    #[tokio::test]
    async fn damaged_addresses_end_the_handshake_with_a_reason() {
        let front = Front::new().await;
        let endpoint = address(&front.handshake);
        let joining = tokio::spawn(async move { EngineSession::join(&endpoint, 3, &ready()).await });
        let mut handshake = accept(&front.handshake, SocketType::Router).await;
        handshake.writer.send(&[b"\x80"]).await.unwrap();
        let error = joining.await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "EngineHandshakeMetadata.addresses is not a map");
    }
}
