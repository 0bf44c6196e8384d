//! Values as Python prints them: the engine's error messages are full of them.

use serde_json::Value;

pub(super) use text::python::{repr, repr_float as float};

/// Begins a text that stands for a number which a [`Value`] does not hold: `NaN`, an infinity, or a whole number of more than 64 bits.
pub(super) const NUMBER: &str = "\u{fdd0}";

/// The number that a text stands for, as it was written.
pub(super) fn number_text(value: &Value) -> Option<&str> {
    value.as_str()?.strip_prefix(NUMBER)
}

pub(super) fn is_whole(number: &str) -> bool {
    number.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit())
}

/// `str` of a scalar, `repr` of what is inside containers.
pub(super) fn display(value: &Value) -> String {
    match value {
        Value::String(text) if number_text(value).is_none() => text.clone(),
        other => literal(other),
    }
}

/// `repr` of any JSON value.
pub(super) fn literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => match number.as_f64() {
            Some(value) if number.is_f64() => float(value),
            _ => number.to_string(),
        },
        Value::String(text) => match number_text(value) {
            Some(whole) if is_whole(whole) => whole.to_owned(),
            Some(number) => number.parse().map_or_else(|_| number.to_owned(), float),
            None => repr(text),
        },
        Value::Array(items) => format!("[{}]", items.iter().map(literal).collect::<Vec<_>>().join(", ")),
        Value::Object(map) => {
            let pairs: Vec<String> =
                map.iter().map(|(key, value)| format!("{}: {}", repr(key), literal(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}

/// `int` of a text: digits with a sign, single underscores between them, blanks around.
pub(super) fn int(text: &str) -> Option<i128> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_grouped =
        digits.split('_').all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()));
    if !is_grouped {
        return None;
    }
    let plain = text.replace('_', "");
    let most = if text.starts_with('-') { i128::MIN } else { i128::MAX };
    Some(plain.parse().unwrap_or(most))
}

/// The name of a value's class.
pub(super) fn class(value: &Value) -> &'static str {
    match value {
        Value::Null => "NoneType",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "int",
        Value::String(_) => match number_text(value) {
            Some(number) if is_whole(number) => "int",
            Some(_) => "float",
            None => "str",
        },
        Value::Array(_) => "list",
        Value::Object(_) => "dict",
    }
}

/// `repr` of a list of texts.
pub(super) fn texts(items: &[String]) -> String {
    format!("[{}]", items.iter().map(|item| repr(item)).collect::<Vec<_>>().join(", "))
}

/// Truth as Python sees it.
pub(super) fn truthy(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Bool(flag)) => *flag,
        Some(Value::Number(number)) => number.as_f64() != Some(0.0),
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(items)) => !items.is_empty(),
        Some(Value::Object(map)) => !map.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_numbers_as_python_reads_them() {
        for (text, number) in
            [("1_0", Some(10)), (" -7 ", Some(-7)), ("1.0", None), ("_1", None), ("", None), ("x", None)]
        {
            assert_eq!(int(text), number, "{text}");
        }
    }

    #[test]
    fn quotes_are_chosen_as_python_does() {
        assert_eq!(repr("a'b"), "\"a'b\"");
        assert_eq!(repr("a'b\"c"), "'a\\'b\"c'");
        assert_eq!(repr("a\nb\u{1}"), "'a\\nb\\x01'");
    }
}
