//! From arguments to what is kept of a recording.

use super::{args::CassetteArgs, failure::Failure};
use crate::{recording::cassette::Keep, replay::player::RecordErrors};

/// Reads which times and token ids are kept.
pub(super) fn keep(args: &CassetteArgs) -> Keep {
    Keep { times: args.timing.unwrap_or_default(), tokens: args.tokens.unwrap_or_default() }
}

/// Refuses those flags for a run that records nothing.
///
/// # Errors
/// Flags about what a recording keeps, where nothing is recorded.
pub(super) fn refuse(args: &CassetteArgs) -> Result<(), Failure> {
    let typed = [
        ("--timing", args.timing.is_some()),
        ("--tokens", args.tokens.is_some()),
        ("--tag", !args.tag.is_empty()),
        ("--complete-within", args.complete_within.is_some()),
        ("--record-errors", args.record_errors == RecordErrors::All),
    ];
    let Some((flag, _)) = typed.iter().find(|(_, is_typed)| *is_typed) else { return Ok(()) };
    Err(Failure::usage(format!("{flag} chooses what a recording keeps, and nothing is recorded"))
        .hint("leave it out, or record into a cassette: --mode once, new-episodes or all"))
}
