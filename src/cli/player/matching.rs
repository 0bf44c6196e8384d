//! Ways of `--match`: what each is for a cassette and for a trace.
//!
//! See docs/decisions/0042-one-match-chain.md.

use std::{ffi::OsStr, sync::Arc};

use clap::{
    Arg, Command, Error, ValueEnum,
    builder::{EnumValueParser, PossibleValue, TypedValueParser},
    error::ErrorKind,
};

use crate::{
    cli::failure::Failure,
    recording::cassette::Cassette,
    replay::{
        matching::{MatchBy, requests::RequestMatch},
        player::{self, HeaderRulesError, MatchCommand, PATIENCE},
    },
};

/// A way of `--match`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::cli) enum Way {
    /// One with a name.
    Named(MatchArg),
    /// The command that chooses where no other way finds a record.
    Exec(String),
}

impl From<MatchArg> for Way {
    fn from(way: MatchArg) -> Self {
        Self::Named(way)
    }
}

#[derive(Debug, Clone)]
pub(in crate::cli) struct WayParser;

impl TypedValueParser for WayParser {
    type Value = Way;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Way, Error> {
        let text = value.to_string_lossy();
        let wrong = |message: &str| Error::raw(ErrorKind::ValueValidation, format!("--match {text}: {message}\n"));
        match (text.strip_prefix("exec:").map(str::trim), &*text) {
            (Some(""), _) | (None, "exec") => Err(wrong("name the command: exec:COMMAND")),
            (Some(line), _) => Ok(Way::Exec(line.to_owned())),
            (None, "semantic") => Err(wrong(
                "no embeddings are built in; exec:COMMAND runs a command that compares requests and candidates in its own way",
            )),
            (None, _) => EnumValueParser::<MatchArg>::new().parse_ref(command, arg, value).map(Way::Named),
        }
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let named = MatchArg::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let help = "A command that chooses a record or none; must be the last way. Cassettes only";
        Some(Box::new(named.chain([PossibleValue::new("exec:COMMAND").help(help)])))
    }
}

/// Returns the command of `--match exec:COMMAND`.
pub(in crate::cli) fn exec_command(ways: &[Way]) -> Result<Option<Arc<MatchCommand>>, Failure> {
    let Some(place) = ways.iter().position(|way| matches!(way, Way::Exec(_))) else { return Ok(None) };
    match ways.get(place..) {
        Some([Way::Exec(line)]) => Ok(Some(Arc::new(MatchCommand::new(line, PATIENCE)))),
        _ => Err(Failure::usage("exec:COMMAND must be the last way of --match")
            .hint("if the command has a comma, put it into a script")),
    }
}

base::named! {
    /// A way to find the record of a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
    pub(in crate::cli) enum MatchArg {
        /// Cassette: the ways that its header names, else canonical. Trace: index for a request id of the form replay-<i>, else prefix.
        Auto = "auto",
        /// The same path and JSON except for white space. Cassettes only.
        Exact = "exact",
        /// The same request in canonical form. Cassettes only.
        #[value(aliases = ["ignore-volatile", "ignore_volatile"])]
        Canonical = "canonical",
        /// The next record that was not served: of the same API and model in a cassette, of all in a trace.
        #[value(alias = "sequential")]
        Ordered = "ordered",
        /// The number at the end of the request id, counted from 0: in the order of a cassette, in order of arrival in a trace.
        Index = "index",
        /// The longest common prefix: messages of a cassette's conversation, blocks of a trace's prompt.
        #[value(alias = "conversation")]
        Prefix = "prefix",
    }
}

/// Ways that find records of a trace, by name.
pub(in crate::cli) const OF_TRACE: &[&str] = &["auto", "ordered", "index", "prefix"];

impl MatchArg {
    /// Returns the way in a trace; `None` where a trace lacks what it compares.
    pub(in crate::cli) fn of_trace(self) -> Option<MatchBy> {
        match self {
            Self::Auto => Some(MatchBy::Auto),
            Self::Exact | Self::Canonical => None,
            Self::Ordered => Some(MatchBy::Next),
            Self::Index => Some(MatchBy::Index),
            Self::Prefix => Some(MatchBy::Prefix),
        }
    }

    /// Returns the way in a cassette; `None` for the usual ones.
    fn of_cassette(self) -> Option<RequestMatch> {
        match self {
            Self::Auto => None,
            Self::Exact => Some(RequestMatch::Exact),
            Self::Canonical => Some(RequestMatch::Canonical),
            Self::Ordered => Some(RequestMatch::Ordered),
            Self::Index => Some(RequestMatch::Index),
            Self::Prefix => Some(RequestMatch::Prefix),
        }
    }
}

/// Returns the ways by which records of a trace are found: `--replay-match`, else those of `--match` that apply, else auto.
pub(in crate::cli) fn of_trace(ways: &[Way], replay_match: Option<MatchArg>) -> Vec<MatchBy> {
    let typed = named(ways);
    let typed = replay_match.as_ref().map_or(typed.as_slice(), std::slice::from_ref);
    let ways: Vec<MatchBy> = typed.iter().filter_map(|way| way.of_trace()).collect();
    if ways.is_empty() { vec![MatchBy::Auto] } else { ways }
}

/// Returns the ways by which records of cassettes are found: those of `--match`, with what the first header that names any has
/// in the place of auto.
pub(in crate::cli) fn of_cassettes(
    ways: &[Way],
    cassettes: &[Cassette],
) -> Result<Vec<RequestMatch>, HeaderRulesError> {
    let named = cassettes.iter().map(player::ways).collect::<Result<Vec<_>, _>>()?;
    let usual = named.into_iter().find(|ways| !ways.is_empty()).unwrap_or_else(|| vec![RequestMatch::Canonical]);
    if ways.is_empty() {
        return Ok(usual);
    }
    let of_way = |way: &Way| match way {
        Way::Named(way) => way.of_cassette().map_or_else(|| usual.clone(), |way| vec![way]),
        Way::Exec(_) => vec![RequestMatch::Exec],
    };
    Ok(ways.iter().flat_map(of_way).collect())
}

fn named(ways: &[Way]) -> Vec<MatchArg> {
    let named = |way: &Way| match way {
        Way::Named(way) => Some(*way),
        Way::Exec(_) => None,
    };
    ways.iter().filter_map(named).collect()
}

/// Returns the names of typed ways as the header of a cassette has them.
pub(in crate::cli) fn header_names(ways: &[Way]) -> Vec<String> {
    named(ways).iter().filter_map(|way| Some(way.of_cassette()?.name().to_owned())).collect()
}
