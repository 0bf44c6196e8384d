//! Schemas as tables: which fields an object has, of what kind, and what is wrong with a value that does not fit.
//! Requests of all families are described with it; faults come in pydantic's order and words.

use serde_json::{Map, Value};

use super::{
    error::ApiError,
    issues::{FieldFault, Issues, Loc},
    json, python,
    values::{flag, float, float_in, int, int_in, list, one_of, text},
};

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
    /// Text that is read as bytes.
    Bytes,
    /// Something that has items.
    Iterable,
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
    /// An object with these fields and no others.
    Closed(&'static Object),
    /// An object with fields of its own, read by the reader with the shorter error for what is no object.
    TypedDict(&'static Object),
    /// An object that becomes one of the engine's parameter classes.
    Dataclass(&'static str, &'static Object),
    /// An object with fields of its own, where the engine would have taken an instance of its class too.
    InstanceOr(&'static str, &'static Object),
    /// An object whose other fields depend on its `type`.
    Tagged(&'static [(&'static str, &'static Object)]),
    List(&'static Self),
    /// A list of at least one.
    SomeList(&'static Self),
    /// A list of at most so many.
    ListUpTo(&'static Self, usize),
    AnyOf(&'static [Self]),
    /// A value of one of these kinds, whose names are part of the path.
    AnyNamed(&'static [(&'static str, Self)]),
    /// A kind whose inside has no paths.
    Opaque(&'static Self),
    With(&'static Self, fn(&Value) -> Option<String>),
}

/// Finds what is wrong with an object whose fields fit.
type ObjectCondition = fn(&Map<String, Value>) -> Option<String>;

/// The fields of an object and a condition on the whole.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) fields: &'static [Field],
    pub(super) condition: Option<ObjectCondition>,
}

/// An object on the whole of which there is no condition.
pub(super) const fn object(fields: &'static [Field]) -> Object {
    Object { fields, condition: None }
}

/// A field: its name, its kind, and whether it may be left out or null.
#[derive(Debug, Clone, Copy)]
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

/// Whole numbers of 64 bits.
pub(super) const INT64: Kind = Kind::IntIn(i64::MIN as i128, i64::MAX as i128);
pub(super) const NOT_NEGATIVE: Kind = Kind::IntIn(0, i128::MAX);

pub(super) fn read(object: &Object, body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    let map = json::object(body)?;
    check_body(object, &map).map(|()| map)
}

pub(super) fn check_body(object: &Object, map: &Map<String, Value>) -> Result<(), ApiError> {
    let mut issues = Issues::new();
    check(object, map, &Loc::BODY, &mut issues);
    issues.unless_any(())
}

pub(super) fn fits(kind: &Kind, value: &Value) -> bool {
    let mut issues = Issues::uncollected();
    judge(kind, value, &Loc::BODY, &mut issues);
    issues.is_empty()
}

pub(super) fn takes(object: &Object, map: &Map<String, Value>) -> bool {
    let mut issues = Issues::uncollected();
    check(object, map, &Loc::BODY, &mut issues);
    issues.is_empty()
}

/// Adds everything in an object that does not fit.
pub(super) fn check(object: &Object, map: &Map<String, Value>, loc: &Loc<'_>, issues: &mut Issues) {
    let before = issues.count();
    check_fields(object.fields, map, Some(map.len()), loc, issues);
    let condition = object.condition.filter(|_| issues.count() == before);
    if let Some(message) = condition.and_then(|condition| condition(map)) {
        issues.push_broken(loc, &message, map);
    }
}

/// Adds what does not fit in these fields of an object in which the engine counts so many `keys`; `None` where fields are read
/// one by one, as parameters of their own.
pub(super) fn check_fields(
    fields: &[Field],
    map: &Map<String, Value>,
    keys: Option<usize>,
    loc: &Loc<'_>,
    issues: &mut Issues,
) {
    // A request has few of its fields: looking each of them up in the table is quicker than the other way round.
    if fit(fields, map) {
        return;
    }
    for Field(name, kind, need) in fields {
        match map.get(*name) {
            None if matches!(need, Need::Required | Need::Present) => {
                issues.push_missing(&loc.field(name), map, keys);
            }
            None => {}
            Some(Value::Null) if matches!(need, Need::Nullable | Need::Present) => {}
            Some(value) => judge(kind, value, &loc.field(name), issues),
        }
    }
}

/// Returns whether nothing is wrong with these fields.
fn fit(fields: &[Field], map: &Map<String, Value>) -> bool {
    let is_there =
        |Field(name, _, need): &Field| !matches!(need, Need::Required | Need::Present) || map.contains_key(*name);
    let fits = |(key, value): (&String, &Value)| match fields.iter().find(|Field(name, ..)| name == key) {
        Some(Field(_, _, Need::Nullable | Need::Present)) if value.is_null() => true,
        Some(Field(_, kind, _)) => fits(kind, value),
        None => true,
    };
    fields.iter().all(is_there) && map.iter().all(fits)
}

/// Adds everything in a value that is not of the kind.
pub(super) fn judge(kind: &Kind, value: &Value, loc: &Loc<'_>, issues: &mut Issues) {
    let before = issues.count();
    match kind {
        Kind::NullOr(_) if value.is_null() => {}
        Kind::NullOr(kind) => judge(kind, value, loc, issues),
        Kind::DictionaryOf(kind) => match value {
            Value::Object(map) => map.iter().for_each(|(key, value)| judge(kind, value, &loc.field(key), issues)),
            _ => issues.push(loc, FieldFault::NO_DICTIONARY, value),
        },
        Kind::ById(kind) => by_id(kind, value, loc, issues),
        Kind::Object(object) => fields_of(object, FieldFault::NO_ATTRIBUTES, value, loc, issues),
        Kind::Closed(object) => {
            fields_of(object, FieldFault::NO_ATTRIBUTES, value, loc, issues);
            let is_extra = |(key, _): &(&String, &Value)| !object.fields.iter().any(|Field(name, ..)| name == key);
            let extra = value.as_object().into_iter().flatten().filter(is_extra);
            extra.for_each(|(key, value)| issues.push(&loc.field(key), FieldFault::EXTRA, value));
        }
        Kind::TypedDict(object) => fields_of(object, FieldFault::NO_DICTIONARY, value, loc, issues),
        Kind::Dataclass(name, object) => fields_of(object, FieldFault::NoDataclass(name), value, loc, issues),
        Kind::InstanceOr(_, object) if fits(&Kind::TypedDict(object), value) => {}
        Kind::InstanceOr(name, object) => {
            issues.push(loc, FieldFault::NoInstance(name), value);
            fields_of(object, FieldFault::NO_DICTIONARY, value, loc, issues);
        }
        Kind::Tagged(variants) => tagged(variants, value, loc, issues),
        Kind::List(kind) => each(kind, value, loc, issues),
        Kind::SomeList(_) if value.as_array().is_some_and(Vec::is_empty) => {
            issues.push(loc, FieldFault::EMPTY_LIST, value)
        }
        Kind::SomeList(kind) => each(kind, value, loc, issues),
        Kind::ListUpTo(kind, most) => {
            each(kind, value, loc, issues);
            let count = value.as_array().map_or(0, Vec::len);
            if count > *most && issues.count() == before {
                issues.push(loc, FieldFault::TooLong { most: *most, count }, value);
            }
        }
        Kind::AnyOf(kinds) if kinds.iter().any(|kind| fits(kind, value)) => {}
        Kind::AnyOf(kinds) => kinds.iter().for_each(|kind| judge(kind, value, loc, issues)),
        Kind::AnyNamed(kinds) if kinds.iter().any(|(_, kind)| fits(kind, value)) => {}
        Kind::AnyNamed(kinds) => kinds.iter().for_each(|(name, kind)| judge(kind, value, &loc.field(name), issues)),
        Kind::Opaque(kind) if issues.are_of_class() => judge(kind, value, loc, issues),
        Kind::Opaque(kind) => judge(kind, value, &Loc::Opaque(loc), issues),
        Kind::With(kind, condition) => {
            judge(kind, value, loc, issues);
            if let Some(message) = Some(value).filter(|_| issues.count() == before).and_then(condition) {
                issues.push(loc, FieldFault::Broken(&message), value);
            }
        }
        scalar => {
            if let Err(fault) = judge_scalar(scalar, value) {
                issues.push(loc, fault, value);
            }
        }
    }
}

/// Judges a value of which nothing inside is judged.
pub(super) fn judge_scalar<'k>(kind: &'k Kind, value: &Value) -> Result<(), FieldFault<'k>> {
    let unless = |fits: bool, fault: FieldFault<'k>| if fits { Ok(()) } else { Err(fault) };
    match kind {
        Kind::Int => int(value).map(drop),
        Kind::IntIn(least, most) => int_in(value, *least, *most).map(drop),
        Kind::IntAbove(bound) => int(value).and_then(|whole| unless(whole > *bound, FieldFault::Above(*bound))),
        Kind::Float => float(value).map(drop),
        Kind::FloatIn(least, most) => float_in(value, *least, *most).map(drop),
        Kind::Flag => flag(value).map(drop),
        Kind::Text => text(value).map(drop),
        Kind::SomeText => text(value).and_then(|text| unless(!text.is_empty(), FieldFault::EMPTY_TEXT)),
        Kind::OneOf(words) => one_of(value, words).map(drop),
        Kind::Exactly(flag) => unless(equals(value, *flag), FieldFault::NotExactly(*flag)),
        Kind::Bytes => unless(value.is_string(), FieldFault::NO_BYTES),
        Kind::Iterable => unless(value.is_string() || value.is_array() || value.is_object(), FieldFault::NO_ITERABLE),
        Kind::Dictionary => unless(value.is_object(), FieldFault::NO_DICTIONARY),
        // `Any`; everything else has an inside.
        _ => Ok(()),
    }
}

/// Numbers equal flags here, as they do in Python.
fn equals(value: &Value, flag: bool) -> bool {
    match value {
        Value::Number(number) => number.as_f64() == Some(f64::from(u8::from(flag))),
        other => *other == Value::Bool(flag),
    }
}

fn fields_of(object: &Object, no_object: FieldFault<'_>, value: &Value, loc: &Loc<'_>, issues: &mut Issues) {
    match value {
        Value::Object(map) => check(object, map, loc, issues),
        _ => issues.push(loc, no_object, value),
    }
}

fn by_id(kind: &Kind, value: &Value, loc: &Loc<'_>, issues: &mut Issues) {
    let Value::Object(map) = value else { return issues.push(loc, FieldFault::NO_DICTIONARY, value) };
    for (key, value) in map {
        let loc = loc.field(key);
        judge(&Kind::Int, &Value::from(key.as_str()), &loc, issues);
        judge(kind, value, &loc, issues);
    }
}

fn each(kind: &Kind, value: &Value, loc: &Loc<'_>, issues: &mut Issues) {
    let items = issues.take(loc, value, list(value)).unwrap_or_default();
    items.iter().enumerate().for_each(|(at, item)| judge(kind, item, &loc.item(at), issues));
}

fn tagged(variants: &[(&str, &Object)], value: &Value, loc: &Loc<'_>, issues: &mut Issues) {
    let Value::Object(map) = value else { return issues.push(loc, FieldFault::NO_ATTRIBUTES, value) };
    let Some(tag) = map.get("type") else { return issues.push(loc, FieldFault::NO_TAG, value) };
    let tag = python::display(tag);
    if let Some((name, object)) = variants.iter().find(|(name, _)| *name == tag) {
        return check(object, map, &loc.field(name), issues);
    }
    let expected: Vec<String> = variants.iter().map(|(name, _)| format!("'{name}'")).collect();
    issues.push(loc, FieldFault::UnknownTag { tag: &tag, expected: &expected.join(", ") }, value);
}
