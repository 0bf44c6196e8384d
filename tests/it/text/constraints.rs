//! Constraints are judged with the engine's words, and what is made up for them conforms.

use std::{sync::LazyLock, time::Duration};

use serde_json::{Value, json};
use tokio::time::Instant;
use vllm_vcr::{
    api::{Api, Constraint, GenerationRequest},
    base::cancellation::Cancellation,
    engine::{
        guided::{DrawLimits, Guide, GuideError, Made, TextEnd, check},
        synthetic::SyntheticKey,
    },
    play::Player,
    text::prompt::{SkipSpecial, Tokenizer},
};

mod schemas;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| Player::builtin_tokenizer().unwrap());
static GUIDE: LazyLock<Guide> = LazyLock::new(|| Guide::new(&TOKENIZER).unwrap());

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn room(least: usize, most: usize) -> DrawLimits {
    DrawLimits { least, most, until: soon() }
}

fn draw(constraint: &Constraint, seed: u64, most: usize) -> Made {
    let key = SyntheticKey { seed, request: 1, choice: 0 };
    GUIDE.draw(constraint, key, room(0, most)).unwrap_or_else(|error| panic!("{constraint:?}: {error}"))
}

fn text(made: &Made) -> String {
    TOKENIZER.decode(&made.ids, SkipSpecial::Skip).unwrap()
}

/// Draws with several seeds; every text ends by itself.
fn texts(constraint: &Constraint) -> Vec<String> {
    let whole = |seed| {
        let made = draw(constraint, seed, 2000);
        assert_eq!(made.ended, TextEnd::WithToken, "{constraint:?}: {}", text(&made));
        assert_eq!(made.ids.last(), TOKENIZER.eos_ids().first());
        text(&made)
    };
    (0..4).map(whole).collect()
}

#[test]
fn json_fits_its_schema() {
    let schemas = schemas::all();
    assert!(schemas.len() >= 100, "{}", schemas.len());
    for schema in schemas {
        let validator = jsonschema::options().should_validate_formats(true).build(&schema).unwrap();
        for text in texts(&Constraint::Json(schema.clone())) {
            let value: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{schema}: {text}: {error}"));
            assert!(validator.is_valid(&value), "{schema}: {text}");
        }
    }
}

#[test]
fn texts_fit_their_expressions() {
    for expression in [
        "abc",
        "a|b|cd",
        "[a-z]{3,8}",
        r"\d{3}-\d{4}",
        r"(foo|bar)+",
        r"[A-Z][a-z]* [0-9]+(\.[0-9]{2})?",
        r"\w+@\w+\.(com|org)",
        ".{5,20}",
        r"[^a]+",
        "(?i)hello",
        r"\p{L}+",
        r"-?(0|[1-9]\d*)",
        "(ab){2,5}c?",
        r"[日本語]{2,4}",
        "🦀+",
        r"(https?)://[a-z]+\.[a-z]{2,3}(/[a-z]*)*",
        "",
        " ",
        "\n",
    ] {
        let whole = regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
        for text in texts(&Constraint::Regex(expression.to_owned())) {
            assert!(whole.is_match(&text), "{expression}: {text:?}");
        }
    }
    for anchored in ["^abc$", r"\Aab\z"] {
        let whole = regex::Regex::new(anchored).unwrap();
        assert!(texts(&Constraint::Regex(anchored.to_owned())).iter().all(|text| whole.is_match(text)), "{anchored}");
    }
}

#[test]
fn every_choice_is_made_and_no_other() {
    let choices = ["yes", "no", "maybe \"so\"\\", "日本\n", "🦀"].map(str::to_owned);
    let mut seen = std::collections::HashSet::new();
    for seed in 0..60 {
        let text = text(&draw(&Constraint::Choice(choices.to_vec()), seed, 100));
        assert!(choices.contains(&text), "{text:?}");
        seen.insert(text);
    }
    assert!(seen.len() >= 4, "{seen:?}");
}

