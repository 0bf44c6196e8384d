use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Compiled once.
static RULES: LazyLock<RedactionRules> = LazyLock::new(RedactionRules::all);

const KEY: &str = "sk-proj-AbCdEfGhIjKlMnOpQrSt1234";
const JWT: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJlLXNpZ25hdHVyZQ";
const PEM: &str = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\nq83v\n-----END RSA PRIVATE KEY-----";

/// Secrets that their shape gives away, and the part of each that must not survive.
const SHAPES: [(&str, &str); 14] = [
    ("jane.doe+x@mail.example.org", "jane.doe"),
    (KEY, "AbCdEfGh"),
    (JWT, "c2lnbmF0dXJl"),
    (PEM, "MIIEpAIBAAKCAQEA"),
    ("hf_abcdefghijklmnopqrstuvwxyz", "abcdefghijkl"),
    ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "abcdefghijkl"),
    ("glpat-abcdefghijklmnopqrst", "abcdefghijkl"),
    ("xoxb-1234567890-abcdefghij", "1234567890"),
    ("AKIAIOSFODNN7EXAMPLE", "IOSFODNN"),
    ("AIzaSyA1234567890abcdefghijklmnopqrstuv", "1234567890"),
    ("Bearer abcdef0123456789", "abcdef0123"),
    ("postgres://bob:hunter2hunter2@db.internal/x", "hunter2"),
    ("password=hunter2hunter2", "hunter2"),
    ("sk_live_abcdefghijklmnop1234", "abcdefghij"),
];

fn text(text: &str) -> String {
    Redactor::new(&RULES).text(text).unwrap_or_else(|| text.to_owned())
}

#[test]
fn every_shape_is_found_in_text_and_in_every_part_of_a_request() {
    for (secret, part) in SHAPES {
        let sentence = format!("please use {secret}, thanks");
        assert!(!text(&sentence).contains(part), "{}", text(&sentence));
        assert!(text(&sentence).ends_with(", thanks"), "{}", text(&sentence));
        let arguments = json!({"a": [sentence]}).to_string();
        let mut redactor = Redactor::new(&RULES);
        let mut body = json!({"messages": [{"role": "user", "content": sentence},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]}]});
        assert!(redactor.json(&mut body));
        assert!(!body.to_string().contains(part), "{body}");
        let inner = body["messages"][1]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
        assert!(serde_json::from_str::<Value>(inner).is_ok(), "{inner}");
        let numbers = &redactor.seen.0.numbers;
        assert!(
            numbers.len() == 1 && numbers.values().all(|all| all.of.len() == 1),
            "one secret, one number: {:?}",
            redactor.seen
        );
    }
}

#[test]
fn ordinary_text_stays() {
    for ordinary in [
        "The password is the thing you type; a token is a piece of text.",
        "mail me at the @ sign, or ask a@b",
        "use --tokenizer ./dir and max_tokens = 5; sk-learn is a library",
        "https://example.org/path?x=1#y and http://localhost:8000/v1",
        "eyJ is how JSON web tokens begin",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "Bearer of news",
    ] {
        assert_eq!(text(ordinary), ordinary);
    }
}

#[test]
fn names_count_for_the_value_under_them_and_not_for_the_engines_own_words() {
    let mut body = json!({
        "password": "opensesame", "api-key": ["k1", "k2"], "token": "abc", "secret": 12345, "cookie": "",
        "usage": {"token": "7"}, "token_ids": [1, 2], "max_tokens": 5,
        "logprobs": {"content": [{"token": "Hello", "top_logprobs": [{"token": "Hi"}]}]},
        "tools": [{"function": {"parameters": {"properties": {"password": {"type": "string"}}, "required": ["password"]}}}],
    });
    let before = body.clone();
    Redactor::new(&RULES).json(&mut body);
    assert_eq!(body["password"], "[REDACTED:password:1]");
    assert_eq!(body["api-key"], json!(["[REDACTED:apikey:1]", "[REDACTED:apikey:2]"]));
    assert_eq!((&body["token"], &body["secret"]), (&json!("[REDACTED:token:1]"), &json!("[REDACTED:secret:1]")));
    for same in ["cookie", "usage", "token_ids", "max_tokens", "logprobs", "tools"] {
        assert_eq!(body[same], before[same]);
    }
}

