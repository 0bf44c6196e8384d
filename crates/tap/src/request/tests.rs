use super::*;

#[test]
fn only_numbers_and_switches_are_recorded() {
    let body = br#"{"model":"m","messages":[{"role":"user","content":"secret"}],"max_tokens":5,"temperature":0.5,
        "seed":"secret","ignore_eos":true,"stop":["secret"],"user":"secret"}"#;
    let params = recorded_params(body);
    assert_eq!(serde_json::to_string(&params).unwrap(), r#"{"max_tokens":5,"temperature":0.5,"ignore_eos":true}"#);
}

#[test]
fn lists_of_prompts_and_lists_of_ids_are_distinguished() {
    for (body, prompts) in [
        (r#"{"prompt":"x"}"#, 1),
        (r#"{"prompt":[1, 2]}"#, 1),
        (r#"{"prompt":[ "a","b"]}"#, 2),
        (r#"{"prompt":[[1],[2],[3, 4]]}"#, 3),
        (r#"{"prompt":["a"]}"#, 1),
        (r#"{"prompt":[]}"#, 1),
        (r#"{"messages":[]}"#, 1),
    ] {
        assert_eq!(RequestFields::read(body.as_bytes()).unwrap().prompts(), prompts, "{body}");
    }
}

#[test]
fn choices_are_those_of_every_prompt_and_no_more_than_can_be_meant() {
    let choices = |endpoint, body: &str| {
        let target = RequestTarget { endpoint, path: "/" };
        RequestFacts::new(target, &HeaderMap::new(), body.as_bytes(), RequestFields::read(body.as_bytes()).as_ref())
            .choices()
    };
    for (endpoint, body, expected) in [
        (Endpoint::Chat, r#"{"n":3}"#, 3),
        (Endpoint::Chat, r#"{"n":2,"prompt":["a","b"]}"#, 2),
        (Endpoint::Completions, r#"{"n":2,"prompt":["a","b"]}"#, 4),
        (Endpoint::Completions, r#"{"n":4000000000,"prompt":["a","b"]}"#, 128),
        (Endpoint::Completions, "[", 1),
        (Endpoint::Messages, r#"{"n":3}"#, 1),
    ] {
        assert_eq!(choices(endpoint, body), expected, "{body}");
    }
    let many = format!(r#"{{"prompt":[{}1]}}"#, "[1],".repeat(999).replace("[1]", "\"a\""));
    assert_eq!(choices(Endpoint::Completions, &many.replace(",1]", ",\"a\"]")), 1000);
}

#[test]
fn tokens_are_a_completion_whose_ids_are_known() {
    let body = r#"{"token_ids":[1,2],"sampling_params":{"n":2,"max_tokens":3},"stream":true}"#;
    let target = RequestTarget { endpoint: Endpoint::Completions, path: TOKENS };
    let requested = RequestFields::read(body.as_bytes());
    let facts = RequestFacts::new(target, &HeaderMap::new(), body.as_bytes(), requested.as_ref());
    assert_eq!((facts.prompt_ids.as_deref(), facts.choices(), facts.stream), (Some(&[1, 2][..]), 2, true));
    assert_eq!(facts.params.get("max_tokens"), Some(&3.into()));
    assert_eq!((facts.path.as_deref(), facts.may_be_amended()), (Some(TOKENS), false));
}

#[test]
fn searches_and_scored_tokens_say_more_than_ids() {
    let exceeds = |path, body: &str| {
        let target = RequestTarget { endpoint: Endpoint::Completions, path };
        let requested = RequestFields::read(body.as_bytes());
        RequestFacts::new(target, &HeaderMap::new(), body.as_bytes(), requested.as_ref()).exceeds_ids
    };
    for (path, body, expected) in [
        ("/v1/completions", r#"{"prompt":"x","logprobs":1}"#, false),
        ("/v1/completions", r#"{"prompt":"x","prompt_logprobs":0}"#, true),
        ("/v1/completions", r#"{"prompt":"x","prompt_logprobs":null}"#, false),
        ("/v1/completions", r#"{"prompt":"x","use_beam_search":true}"#, true),
        ("/v1/completions", r#"{"prompt":"x","use_beam_search":false}"#, false),
        (TOKENS, r#"{"token_ids":[1],"sampling_params":{"logprobs":0}}"#, true),
        (TOKENS, r#"{"token_ids":[1],"sampling_params":{"logprobs":null}}"#, false),
        (TOKENS, r#"{"token_ids":[1],"sampling_params":{"prompt_logprobs":1}}"#, true),
    ] {
        assert_eq!(exceeds(path, body), expected, "{body}");
    }
}

#[test]
fn an_invocation_is_what_its_body_is() {
    let target = RequestTarget { endpoint: Endpoint::Other, path: INVOCATIONS };
    for (body, endpoint) in [
        (r#"{"messages":[]}"#, Endpoint::Chat),
        (r#"{"prompt":"x"}"#, Endpoint::Completions),
        (r#"{"input":"x"}"#, Endpoint::Other),
    ] {
        let requested = RequestFields::read(body.as_bytes());
        let facts = RequestFacts::new(target, &HeaderMap::new(), body.as_bytes(), requested.as_ref());
        assert_eq!((facts.endpoint, facts.path.as_deref()), (Some(endpoint), Some(INVOCATIONS)), "{body}");
    }
}

#[test]
fn an_empty_model_is_none_and_an_invocation_has_that_of_its_header() {
    let headers = HeaderMap::from_iter([(ADAPTER_HEADER.parse().unwrap(), "adapter".parse().unwrap())]);
    for (path, body, headers, model) in [
        ("/", r#"{"model":"","prompt":"x"}"#, HeaderMap::new(), None),
        ("/", r#"{"model":"m","prompt":"x"}"#, headers.clone(), Some("m")),
        (INVOCATIONS, r#"{"model":"m","prompt":"x"}"#, headers, Some("adapter")),
        (INVOCATIONS, r#"{"model":"m","prompt":"x"}"#, HeaderMap::new(), Some("m")),
    ] {
        let target = RequestTarget { endpoint: Endpoint::Completions, path };
        let requested = RequestFields::read(body.as_bytes());
        let facts = RequestFacts::new(target, &headers, body.as_bytes(), requested.as_ref());
        assert_eq!(facts.model.as_deref(), model, "{path} {body}");
    }
}

#[test]
fn what_is_not_an_object_is_not_read() {
    for body in ["", "[1]", "{", "nonsense", r#"{"model":1}"#] {
        assert!(RequestFields::read(body.as_bytes()).is_none(), "{body}");
    }
}