#[test]
fn grammars_of_both_notations_are_followed() {
    for (grammar, expression) in [
        (r#"start: "a" start | "b""#, "a*b"),
        ("start: NUMBER \"+\" NUMBER\nNUMBER: /[0-9]{1,3}/", r"[0-9]{1,3}\+[0-9]{1,3}"),
        (r#"root ::= "a" root | [0-9]+ | ("x" "y"){2,3} # c"#, "a*([0-9]+|(xy){2,3})"),
        (
            "root ::= item (\", \" item)*\nitem ::= [a-z]+ | \"-\" [^a-z\\n] ",
            "(?s)([a-z]+|-[^a-z\n])(, ([a-z]+|-[^a-z\n]))*",
        ),
        ("root ::= my-rule\n\nmy-rule ::= \"\\\"\" \"\\u0041\" [\\]x-]\n", "\"A[\\]x-]"),
    ] {
        let whole = regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
        for text in texts(&Constraint::Grammar(grammar.to_owned())) {
            assert!(whole.is_match(&text), "{grammar}: {text:?}");
        }
    }
}

#[test]
fn structural_tags_are_followed() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false});
    let tag = json!({"type": "tag", "begin": "<f>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</f>"});
    let call = r#"<f>\{"a": -?\d+\}</f>"#;
    let free = "[A-Za-z ]*";
    for (format, expression) in [
        (
            json!({"structures": [{"begin": "<f>", "schema": schema, "end": "</f>"}], "triggers": ["<f"]}),
            format!("{free}{call}({free}{call})*"),
        ),
        (json!({"format": tag}), call.to_owned()),
        (
            json!({"format": {"type": "tags_with_separator", "tags": [tag], "separator": "\n", "at_least_one": true}}),
            format!("{call}(\n{call})*"),
        ),
        (
            json!({"format": {"type": "triggered_tags", "tags": [tag], "triggers": ["<"], "stop_after_first": true}}),
            format!("{free}{call}"),
        ),
        (
            json!({"format": {"type": "sequence", "elements": [{"type": "const_string", "value": "x/"}, {"type": "regex", "pattern": "[0-9]/+"}]}}),
            "x/[0-9]/+".to_owned(),
        ),
        (
            json!({"format": {"type": "or", "elements": [{"type": "grammar", "grammar": "root ::= a a\na ::= \"r_q\""}, {"type": "any_text"}]}}),
            format!("r_qr_q|{free}"),
        ),
        (
            json!({"format": {"type": "repeat", "min": 2, "max": 3, "content": {"type": "const_string", "value": "z"}}}),
            "zz|zzz".to_owned(),
        ),
    ] {
        let whole = regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
        for text in texts(&Constraint::StructuralTag(format.clone())) {
            assert!(whole.is_match(&text), "{format}: {text:?}");
        }
    }
}

#[test]
fn equal_keys_give_equal_texts_and_room_is_kept() {
    let constraint = Constraint::JsonObject;
    assert_eq!(draw(&constraint, 3, 100), draw(&constraint, 3, 100));
    assert_ne!(draw(&constraint, 3, 100).ids, draw(&constraint, 4, 100).ids);
    for most in 1..40 {
        for seed in 0..4 {
            let made = draw(&constraint, seed, most);
            assert!(made.ids.len() <= most, "{made:?}");
            let is_json = serde_json::from_str::<Value>(&text(&made)).is_ok();
            assert!(is_json || made.ended == TextEnd::Cut, "{most}: {}", text(&made));
            assert!(made.ended == TextEnd::WithToken || made.ids.len() == most, "{made:?}");
            assert!(most < 12 || made.ended == TextEnd::WithToken, "{most} tokens are enough for an object");
        }
    }
    let long = Constraint::Regex("[a-z]{1,500}".to_owned());
    let key = SyntheticKey { seed: 1, request: 1, choice: 0 };
    let made = GUIDE.draw(&long, key, room(20, 60)).unwrap();
    assert!((20..60).contains(&made.ids.len()), "{made:?}");
}

