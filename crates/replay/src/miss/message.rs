//! The message of a miss: one line with what differs and what to do, then details, as many as there is room for.
//!
//! A client library prints it escaped, within the JSON that it stands in; so its length is counted in that form.
//!
//! See docs/decisions/0067-misses-are-short.md.

use serde_json::Value;

use super::{
    advice::Advice,
    comparison::{Comparison, text_of},
    edit::{Cause, Edit, clipped_place},
};
use base::one_line::clipped;
use recording::canonical::Operation;

/// Maximum length of the message for a client, in characters of its JSON form.
pub(crate) const FOR_CLIENTS: usize = 600;

/// Maximum length of the message in the log.
pub(crate) const FOR_LOG: usize = 6000;

/// Characters that are shown of a boundary or a file, and of a value in the first line.
pub(crate) const NAME: usize = 120;
pub(crate) const SHORT: usize = 40;

/// Characters of a value where there are several differences.
const BRIEF: usize = 18;

pub(crate) struct Explanation<'a> {
    /// The first line, without the first remedy.
    pub(crate) headline: String,
    /// The closest record.
    pub(crate) found: Option<&'a Comparison>,
    /// How it differs.
    pub(crate) edits: &'a [Edit<'a>],
    /// What helps.
    pub(crate) advice: &'a Advice,
    /// A line before the closest record.
    pub(crate) before: Option<String>,
    /// Lines after it.
    pub(crate) after: Vec<String>,
    /// The last line but the address: the request, and what is played.
    pub(crate) circumstances: String,
    /// Where both requests are to be had.
    pub(crate) address: Option<&'a str>,
    /// Nothing of the kind was recorded, so that the closest record explains little.
    pub(crate) is_of_nothing: bool,
}

/// Lines with a maximum length together.
struct BoundedLines {
    lines: Vec<String>,
    left: usize,
}

impl BoundedLines {
    /// Adds lines, as far as there is room for them.
    fn extend(&mut self, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            self.add(line);
        }
    }

    /// Adds a line if there is room for it; returns whether there was.
    fn add(&mut self, line: String) -> bool {
        let length = length(&line) + 2;
        let fits = length <= self.left;
        if fits {
            self.left -= length;
            self.lines.push(line);
        }
        fits
    }

    /// Adds the first of these lines for which there is room; the number of those that are left has to fit in too.
    fn add_before_end(&mut self, lines: [String; 2]) -> bool {
        self.left = self.left.saturating_sub(20);
        let fits = lines.into_iter().any(|line| self.add(line));
        self.left += 20;
        fits
    }
}

/// The length of a text in JSON, in characters.
fn length(text: &str) -> usize {
    let of_char = |c: char| match c {
        '"' | '\\' | '\n' | '\t' | '\r' => 2,
        c if c.is_control() => 6,
        _ => 1,
    };
    text.chars().map(of_char).sum()
}

impl Explanation<'_> {
    /// Writes the message in at most so many characters.
    pub(crate) fn text(&self, most: usize) -> String {
        let (edits, advice) = (self.edits, self.advice);
        let mut lines = BoundedLines { lines: Vec::new(), left: most };
        // Of several differences each has a line, for which there has to be room.
        let is_crowded = edits.len() > 1 && most < FOR_LOG;
        let first =
            advice.first().map(|fix| if is_crowded { fix.split(" --upstream").next().unwrap_or(fix) } else { fix });
        let first = first.map(|fix| format!(" {fix}.")).unwrap_or_default();
        let headline = &self.headline;
        if !lines.add(format!("{headline}{first}")) && !lines.add(headline.clone()) {
            lines.add(clipped(headline, most / 2));
        }
        let last = self.address.map(|address| format!("Details: {address}"));
        let reserved = last.as_deref().map_or(0, |last| length(last) + 2);
        lines.left = lines.left.saturating_sub(reserved);
        let share = match (self.is_of_nothing, is_crowded) {
            (true, _) => lines.left * 3 / 4,
            (_, true) => lines.left / 4,
            (_, false) => lines.left / 3,
        };
        let (fixes, of_fixes) = fixes(advice, share);
        lines.left = lines.left.saturating_sub(of_fixes);
        lines.extend(self.before.clone());
        if let Some(found) = self.found {
            closest(&mut lines, found, edits, most);
        }
        lines.extend(self.after.iter().cloned());
        lines.left += of_fixes;
        lines.extend(fixes);
        lines.add(self.circumstances.clone());
        lines.left += reserved;
        lines.extend(last);
        lines.lines.join("\n")
    }
}

