//! `/v1/chat/completions/derender` and `/v1/completions/derender`: tokens that were generated elsewhere as the answer that
//! they come to, whole or chunk by chunk.
//!
//! Nothing is kept between the chunks of a stream: the client carries what came of them. A server with parsers reads all
//! of a choice's tokens again for each chunk, as the engine does.

use axum::extract::State;
use serde_json::Value;

use crate::{
    HandlerState, ServerState,
    generate::parse::ParsedBy,
    http::{ErrorResponse, JsonText, unix_seconds},
    request::{
        blocking::off_the_loop,
        extract::{JsonBody, ScaleOutEnabled},
        tokens::refused,
    },
};
use api::{
    AnswerChoice, AnswerMessage, Api, ApiError, GenerationRequest, MessageCall,
    derender::{
        self, Bounds, DerenderChunk, DerenderHead, DerenderRequest, DerenderWhole, ScoredToken, StreamState,
        TokenAnswer, TokenAnswerChoice, TokenLogprob, chat_choice, chat_chunk_choice, chat_derendered, chat_tokens,
        check_chunk, check_whole, completion_choice, completion_chunk_choice, completion_derendered, completion_tokens,
        delta,
    },
};
use text::{
    parsers::{Delta, StreamParser},
    prompt::{DecodeWindow, SkipSpecial},
};

/// The last tokens that the next one's text may depend on.
const CONTEXT: usize = 4;

/// The last tokens of a prompt that are looked at.
const TAIL: usize = 7;

/// `/derender` of chats and completions.
pub(in super::super) async fn answer(
    State(state): HandlerState,
    _: ScaleOutEnabled,
    JsonBody { bytes, .. }: JsonBody,
    api: Api,
) -> Result<JsonText, ErrorResponse> {
    Ok(off_the_loop(bytes.len(), move || {
        let request = DerenderRequest::parse(api, &bytes)?;
        state.check_model(request.model())?;
        let model = request.model().unwrap_or_else(|| state.model.first_name()).to_owned();
        let answer = match request {
            DerenderRequest::Whole(mut whole) => {
                Derenderer::new(&state, api, whole.request.take(), model).whole(*whole)
            }
            DerenderRequest::Chunk(mut chunk) => {
                Derenderer::new(&state, api, chunk.request.take(), model).chunk(*chunk)
            }
        };
        answer.map(|answer| JsonText(answer.to_string()))
    })
    .await?)
}

/// Makes text of the tokens of one request.
struct Derenderer<'a> {
    state: &'a ServerState,
    api: Api,
    model: String,
    request: Option<GenerationRequest>,
    /// Parser of a chat's text, where there is one.
    by: Option<ParsedBy>,
}

impl<'a> Derenderer<'a> {
    fn new(state: &'a ServerState, api: Api, request: Option<GenerationRequest>, model: String) -> Self {
        let chat = request.as_ref().filter(|_| api == Api::Chat);
        let by = chat.and_then(|request| ParsedBy::of(&state.model.parsers, request));
        Self { state, api, model, request, by }
    }

    fn bounds(&self) -> Bounds {
        Bounds { max_model_len: self.state.model.max_model_len, max_logprobs: self.state.config.max_logprobs }
    }

    /// Parsed text needs the request that asked for it.
    fn check_request(&self) -> Result<(), ApiError> {
        if self.api == Api::Chat && self.state.model.parsers.parses() && self.request.is_none() {
            return Err(ApiError::bad_request(
                "chat_request is required when a tool or reasoning parser is configured because plain detokenization \
                 would leak raw parser markup into content.",
            ));
        }
        Ok(())
    }

    /// A parser keeps the text of special tokens.
    fn special(&self) -> SkipSpecial {
        let is_skipped = self.request.as_ref().is_none_or(|request| request.skip_special_tokens);
        if is_skipped && self.by.is_none() { SkipSpecial::Skip } else { SkipSpecial::Keep }
    }

    /// Checks whether ids are sent back.
    fn sends_ids(&self) -> bool {
        let requested = self.api == Api::Chat && self.request.as_ref().is_some_and(|request| request.return_token_ids);
        requested && self.by.as_ref().is_none_or(ParsedBy::sends_reasoning)
    }

