//! A chat or completion request as the token request that it comes to: what `/render` answers.
//!
//! The engine writes its sampling parameters without what equals its defaults, numbers with a fraction and lists excepted.

use serde_json::{Map, Value, json};

use crate::{
    Api, ApiError,
    body::ValidBody,
    conversation::{given_kwargs, template_kwargs},
    json, python,
    structured::RequestedStructure,
    values,
};

/// Temperatures below this are none.
const GREEDY: f64 = 1e-5;

/// The least temperature above that.
const COOLEST: f64 = 0.01;

/// Default of the engine for `max_tokens` where a token request has none, and so does not write.
const UNWRITTEN_TOKENS: u32 = 16;

/// A request whose tokens are asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderRequest {
    family: RenderFamily,
    body: Map<String, Value>,
    reasoning_kwargs: Option<Map<String, Value>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RenderFamily {
    Of(Api),
    Responses,
}

/// Sampling defaults of a model's configuration besides temperature and nucleus.
const MODEL_PARAMETERS: [&str; 3] = ["top_k", "min_p", "repetition_penalty"];

/// One prompt of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rendered<'a> {
    /// The request's whole id.
    pub id: &'a str,
    /// The prompt.
    pub ids: &'a [u32],
    /// The most output tokens that it may have.
    pub max_tokens: u32,
    /// The temperature and the nucleus of requests that name none.
    pub defaults: (f64, f64),
}

impl RenderRequest {
    /// Reads a body, which has to fit the schema of its family as well.
    ///
    /// # Errors
    /// Not an object, or a beam search.
    pub fn parse(api: Api, body: &[u8]) -> Result<Self, ApiError> {
        let body = json::object(body)?;
        if python::truthy(body.get("use_beam_search")) {
            return Err(ApiError::bad_request("Beam search is not supported by the render endpoint"));
        }
        Ok(Self { family: RenderFamily::Of(api), body, reasoning_kwargs: None })
    }

    /// A chat request that another family's comes to.
    pub(crate) fn of_chat(body: Map<String, Value>) -> Self {
        Self { family: RenderFamily::Of(Api::Chat), body, reasoning_kwargs: None }
    }

    /// The chat request that a Responses request comes to.
    pub(crate) fn of_responses(body: Map<String, Value>) -> Self {
        Self { family: RenderFamily::Responses, ..Self::of_chat(body) }
    }

    /// With the sampling defaults of the model's configuration, where the request sets nothing.
    #[must_use]
    pub fn with_defaults(mut self, model: &Map<String, Value>) -> Self {
        for name in MODEL_PARAMETERS {
            if let Some(value) = model.get(name).filter(|_| self.given(name).is_none()) {
                self.body.insert(name.to_owned(), value.clone());
            }
        }
        self
    }

    /// With the text of special tokens, which a parser needs.
    #[must_use]
    pub fn showing_special_tokens(mut self) -> Self {
        self.body.insert("skip_special_tokens".to_owned(), false.into());
        self
    }

    /// With the input of a reasoning parser: the variables of the chat template, behind those of the server.
    #[must_use]
    pub fn with_reasoning(mut self, server: &Map<String, Value>) -> Self {
        let mut kwargs = Map::new();
        kwargs.insert("cohere_format".to_owned(), "cmd4".into());
        kwargs.extend(server.clone());
        kwargs.extend(given_kwargs(&self.body));
        kwargs.insert("add_generation_prompt".to_owned(), self.is_set("add_generation_prompt", true).into());
        kwargs.insert("continue_final_message".to_owned(), self.is_set("continue_final_message", false).into());
        put(&mut kwargs, "documents", self.given("documents").cloned());
        put(&mut kwargs, "reasoning_effort", self.given("reasoning_effort").cloned());
        kwargs.extend(template_kwargs(&self.body));
        self.reasoning_kwargs = Some(kwargs);
        self
    }

    /// The token request of one prompt.
    #[must_use]
    pub fn token_request(&self, rendered: &Rendered<'_>) -> Value {
        let stream = self.is_set("stream", false);
        let is_rendered = |_: &&Value| stream && self.family != RenderFamily::Responses;
        let kwargs = self.reasoning_kwargs.as_ref().map(|kwargs| json!({"chat_template_kwargs": kwargs}));
        let transfer = |name: &str| self.given(name).filter(|_| self.family == RenderFamily::Responses);
        let options = self.given("stream_options").filter(is_rendered).map(|options| {
            let flag = |name: &str, absent: bool| options.get(name).map_or(absent, values::is_set);
            json!({
                "include_usage": flag("include_usage", true),
                "continuous_usage_stats": flag("continuous_usage_stats", false),
            })
        });
        json!({
            "request_id": rendered.id, "token_ids": rendered.ids, "token_offsets": null, "features": null,
            "content_parts": null, "sampling_params": self.sampling_params(rendered), "model": self.given("model"),
            "reasoning_ended": null, "reasoning_parser_kwargs": kwargs, "return_token_ids": null,
            "output_mode": "tokens", "stream": stream, "stream_options": options,
            "cache_salt": self.given("cache_salt"), "priority": self.int("priority").unwrap_or(0),
            "kv_transfer_params": transfer("kv_transfer_params"), "ec_transfer_params": transfer("ec_transfer_params"),
        })
    }

