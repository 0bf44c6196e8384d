//! Work that hostile records make: linear in their bytes, and bounded.

use std::fmt::Write;

use serde_json::json;

use super::*;

const MAIL: &str = "a.b@example.org";

/// Records of about so many bytes that once took quadratic time.
fn shapes(bytes: usize) -> Vec<(&'static str, String)> {
    let repeated = |part: &dyn Fn(usize) -> String| {
        let mut all = String::with_capacity(bytes + 100);
        for at in 0.. {
            if all.len() >= bytes {
                break;
            }
            all.push_str(&part(at));
        }
        all
    };
    let list = |inside: String| format!("[{}0]", inside);
    let deep = bytes / 4;
    let values = repeated(&|at| format!("\"v{at:08}x\","));
    vec![
        ("short leaves", list(repeated(&|_| "\"a\",1,".to_owned()))),
        ("distinct finds", list(repeated(&|at| format!("\"u{at}@example.org\",")))),
        ("one find again and again", list(repeated(&|_| format!("\"{MAIL}\",")))),
        ("one text of finds", json!([repeated(&|at| format!("u{at}@example.org "))]).to_string()),
        ("values under a name", format!("{{\"password\":[{values}0],\"text\":[{values}0]}}")),
        (
            "values that begin alike",
            format!("{{\"password\":[{}0]}}", repeated(&|at| format!("\"{}{at}\",", "x".repeat(70)))),
        ),
        ("deep", format!("{}{}", "[".repeat(deep), repeated(&|_| format!("\"{MAIL}\",")))),
        ("deep below a name", format!("{{\"password\":{}{}", "[".repeat(deep), repeated(&|_| "\"ab\",".to_owned()))),
        ("long name", format!("{{\"{}_password\":[{}0]}}", "x".repeat(deep), repeated(&|_| "1,".to_owned()))),
        ("long way", format!("{{\"{}\":[{}0]}}", "x".repeat(deep), repeated(&|_| format!("\"{MAIL}\",")))),
        ("placeholders", json!([repeated(&|at| format!("[REDACTED:email:{at}] {MAIL} "))]).to_string()),
        ("open placeholders", json!([repeated(&|_| format!("[REDACTED: {MAIL} "))]).to_string()),
        ("percent", json!([repeated(&|_| "a%40example.org ".to_owned())]).to_string()),
        ("nested", json!([json!([repeated(&|at| format!("u{at}@example.org "))]).to_string()]).to_string()),
    ]
}

fn redacted(text: &str) -> (String, u64) {
    let rules = RedactionRules::all();
    let mut redactor = Redactor::new(&rules);
    let clean = redactor.json_text(text).unwrap_or_else(|| text.to_owned());
    assert!(!redactor.is_exhausted());
    (clean, redactor.work)
}

#[test]
fn work_and_size_are_linear_in_a_record() {
    for ((name, once), (_, twice)) in shapes(20_000).into_iter().zip(shapes(40_000)) {
        let ((clean, work), (clean_twice, work_twice)) = (redacted(&once), redacted(&twice));
        assert!(work_twice <= work * 5 / 2, "{name}: {work} {work_twice}");
        assert!(clean_twice.len() <= clean.len() * 5 / 2, "{name}: {} {}", clean.len(), clean_twice.len());
        assert!(!clean.contains(MAIL) && !clean.contains("u7@example.org"), "{name}");
    }
}

/// A third of what stopped recording for minutes, in a third of the work that it may take.
#[test]
fn a_megabyte_of_each_is_searched_within_a_twelfth_of_the_budget() {
    for (name, text) in shapes(1 << 20) {
        let (clean, work) = redacted(&text);
        assert!(!clean.contains(MAIL) && !clean.contains("u7@example.org"), "{name}");
        assert!(work < BUDGET / 12, "{name}: {work}");
    }
}

#[test]
fn pieces_are_gone_through_once() {
    let rules = RedactionRules::all();
    let mut pieces: Vec<String> = (0..100_000).map(|at| format!("u{at}@example.org ")).collect();
    assert!(Redactor::new(&rules).pieces(&mut pieces));
    assert_eq!(pieces[99_999], "[REDACTED:email:100000] ");
}

#[test]
fn finds_are_described_in_bounds() {
    let rules = RedactionRules::all();
    let mut redactor = Redactor::new(&rules);
    let mut text = String::new();
    (0..MOST_DESCRIBED + 5).for_each(|at| write!(text, "u{at}@example.org ").unwrap());
    assert!(redactor.text(&text).is_some());
    assert_eq!((redactor.found, redactor.finds.len()), (MOST_DESCRIBED as u64 + 5, MOST_DESCRIBED));
}

#[test]
fn beyond_the_budget_nothing_is_shown() {
    let rules = RedactionRules::all();
    let mut redactor = Redactor::new(&rules).within(10_000);
    let mut body = json!({"a": "harmless words ".repeat(1000), "b": ["hunter", 4111111111111111_u64, {"c": MAIL}]});
    assert!(redactor.json(&mut body) && redactor.is_exhausted());
    let text = body.to_string();
    assert!(!text.contains("hunter") && !text.contains(MAIL) && !text.contains("4111"), "{text}");
    assert_eq!(redactor.text("more").as_deref(), Some("[REDACTED:unsearched]"));
    assert_eq!(redactor.text("[REDACTED:unsearched]"), None);
}

#[test]
fn what_a_name_makes_a_secret_is_found_before_it_too() {
    let rules = RedactionRules::all();
    let mut body =
        json!({"messages": [{"content": "use dishwasher-42 there"}, {"args": "{\"password\":\"dishwasher-42\"}"}]});
    Redactor::new(&rules).json(&mut body);
    assert_eq!(body["messages"][0]["content"], "use [REDACTED:password:1] there");
    assert_eq!(body["messages"][1]["args"], "{\"password\":\"[REDACTED:password:1]\"}");
    let text = r#"["dishwasher-42",{"client_secret":"dishwasher-42"}]"#;
    let clean = Redactor::new(&rules).json_text(text).unwrap();
    assert_eq!(clean, r#"["[REDACTED:clientsecret:1]",{"client_secret":"[REDACTED:clientsecret:1]"}]"#);
}

#[test]
fn a_shape_has_one_kind_whether_the_value_has_a_name_elsewhere_or_not() {
    let rules = RedactionRules::all().literal("MY_KEY", "literal-0123456").unwrap();
    for value in [MAIL, "ghp_abcdefghijklmnopqrstuvwxyz0123456789", "literal-0123456", "password=dishwasher42"] {
        let request = json!({"content": format!("use {value} there")});
        let alone = Redactor::new(&rules).text(request["content"].as_str().unwrap());
        let mut redactor = Redactor::new(&rules);
        let named = value.trim_start_matches("password=");
        redactor.learn(&json!({"token": named}));
        assert!(alone.is_some() && redactor.known() == 1);
        assert_eq!(redactor.text(request["content"].as_str().unwrap()), alone);
    }
}
