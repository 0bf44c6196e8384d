//! Events of a stream that differ in one text only, as nearly all of them do: they are searched as few events with long texts.
//!
//! What is searched is what a search of each event would: the texts at their place as one, each text for itself, and what all events
//! repeat as often as they do. Limits: one text of an event may differ, and its field is one of [`TEXTS`]. It is only found out whether there is
//! a secret anywhere; where one may be, the events are searched one by one.

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    ops::Range,
};

use serde_json::Value;

use super::{
    events::{EventPlaces, event_of, redact_events},
    spelled::has_tokens,
};
use recording::{
    cassette::{Moment, SseEvent},
    redaction::{Redactor, has_placeholder, looks_like_json},
};

/// Fields whose texts may differ. None of them describes another field.
const TEXTS: [&str; 9] =
    ["content", "text", "reasoning", "reasoning_content", "refusal", "thinking", "arguments", "partial_json", "delta"];

/// Shapes that an event is compared with: choices and channels may come by turns.
const MAX_OPEN: usize = 8;

/// Whether it is certain that a search of these events finds no secret. The redactor has learned what they name only if so.
pub(super) fn finds_nothing(redactor: &mut Redactor<'_>, moments: &[Moment]) -> bool {
    let mut alike = Alike::default();
    moments.iter().for_each(|moment| alike.add(moment));
    if alike.events.len() * 2 > moments.len() {
        return false;
    }
    let before = redactor.checkpoint();
    let is_clean = alike.hold_nothing(redactor);
    if !is_clean {
        redactor.restore(before);
    }
    is_clean
}

/// Events, one for many.
#[derive(Default)]
struct Alike<'m> {
    events: Vec<SseEvent>,
    shapes: Vec<Shape<'m>>,
    /// Shapes that the next event may have.
    open: Vec<usize>,
    places: EventPlaces,
    texts: HashMap<usize, TextsAtPlace>,
}

/// The texts at a place, without those that shapes have.
struct TextsAtPlace {
    first: String,
    count: usize,
    are_equal: bool,
}

/// An event around its text.
struct Shape<'m> {
    name: Option<&'m str>,
    before: &'m str,
    after: &'m str,
    /// The event that stands for all of this shape, and the number of the text among its texts.
    event: usize,
    nth: usize,
    place: usize,
    /// Places of the event's other texts.
    others: Vec<usize>,
    /// The texts in their order, and where each of them ends.
    joined: String,
    ends: Vec<usize>,
}

impl<'m> Alike<'m> {
    fn add(&mut self, moment: &'m Moment) {
        let Moment(_, data, name) = moment;
        let (data, name) = (data.as_deref().unwrap_or_default(), name.as_deref());
        let shapes = &mut self.shapes;
        let fits = self.open.iter().find_map(|at| {
            let shape = shapes.get(*at).filter(|shape| shape.name == name)?;
            Some((*at, shape.text_of(data)?))
        });
        if let Some((at, text)) = fits
            && let Some(shape) = shapes.get_mut(at)
        {
            shape.push(&text);
            return;
        }
        let mut event = event_of(moment);
        let mut texts = Vec::new();
        self.places.texts_of(&mut event.data, &mut |place, text| texts.push((place, text.clone())));
        // What comes at a place is searched in its order: later texts there follow this event's.
        let shapes = &self.shapes;
        self.open
            .retain(|at| shapes.get(*at).is_some_and(|shape| texts.iter().all(|(place, _)| *place != shape.place)));
        if let Some(shape) = Shape::of(data, name, &event.data, &texts, self.events.len()) {
            if self.open.len() == MAX_OPEN {
                self.open.remove(0);
            }
            self.open.push(self.shapes.len());
            self.shapes.push(shape);
        }
        for (place, text) in texts {
            let known = self.texts.entry(place).or_insert_with(|| TextsAtPlace {
                first: text.clone(),
                count: 0,
                are_equal: true,
            });
            known.count += 1;
            known.are_equal &= known.first == text;
        }
        self.events.push(event);
    }

