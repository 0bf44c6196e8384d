//! The text of a choice on its way from tokens to its client, and a choice that goes on where another server left off.

use std::sync::Arc;

use crate::{
    ServerState,
    generate::{
        output::{ChoiceStep, OutputText},
        parse::{ParsedBy, SequenceParser},
        stop::StopStrings,
    },
};
use api::GenerationRequest;
use text::prompt::{Detokenizer, SkipSpecial};

/// Detokenizer of a client's text.
#[derive(Debug)]
pub(crate) struct ShownText {
    pub(crate) detokenizer: Detokenizer,
    pub(crate) output: OutputText,
    pub(crate) parser: Option<SequenceParser>,
}

/// The part of an answer that was delivered before its request came here.
#[derive(Debug)]
pub(crate) struct BegunAnswer {
    /// Its tokens.
    pub(crate) ids: Vec<u32>,
    pub(crate) shown: ShownText,
    /// Bytes of the text to come that were delivered too.
    pub(crate) skipped: usize,
}

impl ShownText {
    /// The text of an answer to a prompt, before its first token.
    pub(crate) fn new(
        state: &ServerState,
        request: &GenerationRequest,
        parsed: Option<&ParsedBy>,
        stop: &Arc<StopStrings>,
        prompt: &[u32],
    ) -> Self {
        Self {
            detokenizer: detokenizer(state, request, parsed, prompt),
            output: OutputText::new(Arc::clone(stop), request.include_stop_str_in_output, request.min_tokens),
            parser: parsed.map(|parsed| parsed.start(prompt, state.fresh_seed())),
        }
    }

    /// Takes a token; the content that a client gets with it.
    fn push(&mut self, id: u32) -> String {
        // A token that the decoder cannot place has no text, as in the engine.
        let mut text = self.detokenizer.push(id).unwrap_or_default();
        if self.output.looks() {
            self.output.push(&[text]);
            text = self.output.release();
        }
        let Some(parser) = &mut self.parser else { return text };
        let mut step = ChoiceStep { text, ids: vec![id], finish: None };
        parser.event(&mut step).and_then(|delta| delta.content).unwrap_or_default()
    }

    /// An answer of which these tokens were delivered.
    pub(crate) fn after(mut self, ids: &[u32]) -> BegunAnswer {
        for id in ids {
            self.push(*id);
        }
        BegunAnswer { ids: ids.to_vec(), shown: self, skipped: 0 }
    }

    /// The answer of these tokens of which a text was delivered; `None` where they have another text, or no token is left. Where nothing
    /// is parsed, a text may end within a token's: that token comes again, without what was delivered of it.
    pub(crate) fn after_text(make: impl Fn() -> Self, ids: &[u32], text: &str) -> Option<BegunAnswer> {
        let (mut shown, mut rest) = (make(), text);
        for (at, id) in ids.iter().enumerate() {
            let taken = ids.get(..at).unwrap_or_default();
            if rest.is_empty() {
                return Some(BegunAnswer { ids: taken.to_vec(), shown, skipped: 0 });
            }
            let next = shown.push(*id);
            match rest.strip_prefix(next.as_str()) {
                Some(behind) => rest = behind,
                None if shown.parser.is_none() && next.starts_with(rest) => {
                    return Some(BegunAnswer { skipped: rest.len(), ..make().after(taken) });
                }
                None => return None,
            }
        }
        None
    }
}

fn detokenizer(
    state: &ServerState,
    request: &GenerationRequest,
    parsed: Option<&ParsedBy>,
    prompt: &[u32],
) -> Detokenizer {
    let is_shown = !request.skip_special_tokens || parsed.is_some_and(ParsedBy::shows_special_tokens);
    let special = if is_shown { SkipSpecial::Keep } else { SkipSpecial::Skip };
    let detokenizer = state.model.tokenizer.detokenizer(prompt, special);
    if request.spaces_between_special_tokens {
        detokenizer
    } else {
        detokenizer.without_spaces_between_special_tokens()
    }
}
