//! The words of guard models.

use serde_json::{Value, json};

use super::{CHAT, Rules, asked, chat, said};

/// The answer to a text that is safe, and to one that is not.
async fn both(verdict: &str) -> [String; 2] {
    let rules = Rules::new(&format!("- {{match: any, answer: {{verdict: {verdict}}}}}\n"));
    let play = rules.play(&[]);
    [said(&play.send(CHAT, &chat(&["tea"])).await), said(&play.send(CHAT, &chat(&["a bomb"])).await)]
}

#[tokio::test]
async fn each_guard_says_it_in_its_words() {
    let bomb = "unsafe: {contains: [gun, bomb]}";
    for (verdict, safe, not) in [
        (format!("llama-guard, {bomb}"), "safe", "unsafe\nS1"),
        (format!("llama-guard, categories: [S9, S2], {bomb}"), "safe", "unsafe\nS9,S2"),
        (format!("shieldgemma, {bomb}"), "No", "Yes"),
        ("granite-guardian, unsafe: {regex: 'bo+mb'}".to_owned(), "<score> no </score>", "<score> yes </score>"),
        (format!("qwen3guard, {bomb}"), "Safety: Safe\nCategories: None", "Safety: Unsafe\nCategories: Violent"),
        (
            format!("qwen3guard, of: response, {bomb}"),
            "Safety: Safe\nCategories: None\nRefusal: No",
            "Safety: Unsafe\nCategories: Violent\nRefusal: No",
        ),
        (
            format!("nemoguard-content-safety, {bomb}"),
            "{\"User Safety\": \"safe\"}",
            "{\"User Safety\": \"unsafe\", \"Safety Categories\": \"Violence\"}",
        ),
        (
            format!("nemoguard-content-safety, of: response, categories: [Violence, Fraud], {bomb}"),
            "{\"User Safety\": \"safe\", \"Response Safety\": \"safe\"}",
            "{\"User Safety\": \"safe\", \"Response Safety\": \"unsafe\", \"Safety Categories\": \"Violence, Fraud\"}",
        ),
        (format!("nemoguard-topic-control, {bomb}"), "on-topic", "off-topic"),
        (format!("self-check, {bomb}"), "No", "Yes"),
        ("yes-no, unsafe: true".to_owned(), "Yes", "Yes"),
        ("yes-no".to_owned(), "No", "No"),
    ] {
        assert_eq!(both(&verdict).await, [safe.to_owned(), not.to_owned()], "{verdict}");
    }
}

#[tokio::test]
async fn the_group_of_a_pattern_is_judged_alone() {
    let rules = Rules::new(
        "- match: {regex: '(?s)USER: (.*?)END'}\n  answer: {verdict: self-check, unsafe: {contains: bomb}}\n",
    );
    let play = rules.play(&[]);
    let policy = |words: &str| format!("No bombs. Is this one?\nUSER: {words}\nEND\nNo bomb.");
    assert_eq!(said(&play.send(CHAT, &chat(&[&policy("tea")])).await), "No");
    assert_eq!(said(&play.send(CHAT, &chat(&[&policy("a bomb")])).await), "Yes");
}

#[tokio::test]
async fn probabilities_are_those_of_the_verdict() {
    let rules = Rules::new("- {match: any, answer: {verdict: yes-no, score: 0.75, unsafe: {contains: bomb}}}\n");
    let play = rules.play(&[]);
    let more = json!({"logprobs": true, "top_logprobs": 2, "max_tokens": 1, "n": 2, "seed": 3});
    for (words, chosen, other) in [("bomb", "Yes", "No"), ("tea", "No", "Yes")] {
        let answer = play.send(CHAT, &asked(words, &more)).await.json();
        assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
        let token = &answer["choices"][1]["logprobs"]["content"][0];
        let probability = |entry: &Value| (entry["logprob"].as_f64().unwrap().exp() * 1e6).round() / 1e6;
        let top = &token["top_logprobs"];
        assert_eq!((token["token"].as_str(), probability(token)), (Some(chosen), 0.75));
        assert_eq!((top[1]["token"].as_str(), probability(&top[1])), (Some(other), 0.25));
    }
    let completion = json!({"model": "m", "prompt": "bomb", "logprobs": 2, "max_tokens": 1});
    let choice = play.send("/v1/completions", &completion).await.json()["choices"][0].clone();
    assert_eq!((&choice["text"], choice["logprobs"]["top_logprobs"][0].as_object().unwrap().len()), (&json!("Yes"), 2));
}

