//! Answers under constraints: a request is validated as in the engine, and made-up text conforms.
//!
//! Limits: recorded tokens are replayed as they are, whatever was asked. A request for made-up text that no text can be
//! made up for gets free text, with a note in the log; so does every such request without a tokenizer. Forced calls of tools
//! are drawn in Hermes' notation; under other parsers calls are not forced.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use tokio::time::Instant;

use crate::{ServerState, generate::choice::ChoiceFinish, request::blocking::check_cancelled};
use ::engine::{
    guided::{DrawLimits, FirstLibrary, GuideError, TextEnd, check},
    synthetic::SyntheticKey,
};
use api::{ApiError, Constraint, GenerationRequest, MaxTokens};
use base::cancellation::is_cancelled;
use text::parsers::ToolFormat;

/// The most tokens that conforming text gets where the request sets no number.
const MOST: u32 = 8192;

/// Longest time in which all texts of a request are made up, without the time between their turns.
const LONGEST: Duration = Duration::from_secs(10);

/// Constraints of the texts of an answer.
#[derive(Debug)]
pub(crate) struct GuidedRules {
    constraint: Constraint,
    /// Whether the engine fails to compile it.
    fails: bool,
    /// Microseconds that its texts took so far.
    taken: AtomicU64,
}

impl GuidedRules {
    fn time_left(&self) -> Duration {
        LONGEST.saturating_sub(Duration::from_micros(self.taken.load(Relaxed)))
    }

    fn took(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.taken.store(self.taken.load(Relaxed).saturating_add(micros), Relaxed);
    }
}

/// Reads the constraints of an answer's texts. Calls of tools that the request forces go before its own text, on a server
/// that parses them.
pub(crate) fn rules(state: &ServerState, request: &GenerationRequest) -> Result<Option<GuidedRules>, ApiError> {
    let formats = state.model.parsers.formats;
    let forced = request.forced_calls.clone().filter(|_| formats.tools == Some(ToolFormat::Hermes));
    let requested = match forced {
        Some(calls) => Some(calls),
        None => request.constraint()?,
    };
    let Some(constraint) = requested else { return Ok(None) };
    let _turn = state.work.drawing.turn();
    check_cancelled()?;
    match check(&constraint) {
        Ok(()) | Err(GuideError::Unsupported(_)) => {}
        Err(GuideError::Refused(message)) => return Err(ApiError::bad_request(message.trim_end())),
        Err(GuideError::Tag(_)) => return Err(request.invalid_tag()),
    }
    let FirstLibrary { takes, compiles } = FirstLibrary::of(&constraint);
    // The engine stays with the library of its first constraint.
    let fails = *state.work.has_first_library.get_or_init(|| takes) && !compiles;
    Ok(Some(GuidedRules { constraint, fails, taken: AtomicU64::new(0) }))
}

/// Tokens of a text that conforms, and how they finish: none where the engine fails. `None` where there can be none.
pub(crate) fn conforming(
    state: &ServerState,
    rules: &GuidedRules,
    key: SyntheticKey,
    least: u32,
    most: MaxTokens,
) -> Option<(Vec<u32>, ChoiceFinish)> {
    if rules.fails {
        return Some((Vec::new(), ChoiceFinish::of("error")));
    }
    if state.model.tokenizer.is_ids_only() {
        return None;
    }
    let most = match most {
        MaxTokens::Requested(most) => most,
        MaxTokens::Left(left) => left.min(MOST),
    };
    let size = |count: u32| usize::try_from(count).unwrap_or(usize::MAX);
    let _turn = state.work.drawing.turn();
    let begins = Instant::now();
    let room = DrawLimits { least: size(least), most: size(most), until: begins + rules.time_left() };
    let made =
        state.model.guide().as_ref().map_err(Clone::clone).and_then(|guide| guide.draw(&rules.constraint, key, room));
    rules.took(begins.elapsed());
    match made {
        Ok(made) => {
            let reason = if made.ended == TextEnd::Cut { "length" } else { "stop" };
            let hides_last_token = made.ended == TextEnd::WithToken;
            Some((made.ids, ChoiceFinish { hides_last_token, ..ChoiceFinish::of(reason) }))
        }
        // It is for no one.
        Err(_) if is_cancelled() => None,
        Err(error) => {
            tracing::warn!(%error, "free text instead of text that conforms");
            None
        }
    }
}
