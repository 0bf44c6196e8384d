use proptest::prelude::*;
use serde_json::{Map, json};

use super::*;

fn identify(body: &Value) -> Identity {
    with(&CanonicalRules::default(), body)
}

fn with(rules: &CanonicalRules, body: &Value) -> Identity {
    let body = &SharedBody::from(body.clone());
    rules.identify(&RequestParts { method: "POST", path: "/v1/chat/completions", headers: &[], body })
}

fn same(a: &Value, b: &Value) -> bool {
    identify(a).key == identify(b).key
}

fn conversation(call: &str, arguments: &str) -> Value {
    json!({"model": "m", "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": call, "type": "function", "function": {"name": "f", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": call, "content": "15"},
    ]})
}

#[test]
fn what_means_the_same_is_the_same() {
    let plain = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 1});
    for other in [
        json!({"temperature": 1.0, "messages": [{"content": "Hi", "role": "user"}], "model": "m"}),
        json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 1, "stream": true,
            "stream_options": {"include_usage": true}, "user": "u", "n": 1, "logprobs": false, "stop": null, "tools": []}),
    ] {
        assert!(same(&plain, &other), "{other}");
    }
    let a = conversation("call_a", r#"{"city": "London", "n": 1.0}"#);
    assert!(same(&a, &conversation("call_b", r#"{"n":1,"city":"London"}"#)));
    for other in [
        json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}),
        json!({"model": "n", "messages": [{"role": "user", "content": "Hi"}], "temperature": 1}),
        json!({"model": "m", "messages": [{"role": "user", "content": "Hi!"}], "temperature": 1}),
        json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "temperature": 1, "n": 2}),
    ] {
        assert!(!same(&plain, &other), "{other}");
    }
    assert!(!same(&a, &conversation("call_a", r#"{"city":"Paris","n":1}"#)));
}

#[test]
fn two_calls_of_one_message_are_not_mixed_up() {
    let answers = |first: &str, second: &str| {
        json!({"messages": [
            {"role": "assistant", "tool_calls": [{"id": "a"}, {"id": "b"}]},
            {"role": "tool", "tool_call_id": first, "content": "1"}, {"role": "tool", "tool_call_id": second, "content": "2"},
        ]})
    };
    assert!(!same(&answers("a", "b"), &answers("b", "a")));
}

#[test]
fn schemas_lose_prose_and_keep_parameters_of_its_name() {
    let tool = |prose: &str, kind: &str| {
        json!({"model": "m", "tools": [{"type": "function", "function": {"name": "f", "description": prose, "parameters": {
            "type": "object", "title": prose, "required": ["title", "description"],
            "properties": {"description": {"type": kind, "description": prose}, "title": {"anyOf": [{"type": "string", "title": prose}]}}}}}]})
    };
    assert!(same(&tool("a", "string"), &tool("b", "string")));
    assert!(!same(&tool("a", "string"), &tool("a", "number")));
    let kept = identify(&tool("a", "string")).body();
    let properties = &kept["tools"][0]["function"]["parameters"]["properties"];
    assert_eq!(properties.as_object().unwrap().len(), 2);
    assert_eq!(kept["tools"][0]["function"]["description"], Value::Null);
    let strict = CanonicalRules { form: Normalisation::Strict, ..CanonicalRules::default() };
    let key = |prose: &str| {
        let body = tool(prose, "string").into();
        strict.identify(&RequestParts { method: "POST", path: "/v1/chat/completions", headers: &[], body: &body }).key
    };
    assert_ne!(key("a"), key("b"), "strictly, prose counts");
}

#[test]
fn rules_add_to_what_is_ignored() {
    let mut rules = CanonicalRules {
        ignored: vec!["$.temperature".parse().unwrap(), "**.nonce".parse().unwrap()],
        scrubs: vec![r"s/\d+ms/Xms/".parse().unwrap()],
        headers: vec!["x-tenant".to_owned()],
        ignored_parameters: vec!["trace".to_owned()],
        ..CanonicalRules::default()
    };
    let body = |temperature: f64, nonce: u32, took: &str| json!({"model": "m", "temperature": temperature, "messages": [{"content": format!("took {took}"), "nonce": nonce}]});
    assert_eq!(with(&rules, &body(0.5, 1, "12ms")).key, with(&rules, &body(0.7, 2, "999ms")).key);
    let call = |path, headers: &[(String, String)], rules: &CanonicalRules| {
        rules.identify(&RequestParts { method: "POST", path, headers, body: &SharedBody::default() }).key
    };
    let tenant = |name: &str| vec![("x-tenant".to_owned(), name.to_owned())];
    assert_eq!(call("/x?b=1&trace=7&a=2", &[], &rules), call("/x?a=2&b=1", &[], &rules));
    assert_ne!(call("/x?a=2", &[], &rules), call("/x?a=3", &[], &rules));
    assert_ne!(call("/x", &tenant("a"), &rules), call("/x", &tenant("b"), &rules));
    rules.headers.clear();
    assert_eq!(call("/x", &tenant("a"), &rules), call("/x", &tenant("b"), &rules));
    let streamed = json!({"model": "m", "stream": true});
    assert_ne!(
        with(&CanonicalRules { counts_volatile: true, ..CanonicalRules::default() }, &streamed).body(),
        identify(&streamed).body()
    );
    let neutral = json!({"model": "m", "n": 1, "x": null});
    assert_eq!(
        with(&CanonicalRules { form: Normalisation::Strict, ..CanonicalRules::default() }, &neutral).body(),
        neutral
    );
}

#[test]
fn boundaries_name_the_model_or_the_route() {
    let body = json!({"model": "m"});
    for (method, path, expected) in [
        ("POST", "/v1/chat/completions", "llm:m"),
        ("POST", "/v1/embeddings", "llm:m"),
        ("GET", "/v1/models", "http:GET /v1/models"),
        ("POST", "/custom", "http:POST /custom"),
    ] {
        assert_eq!(boundary(method, path, &body), expected);
    }
    // What is volatile to a model is an argument to anything else.
    let call = |user: &str| CanonicalRules::default().canonical("http:POST /users", &json!({"user": user}));
    assert_ne!(call("a"), call("b"));
}

#[test]
fn a_request_that_continues_another_costs_what_is_new_in_it() {
    let rules = CanonicalRules::default();
    let (mut messages, mut progress) = (SharedList::default(), None);
    conversation::WORK.set(0);
    for turn in 0..100 {
        let before = messages.clone();
        messages
            .push(json!({"role": "user", "content": format!("turn {turn}"), "tool_call_id": format!("call {turn}")}));
        let body = SharedBody::from(json!({"model": "m"})).with_messages(messages.clone());
        let call = RequestParts { method: "POST", path: "/v1/chat/completions", headers: &[], body: &body };
        let start = progress.take().map(|progress| ConversationStart { messages: &before, progress });
        progress = rules.identify_after(&call, start).1;
    }
    assert_eq!(conversation::WORK.get(), 100);
}

#[test]
fn a_chain_names_everything_before() {
    let chain = |texts: &[&str]| {
        let messages: Vec<Value> = texts.iter().map(|text| json!({"role": "user", "content": text})).collect();
        identify(&json!({"model": "m", "messages": messages})).chain.iter().map(|link| link.hash).collect::<Vec<_>>()
    };
    assert_eq!(chain(&["a", "b", "c"])[..2], chain(&["a", "b"])[..]);
    assert_ne!(chain(&["x", "b"])[1], chain(&["a", "b"])[1]);
    assert!(identify(&json!({"model": "m"})).chain.is_empty());
}

#[test]
fn a_message_that_was_put_in_is_one_difference() {
    let turns = |texts: &[&str]| {
        let messages: Vec<Value> = texts.iter().map(|text| json!({"role": "user", "content": text})).collect();
        json!({"temperature": 0.2, "messages": messages})
    };
    let found = differences(&turns(&["a", "b", "c"]), &turns(&["a", "x", "b", "c"]));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].path.as_str(), found[0].operation), ("$.messages[1]", Operation::Add));
    let mut edited = turns(&["a", "b in 0.42s", "c"]);
    edited["temperature"] = json!(0.7);
    let found = differences(&turns(&["a", "b in 0.57s", "c"]), &edited);
    let places: Vec<_> = found.iter().map(|found| (found.path.as_str(), found.at)).collect();
    assert_eq!(places, [("$.messages[1].content", Some(7)), ("$.temperature", None)]);
}

