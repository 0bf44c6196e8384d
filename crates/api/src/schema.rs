//! Nested schemas as tables: which fields an object has, of what kind, and the error for a value that does not fit.
//! The families beside chat and completions describe their requests with it; faults come in pydantic's order and words.

use serde_json::{Map, Value};

use super::{
    error::ApiError,
    fields::{attributes, dictionary, int_in, one_of},
    json, messages, python, structured,
    values::{Issue, Issues, flag, float, int, list, text},
};

/// The kind of a value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    Any,
    Int,
    /// A whole number in a range, both ends included.
    IntIn(i128, i128),
    /// A whole number above another.
    IntAbove(i128),
    Float,
    /// A number in a range, both ends included.
    FloatIn(i32, i32),
    Flag,
    Text,
    /// Text of at least one character.
    SomeText,
    OneOf(&'static [&'static str]),
    /// This flag and no other.
    Exactly(bool),
    /// Null, or a value of a kind.
    NullOr(&'static Self),
    /// An object of which nothing else is known.
    Dictionary,
    /// An object whose values are of a kind.
    DictionaryOf(&'static Self),
    /// An object whose keys are whole numbers and whose values are of a kind.
    ById(&'static Self),
    /// An object with fields of its own.
    Object(&'static Object),
    /// An object whose other fields depend on its `type`.
    Tagged(&'static [(&'static str, &'static Object)]),
    List(&'static Self),
    /// A list of at least one.
    SomeList(&'static Self),
    /// A list of at most so many.
    ListUpTo(&'static Self, usize),
    TextOr(&'static Self),
    /// An object without a schema, or a value of a kind.
    DictionaryOr(&'static Self),
    /// An object with fields of its own, read by the reader with the shorter error for what is no object.
    TypedDict(&'static Object),
    /// Messages of a chat.
    Messages,
    /// An object that becomes one of the engine's parameter classes.
    Dataclass(&'static str, &'static Object),
    /// An object with fields of its own, where the engine would have taken an instance of its class too.
    InstanceOr(&'static str, &'static Object),
    /// `structured_outputs` among sampling parameters.
    StructuredOutputs,
    /// A text, or something that has items.
    TextOrIterable,
    /// Something that has items.
    Iterable,
    /// Text that is read as bytes.
    Bytes,
    /// A value of one of these kinds.
    AnyOf(&'static [Self]),
    /// A kind, and a condition on a value that is of it.
    With(&'static Self, fn(&Value) -> Option<String>),
}

/// Finds what is wrong with an object whose fields fit.
type Condition = fn(&Map<String, Value>) -> Option<String>;

/// The fields of an object and a condition on the whole.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) fields: &'static [Field],
    pub(super) condition: Option<Condition>,
}

/// A field: its name, its kind, and whether it may be left out or null.
#[derive(Debug)]
pub(super) struct Field(pub(super) &'static str, pub(super) Kind, pub(super) Need);

/// Choice whether a field may be left out or null.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Need {
    Required,
    /// Must be there, but may be null.
    Present,
    /// May be left out, but not null.
    Optional,
    Nullable,
}

/// Reads a body as an object that fits.
///
/// # Errors
/// Not JSON, not an object, or with fields that do not fit.
pub(super) fn read(object: &Object, body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let map = json::object(body)?;
    let issues = check(object, &map, "body");
    if issues.is_empty() { Ok(map) } else { Err(issues.error()) }
}

/// Everything in an object that does not fit.
pub(super) fn check(object: &Object, map: &Map<String, Value>, loc: &str) -> Issues {
    let mut issues = Issues::default();
    for Field(name, kind, need) in object.fields {
        let loc = format!("{loc}.{name}");
        match map.get(*name) {
            None if [Need::Required, Need::Present].contains(need) => issues.push(Issue::missing(loc, map.len())),
            None => {}
            Some(Value::Null) if [Need::Nullable, Need::Present].contains(need) => {}
            Some(value) => judge(kind, value, &loc, &mut issues),
        }
    }
    if let Some(message) = object.condition.filter(|_| issues.is_empty()).and_then(|condition| condition(map)) {
        issues.push(broken(&message, &Value::Object(map.clone()), loc));
    }
    issues
}

pub(super) fn judge(kind: &Kind, value: &Value, loc: &str, issues: &mut Issues) {
    match kind {
        Kind::Any => {}
        Kind::Int => issues.extend(int(value, loc).err()),
        Kind::IntIn(least, most) => issues.extend(int_in(value, loc, (*least, *most)).err()),
        Kind::IntAbove(bound) => issues.extend(int_above(value, loc, *bound)),
        Kind::Float => issues.extend(float(value, loc).err()),
        Kind::FloatIn(least, most) => issues.extend(float_in(value, loc, (*least, *most))),
        Kind::Flag => issues.extend(flag(value, loc).err()),
        Kind::Text => issues.extend(text(value, loc).err()),
        Kind::SomeText => issues.extend(some_text(value, loc)),
        Kind::OneOf(words) => issues.extend(one_of(value, loc, words)),
        Kind::Exactly(flag) => issues.extend(exactly(value, loc, *flag)),
        Kind::NullOr(_) if value.is_null() => {}
        Kind::NullOr(kind) => judge(kind, value, loc, issues),
        Kind::Dictionary if value.is_object() => {}
        Kind::Dictionary => issues.push(dictionary(value, loc)),
        Kind::DictionaryOf(kind) => match value {
            Value::Object(map) => {
                map.iter().for_each(|(key, value)| judge(kind, value, &format!("{loc}.{key}"), issues))
            }
            _ => issues.push(dictionary(value, loc)),
        },
        Kind::ById(kind) => by_id(kind, value, loc, issues),
        Kind::Object(object) => match value {
            Value::Object(map) => issues.append(check(object, map, loc)),
            _ => issues.push(attributes(value, loc)),
        },
        Kind::TypedDict(object) => match value {
            Value::Object(map) => issues.append(check(object, map, loc)),
            _ => issues.push(dictionary(value, loc)),
        },
        Kind::Messages => messages::check(value, loc, issues),
        Kind::Dataclass(name, object) => dataclass(name, object, value, loc, issues),
        Kind::InstanceOr(name, object) => instance_or(name, object, value, loc, issues),
        Kind::StructuredOutputs => match value {
            Value::Object(map) => structured::check_fields(map, loc, ["", ""], issues),
            _ => issues.push(no_instance("StructuredOutputsParams", value, loc)),
        },
        Kind::TextOrIterable if value.is_string() => {}
        Kind::TextOrIterable if is_iterable(value) => {}
        Kind::TextOrIterable => {
            issues.extend(text(value, loc).err());
            issues.push(Issue::new("iterable_type", loc, "Input should be iterable", value));
        }
        Kind::Iterable if value.is_string() || is_iterable(value) => {}
        Kind::Iterable => issues.push(Issue::new("iterable_type", loc, "Input should be iterable", value)),
        Kind::Bytes if value.is_string() => {}
        Kind::Bytes => issues.push(Issue::new("bytes_type", loc, "Input should be a valid bytes", value)),
        Kind::AnyOf(kinds) => any_of(kinds, value, loc, issues),
        Kind::Tagged(variants) => tagged(variants, value, loc, issues),
        Kind::List(kind) => each(kind, value, loc, issues),
        Kind::SomeList(kind) => some_list(kind, value, loc, issues),
        Kind::ListUpTo(kind, most) => at_most(kind, *most, value, loc, issues),
        Kind::TextOr(_) if value.is_string() => {}
        Kind::DictionaryOr(_) if value.is_object() => {}
        Kind::DictionaryOr(other) => judge(other, value, loc, issues),
        Kind::TextOr(other) => text_or(other, value, loc, issues),
        Kind::With(kind, condition) => with(kind, *condition, value, (loc, issues)),
    }
}

fn instance_or(name: &str, object: &Object, value: &Value, loc: &str, issues: &mut Issues) {
    let mut faults = Issues::default();
    match value {
        Value::Object(map) => faults.append(check(object, map, loc)),
        _ => faults.push(dictionary(value, loc)),
    }
    if !faults.is_empty() {
        let message = format!("Input should be an instance of {name}");
        let mut issue = Issue::new("is_instance_of", loc, message, value);
        issue.context = Some(format!("'class': {}", python::repr(name)));
        issues.push(issue);
        issues.append(faults);
    }
}

fn by_id(kind: &Kind, value: &Value, loc: &str, issues: &mut Issues) {
    let Value::Object(map) = value else {
        issues.push(dictionary(value, loc));
        return;
    };
    for (key, value) in map {
        let loc = format!("{loc}.{key}");
        issues.extend(int(&Value::from(key.as_str()), &loc).err());
        judge(kind, value, &loc, issues);
    }
}

fn int_above(value: &Value, loc: &str, bound: i128) -> Option<Issue> {
    match int(value, loc) {
        Err(issue) => Some(issue),
        Ok(whole) if whole > bound => None,
        Ok(_) => {
            let mut issue = Issue::new("greater_than", loc, format!("Input should be greater than {bound}"), value);
            issue.context = Some(format!("'gt': {bound}"));
            Some(issue)
        }
    }
}

/// Numbers equal flags here, as they do in Python.
fn exactly(value: &Value, loc: &str, flag: bool) -> Option<Issue> {
    let is_it = match value {
        Value::Number(number) => number.as_f64() == Some(f64::from(u8::from(flag))),
        other => *other == Value::Bool(flag),
    };
    let shown = python::literal(&Value::Bool(flag));
    let mut issue = Issue::new("literal_error", loc, format!("Input should be {shown}"), value);
    issue.context = Some(format!("'expected': '{shown}'"));
    (!is_it).then_some(issue)
}

fn some_list(kind: &Kind, value: &Value, loc: &str, issues: &mut Issues) {
    each(kind, value, loc, issues);
    if value.as_array().is_some_and(Vec::is_empty) {
        let message = "List should have at least 1 item after validation, not 0";
        let mut issue = Issue::new("too_short", loc, message, value);
        issue.context = Some("'field_type': 'List', 'min_length': 1, 'actual_length': 0".to_owned());
        issues.push(issue);
    }
}

fn text_or(other: &Kind, value: &Value, loc: &str, issues: &mut Issues) {
    let mut faults = Issues::default();
    judge(other, value, loc, &mut faults);
    if !faults.is_empty() {
        issues.extend(text(value, loc).err());
        issues.append(faults);
    }
}

fn with(kind: &Kind, condition: fn(&Value) -> Option<String>, value: &Value, (loc, issues): (&str, &mut Issues)) {
    let mut faults = Issues::default();
    judge(kind, value, loc, &mut faults);
    if let Some(message) = Some(value).filter(|_| faults.is_empty()).and_then(condition) {
        faults.push(broken(&message, value, loc));
    }
    issues.append(faults);
}

fn is_iterable(value: &Value) -> bool {
    value.is_array() || value.is_object()
}

fn any_of(kinds: &[Kind], value: &Value, loc: &str, issues: &mut Issues) {
    let mut all = Issues::default();
    for kind in kinds {
        let mut faults = Issues::default();
        judge(kind, value, loc, &mut faults);
        if faults.is_empty() {
            return;
        }
        all.append(faults);
    }
    issues.append(all);
}

fn dataclass(name: &str, object: &Object, value: &Value, loc: &str, issues: &mut Issues) {
    if let Value::Object(map) = value {
        issues.append(check(object, map, loc));
        return;
    }
    issues.push(no_instance(name, value, loc));
}

fn no_instance(name: &str, value: &Value, loc: &str) -> Issue {
    let message = format!("Input should be a dictionary or an instance of {name}");
    let context = Some(format!("'class_name': {}", python::repr(name)));
    Issue { context, ..Issue::new("dataclass_type", loc, message, value) }
}

pub(super) fn broken(message: &str, value: &Value, loc: &str) -> Issue {
    let mut issue = Issue::new("value_error", loc, format!("Value error, {message}"), value);
    issue.context = Some(format!("'error': ValueError({})", python::repr(message)));
    issue
}

fn each(kind: &Kind, value: &Value, loc: &str, issues: &mut Issues) {
    match list(value, loc) {
        Ok(items) => items.iter().enumerate().for_each(|(at, item)| judge(kind, item, &format!("{loc}.{at}"), issues)),
        Err(issue) => issues.push(issue),
    }
}

fn at_most(kind: &Kind, most: usize, value: &Value, loc: &str, issues: &mut Issues) {
    let mut faults = Issues::default();
    each(kind, value, loc, &mut faults);
    if faults.is_empty() {
        faults.extend(Issue::too_long(loc, most, value));
    }
    issues.append(faults);
}

fn float_in(value: &Value, loc: &str, (least, most): (i32, i32)) -> Option<Issue> {
    let number = match float(value, loc) {
        Ok(number) => number,
        Err(issue) => return Some(issue),
    };
    let (kind, words, word, bound) = if number > f64::from(most) {
        ("less_than_equal", "less", "le", most)
    } else if number < f64::from(least) {
        ("greater_than_equal", "greater", "ge", least)
    } else {
        return None;
    };
    let mut issue = Issue::new(kind, loc, format!("Input should be {words} than or equal to {bound}"), value);
    issue.context = Some(format!("'{word}': {bound}.0"));
    Some(issue)
}

fn some_text(value: &Value, loc: &str) -> Option<Issue> {
    match text(value, loc) {
        Err(issue) => Some(issue),
        Ok("") => {
            let mut issue = Issue::new("string_too_short", loc, "String should have at least 1 character", value);
            issue.context = Some("'min_length': 1".to_owned());
            Some(issue)
        }
        Ok(_) => None,
    }
}

fn tagged(variants: &[(&str, &Object)], value: &Value, loc: &str, issues: &mut Issues) {
    let Value::Object(map) = value else {
        issues.push(attributes(value, loc));
        return;
    };
    let Some(tag) = map.get("type") else {
        let message = "Unable to extract tag using discriminator 'type'";
        let mut issue = Issue::new("union_tag_not_found", loc, message, value);
        issue.context = Some("'discriminator': \"'type'\"".to_owned());
        issues.push(issue);
        return;
    };
    let tag = python::display(tag);
    if let Some((name, object)) = variants.iter().find(|(name, _)| *name == tag) {
        issues.append(check(object, map, &format!("{loc}.{name}")));
        return;
    }
    let expected: Vec<String> = variants.iter().map(|(name, _)| format!("'{name}'")).collect();
    let expected = expected.join(", ");
    let message = format!("Input tag '{tag}' found using 'type' does not match any of the expected tags: {expected}");
    let mut issue = Issue::new("union_tag_invalid", loc, message, value);
    issue.context = Some(format!(
        "'discriminator': \"'type'\", 'tag': {}, 'expected_tags': {}",
        python::repr(&tag),
        python::repr(&expected)
    ));
    issues.push(issue);
}
