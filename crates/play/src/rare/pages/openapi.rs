//! `/openapi.json`: vLLM's page, less the paths that a server of these flags does not have.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::{Config, endpoints::Endpoints, rare::dev};
use recording::trace::{self, TraceError};

/// The page of a server in development mode with `/tokenizer_info`.
const PAGE: &[u8] = include_bytes!("openapi.json.gz");
/// The same with scale-out, which renames a schema.
const SCALE_OUT_PAGE: &[u8] = include_bytes!("openapi-scale-out.json.gz");

/// Start of a `$ref` to a schema.
const SCHEMA: &str = "#/components/schemas/";

/// The page's text.
pub(super) fn page(config: &Config, root: &str) -> Result<String, TraceError> {
    let packed = if config.scale_out { SCALE_OUT_PAGE } else { PAGE };
    let unpacked = trace::gunzip("the page of the API", packed)?;
    let mut page: Map<String, Value> = serde_json::from_slice(&unpacked).unwrap_or_default();
    let has_dev = config.server.dev_mode;
    let development = dev::endpoints(Endpoints::new(config.vllm_version.dialect()));
    let has_info = config.server.tokenizer_info;
    if let Some(Value::Object(paths)) = page.get_mut("paths") {
        let is_served =
            |path: &str| (has_info || path != "/tokenizer_info") && (has_dev || !development.paths.contains(&path));
        paths.retain(|path, _| is_served(path));
    }
    let used = used(&page);
    if let Some(Value::Object(schemas)) = page.get_mut("components").and_then(|parts| parts.get_mut("schemas")) {
        schemas.retain(|name, _| used.contains(name));
    }
    if !root.is_empty() {
        let after_info = page.keys().position(|key| key == "info").map_or(0, |at| at + 1);
        page.shift_insert(after_info, "servers".to_owned(), json!([{"url": root}]));
    }
    Ok(Value::Object(page).to_string())
}

/// The schemas that the paths refer to, and those that these refer to.
fn used(page: &Map<String, Value>) -> BTreeSet<String> {
    let schemas = page.get("components").and_then(|parts| parts.get("schemas"));
    let (mut used, mut found) = (BTreeSet::new(), Vec::new());
    page.get("paths").into_iter().for_each(|paths| references(paths, &mut found));
    while let Some(name) = found.pop() {
        if let (false, Some(schema)) = (used.contains(name), schemas.and_then(|schemas| schemas.get(name))) {
            used.insert(name.to_owned());
            references(schema, &mut found);
        }
    }
    used
}

/// Every schema that a value refers to, as `$ref` or among the words of a discriminator.
fn references<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) => found.extend(text.strip_prefix(SCHEMA)),
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Object(map) => map.values().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ServerOptions;

    #[test]
    fn what_is_left_in_is_as_it_was() {
        let server = ServerOptions { dev_mode: true, ..ServerOptions::default() };
        for (packed, scale_out) in [(PAGE, false), (SCALE_OUT_PAGE, true)] {
            let whole = String::from_utf8(trace::gunzip("a page", packed).unwrap()).unwrap();
            let shown = page(&Config { server: server.clone(), scale_out, ..Config::default() }, "").unwrap();
            let (start, rest) = whole.split_once("\"/tokenizer_info\":").unwrap();
            let (_, end) = rest.split_once("}}}}},").unwrap();
            assert_eq!(shown, format!("{start}{end}"));
            let server = ServerOptions { tokenizer_info: true, ..server.clone() };
            assert_eq!(page(&Config { server, scale_out, ..Config::default() }, "").unwrap(), whole);
        }
    }
}