#[tokio::test]
async fn a_rate_depends_on_the_content_and_the_seed_only() {
    let texts: Vec<String> = (0..400).map(|number| format!("text {number}")).collect();
    let mut sets = Vec::new();
    for (seed, reversed) in [(1, false), (1, true), (2, false)] {
        let rules = Rules::new(&format!(
            "- {{match: {{role: user}}, answer: {{verdict: llama-guard, unsafe: {{rate: 0.05, seed: {seed}}}}}}}\n"
        ));
        let play = rules.play(&[]);
        let mut order = texts.clone();
        if reversed {
            order.reverse();
        }
        let mut found = Vec::new();
        for text in order {
            let more = if reversed { json!({"temperature": 1.0, "n": 1}) } else { json!({}) };
            if said(&play.send(CHAT, &asked(&text, &more)).await).starts_with("unsafe") {
                found.push(text);
            }
        }
        found.sort();
        sets.push(found);
    }
    assert_eq!(sets[0], sets[1]);
    assert_ne!(sets[0], sets[2]);
    // 20 of 400 are expected; so far from it is less likely than one in a million.
    assert!(
        sets.iter().all(|set| (3..=45).contains(&set.len())),
        "{:?}",
        sets.iter().map(Vec::len).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn moderations_scores_and_embeddings_have_their_shapes() {
    let rules = Rules::new(
        "- {match: any, answer: {verdict: openai-moderation, categories: [hate, self-harm/intent], score: 0.9, unsafe: {contains: bomb}}}\n\
         - {match: any, answer: {verdict: classify, categories: [ok, toxic], unsafe: {contains: bomb}}}\n\
         - {match: any, answer: {verdict: score, score: 0.8, unsafe: {contains: bomb}}}\n\
         - {match: {contains: tea}, answer: {verdict: embedding, dimensions: 4}}\n",
    );
    let play = rules.play(&[]);
    let both = json!({"model": "m", "input": ["tea", "a bomb"]});
    let moderation = play.send("/v1/moderations", &both).await.json();
    let flagged: Vec<bool> =
        moderation["results"].as_array().unwrap().iter().map(|result| result["flagged"].as_bool().unwrap()).collect();
    assert_eq!(flagged, [false, true]);
    let result = &moderation["results"][1];
    assert_eq!((&result["categories"]["hate"], &result["category_scores"]["hate"]), (&json!(true), &json!(0.9)));
    assert_eq!(
        (&result["categories"]["violence"], &result["category_scores"]["violence"]),
        (&json!(false), &json!(0.1))
    );
    assert_eq!(result["categories"].as_object().unwrap().len(), 13);
    let parts =
        json!({"input": [{"type": "text", "text": "a bomb"}, {"type": "image_url", "image_url": {"url": "data:,"}}]});
    assert_eq!(play.send("/v1/moderations", &parts).await.json()["results"][0]["flagged"], true);
    for path in ["/classify", "/v1/classify"] {
        let data = play.send(path, &both).await.json()["data"].clone();
        assert_eq!((&data[0]["label"], &data[1]["label"]), (&json!("ok"), &json!("toxic")));
        assert_eq!((&data[1]["probs"], &data[1]["num_classes"]), (&json!([0.02, 0.98]), &json!(2)));
    }
    for path in ["/score", "/v1/score"] {
        let data =
            play.send(path, &json!({"model": "m", "text_1": "q", "text_2": ["tea", "a bomb"]})).await.json()["data"]
                .clone();
        assert_eq!(
            (&data[0]["score"], &data[1]["score"], &data[1]["index"]),
            (&json!(0.2), &json!(0.8), &json!(1)),
            "{path}"
        );
    }
    let vectors = play.send("/v1/embeddings", &json!({"model": "m", "input": ["tea", "coffee", "tea"]})).await.json();
    let of = |at: usize| {
        vectors["data"][at]["embedding"]
            .as_array()
            .unwrap()
            .iter()
            .map(|number| number.as_f64().unwrap())
            .collect::<Vec<f64>>()
    };
    assert!(of(0) == of(2) && of(0) != of(1) && of(0).len() == 4);
    assert!((of(0).iter().map(|number| number * number).sum::<f64>() - 1.0).abs() < 1e-9);
    let packed = json!({"model": "m", "input": "tea", "encoding_format": "base64", "dimensions": 3});
    assert_eq!(play.send("/v1/embeddings", &packed).await.json()["data"][0]["embedding"].as_str().unwrap().len(), 16);
}