fn json_value() -> impl Strategy<Value = Value> {
    let text = prop_oneof!["[a-c]{0,3}", Just("{\"b\": 1.0, \"a\": [null]}".to_owned()), Just("id_2".to_owned())];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-5.0..5.0_f64).prop_map(|x| Value::from((x * 2.0).round() / 2.0)),
        text.prop_map(Value::from),
    ];
    let key = prop_oneof![
        Just("messages"),
        Just("tools"),
        Just("id"),
        Just("tool_call_id"),
        Just("tool_calls"),
        Just("function"),
        Just("arguments"),
        Just("parameters"),
        Just("description"),
        Just("properties"),
        Just("required"),
        Just("n"),
        Just("stream"),
        Just("type"),
        Just("input"),
        Just("content"),
        Just("x"),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((key.clone(), inner), 0..5).prop_map(|pairs| pairs
                .into_iter()
                .map(|(k, v)| (k.to_owned(), v))
                .collect::<Map<_, _>>()
                .into()),
        ]
    })
}

/// The same value with the keys of every object in reverse.
fn reversed(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(reversed).collect(),
        Value::Object(map) => {
            Value::Object(map.iter().rev().map(|(key, value)| (key.clone(), reversed(value))).collect())
        }
        scalar => scalar.clone(),
    }
}

