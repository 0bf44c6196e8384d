//! From values to text: blocks, and what is small on one line.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::plain::{YamlContext, fits_block, quoted, scalar};
use crate::children::children;

/// A map or list stands on one line where it ends before this column.
const WIDTH: usize = 110;

/// Longer keys are written with a `?`.
const LONGEST_KEY: usize = 100;

/// Layout of a map's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Below each other.
    Block,
    /// On one line where it fits.
    Compact,
}

/// Appends a map's entries below each other, every line indented by so many columns. Their values stand on one line where
/// that fits and `layout` allows it. The last line ends.
pub fn write(out: &mut String, entries: &Map<String, Value>, indent: usize, layout: Layout) {
    let mut writer = YamlWriter { out, layout };
    for (key, value) in entries {
        writer.indent(indent);
        writer.entry(key, value, indent);
    }
}

struct YamlWriter<'a> {
    out: &'a mut String,
    layout: Layout,
}

impl YamlWriter<'_> {
    fn indent(&mut self, columns: usize) {
        self.out.extend(std::iter::repeat_n(' ', columns));
    }

    /// A key and its value; the line is indented already.
    fn entry(&mut self, key: &str, value: &Value, indent: usize) {
        if key.len() > LONGEST_KEY {
            let _ = writeln!(self.out, "? {}", quoted(key));
            self.indent(indent);
            self.out.push(':');
        } else {
            let _ = write!(self.out, "{}:", scalar(key, YamlContext::Flow));
        }
        self.value(value, indent, indent);
    }

    /// A value after `key:`. Lists of a map stand at the map's own column.
    fn value(&mut self, value: &Value, indent: usize, of_lists: usize) {
        match value {
            Value::String(text) if fits_block(text) => self.block(text, indent + 2),
            Value::Object(map) if !map.is_empty() && !self.fits(value, indent) => {
                self.out.push('\n');
                for (key, value) in map {
                    self.indent(indent + 2);
                    self.entry(key, value, indent + 2);
                }
            }
            Value::Array(items) if !items.is_empty() && !self.fits(value, indent) => {
                self.out.push('\n');
                for item in items {
                    self.indent(of_lists);
                    self.item(item, of_lists);
                }
            }
            value => {
                self.out.push(' ');
                self.out.push_str(&flow(value, YamlContext::Block));
                self.out.push('\n');
            }
        }
    }

    /// An item of a list; the line is indented already.
    fn item(&mut self, item: &Value, indent: usize) {
        self.out.push('-');
        match item {
            Value::Object(map) if !map.is_empty() && !self.fits(item, indent) => {
                self.out.push(' ');
                for (at, (key, value)) in map.iter().enumerate() {
                    if at > 0 {
                        self.indent(indent + 2);
                    }
                    self.entry(key, value, indent + 2);
                }
            }
            item => self.value(item, indent, indent + 2),
        }
    }

    fn block(&mut self, text: &str, indent: usize) {
        let (text, sign) = text.strip_suffix('\n').map_or((text, " |-\n"), |text| (text, " |\n"));
        self.out.push_str(sign);
        for line in text.split('\n') {
            if !line.is_empty() {
                self.indent(indent);
                self.out.push_str(line);
            }
            self.out.push('\n');
        }
    }

    /// Returns true if a collection fits on the rest of its line.
    fn fits(&self, value: &Value, indent: usize) -> bool {
        let is_flat = depth(value) <= 3 && !has_lines(value);
        let start = self.out.rfind('\n').map_or(0, |at| at + 1);
        let used = self.out.get(start..).map_or(indent, |line| line.chars().count());
        let allowed = self.layout == Layout::Compact || depth(value) <= 2 && is_small(value);
        allowed && is_flat && used + 1 + flow(value, YamlContext::Flow).chars().count() <= WIDTH
    }
}

/// Few scalars.
fn is_small(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.len() <= 4,
        Value::Array(items) => items.iter().all(|item| !item.is_object()),
        _ => true,
    }
}

fn depth(value: &Value) -> usize {
    let below = children(value).map(|(_, value)| depth(value)).max().unwrap_or(0);
    if value.is_array() || value.is_object() { 1 + below } else { 0 }
}

fn has_lines(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.contains('\n'))
        || children(value).any(|(key, value)| key.is_some_and(|key| key.len() > LONGEST_KEY) || has_lines(value))
}

fn flow(value: &Value, place: YamlContext) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => number_text(number),
        Value::String(text) => scalar(text, place),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| flow(item, YamlContext::Flow)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(map) => {
            let entry = |(key, value): (&String, &Value)| {
                format!("{}: {}", scalar(key, YamlContext::Flow), flow(value, YamlContext::Flow))
            };
            let entries: Vec<String> = map.iter().map(entry).collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

/// YAML 1.1 takes an exponent only with a sign and after a point.
fn number_text(number: &serde_json::Number) -> String {
    let text = number.to_string();
    let Some((mantissa, exponent)) = text.split_once(['e', 'E']) else { return text };
    let point = if mantissa.contains('.') { "" } else { ".0" };
    let sign = if exponent.starts_with(['-', '+']) { "" } else { "+" };
    format!("{mantissa}{point}e{sign}{exponent}")
}