    fn head<'b>(&'b self, answer: &'b TokenAnswer) -> DerenderHead<'b> {
        let id = answer.id.as_deref().unwrap_or_default();
        DerenderHead { id, model: &self.model, created: unix_seconds() }
    }

    fn whole(&self, mut whole: DerenderWhole) -> Result<Value, ApiError> {
        for answer in &mut whole.answers {
            answer.id.get_or_insert_with(|| self.state.fresh_id());
        }
        check_whole(self.api, &whole, self.bounds())?;
        self.check_request()?;
        let (mut choices, mut output) = (Vec::new(), 0_i64);
        for (at, answer) in whole.answers.iter().enumerate() {
            let window = self.after(whole.prompt_of(at))?;
            for choice in &answer.choices {
                choices.push(self.choice(answer, choice, window.clone(), choices.len())?);
                output += count(choice.ids.as_deref().unwrap_or_default());
            }
        }
        let Some(first) = whole.answers.first() else { return Err(ApiError::internal("Internal server error")) };
        let counts = (whole.prompt_tokens.iter().fold(0, |sum: i64, count| sum.saturating_add(*count)), output);
        Ok(match self.api {
            Api::Chat => chat_derendered(&self.head(first), first, &choices, counts),
            Api::Completions => completion_derendered(&self.head(first), &whole.answers, &choices, counts),
        })
    }

    fn choice(
        &self,
        answer: &TokenAnswer,
        choice: &TokenAnswerChoice,
        mut window: DecodeWindow,
        at: usize,
    ) -> Result<Value, ApiError> {
        let Some(ids) = choice.ids.as_deref().filter(|ids| !ids.is_empty()) else {
            let place = match self.api {
                Api::Chat => String::new(),
                Api::Completions => format!(" in response {}", answer.id.as_deref().unwrap_or_default()),
            };
            let message = format!("choice {}{place} has empty or null token_ids", choice.index);
            return Err(ApiError::bad_request(message));
        };
        let logprobs = self.logprobs(choice, &[], 0)?;
        let text = self.text(ids, &mut window)?;
        Ok(match self.api {
            Api::Completions => completion_choice(at, choice, &text, &logprobs),
            Api::Chat => {
                let message = self.by.as_ref().map(|by| self.message(by, &text));
                let content = AnswerChoice { text, message, ..AnswerChoice::default() };
                chat_choice(choice, &content, &logprobs, Some(ids).filter(|_| self.sends_ids()))
            }
        })
    }

    /// The parts of a chat's text. Its calls have ids without a prefix here.
    fn message(&self, by: &ParsedBy, text: &str) -> AnswerMessage {
        let parts = by.parts(text);
        let calls = parts.calls.into_iter();
        AnswerMessage {
            content: if by.is_forced() { Some(parts.content.unwrap_or_default()) } else { parts.content },
            reasoning: parts.reasoning,
            calls: calls
                .map(|call| MessageCall { id: self.state.fresh_id(), name: call.name, arguments: call.arguments })
                .collect(),
        }
    }

    fn chunk(&self, mut chunk: DerenderChunk) -> Result<Value, ApiError> {
        self.check_request()?;
        if self.by.is_some() && chunk.prompt.is_none() {
            return Err(ApiError::bad_request(
                "prompt_token_ids is required when a tool or reasoning parser is configured. Without it parse_delta \
                 cannot tell whether the prompt left reasoning open (e.g. a chat template that pre-opens <think>) and \
                 would misclassify reasoning content as plain content.",
            ));
        }
        check_chunk(self.api, &chunk, self.bounds())?;
        chunk.chunk.id.get_or_insert_with(|| self.state.fresh_id());
        let converted = match &self.by {
            Some(by) => self.parsed_chunk(by, &chunk),
            None => self.plain_chunk(&chunk),
        };
        let (choice, state) = converted.map_err(|error| match self.api {
            Api::Chat => ApiError::bad_request("invalid stream_state: derender failed"),
            Api::Completions => error,
        })?;
        let (head, prompt) = (self.head(&chunk.chunk), chunk.prompt_tokens);
        Ok(derender::chunk(self.api, &head, &chunk.chunk, choice, prompt, &state))
    }

