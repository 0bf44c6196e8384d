//! Bounds of a request to derender, lest it cost too much: the engine's bounds, in its words and order.

use super::{
    read::{TokenAnswer, TokenAnswerChoice},
    request::{DerenderChunk, DerenderWhole},
};
use crate::{Api, ApiError};

const MOST_CHOICES: usize = 16_384;

/// The bounds of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Prompt and output tokens that a request may have together.
    pub max_model_len: u32,
    /// The most log probabilities of one token; negative for any number.
    pub max_logprobs: i32,
}

/// Checks whole answers.
///
/// # Errors
/// The first bound that is not kept, and a completion without answers.
pub fn check_whole(api: Api, whole: &DerenderWhole, bounds: Bounds) -> Result<(), ApiError> {
    if api == Api::Completions && whole.answers.is_empty() {
        return Err(ApiError::bad_request("generate_responses must not be empty"));
    }
    let count = whole.answers.len();
    if count > MOST_CHOICES {
        return Err(ApiError::bad_request(format!(
            "generate_responses count ({count}) exceeds server maximum ({MOST_CHOICES}). Set VLLM_MAX_N_SEQUENCES to \
             increase this limit."
        )));
    }
    whole.answers.iter().try_for_each(|answer| check_answer(answer, bounds))?;
    whole.prompts.iter().flatten().try_for_each(|prompt| check_prompt(prompt, bounds))
}

/// Checks one chunk.
///
/// # Errors
/// The first bound that is not kept.
pub fn check_chunk(api: Api, chunk: &DerenderChunk, bounds: Bounds) -> Result<(), ApiError> {
    let choices = &chunk.chunk.choices;
    let most = bounds.max_model_len;
    match api {
        Api::Chat => {
            if choices.len() > 1 {
                return Err(ApiError::bad_request(format!(
                    "derender_chat_stream expects at most one choice per chunk (got {}).",
                    choices.len()
                )));
            }
            let prompt = chunk.prompt.as_ref().map_or(0, Vec::len);
            let prior = chunk.state.as_ref().map_or(0, |state| state.output.len());
            let delta = choices.iter().filter_map(|choice| choice.ids.as_ref()).map(Vec::len).sum::<usize>();
            if is_over(prompt + prior + delta, most) {
                return Err(ApiError::bad_request(format!(
                    "prompt_token_ids length ({prompt}) plus output_token_ids length ({prior}) plus delta ({delta}) \
                     exceeds max_model_len ({most})."
                )));
            }
        }
        Api::Completions => {
            chunk.prompt.as_deref().map_or(Ok(()), |prompt| check_prompt(prompt, bounds))?;
            if choices.len() > 1 {
                let message = "derender_completion_stream expects at most one choice per chunk";
                return Err(ApiError::bad_request(message));
            }
            choices.iter().try_for_each(|choice| check_ids(choice, bounds))?;
        }
    }
    Ok(())
}

fn check_answer(answer: &TokenAnswer, bounds: Bounds) -> Result<(), ApiError> {
    let id = answer.id.as_deref().unwrap_or_default();
    let count = answer.choices.len();
    if count > MOST_CHOICES {
        return Err(ApiError::bad_request(format!(
            "choices count ({count}) in response '{id}' exceeds server maximum ({MOST_CHOICES})."
        )));
    }
    answer.choices.iter().try_for_each(|choice| check_choice(choice, bounds))?;
    check_length("prompt_logprobs", answer.prompt_positions(), &format!(" in response '{id}'"), bounds)
}

fn check_choice(choice: &TokenAnswerChoice, bounds: Bounds) -> Result<(), ApiError> {
    check_ids(choice, bounds)?;
    let Some(Some(content)) = &choice.logprobs else { return Ok(()) };
    let index = choice.index;
    check_length("logprobs.content", content.len(), &format!(" in choice {index}"), bounds)?;
    let Ok(most) = usize::try_from(bounds.max_logprobs) else { return Ok(()) };
    match content.iter().map(|token| token.others.len()).find(|count| *count > most) {
        Some(count) => Err(ApiError::bad_request(format!(
            "top_logprobs count ({count}) in choice {index} exceeds max_logprobs ({most})."
        ))),
        None => Ok(()),
    }
}

fn check_ids(choice: &TokenAnswerChoice, bounds: Bounds) -> Result<(), ApiError> {
    let count = choice.ids.as_ref().map_or(0, Vec::len);
    check_length("token_ids", count, &format!(" in choice {}", choice.index), bounds)
}

fn check_prompt(prompt: &[i64], bounds: Bounds) -> Result<(), ApiError> {
    check_length("prompt_token_ids", prompt.len(), "", bounds)
}

fn check_length(list: &str, count: usize, place: &str, bounds: Bounds) -> Result<(), ApiError> {
    let most = bounds.max_model_len;
    if is_over(count, most) {
        let message = format!("{list} length ({count}){place} exceeds max_model_len ({most}).");
        return Err(ApiError::bad_request(message));
    }
    Ok(())
}

fn is_over(count: usize, most: u32) -> bool {
    u32::try_from(count).map_or(true, |count| count > most)
}