proptest! {
    #[test]
    fn canonical_forms_are_their_own(body in json_value()) {
        let rules = CanonicalRules { ignored: vec!["**.x".parse().unwrap()], ..CanonicalRules::default() };
        let once = rules.canonical("llm:m", &body);
        prop_assert_eq!(rules.canonical("llm:m", &once), once);
    }

    #[test]
    fn a_request_in_parts_is_the_whole_one(body in json_value(), messages in proptest::collection::vec(json_value(), 0..5), split in 0_usize..5, path in 0_usize..6) {
        let paths = ["$.messages[1].content", "$.messages[*].x", "**.x", "$.messages[0]", "$.messages", "$.x.y"];
        let ignored = paths.get(path).map(|path| path.parse().unwrap()).into_iter().collect();
        let rules = CanonicalRules { ignored, ..CanonicalRules::default() };
        let list: SharedList<Value> = messages.iter().take(split).cloned().collect();
        let mut longer = list.clone();
        longer.extend(messages.iter().skip(split).cloned());
        let with_list = |list: &SharedList<Value>| SharedBody::from(json!({"model": "m", "more": body})).with_messages(list.clone());
        let call = |body| RequestParts { method: "POST", path: "/v1/chat/completions", headers: &[], body };
        let (start, whole) = (with_list(&list), with_list(&longer));
        let progress = rules.identify_after(&call(&start), None).1;
        let start = progress.map(|progress| ConversationStart { messages: &list, progress });
        let continued = rules.identify_after(&call(&whole), start).0;
        prop_assert_eq!(&continued, &rules.identify(&call(&SharedBody::from(whole.value()))));
        prop_assert_eq!(continued.body(), rules.canonical("llm:m", &whole.value()));
    }

    #[test]
    fn the_order_of_keys_does_not_count(body in json_value()) {
        prop_assert!(same(&body, &reversed(&body)), "{}", body);
    }

    #[test]
    fn ignored_places_do_not_count(body in json_value(), value in json_value()) {
        let rules = CanonicalRules { ignored: vec!["$.meta.run".parse().unwrap()], ..CanonicalRules::default() };
        let mut one = json!({"meta": {"kept": 1}, "body": body});
        let mut other = one.clone();
        one["meta"]["run"] = value;
        other["meta"]["run"] = json!("other");
        prop_assert_eq!(with(&rules, &one).key, with(&rules, &other).key);
    }

    #[test]
    fn fresh_ids_do_not_count(a in "[a-z]{1,8}", b in "[a-z]{1,8}") {
        prop_assert_eq!(identify(&conversation(&a, "1")).key, identify(&conversation(&b, "1")).key);
    }

    #[test]
    fn no_difference_means_equal(one in json_value(), other in json_value()) {
        prop_assert_eq!(differences(&one, &other).is_empty(), one == other);
        prop_assert!(differences(&one, &one).is_empty());
    }
}
