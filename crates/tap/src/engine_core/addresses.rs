//! The front end's answer to an engine's greeting, which names the addresses of its sockets:
//! `{addresses: {inputs: [..], outputs: [..], coordinator_input, coordinator_output, ..}, ..}`, a map of MessagePack.
//!
//! Only these texts are replaced; every other value stays, whatever a version of vLLM adds. The address at which front ends get the
//! coordinator's statistics is not one that engines connect to, and stays too.

use engine_core::{handshake::EngineAddresses, msgpack::MsgpackValue};

/// Purpose of a socket of the front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum SocketRole {
    /// Greetings of engines.
    Handshake,
    /// Requests to engines.
    Input,
    Output,
    /// Coordination of several engines.
    Coordinator,
}

#[derive(Debug)]
pub(super) struct InitAddresses(MsgpackValue);

impl InitAddresses {
    /// Reads a message; `None` if it is another one.
    pub(super) fn read(message: &[u8]) -> Option<Self> {
        EngineAddresses::read(message).ok()?;
        MsgpackValue::read(message).ok().map(Self)
    }

    /// Returns the addresses to which engines connect.
    pub(super) fn sockets_mut(&mut self) -> impl Iterator<Item = (SocketRole, &mut String)> {
        let addresses = match self.0.get_mut("addresses") {
            Some(MsgpackValue::Map(addresses)) => addresses.as_mut_slice(),
            _ => &mut [],
        };
        addresses.iter_mut().flat_map(|(name, value)| {
            let role = match name.as_str() {
                Some("inputs") => Some(SocketRole::Input),
                Some("outputs") => Some(SocketRole::Output),
                Some("coordinator_input" | "coordinator_output") => Some(SocketRole::Coordinator),
                _ => None,
            };
            let values = match value {
                MsgpackValue::Array(values) => values.as_mut_slice(),
                one => std::slice::from_mut(one),
            };
            values.iter_mut().filter_map(move |value| match value {
                MsgpackValue::Text(address) => Some((role?, address)),
                _ => None,
            })
        })
    }

    /// Encodes the message with the addresses as they are now; all else is as it came.
    pub(super) fn encode(&self) -> Vec<u8> {
        self.0.to_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(input: &str, output: &str, coordinator: &str) -> Vec<u8> {
        let one = |address: &str| MsgpackValue::Array(vec![address.into()]);
        let addresses = MsgpackValue::map([
            ("inputs", one(input)),
            ("outputs", one(output)),
            ("coordinator_input", coordinator.into()),
            ("coordinator_output", MsgpackValue::Nil),
            ("frontend_stats_publish_address", "ipc:///tmp/x".into()),
            ("new", "value".into()),
        ]);
        MsgpackValue::map([("addresses", addresses), ("parallel_config", MsgpackValue::map([]))]).to_bytes()
    }

    #[test]
    fn only_addresses_change() {
        let long = format!("tcp://{}:1", "a".repeat(300));
        let mut init = InitAddresses::read(&message("tcp://a:1", &long, "tcp://c:3")).unwrap();
        assert_eq!(init.encode(), message("tcp://a:1", &long, "tcp://c:3"));
        let roles: Vec<SocketRole> = init.sockets_mut().map(|(role, _)| role).collect();
        assert_eq!(roles, [SocketRole::Input, SocketRole::Output, SocketRole::Coordinator]);
        for ((_, address), new) in init.sockets_mut().zip(["tcp://127.0.0.1:40001", "tcp://b:2", "tcp://127.0.0.1:3"]) {
            *address = new.to_owned();
        }
        assert_eq!(init.encode(), message("tcp://127.0.0.1:40001", "tcp://b:2", "tcp://127.0.0.1:3"));
    }

    #[test]
    fn other_messages_are_none() {
        let whole = message("tcp://a:1", "tcp://b:2", "tcp://c:3");
        for length in 0..whole.len() {
            assert!(InitAddresses::read(&whole[..length]).is_none(), "{length}");
        }
        assert!(InitAddresses::read(b"READY").is_none());
    }
}
