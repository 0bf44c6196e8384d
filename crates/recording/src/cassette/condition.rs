//! Conditions of hand-written records: what a request has to be.
//!
//! `contains` and `regex` look at one text: that of the last message that the user wrote. With `role` they look at the last message of
//! the conversation, which has to be of that role, and with `message: any` at every message (of that role). A name in front of them
//! is a field of the body instead.

use serde_json::{Map, Value};

use super::template;
use crate::canonical::{FieldPath, TextPattern};

/// A condition on a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Condition {
    /// A text contains this one: the last message of the user, or a text at a place.
    Contains(Option<FieldPath>, String),
    /// A text has a match of this pattern.
    Regex(Option<FieldPath>, TextPattern),
    /// The value at a place is this one.
    Equals(FieldPath, Value),
    /// So many answers are in the conversation already.
    Turn(u64),
    /// The last message of the conversation is a tool's result, or is not.
    ToolResult(bool),
    /// An expression is true.
    When(String),
    /// The path of the request is one of these.
    Route(Vec<String>),
    /// The request offers a tool of this name.
    Tool(String),
    /// The conversation has a call of a tool of this name.
    Called(String),
    /// A header, in lower case, has such a value.
    Header(String, HeaderTest),
    /// It is one of these times that the other conditions hold in the session, from 1.
    Nth(Vec<u64>),
}

/// Test of a header's value.
#[derive(Debug, Clone, PartialEq)]
pub enum HeaderTest {
    /// The header is there, or is not.
    Present(bool),
    /// Its value is this one.
    Is(String),
    /// Its value has a match of this pattern.
    Matches(TextPattern),
}

impl HeaderTest {
    /// Returns whether it holds for a header's value, or for none.
    #[must_use]
    pub fn holds(&self, value: Option<&str>) -> bool {
        match self {
            Self::Present(is_there) => value.is_some() == *is_there,
            Self::Is(wanted) => value == Some(wanted),
            Self::Matches(pattern) => value.is_some_and(|value| pattern.is_in(value)),
        }
    }
}

/// The messages whose texts conditions look at. By default the last message that the user wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageScope {
    /// Roles of the messages; empty for any.
    pub roles: Vec<String>,
    /// Whether every message of these roles is looked at, and not only the last one of the conversation.
    pub any: bool,
}

impl MessageScope {
    /// Reads `role` and `message` beside other conditions.
    pub(super) fn read(fields: &Map<String, Value>) -> Result<Self, (&'static str, String)> {
        let wrong = || (ROLE, format!("`match.role` is one of {}", ROLES.join(", ")));
        let roles = fields.get(ROLE).map(|value| names(value).ok_or_else(wrong)).transpose()?.unwrap_or_default();
        if let Some(role) = roles.iter().find(|role| !ROLES.contains(&role.as_str())) {
            return Err((ROLE, format!("`match.role`: `{role}` is none of {}", ROLES.join(", "))));
        }
        let any = match fields.get(MESSAGE).map(Value::as_str) {
            None | Some(Some("last")) => false,
            Some(Some("any")) => true,
            Some(_) => return Err((MESSAGE, "`match.message` has to be last or any".to_owned())),
        };
        Ok(Self { roles, any })
    }

    /// Returns whether it is the default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

const ROLES: [&str; 5] = ["user", "assistant", "system", "developer", "tool"];

const ROLE: &str = "role";
const MESSAGE: &str = "message";

impl Condition {
    /// Returns whether it holds wherever another one does, as far as both are compared by their spelling.
    pub(super) fn holds_where(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Contains(one, text), Self::Contains(two, more)) => one == two && more.contains(text.as_str()),
            (Self::Route(all), Self::Route(some)) => some.iter().all(|route| all.contains(route)),
            // How often depends on the conditions beside it.
            (Self::Nth(_), _) => false,
            (one, two) => one == two,
        }
    }
}

