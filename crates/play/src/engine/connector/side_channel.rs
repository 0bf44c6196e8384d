//! Notices between engines about blocks: one datagram of [`LENGTH`] bytes, without an answer.
//!
//! A notice: the blocks of a request were read, or will be. Which request that is stands there as a hash, so that a client, whose request
//! names the engine and the address, chooses none of the bytes that are sent. Who loses a datagram waits for the end of the lease. Names of
//! hosts are looked up on a thread of their own; datagrams that this thread has no room for are dropped and counted.
//!
//! Datagrams go to the loopback and to the hosts of [`KvTransferConfig::peers`]; those that a request would send elsewhere are dropped
//! before the host is looked up, and counted.
//!
//! Limits: nothing is encrypted.

use std::{
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use xxhash_rust::xxh3::xxh3_128;

use super::KvTransferConfig;
use crate::{engine::inbox::Inbox, metrics::Metrics};
use api::RemotePrefill;
use base::{lock::Lock, rate_limited_log::RateLimitedLog};

/// First bytes of a datagram.
const MAGIC: [u8; 7] = *b"vcr-kv1";

/// Bytes of a datagram: those, a kind, and the hash of a request.
const LENGTH: usize = MAGIC.len() + 1 + 16;

/// Datagrams that wait to be sent.
const MOST_QUEUED: usize = 4096;

/// Pause of the listener after which it looks whether it should end.
const PATIENCE: Duration = Duration::from_millis(200);

/// The content of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum NoticeKind {
    /// The blocks were read, or will not be.
    Read,
    /// The blocks will be read.
    Alive,
}

/// A datagram that came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Notice {
    pub(in super::super) kind: NoticeKind,
    pub(in super::super) digest: u128,
}

impl Notice {
    fn encode(self) -> [u8; LENGTH] {
        let kind = match self.kind {
            NoticeKind::Read => b'r',
            NoticeKind::Alive => b'a',
        };
        let mut bytes = [0; LENGTH];
        let parts = MAGIC.into_iter().chain([kind]).chain(self.digest.to_be_bytes());
        bytes.iter_mut().zip(parts).for_each(|(byte, part)| *byte = part);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, digest) = bytes.strip_prefix(&MAGIC)?.split_first()?;
        let kind = match kind {
            b'r' => NoticeKind::Read,
            b'a' => NoticeKind::Alive,
            _ => return None,
        };
        Some(Self { kind, digest: u128::from_be_bytes(digest.try_into().ok()?) })
    }
}

/// What a request of an engine is called in datagrams.
pub(super) fn digest(engine_id: &str, request_id: &str) -> u128 {
    xxh3_128([engine_id.as_bytes(), &[0], request_id.as_bytes()].concat().as_slice())
}

/// The hosts beside the loopback to which datagrams may go, `*` for any. Requests name hosts, and a client is not to choose where a server
/// sends.
#[derive(Debug)]
struct Peers(Vec<String>);

impl Peers {
    /// Checks a host before its name is looked up: of the loopback, or listed, spelled as it is there.
    fn have(&self, host: &str) -> bool {
        let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        let is_listed = |listed: &String| listed == "*" || listed.eq_ignore_ascii_case(host);
        is_loopback || host.eq_ignore_ascii_case("localhost") || self.0.iter().any(is_listed)
    }
}

/// A datagram, and where it goes.
#[derive(Debug)]
struct Datagram {
    host: String,
    port: u16,
    notice: Notice,
}

/// The engine's end of the channel. It listens until [`SideChannel::close`].
#[derive(Debug)]
pub(crate) struct SideChannel {
    host: String,
    address: SocketAddr,
    queue: SyncSender<Datagram>,
    peers: Peers,
    metrics: Arc<Metrics>,
    is_closed: Arc<AtomicBool>,
    listener: Lock<Option<JoinHandle<()>>>,
}

