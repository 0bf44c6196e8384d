//! Which requests a fault concerns.

use std::{
    fmt,
    hash::{BuildHasher, RandomState},
    sync::OnceLock,
    time::Duration,
};

use base::units::{duration_text, parse_duration};
use http::{HeaderName, header};
use regex::{Regex, RegexBuilder};

use crate::fault::{FaultSyntaxError, quoted};

/// Maximum bytes that a pattern takes.
const MOST_OF_PATTERN: usize = 1 << 20;

/// Key that the requests of a sequence have in common.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SequenceKey {
    /// They are the same request: path and body.
    #[default]
    Request,
    /// They belong to one session.
    Session,
    /// They have one API key.
    Key,
    /// They name one model.
    Model,
    /// They have one value of a header.
    Header(HeaderName),
    /// All of them are one sequence.
    All,
}

impl fmt::Display for SequenceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request => f.write_str("request"),
            Self::Session => f.write_str("session"),
            Self::Key => f.write_str("key"),
            Self::Model => f.write_str("model"),
            Self::Header(name) => write!(f, "header:{name}"),
            Self::All => f.write_str("all"),
        }
    }
}

/// Conditions of a fault; all of them hold for its requests.
#[derive(Debug, Clone, Default)]
pub struct FaultSelection {
    /// Share of the requests, from 0 to 1.
    pub rate: Option<f64>,
    /// Model that they name.
    pub model: Option<String>,
    /// Path that they are sent to; with `*` at its end, what it begins with.
    pub path: Option<String>,
    /// Headers that they have, with their values, or with any.
    pub headers: Vec<(HeaderName, Option<String>)>,
    /// Their session.
    pub session: Option<String>,
    /// Their API key.
    pub key: Option<String>,
    /// What their prompt or a message contains.
    pub prompt: Option<Regex>,
    /// So many answers are in the conversation already.
    pub turn: Option<u64>,
    /// The record that answers them, as `x-vcr-record` has it, or the file whose records do; folders before it do not count.
    pub record: Option<String>,
    /// Hash of path and body, as hits are listed.
    pub request: Option<u64>,
    /// Only the first so many of a sequence.
    pub first: Option<u64>,
    /// Only this one of a sequence, from 1.
    pub nth: Option<u64>,
    /// What is a sequence for `first` and `nth`.
    pub per: SequenceKey,
    /// From so long after the start on.
    pub from: Option<Duration>,
    /// Until so long after the start.
    pub until: Option<Duration>,
    /// Number of the replica that they are sent to.
    pub replica: Option<u32>,
    /// Data parallel rank of the engine whose KV events they are.
    pub rank: Option<u32>,
    /// It is what its record answers with, so that the record counts as served.
    pub is_of_record: bool,
}

pub(crate) const CONDITIONS: &str = "rate, model, path, header:NAME, session, key, prompt, turn, record, request, first, nth, per, replica, rank, from and until";

impl FaultSelection {
    /// Reads conditions; else names the first word that is none.
    pub(crate) fn read<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, FaultSyntaxError> {
        let mut selection = Self::default();
        let mut names = Vec::new();
        for word in words {
            let (name, value) = word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            selection.add(name, value).map_err(|why| FaultSyntaxError(format!("`{word}`: {why}")))?;
            if names.contains(&name) && !name.starts_with("header:") {
                return Err(FaultSyntaxError(format!("`{word}`: there is one `{name}` already; write another fault")));
            }
            names.push(name);
        }
        if selection.from.zip(selection.until).is_some_and(|(from, until)| from >= until) {
            return Err(FaultSyntaxError("`until` is not after `from`: it could never happen".to_owned()));
        }
        if names.is_empty() {
            return Err(FaultSyntaxError(format!("conditions are expected after `where`: {CONDITIONS}")));
        }
        Ok(selection)
    }