    fn plain_chunk(&self, chunk: &DerenderChunk) -> Result<(Option<Value>, StreamState), ApiError> {
        let mut state = match &chunk.state {
            Some(state) => state.clone(),
            None => carried(StreamState::default(), self.after(chunk.seed())?),
        };
        let Some(choice) = chunk.chunk.choices.first() else { return Ok((None, state)) };
        let ids = choice.ids.as_deref().unwrap_or_default();
        let mut window =
            DecodeWindow { tokens: std::mem::take(&mut state.tokens), prefix: state.prefix, read: state.read };
        let text = self.text(ids, &mut window)?;
        let logprobs = self.logprobs(choice, &state.context, state.text_offset)?;
        state = carried(state, window);
        state.context.extend_from_slice(ids);
        state.context.drain(..state.context.len().saturating_sub(CONTEXT));
        let choice = match self.api {
            Api::Completions => {
                let chars = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
                state.text_offset = state.text_offset.saturating_add(chars);
                completion_chunk_choice(choice, &text, &logprobs)
            }
            Api::Chat => {
                let content = Some(text).filter(|text| !text.is_empty());
                let delta = delta(&Delta { content, ..Delta::default() }, role(&mut state));
                let ids = choice.ids.as_deref().filter(|_| self.sends_ids());
                chat_chunk_choice(choice, &delta, &logprobs, (choice.finish.as_deref(), ids))
            }
        };
        Ok((Some(choice), state))
    }

    /// Reads all tokens again, as they came, and gives the delta of the last ones.
    fn parsed_chunk(&self, by: &ParsedBy, chunk: &DerenderChunk) -> Result<(Option<Value>, StreamState), ApiError> {
        let mut state = chunk.state.clone().unwrap_or_default();
        let mut window = self.after(chunk.prompt.as_deref().unwrap_or_default())?;
        let mut parser = by.stream(&tokens(chunk.prompt.as_deref().unwrap_or_default()), self.state.fresh_seed());
        let mut rest = state.output.as_slice();
        for length in &state.chunks {
            let (ids, later) = rest.split_at(usize::try_from(*length).unwrap_or(usize::MAX).min(rest.len()));
            rest = later;
            parser.push(&self.text(ids, &mut window)?, &tokens(ids), false);
        }
        let Some(choice) = chunk.chunk.choices.first() else { return Ok((None, state)) };
        let delta = self.parsed(by, &mut parser, choice, &mut window)?;
        let ids = choice.ids.as_deref().unwrap_or_default();
        if !ids.is_empty() {
            state.output.extend_from_slice(ids);
            state.chunks.push(count(ids));
        }
        Ok((Some(self.parsed_choice(by, choice, delta, &mut state)), state))
    }

    /// The delta of a chunk's tokens; empty where there are none and the choice goes on.
    fn parsed(
        &self,
        by: &ParsedBy,
        parser: &mut StreamParser,
        choice: &TokenAnswerChoice,
        window: &mut DecodeWindow,
    ) -> Result<Delta, ApiError> {
        let ids = choice.ids.as_deref().unwrap_or_default();
        if ids.is_empty() && choice.finish.is_none() {
            return Ok(Delta::default());
        }
        let text = self.text(ids, window)?;
        let delta = parser.push(&text, &tokens(ids), choice.finish.is_some());
        Ok(delta.and_then(|delta| by.visible(delta)).unwrap_or_default())
    }

    fn parsed_choice(
        &self,
        by: &ParsedBy,
        choice: &TokenAnswerChoice,
        mut added: Delta,
        state: &mut StreamState,
    ) -> Value {
        state.tools_streamed |= !added.calls.is_empty();
        for call in &mut added.calls {
            let Some(id) = &mut call.id else { continue };
            // The parser makes new ids each time it reads the tokens; a call keeps its first.
            match state.call_ids.get(call.index) {
                Some(known) => id.clone_from(known),
                None => state.call_ids.push(id.clone()),
            }
        }
        by.limited(&mut added);
        let calls = state.tools_streamed && !by.is_named();
        let finish = choice.finish.as_deref().map(|reason| if calls { "tool_calls" } else { reason });
        let ids = choice.ids.as_deref().filter(|_| self.sends_ids());
        chat_chunk_choice(choice, &delta(&added, role(state)), &Value::Null, (finish, ids))
    }