impl SideChannel {
    /// Listens on the address of a configuration, and gives what comes to an engine.
    /// Errors: an address that cannot be listened on; no thread to be had.
    pub(in super::super) fn open(
        config: &KvTransferConfig,
        inbox: &Arc<Inbox>,
        metrics: &Arc<Metrics>,
    ) -> io::Result<Self> {
        let address = first_of(&config.host, config.port)?;
        let socket = bind(address)?;
        let address = socket.local_addr()?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let (queue, outgoing) = sync_channel(MOST_QUEUED);
        let is_closed = Arc::<AtomicBool>::default();
        let (of_listener, inbox) = (Arc::clone(&is_closed), Arc::clone(inbox));
        let counted = Arc::clone(metrics);
        let name = |what: &str| thread::Builder::new().name(format!("kv-{what}"));
        name("sender").spawn(move || send(&outgoing, &counted))?;
        let listener = name("listener").spawn(move || listen(&socket, &inbox, &of_listener))?;
        let (host, metrics) = (config.host.clone(), Arc::clone(metrics));
        let peers = Peers(config.peers.iter().chain([&host]).cloned().collect());
        Ok(Self { host, address, queue, peers, metrics, is_closed, listener: Lock::new(Some(listener)) })
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Sends a datagram about a request, soon.
    pub(super) fn send(&self, to: &RemotePrefill, kind: NoticeKind) {
        if !self.peers.have(&to.host) {
            return self.refuse(&to.host);
        }
        let notice = Notice { kind, digest: digest(&to.engine_id, &to.request_id) };
        if self.queue.try_send(Datagram { host: to.host.clone(), port: to.port, notice }).is_err() {
            self.metrics.notice_failed();
        }
    }

    fn refuse(&self, host: &str) {
        static LOG: RateLimitedLog = RateLimitedLog::new();
        if let Some(more) = LOG.due() {
            tracing::warn!(
                host,
                more,
                "a request's remote_host is neither this host nor one of \"peers\" in kv_connector_extra_config; nothing is sent to it"
            );
        }
        self.metrics.notice_failed();
    }

    /// Stops listening; the port is free then.
    pub(in super::super) fn close(&self) {
        self.is_closed.store(true, Relaxed);
        let listener = self.listener.lock().take();
        // Wakes the listener; where this does not arrive, it looks by itself soon.
        let _sent = UdpSocket::bind((self.address.ip(), 0)).and_then(|socket| socket.send_to(&[], self.address));
        listener.into_iter().for_each(|listener| drop(listener.join()));
    }
}

impl Drop for SideChannel {
    fn drop(&mut self) {
        self.close();
    }
}

/// Binds an address, or all of this machine where it has none such: behind NAT, others reach it by another.
fn bind(address: SocketAddr) -> io::Result<UdpSocket> {
    match UdpSocket::bind(address) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            let ip = address.ip();
            tracing::warn!(%ip, "no address of this machine: other engines are listened for on all of its addresses");
            any_of_family(address, address.port())
        }
        bound => bound,
    }
}

fn any_of_family(address: SocketAddr, port: u16) -> io::Result<UdpSocket> {
    UdpSocket::bind((if address.is_ipv6() { "::" } else { "0.0.0.0" }, port))
}

/// The first address of a host, one of IPv4 where it has any.
fn first_of(host: &str, port: u16) -> io::Result<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    addresses.sort_by_key(SocketAddr::is_ipv6);
    addresses.first().copied().ok_or_else(|| io::Error::other("the host has no address"))
}

fn send(outgoing: &Receiver<Datagram>, metrics: &Metrics) {
    for Datagram { host, port, notice } in outgoing {
        let sent = first_of(&host, port).and_then(|to| any_of_family(to, 0)?.send_to(&notice.encode(), to));
        if let Err(error) = sent {
            tracing::debug!(host, port, %error, "another engine's connector cannot be reached");
            metrics.notice_failed();
        }
    }
}

fn listen(socket: &UdpSocket, inbox: &Inbox, is_closed: &AtomicBool) {
    // One byte more than any of ours has.
    let mut bytes = [0; LENGTH + 1];
    while !is_closed.load(Relaxed) {
        let Ok(length) = socket.recv(&mut bytes) else { continue };
        if let Some(notice) = bytes.get(..length).and_then(Notice::decode) {
            inbox.notify(notice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_read_as_they_were_written_and_nothing_else_is() {
        for kind in [NoticeKind::Read, NoticeKind::Alive] {
            let notice = Notice { kind, digest: digest("engine", "request") };
            let bytes = notice.encode();
            assert_eq!(Notice::decode(&bytes), Some(notice));
            assert_eq!(Notice::decode(&bytes[..LENGTH - 1]), None);
            assert_eq!(Notice::decode(&[bytes.as_slice(), &[0]].concat()), None);
            assert_eq!(Notice::decode(&[0; LENGTH]), None);
        }
        assert_ne!(digest("a", "bc"), digest("ab", "c"));
    }

    #[test]
    fn for_an_address_of_another_machine_all_are_listened_on() {
        let bound = bind("192.0.2.1:0".parse().unwrap()).unwrap().local_addr().unwrap();
        assert!(bound.ip().is_unspecified() && bound.port() > 0, "{bound}");
    }

    #[test]
    fn a_request_chooses_among_the_loopback_and_the_hosts_that_are_listed() {
        let peers = Peers(vec!["10.0.0.2".to_owned(), "prefill.internal".to_owned()]);
        for host in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "LocalHost", "10.0.0.2", "Prefill.internal"] {
            assert!(peers.have(host), "{host}");
        }
        for host in
            ["10.0.0.3", "169.254.169.254", "0.0.0.0", "::", "127.1", "2130706433", "a.prefill.internal", "*", ""]
        {
            assert!(!peers.have(host), "{host}");
        }
        assert!(Peers(vec!["*".to_owned()]).have("192.0.2.1"));
    }
}