#[test]
fn names_count_for_objects_under_them_and_for_defaults_in_schemas() {
    let schema = json!({"properties": {"password": {"type": "string", "minLength": 8, "description": "yours"}}});
    let mut body = json!({
        "password": {"value": "opensesame", "hint": ["my cat"], "length": 10},
        "x": {"client_secret": [{"deep": {"er": "still-secret"}}]},
        "token": {"id": 7, "text": "word"},
        "usage": {"password": {"n": 1}},
        "tools": [{"function": {"parameters": schema}}],
        "more": {"properties": {"api_key": {"type": "string", "default": "sesame"}}},
    });
    let before = body.clone();
    Redactor::new(&RULES).json(&mut body);
    assert_eq!(
        body["password"],
        json!({"value": "[REDACTED:password:1]", "hint": ["[REDACTED:password:2]"], "length": "[REDACTED:password:3]"})
    );
    assert_eq!(body["x"]["client_secret"][0]["deep"]["er"], "[REDACTED:clientsecret:1]");
    assert_eq!(body["more"]["properties"]["api_key"], json!({"type": "string", "default": "[REDACTED:apikey:1]"}));
    for same in ["token", "usage", "tools"] {
        assert_eq!(body[same], before[same]);
    }
}

#[test]
fn numbers_that_are_cards_or_were_named_are_found() {
    let rules = RedactionRules::all().literal("PIN", "246810").unwrap();
    let mut redactor = Redactor::new(&rules);
    let text =
        r#"{"card":4111111111111111,"ids":[371449635398431,4111111111111112],"pin":246810,"p":-0.4532015112830366}"#;
    assert_eq!(
        redactor.json_text(text).as_deref(),
        Some(
            r#"{"card":"[REDACTED:card:1]","ids":["[REDACTED:card:2]",4111111111111112],"pin":"[REDACTED:PIN:1]","p":-0.4532015112830366}"#
        )
    );
}

#[test]
fn secrets_are_found_where_they_are_percent_encoded() {
    for (raw, clean) in [
        ("/users/jane%40example.org/chat", "/users/[REDACTED:email:1]/chat"),
        ("/v1?q=%22Bearer%20abcdef0123456789%22", "/v1?q=%22Bearer%20[REDACTED:bearer:1]%22"),
        ("/v1?api_key%3Dopensesame&x=1", "/v1?api_key%3D[REDACTED:assigned:1]&x=1"),
        ("/v1/4111%2D1111%2d1111%2D1111", "/v1/[REDACTED:card:1]"),
        ("/100%25%20of/%E4%BD%A0", "/100%25%20of/%E4%BD%A0"),
    ] {
        assert_eq!(text(raw), clean);
    }
}

#[test]
fn headers_are_found_by_name_and_by_value() {
    let mut redactor = Redactor::new(&RULES);
    assert_eq!(redactor.header("Authorization", "Basic eDp5").as_deref(), Some("[REDACTED:authorization:1]"));
    assert_eq!(redactor.header("x-api-key", "abc").as_deref(), Some("[REDACTED:x-api-key:1]"));
    assert_eq!(redactor.header("from", "a.b@example.org").as_deref(), Some("[REDACTED:email:1]"));
    assert_eq!(redactor.header("accept", "*/*"), None);
}

#[test]
fn equal_secrets_share_a_number_over_all_parts_of_a_record() {
    let mut redactor = Redactor::new(&RULES);
    assert_eq!(
        redactor.text("a@x.org b@x.org a@x.org").as_deref(),
        Some("[REDACTED:email:1] [REDACTED:email:2] [REDACTED:email:1]")
    );
    let mut body = json!({"to": "b@x.org"});
    redactor.json(&mut body);
    assert_eq!(body["to"], "[REDACTED:email:2]");
}

#[test]
fn a_secret_found_by_its_name_is_found_again_without_it() {
    let mut redactor = Redactor::new(&RULES);
    let mut body = json!({"arguments": "{\"password\":\"correct-horse\"}"});
    redactor.json(&mut body);
    assert_eq!(body["arguments"], "{\"password\":\"[REDACTED:password:1]\"}");
    assert_eq!(redactor.text("I tried correct-horse").as_deref(), Some("I tried [REDACTED:password:1]"));
}

#[test]
fn own_rules_add_up() {
    let rules = RedactionRules::all()
        .key("ssn")
        .and_then(|rules| rules.pattern("case", r"case (\d+)"))
        .and_then(|rules| rules.literal("HF_TOKEN", "plain words here"))
        .and_then(|rules| rules.place("$.metadata.user"))
        .unwrap();
    let mut body = json!({"ssn": "1", "t": "case 17 of plain words here", "metadata": {"user": {"id": "u", "n": 4}}});
    let mut redactor = Redactor::new(&rules);
    redactor.json(&mut body);
    assert_eq!(
        body,
        json!({"ssn": "[REDACTED:ssn:1]", "t": "case [REDACTED:case:1] of [REDACTED:HF_TOKEN:1]",
            "metadata": {"user": {"id": "[REDACTED:id:1]", "n": "[REDACTED:n:1]"}}})
    );
    let places: Vec<String> = redactor.take_finds().into_iter().map(|find| find.place).collect();
    assert_eq!(places, ["$.ssn", "$.t", "$.t", "$.metadata.user.id", "$.metadata.user.n"]);
}

