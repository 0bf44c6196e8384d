//! Ways of `--match`: what each is for a cassette and for a trace.
//!
//! See docs/decisions/0042-one-match-chain.md.

use clap::ValueEnum;

use super::args::{CassetteArgs, PlayArgs};
use crate::{
    recording::cassette::Cassette,
    replay::matching::{MatchBy, requests::RequestMatch},
    replay::player::{self, HeaderRulesError},
};

/// A way to find the record of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(in crate::cli) enum MatchArg {
    /// In a cassette the ways that its header names, else canonical. In a trace index for a request id of the form replay-<i>, else
    /// prefix.
    Auto,
    /// The same path and JSON but for white space. Cassettes only.
    Exact,
    /// The same request in canonical form. Cassettes only.
    #[value(aliases = ["ignore-volatile", "ignore_volatile"])]
    Canonical,
    /// The next record that was not served: of the same API and model in a cassette, of all in a trace.
    #[value(alias = "sequential")]
    Ordered,
    /// The number at the end of the request id, counted from 0: in the order of a cassette, in order of arrival of a trace.
    Index,
    /// The most in common from the start: messages of a cassette's conversation, blocks of a trace's prompt.
    #[value(alias = "conversation")]
    Prefix,
}

/// Ways that find records of a trace, by name.
pub(super) const OF_TRACE: &[&str] = &["auto", "ordered", "index", "prefix"];

impl MatchArg {
    /// Returns true if it finds records of a trace.
    pub(super) fn is_of_trace(self) -> bool {
        self.of_trace().is_some()
    }

    /// Its name on the command line.
    pub(super) fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns the way in a trace; `None` where a trace lacks what it compares.
    fn of_trace(self) -> Option<MatchBy> {
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
pub(super) fn of_trace(args: &PlayArgs) -> Vec<MatchBy> {
    let typed = args.replay_match.as_ref().map_or(args.cassettes.matching.as_slice(), std::slice::from_ref);
    let ways: Vec<MatchBy> = typed.iter().filter_map(|way| way.of_trace()).collect();
    if ways.is_empty() { vec![MatchBy::Auto] } else { ways }
}

/// Returns the ways by which records of cassettes are found: those of `--match`, with what the first header that names any has
/// in the place of auto.
///
/// # Errors
/// When a header names a way that does not exist.
pub(super) fn of_cassettes(args: &CassetteArgs, cassettes: &[Cassette]) -> Result<Vec<RequestMatch>, HeaderRulesError> {
    let named = cassettes.iter().map(player::ways).collect::<Result<Vec<_>, _>>()?;
    let usual = named.into_iter().find(|ways| !ways.is_empty()).unwrap_or_else(|| vec![RequestMatch::Canonical]);
    if args.matching.is_empty() {
        return Ok(usual);
    }
    Ok(args.matching.iter().flat_map(|way| way.of_cassette().map_or_else(|| usual.clone(), |way| vec![way])).collect())
}

/// Returns the names of typed ways as the header of a cassette has them.
pub(super) fn header_names(args: &CassetteArgs) -> Vec<String> {
    args.matching.iter().filter_map(|way| Some(way.of_cassette()?.name().to_owned())).collect()
}