    /// Adds a condition.
    pub(crate) fn add(&mut self, name: &str, value: Option<&str>) -> Result<(), String> {
        if let Some(header) = name.strip_prefix("header:") {
            let header = header.parse().map_err(|_| format!("{header} is no name of a header"))?;
            self.headers.push((header, value.map(str::to_owned)));
            return Ok(());
        }
        let needed = || {
            value.ok_or_else(|| format!("`{name}` is no condition alone; conditions are {CONDITIONS}, as name=value"))
        };
        let number = || needed()?.parse::<u64>().map_err(|_| "a whole number is needed".to_owned());
        let positive = || number()?.checked_sub(1).map(|less| less + 1).ok_or_else(|| "it counts from 1".to_owned());
        let time = || parse_duration(needed()?).map_err(|error| error.to_string());
        match name {
            "rate" => {
                let rate = needed()?.parse::<f64>().ok().filter(|rate| (0.0..=1.0).contains(rate));
                self.rate = Some(rate.ok_or("a share from 0 to 1 is needed, such as 0.1")?);
            }
            "model" => self.model = Some(needed()?.to_owned()),
            "path" => self.path = Some(needed()?.to_owned()),
            "session" => self.session = Some(needed()?.to_owned()),
            "key" => self.key = Some(needed()?.to_owned()),
            "prompt" => {
                let pattern = RegexBuilder::new(needed()?).size_limit(MOST_OF_PATTERN).build();
                self.prompt = Some(pattern.map_err(|error| error.to_string())?);
            }
            "turn" => self.turn = Some(number()?),
            "record" => self.record = Some(needed()?.to_owned()),
            "request" => {
                let hash = u64::from_str_radix(needed()?, 16);
                self.request = Some(hash.map_err(|_| "the 16 digits of a listed fault are needed")?);
            }
            "first" => self.first = Some(positive()?),
            "nth" => self.nth = Some(positive()?),
            "per" => self.per = sequence_key(needed()?)?,
            "from" => self.from = Some(time()?),
            "until" => self.until = Some(time()?),
            "replica" => self.replica = Some(u32::try_from(number()?).map_err(|_| "there are not so many")?),
            "rank" => self.rank = Some(u32::try_from(number()?).map_err(|_| "there are not so many")?),
            _ => return Err(format!("`{name}` is no condition; conditions are {CONDITIONS}")),
        }
        Ok(())
    }
}

/// Models and endpoints of a server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServedNames {
    /// Names of its models; `None` where any may be asked.
    pub models: Option<Vec<String>>,
    /// How many replicas there are.
    pub replicas: u32,
    /// True where KV events are published.
    pub publishes: bool,
    /// True for an engine core, to which no request comes by HTTP.
    pub is_engine_core: bool,
}

impl FaultSelection {
    /// Returns why no request that the server serves fulfils the conditions, where that is certain.
    pub(crate) fn unmatched(&self, served: &ServedNames) -> Option<String> {
        if let Some(path) = self.path.as_ref().filter(|path| !path.starts_with('/') && *path != "*") {
            return Some(format!("no path is `{path}`: paths begin with `/`"));
        }
        if let Some(path) = self.path.as_ref().filter(|path| path.contains('?')) {
            return Some(format!("no path is `{path}`: the query is no part of it"));
        }
        let is_sent = |value: &String| value.trim() == value && !value.contains(char::is_control);
        if let Some((name, _)) = self.headers.iter().find(|(_, value)| value.as_ref().is_some_and(|it| !is_sent(it))) {
            return Some(format!(
                "no header `{name}` has this value: spaces around it and control characters are not sent"
            ));
        }
        if self.first.zip(self.nth).is_some_and(|(first, nth)| nth > first) {
            return Some("`nth` is not among the `first`".to_owned());
        }
        if let Some(replica) = self.replica.filter(|replica| *replica >= served.replicas) {
            return Some(format!("there is no replica {replica}: {} are counted from 0", served.replicas));
        }
        let models = served.models.as_ref()?;
        let model = self.model.as_ref().filter(|model| !models.contains(model))?;
        Some(format!("no model `{model}` is served, but {}", models.join(", ")))
    }
}

fn sequence_key(text: &str) -> Result<SequenceKey, String> {
    match text {
        "request" => Ok(SequenceKey::Request),
        "session" => Ok(SequenceKey::Session),
        "key" => Ok(SequenceKey::Key),
        "model" => Ok(SequenceKey::Model),
        "all" => Ok(SequenceKey::All),
        _ => {
            let name = text.strip_prefix("header:").and_then(|name| name.parse().ok());
            name.map(SequenceKey::Header)
                .ok_or_else(|| "use request, session, key, model, header:NAME or all".to_owned())
        }
    }
}

/// What stands for a secret where a fault is shown: the same for one secret as long as the process runs, and of no use elsewhere.
fn shown_secret(secret: &str) -> String {
    static STATE: OnceLock<RandomState> = OnceLock::new();
    format!("…{:08x}", STATE.get_or_init(RandomState::new).hash_one(secret) >> 32)
}

