//! An answer as its tokens: what an engine hands out, before it becomes text.

use std::{future::poll_fn, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{AnswerStep, AnswerStream};
use crate::engine::Scheduled;
use api::{Position, StopReason};
use replay::delivery::Deliverable;

/// Tokens of the only choice of an answer, at the end of the step that gave them.
#[derive(Debug)]
pub(crate) struct TokenStep {
    pub(crate) at: Instant,
    pub(crate) ids: Vec<u32>,
    /// Their log probabilities, where they were requested.
    pub(crate) positions: Option<Vec<Position>>,
    /// The end of the choice, with its last tokens.
    pub(crate) finish: Option<(&'static str, StopReason)>,
    /// True where the last of them only ends the text.
    pub(crate) ends_by_last: bool,
}

impl AnswerStream {
    /// Waits for the engine, and gives all steps that have come; none once the answer is over.
    pub(crate) async fn next_tokens(&mut self) -> Vec<TokenStep> {
        if self.awaits() {
            poll_fn(|context| self.poll_step(context)).await;
        }
        let mut steps = Vec::new();
        while !self.awaits() {
            let Some((due, turn)) = self.next_due() else { break };
            steps.extend(self.take_tokens(due, turn));
        }
        self.settle();
        steps
    }

    fn take_tokens(&mut self, due: Duration, turn: AnswerStep) -> Option<TokenStep> {
        let now = Instant::now();
        let AnswerStep::Step(index) = turn else {
            self.closed = true;
            let finish = Some(("error", StopReason::Unnamed));
            return self.failed.then_some(TokenStep {
                at: now,
                ids: Vec::new(),
                positions: None,
                finish,
                ends_by_last: false,
            });
        };
        self.step(index, now, |answer, step| {
            let sequence = answer.sequences.get_mut(index)?;
            Some(TokenStep {
                at: if due.is_zero() { now } else { sequence.metrics.at(due) },
                positions: sequence.logprobs.as_mut().map(|logprobs| logprobs.take(&step.ids)),
                ids: std::mem::take(&mut step.ids),
                finish: step.finish.take(),
                ends_by_last: sequence.choice.ended_by_last_token(),
            })
        })
        .flatten()
    }

    /// What the engine knows of the choice since its first token; `None` where no engine runs it.
    pub(crate) fn scheduled(&self) -> Option<Scheduled> {
        self.run.as_ref().map(|run| run.scheduled(0))
    }

    /// Where the blocks of the choice are kept since its last token, as JSON.
    pub(crate) fn kept(&self) -> Option<Arc<str>> {
        self.run.as_ref().and_then(|run| run.kept(0))
    }

    /// Log probabilities of the prompt, where they were requested as values.
    pub(crate) fn prompt_positions(&self) -> Option<Arc<[Position]>> {
        self.sequences.first().and_then(|sequence| sequence.prompt_positions.clone())
    }
}
