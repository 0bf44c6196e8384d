//! From arguments about made-up answers to the server's configuration.

use super::{args::PlayArgs, failure::Failure};
use crate::play::{Synthetic, SyntheticOptions};

/// Refuses flags that would have no effect.
///
/// # Errors
/// The first one, as a usage error.
pub(super) fn refuse(args: &PlayArgs) -> Result<(), Failure> {
    let flags = [
        ("output-tokens", args.made_up.output_tokens.is_some()),
        ("stop-rate", args.made_up.stop_rate.is_some()),
        ("reasoning-share", args.made_up.reasoning_share.is_some()),
    ];
    match flags.iter().find(|(_, is_given)| *is_given && args.synthetic == Some(Synthetic::Echo)) {
        Some((flag, _)) => {
            Err(Failure::usage(format!("--{flag} is about random answers, and --synthetic echo makes none"))
                .hint("leave one of the two out"))
        }
        None => Ok(()),
    }
}

/// Reads the options of random responses.
pub(super) fn options(args: &PlayArgs) -> SyntheticOptions {
    let default = SyntheticOptions::default();
    SyntheticOptions {
        output_tokens: args.made_up.output_tokens.clone(),
        stop_rate: args.made_up.stop_rate,
        reasoning_share: args.made_up.reasoning_share.unwrap_or(default.reasoning_share),
    }
}
