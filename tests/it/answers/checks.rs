//! `answers check`, and files that are wrong.

use super::{Rules, vcr};

/// The exit code, and what was printed.
fn checked(rules: &Rules) -> (i32, String) {
    let output = vcr(&["answers", "check", &rules.file]);
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap().replace(&rules.file, "F"))
}

#[test]
fn every_mistake_is_named_with_its_line() {
    let rules = Rules::new(
        "- match: {containz: x}\n  answer: a\n- match: {contains: x}\n  anser: a\n- match: any\n  answer: {verdict: nobody}\n\
         - match: {contains: y}\n  answer: {parts: [{after: soon, text: a}]}\n- match: {contains: z}\n  extra: 1\n  answer: a\n\
         - request: POST /v1/chat/completions\n  body: {}\n  answer: a\n- match: any\n  answer: {semantic: odd}\n\
         - match: any\n  answer: {verdict: yes-no, categories: [a]}\n- match: {nth: 0}\n  answer: a\n- match: {role: king}\n  answer: a\n\
         - match: any\n  answer: {verdict: yes-no, record: x}\n- match: any\n  answer: {semantic: odd}\n- match: any\n  answer: '{{ model'\n\
         - match: any\n  answer: {verdict: yes-no, unsafe: {rate: 2}}\n",
    );
    let (code, text) = checked(&rules);
    for (line, what) in [
        (2, "`match.containz` is no condition"),
        (4, "the record has no `answer`"),
        (7, "`answer.verdict` has to be llama-guard"),
        (9, "`soon` is not a duration"),
        (11, "`extra` is not known"),
        (13, "needs `match`"),
        (17, "`answer.semantic` has to be bad-arguments"),
        (19, "`categories` has no effect on the verdict yes-no"),
        (20, "`match.nth` has to be a number from 1 on"),
        (22, "`king` is none of user"),
        (25, "the answer has `verdict` and `record`"),
        (27, "`answer.semantic` has to be bad-arguments"),
        (29, "the answer is no template"),
        (31, "`unsafe.rate` has to be a number from 0 to 1"),
    ] {
        let found = text.lines().find(|found| found.starts_with(&format!("F:{line}: ")));
        assert!(found.is_some_and(|found| found.contains(what)), "{line} {what}\n{text}");
    }
    assert_eq!(code, 3, "{text}");
    assert_eq!(text.lines().count(), 14, "{text}");
    let play = vcr(&["play", "--port", "0", "--answers", &rules.file]);
    let log = String::from_utf8(play.stderr).unwrap();
    assert!(play.status.code() == Some(3) && log.contains(":31: ") && !log.contains(" on http://"), "{log}");
}

#[test]
fn what_only_clients_would_find_is_named_too_beside_other_mistakes() {
    let rules = Rules::new(
        "- match: any\n  answer: {content: a, finish_reason: done}\n- match: {contains: b}\n  answer:\n    choices:\n    - {text: a, finish_reason: over}\n\
         - match: {contains: c}\n  answer: {tool_calls: {name: weather}}\n- match: {contains: d}\n  answer:\n    tool_calls:\n    - {arguments: {}}\n\
         - match: {contains: e}\n  answer:\n    tool_calls:\n    - {name: weather, argument: {}}\n    - {name: weather, arguments: 3}\n    - {name: fine}\n\
         - match: {contains: f}\n  answer: {verdict: openai-moderation, categories: [hate, love]}\n\
         - match: {contains: g}\n  answer: {verdict: qwen3guard, categories: [PII, Weather]}\n\
         - match: {contains: h}\n  answer: {schema: {type: object, properties: {a: {type: nothing}}}}\n\
         - match: {contains: i}\n  answer: {content: a, fault: explode}\n- match: {containz: j}\n  answer: a\n\
         - match: {contains: k}\n  answer: {content: a, finish_reason: '{{ model }}'}\n",
    );
    let (code, text) = checked(&rules);
    let wrong = [
        (3, "`finish_reason` is none of stop, length"),
        (7, "`finish_reason` is none of stop, length"),
        (9, "`tool_calls` has to be a list"),
        (13, "a call of `tool_calls` needs a `name`"),
        (17, "`argument` of a call is none of id, type, index, name, arguments"),
        (18, "`arguments` of a call has to be a map, or JSON as a text"),
        (21, "`love` is no category of openai-moderation: harassment,"),
        (23, "`Weather` is no category of qwen3guard: Violent,"),
        (24, "`answer.schema`: "),
        (27, "`answer.fault`: "),
        (28, "`match.containz` is no condition"),
    ];
    for (line, what) in wrong {
        let found = text.lines().find(|found| found.starts_with(&format!("F:{line}: ")));
        assert!(found.is_some_and(|found| found.contains(what)), "{line} {what}\n{text}");
    }
    let lines: Vec<u32> = text.lines().filter_map(|line| line.split(':').nth(1)?.parse().ok()).collect();
    assert_eq!((code, lines), (3, wrong.map(|(line, _)| line).to_vec()), "{text}");
}

