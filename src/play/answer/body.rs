//! An answer that is sent as one body.

use tokio::time::Instant;

use super::{Answer, Step, Turn};
use crate::{api::AnswerChoice, play::generate::logprobs::SequenceLogprobs};

impl Answer {
    /// Steps a choice for an answer that is one body, and returns how many bytes it added.
    pub(in super::super) fn collect(&mut self, turn: Turn, now: Instant, into: &mut [AnswerChoice]) -> usize {
        let Turn::Step(index) = turn else {
            self.closed = true;
            return 0;
        };
        let mut step = std::mem::take(&mut self.step);
        let is_there = self.step(index, now, &mut step);
        let size = if is_there { self.keep(index, &mut step, into) } else { 0 };
        self.step = step;
        size
    }

    fn keep(&mut self, index: usize, step: &mut Step, into: &mut [AnswerChoice]) -> usize {
        let echoed = self.echo(index);
        let with_ids = self.parts.token_ids;
        let (Some(sequence), Some(choice)) = (self.sequences.get_mut(index), into.get_mut(index)) else { return 0 };
        let mut size = step.text.len() + echoed.as_ref().map_or(0, |echoed| echoed.len()) + size_of_val(&*step.ids);
        if let Some(logprobs) = sequence.logprobs.as_mut() {
            size += logprobs.keep(&step.ids);
        }
        if let Some(parser) = sequence.parser.as_mut() {
            parser.keep(&step.ids);
        }
        choice.text.push_str(&echoed.unwrap_or_default());
        choice.text.push_str(&step.text);
        if with_ids && choice.prompt_ids.is_none() {
            size += size_of_val(&*sequence.prompt);
            choice.prompt_ids = Some(sequence.prompt.to_vec());
        }
        if with_ids && !sequence.hides_tokens() {
            choice.ids.get_or_insert_default().extend_from_slice(&step.ids);
        }
        if step.finish.is_some() {
            choice.message = sequence.parser.as_mut().and_then(|parser| parser.message(&choice.text, &mut step.finish));
        }
        if let Some((reason, stop_reason)) = step.finish.take() {
            choice.role.clone_from(&sequence.role);
            repeat(sequence.repeated.as_deref(), choice);
            choice.logprobs = sequence.logprobs.as_mut().map(SequenceLogprobs::body);
            choice.prompt_logprobs = sequence.prompt_logprobs.as_deref().map(str::to_owned);
            size += choice.prompt_logprobs.as_ref().map_or(0, String::len);
            choice.finish = reason.to_owned();
            let kept = self.run.as_ref().and_then(|run| run.kept(index));
            size += kept.as_ref().map_or(0, |params| params.len());
            choice.kv_transfer_params = kept.as_deref().map(str::to_owned);
            choice.stop_reason = stop_reason;
        }
        size
    }

    /// As many empty choices as the answer has.
    pub(in super::super) fn blank(&self) -> Vec<AnswerChoice> {
        vec![AnswerChoice::default(); self.sequences.len()]
    }

    /// The one body of an answer that is no stream.
    pub(in super::super) fn body(&self, choices: &[AnswerChoice]) -> String {
        self.encoder.body(choices, &self.usage(true), self.parts.prompt_text.as_deref())
    }
}

/// Puts what a chat repeats before its own text. Content is a text then, also where the model wrote nothing.
fn repeat(repeated: Option<&str>, choice: &mut AnswerChoice) {
    let Some(repeated) = repeated else { return };
    match choice.message.as_mut() {
        Some(message) => message.content = Some([repeated, message.content.as_deref().unwrap_or_default()].concat()),
        None => choice.text.insert_str(0, repeated),
    }
}