    fn sampling_params(&self, rendered: &Rendered<'_>) -> Map<String, Value> {
        let mut out = Map::new();
        self.put_sampling(&mut out, rendered.defaults);
        self.put_ends(&mut out, rendered.max_tokens);
        let logprobs = self.logprobs();
        let prompt_logprobs = self
            .int("prompt_logprobs")
            .or(logprobs.filter(|_| self.family == RenderFamily::Of(Api::Completions) && self.is_set("echo", false)));
        put(&mut out, "logprobs", logprobs);
        put(&mut out, "prompt_logprobs", prompt_logprobs);
        put(&mut out, "logprob_token_ids", self.ids("logprob_token_ids"));
        self.put_shape(&mut out);
        put(&mut out, "bad_words", Some(self.list("bad_words")));
        put(&mut out, "skip_reading_prefix_cache", Some(prompt_logprobs.is_some()));
        put(&mut out, "thinking_token_budget", self.int("thinking_token_budget").filter(|budget| *budget != -1));
        put(&mut out, "repetition_detection", self.given("repetition_detection").map(repetition));
        let routed_from = self.int("routed_experts_prompt_start").filter(|start| *start != 0);
        put(&mut out, "routed_experts_prompt_start", routed_from);
        out
    }

    fn put_sampling(&self, out: &mut Map<String, Value>, (temperature, top_p): (f64, f64)) {
        let temperature = self.float("temperature", temperature);
        put(out, "n", self.int("n").filter(|n| *n != 1));
        put(out, "presence_penalty", Some(self.float("presence_penalty", 0.0)));
        put(out, "frequency_penalty", Some(self.float("frequency_penalty", 0.0)));
        put(out, "repetition_penalty", Some(self.float("repetition_penalty", 1.0)));
        let is_greedy = temperature < GREEDY;
        put(out, "temperature", Some(if is_greedy { temperature } else { temperature.max(COOLEST) }));
        put(out, "watermarking", self.given("watermarking").map(values::is_set));
        if !is_greedy {
            put(out, "top_p", Some(self.float("top_p", top_p)));
            put(out, "top_k", self.int("top_k").filter(|k| *k != 0));
            put(out, "min_p", Some(self.float("min_p", 0.0)));
        }
        put(out, "seed", self.int("seed").filter(|seed| *seed != -1));
    }

    fn put_ends(&self, out: &mut Map<String, Value>, max_tokens: u32) {
        put(out, "stop", Some(self.stop()));
        put(out, "stop_token_ids", Some(self.ids("stop_token_ids").unwrap_or_default()));
        put(out, "ignore_eos", self.flag("ignore_eos", false));
        put(out, "max_tokens", Some(max_tokens).filter(|most| *most != UNWRITTEN_TOKENS));
        put(out, "min_tokens", self.int("min_tokens").filter(|least| *least != 0));
    }

    /// The form of the output, and its constraints.
    fn put_shape(&self, out: &mut Map<String, Value>) {
        put(out, "skip_special_tokens", self.flag("skip_special_tokens", true));
        put(out, "spaces_between_special_tokens", self.flag("spaces_between_special_tokens", true));
        put(out, "include_stop_str_in_output", self.flag("include_stop_str_in_output", false));
        put(out, "output_kind", Some(if self.is_set("stream", false) { 1 } else { 2 }));
        put(out, "stream_interval", self.int("stream_interval"));
        put(out, "skip_clone", Some(true));
        let longest = self.stop().iter().filter_map(|stop| Some(stop.as_str()?.chars().count())).max().unwrap_or(0);
        let held_back = longest.saturating_sub(1);
        let is_excluded = !self.is_set("include_stop_str_in_output", false);
        put(out, "output_text_buffer_length", Some(held_back).filter(|count| is_excluded && *count > 0));
        let requested = RequestedStructure::read(&self.body);
        put(out, "structured_outputs", requested.map(|requested| requested.params()));
        let biased = |bias: &Map<String, Value>| -> Map<String, Value> {
            let clamped = |value: &Value| values::float(value).unwrap_or(0.0).clamp(-100.0, 100.0).into();
            bias.iter().map(|(id, value)| (id.clone(), clamped(value))).collect()
        };
        put(out, "logit_bias", self.given("logit_bias").and_then(Value::as_object).map(biased));
        put(out, "allowed_token_ids", self.ids("allowed_token_ids"));
        put(out, "extra_args", self.extra_args());
    }

