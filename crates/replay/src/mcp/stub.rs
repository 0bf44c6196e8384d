//! Results that are made up for tools, with structured content where the recorded list of tools has a schema of it.
//!
//! Clients' libraries check the structured content of a result against the tool's `outputSchema`, and refuse a result without it.
//! Limits: it is drawn of ASCII characters, so that names and values of a schema that have others cannot be; a schema for which
//! none can be drawn in time gives a result without it.

use std::{sync::OnceLock, time::Duration};

use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64;

use super::record_index::RecordIndex;
use api::Constraint;
use engine::{
    guided::{DrawLimits, Guide, TextEnd},
    synthetic::SyntheticKey,
};
use text::prompt::{SkipSpecial, Tokenizer, TokenizerParts};

/// Longest time to draw structured content.
const LONGEST: Duration = Duration::from_secs(2);

/// Maximum number of characters of it.
const MOST: usize = 8192;

static CHARACTERS: OnceLock<Option<Characters>> = OnceLock::new();

/// A vocabulary of one token for each character.
#[derive(Debug)]
struct Characters {
    tokenizer: Tokenizer,
    guide: Guide,
}

/// The result of a tool that was not recorded, which is the same for equal calls; `call` names the call.
pub(super) fn result(index: &RecordIndex, tool: &str, call: &str) -> Value {
    let short: String = call.chars().rev().take(6).collect();
    let mut result =
        json!({"content": [{"type": "text", "text": format!("<novel: {tool}#{short}>")}], "isError": false});
    let Some(schema) = output_schema(index, tool) else { return result };
    match (conforming(schema, call), result.as_object_mut()) {
        (Some(content), Some(result)) => drop(result.insert("structuredContent".to_owned(), content)),
        _ => tracing::warn!(
            "no structured content could be made up for the tool {tool:?}: clients may refuse its result"
        ),
    }
    result
}

/// The schema of a tool's structured content, as it was recorded first.
fn output_schema<'t>(index: &'t RecordIndex, tool: &str) -> Option<&'t Value> {
    let mut listed = index.tools().filter(|listed| listed.get("name").and_then(Value::as_str) == Some(tool));
    listed.find_map(|listed| listed.get("outputSchema").filter(|schema| schema.is_object()))
}

/// A JSON object that conforms to a schema.
fn conforming(schema: &Value, call: &str) -> Option<Value> {
    let Characters { tokenizer, guide } = CHARACTERS.get_or_init(Characters::new).as_ref()?;
    let key = SyntheticKey { seed: 0, request: xxh3_64(call.as_bytes()), choice: 0 };
    let room = DrawLimits::within(MOST, LONGEST);
    let made =
        guide.draw(&Constraint::Json(schema.clone()), key, room).ok().filter(|made| made.ended != TextEnd::Cut)?;
    let text = tokenizer.decode(&made.ids, SkipSpecial::Skip).ok()?;
    serde_json::from_str(&text).ok().filter(Value::is_object)
}

impl Characters {
    fn new() -> Option<Self> {
        // A space is spelled so in vocabularies of bytes.
        let letters = ('!'..='~').chain(['Ġ']);
        let vocabulary: serde_json::Map<String, Value> =
            letters.zip(0_u32..).map(|(letter, id)| (letter.to_string(), id.into())).collect();
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let json = json!({"version": "1.0", "added_tokens": [], "pre_tokenizer": bytes, "decoder": bytes,
            "model": {"type": "BPE", "vocab": vocabulary, "merges": []}});
        let tokenizer = Tokenizer::from_parts(&TokenizerParts {
            name: "characters",
            tokenizer_json: json.to_string().as_bytes(),
            config_json: None,
            chat_template: None,
            generation_config_json: None,
        });
        let tokenizer = tokenizer.ok()?;
        let guide = Guide::new(&tokenizer).ok()?;
        Some(Self { tokenizer, guide })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structured_content_conforms() {
        let schema = json!({"type": "object", "required": ["city", "days", "of"], "additionalProperties": false,
            "properties": {"city": {"type": "string", "minLength": 2, "maxLength": 9}, "days": {"type": "integer", "minimum": 3, "maximum": 20},
                "of": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/Kind"}}},
            "$defs": {"Kind": {"enum": ["rain", "sun and wind"]}}});
        for call in ["a", "b", "c", "d"] {
            let made = conforming(&schema, call).unwrap();
            let city = made["city"].as_str().unwrap();
            assert!((2..=9).contains(&city.chars().count()), "{made}");
            assert!((3..=20).contains(&made["days"].as_i64().unwrap()), "{made}");
            let of = made["of"].as_array().unwrap();
            assert!(!of.is_empty() && of.iter().all(|kind| kind == "rain" || kind == "sun and wind"), "{made}");
            assert_eq!(conforming(&schema, call).unwrap(), made);
        }
        assert_eq!(
            conforming(&json!({"type": "object", "required": ["é"], "properties": {"é": {"const": "é"}}}), "a"),
            None
        );
    }
}
