//! Structural tags (`{"format": …}`, and the older `{"structures": …, "triggers": …}`) as grammars in Lark's notation.
//!
//! Limits: the grammar is a part of what the tag allows: at least one tag where tags are optional, no more than three,
//! and only letters and spaces between them. Tokens as tags, dispatch, and arguments that are not JSON are taken, but no
//! text is made up for them.

use serde_json::Value;

use super::{
    ebnf,
    grammar::{GuideError, literal, readable_schema},
    patterns::has_unicode_class,
};

/// Free text: letters only, so that nothing in it triggers a tag or is excluded by accident.
const FREE: &str = "/[A-Za-z ]{0,40}/";

/// Kinds of format that the engine knows and no text is made up for.
const UNSUPPORTED: [&str; 7] = [
    "token",
    "exclude_token",
    "any_tokens",
    "token_triggered_tags",
    "dispatch",
    "token_dispatch",
    "qwen_xml_parameter",
];

/// The grammar of a structural tag.
pub(super) fn lark(tag: &Value) -> Result<String, GuideError> {
    let mut rules = TagRules(Vec::new());
    let start = match (tag.get("structures"), tag.get("format")) {
        (Some(structures), _) => rules.of_structures(structures, tag.get("triggers"))?,
        (None, Some(format)) => rules.of(format)?,
        (None, None) => return Err(broken("`format` is missing")),
    };
    let mut out = format!("start: {start}\n");
    for (at, rule) in rules.0.iter().enumerate() {
        out.push_str(&format!("r_{at}: {rule}\n"));
    }
    Ok(out)
}

fn broken(what: &str) -> GuideError {
    GuideError::Tag(what.to_owned())
}

struct TagRules(Vec<String>);

impl TagRules {
    fn add(&mut self, rule: String) -> String {
        self.0.push(rule);
        format!("r_{}", self.0.len() - 1)
    }

    fn of(&mut self, format: &Value) -> Result<String, GuideError> {
        let kind = text(format, "type")?;
        let rule = match kind {
            "const_string" => literal(text(format, "value")?),
            "json_schema" => return self.of_json(format, "json_schema"),
            "any_text" => FREE.to_owned(),
            "regex" if has_unicode_class(text(format, "pattern")?) => return Err(broken("a class of Unicode")),
            "regex" => format!("/{}/", llguidance::regex_to_lark(text(format, "pattern")?, "")),
            "grammar" => return self.of_ebnf(text(format, "grammar")?),
            "sequence" => self.each(format)?.join(" "),
            "or" => self.each(format)?.join(" | "),
            "tag" => return self.of_tag(format),
            "triggered_tags" => self.of_triggered(format)?,
            "tags_with_separator" => self.of_separated(format)?,
            "optional" | "star" => format!("{}?", self.of(part(format, "content")?)?),
            "plus" => self.of(part(format, "content")?)?,
            "repeat" => self.of_repeat(format)?,
            kind if UNSUPPORTED.contains(&kind) => {
                return Err(GuideError::Unsupported(format!("a structural tag with `{kind}`")));
            }
            kind => return Err(broken(&format!("no format `{kind}`"))),
        };
        Ok(self.add(rule))
    }

    fn each(&mut self, format: &Value) -> Result<Vec<String>, GuideError> {
        let elements = items(format, "elements")?;
        if elements.is_empty() {
            return Err(broken("no elements"));
        }
        elements.iter().map(|element| self.of(element)).collect()
    }

    fn of_json(&mut self, format: &Value, key: &str) -> Result<String, GuideError> {
        if format.get("style").is_some_and(|style| style != "json") {
            return Err(GuideError::Unsupported("a structural tag with arguments that are not JSON".to_owned()));
        }
        let schema = match part(format, key)? {
            Value::Bool(_) => serde_json::json!({}),
            schema => schema.clone(),
        };
        let schema = readable_schema(&schema).map_err(|error| broken(&error.to_string()))?;
        Ok(self.add(format!("%json {schema}")))
    }

    /// A grammar inside of one: its rules get names of their own.
    fn of_ebnf(&mut self, text: &str) -> Result<String, GuideError> {
        let prefix = format!("r_e{}_", self.0.len());
        let ebnf::LarkRules { start, lines, .. } =
            ebnf::rules(text, &prefix).map_err(|error| broken(&error.to_string()))?;
        self.0.extend(lines.into_iter().map(|line| format!("\"\"\n{line}")));
        Ok(start)
    }