    fn hold_nothing(mut self, redactor: &mut Redactor<'_>) -> bool {
        self.shapes.retain(|shape| shape.ends.len() > 1);
        let Some(repeated) = self.repeated() else { return false };
        for shape in &self.shapes {
            let Some(event) = self.events.get_mut(shape.event) else { return false };
            let mut at = 0;
            EventPlaces::default().texts_of(&mut event.data, &mut |_, text| {
                if at == shape.nth {
                    shape.joined.clone_into(text);
                }
                at += 1;
            });
        }
        let before = self.events.clone();
        redact_events(redactor, &mut self.events);
        before == self.events
            && self.shapes.iter().all(|shape| redactor.finds_nothing_in(shape.pieces()))
            && repeated.iter().all(|(text, count)| redactor.finds_nothing_in_repeated(text, *count))
    }

    /// Returns what the events of shapes repeat, and how often; `None` where that is not all they do.
    fn repeated(&mut self) -> Option<Vec<(String, usize)>> {
        let differing: HashSet<usize> = self.shapes.iter().map(|shape| shape.place).collect();
        let mut places = HashSet::new();
        for shape in &self.shapes {
            if has_placeholder(&shape.joined) {
                return None;
            }
            for place in &shape.others {
                let texts = self.texts.get_mut(place).filter(|texts| texts.are_equal)?;
                if differing.contains(place) || self.places.are_json.contains(place) {
                    return None;
                }
                texts.count += shape.ends.len() - 1;
                places.insert(*place);
            }
        }
        let texts = places.iter().filter_map(|place| self.texts.get(place));
        Some(texts.map(|texts| (texts.first.clone(), texts.count)).collect())
    }
}

impl<'m> Shape<'m> {
    /// Returns the shape of an event with these texts; `None` where others cannot have it.
    fn of(
        data: &'m str,
        name: Option<&'m str>,
        value: &Value,
        texts: &[(usize, String)],
        event: usize,
    ) -> Option<Self> {
        let strings = strings(data);
        if !value.is_object() || strings.len() != texts.len() || has_tokens(value) {
            return None;
        }
        let mut own = strings.iter().enumerate().filter(|(_, (_, key))| TEXTS.contains(key));
        let (Some((nth, (span, _))), None) = (own.next(), own.next()) else { return None };
        let (place, text) = texts.get(nth)?;
        let others: Vec<usize> = texts.iter().map(|(place, _)| *place).filter(|other| other != place).collect();
        if others.len() + 1 != texts.len() || looks_like_json(text) {
            return None;
        }
        let (before, after) = (data.get(..span.start)?, data.get(span.end..)?);
        let (joined, ends) = (String::new(), Vec::new());
        let mut shape = Self { name, before, after, event, nth, place: *place, others, joined, ends };
        shape.push(text);
        Some(shape)
    }

    /// Returns the text of an event of this shape; `None` for any other event.
    fn text_of<'d>(&self, data: &'d str) -> Option<Cow<'d, str>> {
        let quoted = data.strip_prefix(self.before)?.strip_suffix(self.after)?;
        if quoted.bytes().any(|byte| byte < 0x20) {
            return None;
        }
        let text = match quoted.contains(['"', '\\']) {
            true => Cow::Owned(serde_json::from_str(&format!("\"{quoted}\"")).ok()?),
            false => Cow::Borrowed(quoted),
        };
        // As JSON it is searched for itself.
        (!looks_like_json(&text)).then_some(text)
    }

    fn push(&mut self, text: &str) {
        self.joined.push_str(text);
        self.ends.push(self.joined.len());
    }

    fn pieces(&self) -> impl Iterator<Item = &str> + Clone {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| self.joined.get(start..*end).unwrap_or_default())
    }
}

/// The strings of JSON text that are values, without their quotes, each with the last key before it.
fn strings(json: &str) -> Vec<(Range<usize>, &str)> {
    let (mut found, mut key, mut at) = (Vec::new(), "", 0);
    while let Some(start) = json.get(at..).and_then(|rest| rest.find('"')).map(|place| at + place + 1) {
        let rest = json.get(start..).unwrap_or_default();
        let mut is_escaped = false;
        let length = rest.bytes().position(|byte| {
            let ends = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            ends
        });
        let Some(end) = length.map(|length| start + length) else { break };
        at = end + 1;
        if json.get(at..).is_some_and(|rest| rest.trim_start().starts_with(':')) {
            key = json.get(start..end).unwrap_or_default();
        } else {
            found.push((start..end, key));
        }
    }
    found
}
