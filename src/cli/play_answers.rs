//! `play`: what its arguments about the contents of answers mean.

use super::args::{AnswerArgs, FingerprintMode};
use crate::play::{AnswerOptions, Fingerprint};

/// The options.
pub(super) fn options(args: AnswerArgs) -> AnswerOptions {
    AnswerOptions {
        request_metrics: args.enable_per_request_metrics,
        fingerprint: match args.fingerprint_mode {
            FingerprintMode::Full | FingerprintMode::Hash => Fingerprint::Hash,
            FingerprintMode::Custom => Fingerprint::Custom(args.fingerprint_value),
            FingerprintMode::None => Fingerprint::Custom(None),
        },
        model: args.model.or(args.model_tag),
    }
}
