use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

fn written(value: &Value, layout: Layout) -> String {
    let mut out = String::new();
    write(&mut out, value.as_object().unwrap(), 0, layout);
    out
}

/// Texts that some reader takes for something else.
const TRICKY: [&str; 60] = [
    "",
    " ",
    "~",
    "null",
    "Null",
    "yes",
    "No",
    "ON",
    "off",
    "y",
    "N",
    "true",
    "FALSE",
    "1",
    "1.0",
    "1e5",
    "1_000",
    "0x1F",
    "0o17",
    "017",
    "12:30",
    "12:30:45",
    "2026-06-17",
    "2026-06-17T12:00:00Z",
    ".inf",
    "-.INF",
    ".nan",
    "=",
    "<<",
    "-",
    "- a",
    "a -",
    "a ?",
    "a: b",
    "a:",
    ":a",
    "a #b",
    "#a",
    "a\tb",
    "\ta",
    " a",
    "a ",
    "[a]",
    "{a}",
    "a, b",
    "&a",
    "*a",
    "!a",
    "|",
    ">",
    "%a",
    "@a",
    "`a`",
    "'a'",
    "\"a\"",
    "---",
    "...",
    "a\n",
    "a\nb\n\n",
    "\u{85}\u{2028}\u{feff}\u{0}\u{7f}\u{1f600}",
];

#[test]
fn tricky_texts_come_back_as_values_keys_and_items() {
    for text in TRICKY {
        let long = "x".repeat(150);
        let value = json!({"v": text, text: [text, [text], {text: text}], "deep": {"l": [{"a": text, "b": long, text: {"c": text}}]}});
        for layout in [Layout::Block, Layout::Compact] {
            let out = written(&value, layout);
            assert_eq!(parse(&out).map(|node| node.value()), Ok(value.clone()), "{out}");
        }
    }
}

#[test]
fn text_of_lines_is_a_block_where_nothing_is_lost() {
    let out =
        written(&json!({"a": "one\n  two\n\nthree: #4", "b": "x\n", "c": "x\n \ny", "d": "x\r\ny"}), Layout::Block);
    assert_eq!(out, "a: |-\n  one\n    two\n\n  three: #4\nb: |\n  x\nc: \"x\\n \\ny\"\nd: \"x\\r\\ny\"\n");
    let small = written(
        &json!({"m": {"role": "user", "content": "Hi, you"}, "l": [1, 2.5, 1e300, -0.0], "e": {}, "f": []}),
        Layout::Block,
    );
    let asked = written(&json!({"q": "Where is it?", "m": {"q": "Where? There"}}), Layout::Block);
    assert_eq!(asked, "q: Where is it?\nm: {q: \"Where? There\"}\n");
    assert_eq!(small, "m: {role: user, content: \"Hi, you\"}\nl: [1, 2.5, 1.0e+300, -0.0]\ne: {}\nf: []\n");
}

#[test]
fn nodes_know_their_lines() {
    let root = parse("a: 1\nb:\n- x\n-  c: yes\n   d: 0x10\n").unwrap();
    let item = &root.get("b").unwrap().items().unwrap()[1];
    assert_eq!(
        (item.line, item.column, item.get("c").unwrap().text(), item.get("d").unwrap().number()),
        (4, 3, Some("yes"), Some(16))
    );
    assert_eq!(parse("").unwrap().value(), Value::Null);
    assert_eq!(
        parse(r#"{"a": "\u00e9\n", "b": [true, -7, 18446744073709551615]}"#).unwrap().value(),
        json!({"a": "é\n", "b": [true, -7, u64::MAX]})
    );
}

#[test]
fn bytes_are_a_map_of_their_base64() {
    assert_eq!(parse("a: !!binary |\n  AAEC\n  AwQ=\n").unwrap().value(), json!({"a": {"base64": "AAEC\nAwQ=\n"}}));
}

#[test]
fn pairs_of_escapes_are_one_character_and_the_rest_stays() {
    for (json, whole) in [
        (r#"{"a": "\ud83d\ude00!"}"#, "{\"a\": \"\u{1f600}!\"}"),
        (r#"{"a": "\\ud83d\\ude00"}"#, r#"{"a": "\\ud83d\\ude00"}"#),
        (r#"{"a": "\\\ud83d\ude00\u00e9 \ud83d x"}"#, "{\"a\": \"\\\\\u{1f600}\\u00e9 \\ud83d x\"}"),
        ("{\"\u{e9}\\", "{\"\u{e9}\\"),
    ] {
        assert_eq!(super::read::with_whole_characters(json), whole);
    }
}

#[test]
fn json_may_have_pairs_of_escapes() {
    assert_eq!(
        parse(r#"{"a": "\ud83d\ude00", "b": "\\ud83d\\ude00"}"#).unwrap().value(),
        json!({"a": "\u{1f600}", "b": "\\ud83d\\ude00"})
    );
    let lone = parse("{\n\"a\": \"\\ud83d\"}").unwrap_err();
    assert_eq!(lone.line, 2);
}

#[test]
fn what_is_not_read_is_an_error() {
    let deep = "[".repeat(300);
    for text in [
        "a: &x 1\nb: *x\n",
        "a: !!set AA\n",
        "a: !own AA\n",
        "a: 1\na: 2\n",
        "a: 1\n---\nb: 2\n",
        "[a]: 1\n",
        "a: [1\n",
        "a: 1\n b: 2\n",
        "\"",
        &deep,
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.line >= 1 && !error.message.is_empty(), "{text}");
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        proptest::sample::select(TRICKY.to_vec()).prop_map(str::to_owned),
        "[ -~\\n]{0,30}",
        "\\PC{0,12}",
        "(?s).{0,8}",
        "[a-z ]{0,140}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_filter("JSON has none of these", |x| x.is_finite()).prop_map(Value::from),
        text.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 30, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((text.clone(), inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

#[test]
fn a_conflict_of_a_merge_is_called_one() {
    let error = parse("a: 1\n<<<<<<< HEAD\nb: 1\n=======\nb: 2\n>>>>>>> other\n").unwrap_err();
    assert_eq!(error.to_string(), "line 2: a merge left a conflict here (<<<<<<<): resolve it first");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn what_is_written_is_read(value in any_value(), indent in 0..5_usize) {
        let value = json!({"k": value});
        for layout in [Layout::Block, Layout::Compact] {
            let mut out = String::new();
            write(&mut out, value.as_object().unwrap(), indent, layout);
            let read = parse(&out).map(|node| node.value());
            prop_assert_eq!(read, Ok(value.clone()), "{}", out);
        }
    }

    #[test]
    fn no_text_is_too_odd_to_be_refused(text in "[ -~\\n]{0,60}") {
        let _ = parse(&text);
    }
}
