//! From files to cassettes: what records leave out is filled in. The records of two are put together under numbers of their own.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fs, io,
    path::{Path, PathBuf},
    string::FromUtf8Error,
    sync::Arc,
    thread,
};

use base::{bounded_read, one_line::clipped};
use serde_json::{Map, Value, json};

use super::{
    CassetteError, FORMAT, blob,
    call_ids::{RecordCallIds, name_results},
    echo::{conversation_of, echo, stand_alone},
    error::Wrong,
    header::{Header, map, number},
    json_added, large,
    read::{self, WrittenRecord},
    record::{AnswerContent, CassetteRecord, HIGH_ID},
    side,
    threads::marked,
};
use crate::{
    canonical::{self, SharedBody},
    redaction::placeholders,
    storage, trace,
    yaml::{self, YamlEntry, YamlKind, YamlNode},
};

/// A cassette that was read.
#[derive(Debug, Clone, Default)]
pub struct Cassette {
    /// Its file.
    pub path: PathBuf,
    /// Its top.
    pub header: Header,
    /// Its records in order, their requests in full.
    pub records: Vec<CassetteRecord>,
    /// The definitions of tools that its records name.
    pub tools: Map<String, Value>,
    /// Notes for its reader, each with its line.
    pub warnings: Vec<String>,
    /// Line, from 1, at which its records end and others can be added.
    pub end_of_records: Option<usize>,
    /// The column of its records' dashes.
    pub indent: usize,
    /// The kinds of the placeholders in it.
    pub placeholders: BTreeSet<Arc<str>>,
    /// The lines of the entries at its top, each followed by those of its items.
    pub(super) lines: BTreeMap<String, Vec<usize>>,
}

impl Cassette {
    /// The line of an entry at the top, or of one of its items; 1 where it has none.
    #[must_use]
    pub fn line_of(&self, key: &str, item: Option<usize>) -> usize {
        let lines = self.lines.get(key).map(Vec::as_slice).unwrap_or_default();
        item.and_then(|item| lines.get(item + 1)).or(lines.first()).copied().unwrap_or(1)
    }
}

/// Returns true if a path is that of a cassette by its name.
#[must_use]
pub fn is_cassette(path: &Path) -> bool {
    path.extension().is_some_and(|end| end.eq_ignore_ascii_case("yaml") || end.eq_ignore_ascii_case("yml"))
}

/// Reads a cassette and its sidecar.
///
/// ```
/// use std::path::Path;
/// use vllm_vcr_recording::cassette::load;
///
/// let cassette = load(Path::new("../../examples/weather.yaml"))?;
/// assert_eq!(cassette.records[0].path, "/v1/chat/completions");
/// # Ok::<(), vllm_vcr_recording::cassette::CassetteError>(())
/// ```
///
/// # Errors
/// When it cannot be read, or for everything that is wrong, with the file and the lines.
pub fn load(path: &Path) -> Result<Cassette, CassetteError> {
    let text = text_of(path)?;
    let (sides, cassette) = thread::scope(|scope| {
        let sides = scope.spawn(|| side::read(path));
        let cassette = parse(path, &text);
        (sides.join().unwrap_or_else(|_| side::read(path)), cassette)
    });
    let io = |source| CassetteError::Io { path: side::timing_of(path), source };
    let (mut sides, mut cassette) = (sides.map_err(io)?, cassette?);
    cassette.warnings.append(&mut sides.warnings);
    for record in &mut cassette.records {
        // What stands in the record itself is what its reader sees.
        record.join(sides.known.remove(&record.id));
    }
    let edited: Vec<String> = cassette
        .records
        .iter()
        .filter(|record| record.is_edited)
        .map(|record| {
            format!("{}:{}: record {} was edited: its timing is approximate", path.display(), record.line, record.id)
        })
        .collect();
    cassette.warnings.extend(edited);
    Ok(cassette)
}

/// Reads a cassette's file.
///
/// # Errors
/// When it cannot be read, or is no text.
pub fn text_of(path: &Path) -> Result<String, CassetteError> {
    let io = |source| CassetteError::Io { path: storage::shown(path), source };
    let bytes = match storage::find(path).map_err(io)? {
        Some(object) => object.read(side::MOST_BYTES),
        // A pipe would never end, nor would a device.
        None if !fs::metadata(path).map_err(io)?.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file; write it to one"))
        }
        None => bounded_read::read(path, side::MOST_BYTES),
    };
    let bytes = bytes.map_err(io)?;
    String::from_utf8(bytes).map_err(|error| no_text(path, &error))
}

