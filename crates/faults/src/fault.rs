//! A fault as a line of text: `KIND[:ARGUMENTS] [at PLACE] [where CONDITIONS]`.
//!
//! Words are separated by white space; `"…"` holds white space together, with `\"` and `\\` in it. Arguments are separated by commas, as
//! `name=value`, the first one also without its name, which may be a list of several.

use std::{fmt, str::FromStr, time::Duration};

use base::units::{duration_text, parse_duration};

use crate::{
    catalogue::{CatalogueRow, rows},
    kind::FaultKind,
    selection::{CONDITIONS, FaultSelection, ServedNames},
    signal::ServerFault,
    stage::FaultStage,
};

/// Place in a response from which on a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultPlace {
    /// After so many events.
    Event(u64),
    /// After so many tokens.
    Token(u64),
    /// After so many bytes of the body.
    Byte(u64),
    /// So long after the head.
    Time(Duration),
}

impl fmt::Display for FaultPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Event(count) => write!(f, "event {count}"),
            Self::Token(count) => write!(f, "token {count}"),
            Self::Byte(count) => write!(f, "byte {count}"),
            Self::Time(time) => write!(f, "time {}", duration_text(*time)),
        }
    }
}

/// A line that is no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FaultSyntaxError(pub String);

/// Fault: its kind, its place in the response, and the requests that get it.
#[derive(Debug, Clone)]
pub struct Fault {
    /// Its row of the catalogue.
    pub row: &'static CatalogueRow,
    /// What goes wrong.
    pub kind: FaultKind,
    /// Kind and arguments as they were written.
    written: String,
    /// Number of batches of KV events that it concerns, if given.
    pub(crate) count: Option<u64>,
    /// Where; `None` for the kind's own place.
    pub place: Option<FaultPlace>,
    /// For which requests.
    pub selection: FaultSelection,
}

impl Fault {
    /// The kind, its arguments and its place, without conditions.
    #[must_use]
    pub fn what(&self) -> String {
        let place = self.place.map(|place| format!(" at {place}")).unwrap_or_default();
        format!("{}{place}", self.written)
    }

    /// Returns true if nothing happens where no engine is simulated.
    #[must_use]
    pub fn needs_engine(&self) -> bool {
        matches!(self.kind, FaultKind::Server(ServerFault::Slower(_) | ServerFault::KvExhausted))
    }

    /// Returns why it never happens to an engine core, to which no request comes by HTTP.
    #[must_use]
    pub fn without_http(&self) -> Option<String> {
        let is_of_engine = matches!(self.row.stage, FaultStage::Server | FaultStage::Events);
        let when = self.row.stage.when();
        (!is_of_engine).then(|| format!("`{self}` has no effect with --engine-core: it happens {when}"))
    }

    /// Returns why it cannot happen on a server, where that is certain.
    #[must_use]
    pub fn unmatched(&self, served: &ServedNames) -> Option<String> {
        if let Some(why) = self.without_http().filter(|_| served.is_engine_core) {
            return Some(why);
        }
        if self.row.stage == FaultStage::Events && !served.publishes {
            return Some("no KV events are published without --enable-kv-cache-events".to_owned());
        }
        self.selection.unmatched(served)
    }

    /// The kind and its arguments, without a count.
    pub(crate) fn written_once(&self) -> String {
        if self.count.is_none() {
            return self.written.clone();
        }
        let (name, arguments) = self.written.split_once(':').unwrap_or((&self.written, ""));
        let is_first = self.row.arguments.first().is_some_and(|(name, _)| *name == "count");
        let is_count = |part: &&str| part.starts_with("count=") || (is_first && !part.contains('='));
        let rest: Vec<&str> = arguments.split(',').filter(|part| !part.is_empty() && !is_count(part)).collect();
        if rest.is_empty() { name.to_owned() } else { format!("{name}:{}", rest.join(",")) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.what(), self.selection)
    }
}

impl FromStr for Fault {
    type Err = FaultSyntaxError;