    fn of_tag(&mut self, tag: &Value) -> Result<String, GuideError> {
        let begin = self.edge(part(tag, "begin")?)?;
        let content = self.of(part(tag, "content")?)?;
        let end = match part(tag, "end")? {
            Value::Array(ends) => {
                let ends = ends.iter().map(|end| self.edge(end)).collect::<Result<Vec<_>, _>>()?;
                format!("({})", ends.join(" | "))
            }
            end => self.edge(end)?,
        };
        Ok(self.add(format!("{begin} {content} {end}")))
    }

    fn edge(&self, edge: &Value) -> Result<String, GuideError> {
        match edge {
            Value::String(text) => Ok(literal(text)),
            Value::Object(_) => Err(GuideError::Unsupported("a structural tag with tokens".to_owned())),
            _ => Err(broken("`begin` and `end` are texts")),
        }
    }

    fn tags(&mut self, format: &Value) -> Result<String, GuideError> {
        let tags = items(format, "tags")?;
        if tags.is_empty() {
            return Err(broken("no tags"));
        }
        let tags = tags.iter().map(|tag| self.of_tag(tag)).collect::<Result<Vec<_>, _>>()?;
        Ok(self.add(tags.join(" | ")))
    }

    fn of_triggered(&mut self, format: &Value) -> Result<String, GuideError> {
        let triggers: Vec<&str> = items(format, "triggers")?.iter().filter_map(Value::as_str).collect();
        let begins = items(format, "tags")?.iter().filter_map(|tag| tag.get("begin").and_then(Value::as_str));
        if triggers.is_empty() || begins.into_iter().any(|begin| !triggers.iter().any(|one| begin.starts_with(one))) {
            return Err(broken("a tag without its trigger"));
        }
        let tag = self.tags(format)?;
        let is = |name: &str| format.get(name) == Some(&Value::Bool(true));
        let before = if is("at_least_one") { "" } else { FREE };
        let after = if is("stop_after_first") { String::new() } else { format!("({FREE} {tag}){{0,2}}") };
        Ok(format!("{before} {tag} {after}"))
    }

    fn of_separated(&mut self, format: &Value) -> Result<String, GuideError> {
        let separator = literal(text(format, "separator")?);
        let tag = self.tags(format)?;
        let is_last = format.get("stop_after_first") == Some(&Value::Bool(true));
        Ok(if is_last { tag } else { format!("{tag} ({separator} {tag}){{0,2}}") })
    }

    fn of_repeat(&mut self, format: &Value) -> Result<String, GuideError> {
        let count = |name: &str| format.get(name).and_then(Value::as_i64);
        let (Some(least), Some(most)) = (count("min"), count("max")) else { return Err(broken("`min` and `max`")) };
        let most = if most < 0 { least.max(1) } else { most };
        Ok(format!("{}{{{least},{most}}}", self.of(part(format, "content")?)?))
    }

    fn of_structures(&mut self, structures: &Value, triggers: Option<&Value>) -> Result<String, GuideError> {
        let tags = structures.as_array().map(Vec::as_slice).unwrap_or_default();
        let tags: Vec<Value> = tags
            .iter()
            .map(|tag| {
                let content = serde_json::json!({"type": "json_schema", "json_schema": tag.get("schema")});
                serde_json::json!({"type": "tag", "begin": tag.get("begin"), "content": content, "end": tag.get("end")})
            })
            .collect();
        self.of(&serde_json::json!({"type": "triggered_tags", "triggers": triggers, "tags": tags}))
    }
}

fn part<'a>(format: &'a Value, key: &str) -> Result<&'a Value, GuideError> {
    format.get(key).filter(|value| !value.is_null()).ok_or_else(|| broken(&format!("`{key}` is missing")))
}

fn text<'a>(format: &'a Value, key: &str) -> Result<&'a str, GuideError> {
    part(format, key)?.as_str().ok_or_else(|| broken(&format!("`{key}` is no text")))
}

fn items<'a>(format: &'a Value, key: &str) -> Result<&'a [Value], GuideError> {
    part(format, key)?.as_array().map(Vec::as_slice).ok_or_else(|| broken(&format!("`{key}` is no list")))
}
