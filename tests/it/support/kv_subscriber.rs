//! A subscriber of KV events that keeps a picture of the cache, as a router does.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use rmpv::Value;
use tokio::time::timeout;
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage, ZmqResult};

/// Time in which something has to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// The subscriber's sockets and its picture.
pub(crate) struct Subscriber {
    socket: SubSocket,
    pub(crate) cache: Cache,
}

/// Cached blocks, as the events tell.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// The number of the next message.
    pub(crate) next_seq: u64,
    pub(crate) topic: String,
    /// Blocks with each hash.
    blocks: HashMap<u64, i64>,
    /// Hashes by parent and tokens.
    children: HashMap<(Option<u64>, Vec<u32>), u64>,
    pub(crate) removed: usize,
    pub(crate) cleared: usize,
}

impl Subscriber {
    /// Connects to a publisher.
    pub(crate) async fn of(endpoint: &str) -> Self {
        Self::connect(endpoint).await.unwrap()
    }

    /// The same, and an error where the publisher is not there.
    pub(crate) async fn connect(endpoint: &str) -> ZmqResult<Self> {
        let mut socket = SubSocket::new();
        socket.connect(&endpoint.replace("0.0.0.0", "127.0.0.1")).await?;
        Ok(Self::with(socket).await)
    }

    /// A socket that is connected or listens.
    pub(crate) async fn with(mut socket: SubSocket) -> Self {
        socket.subscribe("").await.unwrap();
        Self { socket, cache: Cache::default() }
    }

    /// The next message: its number and payload; `None` where none comes in time.
    pub(crate) async fn next(&mut self, within: Duration) -> Option<(u64, Bytes)> {
        self.next_of_connection(within).await.unwrap()
    }

    /// The same, and an error where the connection has ended.
    pub(crate) async fn next_of_connection(&mut self, within: Duration) -> ZmqResult<Option<(u64, Bytes)>> {
        let Ok(received) = timeout(within, self.socket.recv()).await else { return Ok(None) };
        let message = received?;
        let [topic, seq, payload] = <[Bytes; 3]>::try_from(message.into_vec()).unwrap();
        self.cache.topic = String::from_utf8(topic.to_vec()).unwrap();
        Ok(Some((number(&seq), payload)))
    }

    /// Takes messages until the one with this number was taken; those before it that are missing are requested.
    pub(crate) async fn catch_up(&mut self, until: u64, replay: &str) {
        while self.cache.next_seq <= until {
            let (seq, payload) = self.next(PATIENCE).await.expect("a message");
            if seq > self.cache.next_seq {
                self.cache.replay(replay).await;
            }
            self.cache.take(seq, &payload);
        }
    }
}

impl Cache {
    /// Requests what was missed, and takes it.
    pub(crate) async fn replay(&mut self, endpoint: &str) {
        for (seq, payload) in replayed(endpoint, self.next_seq).await {
            self.take(seq, &payload);
        }
    }

    /// Takes a message, unless it was taken already.
    pub(crate) fn take(&mut self, seq: u64, payload: &[u8]) {
        if seq < self.next_seq {
            return;
        }
        assert_eq!(seq, self.next_seq, "nothing is missing");
        self.next_seq += 1;
        let batch = rmpv::decode::read_value(&mut &*payload).unwrap();
        for event in batch[1].as_array().unwrap() {
            match event["type"].as_str().unwrap() {
                "BlockStored" => self.store(event),
                "BlockRemoved" => {
                    let hash = event["block_hashes"][0].as_u64().unwrap();
                    *self.blocks.get_mut(&hash).expect("it was stored") -= 1;
                    self.removed += 1;
                }
                "AllBlocksCleared" => {
                    self.blocks.clear();
                    self.cleared += 1;
                }
                other => panic!("{other}"),
            }
        }
    }

    fn store(&mut self, event: &Value) {
        let size = usize::try_from(event["block_size"].as_u64().unwrap()).unwrap();
        let tokens: Vec<u32> = event["token_ids"].as_array().unwrap().iter().map(token).collect();
        let mut parent = event["parent_block_hash"].as_u64();
        for (hash, tokens) in event["block_hashes"].as_array().unwrap().iter().zip(tokens.chunks(size)) {
            let hash = hash.as_u64().unwrap();
            *self.blocks.entry(hash).or_default() += 1;
            self.children.insert((parent, tokens.to_vec()), hash);
            parent = Some(hash);
        }
    }

    /// Number of blocks that hold something.
    pub(crate) fn len(&self) -> i64 {
        self.blocks.values().sum()
    }

    /// Tokens of a prompt that the engine will find: whole blocks, and not its last token.
    pub(crate) fn cached(&self, prompt: &[u32], block_size: usize) -> usize {
        let (mut parent, mut found) = (None, 0);
        for block in prompt[..prompt.len() - 1].chunks_exact(block_size) {
            let Some(hash) = self.children.get(&(parent, block.to_vec())) else { break };
            if self.blocks.get(hash).is_none_or(|count| *count == 0) {
                break;
            }
            (parent, found) = (Some(*hash), found + block_size);
        }
        found
    }
}

/// The kept messages from a number on.
pub(crate) async fn replayed(endpoint: &str, first: u64) -> Vec<(u64, Bytes)> {
    let mut socket = DealerSocket::new();
    socket.connect(&endpoint.replace("0.0.0.0", "127.0.0.1")).await.unwrap();
    let mut request = ZmqMessage::from(Bytes::new());
    request.push_back(Bytes::copy_from_slice(&first.to_be_bytes()));
    socket.send(request).await.unwrap();
    let mut found = Vec::new();
    loop {
        let reply = timeout(PATIENCE, socket.recv()).await.expect("a reply").unwrap();
        let [delimiter, _topic, seq, payload] = <[Bytes; 4]>::try_from(reply.into_vec()).unwrap();
        assert!(delimiter.is_empty());
        if number(&seq) == u64::MAX {
            assert!(payload.is_empty());
            return found;
        }
        found.push((number(&seq), payload));
    }
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_be_bytes(bytes.try_into().unwrap())
}

fn token(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}