    fn from_str(line: &str) -> Result<Self, FaultSyntaxError> {
        let words = words(line)?;
        let mut words = words.iter().map(String::as_str).peekable();
        let written = words.next().ok_or_else(|| {
            FaultSyntaxError(
                "a fault is KIND[:ARGUMENTS] [at PLACE] [where CONDITIONS], such as `429 where rate=0.1`".into(),
            )
        })?;
        let of_status = of_status(written);
        let written = of_status.as_deref().unwrap_or(written);
        let (name, arguments) = written.split_once(':').unwrap_or((written, ""));
        let name = &*name.replace('_', "-");
        let row = row(name)?;
        let mut arguments = FaultArguments::read(row, name, arguments)?;
        let kind = (row.read)(&mut arguments)?;
        let has_count = row.stage == FaultStage::Events && row.arguments.iter().any(|(name, _)| *name == "count");
        let count = if has_count { arguments.number("count", u64::MAX)? } else { None };
        arguments.refuse_rest()?;
        let place = words.next_if_eq(&"at").map(|_| place(words.next(), words.next())).transpose()?;
        if place.is_some() && !row.has_place {
            return Err(FaultSyntaxError(format!("`{name}` happens {}: leave out `at …`", row.stage.when())));
        }
        if row.stage == FaultStage::Events && !matches!(place, None | Some(FaultPlace::Event(_))) {
            return Err(FaultSyntaxError(format!("`{name}` happens after so many batches: `at event N`")));
        }
        let selection = match words.next() {
            None => FaultSelection::default(),
            Some("where") => {
                let conditions: Vec<&str> = words.collect();
                check_conditions(row, &conditions)?;
                FaultSelection::read(conditions.into_iter())?
            }
            Some(other) => {
                return Err(FaultSyntaxError(format!(
                    "`{other}`: `at PLACE` or `where CONDITIONS` is expected after the kind"
                )));
            }
        };
        Ok(Self { row, kind, written: quoted(written), count, place, selection })
    }
}

/// A status that is no kind of its own, as the kind `error`.
fn of_status(written: &str) -> Option<String> {
    let (name, arguments) = written.split_once(':').unwrap_or((written, ""));
    let is_status = name.parse::<u16>().is_ok() && rows().all(|row| row.name != name);
    is_status.then(|| format!("error:{name},{arguments}").trim_end_matches(',').to_owned())
}

fn row(name: &str) -> Result<&'static CatalogueRow, FaultSyntaxError> {
    rows().find(|row| row.name == name || row.aliases.contains(&name)).ok_or_else(|| {
        let names: Vec<&str> = rows().map(|row| row.name).collect();
        FaultSyntaxError(format!("`{name}` is no kind of fault; there are {}", names.join(", ")))
    })
}

/// Refuses conditions that a kind cannot have.
fn check_conditions(row: &CatalogueRow, conditions: &[&str]) -> Result<(), FaultSyntaxError> {
    let names = conditions.iter().map(|word| word.split_once('=').map_or(*word, |(name, _)| name));
    // What is no condition at all is named later.
    let is_unknown = |name: &&str| !CONDITIONS.split([',', ' ']).any(|known| known == *name);
    let is_of_quota = |name: &str| row.name != "quota" || !["first", "nth", "record"].contains(&name);
    match names.filter(|name| !is_unknown(name)).find(|name| !row.stage.takes_condition(name) || !is_of_quota(name)) {
        Some(name) => Err(FaultSyntaxError(format!(
            "`{}` happens {}, where `{name}` is no condition: leave it out",
            row.name,
            row.stage.when()
        ))),
        None => Ok(()),
    }
}

fn place(kind: Option<&str>, at: Option<&str>) -> Result<FaultPlace, FaultSyntaxError> {
    let wrong =
        || FaultSyntaxError("`at` is followed by event N, token N, byte N or time T, such as `at event 3`".into());
    let (kind, at) = (kind.ok_or_else(wrong)?, at.ok_or_else(wrong)?);
    let number = || at.parse().map_err(|_| FaultSyntaxError(format!("`at {kind} {at}`: {at} is no number")));
    match kind {
        "event" => Ok(FaultPlace::Event(number()?)),
        "token" => Ok(FaultPlace::Token(number()?)),
        "byte" => Ok(FaultPlace::Byte(number()?)),
        "time" => parse_duration(at).map(FaultPlace::Time).map_err(|error| FaultSyntaxError(error.to_string())),
        _ => Err(wrong()),
    }
}

