//! From a front end's request to an answer on the simulated engine.

use std::sync::Arc;

use bytes::Bytes;
use engine_core::{
    msgpack::MsgpackValue,
    request::{EngineCoreRequest, LoraName, SamplingParams, client_request},
};
use serde_json::{Map, Number, Value};
use tokio::time::Instant;

use super::running::{OutputEnds, RunningRequest};
use crate::{
    ServerState,
    request::{admitted::ValidatedRequest, model::RequestedModel, prompts::validated},
    selection::{
        plan::{AnswerPlan, RequestOrigin, planned},
        query::RequestRecords,
    },
};
use api::{ApiError, lora::LoadAdapter, token_in_out::TokenRequest};

/// Parameters that are the front end's own: it finds stop strings and makes several choices several requests, and gives words as ids. What is reasoning
/// only its parser knows.
const OF_FRONT_END: [&str; 5] = ["n", "stop", "bad_words", "stream_interval", "thinking_token_budget"];

/// Bytes of an id of a prompt, for the weight of its request.
const OF_ID: usize = 4;

/// Matches a request of this rank and submits it to the engine.
/// Errors: why there is no answer, in words for the log: the protocol has none.
pub(super) async fn begin(
    state: Arc<ServerState>,
    rank: u16,
    request: EngineCoreRequest,
    arrived: Instant,
) -> Result<RunningRequest, String> {
    if let Some(refused) = &request.refused {
        return Err(refused.to_string());
    }
    if request.is_pooling {
        return Err("pooling requests are not served: this engine generates text".to_owned());
    }
    let sampling = request.sampling_params.as_ref().ok_or("it has no sampling parameters")?;
    let ids: Arc<[u32]> = request.prompt_token_ids.as_deref().ok_or("its prompt has no token ids")?.into();
    if let Some(adapter) = &request.lora_request {
        load(&state, adapter).map_err(|error| error.message)?;
    }
    let (ends, weight) = (OutputEnds::of(sampling), ids.len().saturating_mul(OF_ID));
    let params = parameters(sampling);
    let of_scheduler = (request.priority, request.cache_salt.clone());
    let model = request.lora_request.as_ref().map(|adapter| adapter.lora_name.clone());
    let read = move |_: &ServerState, _: &[u8]| {
        let mut read = TokenRequest::of_engine(params, ids)?;
        (read.priority, read.cache_salt) = of_scheduler;
        read.model = model;
        Ok((read, ()))
    };
    let (validated, ()) = validated(&state, Bytes::from(vec![0; weight]), read).await.map_err(|error| error.message)?;
    let ValidatedRequest { request: generation, prompts, .. } = validated.accepted().map_err(|error| error.message)?;
    let (choice, name) = client_request(&request.request_id, request.external_req_id.as_deref());
    // vLLM's Rust front end, which sends parameters at their default too, has one prompt in a request, and no number in its name.
    let is_numbered = sampling.value.get("min_tokens").and_then(MsgpackValue::as_u64) != Some(0);
    let (id, prompt) = id_of_client(&name, is_numbered);
    let from = RequestOrigin {
        request_id: Some(id.to_owned()),
        session_id: request.session_id.clone(),
        rank: Some(rank.into()),
        session: None,
        recorded: RequestRecords::default(),
        at: arrived,
        choices_before: choice.and_then(|choice| usize::try_from(choice).ok()).unwrap_or(prompt),
        wants_values: true,
        refused: None,
    };
    let planned = planned(&state, Arc::clone(&generation), prompts, from).await;
    match planned.map_err(|error| error.message)? {
        AnswerPlan::Answer(planned) => {
            Ok(RunningRequest::new(&request, arrived, planned.answer, (ends, generation.logprobs.clone())))
        }
        AnswerPlan::Failure { error, .. } => Err(error.message),
        AnswerPlan::Refused(error, _) => Err(error.message),
    }
}

/// Makes an adapter known that a front end uses.
/// Errors: where the engine has no adapters, or its name is not taken.
pub(super) fn load(state: &ServerState, adapter: &LoraName) -> Result<(), ApiError> {
    if RequestedModel::of(state, Some(&adapter.lora_name)).adapter.is_some() {
        return Ok(());
    }
    let LoraName { lora_name, lora_path, .. } = adapter.clone();
    state.adapters.load(LoadAdapter { lora_name, lora_path, load_inplace: true }, None, &state.model).map(drop)
}

