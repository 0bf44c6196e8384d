//! The form in which requests of MCP are compared: method and parameters without what differs from run to run.
//!
//! What counts are the parameters that decide the result (`name`, `arguments`, `uri`, `cursor`, `inputResponses`, …). Ids of JSON-RPC,
//! progress tokens, trace contexts and the protocol's own `_meta` do not.

use serde_json::{Map, Value, json};

use recording::canonical::{FieldPath, Identity, McpCall, Scrub};

/// Entries of `_meta` that never count.
const NEVER: [&str; 4] = ["progressToken", "traceparent", "tracestate", "baggage"];

/// Prefix of the protocol's own entries of `_meta`.
const PROTOCOL: &str = "io.modelcontextprotocol/";

/// Methods whose requests are equal whatever their parameters.
const BY_METHOD: [&str; 4] = ["initialize", "server/discover", "ping", "logging/setLevel"];

/// Requests for lists, which libraries of clients send by themselves: before calls, and after the first call of a tool that they do not know.
const LISTS: [&str; 4] = ["tools/list", "resources/list", "resources/templates/list", "prompts/list"];

/// Requests that a client may send. One that is not recorded is a miss; other methods do not exist.
const KNOWN: [&str; 15] = [
    "tools/call",
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "tasks/get",
    "tasks/result",
    "tasks/list",
    "subscriptions/listen",
];

/// Rules for the comparison.
#[derive(Debug, Clone, Default)]
pub struct ParamRules {
    /// Places of a recorded body that do not count, such as `$.params.arguments.now`.
    pub ignored: Vec<FieldPath>,
    /// Edits of texts before they are compared.
    pub scrubs: Vec<Scrub>,
    /// Entries of `_meta` that are not the protocol's count too.
    pub counts_meta: bool,
}

/// Returns whether requests of a method are equal whatever their parameters.
pub(crate) fn is_by_method(method: &str) -> bool {
    BY_METHOD.contains(&method)
}

/// Returns whether a request is for a list, which may come more or less often than it was recorded.
pub(crate) fn is_list(method: &str) -> bool {
    LISTS.contains(&method)
}

/// Returns whether a client may send requests of this method.
pub(super) fn is_known(method: &str) -> bool {
    KNOWN.contains(&method)
}

impl ParamRules {
    /// The canonical request but for the spelling of numbers: `method`, and `params` where any count.
    fn canonical(&self, method: &str, params: &Value) -> Value {
        if is_by_method(method) {
            return json!({"method": method});
        }
        let mut fields = params.as_object().cloned().unwrap_or_default();
        self.leave_out_meta(&mut fields);
        if method == "tools/call" || method == "prompts/get" {
            let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
            if fields.get("arguments").is_some_and(is_empty) {
                fields.shift_remove("arguments");
            }
        }
        if method == "subscriptions/listen" {
            fields.retain(|name, _| name == "notifications");
        }
        let mut canonical = json!({"method": method, "params": fields});
        self.ignored.iter().for_each(|path| path.remove_from(&mut canonical));
        self.scrubs.iter().for_each(|scrub| scrub.apply(&mut canonical));
        if let Some(fields) = canonical.as_object_mut() {
            fields.retain(|name, value| name != "params" || value.as_object().is_none_or(|params| !params.is_empty()));
        }
        canonical
    }

    /// The identity of a message to a server.
    #[must_use]
    pub fn identify(&self, server: &str, method: &str, params: &Value) -> Identity {
        let call = McpCall { server: server.to_owned(), method };
        call.identity(self.canonical(method, params))
    }

    fn leave_out_meta(&self, fields: &mut Map<String, Value>) {
        let Some(Value::Object(meta)) = fields.get_mut("_meta") else {
            fields.shift_remove("_meta");
            return;
        };
        meta.retain(|name, _| self.counts_meta && !NEVER.contains(&name.as_str()) && !name.starts_with(PROTOCOL));
        if meta.is_empty() {
            fields.shift_remove("_meta");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use recording::canonical::CanonicalKey;

    fn key(rules: &ParamRules, method: &str, params: &Value) -> CanonicalKey {
        rules.identify("s", method, params).key
    }

    #[test]
    fn what_does_not_decide_the_result_does_not_count() {
        let rules = ParamRules::default();
        let same = |method: &str, a: Value, b: Value| key(&rules, method, &a) == key(&rules, method, &b);
        assert!(same("tools/list", Value::Null, json!({"_meta": {"progressToken": 3}})));
        assert!(same("tools/call", json!({"name": "a"}), json!({"name": "a", "arguments": {}})));
        assert!(same("tools/call", json!({"name": "a", "arguments": null}), json!({"arguments": {}, "name": "a"})));
        assert!(same("tools/call", json!({"arguments": {"x": 1.0, "y": 2}}), json!({"arguments": {"y": 2e0, "x": 1}})));
        assert!(same(
            "resources/read",
            json!({"uri": "a:", "_meta": {"traceparent": "x", "io.modelcontextprotocol/clientInfo": {}, "vendor": 1}}),
            json!({"uri": "a:"})
        ));
        assert!(same("initialize", json!({"protocolVersion": "a"}), json!({"protocolVersion": "b"})));
        assert!(!same("tools/list", Value::Null, json!({"cursor": "2"})));
        assert!(!same("tools/call", json!({"arguments": {"x": [1, 2]}}), json!({"arguments": {"x": [2, 1]}})));
        assert!(!same("tools/call", json!({"arguments": {"x": "1"}}), json!({"arguments": {"x": 1}})));
        assert!(!same("resources/read", json!({"uri": "A:"}), json!({"uri": "a:"})));
        assert_ne!(key(&rules, "tools/list", &Value::Null), key(&rules, "prompts/list", &Value::Null));
        assert!(!same(
            "tools/call",
            json!({"arguments": {"x": 9007199254740993_u64}}),
            json!({"arguments": {"x": 9007199254740992_u64}})
        ));
    }

    #[test]
    fn rules_of_the_user_count() {
        let rules = ParamRules {
            ignored: vec!["$.params.arguments.now".parse().unwrap()],
            scrubs: vec![r"s/run-\d+/run/".parse().unwrap()],
            counts_meta: true,
        };
        let call = |now: u64, run: &str, vendor: u64| json!({"name": "a", "arguments": {"now": now, "run": run}, "_meta": {"vendor": vendor, "progressToken": now}});
        assert_eq!(key(&rules, "tools/call", &call(1, "run-1", 1)), key(&rules, "tools/call", &call(2, "run-22", 1)));
        assert_ne!(key(&rules, "tools/call", &call(1, "run-1", 1)), key(&rules, "tools/call", &call(1, "run-1", 2)));
    }
}
