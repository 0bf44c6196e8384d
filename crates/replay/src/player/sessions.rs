//! Sessions with cassettes of their own: a player inside the player, which plays and records for one session.
//!
//! See docs/decisions/0136-a-plugin-asks-the-server.md and docs/decisions/0146-only-an-ended-session-leaves-a-cassette.md.

use std::{
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use serde_json::{Map, Value};

use super::{
    CassetteOutput, CassettePlayer, CassettePlayerError, HeaderRulesError, Mode, ModeExceptions, OnMiss, PlayerConfig,
    SessionState,
};
use crate::{
    account::{Admin, SessionNameError, SessionRecording, session_name},
    matching::requests::{RequestMatch, UnknownMatch},
    mcp::OnNovel,
};
use base::one_line::clipped;
use recording::{
    cassette::{self, AnswersError, Cassette, CassetteError, Header, WriteMode},
    redaction::{RedactionRules, Redactor},
};

/// Reason for which a session cannot be opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    #[error(transparent)]
    Name(#[from] SessionNameError),
    #[error("`{0}` has to be a text")]
    Text(&'static str),
    #[error("`{}` is not known; a session has {}", .0, KEYS.join(", "))]
    Key(String),
    #[error(
        "`cassette` has to be a file beside the cassettes that are played: no absolute path, no .., no link out of there"
    )]
    Place,
    #[error(
        "{0} exists: name a file that does not, add to it with mode new-episodes, or start the server with \
         --admin-overwrite"
    )]
    Exists(String),
    #[error("`mode` has to be none, once, new-episodes, all, live or compare, not `{0}`")]
    Mode(String),
    #[error("`on_miss` has to be error, stub, upstream or record, not `{0}`")]
    OnMiss(String),
    #[error("`if_missing` has to be refuse or open, not `{0}`")]
    IfMissing(String),
    #[error("`if_unended`: {0}")]
    IfUnended(String),
    #[error("`record_with` has to be one line without a secret")]
    RecordWith,
    #[error("{file} does not exist; record it: {command}")]
    Missing { file: String, command: String },
    #[error(
        "`vllm-vcr fork` has one cassette: its sessions have none of their own, nor another mode, match or on_miss"
    )]
    Fork,
    #[error("a session records into a `cassette` of its own")]
    Shared,
    #[error("{0} goes upstream, but there is no upstream (--upstream URL)")]
    Upstream(String),
    #[error(transparent)]
    Match(#[from] UnknownMatch),
    #[error(transparent)]
    Top(#[from] HeaderRulesError),
    #[error(transparent)]
    Faults(#[from] AnswersError),
    #[error(transparent)]
    CassettePlayer(#[from] CassettePlayerError),
}

impl From<CassetteError> for SessionError {
    fn from(error: CassetteError) -> Self {
        Self::CassettePlayer(error.into())
    }
}

impl CassettePlayer {
    /// Opens a session: `name`, and where it is to differ `cassette`, `mode`, `match`, `on_miss`; `record_with` is the command that
    /// errors name. One of that name starts again. Reads files.
    pub(super) fn open_session(&self, requested: &Value) -> Result<String, SessionError> {
        let name = session_name(text(requested, "name")?.unwrap_or_default(), &self.config.secrets)?;
        let change = SessionChange::of(requested, &self.config.secrets)?;
        let open = |change: &SessionChange<'_>| {
            Ok::<_, SessionError>(Self::sharing(self.config_of(change)?, Arc::clone(&self.shared))?)
        };
        if change.is_any() && matches!(self.config.selection, ModeExceptions::Fork(_)) {
            return Err(SessionError::Fork);
        }
        // It may be this cassette that the one of that name records.
        let is_recording =
            self.sessions.lock().get(&name).is_some_and(|state| state.own.iter().any(|own| own.is_recording()));
        if is_recording {
            self.end_session(&name, None)?;
        }
        let own = change.is_any().then(|| open(&change)).transpose()?;
        let has_own_cassette = change.cassette.is_some();
        self.take_faults(&name, own.as_deref().filter(|_| has_own_cassette))?;
        self.hand_over_mcp(&name);
        let state = SessionState { own, has_own_cassette, ..SessionState::default() };
        let before = self.sessions.lock().insert(name.clone(), state);
        self.shared.journal.forget(Some(&name));
        before.map_or(Ok(()), |before| self.close_session(&name, before, None))?;
        Ok(name)
    }

    /// Ends a session; false where there is none of that name. What it recorded is kept or dropped as is said, or as was said when it
    /// was opened.
    pub(super) fn end_session(&self, name: &str, recorded: Option<SessionRecording>) -> Result<bool, SessionError> {
        self.hand_over_mcp(name);
        let state = self.sessions.lock().remove(name);
        self.take_faults(name, None)?;
        let was_there = state.is_some();
        state.map_or(Ok(()), |state| self.close_session(name, state, recorded))?;
        Ok(was_there)
    }

    fn close_session(
        &self,
        name: &str,
        state: SessionState,
        recorded: Option<SessionRecording>,
    ) -> Result<(), SessionError> {
        // What was compared last is part of the session's report.
        state.own.iter().for_each(|own| own.finish_comparing());
        self.keep_ended(name, &state);
        self.comparisons.lock().remove(name);
        if let Some(own) = state.own {
            self.keep_usage(&own);
            own.recorder.iter().for_each(|recorder| recorder.wait_for_open());
            own.wait_for_completions();
            self.keep_recorded(own.close(recorded)?);
        }
        Ok(())
    }

    /// Hands over the faults that stand in the cassette which a session has of its own, in the place of those of before.
    fn take_faults(&self, session: &str, own: Option<&Self>) -> Result<(), AnswersError> {
        let faults = own.map(Self::record_faults).unwrap_or_default();
        self.fault_reader.get().map_or(Ok(()), |reader| reader.take(Some(session), &faults)).map_err(AnswersError)
    }

    pub(super) fn own_players(&self) -> Vec<Arc<CassettePlayer>> {
        self.sessions.lock().values().filter_map(|state| state.own.clone()).collect()
    }

    /// Builds the configuration of a session's player: that of this one, with what the request for the session changes.
    fn config_of(&self, change: &SessionChange<'_>) -> Result<PlayerConfig, SessionError> {
        let requested = change.cassette;
        let file = requested.map(|file| self.beside(file)).transpose()?;
        let mut config =
            PlayerConfig { admin: Admin::Off, output: None, selection: ModeExceptions::None, ..self.config.clone() };
        // A link to nowhere is there too: what is recorded would replace it.
        let exists = file.as_ref().is_some_and(|file| file.symlink_metadata().is_ok());
        let (mode, write) = recording(change.mode(), exists)?;
        if let (true, Some(WriteMode::Replace), false) = (exists, write, config.sessions_overwrite) {
            return Err(SessionError::Exists(requested.unwrap_or_default().to_owned()));
        }
        let output = |write| {
            let path = file.clone().ok_or(SessionError::Shared)?;
            let header = if exists { self.header_over(&path) } else { self.header() };
            Ok::<_, SessionError>(CassetteOutput { path, header, mode: write, is_full: false })
        };
        (config.mode, config.output) = (mode, write.map(output).transpose()?);
        if config.mode != Mode::Replay && config.upstream.is_none() {
            return Err(SessionError::Upstream(format!("mode {}", config.mode.name())));
        }
        change.configure(&mut config)?;
        if matches!(config.mode, Mode::Replay | Mode::Compare) && file.is_some() && !exists {
            let folder = self.shown_folder().join("");
            let usual = || {
                let command = format!("vllm-vcr tap --upstream URL --cassette {} -- COMMAND", folder.display());
                format!("{command}, whose sessions of mode once record what is missing")
            };
            let command = config.record_with.clone().unwrap_or_else(usual);
            let missing = SessionError::Missing { file: requested.unwrap_or_default().to_owned(), command };
            if !change.opens_missing {
                return Err(missing);
            }
            (config.mode, config.on_miss, config.mcp.on_novel) = (Mode::Replay, OnMiss::Error, OnNovel::Error);
            config.missing_cassette = Some(missing.to_string());
        }
        config.cassettes = if config.missing_cassette.is_some() {
            Vec::new()
        } else {
            self.cassettes_of(file.as_deref(), config.mode)?
        };
        if matches!(config.mode, Mode::Replay | Mode::NewEpisodes) {
            let called = config.mcp_upstreams.iter().map(|server| server.name.clone());
            config.mcp_names = called.chain(config.mcp_started.iter().map(|server| server.name().to_owned())).collect();
        }
        let named = config.cassettes.iter().filter(|_| file.is_some()).map(super::ways);
        let named = named.collect::<Result<Vec<_>, _>>()?.concat();
        let named = Some(named).filter(|named| !named.is_empty());
        config.matching.chain = change.ways.clone().or(named).unwrap_or(config.matching.chain);
        if file.is_some() {
            config.apply_header_rules()?;
            config.session_folder = Some(self.shown_folder().to_owned());
        }
        Ok(config)
    }

    /// The cassettes of a session: its own, or all that are played here.
    fn cassettes_of(&self, file: Option<&Path>, mode: Mode) -> Result<Vec<Cassette>, SessionError> {
        match file {
            Some(_) if matches!(mode, Mode::Record | Mode::Live) => Ok(Vec::new()),
            Some(file) if mode == Mode::NewEpisodes && !file.exists() => Ok(Vec::new()),
            Some(file) => Ok(vec![cassette::load(file)?]),
            None => {
                let mut cassettes = self.config.cassettes.clone();
                for (at, record) in &self.records {
                    cassettes.get_mut(*at).into_iter().for_each(|cassette| cassette.records.push(record.clone()));
                }
                Ok(cassettes)
            }
        }
    }

    /// The top of a new cassette: that of the first one here.
    fn header(&self) -> Header {
        let written = self.config.output.as_ref().map(|output| output.header.clone());
        let played = self.config.cassettes.first().map(|cassette| cassette.header.clone());
        let mut header = written.or(played).unwrap_or_default();
        header.tag(&self.config.tags);
        header
    }

    /// The top of a cassette that is written in place of this one: what people wrote there stays.
    fn header_over(&self, path: &Path) -> Header {
        let new = self.header();
        match cassette::load(path) {
            Ok(Cassette { header: old, .. }) => new.over(old),
            // One that cannot be read has no top to keep.
            Err(_) => new,
        }
    }

    /// A file beside the cassettes here, in their folder or further down.
    fn beside(&self, file: &str) -> Result<PathBuf, SessionError> {
        let is_below =
            Path::new(file).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if !is_below || !cassette::is_cassette(Path::new(file)) {
            return Err(SessionError::Place);
        }
        let path = self.folder().join(file);
        if leads_out(&path, self.folder()) { Err(SessionError::Place) } else { Ok(path) }
    }

    /// The same folder as people type it.
    fn shown_folder(&self) -> &Path {
        if self.folder() == Path::new("") { Path::new(".") } else { self.folder() }
    }

    fn folder(&self) -> &Path {
        if let Some(folder) = self.config.sessions_only.as_ref().or(self.config.folder.as_ref()) {
            return folder;
        }
        let first = self.config.cassettes.first().map(|cassette| cassette.path.as_path());
        let first = first.or(self.config.output.as_ref().map(|output| output.path.as_path()));
        first.and_then(Path::parent).unwrap_or(Path::new(""))
    }
}

/// Returns whether links lead from a path below a folder to a place outside of it, as far as the path exists. A link to what does
/// not exist counts as one, for a file may appear there.
fn leads_out(path: &Path, folder: &Path) -> bool {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    // Nothing is there yet that could lead anywhere.
    if folder.symlink_metadata().is_err() {
        return false;
    }
    let Ok(root) = folder.canonicalize() else { return true };
    let parts = path.ancestors().take_while(|part| part.starts_with(folder) || folder == Path::new("."));
    let mut there = parts.filter(|part| !part.as_os_str().is_empty() && part.symlink_metadata().is_ok());
    there.any(|part| part.canonicalize().map_or(true, |real| !real.starts_with(&root)))
}

fn recording(mode: Option<&str>, exists: bool) -> Result<(Mode, Option<WriteMode>), SessionError> {
    Ok(match mode.map(|mode| mode.replace('_', "-")).as_deref() {
        None | Some("none") => (Mode::Replay, None),
        Some("live") => (Mode::Live, None),
        Some("compare") => (Mode::Compare, None),
        Some("once") if exists => (Mode::Replay, None),
        Some("once" | "all" | "record") => (Mode::Record, Some(WriteMode::Replace)),
        Some("new-episodes") => (Mode::NewEpisodes, Some(WriteMode::Append)),
        Some(other) => return Err(SessionError::Mode(other.to_owned())),
    })
}

/// Fields of a request that opens a session.
const KEYS: [&str; 8] = ["name", "cassette", "mode", "match", "on_miss", "record_with", "if_missing", "if_unended"];

/// What a session does otherwise than the player around it.
struct SessionChange<'a> {
    cassette: Option<&'a str>,
    mode: Option<&'a str>,
    ways: Option<Vec<RequestMatch>>,
    on_miss: Option<OnMiss>,
    record_with: Option<&'a str>,
    opens_missing: bool,
    if_unended: SessionRecording,
}

impl<'a> SessionChange<'a> {
    fn of(requested: &'a Value, secrets: &RedactionRules) -> Result<Self, SessionError> {
        let mut keys = requested.as_object().into_iter().flat_map(Map::keys);
        if let Some(unknown) = keys.find(|key| !KEYS.contains(&key.as_str())) {
            return Err(SessionError::Key(clipped(unknown, 40)));
        }
        let record_with = text(requested, "record_with")?;
        let is_shown = |line: &str| !line.contains(char::is_control) && Redactor::new(secrets).text(line).is_none();
        if record_with.is_some_and(|line| !is_shown(line)) {
            return Err(SessionError::RecordWith);
        }
        Ok(Self {
            cassette: text(requested, "cassette")?,
            mode: text(requested, "mode")?,
            ways: ways(requested)?,
            on_miss: text(requested, "on_miss")?.map(on_miss).transpose()?,
            record_with,
            opens_missing: text(requested, "if_missing")?.map_or(Ok(false), opens_missing)?,
            if_unended: text(requested, "if_unended")?
                .map_or(Ok(SessionRecording::Keep), str::parse)
                .map_err(SessionError::IfUnended)?,
        })
    }

    /// Whether the session needs a player of its own.
    fn is_any(&self) -> bool {
        self.cassette.is_some() || self.mode.is_some() || self.ways.is_some() || self.on_miss.is_some()
    }

    /// The mode: what is recorded on a miss is what new-episodes adds.
    fn mode(&self) -> Option<&'a str> {
        let plays = matches!(self.mode, None | Some("none" | "once"));
        if plays && self.on_miss == Some(OnMiss::Record) { Some(Mode::NewEpisodes.name()) } else { self.mode }
    }

    fn configure(&self, config: &mut PlayerConfig) -> Result<(), SessionError> {
        if let Some(on_miss) = self.on_miss {
            if on_miss == OnMiss::Upstream && config.upstream.is_none() {
                return Err(SessionError::Upstream("on_miss upstream".to_owned()));
            }
            config.on_miss = on_miss;
            config.mcp.on_novel = OnNovel::from(on_miss);
        }
        config.record_with = self.record_with.map(str::to_owned);
        (config.if_unended, config.opens_missing) = (self.if_unended, self.opens_missing);
        Ok(())
    }
}