    fn logprobs(&self) -> Option<i64> {
        match self.family {
            RenderFamily::Of(Api::Completions) => self.int("logprobs"),
            RenderFamily::Of(Api::Chat) | RenderFamily::Responses => {
                self.is_set("logprobs", false).then(|| self.int("top_logprobs").unwrap_or(0))
            }
        }
    }

    fn extra_args(&self) -> Option<Map<String, Value>> {
        let mut args = self.given("vllm_xargs").and_then(Value::as_object).cloned().unwrap_or_default();
        for name in ["kv_transfer_params", "ec_transfer_params"] {
            put(&mut args, name, self.given(name).filter(|params| python::truthy(Some(params))).cloned());
        }
        (!args.is_empty() || self.family == RenderFamily::Responses).then_some(args)
    }

    fn stop(&self) -> Vec<Value> {
        match self.given("stop") {
            Some(Value::String(stop)) if !stop.is_empty() => vec![stop.as_str().into()],
            Some(Value::Array(stops)) => stops.clone(),
            _ => Vec::new(),
        }
    }

    fn given(&self, name: &str) -> Option<&Value> {
        ValidBody(&self.body).get(name)
    }

    fn list(&self, name: &str) -> Vec<Value> {
        ValidBody(&self.body).list(name).unwrap_or_default()
    }

    fn ids(&self, name: &str) -> Option<Vec<i64>> {
        let id = |value: &Value| values::int(value).ok().map(values::clamped);
        self.given(name)?.as_array().map(|ids| ids.iter().filter_map(id).collect())
    }

    fn int(&self, name: &str) -> Option<i64> {
        ValidBody(&self.body).whole(name).and_then(|count| i64::try_from(count).ok())
    }

    fn float(&self, name: &str, absent: f64) -> f64 {
        ValidBody(&self.body).float(name).unwrap_or(absent)
    }

    fn is_set(&self, name: &str, absent: bool) -> bool {
        ValidBody(&self.body).flag(name, absent)
    }

    /// A flag that is not what it is by itself.
    fn flag(&self, name: &str, absent: bool) -> Option<bool> {
        Some(self.is_set(name, absent)).filter(|flag| *flag != absent)
    }
}

fn repetition(requested: &Value) -> Value {
    let int = |name: &str| requested.get(name).and_then(|value| values::int(value).ok()).unwrap_or(0);
    json!({
        "max_pattern_size": int("max_pattern_size"), "min_pattern_size": int("min_pattern_size"),
        "min_count": int("min_count"),
    })
}