fn no_text(path: &Path, error: &FromUtf8Error) -> CassetteError {
    let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    CassetteError::of(path, Wrong::at(line, "this is no UTF-8 text"))
}

/// Reads a cassette's text; `path` is its name in messages.
///
/// # Errors
/// As [`load`].
pub fn parse(path: &Path, text: &str) -> Result<Cassette, CassetteError> {
    let read = yaml::parse(text).map_err(|error| vec![Wrong::from(error)]);
    let read = read.and_then(|root| whole(path, root, text.contains(large::KEY)));
    let mut cassette = read.map_err(|mut wrong| {
        if trace::is_trace(path) {
            wrong.truncate(1);
            wrong.iter_mut().for_each(|wrong| wrong.message = "this is a trace, not a cassette".to_owned());
        }
        CassetteError::of_all(path, wrong)
    })?;
    cassette.placeholders = placeholders(text).map(|(_, placeholder)| placeholder.kind).collect();
    Ok(cassette)
}

fn whole(path: &Path, mut root: YamlNode, names_texts: bool) -> Result<Cassette, Vec<Wrong>> {
    let mut room = blob::MOST_BYTES;
    let large = large_of(&mut root, path, names_texts, &mut room)?;
    let root = &root;
    let entries =
        root.entries().ok_or_else(|| Wrong::at(root.line, "a cassette is a map with `vcr: 1` and `records`"))?;
    let mut cassette = Cassette { path: path.to_owned(), ..Cassette::default() };
    let (mut records, mut version, mut wrong) = (None, None, Vec::new());
    for entry in entries {
        let value = &entry.value;
        if entry.key != "records" {
            cassette.lines.insert(entry.key.clone(), lines_of(entry));
        }
        for inner in value.entries().unwrap_or_default().iter().filter(|_| entry.key == "redact") {
            cassette.lines.insert(format!("redact.{}", inner.key), lines_of(inner));
        }
        let taken = match entry.key.as_str() {
            "vcr" => number(value, "vcr").map(|number| version = Some((value.line, number))),
            "key" => known_key(value),
            "records" => {
                records = Some(value);
                Ok(())
            }
            "tools" => map(value, "tools").map(|tools| cassette.tools = tools),
            key => cassette.header.take(key, value).and_then(|taken| {
                taken.ok_or_else(|| Wrong::at(entry.line, format!("`{key}` is no key of a cassette")))
            }),
        };
        wrong.extend(taken.err());
        if records.is_some() && entry.key != "records" && cassette.end_of_records.is_none() {
            cassette.end_of_records = Some(entry.line);
        }
    }
    match version {
        Some((_, FORMAT)) => {}
        Some((line, other)) => {
            return Err(Wrong::at(line, format!("this program reads cassettes of format {FORMAT}, not {other}")).into());
        }
        None if !wrong.is_empty() => return Err(wrong),
        None => return Err(Wrong::at(root.line, "`vcr: 1` is missing: this is no cassette").into()),
    }
    let items = match records {
        Some(node) if node.value().is_null() => &[],
        Some(node) => node.items().ok_or_else(|| Wrong::at(node.line, "`records` has to be a list"))?,
        None => &[],
    };
    cassette.indent = items.first().map_or(0, |item| item.column.saturating_sub(2));
    wrong.extend(fill(&mut cassette, items, &large, &mut room).err().into_iter().flatten());
    wrong.sort_by_key(|wrong| wrong.line);
    if wrong.is_empty() { Ok(cassette) } else { Err(wrong) }
}

/// Reads the texts that records only name, which take of `room`. The lines of the records that have large texts in themselves.
fn large_of(root: &mut YamlNode, path: &Path, names_texts: bool, room: &mut u64) -> Result<HashSet<usize>, Wrong> {
    let YamlKind::Map(entries) = &mut root.kind else { return Ok(HashSet::new()) };
    let records = entries.iter_mut().find(|entry| entry.key == "records").map(|entry| &mut entry.value.kind);
    let Some(YamlKind::List(records)) = records else { return Ok(HashSet::new()) };
    let large = records.iter().filter(|record| large::holds_any(record)).map(|record| record.line).collect();
    if names_texts {
        records.iter_mut().try_for_each(|record| large::restore(record, path, room))?;
    }
    Ok(large)
}

fn lines_of(entry: &YamlEntry) -> Vec<usize> {
    let items = entry.value.items().unwrap_or_default().iter().map(|item| item.line);
    std::iter::once(entry.line).chain(items).collect()
}

fn known_key(node: &YamlNode) -> Result<(), Wrong> {
    let version = number(node, "key")?;
    if version == u64::from(canonical::VERSION) {
        return Ok(());
    }
    Err(Wrong::at(node.line, format!("this program knows keys of version {}, not {version}", canonical::VERSION)))
}