#[test]
fn json_text_keeps_every_other_byte_and_may_be_cut() {
    let cut = |text: &str| Redactor::new(&RULES).json_text(text);
    assert_eq!(
        cut("{ \"n\": 1.50,\n \"mail\":\"\\u0061@x.org\\n\" }").as_deref(),
        Some("{ \"n\": 1.50,\n \"mail\":\"[REDACTED:email:1]\\n\" }")
    );
    assert_eq!(cut(r#"{"password":"opense"#).as_deref(), Some(r#"{"password":"[REDACTED:password:1]"#));
    assert_eq!(cut(r#"{"a":1e400,"b":[]}"#), None);
}

#[test]
fn bodies_of_any_kind_are_searched() {
    let body = |bytes: &[u8]| Redactor::new(&RULES).body(bytes).map(|body| String::from_utf8(body).unwrap());
    assert_eq!(body(b"user=x&password=hunter2hunter2").as_deref(), Some("user=x&password=[REDACTED:assigned:1]"));
    assert_eq!(body(br#"[{"token":"t"}]"#).as_deref(), Some(r#"[{"token":"[REDACTED:token:1]"}]"#));
    assert_eq!(body(b"\xff\xfe a@x.org").as_deref(), Some("\u{fffd}\u{fffd} [REDACTED:email:1]"));
    assert_eq!(body(b"\xff\xfe"), None);
    let example = {
        let mut redactor = Redactor::new(&RULES);
        assert!(redactor.text(KEY).is_some());
        redactor.take_finds().remove(0).example
    };
    assert_eq!(example, "sk-p… (32 characters)");
}

#[test]
fn a_text_that_comes_again_is_whole_and_one_with_a_name_behind_a_secret_keeps_none() {
    let pieces = |pieces: &[&str]| {
        let mut pieces: Vec<String> = pieces.iter().map(|piece| (*piece).to_owned()).collect();
        assert!(Redactor::new(&RULES).pieces(&mut pieces));
        pieces
    };
    for secret in [KEY, JWT, "password: Zx81kqPw55", "hvs.AbCdEfGhIjKlMnOpQrSt1234", "Bearer abcdef0123456789"] {
        let clean = text(secret);
        assert_eq!(pieces(&[secret; 3]), [clean.as_str(); 3]);
        assert_eq!(pieces(&[secret, secret, " between ", secret]), [&clean, &clean, " between ", &clean]);
        // It may be the rest of a longer one.
        let parts = pieces(&[secret, secret, "between", secret]);
        assert_eq!((&parts[0], parts[2].as_str(), parts[3].contains("[REDACTED:")), (&clean, "", true), "{parts:?}");
    }
    let one_after_another = pieces(&["GITHUB_TOKEN=abcd1234efgh", "password: Zx81kqPw55", "end"]);
    assert!(!one_after_another.concat().contains("Zx81"), "{one_after_another:?}");
    assert_eq!(pieces(&["password=hunter2", "hunter2 and"]), ["password=[REDACTED:assigned:1]", " and"]);
}

fn found_in(pieces: &mut [String], are_lines: bool) -> bool {
    let mut redactor = Redactor::new(&RULES);
    if are_lines { redactor.lines(pieces) } else { redactor.pieces(pieces) }
}

#[test]
fn a_secret_that_is_cut_alike_each_time_keeps_no_rest() {
    let pieces = |pieces: &[&str], are_lines: bool| {
        let mut pieces: Vec<String> = pieces.iter().map(|piece| (*piece).to_owned()).collect();
        assert!(found_in(&mut pieces, are_lines));
        pieces
    };
    let (head, rest, clean) = (&KEY[..28], &KEY[28..], "[REDACTED:api_key:1]");
    for are_lines in [false, true] {
        assert_eq!(pieces(&[head, rest, head, rest], are_lines), [clean, "", clean, ""]);
        assert_eq!(pieces(&[&format!("{head}Abc"), "Qrst", "12", "and so"], are_lines)[1..], ["", "", " so"]);
    }
    let again = format!("{rest} {head}");
    let parts = pieces(&[head, &again, &again, rest], false);
    assert!(!parts.concat().contains(rest), "{parts:?}");
    assert_eq!(parts.concat().matches("[REDACTED:").count(), 5, "{parts:?}");
    let (one, other) = ("Bearer eyJhbGciOiJIUzI1NiJ9", ".eyJzdWIiOiIxMjM0NSJ9.c2lnbmF0dXJlLXNpZ25hdHVyZQ");
    let parts = pieces(&[one, other, one, ".eyJzdWIiOiI5ODc2NSJ9.ZXR1cmFuZ2lz"], true);
    assert_eq!(parts, ["Bearer [REDACTED:jwt:1]", "", "Bearer [REDACTED:jwt:2]", ""]);
}

#[test]
fn a_private_key_that_comes_line_by_line_is_redacted() {
    let lines = PEM.lines().chain(["Finished", "all done"]).map(str::to_owned).collect::<Vec<String>>();
    let clean = ["[REDACTED:private_key:1]", "", "", "", "Finished", "all done"];
    for are_lines in [false, true] {
        let mut once = lines.clone();
        assert!(found_in(&mut once, are_lines));
        assert_eq!(once, clean);
        let mut twice = [lines.as_slice(), &lines].concat();
        assert!(found_in(&mut twice, are_lines));
        assert_eq!(twice, clean.repeat(2));
    }
}

#[test]
fn an_answer_that_is_cut_within_a_known_secret_has_none_of_it() {
    let key = "ghp_abcdefghijklmnopqrstuvwxyz0123456789";
    let mut redactor = Redactor::new(&RULES);
    redactor.json(
        &mut json!({"a": key, "db_password": "dishwasher 42 sold here", "url": "postgres://bob:S3cr3tPw99@db/x"}),
    );
    let cut = |redactor: &mut Redactor<'_>, text: &str| redactor.text(text).unwrap_or_default();
    assert_eq!(cut(&mut redactor, "your key is ghp_abcdefghijklmnopqr"), "", "a request is compared as it is");
    redactor.of_answer(true);
    let mut headers = json!({"Authorization": format!("Bearer {key}"), "proxy-authorization": "Bearer of news"});
    assert!(redactor.json(&mut headers));
    assert_eq!(headers["Authorization"], "Bearer [REDACTED:github_token:1]");
    assert_eq!(headers["proxy-authorization"], "[REDACTED:proxyauthorization:1]");
    for (text, clean) in [
        ("your key is ghp_abcdefghijklmnopqr", "your key is [REDACTED:github_token:1]"),
        ("(key=ghp_abcdefghijklmnopqr", "(key=[REDACTED:github_token:1]"),
        ("on postgres://bob:S3cr3tPw99", "on postgres://bob:[REDACTED:url_password:1]"),
        ("a ghp_abc", ""),
        ("a ghp_abcdefghijklmnopqr is", ""),
        ("xghp_abcdefghijklmnopqr", ""),
    ] {
        assert_eq!(cut(&mut redactor, text), clean, "{text}");
    }
    let mut pieces = ["is ghp_abc", "defghij", "klm012"].map(str::to_owned);
    assert!(!redactor.pieces(&mut pieces));
    pieces[2] = "klm".to_owned();
    assert!(redactor.pieces(&mut pieces));
    assert_eq!(pieces, ["is [REDACTED:github_token:1]", "", ""]);
}

fn cut(whole: &str, cuts: &[prop::sample::Index]) -> Vec<String> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
    at.retain(|at| whole.is_char_boundary(*at));
    at.sort_unstable();
    let mut pieces = Vec::new();
    let mut start = 0;
    for end in at.into_iter().chain([whole.len()]) {
        pieces.push(whole[start..end].to_owned());
        start = end;
    }
    pieces
}

fn prose() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        4 => "[a-zé ]{1,8}",
        1 => prop::sample::select(SHAPES.to_vec()).prop_map(|(secret, _)| format!(" {secret} ")),
        1 => Just("\"password\": \"x y\" ".to_owned()),
    ];
    prop::collection::vec(word, 0..8).prop_map(|words| words.concat())
}

proptest! {
    #[test]
    fn any_cut_of_text_gives_the_same_text(prose in prose(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
            let whole = Redactor::new(&RULES).text(&prose);
        let mut pieces = cut(&prose, &cuts);
        let count = pieces.len();
        let are_alone = pieces.iter().collect::<HashSet<_>>().len() == count;
        let found = Redactor::new(&RULES).pieces(&mut pieces);
        prop_assert_eq!(found, whole.is_some());
        prop_assert_eq!(pieces.len(), count);
        if are_alone {
            prop_assert_eq!(pieces.concat(), whole.unwrap_or(prose));
        }
    }

    #[test]
    fn what_is_redacted_as_a_whole_is_redacted_in_pieces_that_come_again(
        prose in prose(),
        secret in prop::sample::select(SHAPES.to_vec()),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        are_lines in any::<bool>(),
    ) {
        let prose = format!("{}{prose}", secret.0);
        let mut pieces = [cut(&prose, &cuts), cut(&prose, &cuts)].concat();
        let whole = text(&pieces.concat());
        found_in(&mut pieces, are_lines);
        for (secret, part) in SHAPES {
            for at in 0..=secret.len() - 8 {
                let some = &secret[at..at + 8];
                let is_left = pieces.concat().contains(some);
                prop_assert!(!is_left || whole.contains(some), "{part}: {some} in {pieces:?}");
            }
        }
    }

    #[test]
    fn any_cut_of_arguments_gives_the_same_json(prose in prose(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12)) {
            let arguments = json!({"to": prose, "password": "opensesame", "n": 1}).to_string();
        let whole = Redactor::new(&RULES).json_text(&arguments).unwrap();
        let mut pieces = cut(&arguments, &cuts);
        prop_assert!(Redactor::new(&RULES).json_pieces(&mut pieces));
        prop_assert_eq!(pieces.concat(), whole);
    }

    #[test]
    fn no_known_shape_survives_and_twice_is_once(prose in prose()) {
        let once = text(&prose);
        for (secret, part) in SHAPES {
            prop_assert!(!prose.contains(secret) || !once.contains(part), "{once}");
        }
        prop_assert_eq!(text(&once), once.clone());
    }

    #[test]
    fn any_text_is_taken(garbage in any::<String>(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
            let mut redactor = Redactor::new(&RULES);
        let mut pieces = cut(&garbage, &cuts);
        redactor.json_pieces(&mut pieces);
        let _ = redactor.json_text(&garbage);
        let _ = redactor.body(garbage.as_bytes());
    }

    #[test]
    fn json_stays_json(prose in prose(), key in "[a-z\"\\\\{]{0,4}") {
            let value = json!({"list": [prose, {"inner": prose}], key: prose, "token": "t"});
        let text = Redactor::new(&RULES).json_text(&value.to_string()).unwrap();
        let mut same = value.clone();
        Redactor::new(&RULES).json(&mut same);
        prop_assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), same);
    }
}

#[test]
fn values_beside_a_secrets_name_are_secrets() {
    for (name, value) in [("name", "value"), ("key", "value"), ("header", "value"), ("Name", "Value")] {
        let mut body = json!({"env": [{name: "DB_PASSWORD", value: "short"}, {name: "PATH", value: "/usr/bin"}], "value": "stays"});
        let clean = Redactor::new(&RULES).json_text(&body.to_string()).unwrap();
        assert!(Redactor::new(&RULES).json(&mut body));
        assert_eq!(serde_json::from_str::<Value>(&clean).unwrap(), body);
        assert_eq!(body["env"][0][value], "[REDACTED:dbpassword:1]", "{name}");
        assert_eq!((&body["env"][1][value], &body["value"]), (&json!("/usr/bin"), &json!("stays")));
    }
    let mut reversed =
        json!([{"value": {"inner": "opensesame"}, "name": "api_key"}, {"name": "password"}, {"value": "stays"}]);
    assert!(Redactor::new(&RULES).json(&mut reversed));
    assert_eq!(reversed[0]["value"]["inner"], "[REDACTED:apikey:1]");
    assert_eq!(reversed[2]["value"], "stays");
}

#[test]
fn names_of_fields_are_searched_in_values_in_text_and_in_places() {
    for (secret, part) in SHAPES.into_iter().filter(|(secret, _)| !secret.contains('\n')) {
        let mut body = json!({"list": [{secret: {"password": "hunter2hunter2"}}], "other": 1});
        let text = body.to_string();
        let mut redactor = Redactor::new(&RULES);
        assert!(redactor.json(&mut body));
        assert!(!body.to_string().contains(part), "{body}");
        assert_eq!(body["other"], 1);
        assert!(redactor.take_finds().iter().all(|find| !find.place.contains(part)), "{secret}");
        let clean = Redactor::new(&RULES).json_text(&text).unwrap();
        assert!(!clean.contains(part) && serde_json::from_str::<Value>(&clean).is_ok(), "{clean}");
    }
}