/// Reads what stands under one key.
pub(super) fn of_key(key: &str, value: &Value) -> Result<Vec<Condition>, String> {
    let needs = |what: &str| format!("`match.{key}` has to be {what}");
    Ok(match key {
        "contains" => {
            let of_text = |place, text: &str| Ok(Condition::Contains(place, text.to_owned()));
            texts(key, value, &of_text)?
        }
        "regex" => texts(key, value, &|place, text: &str| {
            let pattern = text.parse().map_err(|error| format!("`match.{key}`: {error}"))?;
            Ok(Condition::Regex(place, pattern))
        })?,
        "equals" => {
            let fields = value.as_object().filter(|fields| !fields.is_empty());
            let fields = fields.ok_or_else(|| needs("a map of fields to values, such as {temperature: 0}"))?;
            let one = |(name, value): (&String, &Value)| Ok(Condition::Equals(place(key, name)?, value.clone()));
            fields.iter().map(one).collect::<Result<_, String>>()?
        }
        "model" => {
            let model = value.as_str().ok_or_else(|| needs("the name of a model"))?;
            vec![Condition::Equals(place(key, "model")?, model.into())]
        }
        "turn" => {
            let turn = value.as_u64().ok_or_else(|| needs("a number from 0 on: of the answers so far"))?;
            vec![Condition::Turn(turn)]
        }
        "tool_result" => {
            let wanted = value.as_bool().ok_or_else(|| needs("true or false"))?;
            vec![Condition::ToolResult(wanted)]
        }
        ROLE | MESSAGE => Vec::new(),
        "route" => {
            let routes = names(value).filter(|routes| routes.iter().all(|route| route.starts_with('/')));
            vec![Condition::Route(routes.ok_or_else(|| needs("a path such as /v1/completions, or a list of them"))?)]
        }
        "tool" | "called" => {
            let all = names(value).ok_or_else(|| needs("the name of a tool, or a list of names"))?;
            all.into_iter().map(if key == "tool" { Condition::Tool } else { Condition::Called }).collect()
        }
        "header" => {
            let fields = value.as_object().filter(|fields| !fields.is_empty());
            let fields = fields.ok_or_else(|| needs("a map of headers to values, such as {x-tenant: acme}"))?;
            fields.iter().map(header).collect::<Result<_, String>>()?
        }
        "nth" => {
            let counts = one_or_more(value, |count| count.as_u64().filter(|count| *count > 0));
            vec![Condition::Nth(counts.ok_or_else(|| needs("a number from 1 on, or a list of them"))?)]
        }
        "when" => {
            let text = value.as_str().ok_or_else(|| needs("an expression, such as messages|length > 2"))?;
            template::check_expression(text).map_err(|error| format!("`match.when`: {error}"))?;
            vec![Condition::When(text.to_owned())]
        }
        _ => {
            let known = "any, contains, regex, role, message, equals, model, route, tool, called, header, turn, nth, \
                         tool_result, when";
            return Err(format!("`match.{key}` is no condition: {known}"));
        }
    })
}

fn header((name, value): (&String, &Value)) -> Result<Condition, String> {
    let test = match value {
        Value::Bool(is_there) => HeaderTest::Present(*is_there),
        Value::String(text) => HeaderTest::Is(text.clone()),
        Value::Object(fields) if fields.len() == 1 => {
            let pattern = fields.get("regex").and_then(Value::as_str);
            let pattern = pattern.ok_or_else(|| format!("`match.header.{name}` has no `regex`"))?;
            HeaderTest::Matches(pattern.parse().map_err(|error| format!("`match.header.{name}`: {error}"))?)
        }
        _ => {
            return Err(format!(
                "`match.header.{name}` has to be a text, true, false or {{regex: ...}}; a number stands in quotes"
            ));
        }
    };
    Ok(Condition::Header(name.to_ascii_lowercase(), test))
}

/// Reads a text, or a list of texts; `None` where one is empty.
pub(super) fn names(value: &Value) -> Option<Vec<String>> {
    one_or_more(value, |name| name.as_str().filter(|name| !name.is_empty()).map(str::to_owned))
}

fn one_or_more<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    match value {
        Value::Array(list) if !list.is_empty() => list.iter().map(read).collect(),
        one => read(one).map(|one| vec![one]),
    }
}

type OfText<'f> = &'f dyn Fn(Option<FieldPath>, &str) -> Result<Condition, String>;

/// Conditions on texts: of the last message of the user, or of fields by their names.
fn texts(key: &str, value: &Value, condition: OfText<'_>) -> Result<Vec<Condition>, String> {
    let wrong = || format!("`match.{key}` has to be a text, a list of texts, or a map of fields to them");
    let all = |at: Option<FieldPath>, value: &Value| -> Result<Vec<Condition>, String> {
        names(value).ok_or_else(wrong)?.iter().map(|text| condition(at.clone(), text)).collect()
    };
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            let mut conditions = Vec::new();
            for (name, texts) in fields {
                conditions.extend(all(Some(place(key, name)?), texts)?);
            }
            Ok(conditions)
        }
        value => all(None, value),
    }
}

/// A place in a request's body; the sign of the body may be left out.
fn place(key: &str, name: &str) -> Result<FieldPath, String> {
    let is_whole = name.starts_with(['$', '*']);
    let whole = if is_whole { name.to_owned() } else { format!("$.{name}") };
    whole.parse().map_err(|_| {
        format!("`match.{key}`: `{name}` names no field of a request: write model, messages[0].content or **.name")
    })
}