fn words(line: &str) -> Result<Vec<String>, FaultSyntaxError> {
    let (mut words, mut word, mut is_quoted) = (Vec::new(), None::<String>, false);
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '\\' if is_quoted => word.get_or_insert_default().extend(letters.next()),
            letter if letter.is_whitespace() && !is_quoted => words.extend(word.take()),
            letter => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    if is_quoted { Err(FaultSyntaxError(format!("a quote is not closed: {line}"))) } else { Ok(words) }
}

/// Writes a word so that it is read as it is.
pub(crate) fn quoted(word: &str) -> String {
    if !word.is_empty() && !word.contains(|letter: char| letter.is_whitespace() || letter == '"' || letter == '\\') {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Arguments of a kind, of which each is taken once.
#[derive(Debug)]
pub struct FaultArguments {
    pub(crate) row: &'static CatalogueRow,
    /// The name of the kind that was written.
    kind: String,
    left: Vec<(Option<String>, String)>,
}

impl FaultArguments {
    fn read(row: &'static CatalogueRow, kind: &str, text: &str) -> Result<Self, FaultSyntaxError> {
        let parts = text.split(',').filter(|part| !part.is_empty());
        let left: Vec<(Option<String>, String)> = parts
            .map(|part| match part.split_once('=') {
                Some((name, value)) => (Some(name.to_owned()), value.to_owned()),
                None => (None, part.to_owned()),
            })
            .collect();
        if left.iter().skip_while(|(name, _)| name.is_none()).any(|(name, _)| name.is_none()) {
            return Err(FaultSyntaxError(format!(
                "{kind}:{text}: only the first argument can be without its name (name=value)"
            )));
        }
        Ok(Self { row, kind: kind.to_owned(), left })
    }

    /// Takes the argument of this name; the first one of a kind may stand without its name.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        let is_first = self.row.arguments.first().is_some_and(|(first, _)| *first == name);
        let at = self.left.iter().position(|(given, _)| given.as_deref().map_or(is_first, |given| given == name))?;
        Some(self.left.remove(at).1)
    }

    fn parsed<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, FaultSyntaxError> {
        let Some(value) = self.text(name) else { return Ok(None) };
        read(&value).map(Some).map_err(|why| FaultSyntaxError(format!("{}:{name}={value}: {why}", self.kind)))
    }

    pub(crate) fn duration(&mut self, name: &str) -> Result<Option<Duration>, FaultSyntaxError> {
        self.parsed(name, |value| parse_duration(value).map_err(|error| error.to_string()))
    }

    /// A number within bounds.
    pub(crate) fn number(&mut self, name: &str, most: u64) -> Result<Option<u64>, FaultSyntaxError> {
        self.parsed(name, |value| {
            value
                .parse()
                .ok()
                .filter(|number| *number <= most)
                .ok_or_else(|| format!("a number up to {most} is needed"))
        })
    }

    /// The numbers that stand without a name, each within bounds.
    pub(crate) fn numbers(&mut self, name: &str, most: u64) -> Result<Vec<u64>, FaultSyntaxError> {
        let mut numbers = Vec::new();
        while self.left.first().is_some_and(|(given, _)| given.as_deref().is_none_or(|given| given == name)) {
            numbers.extend(self.number(name, most)?);
        }
        Ok(numbers)
    }

    pub(crate) fn signed(&mut self, name: &str) -> Result<Option<i64>, FaultSyntaxError> {
        self.parsed(name, |value| value.parse().map_err(|_| "a whole number is needed, such as -3".to_owned()))
    }

    pub(crate) fn word(
        &mut self,
        name: &str,
        words: &'static [&'static str],
    ) -> Result<Option<&'static str>, FaultSyntaxError> {
        self.parsed(name, |value| {
            words.iter().find(|word| **word == value).copied().ok_or_else(|| format!("use {}", words.join(", ")))
        })
    }

    fn refuse_rest(&self) -> Result<(), FaultSyntaxError> {
        let Some((name, value)) = self.left.first() else { return Ok(()) };
        let known: Vec<&str> = self.row.arguments.iter().map(|(name, _)| *name).collect();
        let given = name.as_ref().unwrap_or(value);
        let known =
            if known.is_empty() { "it takes none".to_owned() } else { format!("it takes {}", known.join(", ")) };
        Err(FaultSyntaxError(format!("`{given}` is no argument of `{}`: {known}", self.kind)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_written_as_it_is_read() {
        for line in [
            "429",
            "429:retry-after=2s",
            "reset at event 3",
            "stall:2s at token 12 where rate=0.25 model=m",
            "\"error:500,message=out of order\" where prompt=\"two words\"",
            "crlf where first=2 per=header:idempotency-key",
            "truncate at byte 100 where request=00000000000000ff nth=2",
            "metrics-nan:vllm:kv_cache_usage_perc where rate=0.5 nth=2 per=all",
            "kv-late:2s,count=3 at event 7 where replica=1 rank=0",
            "quota:requests=60,tokens=1000,per=1m where per=key",
            "slower:3 where replica=2 from=10s until=20s",
            "split-at:1,7,30,every=5ms where prompt=m",
        ] {
            assert_eq!(line.parse::<Fault>().unwrap().to_string(), line);
        }
    }

    #[test]
    fn any_status_is_an_error_of_it() {
        for (line, written) in [
            ("502", "error:502"),
            ("529:message=busy where rate=0.5", "error:529,message=busy where rate=0.5"),
            ("429", "429"),
        ] {
            assert_eq!(line.parse::<Fault>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, part) in [
            ("", "such as"),
            ("200", "from 400 to 599"),
            ("777", "a number up to 599"),
            ("explode", "`explode` is no kind of fault; there are"),
            ("429:speed=2", "`speed` is no argument of `429`: it takes retry-after"),
            ("429:2s,3s", "`3s` is no argument of `429`"),
            ("split-at", "an argument is missing"),
            ("split-at:every=1ms,7", "only the first argument"),
            ("stall:soon", "stall:for=soon"),
            ("reset at noon 3", "event N, token N"),
            ("reset at event x", "x is no number"),
            ("429 at event 3", "before the answer"),
            ("reset after 3", "`after`"),
            ("kv-drop where model=m", "in KV events, where `model` is no condition"),
            ("slower:3 where rate=0.5", "in the whole server, where `rate`"),
            ("metrics-503 where prompt=x", "on /metrics, where `prompt`"),
            ("429 where rank=1", "before the answer, where `rank`"),
            ("quota:requests=1 where nth=2", "where `nth` is no condition"),
            ("quota:requests=1 where record=a.yaml#0", "where `record` is no condition"),
            ("kv-drop at token 3", "after so many batches"),
            ("kv-drop where mood=bad", "`mood` is no condition"),
            ("slower:0", "a factor above 0 and up to 1000, as in `slower:3`, is needed"),
            ("error:99", "a status from 400 to 599 is needed"),
            ("399", "a status from 400 to 599 is needed"),
            ("error", "an argument is missing, as in `error:529"),
            ("quota:requests=0", "a limit of at least 1 is needed"),
            ("quota:requests=1,per=0s", "a time above 0 is needed"),
            ("drip:0", "at least one byte is needed"),
            ("kv-late:11m", "a time up to 10m is needed"),
            ("not-ready:0s", "a time above 0 is needed"),
            ("merge:0", "a number from 2 to 10000 is needed"),
            ("merge:1", "a number from 2 to 10000 is needed"),
            ("duplicate:0", "a number from 1 to 1000 is needed"),
            ("malformed:0", "at least one event is needed"),
            ("429 where from=10s until=5s", "`until` is not after `from`"),
            ("die where from=10s until=10s", "`until` is not after `from`"),
            ("slower", "an argument is missing, as in `slower:3"),
            ("quota:per=1s", "quota:requests=60"),
            ("not-ready:up=1s", "not-ready:2s,up=5s"),
            ("metrics-stale:120m", "metrics-stale:30s (up to 60m)"),
            ("reset where mood=bad", "`mood` is no condition"),
            ("reset where rate=2", "rate=2"),
            ("reset where prompt=(", "prompt=("),
            ("reset where \"", "not closed"),
        ] {
            let error = line.parse::<Fault>().unwrap_err().to_string();
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}
