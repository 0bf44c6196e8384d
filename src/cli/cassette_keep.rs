//! From arguments to what is kept of a recording.

use super::{
    args::{CassetteArgs, RecordErrorsArg, TimingArg, TokensArg},
    failure::Failure,
};
use crate::recording::cassette::{Keep, Times, TokenIds};

/// Reads which times and token ids are kept.
pub(super) fn keep(args: &CassetteArgs) -> Keep {
    Keep {
        times: match args.timing {
            Some(TimingArg::Inline) => Times::Inline,
            Some(TimingArg::None) => Times::None,
            Some(TimingArg::Sidecar) | None => Times::Sidecar,
        },
        tokens: if args.tokens == Some(TokensArg::None) { TokenIds::None } else { TokenIds::Sidecar },
    }
}

/// Refuses those flags for a run that records nothing.
///
/// # Errors
/// Flags about what a recording keeps, where nothing is recorded.
pub(super) fn refuse(args: &CassetteArgs) -> Result<(), Failure> {
    let typed = [
        ("--timing", args.timing.is_some()),
        ("--tokens", args.tokens.is_some()),
        ("--record-errors", args.record_errors == RecordErrorsArg::All),
    ];
    let Some((flag, _)) = typed.iter().find(|(_, is_typed)| *is_typed) else { return Ok(()) };
    Err(Failure::usage(format!("{flag} chooses what a recording keeps, and nothing is recorded"))
        .hint("leave it out, or record into a cassette: --mode once, new-episodes or all"))
}