fn on_miss(named: &str) -> Result<OnMiss, SessionError> {
    Ok(match named {
        "error" => OnMiss::Error,
        "stub" => OnMiss::Stub,
        "upstream" => OnMiss::Upstream,
        "record" => OnMiss::Record,
        other => return Err(SessionError::OnMiss(other.to_owned())),
    })
}

/// Whether a session may be opened whose cassette does not exist.
fn opens_missing(word: &str) -> Result<bool, SessionError> {
    match word {
        "refuse" => Ok(false),
        "open" => Ok(true),
        other => Err(SessionError::IfMissing(other.to_owned())),
    }
}

fn text<'a>(requested: &'a Value, name: &'static str) -> Result<Option<&'a str>, SessionError> {
    match requested.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(SessionError::Text(name)),
    }
}

/// Ways to find a record: a list of names, or one text with commas.
fn ways(requested: &Value) -> Result<Option<Vec<RequestMatch>>, SessionError> {
    let names: Vec<&str> = match requested.get("match") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(names)) => names.split(',').collect(),
        Some(Value::Array(names)) => names.iter().map(|name| name.as_str().unwrap_or_default()).collect(),
        Some(_) => return Err(SessionError::Text("match")),
    };
    Ok(Some(names.into_iter().map(str::parse).collect::<Result<_, _>>()?))
}
