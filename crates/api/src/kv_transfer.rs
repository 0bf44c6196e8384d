//! `kv_transfer_params`: the part of a request in disaggregated serving. A router sends a request to an engine that prefills, with
//! `do_remote_decode`, and what that one answers to an engine that decodes, with `do_remote_prefill` and where the blocks are.
//!
//! Limits: of these fields the connector of vLLM reads more, but they change nothing here (sizes of parallel groups, lists of blocks). An
//! engine that prefills does not read back what another one has decoded (`bidirectional_kv_xfer`).

use serde_json::Value;

use super::{body::ValidBody, python::truthy};

/// Maximum size of a name or an id, in bytes.
const LONGEST: usize = 1024;

/// Fields without which vLLM transfers nothing.
const NEEDED: [&str; 5] = ["remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port"];

/// Parameters of a request for the engine's KV connector.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KvTransferParams {
    /// Whether its blocks are kept for another engine (`do_remote_decode`).
    pub sends: bool,
    /// Whether another engine has computed its prompt (`do_remote_prefill`).
    pub receives: bool,
    /// Where that engine's blocks are; `None` where fields are missing.
    pub remote: Option<RemotePrefill>,
    /// Tokens of the prompt that were cached there.
    pub remote_cached_tokens: Option<u32>,
}

/// Place of the blocks of a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemotePrefill {
    /// The engine.
    pub engine_id: String,
    /// The request there.
    pub request_id: String,
    /// Where it listens for connectors.
    pub host: String,
    /// The port there.
    pub port: u16,
}

impl KvTransferParams {
    pub(super) fn read(body: &ValidBody<'_>) -> Option<Self> {
        let params = body.get("kv_transfer_params")?.as_object().filter(|params| !params.is_empty())?;
        let field = |name: &str| params.get(name);
        let (sends, receives) = (truthy(field("do_remote_decode")), truthy(field("do_remote_prefill")));
        let has_all = || NEEDED.iter().all(|name| truthy(field(name)));
        let cached = field("remote_prefill_cached_tokens").and_then(Value::as_u64);
        Some(Self {
            sends,
            receives,
            remote: if receives && has_all() { RemotePrefill::read(field) } else { None },
            remote_cached_tokens: cached.filter(|_| receives).and_then(|tokens| u32::try_from(tokens).ok()),
        })
    }
}

impl RemotePrefill {
    fn read<'a>(field: impl Fn(&str) -> Option<&'a Value>) -> Option<Self> {
        let text = |name: &str| match field(name)? {
            Value::String(text) if text.len() <= LONGEST => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Null | Value::Bool(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => None,
        };
        Some(Self {
            engine_id: text("remote_engine_id")?,
            request_id: text("remote_request_id")?,
            host: text("remote_host")?,
            port: text("remote_port")?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(params: &Value) -> Option<KvTransferParams> {
        let body = json!({"kv_transfer_params": params});
        KvTransferParams::read(&ValidBody(body.as_object().unwrap()))
    }

    #[test]
    fn both_sides_of_a_transfer_are_read() {
        let prefill = json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null,
            "remote_block_ids": null, "remote_host": null, "remote_port": null});
        assert_eq!(read(&prefill), Some(KvTransferParams { sends: true, ..KvTransferParams::default() }));
        let decode = json!({"do_remote_prefill": true, "do_remote_decode": false, "remote_block_ids": [[1, 2]],
            "remote_engine_id": "e", "remote_request_id": "r", "remote_host": "h", "remote_port": 5600,
            "remote_prefill_cached_tokens": 32});
        let found = read(&decode).unwrap();
        let remote = RemotePrefill { engine_id: "e".into(), request_id: "r".into(), host: "h".into(), port: 5600 };
        assert_eq!((found.sends, found.receives, found.remote_cached_tokens), (false, true, Some(32)));
        assert_eq!(found.remote, Some(remote));
        assert_eq!((read(&Value::Null), read(&json!({}))), (None, None));
    }

    #[test]
    fn what_says_too_little_or_something_else_is_no_place() {
        let whole = json!({"do_remote_prefill": 1, "remote_block_ids": [1], "remote_engine_id": "e",
            "remote_request_id": "r", "remote_host": "h", "remote_port": "5600"});
        assert!(read(&whole).unwrap().remote.is_some());
        for (name, value) in [
            ("remote_block_ids", json!([])),
            ("remote_engine_id", Value::Null),
            ("remote_request_id", json!({"a": 1})),
            ("remote_host", json!(["h"])),
            ("remote_host", json!("h".repeat(2000))),
            ("remote_port", json!(70_000)),
            ("remote_port", json!(-1)),
            ("remote_port", json!("many")),
            ("do_remote_prefill", json!(0)),
        ] {
            let mut params = whole.clone();
            params[name] = value;
            assert_eq!(read(&params).unwrap().remote, None, "{name}");
        }
    }
}
