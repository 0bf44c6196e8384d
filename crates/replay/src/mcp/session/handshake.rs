//! Requests that are answered by their method alone.

use std::time::Duration;

use serde_json::{Value, json};

use super::{Out, Session, made_up};
use crate::mcp::{
    era::{LEGACY, discovered, initialized},
    message::{METHOD_NOT_FOUND, error},
    turn::Turn,
};

impl Session {
    /// Answers a request that matches by its method alone, however often.
    pub(super) fn handshake(&mut self, turn: Turn, method: &str, params: &Value, (now, out): (Duration, &mut Out)) {
        if method == "initialize" {
            self.version = self.negotiated(params);
        }
        if turn.at.is_some() {
            return self.go_on(turn, now, out);
        }
        let result = match method {
            "initialize" => Some(initialized(&self.index, &self.version)),
            "logging/setLevel" => Some(json!({})),
            // A client that tries the modern era first goes on at once with what the recording has.
            _ => discovered(&self.index),
        };
        let Some(id) = &turn.caller else { return };
        match result {
            Some(result) => out.answer(made_up(id, turn.era, method, result)),
            None => out.answer(error(Some(id), METHOD_NOT_FOUND, "Method not found", None)),
        }
    }

    /// The protocol version of an answer to `initialize`: the client's, where it is one of the recorded era, else the recording's.
    fn negotiated(&self, params: &Value) -> String {
        let wanted = params.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
        let recorded = self.index.first_of("initialize").and_then(|indexed| indexed.record.answer()?.get("result"));
        let recorded = recorded.and_then(|result| result.get("protocolVersion")?.as_str());
        let newest = LEGACY.last().copied().unwrap_or_default();
        if LEGACY.contains(&wanted) { wanted } else { recorded.unwrap_or(newest) }.to_owned()
    }
}
