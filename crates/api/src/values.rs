//! One JSON value read as one type, in pydantic's lax mode and with its words.

use serde_json::Value;

use super::{issues::FieldFault, python};

/// Floats from here on are no whole numbers.
pub(super) const TWO_63: f64 = 9_223_372_036_854_775_808.0;

const NOT_FINITE: FieldFault<'_> = FieldFault::Plain("finite_number", "Input should be a finite number");
const NO_TEXT: FieldFault<'_> = FieldFault::Plain("string_type", "Input should be a valid string");

type ValueResult<T> = Result<T, FieldFault<'static>>;

/// A value as a whole number: numbers without a fraction, texts that spell one, true and false.
///
/// Deviation: beyond 128 bits it is the nearest number of 128 bits.
pub(super) fn int(value: &Value) -> ValueResult<i128> {
    match value {
        Value::Bool(flag) => Ok(i128::from(*flag)),
        Value::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(whole), _) => Ok(whole),
            (None, Some(float)) if float.abs() >= TWO_63 => {
                let message = "Unable to parse input string as an integer, exceeded maximum size";
                Err(FieldFault::Plain("int_parsing_size", message))
            }
            (None, Some(float)) if float.fract() == 0.0 => {
                #[allow(clippy::cast_possible_truncation)] // whole, and within 64 bits
                Ok(float as i128)
            }
            _ => {
                let message = "Input should be a valid integer, got a number with a fractional part";
                Err(FieldFault::Plain("int_from_float", message))
            }
        },
        Value::String(text) => match python::number_text(value) {
            Some(number) => python::int(number).ok_or(NOT_FINITE),
            None => whole(text).ok_or({
                let message = "Input should be a valid integer, unable to parse string as an integer";
                FieldFault::Plain("int_parsing", message)
            }),
        },
        _ => Err(FieldFault::Plain("int_type", "Input should be a valid integer")),
    }
}

/// A whole number, cut to 64 bits.
pub(super) fn clamped(whole: i128) -> i64 {
    i64::try_from(whole).unwrap_or(if whole < 0 { i64::MIN } else { i64::MAX })
}

/// The whole number that a text spells, where need be with a fraction of zeros.
fn whole(text: &str) -> Option<i128> {
    let text = text.trim();
    let digits =
        text.split_once('.').filter(|(_, rest)| rest.bytes().all(|byte| byte == b'0')).map(|(digits, _)| digits);
    python::int(digits.unwrap_or(text))
}

/// A value as a whole number in a range, both ends included.
pub(super) fn int_in(value: &Value, least: i128, most: i128) -> ValueResult<i128> {
    match int(value)? {
        whole if whole > most => Err(FieldFault::AtMost(most, "")),
        whole if whole < least => Err(FieldFault::AtLeast(least, "")),
        whole => Ok(whole),
    }
}

pub(super) fn float(value: &Value) -> ValueResult<f64> {
    match value {
        Value::Bool(flag) => Ok(f64::from(u8::from(*flag))),
        Value::Number(number) => Ok(number.as_f64().unwrap_or(f64::INFINITY)),
        Value::String(text) => python::number_text(value).unwrap_or(text).trim().parse().map_err(|_| {
            FieldFault::Plain("float_parsing", "Input should be a valid number, unable to parse string as a number")
        }),
        _ => Err(FieldFault::Plain("float_type", "Input should be a valid number")),
    }
}

/// A value as a number in a range, both ends included.
pub(super) fn float_in(value: &Value, least: i32, most: i32) -> ValueResult<f64> {
    match float(value)? {
        number if number > f64::from(most) || number.is_nan() => Err(FieldFault::AtMost(most.into(), ".0")),
        number if number < f64::from(least) => Err(FieldFault::AtLeast(least.into(), ".0")),
        number => Ok(number),
    }
}

/// A value as true or false.
pub(super) fn flag(value: &Value) -> ValueResult<bool> {
    const NO_FLAG: FieldFault<'_> = FieldFault::Plain("bool_type", "Input should be a valid boolean");
    let read = match value {
        Value::Bool(flag) => Some(*flag),
        Value::Number(number) => match number.as_f64() {
            Some(0.0) => Some(false),
            Some(1.0) => Some(true),
            Some(other) if other.fract() == 0.0 && other.abs() < 9.2e18 => None,
            _ => return Err(NO_FLAG),
        },
        Value::String(_) if python::number_text(value).is_some() => return Err(NO_FLAG),
        Value::String(text) => match text.to_ascii_lowercase().as_str() {
            "0" | "off" | "f" | "false" | "n" | "no" => Some(false),
            "1" | "on" | "t" | "true" | "y" | "yes" => Some(true),
            _ => None,
        },
        _ => return Err(NO_FLAG),
    };
    read.ok_or(FieldFault::Plain("bool_parsing", "Input should be a valid boolean, unable to interpret input"))
}

/// Returns whether a flag that fits its schema is set.
#[must_use]
pub fn is_set(value: &Value) -> bool {
    flag(value).unwrap_or(false)
}

pub(super) fn text(value: &Value) -> ValueResult<&str> {
    value.as_str().filter(|_| python::number_text(value).is_none()).ok_or(NO_TEXT)
}

pub(super) fn list(value: &Value) -> ValueResult<&[Value]> {
    match value {
        Value::Array(items) => Ok(items),
        _ => Err(FieldFault::Plain("list_type", "Input should be a valid list")),
    }
}

pub(super) fn one_of<'a>(value: &Value, words: &'a [&'a str]) -> Result<usize, FieldFault<'a>> {
    let found = value.as_str().and_then(|text| words.iter().position(|word| *word == text));
    found.ok_or(FieldFault::NoneOf(words))
}