/// What the engine takes, though no text fits it.
const REFUSED_HERE: &[&str] = &[
    r#"{"regex": "a^b"}"#,
    r#""minItems": -1"#,
    r#"{"anyOf": []}"#,
    r#""additionalProperties": false, "required": ["a"]"#,
    r#"{"const": 3, "type": "string"}"#,
];

/// The engine's verdicts, as its own functions gave them.
#[test]
fn constraints_are_judged_with_the_engines_words() {
    let mut wrong = Vec::new();
    for line in include_str!("constraints/verdicts.jsonl").lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let mut body = case["body"].clone();
        body["messages"] = json!([{"role": "user", "content": "x"}]);
        let verdict = verdict(&body.to_string());
        let same = verdict.as_ref().err().map(String::as_str) == case["error"].as_str();
        let is_known = REFUSED_HERE.iter().any(|part| line.contains(part));
        if same == is_known {
            wrong.push(format!("{line}\n{verdict:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn verdict(body: &str) -> Result<(), String> {
    let request = GenerationRequest::parse(Api::Chat, body.as_bytes()).map_err(|error| error.message)?;
    request.check_prompt(1, 100).map_err(|error| error.message)?;
    let Some(constraint) = request.constraint().map_err(|error| error.message)? else { return Ok(()) };
    check(&constraint).map_err(|error| match error {
        GuideError::Tag(_) => request.invalid_tag().message,
        other => other.to_string(),
    })
}

/// Rules that lead one to the next.
fn chain(rules: usize, rule: impl Fn(usize) -> String) -> String {
    (0..rules).map(rule).collect()
}

#[test]
fn no_constraint_ends_more_than_its_request() {
    let references: serde_json::Map<String, Value> =
        (0..3000).map(|at| (format!("a{at}"), json!({"$ref": format!("#/$defs/a{}", at + 1)}))).collect();
    for constraint in [
        Constraint::Grammar(format!("root ::= {}", "(".repeat(100_000))),
        Constraint::Grammar(
            "root ::= r0\n".to_owned() + &chain(5000, |at| format!("r{at} ::= r{}\n", at + 1)) + "r5000 ::= \"a\"\n",
        ),
        Constraint::Grammar(
            "start: r0\n".to_owned() + &chain(8000, |at| format!("r{at}: r{}\n", at + 1)) + "r8000: \"a\"\n",
        ),
        Constraint::Grammar(
            "start: R0\n".to_owned() + &chain(8000, |at| format!("R{at}: R{}\n", at + 1)) + "R8000: \"a\"\n",
        ),
        Constraint::Regex("(".repeat(60_000) + "a" + &")".repeat(60_000)),
        Constraint::Json(json!({"$defs": references, "$ref": "#/$defs/a0"})),
    ] {
        let _verdict = check(&constraint);
        let key = SyntheticKey { seed: 1, request: 1, choice: 0 };
        if let Ok(made) = GUIDE.draw(&constraint, key, room(0, 20)) {
            assert_eq!(text(&made), "a");
        }
    }
    let too_large = Constraint::Choice((0..100_000).map(|at| format!("choice {at}")).collect());
    assert_eq!(check(&too_large), Ok(()));
    let late = DrawLimits { until: Instant::now(), ..room(0, 20) };
    let key = SyntheticKey { seed: 1, request: 1, choice: 0 };
    for (constraint, room) in [(too_large, room(0, 20)), (Constraint::JsonObject, late)] {
        assert!(matches!(GUIDE.draw(&constraint, key, room), Err(GuideError::Unsupported(_))));
    }
}

/// A number that is a multiple of all of these.
fn multiple_of(divisors: &[u32]) -> Constraint {
    let all: Vec<Value> = divisors.iter().map(|divisor| json!({"type": "integer", "multipleOf": divisor})).collect();
    Constraint::Json(json!({"type": "array", "items": {"allOf": all, "minimum": 0}, "minItems": 1}))
}

/// The library tries these without a limit of its own, for hours and gigabytes.
#[test]
fn a_lexer_that_grows_without_end_is_given_up() {
    let with_b = |places: std::ops::Range<u32>| {
        let terms: Vec<String> = places.map(|at| format!(r"/(.|\n)*a(.|\n){{{at}}}b(.|\n)*/")).collect();
        Constraint::Grammar(format!("start: T\nT: {}", terms.join(" & ")))
    };
    for constraint in [multiple_of(&[9973, 9967, 9949, 9941]), multiple_of(&[1_000_003]), with_b(10..40)] {
        let key = SyntheticKey { seed: 1, request: 1, choice: 0 };
        let GuideError::Unsupported(reason) = GUIDE.draw(&constraint, key, room(0, 500)).unwrap_err() else {
            panic!("{constraint:?} is one");
        };
        assert!(!reason.contains("too long"), "{reason}");
    }
    let thousands = text(&draw(&multiple_of(&[1000]), 1, 500));
    let mut numbers = thousands.trim_matches(['[', ']']).split(',').map(str::trim);
    assert!(numbers.all(|number| number == "0" || number.ends_with("000")), "{thousands}");
    assert!(!text(&draw(&with_b(3..5), 1, 500)).is_empty());
}

/// The library compares each pattern of property names with each other one.
#[test]
fn patterns_are_compared_up_to_a_number_of_pairs() {
    let patterns = |count: usize| -> Value {
        (0..count)
            .map(|at| (format!("^(a+)+{at}$"), json!({"type": "integer"})))
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let object = |count| json!({"type": "object", "patternProperties": patterns(count)});
    let combined = json!({"$defs": {"a": object(40)}, "allOf": vec![json!({"$ref": "#/$defs/a"}); 1000]});
    for (constraint, is_followed) in [
        (Constraint::Json(object(500)), false),
        (Constraint::Json(combined), false),
        (Constraint::Json(json!({"items": vec![object(2); 100]})), true),
        (Constraint::Grammar(format!("start: \"a\" x\nx: %json {}\n", object(500))), false),
        (Constraint::Grammar(format!("start: \"a\" x\nx: %json {}\n", object(5))), true),
    ] {
        assert_eq!(check(&constraint), Ok(()), "the engine takes it");
        let key = SyntheticKey { seed: 1, request: 1, choice: 0 };
        match GUIDE.draw(&constraint, key, room(0, 50)) {
            Ok(_) => assert!(is_followed, "{constraint:?}"),
            Err(error) => {
                assert!(!is_followed && error.to_string().contains("comparisons of patternProperties"), "{error}");
            }
        }
    }
}

/// The vocabulary is not walked for each expression.
#[test]
fn many_large_expressions_are_followed() {
    let names: Vec<String> = (0..1500).map(|at| format!("T{at}")).collect();
    let terms: String = (0..1500).map(|at| format!("T{at}: /[a-z]{{{}}}{at}/\n", at % 50 + 1)).collect();
    let many = Constraint::Grammar(format!("start: ({})*\n{terms}", names.join(" | ")));
    assert!(text(&draw(&many, 1, 100)).bytes().all(|byte| byte.is_ascii_alphanumeric()));
}

#[test]
fn nothing_is_drawn_for_a_client_that_left() {
    let key = SyntheticKey { seed: 1, request: 1, choice: 0 };
    let left = Cancellation::default();
    left.cancel();
    let drawn = left.scope(|| GUIDE.draw(&Constraint::JsonObject, key, room(0, 500)));
    assert!(matches!(drawn, Err(GuideError::Unsupported(_))));
    left.scope(|| check(&Constraint::JsonObject)).unwrap_err();
}