/// Reads the records and fills in what they take from others; bodies in files of their own take of `room`.
fn fill(cassette: &mut Cassette, items: &[YamlNode], large: &HashSet<usize>, room: &mut u64) -> Result<(), Vec<Wrong>> {
    let mut filling = Filling { cassette, large, room, places: HashMap::new(), ids: RecordCallIds::default() };
    let (mut wrong, mut broken) = (Vec::new(), HashSet::new());
    for (at, item) in items.iter().enumerate() {
        let named = |key| item.get(key).and_then(|node| number(node, key).ok());
        let mistakes = match read::record(item).map(|written| filling.add(at, item, written)) {
            Ok(Ok(())) => continue,
            // It lacks what the broken one would give it.
            Ok(Err(_)) if named("like").is_some_and(|id| broken.contains(&id)) => Vec::new(),
            Ok(Err(mistake)) => vec![mistake],
            Err(mistakes) => mistakes,
        };
        wrong.extend(mistakes);
        broken.insert(named("id").unwrap_or(at as u64));
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong) }
}

/// Records of a cassette so far.
struct Filling<'a> {
    cassette: &'a mut Cassette,
    /// Lines of the records that have large texts in themselves.
    large: &'a HashSet<usize>,
    /// What is left for bodies in files of their own.
    room: &'a mut u64,
    /// Places of records by their ids.
    places: HashMap<u64, usize>,
    ids: RecordCallIds,
}

impl Filling<'_> {
    /// Adds a record, with what it takes from others.
    fn add(&mut self, at: usize, item: &YamlNode, written: WrittenRecord) -> Result<(), Wrong> {
        let Self { cassette, large, room, places, ids } = self;
        let WrittenRecord { mut record, id, unknown, blobs: [request, answer], json_added } = written;
        let mut read = |(line, name): (usize, String)| {
            blob::read(&cassette.path, &name, room).map_err(|message| Wrong::at(line, message))
        };
        record.raw = request.map(&mut read).transpose()?.or(record.raw);
        record.answer.content = answer.map(read).transpose()?.map_or(record.answer.content, AnswerContent::Bytes);
        record.id = id.unwrap_or(at as u64);
        record.holds_large = large.contains(&item.line);
        if places.contains_key(&record.id) {
            return Err(Wrong::at(item.line, format!("there are two records with the id {}", record.id)));
        }
        for (line, key) in unknown {
            let key = clipped(&key, 80);
            let warning = format!("{}:{line}: `{key}` is not known and has no effect", cassette.path.display());
            cassette.warnings.push(warning);
        }
        resolve_tools(&mut record.body, &cassette.tools).map_err(|message| Wrong::at(record.line, message))?;
        let mut base = None;
        if let Some(earlier) = record.like {
            let place = places.get(&earlier).and_then(|at| Some((*at, cassette.records.get(*at)?)));
            let (place, before) = place
                .ok_or_else(|| Wrong::at(item.line, format!("`like: {earlier}` names no record before this one")))?;
            expand(&mut record, before, ids.added(place)).map_err(|message| Wrong::at(item.line, message))?;
            if let Some(line) = json_added {
                json_added::expand(&mut record.answer, &before.answer).map_err(|message| Wrong::at(line, message))?;
            }
            base = Some((place, before));
        }
        ids.fill(&mut record, base);
        if let Some(side) = &mut record.side {
            (side.id, side.answer) = (record.id, record.answer.fingerprint());
        }
        places.insert(record.id, cassette.records.len());
        cassette.records.push(record);
        Ok(())
    }
}

/// A tool that is only named becomes the tool.
fn resolve_tools(body: &mut SharedBody, tools: &Map<String, Value>) -> Result<(), String> {
    let listed = body.get("tools").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if !listed.iter().any(|tool| tool.get("$ref").is_some()) {
        return Ok(());
    }
    let resolved = listed.iter().map(|tool| resolved(tool, tools)).collect::<Result<Value, String>>()?;
    body.set("tools", resolved);
    Ok(())
}

fn resolved(tool: &Value, tools: &Map<String, Value>) -> Result<Value, String> {
    let Some(name) = tool.get("$ref").and_then(Value::as_str) else { return Ok(tool.clone()) };
    let defined = name.strip_prefix("#/tools/").and_then(|name| tools.get(name));
    let Some(Value::Object(defined)) = defined else { return Err(format!("`{name}` is not among the tools")) };
    let name = defined.get("name").cloned().unwrap_or_else(|| name.trim_start_matches("#/tools/").into());
    let rest = defined.iter().filter(|(key, _)| key.as_str() != "name");
    let rest = rest.map(|(key, value)| (key.clone(), value.clone()));
    let function: Map<String, Value> = std::iter::once(("name".to_owned(), name)).chain(rest).collect();
    Ok(json!({"type": "function", "function": function}))
}

