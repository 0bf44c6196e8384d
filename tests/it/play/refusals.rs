//! Every captured refusal of a generation request that needs no tokenizer, byte for byte.

use serde_json::Value;
use vllm_vcr::api::{Api, ApiError, GenerationRequest, RequestTemplates, ServerProfile, VocabularyLimits};

use crate::support::goldens;

/// What is refused for a reason that this version does not judge: schemas of `response_format`, tool parsers, images,
/// and what needs the vocabulary.
const LATER: &[&str] = &[
    "err_bad_schema",
    "err_tools_auto_not_enabled",
    "err_image_part",
    "err_prompt_ids_out_of_vocab",
    "err_prompt_too_long",
];

#[test]
fn refusals_are_the_engines() {
    let mut compared = 0;
    for (name, golden) in goldens::suite("plain") {
        let request = &golden["request"];
        let api = match request["path"].as_str() {
            Some("/v1/chat/completions") => Api::Chat,
            Some("/v1/completions") => Api::Completions,
            _ => continue,
        };
        let by_header = ["err_no_content_type", "err_wrong_content_type"].contains(&name.as_str());
        if request["method"] != "POST" || by_header || LATER.contains(&name.as_str()) {
            continue;
        }
        let body = match &request["body"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let refused = judge(api, body.as_bytes()).err().map(|error| (u64::from(error.status), error.body()));
        let expected =
            (golden["status"] != 200).then(|| (golden["status"].as_u64().unwrap(), golden["json"].to_string()));
        assert_eq!(refused, expected, "{name}");
        compared += 1;
    }
    eprintln!("{compared} requests judged as the engine judged them");
}

fn judge(api: Api, body: &[u8]) -> Result<(), ApiError> {
    let request = GenerationRequest::parse(api, body)?;
    if let Some(name) = request.model.as_deref().filter(|name| !["", "tiny-qwen3"].contains(name)) {
        return Err(ApiError::unknown_model(name, &["tiny-qwen3".to_owned()]));
    }
    let templates = RequestTemplates::Refused;
    request.check_served(ServerProfile { templates, finds_calls: false, max_model_len: 4096 })?;
    request.check_prompt(37, 4096)?;
    request.check_vocabulary(VocabularyLimits::new(151_936))
}