    /// The state before the first token after a prompt.
    /// Errors: ids that no vocabulary can have.
    fn after(&self, prompt: &[i64]) -> Result<DecodeWindow, ApiError> {
        let tail = prompt.get(prompt.len().saturating_sub(TAIL)..).unwrap_or_default();
        let tail = tail.iter().map(|id| token(*id)).collect::<Result<Vec<u32>, ApiError>>()?;
        Ok(self.state.model.tokenizer.window_after(&tail, self.special()))
    }

    fn text(&self, ids: &[i64], window: &mut DecodeWindow) -> Result<String, ApiError> {
        let special = self.special();
        let push = |id| window.push(&self.state.model.tokenizer, id, special).map_err(refused);
        tokens(ids).into_iter().map(push).collect()
    }

    /// The log probabilities of a choice's tokens after these, which begin so many characters from the start.
    fn logprobs(&self, choice: &TokenAnswerChoice, before: &[i64], start: i64) -> Result<Value, ApiError> {
        let Some(content) = &choice.logprobs else { return Ok(Value::Null) };
        let content = content.as_ref().map(|content| self.scored(content, before)).transpose()?;
        Ok(match self.api {
            Api::Chat => chat_tokens(content.as_deref()),
            Api::Completions => completion_tokens(content.as_deref(), start),
        })
    }

    fn scored(&self, content: &[ScoredToken], before: &[i64]) -> Result<Vec<TokenLogprob>, ApiError> {
        let mut context = tokens(before);
        let mut positions = Vec::with_capacity(content.len());
        for scored in content {
            let start = context.len().saturating_sub(CONTEXT);
            let one = |id: i64, logprob: f64| self.token_logprob(id, logprob, context.get(start..).unwrap_or_default());
            let taken = one(scored.id, scored.logprob)?;
            let others = scored.others.iter().map(|(id, logprob)| one(*id, *logprob)).collect::<Result<_, _>>()?;
            positions.push(TokenLogprob { others, ..taken });
            context.push(token(scored.id)?);
        }
        Ok(positions)
    }

    fn token_logprob(&self, id: i64, logprob: f64, before: &[u32]) -> Result<TokenLogprob, ApiError> {
        if !logprob.is_finite() {
            return Err(ApiError::bad_request("Out of range float values are not JSON compliant"));
        }
        let id = token(id)?;
        let tokenizer = &self.state.model.tokenizer;
        let text = tokenizer.token_str(id).map(|_| tokenizer.token_text(id, before));
        Ok(TokenLogprob { text, logprob, others: Vec::new() })
    }
}

/// The role, where it was not sent yet.
fn role(state: &mut StreamState) -> Option<&'static str> {
    let was_sent = std::mem::replace(&mut state.role_sent, true);
    (!was_sent).then_some("assistant")
}

/// The state with what is left of a text.
fn carried(state: StreamState, window: DecodeWindow) -> StreamState {
    let DecodeWindow { tokens, prefix, read } = window;
    StreamState { tokens, prefix, read, ..state }
}

/// An id that a vocabulary could have.
fn token(id: i64) -> Result<u32, ApiError> {
    let size = if id < 0 { "small" } else { "large" };
    u32::try_from(id).map_err(|_| ApiError::bad_request(format!("number too {size} to fit in target type")))
}

/// Ids of which those that no vocabulary can have leave no text.
fn tokens(ids: &[i64]) -> Vec<u32> {
    ids.iter().map(|id| u32::try_from(*id).unwrap_or(u32::MAX)).collect()
}

fn count(ids: &[i64]) -> i64 {
    i64::try_from(ids.len()).unwrap_or(i64::MAX)
}
