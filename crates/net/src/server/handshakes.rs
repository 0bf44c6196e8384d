//! Unfinished TLS handshakes, bounded for each address and in all: where there are too many, the oldest are closed.
//!
//! A client that connects and sends nothing holds up no other one: nothing waits for a place. Those younger than [`GRACE`] stay, so
//! that many honest clients may connect at once, up to [`BURST`] times the limit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{oneshot, watch},
    time::{Instant, timeout},
};
use tokio_rustls::{rustls::Error as TlsError, server::TlsStream};

use super::tls::Tls;
use base::lock::Lock;
use base::rate_limited_log::RateLimitedLog;

/// Time that a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of unfinished handshakes with one address, apart from those of a burst.
const PER_ADDRESS: usize = 256;

/// Maximum number of unfinished handshakes in all, apart from those of a burst.
const IN_ALL: usize = 1024;

/// Age below which handshakes are not closed unless there are [`BURST`] times as many as the limit.
const GRACE: Duration = Duration::from_secs(1);

/// Factor by which young handshakes may exceed a limit.
const BURST: usize = 8;

/// The unfinished handshakes of a listener.
#[derive(Debug, Default)]
pub(super) struct Handshakes {
    state: Lock<UnfinishedHandshakes>,
    log: RateLimitedLog,
    refused_log: RateLimitedLog,
}

#[derive(Debug, Default)]
struct UnfinishedHandshakes {
    begun: u64,
    /// By number, which is the order in which they began.
    unfinished: BTreeMap<u64, Unfinished>,
    by_address: HashMap<IpAddr, BTreeSet<u64>>,
}

#[derive(Debug)]
struct Unfinished {
    address: IpAddr,
    begun: Instant,
    /// Dropped to close the handshake.
    _open: oneshot::Sender<()>,
}

/// One unfinished handshake. Dropping it frees its place.
#[derive(Debug)]
struct HandshakePermit<'a> {
    number: u64,
    handshakes: &'a Handshakes,
    closed: oneshot::Receiver<()>,
}

/// TLS of a listener, and its unfinished handshakes; clones share both.
#[derive(Debug, Clone)]
pub(super) struct Handshake {
    pub(super) tls: Arc<Tls>,
    pub(super) handshakes: Arc<Handshakes>,
}

impl Handshake {
    /// Shakes hands with a client; `None` where that failed, took too long, was closed for others or the server stops.
    pub(super) async fn shake<I: AsyncRead + AsyncWrite + Unpin>(
        self,
        stream: I,
        address: IpAddr,
        stopped: &mut watch::Receiver<()>,
    ) -> Option<TlsStream<I>> {
        let mut place = self.handshakes.begin(address, Instant::now());
        tokio::select! {
            shaken = timeout(HANDSHAKE_TIMEOUT, self.tls.acceptor().accept(stream)) => match shaken {
                Ok(Ok(stream)) => return Some(stream),
                Ok(Err(error)) if is_of_certificate(&error) => {
                    if let Some(held) = place.handshakes.refused_log.due() {
                        tracing::warn!(%address, %error, held, "a client's certificate is refused");
                    }
                }
                Ok(Err(error)) => tracing::debug!(%address, %error, "the TLS handshake failed"),
                Err(_) => tracing::debug!(%address, "the TLS handshake timed out"),
            },
            _ = &mut place.closed => tracing::debug!(%address, "the TLS handshake was closed: too many are unfinished"),
            _ = stopped.changed() => {}
        }
        None
    }
}

/// Returns true if a handshake failed because of the client's certificate, or because it has none.
fn is_of_certificate(error: &io::Error) -> bool {
    let error = error.get_ref().and_then(|error| error.downcast_ref::<TlsError>());
    matches!(error, Some(TlsError::InvalidCertificate(_) | TlsError::NoCertificatesPresented))
}

