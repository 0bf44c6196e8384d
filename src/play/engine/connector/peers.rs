//! Hosts to which an engine sends datagrams. Requests name them, and a client is not to choose where a server sends.

use std::net::IpAddr;

/// Any host, in a list of them.
const ANY: &str = "*";

/// The hosts beside the loopback to which datagrams may go.
#[derive(Debug)]
pub(super) struct Peers(Vec<String>);

impl Peers {
    pub(super) fn new(hosts: Vec<String>) -> Self {
        Self(hosts)
    }

    /// Checks a host before its name is looked up: of the loopback, or listed, spelled as it is there.
    pub(super) fn have(&self, host: &str) -> bool {
        let is_loopback = host.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
        let is_listed = |listed: &String| listed == ANY || listed.eq_ignore_ascii_case(host);
        is_loopback || host.eq_ignore_ascii_case("localhost") || self.0.iter().any(is_listed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_chooses_among_the_loopback_and_the_hosts_that_are_listed() {
        let peers = Peers::new(vec!["10.0.0.2".to_owned(), "prefill.internal".to_owned()]);
        for host in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "LocalHost", "10.0.0.2", "Prefill.internal"] {
            assert!(peers.have(host), "{host}");
        }
        for host in
            ["10.0.0.3", "169.254.169.254", "0.0.0.0", "::", "127.1", "2130706433", "a.prefill.internal", "*", ""]
        {
            assert!(!peers.have(host), "{host}");
        }
        assert!(Peers::new(vec!["*".to_owned()]).have("192.0.2.1"));
    }
}
