//! The fields of a request that was found to fit its schema.

use serde_json::{Map, Value};

use super::{UsageEvents, python, values};

/// Fields among which one is found without its hash.
const FEW: usize = 16;

/// A body that fits the schema: every value reads as its type, null and absent are one.
pub(super) struct ValidBody<'a>(pub(super) &'a Map<String, Value>);

impl<'a> ValidBody<'a> {
    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        // Most of the names that are requested are not there. Comparing them with the few that are is quicker than a hash.
        let found = if self.0.len() <= FEW {
            self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
        } else {
            self.0.get(name)
        };
        found.filter(|value| !value.is_null())
    }

    pub(super) fn object(&self, name: &str) -> Option<&'a Map<String, Value>> {
        self.get(name).and_then(Value::as_object)
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.get(name).and_then(Value::as_str).map(str::to_owned)
    }

    /// A whole number, cut to 64 bits.
    pub(super) fn int(&self, name: &str) -> Option<i64> {
        self.whole(name).map(values::clamped)
    }

    pub(super) fn whole(&self, name: &str) -> Option<i128> {
        self.get(name).and_then(|value| values::int(value).ok())
    }

    pub(super) fn float(&self, name: &str) -> Option<f64> {
        self.get(name).and_then(|value| values::float(value).ok())
    }

    pub(super) fn flag(&self, name: &str, absent: bool) -> bool {
        self.get(name).and_then(|value| values::flag(value).ok()).unwrap_or(absent)
    }

    pub(super) fn texts(&self, name: &str) -> Vec<String> {
        match self.get(name) {
            Some(Value::String(text)) => vec![text.clone()],
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn ids(&self, name: &str) -> Vec<u32> {
        self.get(name).and_then(Value::as_array).map(|items| ids(items)).unwrap_or_default()
    }

    pub(super) fn list(&self, name: &str) -> Option<Vec<Value>> {
        self.get(name).and_then(Value::as_array).cloned()
    }

    pub(super) fn usage_events(&self) -> UsageEvents {
        let set = |name: &str| python::truthy(self.get("stream_options").and_then(|options| options.get(name)));
        match (set("include_usage"), set("continuous_usage_stats")) {
            (false, _) => UsageEvents::None,
            (true, false) => UsageEvents::AtEnd,
            (true, true) => UsageEvents::EveryEvent,
        }
    }
}

/// Ids beyond 32 bits become the largest, which no vocabulary has.
pub(super) fn ids(items: &[Value]) -> Vec<u32> {
    let id = |value: &Value| values::int(value).ok().map(|id| u32::try_from(id).unwrap_or(u32::MAX));
    items.iter().filter_map(id).collect()
}