/// Adds the closest record and the edits, each on a line of its own.
fn closest(lines: &mut BoundedLines, found: &Comparison, edits: &[Edit<'_>], most: usize) {
    let total = found.total + edits.len() - found.differences.len();
    let differences = if total == 1 { "difference" } else { "differences" };
    if !lines.add(format!("Closest recorded request: {}, {total} {differences}:", found.place)) {
        lines.add(format!("Closest recorded request: {}, {total} {differences}:", found.name));
    }
    // The first line has them where nothing else differs.
    let is_new = |counts: &&String| !lines.lines.first().is_some_and(|first| first.contains(counts.as_str()));
    let counts: Vec<String> = found.counts.iter().filter(is_new).map(|counts| format!("  - {counts}")).collect();
    lines.extend(counts);
    let shown = match most {
        FOR_LOG => {
            edits.iter().take_while(|edit| lines.add_before_end([edit_line(edit, (NAME, 200)), differs(edit)])).count()
        }
        _ => brief_lines(lines, edits),
    };
    if total > shown {
        lines.add(format!("  - and {} more", total - shown));
    }
}

/// Chooses the lines of further remedies that take so many characters at most; returns how many they take.
fn fixes(advice: &Advice, most: usize) -> (Vec<String>, usize) {
    let (mut chosen, mut taken) = (Vec::new(), 0);
    for line in advice.further().iter().map(|fix| format!("  * {fix}")) {
        let length = length(&line) + 2;
        if taken + length <= most {
            taken += length;
            chosen.push(line);
        }
    }
    (chosen, taken)
}

/// Describes the edits in a few words: one of them with its values, of several the places.
pub(crate) fn summary(found: &Comparison, edits: &[Edit<'_>]) -> String {
    match (edits, &found.counts) {
        ([edit], None) => format!("{} ({})", one(edit), found.name),
        (_, Some(counts)) if edits.iter().all(|edit| matches!(edit.cause, Cause::Turn)) => {
            format!("{counts} ({})", found.name)
        }
        _ => {
            let mut places: Vec<String> = edits.iter().map(|edit| clipped_place(edit.place(), SHORT)).collect();
            places.dedup();
            let more = if places.len() > 4 { format!(" and {} more", places.len() - 4) } else { String::new() };
            let differ = if places.len() == 1 { "differs" } else { "differ" };
            places.truncate(4);
            format!("{}{more} {differ} from {}", places.join(", "), found.name)
        }
    }
}

pub(crate) fn one(edit: &Edit<'_>) -> String {
    let place = clipped_place(edit.place(), NAME);
    let (recorded, received) = edit.values(SHORT);
    match (edit.difference.operation, &edit.cause) {
        (_, Cause::Form) => format!("{place} differs"),
        (Operation::Add, _) => format!("{place} was not recorded ({received})"),
        (Operation::Remove, _) => format!("{place} is missing (recorded {recorded})"),
        (Operation::Replace, Cause::Volatile(shapes)) => {
            let names = shapes.iter().map(|shape| shape.name).collect::<Vec<_>>().join(" and ");
            format!("{place} differs in {names}: {received}, recorded {recorded}")
        }
        (Operation::Replace, _) => format!("{place} is {received}, recorded {recorded}"),
    }
}

/// An edit with so many characters of its place and of each value.
fn edit_line(edit: &Edit<'_>, (place, width): (usize, usize)) -> String {
    let place = clipped_place(edit.place(), place);
    let (recorded, received) = edit.values(width);
    match (edit.difference.operation, edit.at()) {
        (Operation::Add, _) => format!("  - {place}: not recorded, received {received}"),
        (Operation::Remove, _) => format!("  - {place}: recorded {recorded}, not received"),
        (Operation::Replace, _) if width == BRIEF => format!("  - {place}: {received} instead of {recorded}"),
        (Operation::Replace, Some(at)) => {
            format!("  - {place}: recorded {recorded} received {received} (first difference at char {at})")
        }
        (Operation::Replace, None) => format!("  - {place}: recorded {recorded} received {received}"),
    }
}

/// Adds a line for each edit, one for messages in a row; returns how many edits have one.
fn brief_lines(lines: &mut BoundedLines, edits: &[Edit<'_>]) -> usize {
    let mut shown = 0;
    for run in runs(edits) {
        let both = match run {
            [edit] if edits.len() == 1 => [edit_line(edit, (NAME, 60)), differs(edit)],
            [edit] => [edit_line(edit, (SHORT, BRIEF)), differs(edit)],
            run => turn_lines(run).unwrap_or_default(),
        };
        if !lines.add_before_end(both) {
            break;
        }
        shown += run.len();
    }
    shown
}

/// An edit without its values.
fn differs(edit: &Edit<'_>) -> String {
    let place = clipped_place(edit.place(), NAME);
    match edit.difference.operation {
        Operation::Add => format!("  - {place} was not recorded"),
        Operation::Remove => format!("  - {place} was not received"),
        Operation::Replace => format!("  - {place} differs"),
    }
}

/// Characters of the text of a message, and maximum number of messages that are shown.
const TEXT: usize = 18;
const MOST: usize = 4;

/// Splits edits where one is no message that follows the message before it.
pub(super) fn runs<'e, 'd>(edits: &'e [Edit<'d>]) -> impl Iterator<Item = &'e [Edit<'d>]> {
    edits.chunk_by(|one, next| {
        let are_turns = matches!((&one.cause, &next.cause), (Cause::Turn, Cause::Turn));
        let places = item(one.place()).zip(item(next.place()));
        let is_next =
            places.is_some_and(|((list, at), (other, after))| list == other && at.checked_add(1) == Some(after));
        are_turns && is_next && one.difference.operation == next.difference.operation
    })
}

/// Describes such messages with their first words, and without.
pub(super) fn turn_lines(run: &[Edit<'_>]) -> Option<[String; 2]> {
    let (first, last) = (run.first()?, run.last()?);
    let what = match first.difference.operation {
        Operation::Add => "were received and not recorded",
        Operation::Remove | Operation::Replace => "were recorded and not received",
    };
    let short = format!("  - {} to {} {what}", first.place(), last.place());
    let message = |edit: &Edit<'_>| {
        let message = edit.difference.recorded.as_ref().or(edit.difference.received.as_ref());
        message.map(in_words).unwrap_or_default()
    };
    let mut words: Vec<String> = run.iter().take(MOST).map(message).collect();
    words.extend((run.len() > MOST).then(|| "…".to_owned()));
    Some([format!("{short}: {}", words.join(", ")), short])
}

/// The list and the place of an item, as `messages` and 5 of `messages[5]`.
fn item(place: &str) -> Option<(&str, usize)> {
    let (list, at) = place.strip_suffix(']')?.rsplit_once('[')?;
    Some((list, at.parse().ok()?))
}

/// A message or an item in a few words: its role, its text, the tools that it calls.
fn in_words(message: &Value) -> String {
    let field = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let of = field(message, "role").or(field(message, "type")).unwrap_or_else(|| "an item".to_owned());
    let listed = ["tool_calls", "content"].into_iter().filter_map(|name| message.get(name)?.as_array()).flatten();
    let name = |call: &Value| field(call.get("function").unwrap_or(call), "name");
    let own = Some(message).filter(|message| message.get("type").is_some_and(|kind| kind == "function_call"));
    let calls: Vec<String> = listed.chain(own).filter_map(name).collect();
    let calls =
        if calls.is_empty() { String::new() } else { format!(" calls {}", clipped(&calls.join(" and "), TEXT * 2)) };
    let text = text_of(message, TEXT).map(|text| format!(" {text}")).unwrap_or_default();
    format!("{of}{text}{calls}")
}