fn put<T: Into<Value>>(out: &mut Map<String, Value>, name: &str, value: Option<T>) {
    if let Some(value) = value {
        out.insert(name.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampling_params(api: Api, body: &Value, max_tokens: u32, defaults: (f64, f64)) -> String {
        let request = RenderRequest::parse(api, body.to_string().as_bytes()).unwrap();
        let rendered = Rendered { id: "cmpl-x", ids: &[1, 2], max_tokens, defaults };
        request.token_request(&rendered)["sampling_params"].to_string()
    }

    /// What vLLM 0.32.0 makes of the same requests.
    #[test]
    fn sampling_params_are_the_engines() {
        let plain = json!({"model": "m", "prompt": "a"});
        assert_eq!(
            sampling_params(Api::Completions, &plain, 16, (0.6, 0.95)),
            r#"{"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":0.6,"top_p":0.95,"min_p":0.0,"stop":[],"stop_token_ids":[],"output_kind":2,"skip_clone":true,"bad_words":[],"skip_reading_prefix_cache":false}"#
        );
        let all = json!({
            "model": "m", "prompt": "a", "n": 2, "stop": ["x", "yy"], "stop_token_ids": [5, 3], "seed": 7,
            "temperature": 0.3, "top_p": 0.5, "top_k": 3, "min_p": 0.1, "frequency_penalty": 1,
            "presence_penalty": 0.5, "repetition_penalty": 1.1, "logprobs": 2, "logit_bias": {"5": 1}, "stream": true,
            "min_tokens": 2, "ignore_eos": true, "include_stop_str_in_output": true, "skip_special_tokens": false,
            "spaces_between_special_tokens": false, "allowed_token_ids": [1, 2], "bad_words": ["b"],
            "vllm_xargs": {"a": 1}, "kv_transfer_params": {"k": 1}, "response_format": {"type": "json_object"},
            "repetition_detection": {"max_pattern_size": 3, "min_count": 2, "min_pattern_size": 1},
            "stream_interval": 3,
        });
        assert_eq!(
            sampling_params(Api::Completions, &all, 20, (1.0, 1.0)),
            r#"{"n":2,"presence_penalty":0.5,"frequency_penalty":1.0,"repetition_penalty":1.1,"temperature":0.3,"top_p":0.5,"top_k":3,"min_p":0.1,"seed":7,"stop":["x","yy"],"stop_token_ids":[5,3],"ignore_eos":true,"max_tokens":20,"min_tokens":2,"logprobs":2,"skip_special_tokens":false,"spaces_between_special_tokens":false,"include_stop_str_in_output":true,"output_kind":1,"stream_interval":3,"skip_clone":true,"structured_outputs":{"json":null,"regex":null,"choice":null,"grammar":null,"json_object":true,"disable_any_whitespace":false,"disable_additional_properties":false,"whitespace_pattern":null,"structural_tag":null,"_backend":null,"_backend_was_auto":false},"logit_bias":{"5":1.0},"allowed_token_ids":[1,2],"extra_args":{"a":1,"kv_transfer_params":{"k":1}},"bad_words":["b"],"skip_reading_prefix_cache":false,"repetition_detection":{"max_pattern_size":3,"min_pattern_size":1,"min_count":2}}"#
        );
        let greedy = json!({"prompt": "a", "temperature": 0, "top_p": 0.5, "top_k": 4, "min_p": 0.2});
        assert_eq!(
            sampling_params(Api::Completions, &greedy, 20, (1.0, 1.0)),
            r#"{"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":0.0,"stop":[],"stop_token_ids":[],"max_tokens":20,"output_kind":2,"skip_clone":true,"bad_words":[],"skip_reading_prefix_cache":false}"#
        );
        let cool = json!({"temperature": 0.001, "top_k": -1, "stop": "q", "stream": true, "seed": -1});
        assert_eq!(
            sampling_params(Api::Completions, &cool, 20, (1.0, 1.0)),
            r#"{"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":0.01,"top_p":1.0,"top_k":-1,"min_p":0.0,"stop":["q"],"stop_token_ids":[],"max_tokens":20,"output_kind":1,"skip_clone":true,"bad_words":[],"skip_reading_prefix_cache":false}"#
        );
        let echoed = json!({"prompt_logprobs": 1, "echo": true, "logprobs": 3});
        assert_eq!(
            sampling_params(Api::Completions, &echoed, 16, (1.0, 1.0)),
            r#"{"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":1.0,"top_p":1.0,"min_p":0.0,"stop":[],"stop_token_ids":[],"logprobs":3,"prompt_logprobs":1,"output_kind":2,"skip_clone":true,"bad_words":[],"skip_reading_prefix_cache":true}"#
        );
    }

    #[test]
    fn a_chat_ranks_as_many_tokens_as_it_asks_for() {
        let schema = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}});
        let chat = json!({
            "messages": [], "logprobs": true, "top_logprobs": 2, "stream": true, "seed": 3,
            "thinking_token_budget": 5, "response_format": schema,
        });
        assert_eq!(
            sampling_params(Api::Chat, &chat, 16, (1.0, 1.0)),
            r#"{"presence_penalty":0.0,"frequency_penalty":0.0,"repetition_penalty":1.0,"temperature":1.0,"top_p":1.0,"min_p":0.0,"seed":3,"stop":[],"stop_token_ids":[],"logprobs":2,"output_kind":1,"skip_clone":true,"structured_outputs":{"json":{"type":"object"},"regex":null,"choice":null,"grammar":null,"json_object":null,"disable_any_whitespace":false,"disable_additional_properties":false,"whitespace_pattern":null,"structural_tag":null,"_backend":null,"_backend_was_auto":false},"bad_words":[],"skip_reading_prefix_cache":false,"thinking_token_budget":5}"#
        );
    }

    #[test]
    fn values_are_written_as_the_engine_reads_them() {
        let completion = json!({
            "prompt": "a", "allowed_token_ids": [true, "7"], "stop_token_ids": [2.0], "watermarking": "1",
            "thinking_token_budget": -1, "routed_experts_prompt_start": 2,
        });
        let params: Value =
            serde_json::from_str(&sampling_params(Api::Completions, &completion, 16, (1.0, 1.0))).unwrap();
        assert_eq!(params["allowed_token_ids"], json!([1, 7]));
        assert_eq!((&params["stop_token_ids"], &params["watermarking"]), (&json!([2]), &json!(true)));
        assert_eq!((params.get("thinking_token_budget"), &params["routed_experts_prompt_start"]), (None, &json!(2)));
        let chat = json!({"messages": [], "chat_template_kwargs": {"a": null, "b": "auto", "c": 1}});
        let request = RenderRequest::parse(Api::Chat, chat.to_string().as_bytes()).unwrap();
        assert_eq!(
            Value::Object(request.with_reasoning(&Map::new()).reasoning_kwargs.unwrap()),
            json!({"cohere_format": "cmd4", "c": 1, "add_generation_prompt": true, "continue_final_message": false})
        );
    }
}
