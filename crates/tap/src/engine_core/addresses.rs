//! The front end's answer to an engine's greeting, which names the addresses of its sockets:
//! `{addresses: {inputs: [..], outputs: [..], coordinator_input, coordinator_output, ..}, ..}`, a map of MessagePack.
//!
//! Only these texts are replaced; every other byte stays, whatever a version of vLLM adds. The address at which front ends get the
//! coordinator's statistics is not one that engines connect to, and stays too.

use std::ops::Range;

use super::msgpack::{MsgpackCursor, put_text};

/// Purpose of a socket of the front end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum SocketRole {
    /// Greetings of engines.
    Handshake,
    /// Requests to engines.
    Input,
    /// Outputs of engines.
    Output,
    /// Coordination of several engines.
    Coordinator,
}

/// The answer with its addresses.
#[derive(Debug, Default)]
pub(super) struct InitAddresses {
    message: Vec<u8>,
    /// Each with the place of its text in the message, in the order of their places.
    addresses: Vec<(Range<usize>, SocketRole, String)>,
}

impl InitAddresses {
    /// Reads a message; `None` if it is another one.
    pub(super) fn read(message: &[u8]) -> Option<Self> {
        let mut found = Self { message: message.to_vec(), addresses: Vec::new() };
        let mut cursor = MsgpackCursor::new(message);
        for _ in 0..cursor.map()? {
            if cursor.text()? != "addresses" {
                cursor.skip()?;
                continue;
            }
            for _ in 0..cursor.map()? {
                match cursor.text()? {
                    "inputs" => found.read_list(&mut cursor, SocketRole::Input)?,
                    "outputs" => found.read_list(&mut cursor, SocketRole::Output)?,
                    "coordinator_input" | "coordinator_output" => {
                        found.read_one(&mut cursor, SocketRole::Coordinator)?
                    }
                    _ => cursor.skip()?,
                }
            }
        }
        (!found.addresses.is_empty()).then_some(found)
    }

    fn read_list(&mut self, cursor: &mut MsgpackCursor<'_>, role: SocketRole) -> Option<()> {
        for _ in 0..cursor.array()? {
            self.read_one(cursor, role)?;
        }
        Some(())
    }

    fn read_one(&mut self, cursor: &mut MsgpackCursor<'_>, role: SocketRole) -> Option<()> {
        let start = self.message.len() - cursor.left();
        if let Some(address) = cursor.optional(MsgpackCursor::text)? {
            self.addresses.push((start..self.message.len() - cursor.left(), role, address.to_owned()));
        }
        Some(())
    }

    /// Returns the addresses to which engines connect.
    pub(super) fn sockets_mut(&mut self) -> impl Iterator<Item = (SocketRole, &mut String)> {
        self.addresses.iter_mut().map(|(_, role, address)| (*role, address))
    }

    /// Encodes the message with the addresses as they are now; all else is as it came.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (mut out, mut at) = (Vec::with_capacity(self.message.len()), 0);
        for (place, _, address) in &self.addresses {
            out.extend_from_slice(self.message.get(at..place.start).unwrap_or_default());
            put_text(&mut out, address);
            at = place.end;
        }
        out.extend_from_slice(self.message.get(at..).unwrap_or_default());
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(out: &mut Vec<u8>, name: &str, value: Option<&str>) {
        put_text(out, name);
        match value {
            Some(value) => put_text(out, value),
            None => out.push(0xc0),
        }
    }

    fn message(input: &str, output: &str, coordinator: &str) -> Vec<u8> {
        let mut out = vec![0x82];
        put_text(&mut out, "addresses");
        out.push(0x85);
        for (name, value) in [("inputs", input), ("outputs", output)] {
            put_text(&mut out, name);
            out.push(0x91);
            put_text(&mut out, value);
        }
        member(&mut out, "coordinator_input", Some(coordinator));
        member(&mut out, "coordinator_output", None);
        member(&mut out, "frontend_stats_publish_address", Some("ipc:///tmp/x"));
        member(&mut out, "new", Some("value"));
        out
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
