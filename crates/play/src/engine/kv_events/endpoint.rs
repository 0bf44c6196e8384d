//! Endpoints of ZeroMQ, and what vLLM makes of them.

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use super::KvEventsError;

/// `tcp://HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TcpEndpoint {
    host: String,
    port: u16,
}

impl TcpEndpoint {
    /// Reads an endpoint, and adds a data parallel rank to its port; a port of 0 stays 0.
    /// Errors: when it is none, or the port is beyond the last one.
    pub(super) fn read(text: &str, rank: u32) -> Result<Self, KvEventsError> {
        let wrong = || KvEventsError::Endpoint(text.to_owned());
        let (host, port) = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(wrong)?;
        let base: u16 = port.parse().map_err(|_| wrong())?;
        let port = if base == 0 { 0 } else { u32::from(base).saturating_add(rank) };
        let port = u16::try_from(port).map_err(|_| wrong())?;
        if host.is_empty() || host.contains(['/', ' ']) {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port })
    }

    /// Checks whether it is listened on, by vLLM's rule.
    pub(super) fn is_listened_on(&self) -> bool {
        self.host.contains('*') || self.host.contains("::")
    }

    /// The same in the words of the library: every address is `0.0.0.0`.
    pub(super) fn address(&self) -> String {
        let host = if self.host == "*" { "0.0.0.0" } else { &self.host };
        format!("tcp://{host}:{}", self.port)
    }
}

/// An endpoint as it was given, with its port moved by a rank; one whose port the system chose, as others reach it.
pub(super) fn shown(given: &str, rank: u32, bound: &str) -> String {
    match TcpEndpoint::read(given, rank) {
        Ok(TcpEndpoint { host, port }) if port != 0 => format!("tcp://{host}:{port}"),
        _ => bound.replace("0.0.0.0", &reachable(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).to_string()),
    }
}

/// The address under which others reach a server on this one: its own, or that of the way out where it listens on all.
pub(super) fn reachable(ip: IpAddr) -> IpAddr {
    if !ip.is_unspecified() {
        return ip;
    }
    // Connecting sends nothing; it chooses the interface.
    let outward = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(8, 8, 8, 8), 80))?;
        socket.local_addr()
    });
    outward.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_move_with_the_rank_and_a_star_or_two_colons_are_listened_on() {
        let read = |text, rank| TcpEndpoint::read(text, rank).map(|end| (end.address(), end.is_listened_on())).unwrap();
        assert_eq!(read("tcp://*:5557", 0), ("tcp://0.0.0.0:5557".to_owned(), true));
        assert_eq!(read("tcp://*:5557", 3), ("tcp://0.0.0.0:5560".to_owned(), true));
        assert_eq!(read("tcp://*:0", 3), ("tcp://0.0.0.0:0".to_owned(), true));
        assert_eq!(read("tcp://router.example:5557", 1), ("tcp://router.example:5558".to_owned(), false));
        assert_eq!(read("tcp://[::1]:7", 0), ("tcp://[::1]:7".to_owned(), true));
    }

    #[test]
    fn an_endpoint_is_shown_as_it_was_given_but_for_its_port() {
        assert_eq!(shown("tcp://*:5557", 2, "tcp://0.0.0.0:5559"), "tcp://*:5559");
        assert_eq!(shown("tcp://router:5557", 0, "tcp://router:5557"), "tcp://router:5557");
        let chosen = shown("tcp://*:0", 1, "tcp://0.0.0.0:41234");
        assert!(!chosen.contains("0.0.0.0") && chosen.ends_with(":41234"), "{chosen}");
    }

    #[test]
    fn what_is_no_endpoint_is_named() {
        for text in ["", "5557", "tcp://", "tcp://*", "tcp://:5557", "tcp://*:70000", "tcp://*:x", "ipc:///tmp/kv"] {
            let error = TcpEndpoint::read(text, 0).unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("tcp://HOST:PORT"), "{error}");
        }
        assert!(TcpEndpoint::read("tcp://*:65535", 1).is_err());
    }

    #[test]
    fn the_address_of_a_server_on_one_interface_is_its_own() {
        let own = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
        assert_eq!(reachable(own), own);
        assert!(!reachable(IpAddr::V4(Ipv4Addr::UNSPECIFIED)).is_unspecified());
    }
}