impl Handshakes {
    /// Takes a place, and closes the oldest handshakes of this address and of all where there are too many.
    fn begin(&self, address: IpAddr, now: Instant) -> HandshakePermit<'_> {
        let address = network(address);
        let (open, closed) = oneshot::channel();
        let mut state = self.state.lock();
        let number = state.begun;
        state.begun += 1;
        state.unfinished.insert(number, Unfinished { address, begun: now, _open: open });
        state.by_address.entry(address).or_default().insert(number);
        let mut cut = 0_u64;
        while let Some(oldest) = state.surplus(address, now) {
            state.remove(oldest);
            cut += 1;
        }
        drop(state);
        if cut > 0
            && let Some(held) = self.log.due()
        {
            tracing::warn!(%address, held, "too many unfinished TLS handshakes: the oldest are closed");
        }
        HandshakePermit { number, handshakes: self, closed }
    }
}

impl Drop for HandshakePermit<'_> {
    fn drop(&mut self) {
        self.handshakes.state.lock().remove(self.number);
    }
}

impl UnfinishedHandshakes {
    /// Finds a handshake that has to be closed: the oldest of the address, or the oldest of all.
    fn surplus(&self, address: IpAddr, now: Instant) -> Option<u64> {
        let of_address = self.by_address.get(&address);
        let count = of_address.map_or(0, BTreeSet::len);
        let oldest = of_address.and_then(BTreeSet::first).copied();
        let exceeds = |count: usize, limit: usize, oldest: u64| {
            let is_old =
                self.unfinished.get(&oldest).is_some_and(|it| now.saturating_duration_since(it.begun) >= GRACE);
            count > limit && (is_old || count > limit * BURST)
        };
        let of_all = self.unfinished.first_key_value().map(|(number, _)| *number);
        let surplus = oldest.filter(|oldest| exceeds(count, PER_ADDRESS, *oldest));
        surplus.or_else(|| of_all.filter(|oldest| exceeds(self.unfinished.len(), IN_ALL, *oldest)))
    }

    fn remove(&mut self, number: u64) {
        let Some(Unfinished { address, .. }) = self.unfinished.remove(&number) else { return };
        if let Some(others) = self.by_address.get_mut(&address) {
            others.remove(&number);
            if others.is_empty() {
                self.by_address.remove(&address);
            }
        }
    }
}

/// Returns what counts as one address: one of IPv4, a network of 64 bits of IPv6, of which a client has all.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() >> 64 << 64)),
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use oneshot::error::TryRecvError::Empty;

    use super::*;

    fn address(last: u16) -> IpAddr {
        let [high, low] = last.to_be_bytes();
        IpAddr::V4([10, 0, high, low].into())
    }

    fn open(places: &mut [HandshakePermit<'_>]) -> usize {
        places.iter_mut().filter_map(|place| place.closed.try_recv().err()).filter(|it| *it == Empty).count()
    }

    #[test]
    fn the_oldest_handshakes_of_an_address_are_closed() {
        let (handshakes, now) = (Handshakes::default(), Instant::now());
        let _other = handshakes.begin(address(1), now);
        let mut places: Vec<HandshakePermit<'_>> =
            (0..PER_ADDRESS + 50).map(|_| handshakes.begin(address(0), now)).collect();
        assert_eq!(open(&mut places), PER_ADDRESS + 50, "a burst stays");
        let now = now + GRACE;
        places.push(handshakes.begin(address(0), now));
        assert_eq!(open(&mut places), PER_ADDRESS);
        assert_eq!((open(&mut places[..51]), open(&mut places[51..])), (0, PER_ADDRESS));
        places.clear();
        let state = handshakes.state.lock();
        assert_eq!((state.unfinished.len(), state.by_address.len()), (1, 1));
    }

    #[test]
    fn handshakes_are_bounded_in_all_and_in_a_burst() {
        let (handshakes, now) = (Handshakes::default(), Instant::now());
        let mut places: Vec<HandshakePermit<'_>> =
            (0..20_000_u16).map(|it| handshakes.begin(address(it), now)).collect();
        assert_eq!(open(&mut places), IN_ALL * BURST);
        let mut of_one: Vec<HandshakePermit<'_>> = (0..20_000).map(|_| handshakes.begin(address(0), now)).collect();
        assert_eq!(open(&mut of_one), PER_ADDRESS * BURST);
        let now = now + GRACE;
        of_one.push(handshakes.begin(address(1), now));
        assert_eq!(open(&mut places) + open(&mut of_one), IN_ALL);
    }

    #[test]
    fn a_client_has_a_network_of_ipv6() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }
}
