//! Token ids for responses of engines that return none, from a local tokenizer: of the prompt, and of the output if that is
//! certain.
//!
//! An output's ids count only if they are as many as the engine counted, and if decoding them gives each piece of the text as
//! it was cut. Responses have reasoning and tool calls without their markup, so a response with either gets no ids.

use serde_json::Value;

use api::{
    GenerationInput,
    anthropic::{MessagesRequest, SystemMessages},
    responses::ResponsesRequest,
};
use recording::{
    cassette::Moment,
    trace::{ContentSource, Endpoint, FinishReason, Record, Response, ResponseContent},
};
use text::prompt::{Conversation, SkipSpecial, SpecialTokens, Tokenizer};

/// Tokenizes the prompt of a request of the Messages or Responses family, as the tokenizer's template renders it.
pub(super) fn prompt_ids(tokenizer: &Tokenizer, endpoint: Endpoint, body: &[u8]) -> Option<Vec<u32>> {
    let request = match endpoint {
        Endpoint::Messages => {
            let request = MessagesRequest::parse(body).ok().filter(|request| !request.has_inline_system())?;
            request.chat(SystemMessages::Inline).ok()?
        }
        Endpoint::Responses => {
            let request = ResponsesRequest::parse(body).ok().filter(|request| request.previous().is_none())?;
            request.chat(request.messages(Vec::new()).ok()?).ok()?
        }
        Endpoint::Chat | Endpoint::Completions | Endpoint::Embeddings | Endpoint::Other => return None,
    };
    let GenerationInput::Chat(chat) = &request.prompts else { return None };
    let conversation = Conversation {
        messages: &chat.messages,
        tools: chat.tools.as_deref(),
        documents: chat.documents.as_deref(),
        add_generation_prompt: chat.add_generation_prompt,
        continue_final_message: chat.continue_final_message,
        kwargs: &chat.template_kwargs,
        takes_media: false,
    };
    let text = tokenizer.chat_template()?.render(&conversation).ok()?;
    tokenizer.encode(&text, SpecialTokens::Skip).ok()
}

/// Adds the ids of a response to its record. False if they are not certain: then the record is unchanged.
pub(super) fn with_ids(record: &mut Record, response: &Response, tokenizer: &Tokenizer) -> bool {
    let Some(pieces) = plain_pieces(response) else { return false };
    let Some((ids, counts)) = ids_of(&pieces, tokenizer, record) else { return false };
    if record.stream == Some(true) {
        if counts.len() != record.chunks.len() {
            return false;
        }
        for (chunk, tokens) in record.chunks.iter_mut().zip(counts) {
            chunk.tokens = tokens;
        }
    }
    record.output_token_ids = Some(ids);
    record.content_source = Some(ContentSource::Tokenizer);
    true
}

/// Tokenizes pieces of text; returns the ids and the number of them in each piece.
fn ids_of(pieces: &[String], tokenizer: &Tokenizer, record: &Record) -> Option<(Vec<u32>, Vec<u32>)> {
    let mut ids = tokenizer.encode(&pieces.concat(), SpecialTokens::Skip).ok()?;
    let mut detokenizer = tokenizer.detokenizer(&[], SkipSpecial::Keep);
    let (mut counts, mut rest) = (Vec::with_capacity(pieces.len()), ids.iter());
    for piece in pieces {
        let (mut text, mut count) = (String::new(), 0);
        while text != *piece {
            detokenizer.push_onto(*rest.next()?, &mut text).ok()?;
            count += 1;
            if !piece.starts_with(&text) {
                return None;
            }
        }
        counts.push(count);
    }
    if rest.next().is_some() {
        return None;
    }
    let counted = usize::try_from(record.output_tokens).ok()?;
    let ends = record.finish_reason == Some(FinishReason::Stop) && record.stop_token.is_none();
    // The token that ends an output has no text.
    if let (Some(eos), true, true) = (tokenizer.eos_ids().first(), ends, ids.len() + 1 == counted) {
        ids.push(*eos);
        *counts.last_mut()? += 1;
    }
    (ids.len() == counted && counts.iter().all(|count| *count > 0)).then_some((ids, counts))
}

/// Returns the pieces of a response that is text and nothing else; `None` for any other.
fn plain_pieces(response: &Response) -> Option<Vec<String>> {
    let pieces = match &response.content {
        ResponseContent::Events(events) => {
            let data = events.iter().filter_map(|Moment(_, data, _)| data.as_deref());
            let parsed = data.filter_map(|data| serde_json::from_str::<Value>(data).ok());
            parsed.map(|event| event_text(&event)).collect::<Option<Vec<_>>>()?.into_iter().flatten().collect()
        }
        ResponseContent::Body(body) => vec![body_text(&serde_json::from_slice(body).ok()?)?],
    };
    Some(pieces).filter(|pieces: &Vec<String>| !pieces.is_empty() && pieces.iter().all(|piece| !piece.is_empty()))
}

/// Returns the text of an event: `None` if it has other content, `Some(None)` if it has none.
fn event_text(event: &Value) -> Option<Option<String>> {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
    if let Some(choices) = event.get("choices").and_then(Value::as_array) {
        let [choice] = choices.as_slice() else { return choices.is_empty().then_some(None) };
        let Some(delta) = choice.get("delta") else { return Some(text(choice.get("text"))) };
        return is_plain(delta).then(|| text(delta.get("content")));
    }
    match event.get("type").and_then(Value::as_str) {
        Some("content_block_delta") => {
            let delta = event.get("delta")?;
            (delta.get("type")?.as_str()? == "text_delta").then(|| text(delta.get("text")))
        }
        Some("content_block_start") => (event.get("content_block")?.get("type")?.as_str()? == "text").then_some(None),
        Some("response.output_text.delta") => Some(text(event.get("delta"))),
        Some(kind) => (!kind.ends_with(".delta")).then_some(None),
        None => None,
    }
}

fn body_text(body: &Value) -> Option<String> {
    let only = |value: Option<&Value>| match value?.as_array()?.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    };
    if let Some(choice) = only(body.get("choices")) {
        let Some(message) = choice.get("message") else { return choice.get("text")?.as_str().map(str::to_owned) };
        return message.get("content")?.as_str().filter(|_| is_plain(message)).map(str::to_owned);
    }
    let message = if body.get("output").is_some() { only(body.get("output"))? } else { body.clone() };
    only(message.get("content"))?.get("text")?.as_str().map(str::to_owned)
}

fn is_plain(message: &Value) -> bool {
    let is_empty = |value: &Value| value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    ["reasoning", "reasoning_content", "tool_calls", "function_call", "refusal"]
        .iter()
        .all(|name| message.get(*name).is_none_or(is_empty))
}
