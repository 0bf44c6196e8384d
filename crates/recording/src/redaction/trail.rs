//! The path to a value in JSON, and the kind of secret that it makes of the value: each step is looked at once, however many
//! values lie below it.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::{RedactionRules, path::PathProgress, scan::ValueStep};

/// Keys under which JSON schemas list their fields, and those of a field's keys that hold a value of it.
const SCHEMAS: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
const SCHEMA_VALUES: [&str; 5] = ["const", "default", "enum", "example", "examples"];

/// Fields of an object that name what is in another one, as of a variable, a header or a parameter, and those other ones.
const NAMES: [&str; 6] = ["name", "key", "header", "Name", "Key", "variable"];
const VALUES: [&str; 3] = ["value", "Value", "val"];

/// Steps of a place that are named, from its beginning and from its end.
const NAMED_STEPS: (usize, usize) = (16, 8);

/// A longer key is not named, in bytes.
const LONGEST_NAMED: usize = 64;

/// The steps to a value, each with what holds below it.
#[derive(Debug)]
pub(super) struct Trail<'r, 's> {
    rules: &'r RedactionRules,
    root: Context,
    frames: Vec<(ValueStep<'s>, Context)>,
    /// Kinds of the values of objects that name a secret in another field, each with the number of steps to the object's fields.
    pairs: Vec<(usize, Arc<str>)>,
}

/// The state after the steps to a value.
#[derive(Debug, Clone, Default)]
struct Context {
    /// Below a key under which names do not count.
    is_exempt: bool,
    /// The kind by the last key.
    own: Option<Arc<str>>,
    /// The kind by the first secret key further up.
    above: Option<Arc<str>>,
    /// Whether that key is a field of a schema, in which only values are secrets.
    is_described: bool,
    /// Whether the last step is a key under which a schema lists its fields.
    lists_fields: bool,
    progress: PathProgress,
    /// The last key as a kind, where places are looked for.
    named: Option<Arc<str>>,
}

impl<'r, 's> Trail<'r, 's> {
    /// The path to a whole document, after the given steps.
    pub(super) fn new(rules: &'r RedactionRules, steps: impl IntoIterator<Item = ValueStep<'s>>) -> Self {
        let places = rules.places();
        let named = (!places.is_empty()).then(|| Arc::from("place"));
        let root = Context { progress: PathProgress::start(places), named, ..Context::default() };
        let mut trail = Self { rules, root, frames: Vec::new(), pairs: Vec::new() };
        steps.into_iter().for_each(|step| trail.enter(step));
        trail
    }

    /// Goes one step further.
    pub(super) fn enter(&mut self, step: ValueStep<'s>) {
        let context = self.context().after(self.rules, &step);
        self.frames.push((step, context));
    }

    /// Goes back one step.
    pub(super) fn leave(&mut self) {
        self.frames.pop();
        while self.pairs.last().is_some_and(|(steps, _)| *steps > self.frames.len()) {
            self.pairs.pop();
        }
    }

    /// Goes to the key of an object, in place of its key before.
    pub(super) fn key(&mut self, key: ValueStep<'s>) {
        self.frames.pop();
        self.enter(key);
    }

    /// Notes a text under the last key: where that is one of a name, and the name a secret's, a value in the same object is one.
    pub(super) fn note(&mut self, text: &str) {
        let is_name = self.frames.last().and_then(|(step, _)| step.key()).is_some_and(|key| NAMES.contains(&key));
        if is_name && let Some(kind) = self.kind_by_name(text) {
            self.pairs.push((self.frames.len(), kind));
        }
    }

    /// Returns the kind of the value of an object that names a secret in another field.
    pub(super) fn kind_of_pair(&self, fields: &Map<String, Value>) -> Option<Arc<str>> {
        if !VALUES.iter().any(|name| fields.contains_key(*name)) {
            return None;
        }
        NAMES.iter().find_map(|name| self.kind_by_name(fields.get(*name)?.as_str()?))
    }

    /// Goes to a field of an object, whose value is of the kind that [`kind_of_pair`](Self::kind_of_pair) returned.
    pub(super) fn enter_field(&mut self, key: ValueStep<'s>, pair: Option<&Arc<str>>) {
        self.enter(key);
        self.pairs.extend(pair.map(|kind| (self.frames.len(), Arc::clone(kind))));
    }

    fn kind_by_name(&self, name: &str) -> Option<Arc<str>> {
        if name.len() > LONGEST_NAMED { None } else { self.rules.kind_of_name(name) }
    }

    fn pair(&self) -> Option<&Arc<str>> {
        let (steps, kind) = self.pairs.last()?;
        let (step, _) = self.frames.get(steps.checked_sub(1)?)?;
        VALUES.contains(&step.key()?).then_some(kind)
    }

    /// Goes to the next value: of a list, or of an object whose key is not known yet.
    pub(super) fn next(&mut self) {
        match self.frames.last_mut() {
            // What holds for one item holds for all of them, where no place names one of them.
            Some((ValueStep::Index(index), context)) if context.progress.is_settled() => *index += 1,
            Some((ValueStep::Index(index), _)) => {
                let next = ValueStep::Index(*index + 1);
                self.key(next);
            }
            Some((ValueStep::Key(_), _)) => self.key(ValueStep::Key(None)),
            None => {}
        }
    }

    /// Whether the key of an object is to come.
    pub(super) fn awaits_key(&self) -> bool {
        matches!(self.frames.last(), Some((ValueStep::Key(None), _)))
    }

    fn context(&self) -> &Context {
        self.frames.last().map_or(&self.root, |(_, context)| context)
    }

    /// The kind of secret that a scalar is by its name or its place.
    pub(super) fn kind(&self) -> Option<&Arc<str>> {
        let context = self.context();
        if context.progress.is_covered {
            return context.named.as_ref();
        }
        if context.is_exempt {
            return None;
        }
        let named = context.own.as_ref().or(context.above.as_ref().filter(|_| !context.is_described));
        named.or_else(|| self.pair())
    }

    /// The path, as `$.messages[0].content`; the middle of a long one and long keys are left out.
    pub(super) fn spelled(&self) -> String {
        let (first, last) = NAMED_STEPS;
        let mut place = "$".to_owned();
        let cut = self.frames.len().saturating_sub(last).max(first);
        for (at, (step, _)) in self.frames.iter().take(first).chain(self.frames.iter().skip(cut)).enumerate() {
            if at == first && self.frames.len() > first + last {
                place.push('…');
            }
            match step {
                ValueStep::Index(index) => place.push_str(&format!("[{index}]")),
                ValueStep::Key(key) => {
                    let key = key.as_deref().unwrap_or_default();
                    place.push('.');
                    place.push_str(if key.len() > LONGEST_NAMED { "…" } else { key });
                }
            }
        }
        place
    }
}

impl Context {
    /// What holds one step further.
    fn after(&self, rules: &RedactionRules, step: &ValueStep<'_>) -> Self {
        let places = rules.places();
        let progress = self.progress.after(places, step);
        let Some(key) = step.key() else {
            return Self { progress, lists_fields: false, ..self.clone() };
        };
        let own = rules.kind_of_name(key);
        let is_first = self.above.is_none() && own.is_some() && !super::names::is_bare(key);
        Self {
            is_exempt: self.is_exempt || super::names::exempts(key),
            above: if is_first { own.clone() } else { self.above.clone() },
            is_described: if is_first { self.lists_fields } else { self.is_described && !SCHEMA_VALUES.contains(&key) },
            own,
            lists_fields: SCHEMAS.contains(&key),
            progress,
            named: (!places.is_empty()).then(|| super::names::kind(key)),
        }
    }
}