/// Fills in what a record takes from the one it continues. Messages of both are in memory once.
/// Results that name no call are those of the calls with `ids`.
fn expand(record: &mut CassetteRecord, base: &CassetteRecord, ids: &[String]) -> Result<(), String> {
    if record.method.is_empty() {
        (record.method, record.path) = (base.method.clone(), base.path.clone());
    }
    // It is an object, or the record is refused: nothing is lost that is shared.
    let Value::Object(mut changes) = std::mem::take(&mut record.body).value() else {
        return Err("a record with `like` needs a `body` with what is new in it".to_owned());
    };
    if !base.body.fields().is_object() {
        return Err("the record that `like` names has no JSON body".to_owned());
    }
    let mut body = base.body.clone();
    for (list, key) in [("messages", "messages+"), ("input", "input+")] {
        let Some(added) = changes.shift_remove(key) else { continue };
        let Value::Array(mut added) = added else { return Err(format!("`{key}` has to be a list")) };
        name_results(&mut added, ids);
        let earlier = conversation_of(&body);
        if earlier.as_ref().is_some_and(|(known, _)| *known != list) {
            return Err(format!("`{key}`: the record that `like` names has no `{list}`"));
        }
        let mut messages = earlier.map(|(_, messages)| messages).unwrap_or_default();
        let repeated = echo(&base.answer, record.echo).filter(|_| !stand_alone(&base.answer, &added));
        messages.extend(repeated.into_iter().flatten());
        if let Some(cached) = &record.cached {
            messages = marked(messages.iter().cloned().collect(), Some(cached)).into_iter().collect();
        }
        messages.extend(added);
        body = body.with_list(list, messages);
    }
    for (name, value) in changes {
        if value.is_null() {
            body.remove(&name);
        } else {
            body.set(&name, value);
        }
    }
    record.body = body;
    Ok(())
}

impl Cassette {
    /// Adds the records of another cassette behind its own, and what stands at its top. Returns the new numbers of its records.
    ///
    /// # Errors
    /// When both cannot stand at one top: the name of the entry.
    pub fn append(&mut self, other: Self) -> Result<BTreeMap<u64, u64>, &'static str> {
        let (own, added) = (&self.header, &other.header);
        if own.matching != added.matching {
            return Err("match");
        }
        if own.clock != added.clock {
            return Err("clock");
        }
        let recorded = both_recorded(own.recorded.clone(), &added.recorded);
        let numbers = self.numbers(&other);
        let is_off = own.redact.is_off || added.redact.is_off;
        self.header = other.header.over(std::mem::take(&mut self.header));
        (self.header.recorded, self.header.redact.is_off) = (recorded, is_off);
        // Those that are still used are defined again.
        self.tools.clear();
        let number = |id: u64| numbers.get(&id).copied().unwrap_or(id);
        for mut record in other.records {
            record.id = number(record.id);
            record.like = record.like.map(number);
            record.retry_of = record.retry_of.map(number);
            for (_, source) in &mut record.put_back {
                source.record = source.record.map(number);
            }
            record.side.iter_mut().for_each(|side| side.id = record.id);
            self.records.push(record);
        }
        Ok(numbers)
    }

    /// Numbers for the records of another cassette: those after its own, or the smallest that are free.
    fn numbers(&self, other: &Self) -> BTreeMap<u64, u64> {
        let taken: BTreeSet<u64> = self.records.iter().map(|record| record.id).collect();
        let first = taken.last().filter(|id| **id < HIGH_ID).map_or(0, |id| id + 1);
        let free = (first..).filter(|id| !taken.contains(id));
        other.records.iter().map(|record| record.id).zip(free).collect()
    }
}

/// What is known of both recordings: the first one's, with everything that lists of the other have beside it.
fn both_recorded(mut own: Map<String, Value>, other: &Map<String, Value>) -> Map<String, Value> {
    for (name, value) in other {
        match (own.get_mut(name), value) {
            (Some(Value::Array(listed)), Value::Array(more)) => {
                let new: Vec<Value> = more.iter().filter(|item| !listed.contains(item)).cloned().collect();
                listed.extend(new);
            }
            (Some(_), _) => {}
            (None, value) => drop(own.insert(name.clone(), value.clone())),
        }
    }
    own
}
