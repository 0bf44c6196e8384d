//! Encoder of a response that is made token by token, in the form of the endpoint that was asked.
//!
//! Whatever the endpoint, the response is a chat's or a completion's; each form encodes its parts directly.
//!
//! See docs/decisions/0040-one-writer-for-each-form.md.

use super::{
    TokenCounts,
    from_chat::{ChatStep, FromChat, RawText, WholeChat},
};
use crate::{
    Api, UsageEvents,
    answer::{AnswerChoice, chat_body, completion_body},
    error::ApiError,
    stream::{AnswerHead, ChoiceChunk, Opening, StopReason},
    token_in_out::TokenEncoder,
    usage::Usage,
};
use net::wire::EventBuffer;

/// The form of a response.
#[derive(Debug)]
pub enum ResponseForm {
    /// That of the chat or the completion itself.
    Own,
    /// That of another family that is made from a chat.
    FromChat(Box<dyn FromChat>),
    /// Token ids, made from a completion.
    Tokens(TokenEncoder),
}

/// Encoder of one response.
#[derive(Debug)]
pub struct Encoder {
    head: AnswerHead,
    form: ResponseForm,
}

impl Encoder {
    /// Encodes a chat or a completion as such.
    #[must_use]
    pub fn new(head: AnswerHead) -> Self {
        Self { head, form: ResponseForm::Own }
    }

    /// Encodes in another form from now on; nothing was encoded yet.
    pub fn set_form(&mut self, form: ResponseForm) {
        self.form = form;
    }

    /// Opens a choice.
    pub fn open(&mut self, index: u32, opening: &Opening<'_>, out: &mut EventBuffer) {
        match &mut self.form {
            ResponseForm::Own => out.put(self.head.event_size(), |out| self.head.put_role(out, index, opening)),
            ResponseForm::FromChat(to) if index == 0 => {
                to.start(&self.head.id, &self.head.model, TokenCounts::from(&opening.usage), out);
                to.take_prompt(RawText { text: opening.prompt_text.unwrap_or_default(), ids: opening.prompt_ids });
            }
            ResponseForm::FromChat(_) | ResponseForm::Tokens(_) => {}
        }
    }

    /// Repeats the last message of a chat.
    pub fn echo(&mut self, index: u32, content: &str, usage: Usage, out: &mut EventBuffer) {
        match &mut self.form {
            ResponseForm::Own => out.put(self.head.event_size(), |out| self.head.put_echo(out, index, content, usage)),
            ResponseForm::FromChat(to) => to.add(&ChatStep { content: Some(content), ..ChatStep::default() }, out),
            ResponseForm::Tokens(_) => {}
        }
    }

    /// Adds tokens to a choice.
    pub fn add(&mut self, piece: &ChoiceChunk<'_>, out: &mut EventBuffer) {
        match &mut self.form {
            ResponseForm::Own => out.put(self.head.event_size(), |out| self.head.put_piece(out, piece)),
            ResponseForm::FromChat(to) => to.add(&step(piece), out),
            ResponseForm::Tokens(to) => to.add(&self.head, piece, out),
        }
    }

    /// Ends the stream.
    pub fn end(&mut self, usage: &Usage, out: &mut EventBuffer) {
        let counts = self.head.usage_events != UsageEvents::None;
        let size = self.head.event_size();
        match &mut self.form {
            ResponseForm::FromChat(to) => {
                if counts {
                    to.count(TokenCounts::from(usage), metrics(usage));
                }
                return to.end(out);
            }
            ResponseForm::Own if counts => out.put(size, |out| self.head.put_closing(out, usage)),
            ResponseForm::Tokens(to) if counts => to.put_closing(&self.head, usage, out),
            ResponseForm::Own | ResponseForm::Tokens(_) => {}
        }
        out.put(size, AnswerHead::put_done);
    }

    /// Ends a stream in which the engine failed, with the payload of the event that reports it; `None` for the engine's usual one. False
    /// where the connection breaks in the place of an end.
    pub fn fail(&mut self, payload: Option<&str>, out: &mut EventBuffer) -> bool {
        let usual = || ApiError::internal("Internal server error").event().into();
        let payload: &str = &payload.map_or_else(usual, std::borrow::Cow::Borrowed);
        if let ResponseForm::FromChat(to) = &mut self.form {
            return to.fail(payload, out);
        }
        let size = self.head.event_size();
        out.put(size, |out| AnswerHead::put_failure(out, payload));
        out.put(size, AnswerHead::put_done);
        true
    }

    /// Encodes the whole response as one body. `prompt_text` if the client requested it.
    #[must_use]
    pub fn body(&self, choices: &[AnswerChoice], usage: &Usage, prompt_text: Option<&str>) -> String {
        match &self.form {
            ResponseForm::Own if self.head.api == Api::Chat => chat_body(&self.head, choices, usage, prompt_text),
            ResponseForm::Own => completion_body(&self.head, choices, usage),
            ResponseForm::FromChat(to) => to.body(&self.whole_chat(choices.first(), usage, prompt_text)),
            ResponseForm::Tokens(to) => to.body(&self.head, choices, usage),
        }
    }
}

impl Encoder {
    fn whole_chat<'a>(
        &'a self,
        choice: Option<&'a AnswerChoice>,
        usage: &Usage,
        prompt_text: Option<&'a str>,
    ) -> WholeChat<'a> {
        let raw = |choice: &'a AnswerChoice| RawText { text: &choice.text, ids: choice.ids.as_deref() };
        let logprobs = choice.and_then(|choice| choice.logprobs.as_deref());
        WholeChat {
            id: &self.head.id,
            model: &self.head.model,
            choice: choice.map(AnswerChoice::view).unwrap_or_default(),
            counts: TokenCounts::from(usage),
            metrics: metrics(usage),
            prompt: RawText {
                text: prompt_text.unwrap_or_default(),
                ids: choice.and_then(|choice| choice.prompt_ids.as_deref()),
            },
            raw: choice.map(raw).unwrap_or_default(),
            logprobs: logprobs.map(Into::into),
        }
    }
}

fn metrics(usage: &Usage) -> Option<serde_json::Value> {
    usage.times.map(|times| times.fields(usage.completion).into())
}

fn step<'a>(piece: &'a ChoiceChunk<'_>) -> ChatStep<'a> {
    let (finish, stop) = match piece.finish {
        Some((finish, StopReason::Text(stop))) => (Some(finish), Some(stop.as_str())),
        Some((finish, StopReason::Unnamed | StopReason::Token(_))) => (Some(finish), None),
        None => (None, None),
    };
    let (raw, logprobs) = (RawText { text: piece.text, ids: piece.ids }, piece.logprobs);
    let Some(delta) = piece.delta else {
        return ChatStep { raw, logprobs, content: Some(piece.text), finish, stop, ..ChatStep::default() };
    };
    let (content, reasoning) = (delta.content.as_deref(), delta.reasoning.as_deref());
    ChatStep { raw, logprobs, content, reasoning, refusal: None, calls: &delta.calls, finish, stop }
}