#[test]
fn rules_that_are_never_reached_are_named() {
    let rules = Rules::new(
        "- {match: {contains: weather}, answer: a}\n- {match: {contains: [weather, London]}, answer: b}\n\
         - {match: {contains: the weather}, answer: c}\n- {match: {role: system, contains: weather}, answer: d}\n\
         - {match: {contains: once}, times: 1, answer: e}\n- {match: {contains: once}, answer: f}\n\
         - {match: {contains: first, nth: 1}, answer: g}\n- {match: {contains: first}, answer: h}\n\
         - {match: any, answer: i}\n- {match: {regex: x}, answer: j}\n- {match: any, answer: k}\n",
    );
    let (code, text) = checked(&rules);
    let named: Vec<&str> = text.lines().filter(|line| line.contains("never reached")).collect();
    assert_eq!(
        named,
        [
            "F:3: the rule is never reached: F:2 matches the same requests first",
            "F:4: the rule is never reached: F:2 matches the same requests first",
            "F:12: the rule is never reached: F:10 matches the same requests first",
        ]
    );
    assert!(code == 1 && text.ends_with("F: 11 rules\n"), "{text}");
    let good = checked(&Rules::new("- {match: any, answer: a}\n"));
    assert_eq!(good, (0, "F: 1 rule\n".to_owned()));
}

#[test]
fn files_include_others_but_not_in_a_circle() {
    let rules = Rules::with("vcr: 1\ninclude: [more.yaml]\nrecords:\n- {match: {contains: a}, answer: a}\n");
    let more = rules.folder.path().join("more.yaml");
    std::fs::write(&more, "records:\n- {match: any, answer: b}\n").unwrap();
    let (code, text) = checked(&rules);
    assert!(code == 0 && text.contains("more.yaml: 1 rule"), "{text}");
    std::fs::write(&more, "include: answers.yaml\n").unwrap();
    let (code, text) = checked(&rules);
    assert!(code == 3 && text.contains("more.yaml:1: `include`: answers.yaml includes this file in turn"), "{text}");
    std::fs::write(&more, "include: [missing.yaml]\nrecords: 3\nother: 1\n").unwrap();
    let (_, text) = checked(&rules);
    let wrong = [
        "more.yaml:1: `include`: missing.yaml cannot be read",
        "more.yaml:2: `records` has to be a list",
        "more.yaml:3: `other` is none of",
    ];
    assert!(wrong.iter().all(|wrong| text.contains(wrong)), "{text}");
    for (text, wrong) in
        [("", "a file of answers is a map"), ("vcr: 2\nrecords: []\n", "format 1, not 2"), ("a: [", "F:2: ")]
    {
        let (code, said) = checked(&Rules::with(text));
        assert!(code == 3 && said.contains(wrong), "{text}: {said}");
    }
    let missing = vcr(&["answers", "check", "/nowhere/answers.yaml"]);
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(missing.status.code() == Some(3) && missing.stdout.is_empty(), "{said}");
    assert!(said.starts_with("error: /nowhere/answers.yaml: "), "{said}");
}