/// Returns true for headers whose values are not shown.
fn is_of_secrets(name: &HeaderName) -> bool {
    let names = [header::AUTHORIZATION, header::PROXY_AUTHORIZATION, header::COOKIE];
    names.contains(name) || name.as_str().contains("key") || name.as_str().contains("token")
}

impl FaultSelection {
    /// The values that are not shown.
    fn secrets(&self) -> impl Iterator<Item = &String> {
        let headers = self.headers.iter().filter(|(name, _)| is_of_secrets(name));
        self.key.iter().chain(headers.filter_map(|(_, value)| value.as_ref()))
    }

    /// Puts secrets of known faults in the place of what stands for them, so that a list that was shown can be given back.
    ///
    /// # Errors
    /// What stands for a secret that no known fault has.
    pub fn restore_secrets(&mut self, known: &[&Self]) -> Result<(), String> {
        let headers = self.headers.iter_mut().filter(|(name, _)| is_of_secrets(name));
        for value in self.key.iter_mut().chain(headers.filter_map(|(_, value)| value.as_mut())) {
            if value.starts_with('…') {
                let meant =
                    known.iter().flat_map(|known| known.secrets()).find(|secret| shown_secret(secret) == *value);
                let missing = || format!("{value} stands for a secret that no fault has now: write the secret itself");
                *value = meant.ok_or_else(missing)?.clone();
            }
        }
        Ok(())
    }

    /// Returns true if all requests of one path and body fulfil it, or none; of the line of a hit also where it names a replica.
    pub(crate) fn is_of_request_alone(&self) -> bool {
        let is_of_sender = self.session.is_some() || self.key.is_some() || !self.headers.is_empty();
        let is_of_time = self.from.is_some() || self.until.is_some();
        let is_of_replica = self.replica.is_some() && self.request.is_none();
        !(is_of_sender || is_of_time || is_of_replica || self.rate.is_some() || self.record.is_some())
    }

    /// Returns true for an answer of this record, or of several with it.
    pub(crate) fn is_of_record_named(&self, record: &str) -> bool {
        let Some(named) = self.record.as_deref().and_then(|named| named.rsplit('/').next()) else { return false };
        let is_it = |one: &str| one == named || one.rsplit_once('#').is_some_and(|(file, _)| file == named);
        is_it(record) || record.split(',').any(is_it)
    }

    /// Returns true at a time from the start.
    pub(crate) fn is_in_time(&self, elapsed: Duration) -> bool {
        self.from.is_none_or(|from| elapsed >= from) && self.until.is_none_or(|until| elapsed < until)
    }

    /// Returns true for a replica.
    pub(crate) fn is_of(&self, replica: u32) -> bool {
        self.replica.is_none_or(|named| named == replica)
    }
}

impl fmt::Display for FaultSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let single = [
            ("rate", self.rate.map(|rate| rate.to_string())),
            ("model", self.model.clone()),
            ("path", self.path.clone()),
            ("session", self.session.clone()),
            ("key", self.key.as_deref().map(shown_secret)),
            ("prompt", self.prompt.as_ref().map(Regex::to_string)),
            ("turn", self.turn.map(|turn| turn.to_string())),
            ("record", self.record.clone()),
            ("request", self.request.map(|hash| format!("{hash:016x}"))),
            ("first", self.first.map(|first| first.to_string())),
            ("nth", self.nth.map(|nth| nth.to_string())),
            ("per", (self.per != SequenceKey::Request).then(|| self.per.to_string())),
            ("replica", self.replica.map(|replica| replica.to_string())),
            ("rank", self.rank.map(|rank| rank.to_string())),
            ("from", self.from.map(duration_text)),
            ("until", self.until.map(duration_text)),
        ];
        let headers = self.headers.iter().map(|(name, value)| match value {
            Some(value) if is_of_secrets(name) => format!("header:{name}={}", shown_secret(value)),
            Some(value) => format!("header:{name}={value}"),
            None => format!("header:{name}"),
        });
        let single = single.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        for (place, condition) in single.chain(headers).enumerate() {
            let word = match condition.split_once('=') {
                Some((name, value)) => format!("{name}={}", quoted(value)),
                None => condition,
            };
            write!(f, "{} {word}", if place == 0 { " where" } else { "" })?;
        }
        Ok(())
    }
}
