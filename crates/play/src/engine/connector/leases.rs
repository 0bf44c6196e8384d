//! Blocks that are kept for other engines, each until a time.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use tokio::time::Instant;

use ::engine::scheduler::RequestId;

/// Blocks of a request, and until when they are kept.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) id: RequestId,
    pub(super) expires: Instant,
}

/// Leases by what other engines call their requests.
#[derive(Debug, Default)]
pub(super) struct Leases {
    leases: HashMap<u128, Lease>,
    /// A time for each lease at which it may have expired.
    times: BinaryHeap<Reverse<(Instant, u128)>>,
}

impl Leases {
    pub(super) fn begin(&mut self, digest: u128, lease: Lease) {
        self.leases.insert(digest, lease);
        self.times.push(Reverse((lease.expires, digest)));
    }

    /// Lets a lease last until a time, unless it lasts longer.
    pub(super) fn extend(&mut self, digest: u128, expires: Instant) {
        if let Some(lease) = self.leases.get_mut(&digest) {
            lease.expires = lease.expires.max(expires);
        }
    }

    /// Ends a lease; the request whose blocks it was about, where there is one.
    pub(super) fn end(&mut self, digest: u128) -> Option<RequestId> {
        self.leases.remove(&digest).map(|lease| lease.id)
    }

    pub(super) fn expired(&mut self, now: Instant) -> Option<RequestId> {
        while let Some(Reverse((_, digest))) = self.times.peek().copied().filter(|Reverse((time, _))| *time <= now) {
            self.times.pop();
            match self.leases.get(&digest) {
                Some(lease) if lease.expires > now => self.times.push(Reverse((lease.expires, digest))),
                Some(_) => return self.end(digest),
                None => {}
            }
        }
        None
    }

    /// A time before which none expires.
    pub(super) fn next(&self) -> Option<Instant> {
        self.times.peek().map(|Reverse((time, _))| *time)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lease_expires_unless_it_is_extended_or_ends() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        (1..4).for_each(|id| leases.begin(u128::from(id), Lease { id, expires: at(30) }));
        assert_eq!(leases.expired(at(29)), None);
        leases.extend(2, at(45));
        leases.extend(2, at(40));
        leases.extend(9, at(99));
        assert_eq!((leases.end(3), leases.end(3)), (Some(3), None));
        assert_eq!((leases.expired(at(30)), leases.expired(at(30))), (Some(1), None));
        assert_eq!(leases.next(), Some(at(45)));
        assert_eq!((leases.expired(at(46)), leases.next()), (Some(2), None));
    }

    #[test]
    fn a_digest_may_come_again() {
        let (mut leases, start) = (Leases::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        leases.begin(7, Lease { id: 1, expires: at(30) });
        leases.end(7);
        leases.begin(7, Lease { id: 2, expires: at(60) });
        assert_eq!((leases.expired(at(31)), leases.expired(at(60)), leases.expired(at(90))), (None, Some(2), None));
    }
}