/// The id that a client sent with `X-Request-Id`, out of the front end's name of its request, and the prompt's number among those of it.
fn id_of_client(name: &str, is_numbered: bool) -> (&str, usize) {
    let (id, mark) = match name.strip_prefix("cmpl-") {
        Some(id) => (id, '-'),
        None => (name.strip_prefix("chatcmpl-").unwrap_or(name), '_'),
    };
    let numbered =
        id.rsplit_once(mark).filter(|_| is_numbered).and_then(|(id, prompt)| Some((id, prompt.parse().ok()?)));
    numbered.unwrap_or((id, 0))
}

/// The parameters as JSON, with the defaults that a front end does not write.
fn parameters(sampling: &SamplingParams) -> Map<String, Value> {
    let MsgpackValue::Map(fields) = &sampling.value else { return Map::new() };
    let named = fields.iter().filter_map(|(name, value)| Some((name.as_str()?, value)));
    let engines =
        named.filter(|(name, value)| !name.starts_with('_') && !OF_FRONT_END.contains(name) && !value.is_nil());
    let mut params: Map<String, Value> = engines.map(|(name, value)| (name.to_owned(), json(value))).collect();
    for (name, default) in SamplingParams::DEFAULTS {
        params.entry(*name).or_insert_with(|| json(default));
    }
    if params.contains_key("logprob_token_ids") {
        // Ids that are named are scored, whatever else is.
        params.entry("logprobs").or_insert_with(|| 0.into());
    }
    params
}

/// The same value in JSON; what that does not have is null.
fn json(value: &MsgpackValue) -> Value {
    match value {
        MsgpackValue::Nil | MsgpackValue::Bytes(_) | MsgpackValue::Ext(..) => Value::Null,
        MsgpackValue::Bool(value) => (*value).into(),
        MsgpackValue::Int(number) => (*number).into(),
        MsgpackValue::Uint(number) => (*number).into(),
        MsgpackValue::Float(number) => Number::from_f64(*number).map_or(Value::Null, Value::Number),
        MsgpackValue::Text(text) => text.as_str().into(),
        MsgpackValue::Array(items) => items.iter().map(json).collect(),
        MsgpackValue::Map(fields) => {
            let name = |name: &MsgpackValue| match name {
                MsgpackValue::Text(name) => Some(name.clone()),
                MsgpackValue::Uint(number) => Some(number.to_string()),
                _ => None,
            };
            fields.iter().filter_map(|(key, value)| Some((name(key)?, json(value)))).collect::<Map<_, _>>().into()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_id_of_a_client_is_found_in_the_name_of_its_request() {
        for (name, expected) in [
            ("chatcmpl-replay-3", ("replay-3", 0)),
            ("chatcmpl-replay-3_1", ("replay-3", 1)),
            ("cmpl-replay-3-2", ("replay-3", 2)),
            ("cmpl-x", ("x", 0)),
            ("resp_1f_0", ("resp_1f", 0)),
            ("resp_1f", ("resp_1f", 0)),
            ("", ("", 0)),
        ] {
            assert_eq!(id_of_client(name, true), expected, "{name}");
        }
        assert_eq!(id_of_client("cmpl-replay-3", false), ("replay-3", 0));
    }

    #[test]
    fn parameters_have_the_engines_defaults_and_nothing_of_the_front_end() {
        let value = MsgpackValue::map([
            ("temperature", 0.0.into()),
            ("stop", vec!["x"].into()),
            ("_eos_token_id", 7_u32.into()),
            ("logit_bias", MsgpackValue::Map(vec![(5_u32.into(), 1.5.into())])),
            ("seed", MsgpackValue::Nil),
        ]);
        let expected = json!({"temperature": 0.0, "logit_bias": {"5": 1.5}, "max_tokens": 16, "top_p": 1.0});
        assert_eq!(Value::Object(parameters(&SamplingParams { value })), expected);
    }
}
